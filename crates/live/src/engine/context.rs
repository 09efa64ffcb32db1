//! A communicator inside the engine: its rank machine, the ends of its connections, and the buffers of its calls.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use railnet_coll::machine::{
    ConnectionId, Direction, Failure, OperationId, Output, RankMachine, Wait, WaitingFor,
};
use railnet_coll::{Call, Connection, Peer, Schedule};
use railnet_core::{Rank, Span, Time};
use rustix::event::PollFlags;

use super::batching::Batching;
use super::conduits::Conduits;
use super::departures::Departures;
use super::executor::Synchronous;
use super::notices::Envelope;
use super::work::At;
use crate::transport::{Arrival, ConnectionName, ReceiveEnd, SendEnd};

/// How long without progress until ranks are first asked whether their calls match.
const ASK_AFTER: Span = Span::from_ms(500);
/// Cached schedules.
const PLANS: usize = 64;

/// A communicator.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: u64,
    /// Its ranks, as ranks of the world.
    pub(super) members: Arc<[u32]>,
    pub(super) machine: RankMachine,
    ends: Vec<ConnectionEnd>,
    /// Calls under way.
    pub(super) calls: VecDeque<Submitted>,
    /// Calls that are over: the number of the first that is not.
    pub(super) done: u64,
    /// Whether slices are unsent, or read from a caller's buffer.
    has_unsent: bool,
    /// How long without progress until ranks are asked again.
    ask_after: Span,
    /// Whether it sends on streams, whose kernel may batch small slices, and when it should.
    can_batch: bool,
    batching: Batching,
    /// A zero-copy slice that could not be read, and why. The control channel may report a better reason within the grace
    /// period.
    unread: Option<(ConnectionId, String)>,
    /// A rank that could not be reached, since when as far as the clock was read, and why. Same grace period.
    unreached: Option<(Rank, Option<Time>, io::Error)>,
    /// Since when something is awaited of a closed connection, as far as the clock was read. Same grace period.
    ended: Option<Time>,
    /// When something last moved on its connections.
    moved: Time,
    spare: Vec<u8>,
    /// Cached schedules, the latest first.
    plans: Vec<Arc<Schedule>>,
    /// Scratch memory of schedules, kept from call to call.
    scratch: Vec<u8>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    to: Connection,
    pub(super) side: Side,
    /// Why it is closed, once it is: an error only if something is still awaited of it.
    pub(super) closed: Option<String>,
}

#[derive(Debug)]
pub(super) enum Side {
    Send(SendEnd),
    Receive(ReceiveEnd),
}

/// A call that was submitted.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// The address of the input.
    pub(crate) input: At,
    /// The address of the output.
    pub(crate) output: At,
    /// The owner of the buffers of a call that nobody waits for.
    pub(crate) keep: Option<KeepAlive>,
    /// When the clock was first read after it was submitted.
    pub(super) began: Option<Time>,
}

/// Owner of the buffers of a call under way.
pub(crate) struct KeepAlive(
    #[expect(dead_code, reason = "it is held, and not looked at")] Box<dyn Any + Send>,
);

impl KeepAlive {
    pub(crate) fn new(buffers: impl Any + Send) -> Self {
        Self(Box::new(buffers))
    }
}

impl std::fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepAlive")
    }
}

