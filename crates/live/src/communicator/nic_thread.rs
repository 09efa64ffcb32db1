//! The thread that keeps the NIC going while nobody else does: peers are acknowledged, and what is lost is sent again,
//! while this rank computes. It sleeps until something comes in or a timer is due.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::process::Shared;
use crate::engine::Engine;
use crate::socket;

/// How long the thread leaves the NIC to a thread that drives it anyway. Were it to wait for packets meanwhile, each would
/// wake it, and were it to take the engine between two calls, the second would wait for it.
const STEP_BACK: Duration = Duration::from_millis(1);
/// How long after a call it waits for another one.
const GAP: Duration = Duration::from_micros(100);
/// The longest sleep.
const SLEEP: Duration = Duration::from_millis(200);

/// What the thread and the others share.
#[derive(Debug)]
pub(super) struct NicThread {
    /// Readable when the NIC has something to do.
    watch: OwnedFd,
    /// Wakes the thread.
    bell: OwnedFd,
    start: Instant,
    /// When the thread looks again at the latest, in nanoseconds since the start.
    looks_at: AtomicU64,
    /// How often others began and ended to use the engine: odd while one does.
    uses: AtomicU64,
    ends: AtomicBool,
}

impl NicThread {
    /// For the NIC of an engine, where it has one.
    pub(super) fn new(engine: &Engine) -> io::Result<Option<Self>> {
        let Some(watch) = engine.nic_doorbell() else { return Ok(None) };
        Ok(Some(Self {
            watch: watch.try_clone_to_owned()?,
            bell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            start: Instant::now(),
            looks_at: AtomicU64::new(0),
            uses: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        }))
    }

    /// A thread begins to use the engine: it drives the NIC as well.
    pub(super) fn hand_over(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// It has done with the engine for now: what it left to the NIC goes on, and the nic_thread is woken if it would sleep
    /// past a timer.
    pub(super) fn take_over(&self, engine: &mut Engine) {
        engine.drive_nic();
        self.uses.fetch_add(1, Ordering::Relaxed);
        let Some(timer) = engine.nic_timeout() else { return };
        let due = self.start.elapsed() + timer;
        // The step back is left to it: timers are longer, and who calls again and again would wake it each time.
        if due.as_nanos() as u64 + STEP_BACK.as_nanos() as u64 <= self.looks_at.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    fn ring(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// What the thread does.
    pub(super) fn run(&self, shared: &Shared) {
        let mut seen = 0;
        while !self.ends.load(Ordering::Relaxed) {
            let uses = self.uses.load(Ordering::Relaxed);
            if uses % 2 == 1 || std::mem::replace(&mut seen, uses) != uses {
                self.sleep(if uses % 2 == 1 { STEP_BACK } else { GAP }, false);
                continue;
            }
            match shared.with_if_free(|engine| (engine.drive_nic(), engine.nic_timeout())) {
                Some((true, _)) => std::thread::yield_now(),
                Some((false, timer)) => self.sleep(timer.map_or(SLEEP, |timer| timer.min(SLEEP)), true),
                None => self.sleep(STEP_BACK, false),
            }
        }
    }

    /// Sleeps until a timer, the bell, or, where `watches`, the NIC.
    fn sleep(&self, limit: Duration, watches: bool) {
        self.looks_at.store((self.start.elapsed() + limit).as_nanos() as u64, Ordering::Relaxed);
        let (bell, watch) = (self.bell.as_fd(), self.watch.as_fd());
        let mut fds = [bell, watch].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // That it cannot sleep is no reason to stop: it looks again.
        let _ = socket::wait(&mut fds[..=usize::from(watches)], Instant::now() + limit);
        let mut count = [0; 8];
        // Nothing to read means that nobody rang.
        let _ = rustix::io::read(&self.bell, &mut count);
    }
}
