//! The rings of one connection, in the segment of the receiver.
//!
//! A segment begins with a word that says whether its owner blocks, and with a directory that finds the rings of a connection
//! by its name. A connection has three rings:
//!
//! ```text
//!   page 0       how many slices the receiver has taken, and how many lines
//!   page 1 …     cache lines: the number of the slice, its operation tag, and up to 48 bytes of data
//!   …            short slots, for slices of up to 2 KiB
//!   …            long slots, for all others, which rotate within the slot
//! ```
//!
//! The number of a slice determines its slot; it also takes the next cache line. A slice whose data fits into the line costs
//! one cache-line transfer between the two cores. There are many more lines than long slots, so that the sender of small slices
//! can be far ahead of the receiver: then the two work on different lines, and neither stalls.
//!
//! A sender that is ahead packs two or three small slices into one line, each with its tag. The first word of the line has its
//! capacity and how many slices are there; a flag closes a line before it is full.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railnet_coll::machine::Mark;

use super::atomics::{AtomicMemory, AtomicWord as _};
pub(crate) use super::directory::End;
use super::directory::{self, CONNECTIONS_MAX, Directory};
use super::segment::Segment;
use crate::transport::ConnectionName;
use crate::transport::limits::{DEPTH, SHARED_MEMORY_SLOT as SLOT};

/// Bytes of a long slot within which slices rotate, where few ranks share a host. To write a line that is still in the
/// receiver's private cache takes twice as long as one that was evicted to the shared cache: the slots together exceed the
/// private cache. Every connection takes this much memory, which is too much among many ranks.
const ROTATION: usize = 256 << 10;
const ROTATION_RANKS_MAX: usize = 8;
/// Cache lines of a ring. Where ranks share cores, a root sends three times as many small slices before it has to yield.
pub(super) const LINES: u64 = 256;
/// Short slots, and the bytes of one.
pub(super) const SHORT_SLOTS: u64 = 32;
const SHORT_SLOT: usize = 2 << 10;
/// The most bytes of a slice whose data is in its line.
const INLINE_MAX: usize = 48;
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Offsets of the rings of a connection.
const FIRST_LINE: usize = PAGE;
const FIRST_SHORT: usize = FIRST_LINE + LINES as usize * LINE;
const FIRST_LONG: usize = FIRST_SHORT + SHORT_SLOTS as usize * SHORT_SLOT;
/// Bytes of the rings of a connection.
const RINGS_LENGTH: usize = FIRST_LONG + DEPTH as usize * SLOT;
const _: () = assert!(FIRST_SHORT.is_multiple_of(PAGE) && FIRST_LONG.is_multiple_of(PAGE));

/// Offset of the word that says whether the owner of a segment blocks.
const BLOCKED: usize = LINE;
/// Offset of the probe: an address in the owner's own memory, and the number there.
const PROBE: usize = 3 * LINE;
const DIRECTORY: usize = PAGE;
const FIRST: usize = (DIRECTORY + directory::LENGTH).next_multiple_of(PAGE);

/// Bytes of a segment. Most pages are never touched.
pub(crate) const SEGMENT: usize = FIRST + CONNECTIONS_MAX * RINGS_LENGTH;

/// The first word of a line: the number of its first slice, and flags. With this one the data of the slice is not in its slot
/// but in the sender's own memory, and the address follows the tag.
const ZERO_COPY: u64 = 1 << 63;
/// The sender needs the slot soon: the receiver returns the credit as soon as it has taken the slice.
const URGENT: u64 = 1 << 62;
/// Shifts of two fields of two bits: the capacity of the line in slices, and how many more than one are there.
const CAPACITY: u32 = 60;
const COUNT: u32 = 58;
/// The line is closed: the next slice is in the next line, though this one has room.
const CLOSED: u64 = 1 << 57;
const NUMBER: u64 = CLOSED - 1;

