//! What the communicators of a process share: the engine, who may drive it, and the thread that does when nobody else.

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

/// How long the thread waits for news before it looks whether it should end.
const NOTICE_POLL: Duration = Duration::from_millis(200);
/// How long the end of a program waits for whoever has the engine: the thread has it for moments only.
const EXIT_LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// Turns of the engine that the thread does before it lets others have it.
const POLLS_PER_LOCK: usize = 64;
/// How long a thread drives the engine in one go for a call that it waits for: after that it asks whether its program goes on.
const DRIVE_MAX: Duration = Duration::from_millis(50);

/// What the communicators of a process share.
#[derive(Debug)]
pub(super) struct Process {
    engine: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The thread that keeps the NIC going.
    nic_thread: Option<JoinHandle<()>>,
    /// The socket at which this rank tells what it does, and its thread: a rank goes on without them.
    status: Option<(Arc<Server>, JoinHandle<()>)>,
    config: Config,
    options: Options,
}

#[derive(Debug)]
pub(super) struct Shared {
    engine: Mutex<Option<Engine>>,
    /// Who keeps the NIC going, where there is one.
    nic_thread: Option<NicThread>,
    control: Arc<Control>,
    /// Threads that want the engine: the background thread steps back.
    wanted: AtomicUsize,
    /// Calls that were started, and may have to be carried on while the program computes.
    started: Arc<AtomicUsize>,
    is_stopping: AtomicBool,
    /// How long the others are waited for at the end.
    limit: Duration,
    /// What was called, where somebody wants to know.
    call_trace: Option<CallTrace>,
    /// The process that it belongs to.
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

    /// How it was made.
    pub(super) fn origin(&self) -> (&Config, &Options) {
        (&self.config, &self.options)
    }

    /// Where calls are noted, if they are.
    pub(super) fn call_trace(&self) -> Option<&CallTrace> {
        self.engine.call_trace.as_ref()
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
        let Some(nic_thread) = &self.engine.nic_thread else { return Some(action(engine)) };
        nic_thread.hand_over();
        let outcome = action(engine);
        nic_thread.take_over(engine);
        Some(outcome)
    }

    /// How long a call of this thread may drive the engine in one go.
    pub(super) fn until(&self) -> WaitLimit<'_> {
        WaitLimit::new(&self.engine.wanted, DRIVE_MAX, false)
    }

    /// Drives the engine until an operation has ended, or for so long as a thread may; then it is `None`, and other threads have had
    /// the engine. A thread `resumes` a wait that ended so.
    pub(super) fn wait(
        &self,
        context: ContextId,
        operation: OperationId,
        resumes: bool,
    ) -> Option<Result<(), Arc<Failure>>> {
        let until = WaitLimit::new(&self.engine.wanted, DRIVE_MAX, resumes);
        let done = self.with(|engine| engine.wait(context, operation, &until));
        // A mutex is not fair: whoever waits for it is let in before this thread comes back.
        while done.is_none() && self.engine.wanted.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        done
    }

    /// What is kept for a call that is about to be started, counted until the call has ended.
    pub(super) fn in_flight(&self, keep: impl Any + Send) -> KeepAlive {
        self.engine.started.fetch_add(1, Ordering::Relaxed);
        KeepAlive::new(InFlight { _keep: keep, started: Arc::clone(&self.engine.started) })
    }

    /// Wakes the thread that carries on what was started.
    pub(super) fn wake(&self) {
        self.engine.control.poke();
    }
}

/// What a call keeps until it has ended.
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
        while !self.is_stopping.load(Ordering::Relaxed) {
            if self.started.load(Ordering::Relaxed) == 0 {
                if self.control.wait_for_news(NOTICE_POLL) {
                    self.lock().as_mut().map(Engine::poll_notices);
                    // Whoever drives the engine has taken the news; if nobody could, it is not lost.
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

    /// Says goodbye to the others, once they have all that was sent to them.
    fn leave(&self, mut guard: MutexGuard<'_, Option<Engine>>) {
        let Some(engine) = guard.as_mut() else { return };
        engine.announce_sends();
        engine.drain_nic(self.limit);
        engine.conduits_mut().close_kept_listener();
        // Rank 0 waits for the others here, and its NIC is there for them.
        drop(guard);
        self.control.say_goodbye(self.limit);
    }

    /// The program is_stopping, and nobody has dropped this. A rank that is_stopping in the middle of a call, with calls that nobody waited for or
    /// because its program failed, has not finished, and the others shall know that.
    pub(super) fn end_at_exit(&self, is_success: bool) {
        // What was forked has none of the threads, and leaves nothing.
        if self.pid != std::process::id() {
            return;
        }
        if let Some(mut guard) = self.lock_at_exit()
            && is_success
            && guard.as_mut().is_some_and(|engine| !engine.is_busy())
        {
            self.leave(guard);
        } else {
            // A verdict that it has just sent, or passes on for others, names who is to blame: that must not be this rank.
            self.control.end();
        }
        self.with_if_free(Engine::finish_capture);
        if let Some(call_trace) = &self.call_trace {
            call_trace.close();
        }
    }

    /// The engine, unless somebody else is in a call.
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

/// What the other ranks are to poll_notices of an error of this one's kernel.
fn local(config: &Config, error: &std::io::Error) -> Trouble {
    crate::ReachError::from(std::io::Error::new(error.kind(), error.to_string())).trouble(config.rank.0)
}

/// Opens the socket at which a rank tells what it does (`railnet status`).
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
            // It has nothing to say; a panic of its was printed.
            let _ = thread.join();
        }
        self.engine.is_stopping.store(true, Ordering::Relaxed);
        self.engine.control.poke();
        // They have nothing to say; a panic of theirs was printed.
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
