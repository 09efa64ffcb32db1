//! Mailboxes: where slices of one connection arrive, in the segment of the receiver.
//!
//! A segment begins with a word that says whether its owner sleeps, and with a directory. Whoever comes first, sender or
//! receiver, makes the mailbox of a connection; the other finds it by its name. In a mailbox, slots are used in turns:
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
use std::time::{Duration, Instant};

use railnet_coll::machine::Mark;

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
/// Where the next mailbox will be made.
const NEXT: usize = 2 * LINE;
/// An address in the owner's own memory, and the number that lies there.
const PROOF: usize = 3 * LINE;
const DIRECTORY: usize = PAGE;
/// Entries of a directory.
const ENTRIES: usize = 4096;
/// Bytes of an entry: its state, two words of name, and where the mailbox lies.
const ENTRY: usize = 32;
const FIRST: usize = DIRECTORY + ENTRIES * ENTRY;

/// Bytes of a segment. Most of them are never touched.
pub(crate) const SEGMENT: usize = FIRST + 4000 * MAILBOX;

/// States of an entry.
const EMPTY: u64 = 0;
const CLAIMED: u64 = 1;
const READY: u64 = 2;
/// A slice whose data is not in its slot but in the sender's own memory: the number of the slice has this bit, and the
/// address comes after the mark.
const LENT: u64 = 1 << 63;
/// How long somebody may take to make a mailbox that it has claimed. It takes nanoseconds, unless it dies there.
const PATIENCE: Duration = Duration::from_secs(5);

/// The name of a connection in the segment of its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// The communicator.
    pub(crate) context: u64,
    /// The sender.
    pub(crate) from: u32,
    /// Which of its connections to this receiver.
    pub(crate) channel: u16,
    /// And which of the channel.
    pub(crate) lane: u8,
}

impl Name {
    const fn word(&self) -> u64 {
        (self.from as u64) << 32 | (self.channel as u64) << 8 | self.lane as u64
    }
}

/// Makes a new segment ready.
pub(crate) fn prepare(segment: &Segment) {
    segment.word(NEXT).store(FIRST as u64, Ordering::Release);
}

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

/// A mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    segment: Arc<Segment>,
    offset: usize,
}

impl Mailbox {
    /// The mailbox of a connection, found or made.
    pub(crate) fn open(segment: &Arc<Segment>, name: Name) -> io::Result<Self> {
        let start = (name.context ^ name.word().wrapping_mul(0x9e37_79b9_7f4a_7c15)) as usize % ENTRIES;
        for index in 0..ENTRIES {
            let entry = DIRECTORY + (start + index) % ENTRIES * ENTRY;
            if let Some(offset) = enter(segment, entry, name)? {
                let last = segment.len() - MAILBOX;
                if !(FIRST..=last).contains(&offset) {
                    break;
                }
                return Ok(Self { segment: Arc::clone(segment), offset });
            }
        }
        Err(io::Error::other("the shared memory of a rank is full: too many communicators were made"))
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

/// Where the mailbox of this name is, if this entry is or becomes its own.
fn enter(segment: &Segment, entry: usize, name: Name) -> io::Result<Option<usize>> {
    let [state, context, word, place] = [0, 8, 16, 24].map(|offset| segment.word(entry + offset));
    let claimed = state.compare_exchange(EMPTY, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
    if claimed.is_ok() {
        let offset = segment.word(NEXT).fetch_add(MAILBOX as u64, Ordering::Relaxed);
        context.store(name.context, Ordering::Relaxed);
        word.store(name.word(), Ordering::Relaxed);
        place.store(offset, Ordering::Relaxed);
        state.store(READY, Ordering::Release);
        return Ok(Some(offset as usize));
    }
    let since = Instant::now();
    while state.load(Ordering::Acquire) != READY {
        if since.elapsed() > PATIENCE {
            return Err(io::Error::other("a rank stopped while it made a mailbox"));
        }
        std::thread::yield_now();
    }
    let is_ours =
        context.load(Ordering::Relaxed) == name.context && word.load(Ordering::Relaxed) == name.word();
    Ok(is_ours.then(|| place.load(Ordering::Relaxed) as usize))
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
        prepare(&segment);
        let one = Mailbox::open(&segment, name(1, 0)).unwrap();
        let same = Mailbox::open(&segment, name(1, 0)).unwrap();
        let other = Mailbox::open(&segment, name(1, 1)).unwrap();
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
    fn a_full_segment_says_so() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        prepare(&segment);
        let made = (0..5000).take_while(|from| Mailbox::open(&segment, name(*from, 0)).is_ok()).count();
        assert_eq!(made, 4000);
    }
}
