//! Shared memory between the ranks of one host: each has a segment in which the others leave slices for it.

mod directory;
pub(crate) mod foreign;
pub(crate) mod handover;
pub(crate) mod mailbox;
pub(crate) mod segment;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use railnet_coll::machine::Mark;
use rustix::event::EventfdFlags;

use foreign::Process;
use handover::{Counter, Token};
use mailbox::{DEPTH, End, Mailbox, Name};
use segment::Segment;

/// How long another rank may take to hand over its memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// What this rank needs to share memory with others.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    rank: u32,
    own: Arc<Segment>,
    bell: OwnedFd,
    peers: BTreeMap<u32, Peer>,
    /// A number at an address that others look at to find out whether they can read this process's memory.
    #[expect(dead_code, reason = "it is looked at by others")]
    proof: Box<u64>,
}

/// Another rank of this host.
#[derive(Clone, Debug)]
struct Peer {
    segment: Arc<Segment>,
    bell: Arc<OwnedFd>,
    /// Its process, where this one can read its memory.
    process: Option<Process>,
    /// Whether it can read this one's.
    reads: bool,
}

impl SharedMemory {
    /// With memory of its own, and nobody else's yet.
    pub(crate) fn new(rank: u32) -> io::Result<Self> {
        let own = Segment::create(mailbox::SEGMENT)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let proof = Box::new(u64::from_ne_bytes(crate::secret::random()?));
        mailbox::set_proof(&own, std::ptr::from_ref(&*proof) as u64, *proof);
        Ok(Self { rank, own: Arc::new(own), bell, peers: BTreeMap::new(), proof })
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
        let (own, bell) = (Arc::clone(&self.own), self.bell.try_clone()?);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| counter.serve(&[own.as_fd(), bell.as_fd()], &stop));
            for (rank, (token, process)) in others {
                if let Ok((file, bell)) = handover::fetch(token, limit.min(PATIENCE))
                    && let Ok(segment) = Segment::open(file)
                {
                    let (address, number) = mailbox::proof(&segment);
                    let process = process.and_then(|process| Process::find(process, address, number));
                    let (segment, bell) = (Arc::new(segment), Arc::new(bell));
                    self.peers.insert(*rank, Peer { segment, bell, process, reads: false });
                }
            }
            let agreed = agree(self);
            stop.store(true, Ordering::Release);
            server.join().map_err(|_| io::Error::other("handing over shared memory failed"))?;
            Ok(agreed)
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

