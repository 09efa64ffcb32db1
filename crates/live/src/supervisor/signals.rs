//! Signals to this process, as a descriptor to poll.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// The signals that are caught. SIGCHLD only wakes.
const CAUGHT: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD];

pub(super) struct Signals {
    /// Readable after a signal.
    receiver: UnixStream,
    flags: Vec<(i32, Arc<AtomicBool>)>,
    handlers: Vec<SigId>,
}

impl Signals {
    pub(super) fn catch() -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        let mut signals = Self { receiver, flags: Vec::new(), handlers: Vec::new() };
        for signal in CAUGHT {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: the flag is set before the pipe wakes the loop.
            signals.handlers.push(signal_hook::flag::register(signal, Arc::clone(&flag))?);
            signals.handlers.push(signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?);
            signals.flags.push((signal, flag));
        }
        Ok(signals)
    }

    /// The signals since the last call, without SIGCHLD.
    pub(super) fn take(&mut self) -> Vec<i32> {
        let mut bytes = [0; 64];
        while matches!(self.receiver.read(&mut bytes), Ok(1..)) {}
        let is_up = |(_, flag): &&(i32, Arc<AtomicBool>)| flag.swap(false, Ordering::SeqCst);
        let taken = self.flags.iter().filter(is_up).map(|(signal, _)| *signal);
        taken.filter(|signal| *signal != SIGCHLD).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}
