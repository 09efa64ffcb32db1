//! The machine in trouble: differences between ranks, limits, and the end of a communicator.

use std::sync::Arc;

use railnet_core::{Rank, Span, Time};

use super::signature::{Mark, Signature};
use super::trouble::{Answer, Asking, Departure, Failure, Notice, Standing, Wait, WaitingFor};
use super::work::{ConnectionId, Direction, OperationId, Output};
use super::worker::Stage;
use super::{Operation, RankMachine};
use crate::Collective;
use crate::schedule::Connection;

impl RankMachine {
    /// What the peer said about its operation, on this connection. It costs nothing to say it again.
    #[inline]
    pub fn heard(&mut self, now: Time, connection: ConnectionId, mark: Mark) {
        if self.links[connection.0 as usize].heard == Some(mark) {
            return;
        }
        // Mostly a peer speaks of what is done now.
        if self.active().is_some_and(|active| active.mark == mark) {
            self.links[connection.0 as usize].heard = Some(mark);
        } else if self.failure.is_none() {
            self.compare(now, connection, mark);
        }
    }

    fn compare(&mut self, now: Time, connection: ConnectionId, mark: Mark) {
        let operation = OperationId(mark.near(self.next));
        if operation.0 >= self.next {
            self.early.push((connection, mark));
            return;
        }
        match self.known(operation) {
            Some(known) if known.mark != mark => {
                // What comes of different calls must not pass for a result: nothing goes on until it is settled.
                self.is_disputed = true;
                self.ask(now, operation, self.limit);
            }
            // One that was forgotten was finished long ago: nothing can be compared.
            _ => self.links[connection.0 as usize].heard = Some(mark),
        }
    }

    /// An operation was submitted of which peers have spoken before.
    pub(super) fn compare_early(&mut self, now: Time, mark: Mark) {
        let known: Vec<_> =
            self.early.extract_if(.., |(_, early)| early.sequence() == mark.sequence()).collect();
        for (connection, early) in known {
            self.compare(now, connection, early);
        }
    }

    fn known(&self, operation: OperationId) -> Option<&Operation> {
        self.operations.iter().find(|one| one.id == operation)
    }

    /// What the workers of this rank wait for.
    pub fn waiting_for(&self) -> Vec<Wait> {
        let waits = self.workers.iter().enumerate().filter_map(|(index, worker)| {
            let what = match worker.stage {
                Stage::Waiting(stage) => match worker.loaded.step.after.get(stage as usize) {
                    Some(after) => WaitingFor::Worker(after.worker),
                    None => {
                        let link =
                            worker.loaded.links.get(stage as usize - worker.loaded.step.after.len())?;
                        let link = &self.links[link.0 as usize];
                        match link.direction {
                            Direction::Receive => WaitingFor::Data(link.to.peer, link.to.channel),
                            Direction::Send => WaitingFor::Room(link.to.peer, link.to.channel),
                        }
                    }
                },
                Stage::Working => WaitingFor::Work,
                Stage::Fresh | Stage::Done => return None,
            };
            Some(Wait { worker: index as u32, step: worker.number, what, since: self.progress })
        });
        if self.running.is_some() { waits.collect() } else { Vec::new() }
    }