/// The index of a slice among the lines: which line, counted from the first ever, which is 1; its index in the line; and the
/// capacity of the line. One word, because separate fields that are read as a whole right after a store stall store forwarding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LineSlot(u64);

impl LineSlot {
    #[inline]
    pub(crate) const fn new(line: u64, index: u64, capacity: u64) -> Self {
        Self(line << 4 | index << 2 | capacity)
    }

    /// A line with one slice.
    #[inline]
    pub(crate) const fn exclusive(line: u64) -> Self {
        Self::new(line, 0, 1)
    }

    #[inline]
    pub(crate) const fn line(self) -> u64 {
        self.0 >> 4
    }

    #[inline]
    const fn index(self) -> u64 {
        self.0 >> 2 & 3
    }

    #[inline]
    const fn capacity(self) -> u64 {
        self.0 & 3
    }

    /// The next index in the same line, if there is one.
    #[inline]
    pub(crate) const fn next(self) -> Option<Self> {
        if self.index() + 1 < self.capacity() { Some(Self(self.0 + (1 << 2))) } else { None }
    }

    /// How many slices of so many bytes fit into a line.
    #[inline]
    pub(crate) const fn capacity_for(length: usize) -> u64 {
        match length {
            0..=8 => 3,
            9..=16 => 2,
            _ => 1,
        }
    }

    /// Whether a slice of so many bytes fits at this index.
    #[inline]
    pub(crate) const fn fits(self, length: usize) -> bool {
        Self::capacity_for(length) >= self.capacity()
    }

    /// Bytes from the beginning of the line to the slice's tag; its data follows.
    #[inline]
    const fn offset(self) -> usize {
        let stride = if self.capacity() == 3 { 16 } else { 24 };
        8 + self.index() as usize * stride
    }
}

/// Where the data of a slice is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotKind {
    Inline,
    Short,
    Long,
}

impl SlotKind {
    /// By the bytes of the slice.
    #[inline]
    pub(super) const fn of(length: usize) -> Self {
        if length <= INLINE_MAX {
            Self::Inline
        } else if length <= SHORT_SLOT {
            Self::Short
        } else {
            Self::Long
        }
    }
}

/// The state of an index of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// A slice, and the capacity of its line. Whether the sender wants the credit at once.
    Slice {
        mark: Mark,
        capacity: u64,
        is_urgent: bool,
    },
    Nothing,
    /// The line is closed here: the next slice is in the next line.
    Closed,
}

/// Publishes a number at an address of this process, by which peers find out whether they can read its memory.
pub(crate) fn set_probe(segment: &Segment, address: u64, number: u64) {
    segment.word(PROBE + 8).store(number, Ordering::Relaxed);
    segment.word(PROBE).store(address, Ordering::Release);
}

/// The probe of the owner of a segment: the address, and the number.
pub(crate) fn probe(segment: &Segment) -> (u64, u64) {
    let address = segment.word(PROBE).load(Ordering::Acquire);
    (address, segment.word(PROBE + 8).load(Ordering::Relaxed))
}

/// Says whether the owner of a segment blocks. It polls once more after this, before it blocks.
pub(crate) fn set_blocked(segment: &Segment, is_blocked: bool) {
    segment.word(BLOCKED).swap(u64::from(is_blocked), Ordering::SeqCst);
}

/// Whether the owner of a segment blocks.
#[inline]
pub(crate) fn is_blocked(segment: &impl AtomicMemory) -> bool {
    segment.word(BLOCKED).load(Ordering::Relaxed) != 0
}

/// The owner of a segment receives nothing more of a communicator.
pub(crate) fn forget(segment: &Segment, context: u64) {
    Directory { segment, at: DIRECTORY }.forget(context);
}

/// The rings of a connection, as one of its ends has them.
#[derive(Debug)]
pub(crate) struct Rings<M: AtomicMemory = Segment> {
    segment: Arc<M>,
    offset: usize,
    entry: usize,
    end: End,
    /// Bytes of a long slot within which slices rotate.
    rotation: usize,
}

