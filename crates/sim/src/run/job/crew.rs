//! Jobs on a network in several parts, each of which a thread carries out.
//!
//! All parts go through a window of time together: first the hosts of all, with the driver of the jobs in between, then the
//! switches. Whatever they say to each other arrives in a later window. The result is that of one thread, to the last packet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, Thread};

use railnet_core::event::Sink;
use railnet_core::{Digest, Time};

use super::driver::Driver;
use super::stage::Stage;
use crate::run::Run;
use crate::run::collective::Collectives;

/// A part of a run.
pub(super) type Part<S> = Run<(Digest, S)>;

/// Fewer events than this in a window are dealt with sooner than others are told of it.
const EVENTS_FEW: u64 = 64;
/// How often one who waits looks before it lets others have its core, about 20 µs; and how often before it sleeps.
const LOOKS: u32 = 2_000;
const LOOKS_AWAKE: u32 = 20_000;

/// All parts of a run, and what their threads are to do.
pub(super) struct Crew<S> {
    parts: Vec<Mutex<Part<S>>>,
    /// Counts what was told: a new number is a new task.
    number: AtomicU64,
    task: Mutex<Task>,
    /// Threads that are not through with it.
    busy: AtomicU64,
    is_over: AtomicBool,
    has_failed: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Hosts are taken until then; before that, windows from one moment to another are opened where there are any.
    Hosts {
        opens: Option<(Time, Time)>,
        until: Time,
    },
    Switches {
        until: Time,
    },
}

/// Who has a task to do, and where all stand.
pub(super) struct Foreman<'a, S> {
    crew: &'a Crew<S>,
    workers: Vec<Thread>,
    /// Events so far, and of the last window.
    events: u64,
    last: u64,
}

impl<S: Sink> Crew<S> {
    /// Has each part take its share.
    pub(super) fn new(mut parts: Vec<Part<S>>) -> Self {
        let count = parts.len() as u32;
        for (me, part) in (0..).zip(&mut parts) {
            part.network.assign_partition(me, count);
        }
        Self {
            parts: parts.into_iter().map(Mutex::new).collect(),
            number: AtomicU64::new(0),
            task: Mutex::new(Task::Switches { until: Time::ZERO }),
            busy: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Does something with all parts together, with a thread for each but the first, which is up to whoever asks. Gives the
    /// parts back.
    #[allow(clippy::disallowed_methods, reason = "what comes of it does not depend on threads")]
    pub(super) fn with<R>(self, what: impl FnOnce(Foreman<'_, S>) -> R) -> (Vec<Part<S>>, R) {
        let result = std::thread::scope(|scope| what(self.start(scope)));
        let parts =
            self.parts.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner));
        (parts.collect(), result)
    }

    fn start<'a, 'scope>(&'a self, scope: &'scope Scope<'scope, 'a>) -> Foreman<'a, S> {
        let spawn = |(number, part)| {
            let named = Builder::new().name(format!("part {number}"));
            let spawned = named.spawn_scoped(scope, move || self.work(part));
            spawned.expect("the system has a thread for each core").thread().clone()
        };
        let workers = (1..).zip(&self.parts[1..]).map(spawn).collect();
        Foreman { crew: self, workers, events: 0, last: 0 }
    }

    /// Does what is to be done with a part, until all is over.
    fn work(&self, part: &Mutex<Part<S>>) {
        let mut seen = 0;
        while let Some(number) = self.next_task(seen) {
            seen = number;
            let _told = Told(self);
            let task = *lock(&self.task);
            task.perform(&mut lock(part));
        }
    }

    fn next_task(&self, seen: u64) -> Option<u64> {
        let mut looks: u32 = 0;
        loop {
            let number = self.number.load(Ordering::Acquire);
            if self.is_over.load(Ordering::Acquire) {
                return None;
            }
            if number != seen {
                return Some(number);
            }
            looks = looks.saturating_add(1);
            match looks {
                0..LOOKS => std::hint::spin_loop(),
                LOOKS..LOOKS_AWAKE => std::thread::yield_now(),
                _ => std::thread::park(),
            }
        }
    }
}

/// Says that a thread is through with its task, also where it fails.
struct Told<'a, S>(&'a Crew<S>);

impl<S> Drop for Told<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Ordering::Release);
        }
        self.0.busy.fetch_sub(1, Ordering::Release);
    }
}

impl Task {
    fn perform<S: Sink>(self, part: &mut Part<S>) {
        match self {
            Self::Hosts { opens, until } => {
                if let Some((at, end)) = opens {
                    part.network.begin_epochs(at, end);
                }
                part.network.run_hosts(&mut part.world, until);
            }
            Self::Switches { until } => part.network.run_switches(until),
        }
    }
}

