//! Shared memory between the ranks of one host: each has a segment in which the others leave slices for it.

mod directory;
mod distance;
pub(crate) mod foreign;
pub(crate) mod handover;
pub(crate) mod mailbox;
#[cfg(test)]
mod model;
pub(crate) mod segment;
mod transport;
mod words;

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
use distance::Distance;
use foreign::Process;
use handover::{Counter, Token};
use mailbox::{End, Found, Mailbox, Ring, Spot};
use segment::Segment;
use words::Words;

/// How long another rank may take to hand over its memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// A sender that waits for the oldest of its slices to be taken hears of it, however few more the receiver takes.
const fn are_rings_sound<M: Words>() -> bool {
    M::TELL + M::LONGS <= M::SHORTS && M::SHORTS <= M::LINES && M::LONGS <= DEPTH as u64 && DEPTH <= u8::BITS
}
const _: () = assert!(are_rings_sound::<Segment>());
/// How long a receiver leaves a line alone in which nothing new was, where slices share lines: some 200 ns. Whoever looks again at once
/// takes the line from the sender, once for each slice in it, and never falls behind: then a Broadcast of 8 B takes 100 ns for 83
/// between near cores, and 218 for 118 between far ones.
const PAUSES: u32 = 16;
/// How far ahead lines are fetched: as many are on their way between two cores at once.
const AHEAD: u64 = 4;

/// What this rank needs to share memory with others.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    /// How many ranks share this host.
    ranks: usize,
    own: Arc<Segment>,
    doorbell: OwnedFd,
    peers: BTreeMap<u32, Peer>,
    /// How many slices have arrived, from all.
    arrivals: Arc<AtomicU64>,
    /// A number at an address that others look at to find out whether they can read this process's memory.
    #[expect(dead_code, reason = "it is looked at by others")]
    proof: Box<u64>,
}

/// Another rank of this host.
#[derive(Debug)]
struct Peer<M = Segment> {
    segment: Arc<M>,
    doorbell: Arc<OwnedFd>,
    /// Its process, where this one can read its memory.
    process: Option<Process>,
    /// Whether it can read this one's.
    reads: bool,
}

impl SharedMemory {
    /// Address space that the memory of a rank takes, of which most is never touched.
    pub(crate) const BYTES: usize = mailbox::SEGMENT;

    /// With memory of its own, and nobody else's yet. So many ranks are on this host.
    pub(crate) fn new(ranks: usize) -> io::Result<Self> {
        let own = Segment::create(mailbox::SEGMENT)?;
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let proof = Box::new(u64::from_ne_bytes(crate::secret::random()?));
        mailbox::set_proof(&own, std::ptr::from_ref(&*proof) as u64, *proof);
        let (own, arrivals) = (Arc::new(own), Arc::default());
        Ok(Self { ranks, own, doorbell, peers: BTreeMap::new(), arrivals, proof })
    }

    /// Gets the memory of other ranks of this host, and hands out its own meanwhile, until `agree` has heard from all which
    /// ranks they have reached. Some may turn out to be out of reach: they are in another container. Where a rank comes
    /// with the number of its process, it is found out whether the rest of its memory can be read too.
    pub(crate) fn exchange<T>(
        &mut self,
        counter: &Counter,
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
                let fetched = handover::fetch(token, limit.min(PATIENCE))
                    .and_then(|(file, doorbell)| Ok((Segment::open(file)?, doorbell)));
                if let Some(error) = fetched.as_ref().err().filter(|error| handover::is_exhaustion(error)) {
                    exhausted = Some(io::Error::new(error.kind(), error.to_string()));
                    break;
                }
                if let Ok((segment, doorbell)) = fetched {
                    let (address, number) = mailbox::proof(&segment);
                    let process = process.and_then(|process| Process::find(process, address, number));
                    let (segment, doorbell) = (Arc::new(segment), Arc::new(doorbell));
                    self.peers.insert(*rank, Peer { segment, doorbell, process, reads: false });
                }
            }
            let exhausted = exhausted.map_or_else(handover::check_spare, Err);
            let agreed = exhausted.map(|()| agree(self));
            stop.store(true, Ordering::Release);
            server.join().map_err(|_| io::Error::other("handing over shared memory failed"))?;
            agreed
        })
    }

    /// The ranks whose memory it has, and whether it can read the rest of it too.
    pub(crate) fn reached(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        self.peers.iter().map(|(rank, peer)| (*rank, peer.process.is_some()))
    }

    /// A rank can read all of this process's memory.
    pub(crate) fn set_reader(&mut self, rank: u32) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.reads = true;
        }
    }

    /// Says that this rank will look at its doorbell alone, or no longer.
    fn set_sleeping(&self, sleeps: bool) {
        mailbox::set_sleeping(&self.own, sleeps);
        if !sleeps {
            let mut count = [0; 8];
            // Nothing to read means that nobody rang.
            let _ = rustix::io::read(&self.doorbell, &mut count);
        }
    }

    /// The end from which slices are sent to a rank.
    fn sender(&self, to: u32, name: ConnectionName) -> io::Result<Sender> {
        let peer = self.peers.get(&to).ok_or(io::ErrorKind::NotFound)?.clone();
        let mailbox = Mailbox::open(&peer.segment, name, End::Sender, self.ranks)?;
        Ok(Sender::new(mailbox, peer, Arc::clone(&self.arrivals)))
    }

    /// The end at which slices of a rank arrive.
    fn receiver(&self, name: ConnectionName) -> io::Result<Receiver> {
        let peer = self.peers.get(&name.from).ok_or(io::ErrorKind::NotFound)?.clone();
        let mailbox = Mailbox::open(&self.own, name, End::Receiver, self.ranks)?;
        Ok(Receiver::new(mailbox, peer, Arc::clone(&self.arrivals)))
    }
}

