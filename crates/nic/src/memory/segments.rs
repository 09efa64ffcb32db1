//! The memory of a driver that keeps it all in one place: tests, the simulator, tools.

use std::collections::VecDeque;
use std::ops::Range;

use railnet_core::{GhostRun, GhostTag};

use super::{Backing, GhostMemory, GhostRuns, Memory, SpaceId};

#[derive(Clone, Debug)]
enum Contents {
    Bytes(Vec<u8>),
    Ghost(GhostMemory),
}

/// A range of a segment whose owner wants to hear of writes.
#[derive(Clone, Debug)]
struct Watch {
    /// Offsets into the segment.
    range: Range<u64>,
    token: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    base: u64,
    contents: Contents,
    /// In ascending order, none overlaps another.
    watches: Vec<Watch>,
}

impl Segment {
    fn length(&self) -> u64 {
        match &self.contents {
            Contents::Bytes(bytes) => bytes.len() as u64,
            Contents::Ghost(ghost) => ghost.length(),
        }
    }

    /// Notes who watches `length` bytes from `offset` on, which were written.
    #[cold]
    fn note_touched(&self, offset: u64, length: u64, touched: &mut VecDeque<u64>) {
        let first = self.watches.partition_point(|watch| watch.range.end <= offset);
        let hit = self.watches[first..].iter().take_while(|watch| watch.range.start < offset + length);
        touched.extend(hit.map(|watch| watch.token));
    }
}

/// Address spaces that each hold one segment, of bytes or of ghosts. A host has as many as it likes: one for each buffer,
/// and one for the words by which its connections are controlled.
///
/// A WRITE makes no completion at its target, so a driver that wants to hear of one watches the words that it changes.
///
/// ```
/// use railnet_nic::memory::{Memory, Segments};
///
/// let mut memory = Segments::new();
/// let words = memory.add_bytes(0x1000, vec![0; 64]);
/// memory.watch(words, 0x1010..0x1018, 7);
/// memory.write(words, 0x1000, &[1; 8]);
/// memory.write(words, 0x1010, &[1; 8]);
/// assert_eq!(memory.take_touched(), Some(7));
/// assert_eq!(memory.take_touched(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Segments {
    spaces: Vec<Segment>,
    /// Spaces that were removed.
    free: Vec<SpaceId>,
    /// Tokens of watched ranges that were written to, oldest first.
    touched: VecDeque<u64>,
}

impl Segments {
    /// No memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new space with `bytes` at the address `base`.
    pub fn add_bytes(&mut self, base: u64, bytes: Vec<u8>) -> SpaceId {
        self.add(base, Contents::Bytes(bytes))
    }

    /// A new space with blank ghost memory at the address `base`.
    pub fn add_ghost(&mut self, base: u64, length: u64) -> SpaceId {
        self.add(base, Contents::Ghost(GhostMemory::new(length)))
    }

    fn add(&mut self, base: u64, contents: Contents) -> SpaceId {
        let segment = Segment { base, contents, watches: Vec::new() };
        if let Some(space) = self.free.pop() {
            self.spaces[space.0 as usize] = segment;
            return space;
        }
        self.spaces.push(segment);
        SpaceId(self.spaces.len() as u32 - 1)
    }

    /// Gives a space back. No region may lie in it any more: its number goes to the next one made.
    pub fn remove(&mut self, space: SpaceId) {
        // No address is in it, so that nothing can be registered there.
        self.spaces[space.0 as usize] =
            Segment { base: u64::MAX, contents: Contents::Bytes(Vec::new()), watches: Vec::new() };
        self.free.push(space);
    }

