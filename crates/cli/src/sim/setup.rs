//! A run that is being set up: on a large cluster that takes minutes, in which nothing is simulated and no one looks at the run.
//! A thread beside it says how long it has been going on, and ends the command when it is asked to stop.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::progress::Progress;
use crate::files;
use crate::interrupt::Interrupt;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// What is being set up, until it is dropped.
pub(super) struct SetUp {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stage: Mutex<Stage>,
    changed: Condvar,
}

struct Stage {
    name: &'static str,
    is_over: bool,
}

impl SetUp {
    /// Begins: `of` says what is set up, such as `24,576 GPUs`. The command ends where `ends` says so and it is asked to stop.
    pub(super) fn begin(of: String, name: &'static str, interrupt: Interrupt, ends: bool) -> Self {
        let stage = Mutex::new(Stage { name, is_over: false });
        let shared = Arc::new(Shared { stage, changed: Condvar::new() });
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || watch(&seen, &of, &interrupt, ends));
        Self { shared, thread: Some(thread) }
    }

    /// The next stage.
    pub(super) fn stage(&self, name: &'static str) {
        self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner).name = name;
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.shared.changed.notify_all();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn watch(shared: &Shared, of: &str, interrupt: &Interrupt, ends: bool) {
    let (began, progress) = (Instant::now(), Progress::new());
    let mut stage = shared.stage.lock().unwrap_or_else(PoisonError::into_inner);
    while !stage.is_over {
        let waited = shared.changed.wait_timeout(stage, INTERVAL);
        stage = waited.unwrap_or_else(PoisonError::into_inner).0;
        if stage.is_over {
            break;
        }
        if ends && let Some(status) = interrupt.status() {
            progress.clear();
            files::abandon();
            crate::report("stopped while the run was set up: there are no results yet");
            #[allow(clippy::exit, reason = "the thread that sets up cannot be asked to stop")]
            std::process::exit(status);
        }
        progress.show(&format!("setting up {of} · {} · {} s", stage.name, began.elapsed().as_secs()));
    }
    progress.clear();
}
