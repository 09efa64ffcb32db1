//! Shared memory between the ranks of one host: each has a segment into which the others write slices for it.

mod atomics;
mod core_latency;
mod directory;
pub(crate) mod fd_passing;
#[cfg(test)]
mod model;
pub(crate) mod peer_process;
pub(crate) mod ring;
pub(crate) mod segment;
mod transport;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use railnet_coll::machine::Mark;
use rustix::event::EventfdFlags;

use crate::transport::ConnectionName;
use crate::transport::limits::DEPTH;
use atomics::AtomicMemory;
use core_latency::CoreLatency;
use fd_passing::{FdServer, Token};
use peer_process::PeerProcess;
use ring::{End, Found, LineSlot, Rings, SlotKind};
use segment::Segment;

/// How long another rank may take to pass its descriptors.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A sender that waits for its oldest slot gets the credit, however few more slices the receiver takes.
const fn are_rings_sound<M: AtomicMemory>() -> bool {
    M::CREDIT_INTERVAL + M::LONG_SLOTS <= M::SHORT_SLOTS
        && M::SHORT_SLOTS <= M::LINES
        && M::LONG_SLOTS <= DEPTH as u64
        && DEPTH <= u8::BITS
}
const _: () = assert!(are_rings_sound::<Segment>());
/// Pause instructions after a poll that found nothing in a line that several slices share: some 200 ns. A receiver that polls
/// again at once takes the line from the sender once for each slice in it, and never falls behind: then a Broadcast of 8 B
/// takes 100 ns for 83 between cores that share a cache, and 218 for 118 between others.
const SPINS_AFTER_MISS: u32 = 16;
/// Prefetch distance in lines: as many transfers are in flight between two cores at once.
const PREFETCH_DISTANCE: u64 = 4;

/// The shared memory of this rank, and what it needs to reach that of others.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    /// How many ranks share this host.
    ranks: usize,
    own: Arc<Segment>,
    doorbell: OwnedFd,
    peers: BTreeMap<u32, Peer>,
    /// How many slices have arrived over all connections.
    arrivals: Arc<AtomicU64>,
    /// A number that peers read at its address to find out whether they can read this process's memory.
    #[expect(dead_code, reason = "it is looked at by others")]
    probe: Box<u64>,
}

/// Another rank of this host.
#[derive(Debug)]
struct Peer<M = Segment> {
    segment: Arc<M>,
    doorbell: Arc<OwnedFd>,
    /// Its process, if this one can read its memory.
    process: Option<PeerProcess>,
    /// Whether it can read this one's memory.
    reads: bool,
}

impl SharedMemory {
    /// Address space of a segment, most of which is never touched.
    pub(crate) const BYTES: usize = ring::SEGMENT;

    /// Creates this rank's own segment. So many ranks are on this host.
    pub(crate) fn new(ranks: usize) -> io::Result<Self> {
        let own = Segment::create(ring::SEGMENT)?;
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let probe = Box::new(u64::from_ne_bytes(crate::secret::random()?));
        ring::set_probe(&own, std::ptr::from_ref(&*probe) as u64, *probe);
        let (own, arrivals) = (Arc::new(own), Arc::default());
        Ok(Self { ranks, own, doorbell, peers: BTreeMap::new(), arrivals, probe })
    }