impl Context {
    pub(super) fn new(id: u64, members: Arc<[u32]>, machine: RankMachine, shares_cores: bool) -> Self {
        Self {
            id,
            members,
            machine,
            ends: Vec::new(),
            calls: VecDeque::new(),
            done: 0,
            has_unsent: false,
            ask_after: ASK_AFTER,
            can_batch: false,
            batching: Batching::new(shares_cores),
            unread: None,
            unreached: None,
            ended: None,
            moved: Time::ZERO,
            spare: Vec::new(),
            plans: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// A free entry: a communicator of one rank, without calls.
    pub(super) fn unused() -> Self {
        Self::new(0, Arc::new([]), RankMachine::new(Rank(0), 1).synchronous(false), false)
    }

    /// Calls that were submitted since the clock was last read began about now.
    pub(super) fn note_begin(&mut self, now: Time) {
        for call in self.calls.iter_mut().rev().take_while(|call| call.began.is_none()) {
            call.began = Some(now);
        }
    }

    /// Closes it. What it sent is still delivered; its machine can answer what became of its calls.
    pub(super) fn end(self, conduits: &mut Conduits) -> RankMachine {
        for ConnectionEnd { side, .. } in self.ends {
            match side {
                Side::Send(end) => end.retire(conduits.nic()),
                Side::Receive(end) => end.retire(conduits.nic()),
            }
        }
        self.machine
    }

    /// Submits a call. `keep` owns the buffers of a call that nobody waits for.
    pub(super) fn submit(
        &mut self,
        now: Time,
        schedule: &Arc<Schedule>,
        buffers: (At, At),
        keep: Option<KeepAlive>,
    ) -> Result<OperationId, Arc<Failure>> {
        let operation = self.machine.submit(now, schedule)?;
        self.batching.is_one_way = schedule.call.collective.is_one_way();
        self.enter(
            scratch_of(schedule),
            Submitted { input: buffers.0, output: buffers.1, keep, began: None },
        );
        Ok(operation)
    }

    /// Submits a blocking call whose schedule is cached; `None` if it is not. A small one may be over when this returns.
    #[inline]
    pub(super) fn submit_known(
        &mut self,
        now: Time,
        call: &Call,
        (input, output): (At, At),
        conduits: &mut Conduits,
        looks: u32,
    ) -> Option<Result<OperationId, Arc<Failure>>> {
        // The schedule is used in place: an atomic reference count costs a tenth of the time of a small call.
        let found = self.find(call)?;
        self.batching.is_one_way = call.collective.is_one_way();
        let is_busy = self.is_busy() || self.unreached.is_some();
        if !is_busy && self.machine.is_single(&self.plans[found], looks > 1) {
            self.calls.push_back(Submitted { input, output, keep: None, began: None });
            let (machine, mut executor) = self.executor(conduits, looks);
            let made = machine.submit_single(now, &mut executor);
            if executor.unpushed.is_some() {
                executor.batching.call_begins(Instant::now());
                executor.push(executor.calls.is_empty());
            }
            if let Some(operation) = made {
                return Some(Ok(operation));
            }
            self.calls.clear();
        }
        let schedule = &self.plans[found];
        let scratch = scratch_of(schedule);
        let submitted = self.machine.submit(now, schedule);
        if submitted.is_ok() {
            self.enter(scratch, Submitted { input, output, keep: None, began: None });
        }
        Some(submitted)
    }

    /// Queues a call that needs so much scratch memory.
    #[inline]
    fn enter(&mut self, scratch: usize, call: Submitted) {
        if self.scratch.len() < scratch {
            self.scratch.resize(scratch, 0);
        }
        self.calls.push_back(call);
    }

    /// The cached schedule of a call.
    pub(super) fn known(&mut self, call: &Call) -> Option<Arc<Schedule>> {
        self.find(call).map(|found| Arc::clone(&self.plans[found]))
    }

    /// The index of the cached schedule of a call.
    #[inline]
    fn find(&mut self, call: &Call) -> Option<usize> {
        // Mostly it is the one that was used last.
        if self.plans.first()?.call != *call {
            let found = self.plans.iter().position(|plan| plan.call == *call)?;
            self.plans[..=found].rotate_right(1);
        }
        Some(0)
    }

    pub(super) fn keep(&mut self, schedule: &Arc<Schedule>) {
        self.plans.truncate(PLANS - 1);
        self.plans.insert(0, Arc::clone(schedule));
    }

    /// Whether it has to be polled.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.calls.is_empty() || self.has_unsent
    }

    /// Whether a call is over, and all that it sent has left this process.
    #[inline]
    pub(super) fn is_done(&self, operation: OperationId) -> bool {
        self.done > operation.0 && !self.has_unsent
    }

    /// Executes the outputs of the machine. Notices to other ranks go to `post`. Whether any work was done.
    pub(super) fn drain(
        &mut self,
        now: Time,
        conduits: &mut Conduits,
        post: &mut dyn FnMut(Envelope),
    ) -> bool {
        let mut moved = false;
        loop {
            // A connection could not be opened: nothing more can be done until the reason is known.
            if self.unreached.is_some() && self.machine.failure().is_none() {
                return moved;
            }
            let Some(output) = self.machine.poll_output() else {
                moved |= self.proceed(now, conduits);
                match self.machine.poll_output() {
                    Some(output) => self.execute_output(output, conduits, post),
                    None => return moved,
                }
                continue;
            };
            self.execute_output(output, conduits, post);
        }
    }

    /// Executes the work of its calls as far as possible.
    #[inline]
    fn proceed(&mut self, now: Time, conduits: &mut Conduits) -> bool {
        let (machine, mut executor) = self.executor(conduits, 1);
        let moved = machine.proceed(now, &mut executor);
        executor.push(executor.calls.is_empty());
        moved
    }

    /// A call has to wait for something.
    #[inline]
    pub(super) fn begin_wait(&mut self) {
        if self.can_batch {
            self.batching.call_begins(Instant::now());
        }
    }

    /// The wait is over.
    #[inline]
    pub(super) fn end_wait(&mut self) {
        if self.can_batch {
            self.batching.call_ends(Instant::now());
        }
    }

    /// Has the kernel send the slices it holds.
    pub(super) fn flush_held(&mut self) {
        if std::mem::take(&mut self.batching.is_holding) {
            let held = self.ends.iter_mut().filter_map(|end| match &mut end.side {
                Side::Send(end) => end.flush_held(),
                Side::Receive(_) => None,
            });
            if held.max() == Some(0) {
                self.batching.held_in_vain();
            }
        }
    }

    /// The machine, and the executor of its work. So many polls of shared memory in a row are worth it.
    #[inline(always)]
    fn executor<'a>(
        &'a mut self,
        conduits: &'a mut Conduits,
        polls: u32,
    ) -> (&'a mut RankMachine, Synchronous<'a>) {
        let Self { ends, calls, done, has_unsent, batching, unread, spare, scratch, machine, .. } = self;
        let ranks = machine.ranks();
        let unpushed = None;
        let executor = Synchronous {
            ends,
            calls,
            done,
            has_unsent,
            batching,
            unread,
            spare,
            scratch,
            conduits,
            ranks,
            polls,
            unpushed,
        };
        (machine, executor)
    }

