//! Mailboxes: where slices of one connection arrive, in the segment of the receiver.
//!
//! A segment begins with a word that says whether its owner sleeps, and with a directory of mailboxes by the names of their
//! connections. In a mailbox there are three rings:
//!
//! ```text
//!   page 0       how many slices the receiver has taken, and how many lines
//!   page 1 …     lines: the number of the slice, its mark, and up to 48 bytes of data
//!   …            short slots, for slices of up to 2 KiB
//!   …            long slots, for all others, which move on in them from round to round
//! ```
//!
//! A slice has the slot that its number says, and the next line; one that fits into its line costs one line on its way between two
//! cores. There are many more lines than long slots, so that a sender of small slices can be far ahead of the receiver: then each
//! of the two works on lines that the other is not at, and they wait for nothing.
//!
//! Small slices of a sender that is ahead share a line, two or three of them, each with its mark. The first word of the line says
//! how many there can be, and how many there are. If the next does not go there after all, it says that too.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railnet_coll::machine::Mark;

pub(crate) use super::directory::End;
use super::directory::{self, Directory, MAILBOXES};
use super::segment::Segment;
use super::words::{Word as _, Words};
use crate::transport::ConnectionName;
use crate::transport::limits::{DEPTH, SHARED_MEMORY_SLOT as SLOT};

/// Bytes of a long slot in which slices move on from round to round, where few ranks share a host. To write what is still in
/// the receiver's own cache takes twice as long as what has left it for one that both share: all slots together are more than that cache
/// holds. Every connection takes so much memory, which among many ranks would be too much.
const WANDERING: usize = 256 << 10;
const WANDERING_MOST: usize = 8;
/// Lines. Where ranks share cores, so many times three is how many small slices a root sends before it has to let others run.
pub(super) const LINES: u64 = 256;
/// Short slots, and the bytes of one.
pub(super) const SHORTS: u64 = 32;
const SHORT: usize = 2 << 10;
/// Bytes of a slice that travels in its line.
const INLINE: usize = 48;
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Where things begin in a mailbox.
const FIRST_LINE: usize = PAGE;
const FIRST_SHORT: usize = FIRST_LINE + LINES as usize * LINE;
const FIRST_LONG: usize = FIRST_SHORT + SHORTS as usize * SHORT;
/// Bytes of a mailbox.
const MAILBOX: usize = FIRST_LONG + DEPTH as usize * SLOT;
const _: () = assert!(FIRST_SHORT.is_multiple_of(PAGE) && FIRST_LONG.is_multiple_of(PAGE));

/// The word that says whether the owner of a segment sleeps.
const SLEEPING: usize = LINE;
/// An address in the owner's own memory, and the number that lies there.
const PROOF: usize = 3 * LINE;
const DIRECTORY: usize = PAGE;
const FIRST: usize = (DIRECTORY + directory::LENGTH).next_multiple_of(PAGE);

/// Bytes of a segment. Most of them are never touched.
pub(crate) const SEGMENT: usize = FIRST + MAILBOXES * MAILBOX;

/// The first word of a line is the number of its first slice and what follows. A slice whose data is not in its slot but in the
/// sender's own memory: the address comes after the mark.
const LENT: u64 = 1 << 63;
/// A slice whose place the sender needs soon: the receiver tells at once when it has taken it.
const URGENT: u64 = 1 << 62;
/// How many slices the line has room for, two bits, and how many more than one are there.
const ROOM: u32 = 60;
const MORE: u32 = 58;
/// The next slice is not in this line, though there is room for it.
const CLOSED: u64 = 1 << 57;
const NUMBER: u64 = CLOSED - 1;

/// Where a slice is among the lines: which line, counted from the first ever, which is 1; its place among those of the line; and
/// how many these can be. One word: parts that were just written, and are read as a whole, are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot(u64);

impl Spot {
    #[inline]
    pub(crate) const fn new(line: u64, cell: u64, cells: u64) -> Self {
        Self(line << 4 | cell << 2 | cells)
    }

    /// Of a slice that has a line alone.
    #[inline]
    pub(crate) const fn alone(line: u64) -> Self {
        Self::new(line, 0, 1)
    }

    #[inline]
    pub(crate) const fn line(self) -> u64 {
        self.0 >> 4
    }

    #[inline]
    const fn cell(self) -> u64 {
        self.0 >> 2 & 3
    }

    #[inline]
    const fn cells(self) -> u64 {
        self.0 & 3
    }