impl<M> Clone for Peer<M> {
    fn clone(&self) -> Self {
        let Self { segment, doorbell, process, reads } = self;
        let (segment, doorbell) = (Arc::clone(segment), Arc::clone(doorbell));
        Self { segment, doorbell, process: process.clone(), reads: *reads }
    }
}

impl<M: Words> Peer<M> {
    /// Wakes it if it sleeps.
    #[inline]
    fn ring(&self) {
        if mailbox::sleeps(&*self.segment) {
            // A counter that is full wakes as well.
            let _ = rustix::io::write(&*self.doorbell, &1_u64.to_ne_bytes());
        }
    }
}

/// The sending end of a connection.
///
/// Its machine counts long slots. There are more places for shorter slices, and the slot of such a slice is free as soon as
/// whatever may come next has a place.
#[derive(Debug)]
pub(crate) struct Sender<M: Words = Segment> {
    mailbox: Mailbox<M>,
    peer: Peer<M>,
    sent: u64,
    /// Where the last of them is, and where the next will be, once its data is on its way.
    last: Spot,
    next: Option<Spot>,
    /// How many slices have arrived in this process, now and when the last one was sent.
    arrivals: Arc<AtomicU64>,
    arrived: u64,
    /// Slices whose slots are free.
    freed: u64,
    /// Slices that were taken, as far as it has looked, and lines.
    taken: u64,
    taken_lines: u64,
    /// The last slice that lies in a short slot.
    last_short: u64,
    /// The last slice in each of the long slots, and its line.
    longs: [(u64, u64); DEPTH as usize],
    /// The last slice that was not copied: the receiver reads it where it lies.
    lent: u64,
    /// Whether the next slice is such a one.
    lends: bool,
    distance: Distance,
    /// Long slots that were never used, a bit for each.
    unused: u8,
}

impl<M: Words> Sender<M> {
    const fn new(mailbox: Mailbox<M>, peer: Peer<M>, arrivals: Arc<AtomicU64>) -> Self {
        Self {
            mailbox,
            peer,
            sent: 0,
            last: Spot::alone(0),
            next: None,
            arrivals,
            arrived: 0,
            freed: 0,
            taken: 0,
            taken_lines: 0,
            last_short: 0,
            longs: [(0, 0); DEPTH as usize],
            lent: 0,
            lends: false,
            distance: Distance::new(),
            unused: !0,
        }
    }

    /// Whether slices need not be copied: the receiver can read the memory of this process.
    #[inline]
    pub(crate) fn can_lend(&self) -> bool {
        self.peer.reads
    }

    /// The data of the next slice, of so many bytes, stays where it is, until the receiver has taken it.
    pub(crate) fn lend(&mut self, from: *const u8, length: usize) {
        self.measure(length);
        let spot = Spot::alone(self.last.line() + 1);
        self.mailbox.lend(spot.line(), from as u64);
        (self.next, self.lends) = (Some(spot), true);
    }

    /// Whether the receiver still reads memory of this process.
    #[inline]
    pub(crate) fn has_lent(&self) -> bool {
        self.lent > self.freed
    }

