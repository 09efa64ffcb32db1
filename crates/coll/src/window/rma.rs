//! The part of one rank: its windows, its operations, its signals.

use std::collections::VecDeque;

use railnet_core::event::Sink;
use railnet_core::{Bytes, Label, QueuePairNumber, Rank};
use railnet_nic::memory::Memory;
use railnet_nic::{Completion, Context, Nic, Operation, Remote, SendRequest, Sge, Status};

use super::{ALIGNMENT, At, Awaited, PUT_MAX, Reserved, Rma, WindowError, WindowHandle, WindowId};
use crate::conduit::SlotMemory;
use crate::machine::Tag;

/// Work requests that may be under way to a peer: less than its send queue holds.
const POSTED_MAX: u32 = 64;

/// A group of operations: its number, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RmaOutput {
    /// All operations of a group are over: its sources may be changed, and what it waited for is there.
    Finished(GroupId),
    /// Nothing works any more.
    Failed(WindowError),
}

/// One rank's windows, operations and signals.
#[derive(Debug)]
pub struct Windows {
    rank: u32,
    token: u32,
    /// A word for each rank, in which it counts its signals; and one in which the old value of a peer's word is put.
    signals: SlotMemory,
    /// The parts of each window, by rank.
    parts: Vec<Option<Vec<Option<WindowHandle>>>>,
    peers: Vec<Option<PeerState>>,
    queue: VecDeque<Group>,
    next: u64,
    /// Signals of each rank that waits have used up.
    consumed: Vec<u64>,
    outputs: VecDeque<RmaOutput>,
    failed: bool,
}

#[derive(Debug)]
struct PeerState {
    queue_pair: QueuePairNumber,
    /// The peer's word for signals from this rank.
    signal: Remote,
    posted: u32,
    waiting: VecDeque<SendRequest>,
}

#[derive(Debug)]
struct Group {
    id: GroupId,
    operations: Vec<Rma>,
    is_started: bool,
    /// Work requests that are not complete.
    requests: u32,
    /// Signals that it needs in all from a rank.
    waits: Vec<(u32, u64)>,
}

impl Windows {
    /// Bytes of control memory that a rank among so many needs: real ones, zero at first, that peers may use atomics on.
    pub const fn signal_bytes(ranks: u32) -> u64 {
        (ranks as u64 + 1) * 8
    }

    /// The windows of a rank. Completions of work with this token in its upper half belong here.
    pub fn new(rank: Rank, ranks: u32, token: u32, signals: SlotMemory) -> Self {
        assert!(rank.0 < ranks, "{rank} of {ranks}");
        Self {
            rank: rank.0,
            token,
            signals,
            parts: Vec::new(),
            peers: (0..ranks).map(|_| None).collect(),
            queue: VecDeque::new(),
            next: 0,
            consumed: vec![0; ranks as usize],
            outputs: VecDeque::new(),
            failed: false,
        }
    }

    fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Where a peer counts its signals to this rank: what it has to be given to connect.
    pub fn signal_from(&self, peer: Rank) -> Remote {
        Remote { address: self.signals.address + 8 * u64::from(peer.0), key: self.signals.key }
    }

    /// A queue pair leads to a peer, which has this word for signals from this rank. It must hold 64 work requests.
    pub fn connect(&mut self, peer: Rank, queue_pair: QueuePairNumber, signal: Remote) {
        let state = PeerState { queue_pair, signal, posted: 0, waiting: VecDeque::new() };
        self.peers[peer.0 as usize] = Some(state);
    }

    /// Registers this rank's part of the next window, which the NIC has registered for remote writing.
    pub fn register(&mut self, own: WindowHandle) -> Result<WindowId, WindowError> {
        if !own.address.is_multiple_of(ALIGNMENT) {
            return Err(WindowError::Alignment { address: own.address });
        }
        Ok(self.register_unaligned(own))
    }

    /// The same at any address: the alignment is what GPUs need, and NICs do not.
    pub fn register_unaligned(&mut self, own: WindowHandle) -> WindowId {
        let mut parts = vec![None; self.peers.len()];
        parts[self.rank as usize] = Some(own);
        self.parts.push(Some(parts));
        WindowId(self.parts.len() as u32 - 1)
    }

    /// Another rank has registered its part.
    pub fn registered(&mut self, window: WindowId, by: Rank, part: WindowHandle) -> Result<(), WindowError> {
        let own = Rank(self.rank);
        let parts = self.parts.get_mut(window.0 as usize).and_then(Option::as_mut);
        let parts = parts.ok_or(WindowError::NotRegistered { window, rank: own })?;
        parts[by.0 as usize] = Some(part);
        Ok(())
    }