impl<M: AtomicMemory> Rings<M> {
    /// Finds or creates the rings of a connection, where so many ranks share a host.
    pub(crate) fn open(segment: &Arc<M>, name: ConnectionName, end: End, ranks: usize) -> io::Result<Self> {
        if segment.len() < SEGMENT {
            return Err(io::Error::other("the shared memory of a rank is too short for its rings"));
        }
        let offset = |rings: usize| FIRST + rings * RINGS_LENGTH;
        let prepare = |rings: usize| {
            let lines = (0..M::LINES as usize).map(|line| FIRST_LINE + line * LINE);
            for word in [0, 8].into_iter().chain(lines) {
                segment.word(offset(rings) + word).store(0, Ordering::Relaxed);
            }
        };
        let (entry, rings) = Directory { segment: &**segment, at: DIRECTORY }.enter(name, prepare)?;
        let rotation = if ranks <= ROTATION_RANKS_MAX { ROTATION } else { 0 };
        Ok(Self { segment: Arc::clone(segment), offset: offset(rings), entry, end, rotation })
    }

    /// The offset of a line.
    #[inline]
    fn line(&self, line: u64) -> usize {
        self.offset + FIRST_LINE + ((line - 1) % M::LINES) as usize * LINE
    }

    /// The address of the data of a slice.
    #[inline(always)]
    pub(crate) fn data(&self, number: u64, line_slot: LineSlot, length: usize) -> *mut u8 {
        let place = match SlotKind::of(length) {
            // A slice that does not fit was not sent like this, and nothing reads it.
            SlotKind::Inline if line_slot.fits(length) => {
                self.line(line_slot.line()) + line_slot.offset() + 8
            }
            _ => self.slot(number, length),
        };
        self.segment.pointer(place, length)
    }

    /// Populates the pages within which slices of a long slot rotate: page faults one after the other would delay each of many
    /// slices.
    #[cold]
    pub(super) fn populate(&self, number: u64) {
        let slot = ((number - 1) % M::LONG_SLOTS) as usize;
        if self.rotation > 0 {
            self.segment.populate(self.offset + FIRST_LONG + slot * SLOT, self.rotation);
        }
    }

    /// Takes ownership of a line of a slot for this core's cache.
    pub(super) fn touch(&self, number: u64, length: usize, line: usize) {
        debug_assert!((line + 1) * LINE <= length, "line {line} of {length} bytes");
        self.segment.word(self.slot(number, length) + line * LINE).swap(0, Ordering::Relaxed);
    }

    /// The offset of the slot of a slice.
    #[inline]
    fn slot(&self, number: u64, length: usize) -> usize {
        assert!(length <= SLOT, "a slice of {length} bytes");
        let (index, many) = (number - 1, M::LONG_SLOTS);
        let place = |ring: u64| (index % ring) as usize;
        match SlotKind::of(length) {
            SlotKind::Inline | SlotKind::Short => {
                self.offset + FIRST_SHORT + place(M::SHORT_SLOTS) * SHORT_SLOT
            }
            SlotKind::Long => {
                let stride = length.next_power_of_two();
                let part = (index / many) as usize % (self.rotation / stride).max(1);
                self.offset + FIRST_LONG + place(many) * SLOT + part * stride
            }
        }
    }

    /// Hands over the slice with this number after its data was written.
    ///
    /// A receiver that blocks at the same moment may miss it until it polls again, which it does every millisecond. A full
    /// fence would prevent that, but it waits until the line has arrived from the other core, for every slice, which is a third
    /// of the time of a small call.
    #[inline]
    pub(crate) fn publish(
        &self,
        number: u64,
        line_slot: LineSlot,
        mark: Mark,
        is_urgent: bool,
        is_zero_copy: bool,
    ) {
        let line = self.line(line_slot.line());
        self.segment.word(line + line_slot.offset()).store(mark.0, Ordering::Relaxed);
        let flags = if is_zero_copy { ZERO_COPY } else { 0 } | if is_urgent { URGENT } else { 0 };
        self.segment.word(line).store(first_word(number, line_slot) | flags, Ordering::Release);
    }

