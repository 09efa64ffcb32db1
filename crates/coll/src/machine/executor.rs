//! The loop that runs a machine, and the executors that carry out what it decides.
//!
//! One loop serves both worlds. It asks an [`Executor`] to do the work of a slice, and goes on according to the answer:
//!
//! - The simulator's answer comes later, because work takes time there. The executor of a queue ([`Queued`], in every machine)
//!   puts what is to be done among the outputs ([`RankMachine::poll_output`]), and the driver calls
//!   [`RankMachine::finished`], [`RankMachine::arrived`] and [`RankMachine::freed`].
//! - Between real processes the answer comes at once: a synchronous executor does the work itself, because a queue would cost
//!   more than a small call does. The driver of such a machine ([`RankMachine::synchronous`]) calls [`RankMachine::proceed`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use railnet_core::{Bytes, Time};

use super::link::Link;
use super::signature::Mark;
use super::work::{ConnectionId, Direction, Handed, InlineCopy, OperationId, Output, Work, WorkId};
use super::worker::{Loaded, Stage, Worker};
use super::{NOBODY, Operation, REMEMBERED, RankMachine};
use crate::call::Collective;
use crate::schedule::{Buffer, Schedule};

/// Carries out the work of a machine.
pub trait Executor {
    /// Polls a connection that a worker needs. An executor whose driver polls connections itself, and tells the machine,
    /// answers [`Polled::Nothing`].
    fn poll(&mut self, connection: ConnectionId) -> Polled;
    /// How often it is worth polling a connection in a row, for an operation that may be over soon.
    fn polls(&self, _connection: ConnectionId) -> u32 {
        1
    }
    /// A worker waits for the next slice of a connection and for nothing else but room to send it on. The slice goes to the
    /// output unchanged, so it may be received right there.
    fn post_receive(&mut self, _connection: ConnectionId, _buffer: ReceiveBuffer) {}
    /// Does all of the next operation, whose connections are ready: copies the data, also to where it is sent, and returns the
    /// credit to its sender. `false` if it did nothing: then the operation goes the usual way.
    fn copy_inline(&mut self, _copy: &InlineCopy, _connections: &[ConnectionId], _mark: Mark) -> bool {
        false
    }
    /// Does the work of a slice, or accepts it.
    fn execute(&mut self, task: Task<'_>) -> Execution;
    /// Sends a slot that is filled.
    fn filled(&mut self, filled: &Handed<'_>);
    /// Tells the sender that the next slice of this connection was taken out of its slots.
    fn emptied(&mut self, emptied: &Handed<'_>);
    /// An operation is over on this rank.
    fn finished(&mut self, operation: OperationId);
}

/// The work of a slice, for an [`Executor`].
#[derive(Debug)]
pub struct Task<'a> {
    worker: &'a mut Worker,
    index: u32,
    operation: &'a Operation,
    links: &'a [Link],
}

impl<'a> Task<'a> {
    /// Its name, for [`RankMachine::finished`] and [`RankMachine::work`].
    #[inline]
    pub fn id(&self) -> WorkId {
        WorkId::new(self.operation.id, self.index)
    }

    /// What is to be done, and the schedule that it is a part of.
    #[inline]
    pub fn describe(self) -> (&'a Work, &'a Schedule) {
        let id = self.id();
        let Operation { id: operation, plan, .. } = self.operation;
        (self.worker.kept_work(id, *operation, plan, self.links), &plan.schedule)
    }
}

/// How an [`Executor`] answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Execution {
    /// The work is done.
    Done,
    /// The worker waits for [`RankMachine::finished`], or for ever if the work cannot be done.
    Pending,
}

/// What polling a connection brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// Nothing new.
    Nothing,
    /// A slice has arrived, with the mark of the sender's operation.
    Arrived(Mark),
    /// The slots of so many slices, the oldest first, may be used again; one at least.
    Freed(u64),
}

/// The part of an operation's output in which a slice can be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveBuffer {
    /// The operation.
    pub operation: OperationId,
    /// The collective that it carries out.
    pub collective: Collective,
    /// Bytes of the output before the slice.
    pub offset: Bytes,
    /// Bytes of the slice.
    pub length: Bytes,
}

/// The executor that answers later: it turns work into outputs for a driver to take.
struct Queued<'a>(&'a mut VecDeque<Output>);

impl Executor for Queued<'_> {
    #[inline]
    fn poll(&mut self, _: ConnectionId) -> Polled {
        Polled::Nothing
    }

    #[inline]
    fn execute(&mut self, task: Task<'_>) -> Execution {
        self.0.push_back(Output::Work(task.id()));
        Execution::Pending
    }

    #[inline]
    fn filled(&mut self, filled: &Handed<'_>) {
        self.0.push_back(Output::Filled(filled.filled()));
    }

    #[inline]
    fn emptied(&mut self, &Handed { connection, slot, .. }: &Handed<'_>) {
        self.0.push_back(Output::Emptied { connection, slot });
    }

    #[inline]
    fn finished(&mut self, operation: OperationId) {
        self.0.push_back(Output::Finished(operation));
    }
}

