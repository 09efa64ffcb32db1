//! Ctrl-C: a long run is asked to stop and to say what it knows; the second time it is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// What a shell gives for a process that Ctrl-C has ended.
const ENDED: i32 = 130;

/// Whether Ctrl-C was pressed.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C only asks.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        // In this order: the first time nothing is set yet when it looks.
        flag::register_conditional_shutdown(SIGINT, ENDED, Arc::clone(&asked))
            .context("cannot catch Ctrl-C")?;
        flag::register(SIGINT, Arc::clone(&asked)).context("cannot catch Ctrl-C")?;
        Ok(Self(asked))
    }

    /// From now on Ctrl-C ends the program again, whatever asked to be asked before.
    pub(crate) fn ends_program() -> anyhow::Result<()> {
        let at_once = Arc::new(AtomicBool::new(true));
        flag::register_conditional_shutdown(SIGINT, ENDED, at_once).context("cannot catch Ctrl-C")?;
        Ok(())
    }

    /// Whether it has been.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
