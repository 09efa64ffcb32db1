//! Packets on their way, in one arena.
//!
//! A hop looks at a few facts of a packet; the headers matter only to the NICs at the ends. So the facts lie together,
//! half a cache line each, and the headers apart.

use std::collections::BTreeMap;

use railnet_nic::Transmit;

use crate::detour::NO_DETOUR;

/// Which packet of the arena.
pub(crate) type PacketIndex = u32;

/// No packet.
pub(crate) const NO_PACKET: PacketIndex = u32::MAX;

/// What a hop needs to know.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Facts {
    /// The next in its queue.
    pub(crate) next: PacketIndex,
    /// Bytes on the wire.
    pub(crate) bytes: u32,
    /// The host it goes to; for a pause frame, the priorities it is about.
    pub(crate) target: u32,
    /// Hash of its five-tuple.
    pub(crate) hash: u32,
    /// The channel it came to this switch by.
    pub(crate) ingress: u32,
    /// The group by which it makes a detour and where it has not been yet.
    pub(crate) detour: u16,
    pub(crate) priority: u8,
    /// The priority it came to this switch with, under which it is counted in.
    pub(crate) held_as: u8,
    pub(crate) hops: u8,
    /// It is a pause frame.
    pub(crate) is_pause: bool,
    /// It carries payload.
    pub(crate) is_data: bool,
    /// Its sender understands marks.
    pub(crate) markable: bool,
    pub(crate) marked: bool,
    pub(crate) corrupt: bool,
    /// It has room for what switches write.
    pub(crate) gathers: bool,
    /// It has bytes in [`Packets::bytes`].
    pub(crate) has_bytes: bool,
}

impl Facts {
    /// Those of no packet.
    pub(crate) const NOTHING: Self = Self {
        next: NO_PACKET,
        bytes: 0,
        target: 0,
        hash: 0,
        ingress: u32::MAX,
        detour: NO_DETOUR,
        priority: 0,
        held_as: 0,
        hops: 0,
        is_pause: false,
        is_data: false,
        markable: false,
        marked: false,
        corrupt: false,
        gathers: false,
        has_bytes: false,
    };
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
        self.facts[index as usize] = facts;
        index
    }

    /// Room for one more piece of packets; the first of them.
    #[cold]
    fn make_room(&mut self) -> PacketIndex {
        let (first, after) = (self.facts.len(), self.facts.len() + PIECE);
        self.facts.resize(after, Facts::NOTHING);
        self.bytes.resize_with(after, Vec::new);
        self.contents.pieces.push((0..PIECE).map(|_| Place::default()).collect());
        self.free.extend((first..after).rev().map(|index| index as PacketIndex));
        first as PacketIndex
    }

    pub(crate) fn release(&mut self, index: PacketIndex) {
        if self.facts[index as usize].has_bytes {
            self.bytes[index as usize].clear();
        }
        self.free.push(index);
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

/// A queue of packets, chained through the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: PacketIndex,
    tail: PacketIndex,
    pub(crate) bytes: u64,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { head: NO_PACKET, tail: NO_PACKET, bytes: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NO_PACKET
    }

    /// The first packet in it, or none.
    #[inline]
    pub(crate) fn first(&self) -> PacketIndex {
        self.head
    }

    /// The packets in it, first to last.
    pub(crate) fn iter<'a>(&self, packets: &'a Packets) -> impl Iterator<Item = PacketIndex> + use<'a> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let packet = at;
            if packet == NO_PACKET {
                return None;
            }
            at = packets.facts[packet as usize].next;
            Some(packet)
        })
    }

    #[inline]
    pub(crate) fn push(&mut self, packets: &mut Packets, index: PacketIndex) {
        packets.facts[index as usize].next = NO_PACKET;
        if self.head == NO_PACKET {
            self.head = index;
        } else {
            packets.facts[self.tail as usize].next = index;
        }
        self.tail = index;
        self.bytes += u64::from(packets.facts[index as usize].bytes);
    }

    #[inline]
    pub(crate) fn pop(&mut self, packets: &Packets) -> Option<PacketIndex> {
        if self.head == NO_PACKET {
            return None;
        }
        let index = self.head;
        let facts = &packets.facts[index as usize];
        self.head = facts.next;
        self.bytes -= u64::from(facts.bytes);
        Some(index)
    }
}
