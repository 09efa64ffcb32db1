//! The machine that executes schedules: one for each rank, sans I/O, the same in both worlds.
//!
//! A [`RankMachine`] lives as long as its communicator. Operations are submitted and run one after the other, as on one
//! CUDA stream. The machine never touches data and never looks around: it is told what happened, wakes the one worker
//! that waited for it, and says what is to be done next.
//!
//! ```text
//!   submit(schedule) ──────────┐                     ┌── Connect, Expect     conduits: be there, ask for data
//!   arrived(connection) ───────┤                     ├── Work                GPU: reduce and copy this slice
//!   freed(connection) ─────────┼──▶ RankMachine ──▶──┼── Filled, Emptied     conduits: carry a slot, give it back
//!   finished(work) ────────────┤    (poll_output)    ├── Notice              to other ranks, outside of connections
//!   heard, notice, expired ────┘                     └── Finished, Failed    the caller
//! ```
//!
//! After every call, drain [`RankMachine::poll_output`]. A step goes in slices, each of which is received, reduced and
//! sent by itself, so that these overlap within one step.

mod apply;
mod executor;
mod ghosts;
mod link;
mod plan;
mod signature;
mod trouble;
mod troubled;
mod work;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use railnet_core::{Bytes, Rank, Span, Time};

pub use crate::outputs::{Source, expected_output};
pub use apply::{Applier, ApplyError};
pub use executor::{Execution, Executor, Polled, ReceiveBuffer, Task};
pub use ghosts::wrong_bytes;
pub use signature::{Mark, Signature};
pub use trouble::{
    Answer, Departure, Failure, LastSeen, MismatchError, MissingError, Notice, Standing, StuckError, Wait,
    WaitingFor,
};
pub use work::{
    ConnectionId, Direction, Expect, Filled, Handed, InlineCopy, Layout, OperationId, Output, Place, Tag,
    Work, WorkId,
};

use crate::schedule::{Connection, Peer, Schedule, SwitchGroup};
use executor::hand_over;
use link::{Link, NOBODY};
use plan::Plan;
use signature::Shared;
use trouble::Asking;
use worker::{Stage, Worker};

/// Operations whose signatures are remembered after they are over: a rank that is behind asks about them.
const REMEMBERED: usize = 16;
/// Plans that are kept for calls that are made again.
const PLANS: usize = 16;

/// Executes the part of one rank in the schedules of a communicator.
#[derive(Debug)]
pub struct RankMachine {
    rank: u32,
    ranks: u32,
    limit: Span,
    next: u64,
    /// Operations that are over and not forgotten, then the one that runs, then those that were submitted. They stay
    /// where they are: to move them takes as long as to do a small one.
    operations: VecDeque<Operation>,
    /// How many of them are over, and when the last of those was.
    past: usize,
    finished: Time,
    /// While one runs, how many of its workers are not done.
    running: Option<u32>,
    workers: Vec<Worker>,
    links: Vec<Link>,
    names: BTreeMap<(Direction, Connection), ConnectionId>,
    /// Groups around switches, of all schedules so far, and which of several alike in its schedule each is. Names have
    /// their place here: two schedules may give one number to different groups.
    groups: Vec<(SwitchGroup, usize)>,
    plans: VecDeque<Arc<Plan>>,
    /// Workers that can go on.
    runnable: VecDeque<u32>,
    outputs: VecDeque<Output>,
    /// When something last happened here.
    progress: Time,
    /// What peers said about operations that were not submitted here yet.
    early: Vec<(ConnectionId, Mark)>,
    asking: Option<Asking>,
    /// In a pair: the last operation that the other rank has said it has entered.
    peer_entered: Option<OperationId>,
    /// The rank by way of which the others answer, where it is one of them.
    relay: Option<Rank>,
    /// Whether the program of this rank waits for a call of another communicator.
    waits_elsewhere: bool,
    /// The last operation that was given more time because the ranks that are missing wait for calls of other communicators.
    deferred: Option<OperationId>,
    /// Whether a peer means something else.
    is_disputed: bool,
    /// Whether a synchronous executor does its work, and whether it emits [`Output::Expect`].
    is_synchronous: bool,
    emits_expect: bool,
    failure: Option<Arc<Failure>>,
}

/// An operation that was submitted.
#[derive(Debug)]
struct Operation {
    id: OperationId,
    mark: Mark,
    plan: Arc<Plan>,
    submitted: Time,
}

impl Operation {
    /// How this rank understands it.
    fn signature(&self) -> Shared {
        Arc::new(Signature::new(self.id, &self.plan.schedule))
    }
}