    /// What becomes readable when another rank rings.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Says that this rank will look at its bell alone, or no longer.
    pub(crate) fn set_sleeping(&self, sleeps: bool) {
        mailbox::set_sleeping(&self.own, sleeps);
        if !sleeps {
            let mut count = [0; 8];
            // Nothing to read means that nobody rang.
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }

    /// The end from which slices are sent to a rank.
    pub(crate) fn sender(&self, context: u64, to: u32, channel: u16, lane: u8) -> io::Result<Sender> {
        let peer = self.peers.get(&to).ok_or(io::ErrorKind::NotFound)?.clone();
        let name = Name { context, from: self.rank, channel, lane };
        let mailbox = Mailbox::open(&peer.segment, name, End::Sender)?;
        Ok(Sender { mailbox, peer, sent: 0, freed: 0, lent: 0, lends: 0 })
    }

    /// The end at which slices of a rank arrive.
    pub(crate) fn receiver(&self, context: u64, from: u32, channel: u16, lane: u8) -> io::Result<Receiver> {
        let peer = self.peers.get(&from).ok_or(io::ErrorKind::NotFound)?.clone();
        let mailbox = Mailbox::open(&self.own, Name { context, from, channel, lane }, End::Receiver)?;
        Ok(Receiver { mailbox, peer, arrived: 0, taken: 0 })
    }
}

impl SharedMemory {
    /// This rank has no more use for what comes to it from a communicator.
    pub(crate) fn forget(&self, context: u64) {
        mailbox::forget(&self.own, context);
    }
}

impl Peer {
    /// Wakes it if it sleeps.
    #[inline]
    fn ring(&self) {
        if mailbox::sleeps(&self.segment) {
            // A counter that is full wakes as well.
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// The sending end of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    mailbox: Mailbox,
    peer: Peer,
    sent: u64,
    freed: u64,
    /// The last slice that was not copied: the receiver reads it where it lies.
    lent: u64,
    /// Slots whose next slice is such a one.
    lends: u8,
}

impl Sender {
    /// Whether slices need not be copied: the receiver can read the memory of this process.
    #[inline]
    pub(crate) fn can_lend(&self) -> bool {
        self.peer.reads
    }

    /// The data of the next slice in a slot stays where it is, until the receiver has taken it.
    pub(crate) fn lend(&mut self, slot: u32, from: *const u8) {
        self.mailbox.lend(slot, from as u64);
        self.lends |= 1 << slot;
    }

    /// Whether the receiver still reads memory of this process.
    #[inline]
    pub(crate) fn has_lent(&self) -> bool {
        self.lent > self.freed
    }

    /// What was lent is taken back, whether it was read or not: a receiver that still reads it finds out.
    pub(crate) fn take_back(&self) {
        for number in self.freed + 1..=self.lent {
            let slot = ((number - 1) % u64::from(DEPTH)) as u32;
            if self.mailbox.lent(slot).is_some() {
                self.mailbox.take_back(slot);
            }
        }
    }

    /// Where the data of a slice goes.
    #[inline]
    pub(crate) fn data(&self, slot: u32, length: usize) -> *mut u8 {
        self.mailbox.data(slot, length)
    }

    /// Hands over the next slice.
    #[inline]
    pub(crate) fn publish(&mut self, slot: u32, mark: Mark) {
        debug_assert_eq!(u64::from(slot), self.sent % u64::from(DEPTH), "slots are used in turns");
        self.sent += 1;
        let is_lent = self.lends & 1 << slot != 0;
        if is_lent {
            self.lends &= !(1 << slot);
            self.lent = self.sent;
        }
        self.mailbox.publish(slot, self.sent, mark, is_lent);
        self.peer.ring();
        // A slot that may still be full is better left to the receiver.
        if self.sent - self.freed < u64::from(DEPTH) {
            self.mailbox.fetch_to_write((self.sent % u64::from(DEPTH)) as u32);
        }
    }

    /// Whether slots may be short, or data is lent: only then it is worth a look at what was taken.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.sent - self.freed >= u64::from(DEPTH) || self.has_lent()
    }

    /// How many slices were taken since the last look.
    #[inline]
    pub(crate) fn freed(&mut self) -> u64 {
        // Whatever a peer writes there, it cannot have taken more than there was.
        let taken = self.mailbox.taken().clamp(self.freed, self.sent);
        let new = taken - self.freed;
        self.freed = taken;
        new
    }
}

/// Data in the memory of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign {
    pub(crate) process: Process,
    pub(crate) address: u64,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    mailbox: Mailbox,
    peer: Peer,
    arrived: u64,
    taken: u64,
}

impl Receiver {
    /// Where the data of a slice is.
    #[inline]
    pub(crate) fn data(&self, slot: u32, length: usize) -> *mut u8 {
        self.mailbox.data(slot, length)
    }

    /// The next slice, if it is there.
    #[inline]
    pub(crate) fn arrived(&mut self) -> Option<Mark> {
        if self.arrived - self.taken == u64::from(DEPTH) {
            return None;
        }
        let slot = (self.arrived % u64::from(DEPTH)) as u32;
        let mark = self.mailbox.arrived(slot, self.arrived + 1)?;
        self.arrived += 1;
        // A sender may be ahead. If it is not, the line is still the one that this core has.
        self.mailbox.fetch((self.arrived % u64::from(DEPTH)) as u32);
        Some(mark)
    }

    /// Where a slice lies in the sender's own memory, if it was not copied to its slot.
    #[inline]
    pub(crate) fn lent(&self, slot: u32) -> Option<Foreign> {
        let process = self.peer.process?;
        self.mailbox.lent(slot).map(|address| Foreign { process, address })
    }

    /// Whether the sender has not taken it back.
    pub(crate) fn is_still_lent(&self, slot: u32) -> bool {
        self.mailbox.lent(slot).is_some()
    }

    /// Gives the slot of the oldest slice back.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.taken += 1;
        self.mailbox.set_taken(self.taken);
        self.peer.ring();
    }
}
