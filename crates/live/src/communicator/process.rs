//! What the communicators of a process share: the engine, the mutex around it, and the progress thread that drives it while no
//! other does.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railnet_coll::machine::{Failure, OperationId};

use super::nic_thread::NicThread;
use super::{Options, at_exit};
use crate::Control;
use crate::calls::CallTrace;
use crate::engine::{ContextId, Engine, KeepAlive, WaitLimit, bare_status};
use crate::message::Trouble;
use crate::rendezvous::Config;
use crate::status::Server;
use crate::thread;

/// How long the progress thread waits for notices before it checks whether it should stop.
const NOTICE_POLL: Duration = Duration::from_millis(200);
/// How long the end of a program waits for a thread that has the engine: the progress thread has it for moments only.
const EXIT_LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// Polls of the progress thread before it unlocks the engine.
const POLLS_PER_LOCK: usize = 64;
/// How long a blocking call drives the engine in one go: after that it asks whether the program goes on.
const DRIVE_MAX: Duration = Duration::from_millis(50);

/// Shared by the communicators of a process.
#[derive(Debug)]
pub(super) struct Process {
    engine: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The progress thread of the NIC.
    nic_thread: Option<JoinHandle<()>>,
    /// The status socket of this rank and its thread, if they could be opened.
    status: Option<(Arc<Server>, JoinHandle<()>)>,
    config: Config,
    options: Options,
}

#[derive(Debug)]
pub(super) struct Shared {
    engine: Mutex<Option<Engine>>,
    /// The progress thread of the NIC, if there is one.
    nic_thread: Option<NicThread>,
    control: Arc<Control>,
    /// Threads that wait for the engine: the progress thread unlocks it for them.
    wanted: AtomicUsize,
    /// Started calls, which the progress thread drives while the program computes.
    started: Arc<AtomicUsize>,
    is_stopping: AtomicBool,
    /// How long the others are waited for at the end.
    limit: Duration,
    /// The call trace, if there is one.
    call_trace: Option<CallTrace>,
    /// The pid that it belongs to.
    pid: u32,
}

impl Process {
    pub(super) fn new(
        engine: Engine,
        config: &Config,
        options: &Options,
        call_trace: Option<CallTrace>,
    ) -> std::io::Result<Self> {
        let control = Arc::clone(engine.control());
        let nic_thread = NicThread::new(&engine)?;
        let shared = Arc::new(Shared {
            engine: Mutex::new(Some(engine)),
            nic_thread,
            control,
            wanted: AtomicUsize::new(0),
            started: Arc::default(),
            is_stopping: AtomicBool::new(false),
            limit: options.limit,
            call_trace,
            pid: std::process::id(),
        });
        at_exit::remember(&shared);
        let own = Arc::clone(&shared);
        let thread = thread::spawn("railnet-progress", move || own.run());
        let thread = thread.inspect_err(|error| shared.control.refuse(local(config, error)))?;
        let mut process = Self {
            engine: shared,
            thread: Some(thread),
            nic_thread: None,
            status: None,
            config: config.clone(),
            options: options.clone(),
        };
        if process.engine.nic_thread.is_some() {
            let own = Arc::clone(&process.engine);
            let run = move || own.nic_thread.as_ref().map_or((), |nic_thread| nic_thread.run(&own));
            let thread = thread::spawn("railnet-nic", run);
            let thread = thread.inspect_err(|error| process.engine.control.refuse(local(config, error)))?;
            process.nic_thread = Some(thread);
        }
        process.status = serve_status(&process.engine);
        Ok(process)
    }

    /// Its configuration.
    pub(super) fn origin(&self) -> (&Config, &Options) {
        (&self.config, &self.options)
    }

    /// The call trace, if there is one.
    pub(super) fn call_trace(&self) -> Option<&CallTrace> {
        self.engine.call_trace.as_ref()
    }

    /// The control channel.
    pub(super) fn control(&self) -> &Control {
        &self.engine.control
    }

    /// Uses the engine.
    pub(super) fn with<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> T {
        self.with_if_there(action).expect("the engine is there as long as communicators are")
    }

    /// The same, unless a panic has ended the engine.
    pub(super) fn with_if_there<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let mut guard = match self.engine.engine.try_lock() {
            Ok(guard) => guard,
            // Contended: the progress thread unlocks it when it sees that somebody wants it.
            Err(_) => {
                self.engine.wanted.fetch_add(1, Ordering::Relaxed);
                let guard = self.engine.lock();
                self.engine.wanted.fetch_sub(1, Ordering::Relaxed);
                guard
            }
        };
        let engine = guard.as_mut()?;
        let Some(nic_thread) = &self.engine.nic_thread else { return Some(action(engine)) };
        nic_thread.hand_over();
        let outcome = action(engine);
        nic_thread.take_over(engine);
        Some(outcome)
    }

    /// The limit for driving the engine in one go.
    pub(super) fn until(&self) -> WaitLimit<'_> {
        WaitLimit::new(&self.engine.wanted, DRIVE_MAX, false)
    }

    /// Drives the engine until an operation is over. `None` after the limit for one go; other threads have had the engine then,
    /// and the next wait `resumes`.
    pub(super) fn wait(
        &self,
        context: ContextId,
        operation: OperationId,
        resumes: bool,
    ) -> Option<Result<(), Arc<Failure>>> {
        let until = WaitLimit::new(&self.engine.wanted, DRIVE_MAX, resumes);
        let done = self.with(|engine| engine.wait(context, operation, &until));
        // A mutex is not fair: threads that wait for it go first.
        while done.is_none() && self.engine.wanted.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        done
    }

    /// Wraps the owner of a call's buffers, so that the call counts as started until it is over.
    pub(super) fn in_flight(&self, keep: impl Any + Send) -> KeepAlive {
        self.engine.started.fetch_add(1, Ordering::Relaxed);
        KeepAlive::new(InFlight { _keep: keep, started: Arc::clone(&self.engine.started) })
    }

    /// Wakes the progress thread.
    pub(super) fn wake(&self) {
        self.engine.control.poke();
    }
}

