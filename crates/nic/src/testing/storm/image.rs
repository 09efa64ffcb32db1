//! The reference model's memory: what every byte, or every ghost tag, should be.

use railnet_core::{GhostRun, GhostTag};

use super::plan::{Area, Piece};
use super::world::World;
use crate::memory::GhostRuns;

/// What a message carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    Ghost(Vec<GhostRun>),
}

/// One space of the model.
#[derive(Clone, Debug)]
enum Space {
    Bytes(Vec<u8>),
    /// (first offset, end, tag of the first byte), in order, without gaps.
    Ghost(Vec<(u64, u64, GhostTag)>),
}

impl Space {
    fn read(&self, offset: u64, length: u64, out: &mut Content) {
        match (self, out) {
            (Self::Bytes(bytes), Content::Bytes(out)) => {
                out.extend_from_slice(&bytes[offset as usize..][..length as usize]);
            }
            (Self::Ghost(runs), Content::Ghost(out)) => {
                let end = offset + length;
                for &(first, last, tag) in runs.iter().filter(|run| run.1 > offset && run.0 < end) {
                    let from = first.max(offset);
                    out.push(GhostRun {
                        tag: tag.advanced(from - first),
                        length: (last.min(end) - from) as u32,
                    });
                }
            }
            _ => unreachable!("the caller makes content of the space's kind"),
        }
    }

    fn write_tag(runs: &mut Vec<(u64, u64, GhostTag)>, offset: u64, length: u64, tag: GhostTag) {
        if length == 0 {
            return;
        }
        let end = offset + length;
        let mut rest = Vec::with_capacity(runs.len() + 2);
        let mut is_placed = false;
        for &(first, last, old) in runs.iter() {
            if first < offset.min(last) {
                rest.push((first, offset.min(last), old));
            }
            if !is_placed && last > offset {
                rest.push((offset, end, tag));
                is_placed = true;
            }
            if last > end {
                let from = first.max(end);
                rest.push((from, last, old.advanced(from - first)));
            }
        }
        *runs = rest;
    }
}

/// The memory of all NICs.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// By NIC: data, control.
    spaces: Vec<[Space; 2]>,
}

/// Where actual memory is not what it should be.
#[derive(Debug)]
pub(super) struct Difference {
    pub(super) nic: usize,
    pub(super) area: Area,
    pub(super) offset: u64,
    pub(super) expected: String,
    pub(super) found: String,
}

impl Image {
    /// Memory as it is now.
    pub(super) fn of(world: &World) -> Self {
        let memory = &world.lab.memory;
        let snapshot = |space| match memory.ghost(space) {
            None => Space::Bytes(memory.bytes(space).to_vec()),
            Some(ghost) => {
                let mut runs = GhostRuns::new();
                ghost.read(0, ghost.length() as u32, &mut runs);
                let mut at = 0;
                let place = |run: &GhostRun| {
                    let from = at;
                    at += u64::from(run.length);
                    (from, at, run.tag)
                };
                Space::Ghost(runs.iter().map(place).collect())
            }
        };
        let spaces = world
            .stations
            .iter()
            .map(|station| [snapshot(station.data), snapshot(station.control)])
            .collect();
        Self { spaces }
    }

    fn space(&self, nic: usize, area: Area) -> &Space {
        &self.spaces[nic][area as usize]
    }

    /// What pieces hold, one after the other.
    pub(super) fn read(&self, nic: usize, pieces: &[Piece]) -> Content {
        let is_ghost =
            pieces.first().is_some_and(|piece| matches!(self.space(nic, piece.area), Space::Ghost(_)));
        let mut out = if is_ghost { Content::Ghost(Vec::new()) } else { Content::Bytes(Vec::new()) };
        for piece in pieces {
            self.space(nic, piece.area).read(piece.offset, u64::from(piece.length), &mut out);
        }
        out
    }

    /// Puts content into pieces, one after the other, from byte `skip` of them on.
    pub(super) fn write(&mut self, nic: usize, pieces: &[Piece], skip: u32, content: &Content) {
        match content {
            Content::Bytes(bytes) => {
                let mut done = 0;
                for (piece, length) in stretches(pieces, skip, bytes.len() as u32) {
                    let part = &bytes[done..][..length as usize];
                    done += length as usize;
                    match &mut self.spaces[nic][piece.area as usize] {
                        Space::Bytes(space) => {
                            space[piece.offset as usize..][..part.len()].copy_from_slice(part);
                        }
                        // Real bytes say nothing about whose contribution they are.
                        Space::Ghost(runs) => {
                            Space::write_tag(runs, piece.offset, u64::from(length), GhostTag::POISON);
                        }
                    }
                }
            }
            Content::Ghost(runs) => {
                let mut skip = skip;
                for run in runs {
                    let mut inside = 0;
                    for (piece, length) in stretches(pieces, skip, run.length) {
                        let tag = run.tag.advanced(inside);
                        inside += u64::from(length);
                        match &mut self.spaces[nic][piece.area as usize] {
                            Space::Bytes(_) => unreachable!("ghost messages go to ghost memory"),
                            Space::Ghost(runs) => {
                                Space::write_tag(runs, piece.offset, u64::from(length), tag);
                            }
                        }
                    }
                    skip += run.length;
                }
            }
        }
    }