    /// The next place in the same line, if there is one.
    #[inline]
    pub(crate) const fn next(self) -> Option<Self> {
        if self.cell() + 1 < self.cells() { Some(Self(self.0 + (1 << 2))) } else { None }
    }

    /// How many slices of so many bytes a line has room for.
    #[inline]
    pub(crate) const fn room(length: usize) -> u64 {
        match length {
            0..=8 => 3,
            9..=16 => 2,
            _ => 1,
        }
    }

    /// Whether a slice of so many bytes fits.
    #[inline]
    pub(crate) const fn fits(self, length: usize) -> bool {
        Self::room(length) >= self.cells()
    }

    /// Bytes from its line's beginning to its mark; the data comes after that.
    #[inline]
    const fn offset(self) -> usize {
        let stride = if self.cells() == 3 { 16 } else { 24 };
        8 + self.cell() as usize * stride
    }
}

/// The ring that the data of a slice lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ring {
    Lines,
    Shorts,
    Longs,
}

impl Ring {
    /// Of a slice of so many bytes.
    #[inline]
    pub(super) const fn of(length: usize) -> Self {
        if length <= INLINE {
            Self::Lines
        } else if length <= SHORT {
            Self::Shorts
        } else {
            Self::Longs
        }
    }
}

/// What is at a place among the lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// A slice, in a line that has room for so many. Whether the sender wants to know at once when it was taken.
    Slice {
        mark: Mark,
        cells: u64,
        is_urgent: bool,
    },
    Nothing,
    /// Nothing ever: the next slice has the next line.
    Closed,
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
pub(crate) fn sleeps(segment: &impl Words) -> bool {
    segment.word(SLEEPING).load(Ordering::Relaxed) != 0
}

/// The owner of a segment has no more use for what comes to it from a communicator.
pub(crate) fn forget(segment: &Segment, context: u64) {
    Directory { segment, at: DIRECTORY }.forget(context);
}

/// A mailbox, as one end of a connection has it.
#[derive(Debug)]
pub(crate) struct Mailbox<M: Words = Segment> {
    segment: Arc<M>,
    offset: usize,
    entry: usize,
    end: End,
    /// Bytes of a long slot in which slices move on.
    wandering: usize,
}

impl<M: Words> Mailbox<M> {
    /// The mailbox of a connection, found or made, where so many ranks share a host.
    pub(crate) fn open(segment: &Arc<M>, name: ConnectionName, end: End, ranks: usize) -> io::Result<Self> {
        if segment.len() < SEGMENT {
            return Err(io::Error::other("the shared memory of a rank is too short for mailboxes"));
        }
        let offset = |mailbox: usize| FIRST + mailbox * MAILBOX;
        let prepare = |mailbox: usize| {
            let lines = (0..M::LINES as usize).map(|line| FIRST_LINE + line * LINE);
            for word in [0, 8].into_iter().chain(lines) {
                segment.word(offset(mailbox) + word).store(0, Ordering::Relaxed);
            }
        };
        let (entry, mailbox) = Directory { segment: &**segment, at: DIRECTORY }.enter(name, prepare)?;
        let wandering = if ranks <= WANDERING_MOST { WANDERING } else { 0 };
        Ok(Self { segment: Arc::clone(segment), offset: offset(mailbox), entry, end, wandering })
    }

    /// Where a line begins.
    #[inline]
    fn line(&self, line: u64) -> usize {
        self.offset + FIRST_LINE + ((line - 1) % M::LINES) as usize * LINE
    }

    /// Where the data of a slice of so many bytes lies.
    #[inline(always)]
    pub(crate) fn data(&self, number: u64, spot: Spot, length: usize) -> *mut u8 {
        let place = match Ring::of(length) {
            // What is too long for its place is not what was sent there, and nobody looks at it.
            Ring::Lines if spot.fits(length) => self.line(spot.line()) + spot.offset() + 8,
            _ => self.slot(number, length),
        };
        self.segment.pointer(place, length)
    }

    /// Gets the pages in which slices of a long slot move on: one after the other they would make each of many slices late.
    #[cold]
    pub(super) fn populate(&self, number: u64) {
        let slot = ((number - 1) % M::LONGS) as usize;
        if self.wandering > 0 {
            self.segment.populate(self.offset + FIRST_LONG + slot * SLOT, self.wandering);
        }
    }