/// The owner of a call's buffers, which counts the call.
struct InFlight<T> {
    _keep: T,
    started: Arc<AtomicUsize>,
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.started.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// After a panic inside the engine, buffers in use may be gone: nothing may go on.
    fn lock(&self) -> MutexGuard<'_, Option<Engine>> {
        let mut guard = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if self.engine.is_poisoned() {
            *guard = None;
        }
        guard
    }

    /// Uses the engine, if it is there and no other thread has it or wants it.
    pub(super) fn with_if_free<T>(&self, action: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        if self.wanted.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.engine.try_lock().ok()?.as_mut().map(action)
    }

    fn run(&self) {
        while !self.is_stopping.load(Ordering::Relaxed) {
            if self.started.load(Ordering::Relaxed) == 0 {
                if self.control.wait_for_news(NOTICE_POLL) {
                    self.lock().as_mut().map(Engine::poll_notices);
                    // A thread that drives the engine may have taken the notices; otherwise they stay queued.
                    std::thread::yield_now();
                }
                continue;
            }
            let moved = self.wanted.load(Ordering::Relaxed) == 0 && self.poll_some();
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    /// Says goodbye to the others, once all that was sent to them is delivered.
    fn leave(&self, mut guard: MutexGuard<'_, Option<Engine>>) {
        let Some(engine) = guard.as_mut() else { return };
        engine.announce_sends();
        engine.drain_nic(self.limit);
        engine.conduits_mut().close_kept_listener();
        // Rank 0 waits for the others here, and its NIC still answers them.
        drop(guard);
        self.control.say_goodbye(self.limit);
    }

    /// The program ends without dropping this. A rank that ends during a call, with calls that were not waited for, or with a
    /// failure status, has not finished: the others are told so.
    pub(super) fn end_at_exit(&self, is_success: bool) {
        // A forked child has none of the threads, and leaves nothing.
        if self.pid != std::process::id() {
            return;
        }
        if let Some(mut guard) = self.lock_at_exit()
            && is_success
            && guard.as_mut().is_some_and(|engine| !engine.is_busy())
        {
            self.leave(guard);
        } else {
            // A verdict that it has just sent, or relays for others, names the culprit: that must not be this rank.
            self.control.end();
        }
        self.with_if_free(Engine::finish_capture);
        if let Some(call_trace) = &self.call_trace {
            call_trace.close();
        }
    }

    /// The engine, unless a thread is in a call.
    fn lock_at_exit(&self) -> Option<MutexGuard<'_, Option<Engine>>> {
        let deadline = Instant::now() + EXIT_LOCK_TIMEOUT;
        loop {
            match self.engine.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return None,
            }
        }
    }

    fn poll_some(&self) -> bool {
        let mut guard = self.lock();
        let Some(engine) = guard.as_mut() else { return false };
        let mut moved = false;
        for _ in 0..POLLS_PER_LOCK {
            if self.wanted.load(Ordering::Relaxed) > 0 || !engine.is_busy() {
                break;
            }
            if engine.poll(true) {
                moved = true;
                engine.reset_backoff();
            } else {
                engine.back_off();
            }
            engine.check_timeouts();
        }
        moved
    }
}

/// What the other ranks are told of an error of this one's kernel.
fn local(config: &Config, error: &std::io::Error) -> Trouble {
    crate::ReachError::from(std::io::Error::new(error.kind(), error.to_string())).trouble(config.rank.0)
}

/// Opens the status socket of this rank (`railnet status`).
fn serve_status(shared: &Arc<Shared>) -> Option<(Arc<Server>, JoinHandle<()>)> {
    let (status_board, job) =
        shared.lock().as_ref().map(|engine| (Arc::clone(engine.status_board()), engine.job().to_owned()))?;
    let server = Arc::new(Server::open(shared.control.rank().0).ok()?);
    let (own, shared) = (Arc::clone(&server), Arc::clone(shared));
    let (asked, control) = (Arc::clone(&server), Arc::clone(&shared.control));
    control.on_status_wanted(Box::new(move |number| asked.want(number)));
    let run = move || {
        let make = || {
            shared.engine.try_lock().ok()?.as_mut().map(|engine| {
                engine.check_timeouts();
                engine.status()
            })
        };
        own.run(&status_board, &shared.control, make, || bare_status(&job, &shared.control));
    };
    let thread = thread::spawn("railnet-status", run).ok()?;
    Some((server, thread))
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some((server, thread)) = self.status.take() {
            server.end();
            // The thread returns nothing; a panic was printed.
            let _ = thread.join();
        }
        self.engine.is_stopping.store(true, Ordering::Relaxed);
        self.engine.control.poke();
        // The threads return nothing; a panic was printed.
        self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            self.engine.leave(self.engine.lock());
        }
        if let Some(nic_thread) = &self.engine.nic_thread {
            nic_thread.end();
        }
        self.nic_thread.take().map(JoinHandle::join);
        drop(self.engine.lock().take());
    }
}