    /// Executes an output that is no work.
    #[cold]
    fn execute_output(&mut self, output: Output, conduits: &mut Conduits, post: &mut dyn FnMut(Envelope)) {
        let is_failed = self.machine.failure().is_some();
        match output {
            Output::Expect(_) | Output::Connect { .. } if is_failed => {}
            Output::Expect(expect) => {
                if let Side::Receive(end) = &mut self.ends[expect.connection.0 as usize].side {
                    end.expect(expect, conduits.nic());
                }
            }
            Output::Connect { to, direction, .. } => {
                let Peer::Rank(rank) = to.peer else { unreachable!("real ranks have no switch") };
                if let Err(error) = self.connect(to, rank, direction, conduits) {
                    self.unreached = Some((Rank(rank), None, error));
                }
            }
            Output::Notice { to, notice } => {
                let members = self.members.to_vec();
                post(Envelope { context: self.id, to, from: self.machine.rank(), members, notice: *notice });
            }
            // Buffers and slots are not touched any more.
            Output::Failed(_) => {
                self.calls.clear();
                for ConnectionEnd { side, .. } in self.ends.drain(..) {
                    match side {
                        Side::Send(end) => end.close(conduits.nic()),
                        Side::Receive(end) => end.close(conduits.nic()),
                    }
                }
                (self.has_unsent, self.batching.is_holding) = (false, false);
            }
            Output::Work(_) | Output::Filled(_) | Output::Emptied { .. } | Output::Finished(_) => {
                unreachable!("the executor is synchronous")
            }
        }
    }

    fn connect(
        &mut self,
        to: Connection,
        rank: u32,
        direction: Direction,
        conduits: &mut Conduits,
    ) -> io::Result<()> {
        let peer = self.members[rank as usize];
        let side = match direction {
            Direction::Send => {
                let from = self.members[self.machine.rank().0 as usize];
                Side::Send(conduits.connect(peer, name_of(self.id, from, to))?)
            }
            Direction::Receive => Side::Receive(conduits.accept(name_of(self.id, peer, to))?),
        };
        self.can_batch |= matches!(&side, Side::Send(end) if end.can_batch());
        self.ends.push(ConnectionEnd { to, side, closed: None });
        Ok(())
    }

