//! Mailboxes: where slices of one connection arrive, in the segment of the receiver.
//!
//! A segment begins with a word that says whether its owner sleeps, and with a directory of mailboxes by the names of their
//! connections. In a mailbox, slots are used in turns:
//!
//! ```text
//!   line 0       how many slices the receiver has taken
//!   line 2 …     one line for each slot: the number of the slice in it, its mark, and up to 48 bytes of data
//!   page 1 …     the slots, for longer slices
//! ```
//!
//! A slice that fits into its line costs one line on its way between two cores.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railnet_coll::machine::Mark;

use super::directory::{self, Directory, MAILBOXES};
pub(crate) use super::directory::{End, Name};
use super::segment::Segment;

/// Slots of a connection.
pub(crate) const DEPTH: u32 = 8;
/// The most bytes of a slot. Most calls use less: see [`crate::conduit::Conduit::fifo`]. Pages that nobody touches take no
/// memory.
pub(crate) const SLOT: usize = 512 << 10;
/// Bytes of a slice that travels in its line.
const INLINE: usize = 48;
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Bytes of a mailbox.
const MAILBOX: usize = PAGE + DEPTH as usize * SLOT;

/// The word that says whether the owner of a segment sleeps.
const SLEEPING: usize = LINE;
/// An address in the owner's own memory, and the number that lies there.
const PROOF: usize = 3 * LINE;
const DIRECTORY: usize = PAGE;
const FIRST: usize = (DIRECTORY + directory::LENGTH).next_multiple_of(PAGE);

/// Bytes of a segment. Most of them are never touched.
pub(crate) const SEGMENT: usize = FIRST + MAILBOXES * MAILBOX;

/// A slice whose data is not in its slot but in the sender's own memory: the number of the slice has this bit, and the
/// address comes after the mark.
const LENT: u64 = 1 << 63;
/// Says what others will find in the owner's own memory, if they can read it.
pub(crate) fn set_proof(segment: &Segment, address: u64, number: u64) {
    segment.word(PROOF + 8).store(number, Ordering::Relaxed);
    segment.word(PROOF).store(address, Ordering::Release);
}

/// What is to be found in the owner's own memory: the address, and the number.
pub(crate) fn proof(segment: &Segment) -> (u64, u64) {
    let address = segment.word(PROOF).load(Ordering::Acquire);
    (address, segment.word(PROOF + 8).load(Ordering::Relaxed))
}

/// Says whether the owner of a segment sleeps, before it looks once more whether there is anything to do.
pub(crate) fn set_sleeping(segment: &Segment, sleeps: bool) {
    segment.word(SLEEPING).swap(u64::from(sleeps), Ordering::SeqCst);
}

/// Whether the owner of a segment sleeps.
#[inline]
pub(crate) fn sleeps(segment: &Segment) -> bool {
    segment.word(SLEEPING).load(Ordering::Relaxed) != 0
}

/// The owner of a segment has no more use for what comes to it from a communicator.
pub(crate) fn forget(segment: &Segment, context: u64) {
    Directory { segment, at: DIRECTORY }.forget(context);
}

/// A mailbox, as one end of a connection has it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    segment: Arc<Segment>,
    offset: usize,
    entry: usize,
    end: End,
}

impl Mailbox {
    /// The mailbox of a connection, found or made.
    pub(crate) fn open(segment: &Arc<Segment>, name: Name, end: End) -> io::Result<Self> {
        if segment.len() < SEGMENT {
            return Err(io::Error::other("the shared memory of a rank is too short for mailboxes"));
        }
        let offset = |mailbox: usize| FIRST + mailbox * MAILBOX;
        let prepare = |mailbox: usize| {
            for word in 0..(2 + DEPTH as usize) * LINE / 8 {
                segment.word(offset(mailbox) + word * 8).store(0, Ordering::Relaxed);
            }
        };
        let (entry, mailbox) = Directory { segment, at: DIRECTORY }.enter(name, prepare)?;
        Ok(Self { segment: Arc::clone(segment), offset: offset(mailbox), entry, end })
    }

    #[inline]
    fn line(&self, slot: u32) -> usize {
        self.offset + (2 + slot as usize) * LINE
    }

    /// Where the data of a slice of so many bytes lies.
    #[inline]
    pub(crate) fn data(&self, slot: u32, length: usize) -> *mut u8 {
        assert!(slot < DEPTH && length <= SLOT, "slot {slot} with {length} bytes");
        if length <= INLINE {
            self.segment.pointer(self.line(slot) + 16, length)
        } else {
            self.segment.pointer(self.offset + PAGE + slot as usize * SLOT, length)
        }
    }

    /// Hands over the slice with this number, from 1 on, after its data was written.
    ///
    /// A receiver that goes to sleep in the same moment may miss it until it looks again, which it does every
    /// millisecond. A fence would not let it: but a fence waits until the line has come from the other core, for every
    /// slice, and that is a third of the time that a small call takes.
    #[inline]
    pub(crate) fn publish(&self, slot: u32, number: u64, mark: Mark, is_lent: bool) {
        let line = self.line(slot);
        self.segment.word(line + 8).store(mark.0, Ordering::Relaxed);
        let number = if is_lent { number | LENT } else { number };
        self.segment.word(line).store(number, Ordering::Release);
    }

    /// Begins to fetch the line of a slot that a slice will be written to.
    #[inline]
    pub(crate) fn fetch_to_write(&self, slot: u32) {
        self.segment.fetch_to_write(self.line(slot));
    }