impl RankMachine {
    /// How long nothing may happen before the others are asked why, unless said otherwise.
    pub const LIMIT: Span = Span::from_secs(30);

    /// The machine of one of so many ranks.
    pub fn new(rank: Rank, ranks: u32) -> Self {
        assert!(rank.0 < ranks, "{rank} of {ranks}");
        Self {
            rank: rank.0,
            ranks,
            limit: Self::LIMIT,
            next: 0,
            operations: VecDeque::new(),
            past: 0,
            finished: Time::ZERO,
            running: None,
            workers: Vec::new(),
            links: Vec::new(),
            names: BTreeMap::new(),
            groups: Vec::new(),
            plans: VecDeque::new(),
            runnable: VecDeque::new(),
            outputs: VecDeque::new(),
            progress: Time::ZERO,
            early: Vec::new(),
            asking: None,
            peer_entered: None,
            relay: None,
            waits_elsewhere: false,
            deferred: None,
            is_disputed: false,
            is_synchronous: false,
            emits_expect: true,
            failure: None,
        }
    }

    /// Sets another limit on the time in which nothing happens, and gives the one before it.
    pub fn set_limit(&mut self, limit: Span) -> Span {
        std::mem::replace(&mut self.limit, limit)
    }

    /// With another limit on the time in which nothing happens.
    #[must_use]
    pub fn with_limit(mut self, limit: Span) -> Self {
        self.limit = limit;
        self
    }

    /// Where answers of other ranks come by way of this one: without it nothing is known of them.
    #[must_use]
    pub fn with_relay(mut self, relay: Option<Rank>) -> Self {
        self.relay = relay.filter(|relay| relay.0 != self.rank);
        self
    }

    /// Which rank it is.
    pub fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Queues an operation: it begins when those before it are over.
    #[inline]
    pub fn submit(&mut self, now: Time, schedule: &Arc<Schedule>) -> Result<OperationId, Arc<Failure>> {
        if let Some(failure) = &self.failure {
            return Err(Arc::clone(failure));
        }
        assert_eq!(schedule.ranks, self.ranks, "the schedule is for another communicator");
        let id = OperationId(self.next);
        self.next += 1;
        if self.unfinished() == 0 {
            self.progress = now;
        }
        let mark = self.enter(now, id, schedule);
        if self.emits_expect {
            self.expect();
        }
        if !self.early.is_empty() {
            self.compare_early(now, mark);
        }
        self.run_queued(now);
        Ok(id)
    }

    /// Whether the connections of a schedule have names.
    pub fn knows(&self, schedule: &Arc<Schedule>) -> bool {
        self.plans.iter().any(|plan| Arc::ptr_eq(&plan.schedule, schedule))
    }

    /// Names the connections that a schedule will use, ahead of [`RankMachine::submit`].
    pub fn prepare(&mut self, schedule: &Arc<Schedule>) {
        if self.failure.is_none() {
            self.plan(schedule);
        }
    }

    /// A slice is in a receive slot of this connection.
    pub fn arrived(&mut self, now: Time, connection: ConnectionId) {
        if self.failure.is_none() {
            self.links[connection.0 as usize].arrived();
            self.wake(now, connection);
        }
    }

    /// The oldest filled slice of this connection is out of its slots: they may be used again.
    pub fn freed(&mut self, now: Time, connection: ConnectionId) {
        if self.failure.is_none() {
            self.links[connection.0 as usize].freed();
            self.wake(now, connection);
        }
    }

    /// Work that was handed out is done.
    pub fn finished(&mut self, now: Time, work: WorkId) {
        // Work of a communicator that broke since may still come back.
        let is_known = self.active().is_some_and(|active| active.id.0 as u32 == work.sequence());
        if self.failure.is_some() || !is_known {
            return;
        }
        let worker = &mut self.workers[work.worker() as usize];
        assert_eq!(worker.stage, Stage::Working, "{work:?} was not handed out");
        self.progress = now;
        self.complete_queued(work.worker());
        self.runnable.push_back(work.worker());
        self.run_queued(now);
    }

    /// What to do next.
    #[must_use = "what is not done stops the collective"]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Whether somebody waits for what comes over a connection.
    #[inline]
    pub fn is_awaited(&self, connection: ConnectionId) -> bool {
        self.links[connection.0 as usize].waiter != NOBODY
    }

