//! A communicator inside the engine: its machine, the ends of its connections, and the buffers of its calls.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use railnet_coll::machine::{
    ConnectionId, Direction, Failure, OperationId, Output, RankMachine, Wait, WaitingFor,
};
use railnet_coll::{Call, Connection, Peer, Schedule};
use railnet_core::{Rank, Span, Time};
use rustix::event::PollFlags;

use super::conduits::Conduits;
use super::departures::Departures;
use super::hands::Worker;
use super::notices::Letter;
use super::pace::Pace;
use super::work::At;
use crate::conduit::{Arrival, ReceiveEnd, SendEnd};
use crate::tcp;

/// After how long without progress ranks are asked for the first time whether they mean the same.
const FIRST_DOUBT: Span = Span::from_ms(500);
/// Schedules that are kept for calls that are made again.
const PLANS: usize = 64;

/// A communicator.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: u64,
    /// The ranks of the world that its ranks are.
    pub(super) members: Arc<[u32]>,
    pub(super) machine: RankMachine,
    ends: Vec<End>,
    /// Calls under way.
    pub(super) calls: VecDeque<Submitted>,
    /// Calls that are over: the number of the first that is not.
    pub(super) done: u64,
    /// Whether slices are not all with the system that carries them.
    has_unsent: bool,
    /// After how long without progress it asks whether ranks mean the same.
    doubts_after: Span,
    /// Whether it has streams that it sends on, and how calls follow each other there.
    has_streams: bool,
    pace: Pace,
    /// What a rank has lent and could not be read, and why: its end is told of in better words, if there is one.
    unread: Option<(ConnectionId, String)>,
    /// A rank that could not be reached, since when where the clock was looked at, and why: the same.
    unreached: Option<(Rank, Option<Time>, io::Error)>,
    /// Since when something is expected of a connection that can carry nothing any more, as far as the clock was looked at: the same.
    ended: Option<Time>,
    /// When something last happened at its connections.
    moved: Time,
    spare: Vec<u8>,
    /// Schedules of calls that may be made again, the latest first.
    plans: Vec<Arc<Schedule>>,
    /// Memory for schedules that need some, kept from call to call.
    scratch: Vec<u8>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    to: Connection,
    pub(super) way: Way,
    /// It can carry nothing any more, and why: an error only if something is still expected of it.
    pub(super) over: Option<String>,
}

#[derive(Debug)]
pub(super) enum Way {
    Send(SendEnd),
    Receive(ReceiveEnd),
}

/// A call that was submitted.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// Where the input begins.
    pub(crate) input: At,
    /// Where the output begins.
    pub(crate) output: At,
    /// What keeps the buffers alive, where the caller does not wait.
    pub(crate) keep: Option<Keep>,
    /// When the clock was looked at first since it was submitted.
    pub(super) began: Option<Time>,
}

