//! Machines whose work is done on the spot.
//!
//! In a simulation work takes its time, so a machine puts what is to be done into a queue ([`RankMachine::poll_output`])
//! and is told later what came of it. Between real processes, whoever drives a machine does the work itself, and at once:
//! there the way through queues would take longer than a small call does. Such a machine has [`Hands`].

use std::ops::Range;
use std::sync::Arc;

use railnet_core::{Bytes, Time};

use super::link::Link;
use super::signature::Mark;
use super::work::{ConnectionId, Direction, Errand, Handed, OperationId, Work, WorkId};
use super::worker::{Loaded, Stage, Worker};
use super::{NOBODY, REMEMBERED, RankMachine};
use crate::call::Collective;
use crate::schedule::{Buffer, Schedule};

/// What does the work of a machine on the spot.
pub trait Hands {
    /// A worker needs this connection. Hands that look only later, and tell the machine then, see nothing.
    fn look(&mut self, connection: ConnectionId) -> Look;
    /// How many looks at a connection in a row are worth it, for an operation that may be over soon.
    fn looks(&self, _connection: ConnectionId) -> u32 {
        1
    }
    /// A worker waits for the next slice of a connection, which goes to the output as it is: it may be put there when it
    /// comes. Of all that the worker waits for, the rest is room to send it on.
    fn awaits(&mut self, _connection: ConnectionId, _landing: Landing) {}
    /// Does all of the next operation, whose connections can be used: moves the data, carries it to where it is sent, and tells its
    /// sender that it was taken. `false` if it does nothing of it: then it is done like any other.
    fn carry(&mut self, _errand: &Errand, _connections: &[ConnectionId], _mark: Mark) -> bool {
        false
    }
    /// Does this work of an operation. `false` if it cannot be done: then it stands still until somebody says why.
    fn work(&mut self, work: &Work, schedule: &Schedule) -> bool;
    /// Carries a send slot.
    fn filled(&mut self, filled: &Handed<'_>);
    /// Tells the sender that the next slice of this connection was taken out of its slots.
    fn emptied(&mut self, connection: ConnectionId);
    /// An operation is over on this rank.
    fn finished(&mut self, operation: OperationId);
}

/// What a look at a connection brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing new.
    Nothing,
    /// A slice has arrived, and what the sender says that it is.
    Arrived(Mark),
    /// The slots of so many slices, the oldest first, may be used again; one at least.
    Freed(u64),
}

/// Where a slice goes in the output of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landing {
    /// Which operation.
    pub operation: OperationId,
    /// What that is.
    pub collective: Collective,
    /// Where it begins.
    pub offset: Bytes,
    /// How long it is.
    pub length: Bytes,
}

impl RankMachine {
    /// A machine whose work is done on the spot: it does nothing before [`RankMachine::proceed`] is called. Of its outputs
    /// those stay that are of no work: connections, notices, failures, and what it expects if somebody wants to know.
    #[must_use]
    pub fn by_hand(mut self, tells_expected: bool) -> Self {
        self.is_by_hand = true;
        self.tells_expected = tells_expected;
        self
    }

    /// Whether nothing is under way, and a schedule has a single slice for its worker, or for each of several; where it was
    /// carried out a few times before, and last.
    #[inline]
    pub fn is_single(&self, schedule: &Arc<Schedule>, or_several: bool) -> bool {
        let is_idle = self.unfinished() == 0 && self.failure.is_none() && !self.is_disputed;
        if !is_idle || self.past <= REMEMBERED || self.tells_expected || !self.early.is_empty() {
            return false;
        }
        let plan = &self.operations[0].plan;
        plan.is_single && Arc::ptr_eq(&plan.schedule, schedule) && (or_several || plan.uses.0.len() == 1)
    }

