//! What the communicators of a process share: the engine, who may drive it, and the thread that does when nobody else.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Options;
use crate::Control;
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
    config: Config,
    options: Options,
}

#[derive(Debug)]
struct Shared {
    engine: Mutex<Option<Engine>>,
    control: Arc<Control>,
    /// Threads that want the engine: the background thread steps back.
    wanted: AtomicUsize,
    /// Calls that were started and not waited for.
    started: AtomicUsize,
    ends: AtomicBool,
}

impl Process {
    pub(super) fn new(engine: Engine, config: &Config, options: &Options) -> std::io::Result<Self> {
        let control = Arc::clone(engine.control());
        let shared = Arc::new(Shared {
            engine: Mutex::new(Some(engine)),
            control,
            wanted: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("railnet-progress".to_owned()).spawn(move || own.run())?;
        Ok(Self { engine: shared, thread: Some(thread), config: config.clone(), options: options.clone() })
    }

    /// How it was made.
    pub(super) fn origin(&self) -> (&Config, &Options) {
        (&self.config, &self.options)
    }

    /// Uses the engine.
    pub(super) fn with<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> T {
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
        action(guard.as_mut().expect("the engine is there as long as communicators are"))
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
            moved |= engine.turn();
            engine.watch_clock();
        }
        moved
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.engine.ends.store(true, Ordering::Relaxed);
        self.engine.control.poke();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; a panic of its was printed.
            let _ = thread.join();
        }
        let engine = self.engine.lock().take();
        if let Some(engine) = engine
            && !std::thread::panicking()
        {
            engine.control().say_goodbye(self.options.limit);
        }
    }
}