    /// Closes the line behind the slice with this number.
    #[inline]
    pub(crate) fn close(&self, number: u64, line_slot: LineSlot) {
        self.segment
            .word(self.line(line_slot.line()))
            .store(first_word(number, line_slot) | CLOSED, Ordering::Release);
    }

    /// Prefetches a line that will be written.
    #[inline]
    pub(crate) fn prefetch_for_write(&self, line: u64) {
        self.segment.prefetch_for_write(self.line(line));
    }

    /// Prefetches a line in which a slice may be already.
    #[inline]
    pub(crate) fn prefetch(&self, line: u64) {
        self.segment.prefetch(self.line(line));
    }

    /// The data of the slice that has this line for itself is at this address of the sender's memory, and not in its slot.
    #[inline]
    pub(crate) fn set_source(&self, line: u64, address: u64) {
        self.segment.word(self.line(line) + 16).store(address, Ordering::Relaxed);
    }

    /// The address of the slice's data in the sender's memory, if it was sent zero-copy.
    #[inline]
    pub(crate) fn source(&self, line: u64) -> Option<u64> {
        let line = self.line(line);
        let is_zero_copy = self.segment.word(line).load(Ordering::Acquire) & ZERO_COPY != 0;
        is_zero_copy.then(|| self.segment.word(line + 16).load(Ordering::Relaxed))
    }

    /// Revokes a zero-copy slice: its buffer is the caller's again. A receiver checks after reading whether it was revoked
    /// meanwhile.
    pub(crate) fn revoke(&self, line: u64) {
        self.segment.word(self.line(line)).swap(0, Ordering::SeqCst);
    }

    /// Polls for the slice with this number, at this index of this line.
    #[inline]
    pub(crate) fn poll(&self, number: u64, line: u64, index: u64) -> Found {
        let at = self.line(line);
        let found = self.segment.word(at).load(Ordering::Acquire);
        if found & NUMBER != number - index {
            return Found::Nothing;
        }
        if found >> COUNT & 3 >= index {
            let capacity = found >> CAPACITY & 3;
            let offset = LineSlot::new(line, index, capacity).offset();
            let mark = Mark(self.segment.word(at + offset).load(Ordering::Relaxed));
            return Found::Slice { mark, capacity, is_urgent: found & URGENT != 0 };
        }
        if found & CLOSED == 0 { Found::Nothing } else { Found::Closed }
    }

    /// Returns credits: how many slices the receiver has taken, and how many lines.
    #[inline]
    pub(crate) fn set_taken(&self, number: u64, lines: u64) {
        self.segment.word(self.offset + 8).store(lines, Ordering::Release);
        self.segment.word(self.offset).store(number, Ordering::Release);
    }

    /// How many slices the receiver has taken, and how many lines. The second may be newer than the first, so each is acquired
    /// by itself.
    #[inline]
    pub(crate) fn taken(&self) -> (u64, u64) {
        let number = self.segment.word(self.offset).load(Ordering::Acquire);
        (number, self.segment.word(self.offset + 8).load(Ordering::Acquire))
    }
}

/// The first word of the line of a slice that is there.
#[inline]
const fn first_word(number: u64, line_slot: LineSlot) -> u64 {
    (number - line_slot.index()) | line_slot.capacity() << CAPACITY | line_slot.index() << COUNT
}

/// Offsets of all words that a connection of this name reaches: for a memory model that has no others.
#[cfg(test)]
pub(super) fn words_of<M: AtomicMemory + 'static>(name: ConnectionName) -> impl Iterator<Item = usize> {
    let lines = (0..M::LINES as usize * LINE).step_by(8).map(|word| FIRST + FIRST_LINE + word);
    Directory::<M>::words_of(DIRECTORY, name).chain([BLOCKED, FIRST, FIRST + 8]).chain(lines)
}

