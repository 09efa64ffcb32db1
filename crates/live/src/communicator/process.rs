//! What the communicators of a process share: the engine, who may drive it, and the thread that does when nobody else.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Options;
use super::attendant::Attendant;
use crate::Control;
use crate::calls::Book;
use crate::engine::Engine;
use crate::rendezvous::Config;

/// How long the thread waits for news before it looks whether it should end.
const NEWS: Duration = Duration::from_millis(200);
/// How long it leaves alone what is held back for what may follow; where ranks share cores it takes one from a rank to look.
const HELD: Duration = Duration::from_micros(500);
const HELD_SHARED: Duration = Duration::from_millis(1);
/// After so many looks since something was last held back, it looks no more until something is.
const LOOKS: u32 = 25;
/// Turns of the engine that the thread does before it lets others have it.
const TURNS: usize = 64;

/// What the communicators of a process share.
#[derive(Debug)]
pub(super) struct Process {
    engine: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The thread that keeps the NIC going.
    attendant: Option<JoinHandle<()>>,
    config: Config,
    options: Options,
    /// What was called, where somebody wants to know.
    book: Option<Book>,
}

#[derive(Debug)]
pub(super) struct Shared {
    engine: Mutex<Option<Engine>>,
    /// Who keeps the NIC going, where there is one.
    attendant: Option<Attendant>,
    control: Arc<Control>,
    /// Threads that want the engine: the background thread steps back.
    wanted: AtomicUsize,
    /// Calls that were started and not waited for.
    started: AtomicUsize,
    /// Looks that are left for what may be held back: all of them while calls hold something back, none when nothing is.
    looks: AtomicU32,
    /// The time between two of them.
    held: Duration,
    ends: AtomicBool,
}

impl Process {
    pub(super) fn new(
        engine: Engine,
        config: &Config,
        options: &Options,
        book: Option<Book>,
    ) -> std::io::Result<Self> {
        let control = Arc::clone(engine.control());
        let attendant = Attendant::new(&engine)?;
        let held = if engine.shares_cores() { HELD_SHARED } else { HELD };
        let shared = Arc::new(Shared {
            engine: Mutex::new(Some(engine)),
            attendant,
            control,
            wanted: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
            held,
            ends: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("railnet-progress".to_owned()).spawn(move || own.run())?;
        let mut process = Self {
            engine: shared,
            thread: Some(thread),
            attendant: None,
            config: config.clone(),
            options: options.clone(),
            book,
        };
        if process.engine.attendant.is_some() {
            let own = Arc::clone(&process.engine);
            let run = move || own.attendant.as_ref().map_or((), |attendant| attendant.run(&own));
            let thread = std::thread::Builder::new().name("railnet-nic".to_owned()).spawn(run)?;
            process.attendant = Some(thread);
        }
        Ok(process)
    }

    /// How it was made.
    pub(super) fn origin(&self) -> (&Config, &Options) {
        (&self.config, &self.options)
    }

    /// Where calls are noted, if they are.
    pub(super) fn book(&self) -> Option<&Book> {
        self.book.as_ref()
    }

    /// What tells of ranks that are gone.
    pub(super) fn control(&self) -> &Control {
        &self.engine.control
    }

    /// Uses the engine.
    pub(super) fn with<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> T {
        self.with_if_there(action).expect("the engine is there as long as communicators are")
    }

    /// The same, where a panic has not ended it.
    pub(super) fn with_if_there<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let mut guard = match self.engine.engine.try_lock() {
            Ok(guard) => guard,
            // Somebody has it: the background thread steps back when it sees that it is wanted.
            Err(_) => {
                self.engine.wanted.fetch_add(1, Ordering::Relaxed);
                let guard = self.engine.lock();
                self.engine.wanted.fetch_sub(1, Ordering::Relaxed);
                guard
            }
        };
        let engine = guard.as_mut()?;
        let Some(attendant) = &self.engine.attendant else {
            let outcome = action(engine);
            if engine.is_holding() {
                self.engine.look_after();
            }
            return Some(outcome);
        };
        attendant.hand_over();
        let outcome = action(engine);
        attendant.take_over(engine);
        Some(outcome)
    }

    /// A call was started that nobody waits for yet.
    pub(super) fn add_started(&self) {
        self.engine.started.fetch_add(1, Ordering::Relaxed);
        self.engine.control.poke();
    }

    /// Such a call is over, or somebody waits for it.
    pub(super) fn remove_started(&self) {
        self.engine.started.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// A panic inside the engine leaves buffers in use that are gone: nothing may go on after it.
    fn lock(&self) -> MutexGuard<'_, Option<Engine>> {
        let mut guard = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if self.engine.is_poisoned() {
            *guard = None;
        }
        guard
    }

    /// Uses the engine, if it is there and nobody else has it or wants it.
    pub(super) fn with_if_free<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        if self.wanted.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.engine.try_lock().ok()?.as_mut().map(action)
    }