    /// Fetches the segments of other ranks of this host, and passes out its own meanwhile, until `agree` has heard from all
    /// which ranks they have reached. Some may be unreachable: in another container. Where the pid of a rank is given, it is
    /// tried whether its whole memory can be read too.
    pub(crate) fn exchange<T>(
        &mut self,
        counter: &FdServer,
        others: &BTreeMap<u32, (Token, Option<u32>)>,
        limit: Duration,
        agree: impl FnOnce(&Self) -> T,
    ) -> io::Result<T> {
        let stop = AtomicBool::new(false);
        let (own, doorbell) = (Arc::clone(&self.own), self.doorbell.try_clone()?);
        std::thread::scope(|scope| {
            let serve = || counter.serve(&[own.as_fd(), doorbell.as_fd()], &stop);
            let server = crate::thread::spawn_scoped(scope, "railnet-handover", serve)?;
            let mut exhausted = None;
            for (rank, (token, process)) in others {
                let fetched = fd_passing::fetch(token, limit.min(HANDOVER_TIMEOUT))
                    .and_then(|(file, doorbell)| Ok((Segment::open(file)?, doorbell)));
                if let Some(error) = fetched.as_ref().err().filter(|error| fd_passing::is_exhaustion(error)) {
                    exhausted = Some(io::Error::new(error.kind(), error.to_string()));
                    break;
                }
                if let Ok((segment, doorbell)) = fetched {
                    let (address, number) = ring::probe(&segment);
                    let process = process.and_then(|process| PeerProcess::find(process, address, number));
                    let (segment, doorbell) = (Arc::new(segment), Arc::new(doorbell));
                    self.peers.insert(*rank, Peer { segment, doorbell, process, reads: false });
                }
            }
            let exhausted = exhausted.map_or_else(fd_passing::check_spare, Err);
            let agreed = exhausted.map(|()| agree(self));
            stop.store(true, Ordering::Release);
            server.join().map_err(|_| io::Error::other("handing over shared memory failed"))?;
            agreed
        })
    }

    /// The ranks whose segments it has, and whether it can read their whole memory too.
    pub(crate) fn reached(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        self.peers.iter().map(|(rank, peer)| (*rank, peer.process.is_some()))
    }

    /// A rank can read all of this process's memory.
    pub(crate) fn set_reader(&mut self, rank: u32) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.reads = true;
        }
    }

    /// Sets whether this rank blocks on its doorbell alone.
    fn set_blocked(&self, is_blocked: bool) {
        ring::set_blocked(&self.own, is_blocked);
        if !is_blocked {
            let mut count = [0; 8];
            // EAGAIN: nobody rang.
            let _ = rustix::io::read(&self.doorbell, &mut count);
        }
    }

    /// Opens the sending end of a connection to a rank.
    fn sender(&self, to: u32, name: ConnectionName) -> io::Result<Sender> {
        let peer = self.peers.get(&to).ok_or(io::ErrorKind::NotFound)?.clone();
        let rings = Rings::open(&peer.segment, name, End::Sender, self.ranks)?;
        Ok(Sender::new(rings, peer, Arc::clone(&self.arrivals)))
    }

    /// Opens the receiving end of a connection.
    fn receiver(&self, name: ConnectionName) -> io::Result<Receiver> {
        let peer = self.peers.get(&name.from).ok_or(io::ErrorKind::NotFound)?.clone();
        let rings = Rings::open(&self.own, name, End::Receiver, self.ranks)?;
        Ok(Receiver::new(rings, peer, Arc::clone(&self.arrivals)))
    }
}

impl<M> Clone for Peer<M> {
    fn clone(&self) -> Self {
        let Self { segment, doorbell, process, reads } = self;
        let (segment, doorbell) = (Arc::clone(segment), Arc::clone(doorbell));
        Self { segment, doorbell, process: process.clone(), reads: *reads }
    }
}

impl<M: AtomicMemory> Peer<M> {
    /// Rings the doorbell of the peer if it blocks.
    #[inline]
    fn ring(&self) {
        if ring::is_blocked(&*self.segment) {
            // An eventfd whose counter is full wakes as well.
            let _ = rustix::io::write(&*self.doorbell, &1_u64.to_ne_bytes());
        }
    }
}

/// The sending end of a connection.
///
/// The FIFO that the rank machine knows counts long slots. There are more short ones, and the slot of a short slice counts as
/// free as soon as any slice that may come next has room.
#[derive(Debug)]
pub(crate) struct Sender<M: AtomicMemory = Segment> {
    rings: Rings<M>,
    peer: Peer<M>,
    sent: u64,
    /// The index of the last slice, and of the next one once its data is being written.
    last: LineSlot,
    next: Option<LineSlot>,
    /// How many slices have arrived in this process, now and when the last one was sent.
    arrivals: Arc<AtomicU64>,
    arrived: u64,
    /// Slices whose slots are free.
    freed: u64,
    /// Credits: slices and lines that the receiver has taken, as of the last poll.
    taken: u64,
    taken_lines: u64,
    /// The last slice in a short slot.
    last_short: u64,
    /// The last slice in each long slot, and its line.
    longs: [(u64, u64); DEPTH as usize],
    /// The last slice that was sent zero-copy.
    last_zero_copy: u64,
    /// Whether the next slice is sent zero-copy.
    is_next_zero_copy: bool,
    core_latency: CoreLatency,
    /// Long slots that were never used, a bit each.
    unused: u8,
}