    /// Makes a line of the slot of a slice this core's.
    pub(super) fn touch(&self, number: u64, length: usize, line: usize) {
        debug_assert!((line + 1) * LINE <= length, "line {line} of {length} bytes");
        self.segment.word(self.slot(number, length) + line * LINE).swap(0, Ordering::Relaxed);
    }

    /// Where the slot of a slice begins.
    #[inline]
    fn slot(&self, number: u64, length: usize) -> usize {
        assert!(length <= SLOT, "a slice of {length} bytes");
        let (index, many) = (number - 1, M::LONGS);
        let place = |ring: u64| (index % ring) as usize;
        match Ring::of(length) {
            Ring::Lines | Ring::Shorts => self.offset + FIRST_SHORT + place(M::SHORTS) * SHORT,
            Ring::Longs => {
                let stride = length.next_power_of_two();
                let part = (index / many) as usize % (self.wandering / stride).max(1);
                self.offset + FIRST_LONG + place(many) * SLOT + part * stride
            }
        }
    }

    /// Hands over the slice with this number after its data was written.
    ///
    /// A receiver that goes to sleep in the same moment may miss it until it looks again, which it does every
    /// millisecond. A fence would not let it: but a fence waits until the line has come from the other core, for every
    /// slice, and that is a third of the time that a small call takes.
    #[inline]
    pub(crate) fn publish(&self, number: u64, spot: Spot, mark: Mark, is_urgent: bool, is_lent: bool) {
        let line = self.line(spot.line());
        self.segment.word(line + spot.offset()).store(mark.0, Ordering::Relaxed);
        let flags = if is_lent { LENT } else { 0 } | if is_urgent { URGENT } else { 0 };
        self.segment.word(line).store(first_word(number, spot) | flags, Ordering::Release);
    }

    /// Says that what comes after the slice with this number has the next line.
    #[inline]
    pub(crate) fn close(&self, number: u64, spot: Spot) {
        self.segment.word(self.line(spot.line())).store(first_word(number, spot) | CLOSED, Ordering::Release);
    }

    /// Begins to fetch a line that will be written.
    #[inline]
    pub(crate) fn fetch_to_write(&self, line: u64) {
        self.segment.fetch_to_write(self.line(line));
    }

    /// Begins to fetch a line in which something may be already.
    #[inline]
    pub(crate) fn fetch(&self, line: u64) {
        self.segment.fetch(self.line(line));
    }

    /// Says where the data of a slice lies, which has a line alone, instead of copying it to its slot.
    #[inline]
    pub(crate) fn lend(&self, line: u64, address: u64) {
        self.segment.word(self.line(line) + 16).store(address, Ordering::Relaxed);
    }

    /// Where the data of the slice in a line lies, if that is not its own place.
    #[inline]
    pub(crate) fn lent(&self, line: u64) -> Option<u64> {
        let line = self.line(line);
        let is_lent = self.segment.word(line).load(Ordering::Acquire) & LENT != 0;
        is_lent.then(|| self.segment.word(line + 16).load(Ordering::Relaxed))
    }

    /// The data of the slice in a line is the sender's again. Whoever reads it looks afterwards whether it was lent all the time.
    pub(crate) fn take_back(&self, line: u64) {
        self.segment.word(self.line(line)).swap(0, Ordering::SeqCst);
    }

    /// The slice with this number, if it is there: in this line, behind so many others.
    #[inline]
    pub(crate) fn look(&self, number: u64, line: u64, cell: u64) -> Found {
        let at = self.line(line);
        let found = self.segment.word(at).load(Ordering::Acquire);
        if found & NUMBER != number - cell {
            return Found::Nothing;
        }
        if found >> MORE & 3 >= cell {
            let cells = found >> ROOM & 3;
            let offset = Spot::new(line, cell, cells).offset();
            let mark = Mark(self.segment.word(at + offset).load(Ordering::Relaxed));
            return Found::Slice { mark, cells, is_urgent: found & URGENT != 0 };
        }
        if found & CLOSED == 0 { Found::Nothing } else { Found::Closed }
    }

    /// Says how many slices were taken, and how many lines.
    #[inline]
    pub(crate) fn set_taken(&self, number: u64, lines: u64) {
        self.segment.word(self.offset + 8).store(lines, Ordering::Release);
        self.segment.word(self.offset).store(number, Ordering::Release);
    }