impl RankMachine {
    /// A machine with a synchronous executor: it does nothing before [`RankMachine::proceed`] is called. Of its outputs
    /// those stay that are about no work: connections, notices, failures, and [`Output::Expect`] if `expects`.
    #[must_use]
    pub fn synchronous(mut self, expects: bool) -> Self {
        self.is_synchronous = true;
        self.emits_expect = expects;
        self
    }

    /// Does all that can be done now, and returns whether that was anything. All [`Output::Connect`]s must have been carried
    /// out before.
    #[inline]
    pub fn proceed(&mut self, now: Time, executor: &mut impl Executor) -> bool {
        debug_assert!(
            self.is_synchronous,
            "a machine has a synchronous executor from its beginning on, or never"
        );
        let moved = self.run_all(now, executor);
        if moved {
            self.progress = now;
        }
        moved
    }

    /// Where outputs are queued: runs what can run.
    #[inline]
    pub(super) fn run_queued(&mut self, now: Time) {
        if !self.is_synchronous {
            let mut outputs = std::mem::take(&mut self.outputs);
            self.run_all(now, &mut Queued(&mut outputs));
            debug_assert!(self.outputs.is_empty(), "only polls have outputs, and a queue polls nothing");
            self.outputs = outputs;
        }
    }

    /// Runs workers until each waits for something or is done; begins and ends operations.
    #[inline]
    fn run_all(&mut self, now: Time, executor: &mut impl Executor) -> bool {
        let mut moved = false;
        while !self.is_disputed && self.failure.is_none() {
            if let Some(worker) = self.runnable.pop_front() {
                moved |= self.run(now, worker, executor);
                continue;
            }
            match self.running {
                Some(0) => {
                    let operation = self.end(now);
                    executor.finished(operation);
                }
                Some(_) => break,
                None if self.unfinished() == 0 => break,
                None => self.begin(),
            }
            moved = true;
        }
        moved
    }

    /// Runs a worker until it waits for something or is done. Returns whether it did anything.
    #[inline]
    fn run(&mut self, now: Time, index: u32, executor: &mut impl Executor) -> bool {
        let mut moved = false;
        while self.step(index) {
            while self.must_wait(index) {
                // It may wait for another worker, which wakes it.
                let Some(connection) = self.awaited(index) else { return moved };
                match executor.poll(connection) {
                    Polled::Nothing => {
                        if let Some(buffer) = self.receive_buffer(index) {
                            executor.post_receive(connection, buffer);
                        }
                        return moved;
                    }
                    Polled::Arrived(mark) => {
                        self.links[connection.0 as usize].arrived();
                        self.heard(now, connection, mark);
                    }
                    Polled::Freed(count) => {
                        (0..count).for_each(|_| self.links[connection.0 as usize].freed());
                    }
                }
                moved = true;
                self.links[connection.0 as usize].waiter = NOBODY;
                if self.is_disputed {
                    self.runnable.push_back(index);
                    return moved;
                }
            }
            moved = true;
            if self.workers[index as usize].has_work() && self.execute(index, executor) == Execution::Pending
            {
                return moved;
            }
            self.complete_slice(index, executor);
        }
        moved
    }

    /// Hands the work of a slice to the executor.
    #[inline]
    fn execute(&mut self, index: u32, executor: &mut impl Executor) -> Execution {
        let worker = &mut self.workers[index as usize];
        worker.stage = Stage::Working;
        executor.execute(Task { worker, index, operation: &self.operations[self.past], links: &self.links })
    }

    /// The driver has done the work of a worker.
    pub(super) fn complete_queued(&mut self, index: u32) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.complete_slice(index, &mut Queued(&mut outputs));
        self.outputs = outputs;
    }

    /// Where the slice that a worker waits for goes in the output, if it goes there unchanged.
    #[inline]
    fn receive_buffer(&self, index: u32) -> Option<ReceiveBuffer> {
        let worker = &self.workers[index as usize];
        let step = &worker.loaded.step;
        // Earlier steps are over, and nothing else is received.
        let waits_for_it = worker.stage == Stage::Waiting(step.after.len() as u32);
        let is_copied = step.receives.len() == 1 && step.sources.is_empty() && !step.is_final;
        let store = step.stores.first().filter(|store| store.buffer == Buffer::Output)?;
        if !waits_for_it || !is_copied {
            return None;
        }
        let (first, count) = worker.slice_range();
        let operation = &self.operations[self.past];
        let element = operation.plan.element;
        let (offset, length) = (Bytes((store.offset + first) * element), Bytes(count * element));
        let collective = operation.plan.schedule.call.collective;
        Some(ReceiveBuffer { operation: operation.id, collective, offset, length })
    }

    /// The connection that a worker waits for, if it is one.
    #[inline]
    fn awaited(&self, index: u32) -> Option<ConnectionId> {
        let worker = &self.workers[index as usize];
        let Stage::Waiting(stage) = worker.stage else { return None };
        let before = worker.loaded.step.after.len();
        let connection = *worker.loaded.links.get((stage as usize).checked_sub(before)?)?;
        (self.links[connection.0 as usize].waiter == index).then_some(connection)
    }
}

