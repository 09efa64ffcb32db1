//! The progress thread of the NIC: it acknowledges and retransmits while this rank computes. It blocks until a packet arrives
//! or a timer is due.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::process::Shared;
use crate::engine::Engine;
use crate::socket;

/// How long it leaves the NIC to a thread that drives it anyway. If it polled the socket meanwhile, each packet would wake it,
/// and if it locked the engine between two calls, the second would wait.
const DEFER: Duration = Duration::from_millis(1);
/// How long after a call it expects another.
const GAP: Duration = Duration::from_micros(100);
/// The longest block.
const BLOCK_MAX: Duration = Duration::from_millis(200);

/// What the progress thread shares with the others.
#[derive(Debug)]
pub(super) struct NicThread {
    /// Readable when the NIC has something to do.
    watch: OwnedFd,
    /// Wakes the thread.
    doorbell: OwnedFd,
    start: Instant,
    /// When the thread wakes at the latest, in nanoseconds since `start`.
    wakes_at: AtomicU64,
    /// Incremented when another thread begins or is_stopping to use the engine: odd while one does.
    uses: AtomicU64,
    is_stopping: AtomicBool,
}

impl NicThread {
    /// For the NIC of an engine, if it has one.
    pub(super) fn new(engine: &Engine) -> io::Result<Option<Self>> {
        let Some(watch) = engine.nic_doorbell() else { return Ok(None) };
        Ok(Some(Self {
            watch: watch.try_clone_to_owned()?,
            doorbell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            start: Instant::now(),
            wakes_at: AtomicU64::new(0),
            uses: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        }))
    }

    /// A thread begins to use the engine: it drives the NIC as well.
    pub(super) fn hand_over(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread is_stopping to use the engine. The progress thread is woken if it would block beyond the next timer.
    pub(super) fn take_over(&self, engine: &mut Engine) {
        engine.drive_nic();
        self.uses.fetch_add(1, Ordering::Relaxed);
        let Some(timer) = engine.nic_timeout() else { return };
        let due = self.start.elapsed() + timer;
        // Timers are longer than the interval for which it leaves the NIC alone, and a thread in a loop of calls would wake it
        // each time.
        if due.as_nanos() as u64 + DEFER.as_nanos() as u64 <= self.wakes_at.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    fn ring(&self) {
        // An eventfd whose counter is full wakes as well.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Stops the thread.
    pub(super) fn end(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// The loop of the thread.
    pub(super) fn run(&self, shared: &Shared) {
        let mut seen = 0;
        while !self.is_stopping.load(Ordering::Relaxed) {
            let uses = self.uses.load(Ordering::Relaxed);
            if uses % 2 == 1 || std::mem::replace(&mut seen, uses) != uses {
                self.block(if uses % 2 == 1 { DEFER } else { GAP }, false);
                continue;
            }
            match shared.with_if_free(|engine| (engine.drive_nic(), engine.nic_timeout())) {
                Some((true, _)) => std::thread::yield_now(),
                Some((false, timer)) => {
                    self.block(timer.map_or(BLOCK_MAX, |timer| timer.min(BLOCK_MAX)), true);
                }
                None => self.block(DEFER, false),
            }
        }
    }

    /// Blocks until a time, the doorbell, or, if `watches`, the NIC.
    fn block(&self, limit: Duration, watches: bool) {
        self.wakes_at.store((self.start.elapsed() + limit).as_nanos() as u64, Ordering::Relaxed);
        let (doorbell, watch) = (self.doorbell.as_fd(), self.watch.as_fd());
        let mut fds = [doorbell, watch].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // An error of poll is no reason to stop: the loop polls again.
        let _ = socket::wait(&mut fds[..=usize::from(watches)], Instant::now() + limit);
        let mut count = [0; 8];
        // EAGAIN: nobody rang.
        let _ = rustix::io::read(&self.doorbell, &mut count);
    }
}