impl<M: AtomicMemory> Sender<M> {
    const fn new(rings: Rings<M>, peer: Peer<M>, arrivals: Arc<AtomicU64>) -> Self {
        Self {
            rings,
            peer,
            sent: 0,
            last: LineSlot::exclusive(0),
            next: None,
            arrivals,
            arrived: 0,
            freed: 0,
            taken: 0,
            taken_lines: 0,
            last_short: 0,
            longs: [(0, 0); DEPTH as usize],
            last_zero_copy: 0,
            is_next_zero_copy: false,
            core_latency: CoreLatency::new(),
            unused: !0,
        }
    }

    /// Whether the receiver can read the memory of this process.
    #[inline]
    pub(crate) fn can_zero_copy(&self) -> bool {
        self.peer.reads
    }

    /// Sends the next slice zero-copy: its data stays in this buffer until the receiver has taken it.
    pub(crate) fn send_from(&mut self, from: *const u8, length: usize) {
        self.measure(length);
        let line_slot = LineSlot::exclusive(self.last.line() + 1);
        self.rings.set_source(line_slot.line(), from as u64);
        (self.next, self.is_next_zero_copy) = (Some(line_slot), true);
    }

    /// Whether the receiver still reads memory of this process.
    #[inline]
    pub(crate) fn has_zero_copy(&self) -> bool {
        self.last_zero_copy > self.freed
    }

    /// Revokes zero-copy slices, whether they were read or not: a receiver that is reading one finds out.
    pub(crate) fn revoke(&self) {
        for number in self.freed + 1..=self.last_zero_copy {
            let (long, line) = self.longs[long_slot::<M>(number)];
            if long == number && self.rings.source(line).is_some() {
                self.rings.revoke(line);
            }
        }
    }

    /// Whether the receiver's core shares no last-level cache with this one, by the latest measurements.
    #[inline]
    pub(crate) const fn is_distant(&self) -> bool {
        self.core_latency.is_distant()
    }

    #[inline]
    fn measure(&mut self, length: usize) {
        let (rings, number) = (&self.rings, self.sent + 1);
        self.core_latency.on_send(length, |line| rings.touch(number, length, line));
    }

    /// The index of the next slice. Small slices share a line if nothing has arrived in this process since the one before: then
    /// the sender is ahead of the receiver. In an exchange they do not, since the receiver waits for each and has the line in
    /// its cache.
    #[inline(always)]
    fn line_slot(&self, length: usize) -> LineSlot {
        let line = self.last.line() + 1;
        if self.arrivals.load(Ordering::Relaxed) != self.arrived {
            return LineSlot::exclusive(line);
        }
        match self.last.next() {
            Some(next) if next.fits(length) => next,
            _ => LineSlot::new(line, 0, LineSlot::capacity_for(length)),
        }
    }

    /// The address for the data of the next slice.
    #[inline]
    pub(crate) fn data(&mut self, length: usize) -> *mut u8 {
        if self.unused != 0 && SlotKind::of(length) == SlotKind::Long {
            let slot = 1 << (self.sent % M::LONG_SLOTS);
            if self.unused & slot != 0 {
                self.unused &= !slot;
                self.rings.populate(self.sent + 1);
            }
        }
        self.measure(length);
        let line_slot = self.line_slot(length);
        self.next = Some(line_slot);
        self.rings.data(self.sent + 1, line_slot, length)
    }

    /// Hands over the next slice.
    #[inline(always)]
    pub(crate) fn publish(&mut self, length: usize, mark: Mark) {
        let line_slot = self.next.take().unwrap_or_else(|| self.line_slot(length));
        let is_new = line_slot.line() != self.last.line();
        if is_new && self.last.next().is_some() {
            self.rings.close(self.sent, self.last);
        }
        self.sent += 1;
        self.last = line_slot;
        self.arrived = self.arrivals.load(Ordering::Relaxed);
        let ring = SlotKind::of(length);
        match ring {
            SlotKind::Inline => {}
            SlotKind::Short => self.last_short = self.sent,
            SlotKind::Long => self.longs[long_slot::<M>(self.sent)] = (self.sent, line_slot.line()),
        }
        let is_zero_copy = std::mem::take(&mut self.is_next_zero_copy);
        if is_zero_copy {
            self.last_zero_copy = self.sent;
        }
        self.rings.publish(self.sent, line_slot, mark, ring == SlotKind::Long, is_zero_copy);
        self.peer.ring();
        // A line that may still be full is better left in the receiver's cache.
        if is_new && line_slot.line() + PREFETCH_DISTANCE <= self.taken_lines + M::LINES {
            self.rings.prefetch_for_write(line_slot.line() + PREFETCH_DISTANCE);
        }
    }