    /// What was lent is taken back, whether it was read or not: a receiver that still reads it finds out.
    pub(crate) fn take_back(&self) {
        for number in self.freed + 1..=self.lent {
            let (long, line) = self.longs[long_slot::<M>(number)];
            if long == number && self.mailbox.lent(line).is_some() {
                self.mailbox.take_back(line);
            }
        }
    }

    /// Whether the receiver's core is far away, as far as that is known.
    #[inline]
    pub(crate) const fn is_far(&self) -> bool {
        self.distance.is_far()
    }

    #[inline]
    fn measure(&mut self, length: usize) {
        let (mailbox, number) = (&self.mailbox, self.sent + 1);
        self.distance.passes(length, |line| mailbox.touch(number, length, line));
    }

    /// Where the next slice goes, of so many bytes. Small ones share a line where nothing has come to this process since the one
    /// before: it is ahead of the receiver. In an exchange they do not, since the receiver waits for each, and has the line.
    #[inline(always)]
    fn spot(&self, length: usize) -> Spot {
        let line = self.last.line() + 1;
        if self.arrivals.load(Ordering::Relaxed) != self.arrived {
            return Spot::alone(line);
        }
        match self.last.next() {
            Some(next) if next.fits(length) => next,
            _ => Spot::new(line, 0, Spot::room(length)),
        }
    }

    /// Where the data of the next slice goes.
    #[inline]
    pub(crate) fn data(&mut self, length: usize) -> *mut u8 {
        if self.unused != 0 && Ring::of(length) == Ring::Longs {
            let slot = 1 << (self.sent % M::LONGS);
            if self.unused & slot != 0 {
                self.unused &= !slot;
                self.mailbox.populate(self.sent + 1);
            }
        }
        self.measure(length);
        let spot = self.spot(length);
        self.next = Some(spot);
        self.mailbox.data(self.sent + 1, spot, length)
    }

    /// Hands over the next slice, of so many bytes.
    #[inline(always)]
    pub(crate) fn publish(&mut self, length: usize, mark: Mark) {
        let spot = self.next.take().unwrap_or_else(|| self.spot(length));
        let is_new = spot.line() != self.last.line();
        if is_new && self.last.next().is_some() {
            self.mailbox.close(self.sent, self.last);
        }
        self.sent += 1;
        self.last = spot;
        self.arrived = self.arrivals.load(Ordering::Relaxed);
        let ring = Ring::of(length);
        match ring {
            Ring::Lines => {}
            Ring::Shorts => self.last_short = self.sent,
            Ring::Longs => self.longs[long_slot::<M>(self.sent)] = (self.sent, spot.line()),
        }
        let is_lent = std::mem::take(&mut self.lends);
        if is_lent {
            self.lent = self.sent;
        }
        self.mailbox.publish(self.sent, spot, mark, ring == Ring::Longs, is_lent);
        self.peer.ring();
        // A line that may still be full is better left to the receiver.
        if is_new && spot.line() + AHEAD <= self.taken_lines + M::LINES {
            self.mailbox.fetch_to_write(spot.line() + AHEAD);
        }
    }