    /// What a connection is, seen from this rank.
    pub fn connection(&self, connection: ConnectionId) -> (Connection, Direction) {
        let link = &self.links[connection.0 as usize];
        (link.to, link.direction)
    }

    /// The name of a connection with a rank that a schedule has used.
    pub fn find(&self, direction: Direction, to: Connection) -> Option<ConnectionId> {
        self.names.get(&(direction, to)).copied()
    }

    /// How many connections there are; their names count up to this.
    pub fn connections(&self) -> u32 {
        self.links.len() as u32
    }

    /// The number that the next operation will have.
    pub fn next_operation(&self) -> OperationId {
        OperationId(self.next)
    }

    /// The schedule of an operation that is queued or runs.
    pub fn schedule(&self, operation: OperationId) -> Option<&Arc<Schedule>> {
        self.submitted().find(|one| one.id == operation).map(|one| &one.plan.schedule)
    }

    /// Operations that were submitted and are not over.
    #[inline]
    pub fn unfinished(&self) -> usize {
        self.operations.len() - self.past
    }

    /// The operation that runs.
    #[inline]
    fn active(&self) -> Option<&Operation> {
        self.running.and_then(|_| self.operations.get(self.past))
    }

    /// The one that runs, and those after it.
    fn submitted(&self) -> impl Iterator<Item = &Operation> {
        self.operations.range(self.past..)
    }

    /// An operation comes after all others, and one that was over long ago is forgotten.
    #[inline]
    fn enter(&mut self, now: Time, id: OperationId, schedule: &Arc<Schedule>) -> Mark {
        if self.past > REMEMBERED {
            self.past -= 1;
            // Mostly calls are the same again and again: then the old one has all that the new one needs.
            if Arc::ptr_eq(&self.operations[0].plan.schedule, schedule) {
                let mark = self.operations[0].plan.mark(id);
                self.repeat(now, id, mark);
                return mark;
            }
            self.operations.pop_front();
        }
        let plan = self.plan(schedule);
        let mark = plan.mark(id);
        self.operations.push_back(Operation { id, mark, plan, submitted: now });
        mark
    }

    /// The oldest operation becomes the newest: another one by the same plan.
    #[inline]
    fn repeat(&mut self, now: Time, id: OperationId, mark: Mark) {
        let operation = self.operations.pop_front().expect("one was there");
        self.operations.push_back(Operation { id, mark, submitted: now, ..operation });
    }

    fn plan(&mut self, schedule: &Arc<Schedule>) -> Arc<Plan> {
        if let Some(known) = self.plans.iter().find(|plan| Arc::ptr_eq(&plan.schedule, schedule)) {
            return Arc::clone(known);
        }
        let fifo = &schedule.fifo;
        assert!(
            fifo.depth.is_multiple_of(fifo.slots_per_slice),
            "a slice never lies across the end of the slots"
        );
        let Self { links, names, outputs, groups, .. } = self;
        let mut places: BTreeMap<u32, u32> = BTreeMap::new();
        let plan = Arc::new(Plan::new(schedule, self.rank, |direction, to| {
            let name = match to.peer {
                Peer::Rank(_) => to,
                Peer::Switch(number) => {
                    let place = places.entry(number).or_insert_with(|| place(groups, schedule, number));
                    Connection { peer: Peer::Switch(*place), ..to }
                }
            };
            *names.entry((direction, name)).or_insert_with(|| {
                let connection = ConnectionId(links.len() as u32);
                links.push(Link::new(to, direction));
                outputs.push_back(Output::Connect { connection, to, direction });
                connection
            })
        }));
        if self.plans.len() == PLANS {
            self.plans.pop_front();
        }
        self.plans.push_back(Arc::clone(&plan));
        plan
    }

    /// Says what the operation that was submitted last will receive.
    fn expect(&mut self) {
        let Some(Operation { id: operation, mark, plan, .. }) = self.operations.back() else { return };
        let (operation, mark) = (*operation, *mark);
        let layout = plan.layout;
        let receives = plan.uses.0.iter().flatten().filter(|one| one.key.0 == Direction::Receive);
        for one in receives {
            let slices = one.chunks * u64::from(layout.fifo.slices_per_chunk);
            let slot = self.links[one.id.0 as usize].expect(layout, slices);
            let expect = Expect { connection: one.id, slices, slot, layout, mark, operation };
            self.outputs.push_back(Output::Expect(expect));
        }
    }

    fn wake(&mut self, now: Time, connection: ConnectionId) {
        self.progress = now;
        let waiter = std::mem::replace(&mut self.links[connection.0 as usize].waiter, NOBODY);
        if waiter != NOBODY {
            self.runnable.push_back(waiter);
            self.run_queued(now);
        }
    }