    /// Whether free slots are short, or a zero-copy slice is in flight: only then is it worth polling the credits.
    #[inline]
    pub(crate) fn needs_credits(&self) -> bool {
        self.sent - self.freed >= M::LONG_SLOTS || self.has_zero_copy()
    }

    /// How many slots have become free since the last question.
    #[inline]
    pub(crate) fn freed(&mut self) -> u64 {
        let before = self.freed;
        self.free();
        if self.needs_credits() {
            let (taken, lines) = self.rings.taken();
            // A faulty peer may write any number there; never more than was sent.
            self.taken = taken.clamp(self.taken, self.sent);
            self.taken_lines = lines.clamp(self.taken_lines, self.last.line());
            self.free();
        }
        self.freed - before
    }

    #[inline]
    fn free(&mut self) {
        while self.freed < self.sent && self.is_free(self.freed + 1) {
            self.freed += 1;
        }
    }

    /// Whether the slot of this slice is free. Then slices up to the one with its number plus `DEPTH` may follow, in any of the
    /// rings: whatever is at their indices must have been taken.
    #[inline]
    fn is_free(&self, number: u64) -> bool {
        let next = number + M::LONG_SLOTS;
        let lines = self.last.line() + (next - self.sent);
        let short = next.saturating_sub(M::SHORT_SLOTS).min(self.last_short);
        // None that is longer followed it: no two of `DEPTH` slices have the same slot. The credit of a long slice is returned
        // at once, that of others only now and then: waiting for one without a slot of its own could be for ever.
        let (long, _) = self.longs[long_slot::<M>(number)];
        lines <= self.taken_lines + M::LINES && short.max(long) <= self.taken
    }
}

/// The long slot that a slice has, or would have.
#[inline]
const fn long_slot<M: AtomicMemory>(number: u64) -> usize {
    ((number - 1) % M::LONG_SLOTS) as usize
}

/// Data in the memory of another process.
#[derive(Clone, Debug)]
pub(crate) struct PeerBuffer {
    pub(crate) process: PeerProcess,
    pub(crate) address: u64,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct Receiver<M: AtomicMemory = Segment> {
    rings: Rings<M>,
    peer: Peer<M>,
    taken: u64,
    /// The line of the next slice, and its index there.
    line: u64,
    index: u64,
    /// Whether that slice has arrived and was not released, whether the sender wants the credit at once, and the capacity of
    /// the line.
    is_there: bool,
    is_urgent: bool,
    capacity: u64,
    /// Lines in a row that were full when polled, up to the prefetch distance: the sender is ahead by as many.
    behind: u64,
    /// How many slices have arrived in this process.
    arrivals: Arc<AtomicU64>,
}

impl<M: AtomicMemory> Receiver<M> {
    const fn new(rings: Rings<M>, peer: Peer<M>, arrivals: Arc<AtomicU64>) -> Self {
        Self {
            rings,
            peer,
            taken: 0,
            line: 1,
            index: 0,
            is_there: false,
            is_urgent: false,
            capacity: 1,
            behind: 0,
            arrivals,
        }
    }

    /// The address of the oldest slice's data.
    #[inline]
    pub(crate) fn data(&self, length: usize) -> *mut u8 {
        self.rings.data(self.taken + 1, LineSlot::new(self.line, self.index, self.capacity), length)
    }

