//! Jobs on a network in several partitions, each run by a thread.
//!
//! All partitions run an epoch together: first the hosts of all, with the driver of the jobs in between, then the switches.
//! Cross-partition messages arrive in a later epoch. The result is that of one thread, to the last packet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, Thread};

use railnet_core::event::Sink;
use railnet_core::{Digest, Time};

use super::driver::Driver;
use super::partitions::PartitionView;
use crate::run::Run;
use crate::run::collective::Collectives;

/// A partition of a run, or the whole of it.
pub(super) type Partition<S> = Run<(Digest, S)>;

/// Fewer events than this in an epoch take the coordinator less time than handing out tasks does.
const EVENTS_FEW: u64 = 64;
/// How often a waiting thread polls before it yields, about 20 µs; and how often before it blocks.
const POLLS_SPINNING: u32 = 2_000;
const POLLS_YIELDING: u32 = 20_000;

/// All partitions of a run, and the task of their threads.
pub(super) struct WorkerPool<S> {
    partitions: Vec<Mutex<Partition<S>>>,
    /// Counts tasks: a new number is a new task.
    number: AtomicU64,
    task: Mutex<Task>,
    /// Threads that have not completed it.
    busy: AtomicU64,
    is_over: AtomicBool,
    has_failed: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Run hosts until then; if an epoch opens, from its begin to its end, begin that first.
    Hosts {
        opens: Option<(Time, Time)>,
        until: Time,
    },
    Switches {
        until: Time,
    },
}

/// Hands out tasks, and runs the first partition itself.
pub(super) struct Coordinator<'a, S> {
    pool: &'a WorkerPool<S>,
    workers: Vec<Thread>,
    /// Events so far, and of the last epoch.
    events: u64,
    last: u64,
}

impl<S: Sink> WorkerPool<S> {
    /// Assigns each partition its number.
    pub(super) fn new(mut partitions: Vec<Partition<S>>) -> Self {
        let count = partitions.len() as u32;
        for (me, partition) in (0..).zip(&mut partitions) {
            partition.network.assign_partition(me, count);
        }
        Self {
            partitions: partitions.into_iter().map(Mutex::new).collect(),
            number: AtomicU64::new(0),
            task: Mutex::new(Task::Switches { until: Time::ZERO }),
            busy: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Runs `what` with a thread for each partition but the first, which the coordinator runs. Returns the partitions.
    #[allow(clippy::disallowed_methods, reason = "what comes of it does not depend on threads")]
    pub(super) fn with<R>(self, what: impl FnOnce(Coordinator<'_, S>) -> R) -> (Vec<Partition<S>>, R) {
        let result = std::thread::scope(|scope| what(self.start(scope)));
        let partitions = self
            .partitions
            .into_iter()
            .map(|partition| partition.into_inner().unwrap_or_else(PoisonError::into_inner));
        (partitions.collect(), result)
    }

    fn start<'a, 'scope>(&'a self, scope: &'scope Scope<'scope, 'a>) -> Coordinator<'a, S> {
        let spawn = |(number, partition)| {
            let named = Builder::new().name(format!("partition {number}"));
            let spawned = named.spawn_scoped(scope, move || self.work(partition));
            spawned.expect("the kernel has a thread for each core").thread().clone()
        };
        let workers = (1..).zip(&self.partitions[1..]).map(spawn).collect();
        Coordinator { pool: self, workers, events: 0, last: 0 }
    }

    /// Performs tasks with a partition until the run is over.
    fn work(&self, partition: &Mutex<Partition<S>>) {
        let mut seen = 0;
        while let Some(number) = self.next_task(seen) {
            seen = number;
            let _completion = Completion(self);
            let task = *lock(&self.task);
            task.perform(&mut lock(partition));
        }
    }

    fn next_task(&self, seen: u64) -> Option<u64> {
        let mut polls: u32 = 0;
        loop {
            let number = self.number.load(Ordering::Acquire);
            if self.is_over.load(Ordering::Acquire) {
                return None;
            }
            if number != seen {
                return Some(number);
            }
            polls = polls.saturating_add(1);
            match polls {
                0..POLLS_SPINNING => std::hint::spin_loop(),
                POLLS_SPINNING..POLLS_YIELDING => std::thread::yield_now(),
                _ => std::thread::park(),
            }
        }
    }
}

/// Counts a thread as done with its task when dropped, also if it panics.
struct Completion<'a, S>(&'a WorkerPool<S>);

impl<S> Drop for Completion<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Ordering::Release);
        }
        self.0.busy.fetch_sub(1, Ordering::Release);
    }
}

impl Task {
    fn perform<S: Sink>(self, partition: &mut Partition<S>) {
        match self {
            Self::Hosts { opens, until } => {
                if let Some((at, end)) = opens {
                    partition.network.begin_epochs(at, end);
                }
                partition.network.run_hosts(&mut partition.world, until);
            }
            Self::Switches { until } => partition.network.run_switches(until),
        }
    }
}