    /// Submits an operation with such a schedule and does what can be done of it at once, all of it for the most part. If that is
    /// nothing, it was not submitted.
    ///
    /// [`RankMachine::submit`] and [`RankMachine::proceed`] do the same, and can wait for anything: that they can takes them twice as
    /// long.
    #[inline]
    pub fn at_once(&mut self, now: Time, hands: &mut impl Hands) -> Option<OperationId> {
        let plan = &self.operations[0].plan;
        debug_assert!(self.is_single(&plan.schedule, true), "it was looked at before");
        let (id, mark) = (OperationId(self.next), plan.mark(OperationId(self.next)));
        let uses = plan.uses.0.iter().flatten();
        if !uses.clone().all(|one| self.links[one.id.0 as usize].has(&plan.layout)) {
            return None;
        }
        let first = plan.ready(0, 0)?;
        match is_ready(first, mark, &mut self.links, hands) {
            Ok(true) => {}
            Ok(false) => return None,
            Err((connection, heard)) => {
                self.heard(now, connection, heard);
                return None;
            }
        }
        self.next += 1;
        let is_done = plan.errand.as_ref().is_some_and(|errand| hands.carry(errand, &first.links, mark));
        if is_done {
            for connection in &first.links {
                self.links[connection.0 as usize].advance();
            }
        }
        self.repeat(now, id, mark);
        if is_done {
            (self.progress, self.finished) = (now, now);
            hands.finished(id);
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
                let ready = is_ready(loaded, mark, &mut self.links, hands);
                if let Err((connection, heard)) = ready {
                    self.heard(now, connection, heard);
                }
                if ready != Ok(true) {
                    self.leave(index..workers, workers - index);
                    return Some(id);
                }
            }
            let plan = &self.operations[self.past].plan;
            let worker = &mut self.workers[index as usize];
            worker.begin(1);
            worker.load(self.rank, index, plan);
            worker.stage = Stage::Working;
            let work = worker.kept_work(WorkId::new(id, index), id, plan, &self.links);
            if !hands.work(work, &plan.schedule) {
                self.leave(index + 1..workers, workers - index);
                return Some(id);
            }
            self.complete_slice(index, |_, handed| match handed.direction {
                Direction::Send => hands.filled(handed),
                Direction::Receive => hands.emptied(handed.connection),
            });
            self.workers[index as usize].stage = Stage::Done;
        }
        let operation = self.end(now);
        hands.finished(operation);
        Some(id)
    }

    /// So many workers have to wait for something, and these have not begun.
    fn leave(&mut self, fresh: Range<u32>, waiting: u32) {
        self.running = Some(waiting);
        for index in fresh {
            self.workers[index as usize].begin(1);
            self.runnable.push_back(index);
        }
    }

    /// Does all that can be done now. Whether anything was. Connections that it asks for must be there before.
    #[inline]
    pub fn proceed(&mut self, now: Time, hands: &mut impl Hands) -> bool {
        debug_assert!(self.is_by_hand, "a machine has hands from its beginning on, or never");
        let mut moved = false;
        while !self.is_disputed && self.failure.is_none() {
            if let Some(worker) = self.runnable.pop_front() {
                moved |= self.run_by(now, worker, hands);
                continue;
            }
            match self.running {
                Some(0) => {
                    let operation = self.end(now);
                    hands.finished(operation);
                }
                Some(_) => break,
                None if self.unfinished() == 0 => break,
                None => self.begin(),
            }
            moved = true;
        }
        if moved {
            self.progress = now;
        }
        moved
    }

    /// Lets a worker go on until it waits for something or is done. Whether it did anything.
    #[inline]
    fn run_by(&mut self, now: Time, index: u32, hands: &mut impl Hands) -> bool {
        let mut moved = false;
        while self.step(index) {
            while self.must_wait(index) {
                // It may wait for another worker, which wakes it.
                let Some(connection) = self.awaited(index) else { return moved };
                match hands.look(connection) {
                    Look::Nothing => {
                        if let Some(landing) = self.landing(index) {
                            hands.awaits(connection, landing);
                        }
                        return moved;
                    }
                    Look::Arrived(mark) => {
                        self.links[connection.0 as usize].arrived();
                        self.heard(now, connection, mark);
                    }
                    Look::Freed(count) => {
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
            let worker = &mut self.workers[index as usize];
            if worker.has_work() {
                worker.stage = Stage::Working;
                let operation = &self.operations[self.past];
                let id = WorkId::new(operation.id, index);
                let work = worker.kept_work(id, operation.id, &operation.plan, &self.links);
                if !hands.work(work, &operation.plan.schedule) {
                    return moved;
                }
            }
            self.complete_slice(index, |_, handed| match handed.direction {
                Direction::Send => hands.filled(handed),
                Direction::Receive => hands.emptied(handed.connection),
            });
        }
        moved
    }

    /// Where the slice goes that a worker waits for, if it is for the output and nothing is to be done with it.
    #[inline]
    fn landing(&self, index: u32) -> Option<Landing> {
        let worker = &self.workers[index as usize];
        let step = &worker.loaded.step;
        // What had to be over is over, and nothing else is received.
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
        Some(Landing { operation: operation.id, collective, offset, length })
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

/// Whether all connections of a step can be used. An error is what was said of an operation that is not this one.
#[inline]
fn is_ready(
    loaded: &Loaded,
    mark: Mark,
    links: &mut [Link],
    hands: &mut impl Hands,
) -> Result<bool, (ConnectionId, Mark)> {
    for connection in loaded.links.iter().copied() {
        let link = &mut links[connection.0 as usize];
        let mut looks = 0;
        while !link.is_ready() {
            match hands.look(connection) {
                Look::Nothing if looks + 1 >= hands.looks(connection) => return Ok(false),
                Look::Nothing => {
                    looks += 1;
                    std::hint::spin_loop();
                }
                Look::Arrived(heard) => {
                    link.arrived();
                    if heard != mark {
                        return Err((connection, heard));
                    }
                    link.heard = Some(mark);
                }
                Look::Freed(count) => (0..count).for_each(|_| link.freed()),
            }
        }
    }
    Ok(true)
}