    /// Polls for the next slice, once the one before it was released.
    #[inline(always)]
    pub(crate) fn arrived(&mut self) -> Option<Mark> {
        if self.is_there {
            return None;
        }
        let mark = loop {
            match self.rings.poll(self.taken + 1, self.line, self.index) {
                Found::Slice { mark, capacity, is_urgent } => {
                    (self.is_there, self.is_urgent, self.capacity) = (true, is_urgent, capacity);
                    break mark;
                }
                Found::Closed => (self.line, self.index) = (self.line + 1, 0),
                Found::Nothing => {
                    self.behind = 0;
                    if self.capacity > 1 {
                        (0..SPINS_AFTER_MISS).for_each(|_| std::hint::spin_loop());
                    }
                    return None;
                }
            }
        };
        // Only ends of this process count, one after the other: it need not be an atomic increment.
        self.arrivals.store(self.arrivals.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if self.index == 0 {
            // A line that the sender is about to write is better left in its cache.
            if self.behind > 0 {
                self.rings.prefetch(self.line + self.behind);
            }
            self.behind = (self.behind + 1).min(PREFETCH_DISTANCE);
        }
        Some(mark)
    }

    /// The sender's buffer with the data of the oldest slice, if it was sent zero-copy.
    #[inline]
    pub(crate) fn source(&self) -> Option<PeerBuffer> {
        let process = self.peer.process.as_ref()?;
        self.rings.source(self.line).map(|address| PeerBuffer { process: process.clone(), address })
    }

    /// Whether the sender has not revoked it, after its so many bytes were read.
    pub(crate) fn is_still_stable(&self, length: usize) -> bool {
        // The sender measures the core-to-core latency on lines that this core had.
        for line in core_latency::LINES {
            self.rings.touch(self.taken + 1, length, line);
        }
        self.rings.source(self.line).is_some()
    }

    /// Gives the slot of the oldest slice back.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        self.is_there = false;
        self.taken += 1;
        self.index += 1;
        if self.index >= self.capacity {
            (self.line, self.index) = (self.line + 1, 0);
        }
        if self.is_urgent || self.taken.is_multiple_of(M::CREDIT_INTERVAL) {
            self.rings.set_taken(self.taken, self.line - 1);
            self.peer.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use railnet_core::Random;

    use super::ring::LINES;
    use super::*;

    /// Both ends of a connection, and the segment with its rings.
    fn pair() -> (Sender, Receiver, Arc<Segment>) {
        let segment = Arc::new(Segment::create(ring::SEGMENT).unwrap());
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let peer =
            Peer { segment: Arc::clone(&segment), doorbell: Arc::new(doorbell), process: None, reads: true };
        let name = ConnectionName { context: 1, from: 0, channel: 0, lane: 0 };
        // Two processes, each of which counts for itself.
        let counts = [Arc::default(), Arc::default()];
        let [sends, receives] = counts;
        let sender = Sender::new(Rings::open(&segment, name, End::Sender, 2).unwrap(), peer.clone(), sends);
        let receiver = Receiver::new(Rings::open(&segment, name, End::Receiver, 2).unwrap(), peer, receives);
        (sender, receiver, segment)
    }

    /// The first word of a slice's data, and the last.
    fn atomics(segment: &Segment, at: *mut u8, length: usize) -> [&AtomicU64; 2] {
        let offset = at as usize - segment.pointer(0, 0) as usize;
        [offset, offset + length - 8].map(|offset| segment.word(offset))
    }

    #[test]
    fn no_slice_is_overwritten_before_it_is_taken_and_nobody_waits_for_ever() {
        let (mut sender, mut receiver, segment) = pair();
        let mut random = Random::from_seed(9);
        let mut lengths = VecDeque::new();
        let (mut pace, mut most, mut shared) = (0, 0, 0);
        for number in 1..=200_000_u64 {
            // As a rank machine does: it has DEPTH slots, and asks for credits when it has none.
            let is_full = |sender: &Sender| sender.sent - sender.freed == u64::from(DEPTH);
            if is_full(&sender) {
                sender.freed();
            }
            let is_stuck = is_full(&sender);
            if !is_stuck {
                let length = *random.pick(&[8, 8, 8, 16, 48, 56, 512, 2048, 2056, 1 << 16]);
                let length = if number / 1000 % 3 == 0 { 8 } else { length };
                // Arrivals from time to time, or always, or never.
                if random.below(8) < number / 3000 % 3 * 4 {
                    sender.arrivals.fetch_add(1, Ordering::Relaxed);
                }
                let line = sender.last.line();
                for word in atomics(&segment, sender.data(length), length) {
                    word.store(sender.sent + 1, Ordering::Relaxed);
                }
                sender.publish(length, Mark(sender.sent + 1));
                shared += u64::from(sender.last.line() == line);
                lengths.push_back(length);
            }
            most = most.max(lengths.len());
            if number % 100 == 0 {
                pace = random.below(4);
            }
            // A sender that stalls must be unblocked by one of the slices for which the machine has slots: the receiver may
            // take the next one only when something else has arrived that depends on this sender.
            let waiting = lengths.len() as u64;
            let few = random.below(u64::from(DEPTH));
            let takes = if is_stuck { waiting - few.min(waiting - 1) } else { random.below(pace + 1) };
            for _ in 0..takes {
                let Some(mark) = receiver.arrived() else { break };
                assert_eq!(receiver.arrived(), None, "one at a time");
                let length = lengths.pop_front().unwrap();
                assert_eq!(mark, Mark(receiver.taken + 1));
                for word in atomics(&segment, receiver.data(length), length) {
                    assert_eq!(word.load(Ordering::Relaxed), receiver.taken + 1, "{length} bytes");
                }
                receiver.release();
            }
            if is_stuck {
                assert!(lengths.len() < DEPTH as usize && sender.freed() > 0, "slice {number}");
            }
        }
        assert!(most > LINES as usize && most <= 3 * LINES as usize, "{most} slices at once");
        assert!(shared > 10_000 && receiver.line < receiver.taken - 10_000, "{shared} shared a line");
    }

    /// Each slice of an exchange has a line for itself; small slices of a sender that is ahead share lines.
    #[test]
    fn slices_of_an_exchange_have_lines_of_their_own() {
        let (mut sender, mut receiver, _) = pair();
        for number in 1..=100 {
            sender.publish(8, Mark(number));
            assert_eq!(receiver.arrived(), Some(Mark(number)));
            receiver.release();
            sender.arrivals.fetch_add(1, Ordering::Relaxed);
        }
        assert!(sender.last.line() >= 99 && receiver.line == sender.last.line() + 1);
        let before = sender.last.line();
        (101..=190).for_each(|number| sender.publish(8, Mark(number)));
        assert!(sender.last.line() - before <= 31);
        // A slice that does not fit closes its line.
        sender.publish(8, Mark(191));
        sender.publish(2048, Mark(192));
        for number in 101..=192 {
            assert_eq!(receiver.arrived(), Some(Mark(number)));
            receiver.release();
        }
        assert_eq!((receiver.arrived(), receiver.line), (None, sender.last.line() + 1));
    }

    /// Ranks of a ring each send a long slice and wait for a credit before they take one: seven small slices before it were
    /// taken, without a credit.
    #[test]
    fn small_slices_that_were_taken_leave_room_behind_a_long_one() {
        for small in 0..64 {
            let (mut sender, mut receiver, _) = pair();
            // As a rank machine does, which asks for credits only when it has to.
            let mut send = |length: usize, number: u64| {
                if sender.needs_credits() {
                    sender.freed();
                }
                assert!(!sender.needs_credits(), "slice {number} after {small}");
                sender.publish(length, Mark(number));
            };
            for number in 1..=small {
                send(8, number);
                assert_eq!(receiver.arrived(), Some(Mark(number)));
                receiver.release();
            }
            (1..=u64::from(DEPTH)).for_each(|long| send(1 << 13, small + long));
        }
    }

    #[test]
    fn a_zero_copy_slice_returns_its_credit_at_once() {
        let (mut sender, mut receiver, _) = pair();
        sender.publish(8, Mark(1));
        sender.send_from(std::ptr::without_provenance(0x1000), 1 << 16);
        sender.publish(1 << 16, Mark(2));
        assert!(sender.needs_credits() && sender.has_zero_copy());
        assert_eq!(receiver.arrived(), Some(Mark(1)));
        receiver.release();
        assert_eq!((sender.freed(), sender.has_zero_copy()), (1, true));
        assert_eq!(receiver.arrived(), Some(Mark(2)));
        assert!(receiver.is_still_stable(1 << 16));
        receiver.release();
        assert_eq!((sender.freed(), sender.has_zero_copy()), (1, false));
        assert!(!sender.needs_credits());
    }
}