    /// Polls connections: all of them, or not streams from which nothing is awaited. To poll a stream is a system call, and a
    /// rank may have many. Whether anything moved.
    pub(super) fn poll(&mut self, now: Time, conduits: &mut Conduits, all: bool) -> bool {
        let Self { ends, machine, id, members, has_unsent, calls, moved: last_moved, .. } = self;
        let mut moved = false;
        *has_unsent = false;
        for (index, ConnectionEnd { to, side, closed }) in ends.iter_mut().enumerate() {
            if closed.is_some() {
                continue;
            }
            let connection = ConnectionId(index as u32);
            let polls_kernel = matches!(side, Side::Receive(end) if end.polls_kernel());
            if polls_kernel && !all && !machine.is_awaited(connection) {
                continue;
            }
            let outcome = match side {
                Side::Send(end) => end.freed(conduits.nic()).map(|(count, heard)| {
                    if let Some(mark) = heard {
                        machine.heard(now, connection, mark);
                    }
                    for _ in 0..count {
                        machine.freed(now, connection);
                    }
                    moved |= count > 0;
                    *has_unsent |= end.has_unsent();
                }),
                Side::Receive(end) => loop {
                    if !end.is_connected() {
                        let Peer::Rank(rank) = to.peer else { break Ok(()) };
                        match conduits.accept(name_of(*id, members[rank as usize], *to)) {
                            Ok(found) => *end = found,
                            Err(error) => break Err(error),
                        }
                    }
                    match end.arrived(conduits.nic()) {
                        Ok(Arrival::Asked) => {
                            machine.arrived(now, connection);
                            moved = true;
                        }
                        Ok(Arrival::Slice(mark)) => {
                            machine.heard(now, connection, mark);
                            machine.arrived(now, connection);
                            moved = true;
                        }
                        Ok(Arrival::Nothing) => break Ok(()),
                        Ok(Arrival::End) => {
                            *closed = Some("it was closed at the other end".to_owned());
                            break Ok(());
                        }
                        Err(error) => break Err(error),
                    }
                },
            };
            if let Err(error) = outcome {
                *closed = Some(error.to_string());
            }
        }
        if moved || !calls.is_empty() || !*has_unsent {
            *last_moved = now;
        }
        moved
    }

    /// No progress for a while: asks the other ranks whether their calls match. Ranks may well wait for each other, so that the
    /// interval doubles each time.
    pub(super) fn ask_if_calls_match(&mut self, now: Time) {
        if now.since(self.machine.last_progress()) > self.ask_after {
            self.ask_after = self.ask_after * 2;
            self.machine.doubt(now);
        }
    }

    /// A timeout after all calls are over for this rank: what they sent was not received.
    pub(super) fn check_unsent(&mut self, now: Time, limit: Span) {
        if !self.calls.is_empty() || !self.has_unsent || now.since(self.moved) <= limit {
            return;
        }
        let is_full = |end: &ConnectionEnd| matches!(&end.side, Side::Send(end) if end.has_unsent());
        if let Some(index) = self.ends.iter().position(is_full) {
            let seconds = limit.as_ps() as f64 / 1e12;
            let reason = format!("the other end has not taken what was sent to it for {seconds:.1} s");
            self.machine.broken(ConnectionId(index as u32), reason);
        }
    }

    /// The call that is under way, and what it waits for, in words.
    pub(super) fn awaited(&self) -> Option<(String, String)> {
        let what = self.machine.waiting_for().first()?.to_string();
        let call = self.machine.submitted_call()?;
        Some((call, what))
    }

    /// Whether it waits for the reason why it could not reach a rank.
    pub(super) fn cannot_reach(&self, rank: Rank) -> bool {
        self.unreached.as_ref().is_some_and(|(unreached, ..)| *unreached == rank)
    }

    /// A timeout after a rank could not be reached and was not reported as lost: the error is final.
    pub(super) fn check_reach(&mut self, now: Time, grace: Span, departures: &Departures) {
        let Some((rank, since, error)) = &mut self.unreached else { return };
        if now.since(*since.get_or_insert(now)) > grace {
            match departures.of(self.members[rank.0 as usize]) {
                Some(reason) => self.machine.departed(*rank, reason.departure(&self.members)),
                None => self.machine.cannot_connect(is_of_peer(error).then_some(*rank), error.to_string()),
            }
        }
    }

