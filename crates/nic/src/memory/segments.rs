//! The memory of a driver that keeps it all in one place: tests, the simulator, tools.

use railnet_core::{GhostRun, GhostTag};

use super::{Backing, GhostMemory, GhostRuns, Memory, SpaceId};

#[derive(Clone, Debug)]
enum Contents {
    Bytes(Vec<u8>),
    Ghost(GhostMemory),
}

#[derive(Clone, Debug)]
struct Segment {
    base: u64,
    contents: Contents,
}

impl Segment {
    fn length(&self) -> u64 {
        match &self.contents {
            Contents::Bytes(bytes) => bytes.len() as u64,
            Contents::Ghost(ghost) => ghost.length(),
        }
    }
}

/// Address spaces that each hold one segment, of bytes or of ghosts.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    segments: Vec<Segment>,
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
        self.segments.push(Segment { base, contents });
        SpaceId(self.segments.len() as u32 - 1)
    }

    /// The bytes of a space; empty for a ghost.
    pub fn bytes(&self, space: SpaceId) -> &[u8] {
        match &self.segments[space.0 as usize].contents {
            Contents::Bytes(bytes) => bytes,
            Contents::Ghost(_) => &[],
        }
    }

    /// The bytes of a space, to change them; empty for a ghost.
    pub fn bytes_mut(&mut self, space: SpaceId) -> &mut [u8] {
        match &mut self.segments[space.0 as usize].contents {
            Contents::Bytes(bytes) => bytes,
            Contents::Ghost(_) => &mut [],
        }
    }

    /// The ghost of a space, if it is one.
    pub fn ghost(&self, space: SpaceId) -> Option<&GhostMemory> {
        match &self.segments[space.0 as usize].contents {
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
        let segment = &self.segments[space.0 as usize];
        (&segment.contents, address - segment.base)
    }

    #[inline]
    fn at_mut(&mut self, space: SpaceId, address: u64) -> (&mut Contents, u64) {
        let segment = &mut self.segments[space.0 as usize];
        (&mut segment.contents, address - segment.base)
    }
}

impl Memory for Segments {
    fn backing(&self, space: SpaceId, address: u64, length: u64) -> Option<Backing> {
        let segment = self.segments.get(space.0 as usize)?;
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
        match self.at_mut(space, address) {
            (Contents::Bytes(bytes), offset) => bytes[offset as usize..][..data.len()].copy_from_slice(data),
            // Which contribution real bytes stand for cannot be known.
            (Contents::Ghost(ghost), offset) => {
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
        match self.at_mut(space, address) {
            (Contents::Bytes(bytes), offset) => {
                for (index, byte) in bytes[offset as usize..][..run.length as usize].iter_mut().enumerate() {
                    *byte = run.tag.pattern(index as u64);
                }
            }
            (Contents::Ghost(ghost), offset) => ghost.write(offset, run),
        }
    }
}