    /// How many slices were taken, and lines. These may be of a later moment than those, so each is acquired by itself.
    #[inline]
    pub(crate) fn taken(&self) -> (u64, u64) {
        let number = self.segment.word(self.offset).load(Ordering::Acquire);
        (number, self.segment.word(self.offset + 8).load(Ordering::Acquire))
    }
}

/// The first word of the line of a slice, once that is there.
#[inline]
const fn first_word(number: u64, spot: Spot) -> u64 {
    (number - spot.cell()) | spot.cells() << ROOM | spot.cell() << MORE
}

/// The words of a segment with one mailbox, for a connection of this name: for memory that has no others.
#[cfg(test)]
pub(super) fn words_of<M: Words + 'static>(name: ConnectionName) -> impl Iterator<Item = usize> {
    let lines = (0..M::LINES as usize * LINE).step_by(8).map(|word| FIRST + FIRST_LINE + word);
    Directory::<M>::words_of(DIRECTORY, name).chain([SLEEPING, FIRST, FIRST + 8]).chain(lines)
}

impl<M: Words> Drop for Mailbox<M> {
    fn drop(&mut self) {
        Directory { segment: &*self.segment, at: DIRECTORY }.leave(self.entry, self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(from: u32, lane: u8) -> ConnectionName {
        ConnectionName { context: 1, from, channel: 0, lane }
    }

    #[test]
    fn both_ends_find_the_same_mailbox_and_others_another() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let one = Mailbox::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        let same = Mailbox::open(&segment, name(1, 0), End::Receiver, 2).unwrap();
        let other = Mailbox::open(&segment, name(1, 1), End::Sender, 2).unwrap();
        assert_eq!(one.offset, same.offset);
        assert!(one.offset.abs_diff(other.offset) >= MAILBOX);
        let slice = |mark, cells, is_urgent| Found::Slice { mark: Mark(mark), cells, is_urgent };
        one.publish(9, Spot::alone(7), Mark(5), true, false);
        assert_eq!(same.look(9, 7, 0), slice(5, 1, true));
        assert_eq!(same.look(9 + LINES, 7 + LINES, 0), Found::Nothing);
        assert_eq!(other.look(9, 7, 0), Found::Nothing);
        assert_eq!(same.lent(7), None);
        one.lend(8, 0x1234);
        one.publish(10, Spot::alone(8), Mark(6), true, true);
        assert_eq!((same.look(10, 8, 0), same.lent(8)), (slice(6, 1, true), Some(0x1234)));
        one.take_back(8);
        assert_eq!((same.look(10, 8, 0), same.lent(8)), (Found::Nothing, None));
    }

    /// Two or three in a line: each is there when it was handed over, with data of its own, and what comes after a line that was
    /// closed is not looked for in it.
    #[test]
    fn small_slices_share_a_line() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let mailbox = Mailbox::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        for (line, length) in [(1, 8), (2, 16), (2 + LINES, 5)] {
            let cells = Spot::room(length);
            let spots: Vec<Spot> =
                std::iter::successors(Some(Spot::new(line, 0, cells)), |spot| spot.next()).collect();
            assert_eq!(spots.len() as u64, cells);
            let data = |spot: Spot| mailbox.data(1, spot, length) as usize;
            let start = mailbox.data(1, Spot::alone(line), 1) as usize - 16;
            let first = 100 + line;
            for (number, spot) in (first..).zip(&spots) {
                assert_eq!(mailbox.look(number, line, number - first), Found::Nothing);
                mailbox.publish(number, *spot, Mark(number), false, false);
                for (number, cell) in (first..=number).zip(0..) {
                    let found = Found::Slice { mark: Mark(number), cells, is_urgent: false };
                    assert_eq!(mailbox.look(number, line, cell), found);
                }
                // After its mark, and before the next one's or the end of the line.
                assert!(data(*spot) >= start + 16 && data(*spot) + length <= start + LINE);
                assert!(spot.next().is_none_or(|next| data(*spot) + length + 8 <= data(next)));
            }
        }
        mailbox.publish(7, Spot::new(5, 0, 3), Mark(7), false, false);
        assert_eq!(mailbox.look(8, 5, 1), Found::Nothing);
        mailbox.close(7, Spot::new(5, 0, 3));
        assert_eq!(mailbox.look(8, 5, 1), Found::Closed);
        assert_eq!(mailbox.look(7, 5, 0), Found::Slice { mark: Mark(7), cells: 3, is_urgent: false });
    }

