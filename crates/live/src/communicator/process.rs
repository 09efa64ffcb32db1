//! What the communicators of a process share: the engine, who may drive it, and the thread that does when nobody else.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
        let shared = Arc::new(Shared {
            engine: Mutex::new(Some(engine)),
            attendant,
            control,
            wanted: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
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
        let Some(attendant) = &self.engine.attendant else { return Some(action(engine)) };
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
                if self.control.wait_for_news(NEWS) {
                    self.lock().as_mut().map(Engine::hear);
                    // Whoever drives the engine has taken the news; if nobody could, it is not lost.
                    std::thread::yield_now();
                }
                continue;
            }
            let moved = self.wanted.load(Ordering::Relaxed) == 0 && self.turns();
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    fn turns(&self) -> bool {
        let mut guard = self.lock();
        let Some(engine) = guard.as_mut() else { return false };
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