    /// From now on [`Segments::take_touched`] tells `token` each time a NIC has written bytes to these addresses. What
    /// the owner writes itself, by [`Segments::bytes_mut`], does not count.
    ///
    /// # Panics
    /// When the range is empty, not all in this space, in a ghost, or overlaps another that is watched.
    pub fn watch(&mut self, space: SpaceId, addresses: Range<u64>, token: u64) {
        let length = addresses.end.saturating_sub(addresses.start);
        assert!(length > 0, "a watched range has a byte at least");
        let backing = self.backing(space, addresses.start, length);
        assert_eq!(backing, Some(Backing::Bytes), "only bytes can be watched: {addresses:#x?}");
        let Segment { base, watches, .. } = &mut self.spaces[space.0 as usize];
        let range = addresses.start - *base..addresses.end - *base;
        let place = watches.partition_point(|watch| watch.range.end <= range.start);
        let is_free = watches.get(place).is_none_or(|next| range.end <= next.range.start);
        assert!(is_free, "{addresses:#x?} overlaps a range that is watched");
        watches.insert(place, Watch { range, token });
    }

    /// Ends the watch that begins at this address, if there is one.
    pub fn unwatch(&mut self, space: SpaceId, address: u64) {
        let Segment { base, watches, .. } = &mut self.spaces[space.0 as usize];
        watches.retain(|watch| *base + watch.range.start != address);
    }

    /// The token of a watched range that was written to, the oldest first; each write counts.
    #[inline]
    pub fn take_touched(&mut self) -> Option<u64> {
        self.touched.pop_front()
    }

    /// Whether a watched range was written to.
    #[inline]
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The bytes of a space; empty for a ghost.
    pub fn bytes(&self, space: SpaceId) -> &[u8] {
        match &self.spaces[space.0 as usize].contents {
            Contents::Bytes(bytes) => bytes,
            Contents::Ghost(_) => &[],
        }
    }

    /// The bytes of a space, to change them; empty for a ghost.
    pub fn bytes_mut(&mut self, space: SpaceId) -> &mut [u8] {
        match &mut self.spaces[space.0 as usize].contents {
            Contents::Bytes(bytes) => bytes,
            Contents::Ghost(_) => &mut [],
        }
    }

    /// The ghost of a space, if it is one.
    pub fn ghost(&self, space: SpaceId) -> Option<&GhostMemory> {
        match &self.spaces[space.0 as usize].contents {
            Contents::Bytes(_) => None,
            Contents::Ghost(ghost) => Some(ghost),
        }
    }

    /// Appends the bytes that stand for ghost data where bytes are wanted.
    pub fn append_pattern(runs: &[GhostRun], out: &mut Vec<u8>) {
        for run in runs {
            out.extend((0..u64::from(run.length)).map(|index| run.tag.pattern(index)));
        }
    }

    #[inline]
    fn at(&self, space: SpaceId, address: u64) -> (&Contents, u64) {
        let segment = &self.spaces[space.0 as usize];
        (&segment.contents, address - segment.base)
    }

    /// Writes to a range of bytes, and notes who watches it.
    #[inline]
    fn change(&mut self, space: SpaceId, offset: u64, length: usize, change: impl FnOnce(&mut [u8])) {
        let segment = &mut self.spaces[space.0 as usize];
        if let Contents::Bytes(bytes) = &mut segment.contents {
            change(&mut bytes[offset as usize..][..length]);
        }
        if !segment.watches.is_empty() {
            segment.note_touched(offset, length as u64, &mut self.touched);
        }
    }
}

impl Memory for Segments {
    fn backing(&self, space: SpaceId, address: u64, length: u64) -> Option<Backing> {
        let segment = self.spaces.get(space.0 as usize)?;
        let offset = address.checked_sub(segment.base)?;
        (offset.checked_add(length)? <= segment.length()).then_some(match segment.contents {
            Contents::Bytes(_) => Backing::Bytes,
            Contents::Ghost(_) => Backing::Ghost,
        })
    }