    /// Begins to fetch the line of a slot whose slice may be there already.
    #[inline]
    pub(crate) fn fetch(&self, slot: u32) {
        self.segment.fetch(self.line(slot));
    }

    /// Says where the data of the next slice in a slot lies, instead of copying it there.
    #[inline]
    pub(crate) fn lend(&self, slot: u32, address: u64) {
        self.segment.word(self.line(slot) + 16).store(address, Ordering::Relaxed);
    }

    /// Where the data of a slice that has arrived lies, if that is not its slot.
    #[inline]
    pub(crate) fn lent(&self, slot: u32) -> Option<u64> {
        let line = self.line(slot);
        let is_lent = self.segment.word(line).load(Ordering::Acquire) & LENT != 0;
        is_lent.then(|| self.segment.word(line + 16).load(Ordering::Relaxed))
    }

    /// The data of a slice is the sender's again. Whoever reads it looks afterwards whether it was lent all the time.
    pub(crate) fn take_back(&self, slot: u32) {
        self.segment.word(self.line(slot)).swap(0, Ordering::SeqCst);
    }

    /// The mark of the slice with this number, if it is there.
    #[inline]
    pub(crate) fn arrived(&self, slot: u32, number: u64) -> Option<Mark> {
        let line = self.line(slot);
        if self.segment.word(line).load(Ordering::Acquire) & !LENT != number {
            return None;
        }
        Some(Mark(self.segment.word(line + 8).load(Ordering::Relaxed)))
    }

    /// Says how many slices were taken.
    #[inline]
    pub(crate) fn set_taken(&self, number: u64) {
        self.segment.word(self.offset).store(number, Ordering::Release);
    }

    /// How many slices were taken.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.segment.word(self.offset).load(Ordering::Acquire)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        Directory { segment: &self.segment, at: DIRECTORY }.leave(self.entry, self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(from: u32, lane: u8) -> Name {
        Name { context: 1, from, channel: 0, lane }
    }

    #[test]
    fn both_ends_find_the_same_mailbox_and_others_another() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let one = Mailbox::open(&segment, name(1, 0), End::Sender).unwrap();
        let same = Mailbox::open(&segment, name(1, 0), End::Receiver).unwrap();
        let other = Mailbox::open(&segment, name(1, 1), End::Sender).unwrap();
        assert_eq!(one.offset, same.offset);
        assert!(one.offset.abs_diff(other.offset) >= MAILBOX);
        one.publish(3, 9, Mark(5), false);
        assert_eq!(same.arrived(3, 9), Some(Mark(5)));
        assert_eq!(same.arrived(3, 8), None);
        assert_eq!(other.arrived(3, 9), None);
        assert_eq!(same.lent(3), None);
        one.lend(4, 0x1234);
        one.publish(4, 10, Mark(6), true);
        assert_eq!((same.arrived(4, 10), same.lent(4)), (Some(Mark(6)), Some(0x1234)));
        one.take_back(4);
        assert_eq!((same.arrived(4, 10), same.lent(4)), (None, None));
    }

    #[test]
    fn a_mailbox_that_both_ends_have_left_is_used_again_and_nothing_is_left_in_it() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let sender = Mailbox::open(&segment, name(1, 0), End::Sender).unwrap();
        let place = sender.offset;
        sender.publish(0, 1, Mark(5), false);
        drop(sender);
        // What was sent is there for a receiver that comes after the sender has left.
        let receiver = Mailbox::open(&segment, name(1, 0), End::Receiver).unwrap();
        assert_eq!((receiver.offset, receiver.arrived(0, 1)), (place, Some(Mark(5))));
        let other = Mailbox::open(&segment, name(2, 0), End::Receiver).unwrap();
        assert_ne!(other.offset, place);
        receiver.set_taken(1);
        drop(receiver);
        let next = Mailbox::open(&segment, name(3, 0), End::Receiver).unwrap();
        assert_eq!((next.offset, next.arrived(0, 1), next.taken()), (place, None, 0));
        // One that its receiver never looked into is given up with its communicator.
        let unread = Mailbox::open(&segment, name(4, 0), End::Sender).unwrap();
        let place = unread.offset;
        drop((unread, next, other));
        forget(&segment, 1);
        let next = Mailbox::open(&segment, name(5, 0), End::Sender).unwrap();
        assert_eq!(next.offset, place);
    }

    #[test]
    fn names_are_found_whatever_came_and_went_before() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let mut dice = railnet_core::Random::from_seed(3);
        let mut there: Vec<(u32, [Mailbox; 2])> = Vec::new();
        for from in 0..40_000 {
            let open = |end| Mailbox::open(&segment, name(from, 0), end).unwrap();
            there.push((from, [open(End::Sender), open(End::Receiver)]));
            if there.len() == 3990 || dice.below(3) == 0 {
                there.swap_remove(dice.below(there.len() as u64) as usize);
            }
            if from % 1000 == 0 {
                for (from, [one, other]) in &there {
                    let found = Mailbox::open(&segment, name(*from, 0), End::Sender).unwrap();
                    assert_eq!((one.offset, found.offset), (other.offset, one.offset));
                    // It is not left: there was a sender before.
                    std::mem::forget(found);
                }
            }
        }
        let mut places: Vec<usize> = there.iter().map(|(_, [one, _])| one.offset).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), there.len());
    }

    #[test]
    fn a_full_segment_says_so() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let open = |from| Mailbox::open(&segment, name(from, 0), End::Sender);
        let made: Vec<Mailbox> = (0..5000).map_while(|from| open(from).ok()).collect();
        assert_eq!(made.len(), MAILBOXES);
    }
}