    /// Whether slots are short, or data is lent: only then it is worth a look at what was taken.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.sent - self.freed >= M::LONGS || self.has_lent()
    }

    /// How many slots have become free since the last look.
    #[inline]
    pub(crate) fn freed(&mut self) -> u64 {
        let before = self.freed;
        self.free();
        if self.is_short() {
            let (taken, lines) = self.mailbox.taken();
            // Whatever a peer writes there, it cannot have taken more than there was.
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

    /// Whether the slot of this slice is free. Then slices up to the one may come that has its number and `DEPTH` more, in any of
    /// the rings: what lies at their places in them must be gone.
    #[inline]
    fn is_free(&self, number: u64) -> bool {
        let next = number + M::LONGS;
        let lines = self.last.line() + (next - self.sent);
        let short = next.saturating_sub(M::SHORTS).min(self.last_short);
        // None that is longer came after this one: no two of `DEPTH` slices have the same slot. Of a long slice it is told at once
        // that it was taken, of others only now and then: to wait for one of those that has no slot could be for ever.
        let (long, _) = self.longs[long_slot::<M>(number)];
        lines <= self.taken_lines + M::LINES && short.max(long) <= self.taken
    }
}

/// The long slot that a slice has, or would have.
#[inline]
const fn long_slot<M: Words>(number: u64) -> usize {
    ((number - 1) % M::LONGS) as usize
}

/// Data in the memory of another process.
#[derive(Clone, Debug)]
pub(crate) struct Foreign {
    pub(crate) process: Process,
    pub(crate) address: u64,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct Receiver<M: Words = Segment> {
    mailbox: Mailbox<M>,
    peer: Peer<M>,
    taken: u64,
    /// The line in which the next slice is, behind so many others.
    line: u64,
    cell: u64,
    /// Whether that is there and was not taken, whether the sender wants to know at once when it is, and how many the line has
    /// room for.
    is_there: bool,
    is_urgent: bool,
    cells: u64,
    /// Lines in which something was when it was looked for, one after the other, up to a few: the sender is ahead by as many.
    behind: u64,
    /// How many slices have arrived in this process.
    arrivals: Arc<AtomicU64>,
}

impl<M: Words> Receiver<M> {
    const fn new(mailbox: Mailbox<M>, peer: Peer<M>, arrivals: Arc<AtomicU64>) -> Self {
        Self {
            mailbox,
            peer,
            taken: 0,
            line: 1,
            cell: 0,
            is_there: false,
            is_urgent: false,
            cells: 1,
            behind: 0,
            arrivals,
        }
    }

    /// Where the data of the slice that is there lies.
    #[inline]
    pub(crate) fn data(&self, length: usize) -> *mut u8 {
        self.mailbox.data(self.taken + 1, Spot::new(self.line, self.cell, self.cells), length)
    }

    /// The next slice, if it is there and the one before it was taken.
    #[inline(always)]
    pub(crate) fn arrived(&mut self) -> Option<Mark> {
        if self.is_there {
            return None;
        }
        let mark = loop {
            match self.mailbox.look(self.taken + 1, self.line, self.cell) {
                Found::Slice { mark, cells, is_urgent } => {
                    (self.is_there, self.is_urgent, self.cells) = (true, is_urgent, cells);
                    break mark;
                }
                Found::Closed => (self.line, self.cell) = (self.line + 1, 0),
                Found::Nothing => {
                    self.behind = 0;
                    if self.cells > 1 {
                        (0..PAUSES).for_each(|_| std::hint::spin_loop());
                    }
                    return None;
                }
            }
        };
        // Only this process's own ends count, one after the other: it need not be one step.
        self.arrivals.store(self.arrivals.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if self.cell == 0 {
            // A line that the sender is about to write is better left to it.
            if self.behind > 0 {
                self.mailbox.fetch(self.line + self.behind);
            }
            self.behind = (self.behind + 1).min(AHEAD);
        }
        Some(mark)
    }

    /// Where the slice that is there lies in the sender's own memory, if it was not copied.
    #[inline]
    pub(crate) fn lent(&self) -> Option<Foreign> {
        let process = self.peer.process.as_ref()?;
        self.mailbox.lent(self.line).map(|address| Foreign { process: process.clone(), address })
    }

    /// Whether the sender has not taken it back, after its so many bytes were read.
    pub(crate) fn is_still_lent(&self, length: usize) -> bool {
        // The sender measures how far this core is on lines that this core had.
        for line in distance::LINES {
            self.mailbox.touch(self.taken + 1, length, line);
        }
        self.mailbox.lent(self.line).is_some()
    }

    /// Gives the place of the slice that is there back.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        self.is_there = false;
        self.taken += 1;
        self.cell += 1;
        if self.cell >= self.cells {
            (self.line, self.cell) = (self.line + 1, 0);
        }
        if self.is_urgent || self.taken.is_multiple_of(M::TELL) {
            self.mailbox.set_taken(self.taken, self.line - 1);
            self.peer.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use railnet_core::Random;

    use super::mailbox::LINES;
    use super::*;

    /// Both ends of a connection, and the segment in which its mailbox is.
    fn pair() -> (Sender, Receiver, Arc<Segment>) {
        let segment = Arc::new(Segment::create(mailbox::SEGMENT).unwrap());
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let peer =
            Peer { segment: Arc::clone(&segment), doorbell: Arc::new(doorbell), process: None, reads: true };
        let name = ConnectionName { context: 1, from: 0, channel: 0, lane: 0 };
        // Two processes, each of which counts for itself.
        let counts = [Arc::default(), Arc::default()];
        let [sends, receives] = counts;
        let sender = Sender::new(Mailbox::open(&segment, name, End::Sender, 2).unwrap(), peer.clone(), sends);
        let receiver =
            Receiver::new(Mailbox::open(&segment, name, End::Receiver, 2).unwrap(), peer, receives);
        (sender, receiver, segment)
    }

    /// The first word of a slice, and the last.
    fn words(segment: &Segment, at: *mut u8, length: usize) -> [&AtomicU64; 2] {
        let offset = at as usize - segment.pointer(0, 0) as usize;
        [offset, offset + length - 8].map(|offset| segment.word(offset))
    }

    #[test]
    fn no_slice_is_overwritten_before_it_is_taken_and_nobody_waits_for_ever() {
        let (mut sender, mut receiver, segment) = pair();
        let mut dice = Random::from_seed(9);
        let mut lengths = VecDeque::new();
        let (mut pace, mut most, mut shared) = (0, 0, 0);
        for number in 1..=200_000_u64 {
            // As a machine does: it has so many slots, and asks for what is free when it has none.
            let is_full = |sender: &Sender| sender.sent - sender.freed == u64::from(DEPTH);
            if is_full(&sender) {
                sender.freed();
            }
            let is_stuck = is_full(&sender);
            if !is_stuck {
                let length = *dice.pick(&[8, 8, 8, 16, 48, 56, 512, 2048, 2056, 1 << 16]);
                let length = if number / 1000 % 3 == 0 { 8 } else { length };
                // Something comes now and then, or all the time, or never.
                if dice.below(8) < number / 3000 % 3 * 4 {
                    sender.arrivals.fetch_add(1, Ordering::Relaxed);
                }
                let line = sender.last.line();
                for word in words(&segment, sender.data(length), length) {
                    word.store(sender.sent + 1, Ordering::Relaxed);
                }
                sender.publish(length, Mark(sender.sent + 1));
                shared += u64::from(sender.last.line() == line);
                lengths.push_back(length);
            }
            most = most.max(lengths.len());
            if number % 100 == 0 {
                pace = dice.below(4);
            }
            // Where the sender waits, the receiver must be able to help, and has helped when it has taken one of those that a
            // machine has slots for: it may be that it takes the next only when something else has come that waits for this.
            let waiting = lengths.len() as u64;
            let few = dice.below(u64::from(DEPTH));
            let takes = if is_stuck { waiting - few.min(waiting - 1) } else { dice.below(pace + 1) };
            for _ in 0..takes {
                let Some(mark) = receiver.arrived() else { break };
                assert_eq!(receiver.arrived(), None, "one at a time");
                let length = lengths.pop_front().unwrap();
                assert_eq!(mark, Mark(receiver.taken + 1));
                for word in words(&segment, receiver.data(length), length) {
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

    /// A slice for each that has come goes into a line alone, as if lines were never shared; small ones of who is ahead share.
    #[test]
    fn who_waits_for_each_slice_gets_it_in_a_line_of_its_own() {
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
        // One that does not fit closes its line.
        sender.publish(8, Mark(191));
        sender.publish(2048, Mark(192));
        for number in 101..=192 {
            assert_eq!(receiver.arrived(), Some(Mark(number)));
            receiver.release();
        }
        assert_eq!((receiver.arrived(), receiver.line), (None, sender.last.line() + 1));
    }

    /// Ranks of a ring each send a long slice and wait for room before they take one: seven small ones before it were taken, and
    /// nobody was told.
    #[test]
    fn small_slices_that_were_taken_leave_room_behind_a_long_one() {
        for small in 0..64 {
            let (mut sender, mut receiver, _) = pair();
            // As a machine does, which does not ask before it needs to.
            let mut send = |length: usize, number: u64| {
                if sender.is_short() {
                    sender.freed();
                }
                assert!(!sender.is_short(), "slice {number} after {small}");
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
    fn what_is_lent_is_told_of_at_once_when_it_was_taken() {
        let (mut sender, mut receiver, _) = pair();
        sender.publish(8, Mark(1));
        sender.lend(std::ptr::without_provenance(0x1000), 1 << 16);
        sender.publish(1 << 16, Mark(2));
        assert!(sender.is_short() && sender.has_lent());
        assert_eq!(receiver.arrived(), Some(Mark(1)));
        receiver.release();
        assert_eq!((sender.freed(), sender.has_lent()), (1, true));
        assert_eq!(receiver.arrived(), Some(Mark(2)));
        assert!(receiver.is_still_lent(1 << 16));
        receiver.release();
        assert_eq!((sender.freed(), sender.has_lent()), (1, false));
        assert!(!sender.is_short());
    }
}