    #[inline]
    fn read(&self, space: SpaceId, address: u64, length: usize, out: &mut Vec<u8>) {
        match self.at(space, address) {
            (Contents::Bytes(bytes), offset) => out.extend_from_slice(&bytes[offset as usize..][..length]),
            (Contents::Ghost(ghost), offset) => {
                let mut runs = GhostRuns::new();
                ghost.read(offset, length as u32, &mut runs);
                Self::append_pattern(&runs, out);
            }
        }
    }

    #[inline]
    fn write(&mut self, space: SpaceId, address: u64, data: &[u8]) {
        let segment = &mut self.spaces[space.0 as usize];
        let offset = address - segment.base;
        match &mut segment.contents {
            Contents::Bytes(_) => self.change(space, offset, data.len(), |bytes| bytes.copy_from_slice(data)),
            // Which contribution real bytes stand for cannot be known.
            Contents::Ghost(ghost) => {
                ghost.write(offset, GhostRun { tag: GhostTag::POISON, length: data.len() as u32 });
            }
        }
    }

    #[inline]
    fn read_ghost(&self, space: SpaceId, address: u64, length: u32, out: &mut GhostRuns) {
        match self.at(space, address) {
            (Contents::Bytes(_), _) => out.push(GhostRun { tag: GhostTag::POISON, length }),
            (Contents::Ghost(ghost), offset) => ghost.read(offset, length, out),
        }
    }

    #[inline]
    fn write_ghost(&mut self, space: SpaceId, address: u64, run: GhostRun) {
        let segment = &mut self.spaces[space.0 as usize];
        let offset = address - segment.base;
        match &mut segment.contents {
            Contents::Ghost(ghost) => ghost.write(offset, run),
            Contents::Bytes(_) => self.change(space, offset, run.length as usize, |bytes| {
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = run.tag.pattern(index as u64);
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that was touched since the last time.
    fn touched(memory: &mut Segments) -> Vec<u64> {
        std::iter::from_fn(|| memory.take_touched()).collect()
    }

    #[test]
    fn a_write_tells_those_who_watch_a_byte_of_it_and_no_others() {
        let mut memory = Segments::new();
        let space = memory.add_bytes(1000, vec![0; 100]);
        for (start, token) in [(50, 2), (10, 1), (58, 3)] {
            memory.watch(space, 1000 + start..1008 + start, token);
        }
        let cases: [(u64, usize, &[u64]); 7] = [
            (0, 10, &[]),
            (0, 11, &[1]),
            (17, 1, &[1]),
            (18, 32, &[]),
            (57, 1, &[2]),
            (57, 2, &[2, 3]),
            (0, 100, &[1, 2, 3]),
        ];
        for (start, length, expected) in cases {
            memory.write(space, 1000 + start, &vec![1; length]);
            assert_eq!(touched(&mut memory), expected, "{length} bytes from {start} on");
        }
        memory.update(space, 1050, |old| old + 1);
        memory.write_ghost(space, 1010, GhostRun { tag: GhostTag::BLANK, length: 8 });
        memory.bytes_mut(space)[10] = 1;
        assert_eq!(touched(&mut memory), [2, 1], "an atomic and a ghost's bytes count, the owner's do not");
        memory.unwatch(space, 1050);
        memory.write(space, 1000, &[0; 100]);
        assert_eq!(touched(&mut memory), [1, 3]);
    }

    #[test]
    fn a_space_that_was_given_back_is_used_again_and_watches_nothing() {
        let mut memory = Segments::new();
        let spaces: Vec<_> = (0..4).map(|_| memory.add_bytes(0, vec![0; 8])).collect();
        memory.watch(spaces[2], 0..8, 5);
        memory.remove(spaces[2]);
        assert_eq!(memory.backing(spaces[2], 0, 0), None);
        let ghost = memory.add_ghost(64, 8);
        assert_eq!(ghost, spaces[2]);
        assert_eq!(memory.backing(ghost, 64, 8), Some(Backing::Ghost));
        memory.write(ghost, 64, &[1; 8]);
        assert_eq!(touched(&mut memory), []);
    }
}
