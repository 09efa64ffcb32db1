//! Ctrl-C and SIGTERM: a long run is asked to stop and to say what it knows; the second time it is ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The signals that ask, and what a shell gives for a process that each has ended.
const SIGNALS: [(i32, i32); 2] = [(SIGINT, 130), (SIGTERM, 143)];

/// The flag of this process: there is one.
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether the run was asked to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the signals only ask.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        if let Some(asked) = ASKED.get() {
            return Ok(Self(Arc::clone(asked)));
        }
        let asked = Arc::new(AtomicBool::new(false));
        if ASKED.set(Arc::clone(&asked)).is_err() {
            return Self::catch();
        }
        for (signal, status) in SIGNALS {
            // In this order: the first time nothing is set yet when it looks.
            flag::register_conditional_shutdown(signal, status, Arc::clone(&asked))
                .context("cannot catch signals")?;
            flag::register(signal, Arc::clone(&asked)).context("cannot catch signals")?;
        }
        Ok(Self(asked))
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
        self.0.load(Ordering::Relaxed)
    }
}