/// The fast path of small calls, for synchronous executors.
impl RankMachine {
    /// Whether the machine is idle, the schedule has a single slice for its worker (or for each of its workers, if
    /// `or_several`), and it was the last one to be carried out, several times in a row.
    #[inline]
    pub fn is_single(&self, schedule: &Arc<Schedule>, or_several: bool) -> bool {
        let is_idle = self.unfinished() == 0 && self.failure.is_none() && !self.is_disputed;
        if !is_idle || self.past <= REMEMBERED || self.emits_expect || !self.early.is_empty() {
            return false;
        }
        let plan = &self.operations[0].plan;
        plan.is_single && Arc::ptr_eq(&plan.schedule, schedule) && (or_several || plan.uses.0.len() == 1)
    }

    /// Submits an operation with a schedule that [`RankMachine::is_single`], and does what can be done of it now, mostly all.
    /// `None` if nothing can be done: then it was not submitted.
    ///
    /// [`RankMachine::submit`] and [`RankMachine::proceed`] do the same and can wait for anything, which costs twice the time.
    #[inline]
    pub fn submit_single(&mut self, now: Time, executor: &mut impl Executor) -> Option<OperationId> {
        let plan = &self.operations[0].plan;
        debug_assert!(self.is_single(&plan.schedule, true), "the caller has asked");
        let (id, mark) = (OperationId(self.next), plan.mark(OperationId(self.next)));
        let uses = plan.uses.0.iter().flatten();
        if !uses.clone().all(|one| self.links[one.id.0 as usize].has(&plan.layout)) {
            return None;
        }
        let first = plan.ready(0, 0)?;
        match poll_all(first, mark, &mut self.links, executor) {
            Ok(true) => {}
            Ok(false) => return None,
            Err((connection, heard)) => {
                self.heard(now, connection, heard);
                return None;
            }
        }
        self.next += 1;
        let copy = plan.inline_copy.as_ref();
        let is_done = copy.is_some_and(|copy| executor.copy_inline(copy, &first.links, mark));
        if is_done {
            for connection in &first.links {
                self.links[connection.0 as usize].advance();
            }
        }
        self.repeat(now, id, mark);
        if is_done {
            (self.progress, self.finished) = (now, now);
            executor.finished(id);
            return Some(id);
        }
        self.past -= 1;
        let workers = self.operations[self.past].plan.uses.0.len() as u32;
        (self.progress, self.running) = (now, Some(workers));
        if self.workers.len() != workers as usize {
            self.workers.resize_with(workers as usize, Worker::new);
        }
        for index in 0..workers {
            let plan = &self.operations[self.past].plan;
            if index > 0 {
                let loaded = plan.ready(index, 0).expect("a single step is ready");
                let ready = poll_all(loaded, mark, &mut self.links, executor);
                if let Err((connection, heard)) = ready {
                    self.heard(now, connection, heard);
                }
                if ready != Ok(true) {
                    self.defer(index..workers, workers - index);
                    return Some(id);
                }
            }
            let plan = &self.operations[self.past].plan;
            let worker = &mut self.workers[index as usize];
            worker.begin(1);
            worker.load(self.rank, index, plan);
            if self.execute(index, executor) == Execution::Pending {
                self.defer(index + 1..workers, workers - index);
                return Some(id);
            }
            self.complete_slice(index, executor);
            self.workers[index as usize].stage = Stage::Done;
        }
        let operation = self.end(now);
        executor.finished(operation);
        Some(id)
    }

    /// Leaves `waiting` workers, of which those in `fresh` have not begun, to [`RankMachine::proceed`].
    fn defer(&mut self, fresh: Range<u32>, waiting: u32) {
        self.running = Some(waiting);
        for index in fresh {
            self.workers[index as usize].begin(1);
            self.runnable.push_back(index);
        }
    }
}

/// Polls the connections of a step until all are ready, or one is not. An error is the mark of another operation.
#[inline]
fn poll_all(
    loaded: &Loaded,
    mark: Mark,
    links: &mut [Link],
    executor: &mut impl Executor,
) -> Result<bool, (ConnectionId, Mark)> {
    for connection in loaded.links.iter().copied() {
        let link = &mut links[connection.0 as usize];
        let mut polls = 0;
        while !link.is_ready() {
            match executor.poll(connection) {
                Polled::Nothing if polls + 1 >= executor.polls(connection) => return Ok(false),
                Polled::Nothing => {
                    polls += 1;
                    std::hint::spin_loop();
                }
                Polled::Arrived(heard) => {
                    link.arrived();
                    if heard != mark {
                        return Err((connection, heard));
                    }
                    link.heard = Some(mark);
                }
                Polled::Freed(count) => (0..count).for_each(|_| link.freed()),
            }
        }
    }
    Ok(true)
}

/// Gives a slot to the other side: a filled one to the receiver, an emptied one back to the sender.
#[inline]
pub(super) fn hand_over(executor: &mut impl Executor, handed: &Handed<'_>) {
    match handed.direction {
        Direction::Send => executor.filled(handed),
        Direction::Receive => executor.emptied(handed),
    }
}