    /// What each byte of pieces should be.
    pub(super) fn tokens(&self, nic: usize, pieces: &[Piece]) -> Vec<GhostTag> {
        tokens(&self.read(nic, pieces))
    }

    /// Takes over what memory really holds, where any of several things may be right and was checked to be.
    pub(super) fn adopt(&mut self, world: &World, nic: usize, pieces: &[Piece]) {
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            let content = actual(world, nic, &[*piece]);
            self.write(nic, &[*piece], 0, &content);
        }
    }

    /// Adds to a counter or sets it.
    pub(super) fn set_counter(&mut self, nic: usize, piece: Piece, value: u64) {
        self.write(nic, &[piece], 0, &Content::Bytes(value.to_le_bytes().to_vec()));
    }

    /// The value of a counter.
    pub(super) fn counter(&self, nic: usize, piece: Piece) -> u64 {
        number(&self.read(nic, &[piece]))
    }

    /// The first place where memory is not what it should be.
    pub(super) fn difference(&self, world: &World) -> Option<Difference> {
        for (nic, spaces) in self.spaces.iter().enumerate() {
            for (area, space) in [Area::Data, Area::Control].into_iter().zip(spaces) {
                let id = world.stations[nic].space(area);
                let place = match space {
                    Space::Bytes(bytes) => {
                        let found = world.lab.memory.bytes(id);
                        if bytes == found {
                            continue;
                        }
                        let at = bytes.iter().zip(found).position(|(wanted, got)| wanted != got)?;
                        (at as u64, format!("{:#04x}", bytes[at]), format!("{:#04x}", found[at]))
                    }
                    Space::Ghost(runs) => match ghost_difference(world, nic, runs) {
                        None => continue,
                        Some(place) => place,
                    },
                };
                let (offset, expected, found) = place;
                return Some(Difference { nic, area, offset, expected, found });
            }
        }
        None
    }
}

fn ghost_difference(
    world: &World,
    nic: usize,
    runs: &[(u64, u64, GhostTag)],
) -> Option<(u64, String, String)> {
    let ghost = world.lab.memory.ghost(world.stations[nic].data)?;
    for &(first, end, tag) in runs {
        let mut found = GhostRuns::new();
        ghost.read(first, (end - first) as u32, &mut found);
        let mut at = first;
        for run in found {
            let wanted = tag.advanced(at - first);
            if run.tag != wanted {
                return Some((at, format!("{wanted:x?}"), format!("{:x?}", run.tag)));
            }
            at += u64::from(run.length);
        }
    }
    None
}

/// The parts of `pieces` that hold `length` bytes from byte `skip` on.
fn stretches(pieces: &[Piece], skip: u32, length: u32) -> impl Iterator<Item = (Piece, u32)> + '_ {
    let (mut skip, mut left) = (skip, length);
    pieces.iter().filter_map(move |piece| {
        let inside = skip.min(piece.length);
        skip -= inside;
        let part = (piece.length - inside).min(left);
        left -= part;
        let offset = piece.offset + u64::from(inside);
        (part > 0).then_some((Piece { offset, ..*piece }, part))
    })
}

/// The first `length` bytes of pieces.
pub(super) fn front(pieces: &[Piece], skip: u32, length: u32) -> Vec<Piece> {
    stretches(pieces, skip, length).map(|(piece, length)| Piece { length, ..piece }).collect()
}

/// What memory really holds.
pub(super) fn actual(world: &World, nic: usize, pieces: &[Piece]) -> Content {
    let memory = &world.lab.memory;
    let is_ghost =
        pieces.first().is_some_and(|piece| memory.ghost(world.stations[nic].space(piece.area)).is_some());
    let mut bytes = Vec::new();
    let mut runs = GhostRuns::new();
    for piece in pieces {
        let space = world.stations[nic].space(piece.area);
        match memory.ghost(space) {
            Some(ghost) => ghost.read(piece.offset, piece.length, &mut runs),
            None => {
                let from = &memory.bytes(space)[piece.offset as usize..];
                bytes.extend_from_slice(&from[..piece.length as usize]);
            }
        }
    }
    if is_ghost { Content::Ghost(runs.to_vec()) } else { Content::Bytes(bytes) }
}

/// Content byte by byte: the tag of each, or the byte itself.
pub(super) fn tokens(content: &Content) -> Vec<GhostTag> {
    match content {
        Content::Bytes(bytes) => {
            let token = |&byte: &u8| GhostTag { sum: u128::from(byte), origin: 0 };
            bytes.iter().map(token).collect()
        }
        Content::Ghost(runs) => {
            let each = |run: &GhostRun| {
                let tag = run.tag;
                (0..u64::from(run.length)).map(move |index| tag.advanced(index))
            };
            runs.iter().flat_map(each).collect()
        }
    }
}

/// The tokens that content leaves behind in memory of this kind.
pub(super) fn stored(content: &Content, in_ghost: bool) -> Vec<GhostTag> {
    match content {
        Content::Bytes(bytes) if in_ghost => vec![GhostTag::POISON; bytes.len()],
        _ => tokens(content),
    }
}

/// Eight bytes as a number.
pub(super) fn number(content: &Content) -> u64 {
    match content {
        Content::Bytes(bytes) => {
            let bytes = bytes.as_slice().try_into().expect("a counter has eight bytes");
            u64::from_le_bytes(bytes)
        }
        Content::Ghost(_) => unreachable!("counters are real"),
    }
}
