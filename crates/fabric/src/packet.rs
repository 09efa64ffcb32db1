//! Packets on their way, in one arena.
//!
//! A hop looks at a few facts of a packet; the headers matter only to the NICs at the ends. So the facts lie together,
//! half a cache line each, and the headers apart.

use std::collections::BTreeMap;

use railnet_core::event::PacketId;
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::Transmit;

use crate::detour::NO_DETOUR;

/// Which packet of the arena.
pub(crate) type PacketIndex = u32;

/// What a hop needs to know.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Facts {
    /// Its name, with its sender.
    pub(crate) packet: PacketId,
    pub(crate) source: u32,
    /// The host it goes to; for a pause frame, the priorities it is about.
    pub(crate) target: u32,
    /// Hash of its five-tuple; for a pause frame, its quanta.
    pub(crate) hash: u32,
    /// Bytes on the wire.
    pub(crate) bytes: u16,
    /// The group by which it makes a detour and where it has not been yet.
    pub(crate) detour: u16,
    pub(crate) priority: u8,
    pub(crate) hops: u8,
    pub(crate) flags: Flags,
}

impl Facts {
    /// Those of no packet.
    pub(crate) const NOTHING: Self = Self {
        packet: PacketId {
            queue_pair: QueuePairNumber::new(0),
            psn: Psn::new(0),
            transmission: 0,
            opcode: 0,
        },
        source: 0,
        target: 0,
        hash: 0,
        bytes: 0,
        detour: NO_DETOUR,
        priority: 0,
        hops: 0,
        flags: Flags::NONE,
    };

    #[inline]
    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags.has(flag)
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: Flag) {
        self.flags = self.flags.with(flag, true);
    }
}

/// What is so or not so of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flag {
    /// It is a pause frame.
    Pause,
    /// It carries payload.
    Data,
    /// Its sender understands marks.
    Markable,
    Marked,
    Corrupt,
    /// It has room for what switches write.
    Gathers,
    /// It has bytes in [`Packets::bytes`].
    HasBytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) const fn with(self, flag: Flag, is_so: bool) -> Self {
        Self(self.0 | (is_so as u8) << flag as u8)
    }

    /// A bit for each flag, from the first on.
    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0.into()
    }

    #[inline]
    pub(crate) fn has(self, flag: Flag) -> bool {
        self.0 >> flag as u8 & 1 != 0
    }
}

/// Two of them are a line of the cache, and none is in two.
const _: () = assert!(size_of::<Facts>() == 32);

/// The headers of all packets, in pieces: what is there stays where it is when there are more, and where it is needs no look
/// at memory that nobody has seen for a while.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pieces: Vec<Box<[Place]>>,
}

/// The headers of a packet, from the beginning of a line of the cache on.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place(Option<Transmit>);

/// Packets whose headers are in one piece.
const PIECE: usize = 1 << 10;

impl Contents {
    #[inline]
    pub(crate) fn get(&self, index: PacketIndex) -> Option<&Transmit> {
        self.pieces[index as usize / PIECE][index as usize % PIECE].0.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: PacketIndex) -> &mut Option<Transmit> {
        &mut self.pieces[index as usize / PIECE][index as usize % PIECE].0
    }
}

/// All packets.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    pub(crate) facts: Vec<Facts>,
    pub(crate) contents: Contents,
    /// Payload bytes where there are any; where packets travel as bytes, the whole frame.
    pub(crate) bytes: Vec<Vec<u8>>,
    /// Which bit of a corrupt packet was flipped, where it travels as values.
    pub(crate) flipped: BTreeMap<PacketIndex, u64>,
    free: Vec<PacketIndex>,
    /// There is or was one that has room for what switches write.
    pub(crate) gather: bool,
}

impl Packets {
    /// The place of the next packet, for its headers: [`Packets::take`] takes it.
    #[inline]
    pub(crate) fn vacant(&mut self) -> PacketIndex {
        match self.free.last() {
            Some(index) => *index,
            None => self.make_room(),
        }
    }

    /// Takes the place of the next packet, with its headers.
    #[inline]
    pub(crate) fn take(&mut self, facts: Facts) -> PacketIndex {
        let index = self.vacant();
        self.free.pop();
        self.gather |= facts.is(Flag::Gathers);
        self.facts[index as usize] = facts;
        index
    }

    /// Room for one more piece of packets; the first of them.
    #[cold]
    fn make_room(&mut self) -> PacketIndex {
        let (first, after) = (self.facts.len(), self.facts.len() + PIECE);
        self.facts.resize(after, Facts::NOTHING);
        self.contents.pieces.push((0..PIECE).map(|_| Place::default()).collect());
        self.free.extend((first..after).rev().map(|index| index as PacketIndex));
        first as PacketIndex
    }

    pub(crate) fn release(&mut self, index: PacketIndex) {
        if self.facts[index as usize].is(Flag::HasBytes) {
            self.bytes[index as usize].clear();
        }
        self.free.push(index);
    }

    /// Where the bytes of a packet belong. There is no room for any before the first packet has some: most runs move none.
    pub(crate) fn bytes_of(&mut self, index: PacketIndex) -> &mut Vec<u8> {
        if self.bytes.len() <= index as usize {
            self.bytes.resize_with(self.facts.len(), Vec::new);
        }
        &mut self.bytes[index as usize]
    }

    /// The headers of a packet; a pause frame has none.
    #[inline]
    pub(crate) fn headers(&self, index: PacketIndex) -> Option<&Transmit> {
        self.contents.get(index)
    }

    /// Packets under way.
    pub(crate) fn in_use(&self) -> usize {
        self.facts.len() - self.free.len()
    }
}