    #[test]
    fn data_of_slices_that_are_there_together_does_not_overlap() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let mailbox = Mailbox::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        let last = Mailbox::open(&segment, name(1, 1), End::Sender, 2).unwrap();
        let at =
            |mailbox: &Mailbox, number, length| mailbox.data(number, Spot::alone(number), length) as usize;
        let start = |mailbox: &Mailbox| at(mailbox, 1, 1) - 16 - FIRST_LINE;
        let end = start(&mailbox) + MAILBOX;
        assert_eq!(start(&last), end);
        for (length, ring) in [(INLINE, LINES), (SHORT, SHORTS), (SLOT, u64::from(DEPTH))] {
            let mut places: Vec<usize> = (1..=ring).map(|number| at(&mailbox, number, length)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0] + length <= pair[1]), "{length}");
            assert!(places[ring as usize - 1] + length <= end, "{length}");
            // The next has the place of the first.
            assert_eq!(at(&mailbox, 1 + ring, length), at(&mailbox, 1, length));
        }
        // Long slices that do not fill their slots move on in them, and come back.
        let depth = u64::from(DEPTH);
        for length in [SHORT + 1, 5000, 1 << 16, WANDERING] {
            let rounds = (WANDERING / length.next_power_of_two()) as u64;
            let at = |number: u64| at(&mailbox, number, length) - at(&mailbox, 1, SLOT);
            for number in 1..=depth * rounds {
                let slot = (number - 1) as usize % DEPTH as usize * SLOT;
                assert!(at(number) >= slot && at(number) + length <= slot + SLOT, "{number} of {length}");
                assert!(rounds == 1 || at(number) != at(number + depth), "{number} of {length}");
                assert_eq!(at(number), at(number + depth * rounds), "{number} of {length}");
            }
        }
        let many = Mailbox::open(&segment, name(1, 0), End::Sender, WANDERING_MOST + 1).unwrap();
        assert_eq!(at(&many, 1 + depth, 5000), at(&many, 1, 5000));
    }

    #[test]
    fn a_mailbox_that_both_ends_have_left_is_used_again_and_nothing_is_left_in_it() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let sender = Mailbox::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        let place = sender.offset;
        sender.publish(1, Spot::alone(1), Mark(5), false, false);
        drop(sender);
        // What was sent is there for a receiver that comes after the sender has left.
        let receiver = Mailbox::open(&segment, name(1, 0), End::Receiver, 2).unwrap();
        assert_eq!(receiver.offset, place);
        assert!(matches!(receiver.look(1, 1, 0), Found::Slice { mark: Mark(5), .. }));
        let other = Mailbox::open(&segment, name(2, 0), End::Receiver, 2).unwrap();
        assert_ne!(other.offset, place);
        receiver.set_taken(1, 1);
        drop(receiver);
        let next = Mailbox::open(&segment, name(3, 0), End::Receiver, 2).unwrap();
        assert_eq!((next.offset, next.look(1, 1, 0), next.taken()), (place, Found::Nothing, (0, 0)));
        // One that its receiver never looked into is given up with its communicator.
        let unread = Mailbox::open(&segment, name(4, 0), End::Sender, 2).unwrap();
        let place = unread.offset;
        drop((unread, next, other));
        forget(&segment, 1);
        let next = Mailbox::open(&segment, name(5, 0), End::Sender, 2).unwrap();
        assert_eq!(next.offset, place);
    }

    #[test]
    fn names_are_found_whatever_came_and_went_before() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let mut dice = railnet_core::Random::from_seed(3);
        let mut there: Vec<(u32, [Mailbox; 2])> = Vec::new();
        // Not left before the end: there was a sender before.
        let mut kept = Vec::new();
        for from in 0..40_000 {
            let open = |end| Mailbox::open(&segment, name(from, 0), end, 2).unwrap();
            there.push((from, [open(End::Sender), open(End::Receiver)]));
            if there.len() == 3990 || dice.below(3) == 0 {
                there.swap_remove(dice.below(there.len() as u64) as usize);
            }
            if from % 1000 == 0 {
                for (from, [one, other]) in &there {
                    let found = Mailbox::open(&segment, name(*from, 0), End::Sender, 2).unwrap();
                    assert_eq!((one.offset, found.offset), (other.offset, one.offset));
                    kept.push(found);
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
        let open = |from| Mailbox::open(&segment, name(from, 0), End::Sender, 2);
        let made: Vec<Mailbox> = (0..5000).map_while(|from| open(from).ok()).collect();
        assert_eq!(made.len(), MAILBOXES);
    }
}