impl<S: Sink> Coordinator<'_, S> {
    /// Lets the driver begin.
    pub(super) fn begin(&mut self, driver: &mut Driver<'_>) {
        settle(&mut self.all(), driver, Time::ZERO);
    }

    /// Runs until `limit`. Returns whether nothing will happen any more.
    pub(super) fn run(&mut self, driver: &mut Driver<'_>, limit: Time) -> bool {
        loop {
            let next = self.next(driver);
            let Some(at) = next.filter(|at| *at <= limit) else {
                if next.is_some() {
                    self.stop_at(limit);
                }
                return next.is_none();
            };
            let lookahead = self.extended_lookahead(at, driver.armed());
            let end = self.first().network.epoch_end(at, lookahead);
            let stop = end.min(limit);
            let mut opens = Some((at, end));
            loop {
                self.run_task(Task::Hosts { opens: opens.take(), until: driver.armed().min(stop) });
                if driver.is_stopped() {
                    self.stop_at(stop);
                    return false;
                }
                let mut partitions = self.all();
                let Some(due) = due(&mut partitions, driver).filter(|due| *due <= stop) else { break };
                settle(&mut partitions, driver, due);
            }
            self.run_task(Task::Switches { until: stop });
            self.exchange();
            if end >= limit {
                self.stop_at(limit);
                return self.next(driver).is_none();
            }
        }
    }

    /// The first partition, which stands for all where it does not matter which.
    pub(super) fn first(&self) -> MutexGuard<'_, Partition<S>> {
        lock(&self.pool.partitions[0])
    }

    /// All partitions, in their order.
    pub(super) fn all(&self) -> Vec<MutexGuard<'_, Partition<S>>> {
        self.pool.partitions.iter().map(lock).collect()
    }

    fn next(&self, driver: &Driver<'_>) -> Option<Time> {
        let partitions = self.all();
        let all = partitions.iter().filter_map(|partition| partition.network.next_epoch());
        all.chain(Some(driver.armed()).filter(|at| at.is_set())).min()
    }

    /// Until when no host group of any partition reaches another; `None` if one may at any time. The driver does nothing by itself
    /// before it is due.
    fn extended_lookahead(&self, at: Time, due: Time) -> Option<Time> {
        let mut partitions = self.all();
        let ends = partitions
            .iter()
            .filter_map(|partition| partition.world.collectives.as_ref())
            .map(Collectives::ends_from);
        let heard = ends.min().unwrap_or(Time::ZERO).min(due);
        let mut ends = partitions.iter_mut().map(|partition| partition.network.extended_lookahead(at, heard));
        ends.try_fold(Time::NEVER, |least, lookahead| Some(least.min(lookahead?)))
    }

    fn stop_at(&self, now: Time) {
        for mut partition in self.all() {
            partition.network.now = now;
        }
    }

    /// Has all partitions perform a task, and waits until they have.
    fn run_task(&mut self, task: Task) {
        if self.last < EVENTS_FEW {
            for mut partition in self.all() {
                task.perform(&mut partition);
            }
        } else {
            *lock(&self.pool.task) = task;
            self.pool.busy.store(self.workers.len() as u64, Ordering::Relaxed);
            self.pool.number.fetch_add(1, Ordering::Release);
            self.workers.iter().for_each(Thread::unpark);
            task.perform(&mut self.first());
            self.wait();
        }
        if let Task::Switches { .. } = task {
            let events = self.all().iter().map(|partition| partition.network.events()).sum();
            self.last = events - std::mem::replace(&mut self.events, events);
        }
    }

    fn wait(&self) {
        let mut polls: u32 = 0;
        while self.pool.busy.load(Ordering::Acquire) > 0 {
            polls = polls.saturating_add(1);
            match polls {
                0..POLLS_SPINNING => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
        assert!(!self.pool.has_failed.load(Ordering::Acquire), "a thread of the simulation failed");
    }

    fn exchange(&self) {
        let mut partitions = self.all();
        for index in 1..partitions.len() {
            let (before, rest) = partitions.split_at_mut(index);
            for other in before {
                other.network.exchange_messages(&mut rest[0].network);
            }
        }
    }
}

/// Ends the threads, however the run ends.
impl<S> Drop for Coordinator<'_, S> {
    fn drop(&mut self) {
        self.pool.is_over.store(true, Ordering::Release);
        self.workers.iter().for_each(Thread::unpark);
    }
}

/// When the driver is due: at its own timer, or at the end of a call that it has not heard of.
fn due<S: Sink>(partitions: &mut [MutexGuard<'_, Partition<S>>], driver: &Driver<'_>) -> Option<Time> {
    let ended = view(partitions).first_ended().map(|at| at.max(driver.settled()));
    Some(driver.armed()).filter(|at| at.is_set()).into_iter().chain(ended).min()
}

/// Lets the driver settle a moment.
fn settle<S: Sink>(partitions: &mut [MutexGuard<'_, Partition<S>>], driver: &mut Driver<'_>, now: Time) {
    let mut view = view(partitions);
    view.set_now(now);
    driver.settle(&mut view);
}

fn view<'a, S: Sink>(partitions: &'a mut [MutexGuard<'_, Partition<S>>]) -> PartitionView<'a, (Digest, S)> {
    PartitionView::new(partitions.iter_mut().map(|partition| {
        let Run { network, world, .. } = &mut **partition;
        (network, world)
    }))
}

/// A poisoned lock is no error here: a partition that panicked is reported by the pool.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
