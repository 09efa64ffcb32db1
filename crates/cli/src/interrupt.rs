//! Ctrl-C and SIGTERM: a long run is asked to stop and to say what it knows; the second time it is ended.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The signals that ask, and what a shell gives for a process that each has ended.
const SIGNALS: [(i32, i32); 2] = [(SIGINT, 130), (SIGTERM, 143)];

/// The flag of this process: there is one.
static ASKED: OnceLock<Interrupt> = OnceLock::new();

/// Whether the run was asked to stop.
#[derive(Clone)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    /// The status that a shell would give; 0 before.
    status: Arc<AtomicUsize>,
}

impl Interrupt {
    /// From now on the signals only ask.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        if let Some(interrupt) = ASKED.get() {
            return Ok(interrupt.clone());
        }
        let interrupt = Self { asked: Arc::default(), status: Arc::default() };
        if ASKED.set(interrupt.clone()).is_err() {
            return Self::catch();
        }
        for (signal, status) in SIGNALS {
            // In this order: the first time nothing is set yet when it looks.
            flag::register_conditional_shutdown(signal, status, Arc::clone(&interrupt.asked))
                .context("cannot catch signals")?;
            flag::register_usize(signal, Arc::clone(&interrupt.status), status as usize)
                .context("cannot catch signals")?;
            flag::register(signal, Arc::clone(&interrupt.asked)).context("cannot catch signals")?;
        }
        Ok(interrupt)
    }

    /// From now on the signals end the program again, whatever asked to be asked before.
    pub(crate) fn ends_program() -> anyhow::Result<()> {
        for (signal, status) in SIGNALS {
            let at_once = Arc::new(AtomicBool::new(true));
            flag::register_conditional_shutdown(signal, status, at_once).context("cannot catch signals")?;
        }
        Ok(())
    }

    /// Whether it has been.
    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The same for one who looks by itself.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
    }

    /// The status to end with, where it has been.
    pub(crate) fn status(&self) -> Option<i32> {
        match self.status.load(Ordering::Relaxed) {
            0 => None,
            status => i32::try_from(status).ok(),
        }
    }
}