    /// When [`RankMachine::handle_timeout`] wants to be called, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.asking {
            _ if self.failure.is_some() => None,
            Some(asking) => Some(asking.since + self.limit),
            None => self.running.map(|_| self.progress + self.limit),
        }
    }

    /// The time has come that [`RankMachine::poll_timeout`] spoke of: the others are asked what they do. Where something
    /// still happens somewhere, it goes on waiting.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.inquire(now, self.limit);
        }
    }

    /// It takes too long, whatever the others say: they are asked what they do, and it ends. Called again, those that
    /// have not answered are taken to be dead.
    pub fn expired(&mut self, now: Time) {
        self.inquire(now, Span::ZERO);
    }

    fn inquire(&mut self, now: Time, patience: Span) {
        if self.failure.is_some() {
            return;
        }
        if self.asking.is_some() {
            self.conclude(now);
        } else if let Some(active) = self.active() {
            let operation = active.id;
            self.ask(now, operation, patience);
        }
    }

    /// Stops everything, here and everywhere.
    pub fn abort(&mut self) {
        self.fail(Arc::new(Failure::Aborted { by: Rank(self.rank) }), true);
    }

    /// The first call that has not ended, as errors name it.
    pub fn submitted_call(&self) -> Option<String> {
        let Signature { operation, call, .. } = &*self.submitted().next()?.signature();
        Some(format!("{} {operation}", call.collective))
    }

    /// A rank is gone, and this is what is known of it.
    pub fn lost(&mut self, rank: Rank, cause: impl Into<String>) {
        let during = self.submitted().next().map(Operation::signature);
        self.fail(Arc::new(Failure::Lost { rank, cause: cause.into(), during }), false);
    }

    /// A rank has left after a failure in another communicator of its process.
    pub fn departed(&mut self, rank: Rank, departure: Departure) {
        let during = self.submitted().next().map(Operation::signature);
        self.fail(Arc::new(Failure::Departed { rank, departure, during }), false);
    }

    /// A connection can carry nothing any more.
    pub fn broken(&mut self, connection: ConnectionId, reason: impl Into<String>) {
        let Connection { peer: with, channel, .. } = self.links[connection.0 as usize].to;
        let (at, reason) = (Rank(self.rank), reason.into());
        let during = self.submitted().next().map(Operation::signature);
        self.fail(Arc::new(Failure::Broken { at, with, channel, reason, during }), true);
    }

    /// A connection could not be made. `with` is the rank that cannot be reached, if that is why.
    pub fn cannot_connect(&mut self, with: Option<Rank>, reason: impl Into<String>) {
        let (at, reason) = (Rank(self.rank), reason.into());
        let during = self.submitted().next().map(Operation::signature);
        self.fail(Arc::new(Failure::Unconnected { at, with, reason, during }), true);
    }

    /// The clock was not looked at for a while, and it is this late: what was submitted since then was submitted now.
    pub fn awake(&mut self, now: Time) {
        let asleep = self.progress;
        self.progress = now;
        // The others have not been asked before now, whatever the clock said.
        if let Some(asking) = &mut self.asking
            && !asking.is_dated
        {
            (asking.since, asking.is_dated) = (now, true);
        }
        for operation in self.operations.range_mut(self.past..) {
            if operation.submitted >= asleep {
                operation.submitted = now;
            }
        }
    }

    /// This rank was not run for so long: the others' answers wait to be taken in, and are not late for that.
    pub fn excuse(&mut self, gap: Span) {
        if let Some(asking) = &mut self.asking {
            asking.since += gap;
        }
    }

    /// Nothing happens for a while, which is no error yet: the others are asked whether they mean the same.
    pub fn doubt(&mut self, now: Time) {
        if self.failure.is_some() || self.asking.is_some() {
            return;
        }
        if let Some(active) = self.active() {
            let operation = active.id;
            self.ask(now, operation, self.limit);
            if let Some(asking) = &mut self.asking {
                asking.is_doubt = true;
            }
        }
    }

    /// In a pair: asks the other rank whether it has entered the next operation, which this rank has not.
    /// [`RankMachine::has_peer_entered`] tells once it has answered.
    pub fn probe(&mut self) {
        let notice = Box::new(Notice::Ask(self.next_operation()));
        self.outputs.push_back(Output::Notice { to: Some(self.peer()), notice });
    }

    /// Whether the other rank of a pair has said that it has entered the next operation.
    pub fn has_peer_entered(&self) -> bool {
        self.peer_entered >= Some(self.next_operation())
    }

    /// Tells the receiver of a pair what was sent to it: once this rank has left, it answers no probe.
    pub fn announce_sends(&mut self, now: Time) {
        let is_sender = self.ranks == 2 && self.rank == 0;
        let Some(last) = self.operations.back().filter(|_| is_sender && self.failure.is_none()) else {
            return;
        };
        if last.plan.schedule.call.collective == Collective::SendReceive {
            let operation = last.id;
            let notice = Box::new(Notice::Answer(operation, self.answer(now, operation)));
            self.outputs.push_back(Output::Notice { to: Some(self.peer()), notice });
        }
    }

    fn peer(&self) -> Rank {
        assert_eq!(self.ranks, 2, "only a pair has one other rank");
        Rank(1 - self.rank)
    }

    /// Says whether this rank's program waits for a call of another communicator: it cannot enter one of this meanwhile.
    pub fn set_waits_elsewhere(&mut self, waits: bool) {
        self.waits_elsewhere = waits;
    }

    /// Since when the others are being asked, if they are.
    pub fn asking_since(&self) -> Option<Time> {
        self.asking.as_ref().map(|asking| asking.since)
    }

    /// Whether they are asked because the limit is over.
    pub fn is_overdue(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| !asking.is_doubt)
    }

    /// When something last happened here.
    pub fn last_progress(&self) -> Time {
        self.progress
    }

    /// What another rank says.
    pub fn notice(&mut self, now: Time, from: Rank, notice: Notice) {
        match notice {
            Notice::Verdict(failure) => self.fail(failure, false),
            Notice::Ask(operation) => {
                let notice = match &self.failure {
                    Some(failure) => Notice::Verdict(Arc::clone(failure)),
                    None => Notice::Answer(operation, self.answer(now, operation)),
                };
                self.outputs.push_back(Output::Notice { to: Some(from), notice: Box::new(notice) });
            }
            Notice::Answer(operation, answer) => {
                if matches!(answer.standing, Standing::Entered { .. } | Standing::Finished) {
                    self.peer_entered = self.peer_entered.max(Some(operation));
                }
                let Some(asking) = &mut self.asking else { return };
                if asking.operation != operation || self.failure.is_some() {
                    return;
                }
                asking.take(from.0, answer);
                if asking.is_complete(self.ranks) {
                    self.conclude(now);
                }
            }
        }
    }

    /// Why nothing works any more, if so.
    pub fn failure(&self) -> Option<&Arc<Failure>> {
        self.failure.as_ref()
    }

    fn answer(&self, now: Time, operation: OperationId) -> Answer {
        let signature = self.known(operation).map(Operation::signature);
        let entered = self.submitted().find(|one| one.id == operation);
        let standing = match entered {
            Some(one) => Standing::Entered {
                since: now.since(one.submitted),
                idle: now.since(self.progress),
                waits: self.waiting_for(),
            },
            None if operation.0 < self.next => Standing::Finished,
            None if self.submitted().next().is_some() => {
                Standing::Behind { idle: now.since(self.progress), waits: self.waiting_for() }
            }
            None => {
                let last = self.past.checked_sub(1).map(|last| self.operations[last].signature());
                let waits_elsewhere = self.waits_elsewhere;
                Standing::NotEntered { last, ago: now.since(self.finished), waits_elsewhere }
            }
        };
        let before = self.operations.iter().filter(|one| one.id < operation);
        Answer { signature, standing, history: before.map(|one| one.mark).collect() }
    }

    fn ask(&mut self, now: Time, operation: OperationId, patience: Span) {
        if let Some(asking) = &mut self.asking {
            if asking.is_doubt {
                asking.next.get_or_insert((operation, patience));
            }
            return;
        }
        let mut asking = Asking::new(operation, now, patience);
        asking.take(self.rank, self.answer(now, operation));
        self.asking = Some(asking);
        self.outputs.push_back(Output::Notice { to: None, notice: Box::new(Notice::Ask(operation)) });
        if self.ranks == 1 {
            self.conclude(now);
        }
    }

    fn conclude(&mut self, now: Time) {
        let Some(asking) = self.asking.take() else { return };
        self.is_disputed = false;
        if let Some(earlier) = asking.first_difference()
            && self.known(earlier).is_some()
            && earlier != asking.operation
        {
            self.is_disputed = true;
            return self.ask(now, earlier, self.limit);
        }
        // Once for an operation: ranks that wait for each other in turn are an error all the same.
        let is_deferred = asking.is_held_up(self.ranks) && self.deferred != Some(asking.operation);
        if is_deferred {
            self.deferred = Some(asking.operation);
        }
        let (is_doubt, next) = (asking.is_doubt, asking.next);
        let verdict = asking.verdict(self.ranks, now.since(self.progress), self.relay);
        match verdict.filter(|_| !is_deferred) {
            Some(failure) => self.fail(Arc::new(failure), true),
            None if next.is_some() => {
                let (operation, patience) = next.expect("it is there");
                self.is_disputed = true;
                self.ask(now, operation, patience);
            }
            None => {
                // Another period of patience; a doubt leaves the old one running.
                self.progress = if is_doubt { self.progress } else { now };
                self.run_queued(now);
            }
        }
    }

    fn fail(&mut self, failure: Arc<Failure>, tell: bool) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(Arc::clone(&failure));
        self.asking = None;
        // What runs is still looked at: work of it may come back.
        self.operations.truncate(self.past + usize::from(self.running.is_some()));
        self.runnable.clear();
        if tell && self.ranks > 1 {
            let notice = Notice::Verdict(Arc::clone(&failure));
            self.outputs.push_back(Output::Notice { to: None, notice: Box::new(notice) });
        }
        self.outputs.push_back(Output::Failed(failure));
    }
}
