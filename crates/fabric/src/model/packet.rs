//! Packets under way, in one arena.
//!
//! A hop reads a packet's metadata; the headers matter only to the NICs at both ends. So metadata lies together, half a
//! cache line for each packet, and headers apart.

use std::collections::BTreeMap;

use railnet_core::event::PacketId;
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::Transmit;

use crate::model::valiant::NO_GROUP;

/// The index of a packet in the arena.
pub(crate) type PacketIndex = u32;

/// What a hop needs of a packet.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct PacketMetadata {
    /// What events call it, together with its sender.
    pub(crate) packet: PacketId,
    pub(crate) source: u32,
    /// The host it goes to; for a pause frame, the priorities it is about.
    pub(crate) target: u32,
    /// Hash of its five-tuple; for a pause frame, its quanta.
    pub(crate) hash: u32,
    /// Bytes on the wire.
    pub(crate) bytes: u16,
    /// Valiant routing: the intermediate group that it has not reached yet.
    pub(crate) via_group: u16,
    pub(crate) priority: u8,
    pub(crate) hops: u8,
    pub(crate) flags: Flags,
}

impl PacketMetadata {
    /// That of no packet.
    pub(crate) const NONE: Self = Self {
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
        via_group: NO_GROUP,
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

/// A property that a packet has or has not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flag {
    /// It is a pause frame.
    Pause,
    /// It carries payload.
    Data,
    /// Its sender understands ECN marks.
    EcnCapable,
    Marked,
    Corrupt,
    /// It has room for in-band telemetry.
    CollectsTelemetry,
    /// It has bytes in [`PacketArena::bytes`].
    HasBytes,
}

/// The flags of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) const fn with(self, flag: Flag, is_so: bool) -> Self {
        Self(self.0 | (is_so as u8) << flag as u8)
    }

    /// A bit for each flag, the first one lowest.
    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0.into()
    }

    #[inline]
    pub(crate) fn has(self, flag: Flag) -> bool {
        self.0 >> flag as u8 & 1 != 0
    }
}

/// Two of them share a cache line, and none straddles two.
const _: () = assert!(size_of::<PacketMetadata>() == 32);

/// The headers of all packets, in blocks: the arena grows without moving them, and the address of a slot is found without
/// loading anything cold.
#[derive(Debug, Default)]
pub(crate) struct HeaderArena {
    blocks: Vec<Box<[HeaderSlot]>>,
}

/// The headers of a packet, aligned to a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct HeaderSlot(Option<Transmit>);

/// Slots of a block.
const BLOCK: usize = 1 << 10;

impl HeaderArena {
    #[inline]
    pub(crate) fn get(&self, index: PacketIndex) -> Option<&Transmit> {
        self.blocks[index as usize / BLOCK][index as usize % BLOCK].0.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: PacketIndex) -> &mut Option<Transmit> {
        &mut self.blocks[index as usize / BLOCK][index as usize % BLOCK].0
    }

    /// Where the headers of a packet lie, to prefetch them.
    #[inline]
    pub(crate) fn slot(&self, index: PacketIndex) -> &HeaderSlot {
        &self.blocks[index as usize / BLOCK][index as usize % BLOCK]
    }
}

/// All packets under way.
#[derive(Debug, Default)]
pub(crate) struct PacketArena {
    pub(crate) metadata: Vec<PacketMetadata>,
    pub(crate) headers: HeaderArena,
    /// Payload bytes where there are any; where packets travel as bytes, the whole frame.
    pub(crate) bytes: Vec<Vec<u8>>,
    /// Which bit of a corrupt packet was flipped, where it travels as values.
    pub(crate) flipped: BTreeMap<PacketIndex, u64>,
    free: Vec<PacketIndex>,
    /// A packet that collects telemetry is or was under way.
    pub(crate) has_telemetry: bool,
}

impl PacketArena {
    /// The slot of the next packet, so that its headers can be written there: [`PacketArena::take`] takes it.
    #[inline]
    pub(crate) fn next_free(&mut self) -> PacketIndex {
        match self.free.last() {
            Some(index) => *index,
            None => self.add_block(),
        }
    }

    /// Takes the slot of the next packet, whose headers are there.
    #[inline]
    pub(crate) fn take(&mut self, metadata: PacketMetadata) -> PacketIndex {
        let index = self.next_free();
        self.free.pop();
        self.has_telemetry |= metadata.is(Flag::CollectsTelemetry);
        self.metadata[index as usize] = metadata;
        index
    }

    /// Adds a block; returns the first of its slots.
    #[cold]
    fn add_block(&mut self) -> PacketIndex {
        let (first, after) = (self.metadata.len(), self.metadata.len() + BLOCK);
        self.metadata.resize(after, PacketMetadata::NONE);
        self.headers.blocks.push((0..BLOCK).map(|_| HeaderSlot::default()).collect());
        self.free.extend((first..after).rev().map(|index| index as PacketIndex));
        first as PacketIndex
    }

    pub(crate) fn release(&mut self, index: PacketIndex) {
        if self.metadata[index as usize].is(Flag::HasBytes) {
            self.bytes[index as usize].clear();
        }
        self.free.push(index);
    }

    /// The buffer for the bytes of a packet. Most runs move none, so buffers are made when the first packet has some.
    pub(crate) fn bytes_of(&mut self, index: PacketIndex) -> &mut Vec<u8> {
        if self.bytes.len() <= index as usize {
            self.bytes.resize_with(self.metadata.len(), Vec::new);
        }
        &mut self.bytes[index as usize]
    }

    /// The headers of a packet; a pause frame has none.
    #[inline]
    pub(crate) fn headers(&self, index: PacketIndex) -> Option<&Transmit> {
        self.headers.get(index)
    }

    /// Packets under way.
    pub(crate) fn in_use(&self) -> usize {
        self.metadata.len() - self.free.len()
    }
}