impl<S: Sink> Foreman<'_, S> {
    /// Has the driver begin.
    pub(super) fn begin(&mut self, driver: &mut Driver<'_>) {
        settle(&mut self.all(), driver, Time::ZERO);
    }

    /// Goes on until `limit`; whether nothing will happen any more.
    pub(super) fn run(&mut self, driver: &mut Driver<'_>, limit: Time) -> bool {
        loop {
            let next = self.next(driver);
            let Some(at) = next.filter(|at| *at <= limit) else {
                if next.is_some() {
                    self.stop_at(limit);
                }
                return next.is_none();
            };
            let lull = self.lull_from(at, driver.armed());
            let end = self.first().network.epoch_end(at, lull);
            let stop = end.min(limit);
            let mut opens = Some((at, end));
            loop {
                self.carry_out(Task::Hosts { opens: opens.take(), until: driver.armed().min(stop) });
                if driver.is_stopped() {
                    self.stop_at(stop);
                    return false;
                }
                let mut parts = self.all();
                let Some(due) = due(&mut parts, driver).filter(|due| *due <= stop) else { break };
                settle(&mut parts, driver, due);
            }
            self.carry_out(Task::Switches { until: stop });
            self.exchange();
            if end >= limit {
                self.stop_at(limit);
                return self.next(driver).is_none();
            }
        }
    }

    /// The first part: it stands for all where it does not matter which.
    pub(super) fn first(&self) -> MutexGuard<'_, Part<S>> {
        lock(&self.crew.parts[0])
    }

    /// All parts, in their order.
    pub(super) fn all(&self) -> Vec<MutexGuard<'_, Part<S>>> {
        self.crew.parts.iter().map(lock).collect()
    }

    fn next(&self, driver: &Driver<'_>) -> Option<Time> {
        let parts = self.all();
        let all = parts.iter().filter_map(|part| part.network.next_epoch());
        all.chain(Some(driver.armed()).filter(|at| at.is_set())).min()
    }

    /// Until when no island of any part reaches another one; none where one may at any time. The driver does nothing by itself
    /// before it is due.
    fn lull_from(&self, at: Time, due: Time) -> Option<Time> {
        let mut parts = self.all();
        let ends =
            parts.iter().filter_map(|part| part.world.collectives.as_ref()).map(Collectives::ends_from);
        let heard = ends.min().unwrap_or(Time::ZERO).min(due);
        let mut lulls = parts.iter_mut().map(|part| part.network.extended_lookahead(at, heard));
        lulls.try_fold(Time::NEVER, |least, lull| Some(least.min(lull?)))
    }

    fn stop_at(&self, now: Time) {
        for mut part in self.all() {
            part.network.now = now;
        }
    }

    /// Has all parts do something, and waits until they have.
    fn carry_out(&mut self, task: Task) {
        if self.last < EVENTS_FEW {
            for mut part in self.all() {
                task.perform(&mut part);
            }
        } else {
            *lock(&self.crew.task) = task;
            self.crew.busy.store(self.workers.len() as u64, Ordering::Relaxed);
            self.crew.number.fetch_add(1, Ordering::Release);
            self.workers.iter().for_each(Thread::unpark);
            task.perform(&mut self.first());
            self.wait();
        }
        if let Task::Switches { .. } = task {
            let events = self.all().iter().map(|part| part.network.events()).sum();
            self.last = events - std::mem::replace(&mut self.events, events);
        }
    }

    fn wait(&self) {
        let mut looks: u32 = 0;
        while self.crew.busy.load(Ordering::Acquire) > 0 {
            looks = looks.saturating_add(1);
            match looks {
                0..LOOKS => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
        assert!(!self.crew.has_failed.load(Ordering::Acquire), "a thread of the simulation failed");
    }

    fn exchange(&self) {
        let mut parts = self.all();
        for index in 1..parts.len() {
            let (before, rest) = parts.split_at_mut(index);
            for other in before {
                other.network.exchange_messages(&mut rest[0].network);
            }
        }
    }
}

/// Lets the threads go, however it ends.
impl<S> Drop for Foreman<'_, S> {
    fn drop(&mut self) {
        self.crew.is_over.store(true, Ordering::Release);
        self.workers.iter().for_each(Thread::unpark);
    }
}

/// When the driver has something to do: what it knows of, or a call that was over since it last looked.
fn due<S: Sink>(parts: &mut [MutexGuard<'_, Part<S>>], driver: &Driver<'_>) -> Option<Time> {
    let ended = stage(parts).first_ended().map(|at| at.max(driver.settled()));
    Some(driver.armed()).filter(|at| at.is_set()).into_iter().chain(ended).min()
}

/// Lets the driver do what it has to do at a moment.
fn settle<S: Sink>(parts: &mut [MutexGuard<'_, Part<S>>], driver: &mut Driver<'_>, now: Time) {
    let mut stage = stage(parts);
    stage.set_now(now);
    driver.settle(&mut stage);
}

fn stage<'a, S: Sink>(parts: &'a mut [MutexGuard<'_, Part<S>>]) -> Stage<'a, (Digest, S)> {
    Stage::new(parts.iter_mut().map(|part| {
        let Run { network, world, .. } = &mut **part;
        (network, world)
    }))
}

/// A part that failed has said so: what it left is not used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