/// Buffers that the engine holds while a call is under way.
pub(crate) struct Keep(#[expect(dead_code, reason = "it is held, and not looked at")] Box<dyn Any + Send>);

impl Keep {
    pub(crate) fn new(buffers: impl Any + Send) -> Self {
        Self(Box::new(buffers))
    }
}

impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keep")
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
            doubts_after: FIRST_DOUBT,
            has_streams: false,
            pace: Pace::new(shares_cores),
            unread: None,
            unreached: None,
            ended: None,
            moved: Time::ZERO,
            spare: Vec::new(),
            plans: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// None at all: nothing is done there, and nobody is in it.
    pub(super) fn vacant() -> Self {
        Self::new(0, Arc::new([]), RankMachine::new(Rank(0), 1).by_hand(false), false)
    }

    /// Calls that were submitted since the clock was looked at last began about now.
    pub(super) fn note_begin(&mut self, now: Time) {
        for call in self.calls.iter_mut().rev().take_while(|call| call.began.is_none()) {
            call.began = Some(now);
        }
    }

    /// Ends it. What it sent is still on its way, and its machine knows what it did.
    pub(super) fn end(self, conduits: &mut Conduits) -> RankMachine {
        for End { way, .. } in self.ends {
            match way {
                Way::Send(end) => end.retire(conduits.nic()),
                Way::Receive(end) => end.retire(conduits.nic()),
            }
        }
        self.machine
    }

    /// Submits a call: input and output begin here. Where nobody waits for it, something keeps them alive.
    pub(super) fn submit(
        &mut self,
        now: Time,
        schedule: &Arc<Schedule>,
        buffers: (At, At),
        keep: Option<Keep>,
    ) -> Result<OperationId, Arc<Failure>> {
        let operation = self.machine.submit(now, schedule)?;
        self.pace.is_one_way = schedule.call.collective.is_one_way();
        self.enter(
            scratch_of(schedule),
            Submitted { input: buffers.0, output: buffers.1, keep, began: None },
        );
        Ok(operation)
    }

    /// Submits a call that was made before and that somebody will wait for; nothing if it is new. A small one may be over when
    /// this returns.
    #[inline]
    pub(super) fn submit_known(
        &mut self,
        now: Time,
        call: &Call,
        (input, output): (At, At),
        conduits: &mut Conduits,
        looks: u32,
    ) -> Option<Result<OperationId, Arc<Failure>>> {
        // The schedule is used where it lies: to count who holds it takes a tenth of the time of a small call.
        let found = self.find(call)?;
        self.pace.is_one_way = call.collective.is_one_way();
        let is_busy = self.is_busy() || self.unreached.is_some();
        if !is_busy && self.machine.is_single(&self.plans[found], looks > 1) {
            self.calls.push_back(Submitted { input, output, keep: None, began: None });
            let (machine, mut worker) = self.hands(conduits, looks);
            let made = machine.at_once(now, &mut worker);
            if worker.unpushed.is_some() {
                worker.pace.comes(Instant::now());
                worker.push(worker.calls.is_empty());
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

    /// A call was submitted that needs so much memory.
    #[inline]
    fn enter(&mut self, scratch: usize, call: Submitted) {
        if self.scratch.len() < scratch {
            self.scratch.resize(scratch, 0);
        }
        self.calls.push_back(call);
    }

    /// The schedule of a call that was made before.
    pub(super) fn known(&mut self, call: &Call) -> Option<Arc<Schedule>> {
        self.find(call).map(|found| Arc::clone(&self.plans[found]))
    }

    /// Where the schedule of a call is that was made before.
    #[inline]
    fn find(&mut self, call: &Call) -> Option<usize> {
        // Mostly it is the one that was made last.
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

    /// Whether there is something to do for it.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.calls.is_empty() || self.has_unsent
    }

    /// Whether a call is over, and what it sends needs this process no more.
    #[inline]
    pub(super) fn is_done(&self, operation: OperationId) -> bool {
        self.done > operation.0 && !self.has_unsent
    }

    /// Does what the machine asks for. Letters to other ranks go to `post`. Whether anything of its calls was done.
    pub(super) fn drain(&mut self, now: Time, conduits: &mut Conduits, post: &mut dyn FnMut(Letter)) -> bool {
        let mut moved = false;
        loop {
            // Without one of its connections nothing more can be done, until it is known why.
            if self.unreached.is_some() && self.machine.failure().is_none() {
                return moved;
            }
            let Some(output) = self.machine.poll_output() else {
                moved |= self.proceed(now, conduits);
                match self.machine.poll_output() {
                    Some(output) => self.obey(output, conduits, post),
                    None => return moved,
                }
                continue;
            };
            self.obey(output, conduits, post);
        }
    }

    /// Does what can be done of its calls.
    #[inline]
    fn proceed(&mut self, now: Time, conduits: &mut Conduits) -> bool {
        let (machine, mut worker) = self.hands(conduits, 1);
        let moved = machine.proceed(now, &mut worker);
        worker.push(worker.calls.is_empty());
        moved
    }

    /// A call has to wait for something.
    #[inline]
    pub(super) fn begin_wait(&mut self) {
        if self.has_streams {
            self.pace.comes(Instant::now());
        }
    }

    /// It is over.
    #[inline]
    pub(super) fn end_wait(&mut self) {
        if self.has_streams {
            self.pace.leaves(Instant::now());
        }
    }

    /// Has the system send what it holds back.
    pub(super) fn let_go(&mut self) {
        if std::mem::take(&mut self.pace.is_holding) {
            let streams = self.ends.iter_mut().filter_map(|end| match &mut end.way {
                Way::Send(SendEnd::Tcp(end)) => Some(end),
                _ => None,
            });
            if streams.filter_map(tcp::Sender::let_go).max() == Some(0) {
                self.pace.is_wrong();
            }
        }
    }

    /// The machine, and the hands that do its work; so many looks into memory in a row are worth it.
    #[inline(always)]
    fn hands<'a>(&'a mut self, conduits: &'a mut Conduits, looks: u32) -> (&'a mut RankMachine, Worker<'a>) {
        let Self { ends, calls, done, has_unsent, pace, unread, spare, scratch, machine, .. } = self;
        let ranks = machine.ranks();
        let unpushed = None;
        let worker = Worker {
            ends,
            calls,
            done,
            has_unsent,
            pace,
            unread,
            spare,
            scratch,
            conduits,
            ranks,
            looks,
            unpushed,
        };
        (machine, worker)
    }

    /// Does what is not work.
    #[cold]
    fn obey(&mut self, output: Output, conduits: &mut Conduits, post: &mut dyn FnMut(Letter)) {
        let is_failed = self.machine.failure().is_some();
        match output {
            Output::Expect(_) | Output::Connect { .. } if is_failed => {}
            Output::Expect(expect) => {
                if let Way::Receive(end) = &mut self.ends[expect.connection.0 as usize].way {
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
                post(Letter { context: self.id, to, from: self.machine.rank(), members, notice: *notice });
            }
            // Nothing of these will be touched again.
            Output::Failed(_) => {
                self.calls.clear();
                for End { way, .. } in self.ends.drain(..) {
                    match way {
                        Way::Send(end) => end.close(conduits.nic()),
                        Way::Receive(end) => end.close(conduits.nic()),
                    }
                }
                (self.has_unsent, self.pace.is_holding) = (false, false);
            }
            Output::Work(_) | Output::Filled(_) | Output::Emptied { .. } | Output::Finished(_) => {
                unreachable!("its work is done on the spot")
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
        let way = match direction {
            Direction::Send => Way::Send(conduits.sender(self.id, peer, to.channel, to.lane)?),
            Direction::Receive => Way::Receive(conduits.receiver(self.id, peer, to.channel, to.lane)?),
        };
        self.has_streams |= matches!(way, Way::Send(SendEnd::Tcp(_)));
        self.ends.push(End { to, way, over: None });
        Ok(())
    }

    /// Looks at connections: at all of them, or not at streams from which nothing is awaited. To look at such a stream takes a
    /// system call, and a rank may have many of them. Whether anything happened.
    pub(super) fn poll(&mut self, now: Time, conduits: &mut Conduits, all: bool) -> bool {
        let Self { ends, machine, id, members, has_unsent, calls, moved: last_moved, .. } = self;
        let mut moved = false;
        *has_unsent = false;
        for (index, End { to, way, over }) in ends.iter_mut().enumerate() {
            if over.is_some() {
                continue;
            }
            let connection = ConnectionId(index as u32);
            let is_stream = matches!(way, Way::Receive(ReceiveEnd::Tcp(_) | ReceiveEnd::Awaited));
            if is_stream && !all && !machine.is_awaited(connection) {
                continue;
            }
            let outcome = match way {
                Way::Send(end) => end.freed(conduits.nic()).map(|(count, heard)| {
                    if let Some(mark) = heard {
                        machine.heard(now, connection, mark);
                    }
                    for _ in 0..count {
                        machine.freed(now, connection);
                    }
                    moved |= count > 0;
                    *has_unsent |= end.has_unsent();
                }),
                Way::Receive(end) => loop {
                    if matches!(end, ReceiveEnd::Awaited) {
                        let Peer::Rank(rank) = to.peer else { break Ok(()) };
                        match conduits.receiver(*id, members[rank as usize], to.channel, to.lane) {
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
                            *over = Some("it was closed at the other end".to_owned());
                            break Ok(());
                        }
                        Err(error) => break Err(error),
                    }
                },
            };
            if let Err(error) = outcome {
                *over = Some(error.to_string());
            }
        }
        if moved || !calls.is_empty() || !*has_unsent {
            *last_moved = now;
        }
        moved
    }

    /// Nothing has moved for a while: the others are asked whether they mean the same calls. Ranks may well wait for each other, so it
    /// is asked half as often each time.
    pub(super) fn doubt(&mut self, now: Time) {
        if now.since(self.machine.last_progress()) > self.doubts_after {
            self.doubts_after = self.doubts_after * 2;
            self.machine.doubt(now);
        }
    }

    /// All calls are over for this rank, but what they sent was not taken for so long: somebody has to be told of it.
    pub(super) fn check_unsent(&mut self, now: Time, limit: Span) {
        if !self.calls.is_empty() || !self.has_unsent || now.since(self.moved) <= limit {
            return;
        }
        let is_full = |end: &End| matches!(&end.way, Way::Send(end) if end.has_unsent());
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

    /// Whether it waits to hear why it could not reach a rank.
    pub(super) fn cannot_reach(&self, rank: Rank) -> bool {
        self.unreached.as_ref().is_some_and(|(unreached, ..)| *unreached == rank)
    }

    /// A rank could not be reached, and nobody has said for so long that it is lost: whatever it is, it is the end.
    pub(super) fn check_reach(&mut self, now: Time, patience: Span, departures: &Departures) {
        let Some((rank, since, error)) = &mut self.unreached else { return };
        if now.since(*since.get_or_insert(now)) > patience {
            match departures.of(self.members[rank.0 as usize]) {
                Some(reason) => self.machine.departed(*rank, reason.departure(&self.members)),
                None => self.machine.cannot_connect(is_of_peer(error).then_some(*rank), error.to_string()),
            }
        }
    }

    /// Whether something is expected of a connection that can carry nothing any more, and nobody has said for so long why.
    pub(super) fn check_ends(&mut self, now: Time, patience: Span, departures: &Departures) {
        let Some((connection, reason)) = self.ended() else {
            self.ended = None;
            return;
        };
        if now.since(*self.ended.get_or_insert(now)) <= patience {
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

    /// The connection of which something is expected that it cannot carry any more, and why.
    fn ended(&self) -> Option<(ConnectionId, String)> {
        if self.unread.is_some() || self.ends.iter().all(|end| end.over.is_none()) {
            return self.unread.clone();
        }
        let waits = self.machine.waiting_for();
        let is_awaited = |end: &End| {
            let is_it = |wait: &Wait| match wait.what {
                WaitingFor::Data(peer, channel) | WaitingFor::Room(peer, channel) => {
                    (peer, channel) == (end.to.peer, end.to.channel)
                }
                _ => false,
            };
            waits.iter().any(is_it)
        };
        let mut ended =
            (0..).zip(&self.ends).filter_map(|(index, end)| Some((index, end, end.over.as_ref()?)));
        let found = ended.find(|(_, end, _)| is_awaited(end));
        found.map(|(index, _, reason)| (ConnectionId(index), reason.clone()))
    }

    /// The streams that may bring it on, and what it waits for there.
    pub(super) fn streams(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.ends.iter().filter(|end| end.over.is_none()).filter_map(|end| match &end.way {
            Way::Send(SendEnd::Tcp(stream)) if stream.is_waiting() => Some((stream.as_fd(), PollFlags::OUT)),
            Way::Receive(ReceiveEnd::Tcp(stream)) => Some((stream.as_fd(), PollFlags::IN)),
            _ => None,
        })
    }

    /// The rank of this communicator that a rank of the world is.
    pub(super) fn rank_of(&self, world: u32) -> Option<Rank> {
        self.members.iter().position(|member| *member == world).map(|rank| Rank(rank as u32))
    }
}

/// Bytes of scratch memory that a schedule needs.
#[inline]
fn scratch_of(schedule: &Schedule) -> usize {
    schedule.call.dtype.bytes(schedule.scratch).0 as usize
}

/// Whether an error says something of the other end, and not of this process or its system.
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
                let over = Some("it was closed at the other end".to_owned());
                context.ends.push(End { to, way: Way::Receive(ReceiveEnd::Awaited), over });
            }
        }
        context
    }

    /// The others may have given up because of a third rank, and say so a moment after they have closed their connections.
    #[test]
    fn a_connection_that_is_over_waits_for_the_reason_from_when_that_is_seen() {
        let patience = Span::from_ps(1000);
        let mut context = forsaken(Time::ZERO);
        // However long the call has stood still by then.
        let seen = Time::from_ps(1_000_000);
        let departures = Departures::default();
        context.check_ends(seen, patience, &departures);
        context.check_ends(seen + patience, patience, &departures);
        assert!(context.machine.failure().is_none());
        context.check_ends(seen + patience + Span::from_ps(1), patience, &departures);
        let failure = context.machine.failure().unwrap();
        assert!(matches!(**failure, Failure::Broken { .. }), "{failure}");
    }
}