    fn run(&self) {
        while !self.ends.load(Ordering::Relaxed) {
            if self.started.load(Ordering::Relaxed) == 0 {
                let looks = self.looks.load(Ordering::Relaxed);
                if self.control.wait_for_news(if looks > 0 { self.held } else { NEWS }) {
                    self.lock().as_mut().map(Engine::hear);
                    // Whoever drives the engine has taken the news; if nobody could, it is not lost.
                    std::thread::yield_now();
                }
                if looks > 0 {
                    self.let_go();
                }
                continue;
            }
            let moved = self.wanted.load(Ordering::Relaxed) == 0 && self.turns();
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    /// A call has left something that is held back.
    #[inline]
    fn look_after(&self) {
        if self.looks.swap(LOOKS, Ordering::Relaxed) == 0 {
            self.control.poke();
        }
    }

    /// Has sent what is held back, if no call has held anything back since the last look. Whoever calls now sends it before
    /// that waits.
    fn let_go(&self) {
        if self.looks.fetch_sub(1, Ordering::Relaxed) < LOOKS {
            self.with_if_free(Engine::let_go);
        }
    }

    fn turns(&self) -> bool {
        let mut guard = self.lock();
        let Some(engine) = guard.as_mut() else { return false };
        engine.let_go();
        let mut moved = false;
        for _ in 0..TURNS {
            if self.wanted.load(Ordering::Relaxed) > 0 || !engine.is_busy() {
                break;
            }
            moved |= engine.turn(true);
            engine.watch_clock();
        }
        moved
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.engine.ends.store(true, Ordering::Relaxed);
        self.engine.control.poke();
        // They have nothing to say; a panic of theirs was printed.
        self.thread.take().map(JoinHandle::join);
        let panics = std::thread::panicking();
        let drain = |engine: &mut Engine| engine.drain_nic(self.options.limit);
        if !panics && self.engine.lock().as_mut().map(drain).is_some() {
            // Rank 0 waits for the others here, and its NIC is there for them.
            self.engine.control.say_goodbye(self.options.limit);
        }
        if let Some(attendant) = &self.engine.attendant {
            attendant.end();
        }
        self.attendant.take().map(JoinHandle::join);
        drop(self.engine.lock().take());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use railnet_core::Rank;

    use super::*;
    use crate::launch::{Launch, Launcher, Meeting, free_port};
    use crate::{Communicator, Conduit};

    /// Small Broadcasts one after the other hold something back. When no call follows, the thread has it sent: only that
    /// ends it, and the other rank has all of them before the next call.
    #[test]
    fn what_calls_hold_back_is_sent_when_no_other_follows() {
        let limit = Duration::from_mins(1);
        let port = free_port().unwrap();
        let join = |rank| {
            let launch = Launch {
                launcher: Launcher::Torchrun,
                rank: Rank(rank),
                world_size: 2,
                meeting: Some(Meeting::new("127.0.0.1", port)),
                ..Launch::alone()
            };
            let options = Options { limit, conduit: Some(Conduit::Tcp), ..Options::default() };
            Communicator::meet(&Config { limit, ..Config::new(&launch) }, &options).unwrap()
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let (world, mut value) = (join(1), [1_u64]);
                while value != [0] {
                    world.broadcast(&mut value, 0).unwrap();
                }
            });
            let world = join(0);
            let is_holding = || world.process.with(|engine| engine.is_holding());
            let deadline = Instant::now() + limit;
            while !is_holding() {
                assert!(Instant::now() < deadline, "nothing is held back of any stream of calls");
                for _ in 0..40 {
                    world.broadcast(&mut [1_u64], 0).unwrap();
                }
            }
            while is_holding() {
                assert!(Instant::now() < deadline, "nobody has sent what is held back");
                std::thread::sleep(Duration::from_millis(10));
            }
            world.broadcast(&mut [0_u64], 0).unwrap();
            other.join().unwrap();
        });
    }
}