    /// Forgets a window on this rank. Gives its part, for the NIC to forget too.
    pub fn deregister(&mut self, window: WindowId) -> Result<WindowHandle, WindowError> {
        let own = self.part(window, self.rank)?;
        let uses = |one: &Rma| match one {
            Rma::PutSignal { from, to, .. } | Rma::Put { from, to, .. } | Rma::Get { from, to, .. } => {
                from.window == window || to.window == window
            }
            Rma::Signal { .. } | Rma::WaitSignal(_) => false,
        };
        if self.queue.iter().flat_map(|group| &group.operations).any(uses) {
            return Err(WindowError::Busy { window });
        }
        self.parts[window.0 as usize] = None;
        Ok(own)
    }

    fn part(&self, window: WindowId, rank: u32) -> Result<WindowHandle, WindowError> {
        let parts = self.parts.get(window.0 as usize).and_then(Option::as_ref);
        let part = parts.and_then(|parts| parts[rank as usize]);
        part.ok_or(WindowError::NotRegistered { window, rank: Rank(rank) })
    }

    /// Queues a group of operations; one operation is a group of its own. All of it is checked before any of it is done.
    pub fn submit<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        operations: Vec<Rma>,
    ) -> Result<GroupId, WindowError> {
        operations.iter().try_for_each(|one| self.check(one))?;
        let id = GroupId(self.next);
        self.next += 1;
        let (is_started, requests, waits) = (false, 0, Vec::new());
        self.queue.push_back(Group { id, operations, is_started, requests, waits });
        self.poll(nic, cx);
        Ok(id)
    }

    fn check(&self, operation: &Rma) -> Result<(), WindowError> {
        match operation {
            Rma::PutSignal { peer, from, to, bytes, reserved } => {
                self.check_peer(*peer, *reserved)?;
                self.check_range(*from, *bytes, self.rank)?;
                self.check_range(*to, *bytes, peer.0)
            }
            Rma::Put { peer, from, to, bytes } => {
                self.check_peer(*peer, Reserved::default())?;
                self.check_range(*from, *bytes, self.rank)?;
                self.check_range(*to, *bytes, peer.0)
            }
            Rma::Get { peer, from, to, bytes } => {
                self.check_peer(*peer, Reserved::default())?;
                self.check_range(*from, *bytes, peer.0)?;
                self.check_range(*to, *bytes, self.rank)
            }
            Rma::Signal { peer, reserved } => self.check_peer(*peer, *reserved),
            Rma::WaitSignal(list) => list.iter().try_for_each(|Awaited { peer, count, reserved }| {
                self.check_rank(*peer, *reserved)?;
                if *count == 0 { Err(WindowError::NoSignals { peer: *peer }) } else { Ok(()) }
            }),
        }
    }

    fn check_rank(&self, peer: Rank, reserved: Reserved) -> Result<(), WindowError> {
        let zeroes =
            [("signal index", reserved.signal), ("context", reserved.context), ("flags", reserved.flags)];
        if let Some((what, value)) = zeroes.into_iter().find(|(_, value)| *value != 0) {
            return Err(WindowError::NotZero { what, value });
        }
        let ranks = self.ranks();
        match peer.0 {
            rank if rank >= ranks => Err(WindowError::NoSuchRank { peer, ranks }),
            rank if rank == self.rank => Err(WindowError::Oneself { rank: peer }),
            _ => Ok(()),
        }
    }

    fn check_peer(&self, peer: Rank, reserved: Reserved) -> Result<(), WindowError> {
        self.check_rank(peer, reserved)?;
        self.peers[peer.0 as usize].as_ref().map(|_| ()).ok_or(WindowError::NotConnected { peer })
    }

    fn check_range(&self, at: At, bytes: Bytes, rank: u32) -> Result<(), WindowError> {
        let length = self.part(at.window, rank)?.length;
        match at.offset.checked_add(bytes.0) {
            Some(end) if end <= length.0 => Ok(()),
            _ => Err(WindowError::Outside { at, bytes, rank: Rank(rank), length }),
        }
    }

    /// Goes on where signals have come: call it when control memory was written. It may be called at any time.
    pub fn poll<M: Memory, S: Sink>(&mut self, nic: &mut Nic, cx: &mut Context<'_, M, S>) {
        while !self.failed && !self.queue.is_empty() {
            if !self.queue[0].is_started {
                self.start(nic, cx);
                continue;
            }
            let Self { queue, signals, consumed, outputs, .. } = self;
            let group = &mut queue[0];
            group.waits.retain(|(peer, needed)| {
                let address = signals.address + 8 * u64::from(*peer);
                let mut word = Vec::with_capacity(8);
                cx.memory.read(signals.space, address, 8, &mut word);
                let seen = u64::from_le_bytes(std::array::from_fn(|index| word[index]));
                seen < *needed
            });
            if group.requests > 0 || !group.waits.is_empty() {
                return;
            }
            for one in &group.operations {
                if let Rma::WaitSignal(list) = one {
                    for one in list {
                        consumed[one.peer.0 as usize] += u64::from(one.count);
                    }
                }
            }
            outputs.push_back(RmaOutput::Finished(group.id));
            queue.pop_front();
        }
    }

    /// Begins the first group.
    fn start<M: Memory, S: Sink>(&mut self, nic: &mut Nic, cx: &mut Context<'_, M, S>) {
        let operations = std::mem::take(&mut self.queue[0].operations);
        let (mut requests, mut waits): (u32, Vec<(u32, u64)>) = (0, Vec::new());
        for operation in &operations {
            match operation {
                Rma::PutSignal { peer, from, to, bytes, .. } => {
                    requests += self.copy(*peer, *from, *to, bytes.0, Operation::Write);
                    requests += self.signal(*peer);
                }
                Rma::Put { peer, from, to, bytes } => {
                    requests += self.copy(*peer, *from, *to, bytes.0, Operation::Write);
                }
                Rma::Get { peer, from, to, bytes } => {
                    requests += self.copy(*peer, *to, *from, bytes.0, Operation::Read);
                }
                Rma::Signal { peer, .. } => requests += self.signal(*peer),
                Rma::WaitSignal(list) => {
                    for Awaited { peer, count, .. } in list {
                        let more = u64::from(*count);
                        match waits.iter_mut().find(|(other, _)| *other == peer.0) {
                            Some((_, needed)) => *needed += more,
                            None => waits.push((peer.0, self.consumed[peer.0 as usize] + more)),
                        }
                    }
                }
            }
        }
        for operation in &operations {
            match operation {
                Rma::Put { peer, .. }
                | Rma::Get { peer, .. }
                | Rma::PutSignal { peer, .. }
                | Rma::Signal { peer, .. } => self.post(nic, cx, peer.0),
                Rma::WaitSignal(_) => {}
            }
        }
        if let Some(group) = self.queue.front_mut() {
            (group.operations, group.requests, group.waits, group.is_started) =
                (operations, requests, waits, true);
        }
    }

    fn request(&self, peer: Rank, operation: Operation) -> SendRequest {
        let group = self.queue[0].id.0;
        let work = u64::from(self.token) << 32 | u64::from(peer.0);
        let label = Label::from(Tag { sequence: group, chunk: 0, step: 0 });
        SendRequest { label, ..SendRequest::new(work, operation) }
    }

    /// Queues the WRITEs or READs between this rank's part of a window and a peer's. Gives how many.
    fn copy(
        &mut self,
        peer: Rank,
        here: At,
        there: At,
        bytes: u64,
        operation: fn(Remote) -> Operation,
    ) -> u32 {
        let own = self.part(here.window, self.rank).expect("it was checked");
        let other = self.part(there.window, peer.0).expect("it was checked");
        let mut count = 0;
        for offset in (0..bytes).step_by(PUT_MAX as usize) {
            let remote = Remote { address: other.address + there.offset + offset, key: other.key };
            let length = (bytes - offset).min(PUT_MAX) as u32;
            let sge = Sge { address: own.address + here.offset + offset, length, key: own.key };
            let request = self.request(peer, operation(remote)).with(sge);
            self.peer(peer).waiting.push_back(request);
            count += 1;
        }
        count
    }

    fn signal(&mut self, peer: Rank) -> u32 {
        let remote = self.peer(peer).signal;
        let address = self.signals.address + 8 * u64::from(self.ranks());
        let old = Sge { address, length: 8, key: self.signals.key };
        let request = self.request(peer, Operation::FetchAdd { remote, add: 1 }).with(old);
        self.peer(peer).waiting.push_back(request);
        1
    }

    fn peer(&mut self, peer: Rank) -> &mut PeerState {
        self.peers[peer.0 as usize].as_mut().expect("it was checked")
    }

    /// Posts what a peer's queue takes.
    fn post<M: Memory, S: Sink>(&mut self, nic: &mut Nic, cx: &mut Context<'_, M, S>, peer: u32) {
        let Some(state) = &mut self.peers[peer as usize] else { return };
        while state.posted < POSTED_MAX
            && let Some(request) = state.waiting.pop_front()
        {
            state.posted += 1;
            if let Err(error) = nic.post_send(cx, state.queue_pair, request) {
                self.fail(WindowError::Post { peer: Rank(peer), error });
                return;
            }
        }
    }

    /// A completion of work with this token.
    pub fn completed<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        completion: &Completion,
    ) {
        let peer = completion.work as u32;
        if completion.status != Status::Success {
            self.fail(WindowError::Failed { peer: Rank(peer), status: completion.status });
        }
        if self.failed {
            return;
        }
        self.peer(Rank(peer)).posted -= 1;
        // Groups run one after the other: only the first one has work under way.
        self.queue[0].requests -= 1;
        self.post(nic, cx, peer);
        self.poll(nic, cx);
    }

    fn fail(&mut self, error: WindowError) {
        if !self.failed {
            self.failed = true;
            self.queue.clear();
            self.outputs.push_back(RmaOutput::Failed(error));
        }
    }

    /// What has happened.
    #[must_use = "what is not looked at is lost"]
    pub fn poll_output(&mut self) -> Option<RmaOutput> {
        self.outputs.pop_front()
    }

    /// Groups that are not over.
    pub fn unfinished(&self) -> usize {
        self.queue.len()
    }
}