impl<M: AtomicMemory> Drop for Rings<M> {
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
    fn both_ends_find_the_same_rings_and_others_others() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let one = Rings::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        let same = Rings::open(&segment, name(1, 0), End::Receiver, 2).unwrap();
        let other = Rings::open(&segment, name(1, 1), End::Sender, 2).unwrap();
        assert_eq!(one.offset, same.offset);
        assert!(one.offset.abs_diff(other.offset) >= RINGS_LENGTH);
        let slice = |mark, capacity, is_urgent| Found::Slice { mark: Mark(mark), capacity, is_urgent };
        one.publish(9, LineSlot::exclusive(7), Mark(5), true, false);
        assert_eq!(same.poll(9, 7, 0), slice(5, 1, true));
        assert_eq!(same.poll(9 + LINES, 7 + LINES, 0), Found::Nothing);
        assert_eq!(other.poll(9, 7, 0), Found::Nothing);
        assert_eq!(same.source(7), None);
        one.set_source(8, 0x1234);
        one.publish(10, LineSlot::exclusive(8), Mark(6), true, true);
        assert_eq!((same.poll(10, 8, 0), same.source(8)), (slice(6, 1, true), Some(0x1234)));
        one.revoke(8);
        assert_eq!((same.poll(10, 8, 0), same.source(8)), (Found::Nothing, None));
    }

    /// Two or three slices in a line: each is found once it was handed over, with its own data, and nothing is looked for
    /// behind the end of a closed line.
    #[test]
    fn small_slices_share_a_line() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let rings = Rings::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        for (line, length) in [(1, 8), (2, 16), (2 + LINES, 5)] {
            let capacity = LineSlot::capacity_for(length);
            let line_slots: Vec<LineSlot> =
                std::iter::successors(Some(LineSlot::new(line, 0, capacity)), |line_slot| line_slot.next())
                    .collect();
            assert_eq!(line_slots.len() as u64, capacity);
            let data = |line_slot: LineSlot| rings.data(1, line_slot, length) as usize;
            let start = rings.data(1, LineSlot::exclusive(line), 1) as usize - 16;
            let first = 100 + line;
            for (number, line_slot) in (first..).zip(&line_slots) {
                assert_eq!(rings.poll(number, line, number - first), Found::Nothing);
                rings.publish(number, *line_slot, Mark(number), false, false);
                for (number, index) in (first..=number).zip(0..) {
                    let found = Found::Slice { mark: Mark(number), capacity, is_urgent: false };
                    assert_eq!(rings.poll(number, line, index), found);
                }
                // After its mark, and before the next one's or the end of the line.
                assert!(data(*line_slot) >= start + 16 && data(*line_slot) + length <= start + LINE);
                assert!(line_slot.next().is_none_or(|next| data(*line_slot) + length + 8 <= data(next)));
            }
        }
        rings.publish(7, LineSlot::new(5, 0, 3), Mark(7), false, false);
        assert_eq!(rings.poll(8, 5, 1), Found::Nothing);
        rings.close(7, LineSlot::new(5, 0, 3));
        assert_eq!(rings.poll(8, 5, 1), Found::Closed);
        assert_eq!(rings.poll(7, 5, 0), Found::Slice { mark: Mark(7), capacity: 3, is_urgent: false });
    }

    #[test]
    fn data_of_slices_that_are_there_together_does_not_overlap() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let rings = Rings::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        let last = Rings::open(&segment, name(1, 1), End::Sender, 2).unwrap();
        let at =
            |rings: &Rings, number, length| rings.data(number, LineSlot::exclusive(number), length) as usize;
        let start = |rings: &Rings| at(rings, 1, 1) - 16 - FIRST_LINE;
        let end = start(&rings) + RINGS_LENGTH;
        assert_eq!(start(&last), end);
        for (length, ring) in [(INLINE_MAX, LINES), (SHORT_SLOT, SHORT_SLOTS), (SLOT, u64::from(DEPTH))] {
            let mut places: Vec<usize> = (1..=ring).map(|number| at(&rings, number, length)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0] + length <= pair[1]), "{length}");
            assert!(places[ring as usize - 1] + length <= end, "{length}");
            // The ring wraps around.
            assert_eq!(at(&rings, 1 + ring, length), at(&rings, 1, length));
        }
        // Long slices that do not fill their slots rotate within them.
        let depth = u64::from(DEPTH);
        for length in [SHORT_SLOT + 1, 5000, 1 << 16, ROTATION] {
            let rounds = (ROTATION / length.next_power_of_two()) as u64;
            let at = |number: u64| at(&rings, number, length) - at(&rings, 1, SLOT);
            for number in 1..=depth * rounds {
                let slot = (number - 1) as usize % DEPTH as usize * SLOT;
                assert!(at(number) >= slot && at(number) + length <= slot + SLOT, "{number} of {length}");
                assert!(rounds == 1 || at(number) != at(number + depth), "{number} of {length}");
                assert_eq!(at(number), at(number + depth * rounds), "{number} of {length}");
            }
        }
        let many = Rings::open(&segment, name(1, 0), End::Sender, ROTATION_RANKS_MAX + 1).unwrap();
        assert_eq!(at(&many, 1 + depth, 5000), at(&many, 1, 5000));
    }

    #[test]
    fn rings_that_both_ends_have_left_are_reused_and_nothing_is_left_in_them() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let sender = Rings::open(&segment, name(1, 0), End::Sender, 2).unwrap();
        let place = sender.offset;
        sender.publish(1, LineSlot::exclusive(1), Mark(5), false, false);
        drop(sender);
        // What was sent is there for a receiver that opens after the sender has left.
        let receiver = Rings::open(&segment, name(1, 0), End::Receiver, 2).unwrap();
        assert_eq!(receiver.offset, place);
        assert!(matches!(receiver.poll(1, 1, 0), Found::Slice { mark: Mark(5), .. }));
        let other = Rings::open(&segment, name(2, 0), End::Receiver, 2).unwrap();
        assert_ne!(other.offset, place);
        receiver.set_taken(1, 1);
        drop(receiver);
        let next = Rings::open(&segment, name(3, 0), End::Receiver, 2).unwrap();
        assert_eq!((next.offset, next.poll(1, 1, 0), next.taken()), (place, Found::Nothing, (0, 0)));
        // Rings that the receiver never opened are freed with their communicator.
        let unread = Rings::open(&segment, name(4, 0), End::Sender, 2).unwrap();
        let place = unread.offset;
        drop((unread, next, other));
        forget(&segment, 1);
        let next = Rings::open(&segment, name(5, 0), End::Sender, 2).unwrap();
        assert_eq!(next.offset, place);
    }

    #[test]
    fn names_are_found_whatever_came_and_went_before() {
        let segment = Arc::new(Segment::create(SEGMENT).unwrap());
        let mut random = railnet_core::Random::from_seed(3);
        let mut there: Vec<(u32, [Rings; 2])> = Vec::new();
        // Not left before the end: there was a sender before.
        let mut kept = Vec::new();
        for from in 0..40_000 {
            let open = |end| Rings::open(&segment, name(from, 0), end, 2).unwrap();
            there.push((from, [open(End::Sender), open(End::Receiver)]));
            if there.len() == 3990 || random.below(3) == 0 {
                there.swap_remove(random.below(there.len() as u64) as usize);
            }
            if from % 1000 == 0 {
                for (from, [one, other]) in &there {
                    let found = Rings::open(&segment, name(*from, 0), End::Sender, 2).unwrap();
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
        let open = |from| Rings::open(&segment, name(from, 0), End::Sender, 2);
        let made: Vec<Rings> = (0..5000).map_while(|from| open(from).ok()).collect();
        assert_eq!(made.len(), CONNECTIONS_MAX);
    }
}