    /// A timeout after a connection was closed of which something is awaited, and no reason was reported.
    pub(super) fn check_ends(&mut self, now: Time, grace: Span, departures: &Departures) {
        let Some((connection, reason)) = self.ended() else {
            self.ended = None;
            return;
        };
        if now.since(*self.ended.get_or_insert(now)) <= grace {
            return;
        }
        let departed = match self.ends[connection.0 as usize].to.peer {
            Peer::Rank(rank) => departures.of(self.members[rank as usize]).map(|reason| (Rank(rank), reason)),
            Peer::Switch(_) => None,
        };
        match departed {
            Some((rank, why)) => self.machine.departed(rank, why.departure(&self.members)),
            None => self.machine.broken(connection, reason),
        }
    }

    /// The closed connection of which something is awaited, and why it was closed.
    fn ended(&self) -> Option<(ConnectionId, String)> {
        if self.unread.is_some() || self.ends.iter().all(|end| end.closed.is_none()) {
            return self.unread.clone();
        }
        let waits = self.machine.waiting_for();
        let is_awaited = |end: &ConnectionEnd| {
            let is_it = |wait: &Wait| match wait.what {
                WaitingFor::Data(peer, channel) | WaitingFor::Room(peer, channel) => {
                    (peer, channel) == (end.to.peer, end.to.channel)
                }
                _ => false,
            };
            waits.iter().any(is_it)
        };
        let mut ended =
            (0..).zip(&self.ends).filter_map(|(index, end)| Some((index, end, end.closed.as_ref()?)));
        let found = ended.find(|(_, end, _)| is_awaited(end));
        found.map(|(index, _, reason)| (ConnectionId(index), reason.clone()))
    }

    /// The streams that it waits for, and for which event.
    pub(super) fn streams(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.ends.iter().filter(|end| end.closed.is_none()).filter_map(|end| match &end.side {
            Side::Send(end) => Some((end.writable_fd()?, PollFlags::OUT)),
            Side::Receive(end) => Some((end.readable_fd()?, PollFlags::IN)),
        })
    }

    /// The rank of this communicator that a rank of the world has.
    pub(super) fn rank_of(&self, world: u32) -> Option<Rank> {
        self.members.iter().position(|member| *member == world).map(|rank| Rank(rank as u32))
    }
}

/// The name of a connection of a communicator, by the rank of the world that sends.
const fn name_of(context: u64, from: u32, to: Connection) -> ConnectionName {
    ConnectionName { context, from, channel: to.channel, lane: to.lane }
}

/// Bytes of scratch memory that a schedule needs.
#[inline]
fn scratch_of(schedule: &Schedule) -> usize {
    schedule.call.dtype.bytes(schedule.scratch).0 as usize
}

/// Whether an error is due to the peer, and not to this process or its kernel.
fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable,
        NetworkUnreachable, NotConnected, TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe
            | ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | NotConnected
            | TimedOut
    )
}

#[cfg(test)]
mod tests {
    use railnet_coll::machine::Failure;
    use railnet_coll::{Algorithm, Choice, Collective, Protocol, Wiring, build};

    use super::*;

    /// A rank that waits for data of another, which has closed the connection.
    fn forsaken(now: Time) -> Context {
        let call = Call::new(Collective::Broadcast, 100);
        let choice = Choice::new(Algorithm::Ring, Protocol::Simple);
        let schedule = Arc::new(build(&call, &choice, &Wiring::flat(2)).unwrap());
        let mut context = Context::new(0, Arc::new([0, 1]), RankMachine::new(Rank(1), 2), false);
        context.machine.submit(now, &schedule).unwrap();
        while let Some(output) = context.machine.poll_output() {
            if let Output::Connect { to, .. } = output {
                let closed = Some("it was closed at the other end".to_owned());
                context.ends.push(ConnectionEnd { to, side: Side::Receive(ReceiveEnd::Unconnected), closed });
            }
        }
        context
    }

    /// The others may have given up because of a third rank, and report that a moment after they have closed their connections.
    #[test]
    fn a_connection_that_is_over_waits_for_the_reason_from_when_that_is_seen() {
        let grace = Span::from_ps(1000);
        let mut context = forsaken(Time::ZERO);
        // Even if the call has made no progress for long by then.
        let seen = Time::from_ps(1_000_000);
        let departures = Departures::default();
        context.check_ends(seen, grace, &departures);
        context.check_ends(seen + grace, grace, &departures);
        assert!(context.machine.failure().is_none());
        context.check_ends(seen + grace + Span::from_ps(1), grace, &departures);
        let failure = context.machine.failure().unwrap();
        assert!(matches!(**failure, Failure::Broken { .. }), "{failure}");
    }
}
