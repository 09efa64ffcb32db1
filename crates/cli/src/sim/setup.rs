//! How far a run is, from a thread beside it: on a large cluster its set-up takes minutes, in which nothing is simulated, and so
//! may a few microseconds of it. The thread shows the time that passes, and ends the command when it is asked to stop during
//! set-up.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::progress::Progress;
use crate::files;
use crate::interrupt::Interrupt;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(200);
/// What is shown from the moment the run is asked to stop: to sum up what many ranks did takes a while.
const STOPPED: &str = "stopped; summing up what is known by now";

/// A run that is being set up, and then runs, until it is dropped.
pub(super) struct SetUp {
    of: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stage: Mutex<Stage>,
    changed: Condvar,
}

struct Stage {
    line: String,
    /// Whether the command ends here when it is asked to stop.
    ends: bool,
    is_over: bool,
}

impl SetUp {
    /// Begins: `of` says what is set up, such as `24,576 GPUs`. The command ends where `ends` says so and it is asked to stop.
    pub(super) fn begin(of: String, name: &'static str, interrupt: Interrupt, ends: bool) -> Self {
        let stage = Mutex::new(Stage { line: setting_up(&of, name), ends, is_over: false });
        let shared = Arc::new(Shared { stage, changed: Condvar::new() });
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || watch(&seen, &interrupt));
        Self { of, shared, thread: Some(thread) }
    }

    /// The next stage.
    pub(super) fn stage(&self, name: &'static str) {
        self.lock().line = setting_up(&self.of, name);
    }

    /// It is set up: from now on it stops by itself when it is asked to.
    pub(super) fn runs(&self) {
        self.lock().ends = false;
    }

    /// So far it has come.
    pub(super) fn tell(&self, line: String) {
        self.lock().line = line;
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        self.lock().is_over = true;
        self.shared.changed.notify_all();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn setting_up(of: &str, name: &str) -> String {
    format!("setting up {of} · {name}")
}

fn watch(shared: &Shared, interrupt: &Interrupt) {
    let (began, progress) = (Instant::now(), Progress::new());
    let mut stage = shared.stage.lock().unwrap_or_else(PoisonError::into_inner);
    while !stage.is_over {
        let waited = shared.changed.wait_timeout(stage, INTERVAL);
        stage = waited.unwrap_or_else(PoisonError::into_inner).0;
        if stage.is_over {
            break;
        }
        if stage.ends
            && let Some(status) = interrupt.status()
        {
            progress.clear();
            files::abandon();
            crate::report("stopped while the run was set up: there are no results yet");
            #[allow(clippy::exit, reason = "the thread that sets up cannot be asked to stop")]
            std::process::exit(status);
        }
        let line = if interrupt.is_set() { STOPPED } else { &stage.line };
        progress.show(&format!("{line} · {} s", began.elapsed().as_secs()));
    }
    progress.clear();
}