    #[inline]
    fn begin(&mut self) {
        let plan = &self.operations[self.past].plan;
        for one in plan.uses.0.iter().flatten() {
            self.links[one.id.0 as usize].begin(&plan.layout);
        }
        let count = plan.uses.0.len() as u32;
        self.workers.resize_with(count as usize, Worker::new);
        for (index, worker) in (0..count).zip(&mut self.workers) {
            worker.begin(plan.steps(self.rank, index));
            self.runnable.push_back(index);
        }
        self.running = Some(count);
    }

    #[inline]
    fn end(&mut self, now: Time) -> OperationId {
        let operation = self.operations[self.past].id;
        self.running = None;
        self.past += 1;
        self.finished = now;
        operation
    }

    /// Makes the step of a worker ready. `false` when there is none left.
    #[inline]
    fn step(&mut self, index: u32) -> bool {
        let worker = &mut self.workers[index as usize];
        match worker.stage {
            Stage::Fresh if worker.number == worker.steps => {
                self.running = self.running.map(|running| running - 1);
                worker.stage = Stage::Done;
                false
            }
            Stage::Fresh => {
                worker.load(self.rank, index, &self.operations[self.past].plan);
                true
            }
            _ => true,
        }
    }

    /// Whether a worker has to wait before its slice, and if so, where it will be woken. What is there stays there, so
    /// that each thing is looked at once.
    #[inline]
    fn must_wait(&mut self, index: u32) -> bool {
        loop {
            let worker = &mut self.workers[index as usize];
            let Stage::Waiting(stage) = worker.stage else { return false };
            let afters = worker.loaded.step.after.len();
            if let Some(after) = worker.loaded.step.after.get(stage as usize) {
                let (other, step) = (after.worker, after.step);
                if self.workers[other as usize].number <= step {
                    self.workers[other as usize].add_waiter(step, index);
                    return true;
                }
            } else if let Some(link) = worker.loaded.links.get(stage as usize - afters) {
                let link = &mut self.links[link.0 as usize];
                if !link.is_ready() {
                    debug_assert_eq!(link.waiter, NOBODY, "one worker uses a connection");
                    link.waiter = index;
                    return true;
                }
            } else {
                return false;
            }
            self.workers[index as usize].stage = Stage::Waiting(stage + 1);
        }
    }

    /// What there is to do for a piece of work that was handed out and is not finished.
    pub fn work(&self, id: WorkId) -> Work {
        let worker = &self.workers[id.worker() as usize];
        assert_eq!(worker.stage, Stage::Working, "{id:?} was not handed out");
        let operation = &self.operations[self.past];
        worker.work(id, operation.id, &operation.plan, &self.links)
    }

    /// A slice is done: its slots go to the other side, and the worker goes to the next slice.
    #[inline]
    fn complete_slice(&mut self, index: u32, executor: &mut impl Executor) {
        let Operation { id, mark, plan, .. } = &self.operations[self.past];
        let worker = &mut self.workers[index as usize];
        let (_, count) = worker.slice_range();
        let tag = Tag { sequence: id.0, chunk: worker.loaded.step.chunk, step: worker.number };
        let data = Bytes(count * plan.element);
        for connection in worker.loaded.links.iter().copied() {
            let link = &mut self.links[connection.0 as usize];
            let (direction, slot) = (link.direction, link.advance());
            let handed = Handed { connection, direction, slot, data, layout: &plan.layout, mark: *mark, tag };
            hand_over(executor, &handed);
        }
        worker.slice += 1;
        if worker.slice < worker.loaded.slices {
            // What had to be over before the step is over.
            worker.stage = Stage::Waiting(worker.loaded.step.after.len() as u32);
            return;
        }
        worker.number += 1;
        worker.stage = Stage::Fresh;
        while let Some(waiter) = worker.next_waiter() {
            self.runnable.push_back(waiter);
        }
    }
}

/// The place of a schedule's group among those that are known; a new one is added.
fn place(known: &mut Vec<(SwitchGroup, usize)>, schedule: &Schedule, number: u32) -> u32 {
    let group = &schedule.groups[number as usize];
    let alike = schedule.groups[..number as usize].iter().filter(|other| *other == group).count();
    let found = known.iter().position(|(other, which)| *which == alike && other == group);
    found.unwrap_or_else(|| {
        known.push((group.clone(), alike));
        known.len() - 1
    }) as u32
}
