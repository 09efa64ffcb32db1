//! Packet queues in front of an egress port: unrolled linked lists in one pool.
//!
//! In a congested network most packets wait, for longer than a cache remembers them. So a queue entry holds what dequeuing
//! needs, and five entries share a cache line: the metadata of a packet is read by the switch that it arrives at, and
//! nowhere else.

use railnet_core::prefetch::prefetch;

use crate::model::packet::{Flag, PacketIndex, PacketMetadata};

/// No ingress channel: the packet came from a NIC, or from the switch itself.
pub(crate) const NO_INGRESS: u32 = u32::MAX;

/// A queue entry.
///
/// A word that is written in parts and soon read as a whole stalls store forwarding, so packet and channel are one word; and
/// five entries with the index of the next node are one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(crate) struct QueuedPacket {
    /// The packet's index; above it, the channel by which it came to this switch.
    ids: u64,
    /// Bytes, egress priority, ingress priority, flags.
    fields: u32,
}

const INGRESS_SHIFT: u32 = 32;
const PRIORITY_SHIFT: u32 = 16;
const INGRESS_PRIORITY_SHIFT: u32 = 19;
const FLAGS_SHIFT: u32 = 22;

impl QueuedPacket {
    /// The entry of a packet that came by `ingress` and is accounted there under `ingress_priority`.
    #[inline]
    pub(crate) fn new(
        packet: PacketIndex,
        metadata: &PacketMetadata,
        ingress: u32,
        ingress_priority: usize,
    ) -> Self {
        let fields = u32::from(metadata.bytes)
            | u32::from(metadata.priority & 7) << PRIORITY_SHIFT
            | (ingress_priority as u32 & 7) << INGRESS_PRIORITY_SHIFT
            | metadata.flags.bits() << FLAGS_SHIFT;
        Self { ids: u64::from(ingress) << INGRESS_SHIFT | u64::from(packet), fields }
    }

    #[inline]
    pub(crate) fn packet(self) -> PacketIndex {
        self.ids as PacketIndex
    }

    /// The channel it came to this switch by, or [`NO_INGRESS`].
    #[inline]
    pub(crate) fn ingress(self) -> u32 {
        (self.ids >> INGRESS_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn bytes(self) -> u32 {
        self.fields & 0xffff
    }

    /// The priority it leaves with.
    #[inline]
    pub(crate) fn priority(self) -> usize {
        (self.fields >> PRIORITY_SHIFT & 7) as usize
    }

    /// The priority it came with, under which the shared buffer accounts it.
    #[inline]
    pub(crate) fn ingress_priority(self) -> usize {
        (self.fields >> INGRESS_PRIORITY_SHIFT & 7) as usize
    }

    /// Whether a flag was set when it was queued.
    #[inline]
    fn is(self, flag: Flag) -> bool {
        self.fields >> (FLAGS_SHIFT + flag as u32) & 1 != 0
    }

    #[inline]
    pub(crate) fn is_pause(self) -> bool {
        self.is(Flag::Pause)
    }

    #[inline]
    pub(crate) fn is_data(self) -> bool {
        self.is(Flag::Data)
    }

    #[inline]
    pub(crate) fn collects_telemetry(self) -> bool {
        self.is(Flag::CollectsTelemetry)
    }

    /// Whether it is ECN-capable and not marked yet.
    #[inline]
    pub(crate) fn can_be_marked(self) -> bool {
        self.is(Flag::EcnCapable) && !self.is(Flag::Marked)
    }
}

/// Entries of a node.
const NODE_PACKETS: u32 = 5;

/// A node of an unrolled list: one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    packets: [QueuedPacket; NODE_PACKETS as usize],
    /// The index of the next node of the queue.
    next: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

impl Node {
    const EMPTY: Self =
        Self { packets: [QueuedPacket { ids: u64::MAX, fields: 0 }; NODE_PACKETS as usize], next: 0 };
}

/// The nodes of all queues of all channels. The free list is a stack: the node freed last is still in the cache.
#[derive(Debug, Default)]
pub(crate) struct QueuePool {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl QueuePool {
    #[inline]
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::EMPTY);
            self.nodes.len() as u32 - 1
        })
    }

    /// Prefetches a node, if there is one of that index.
    #[inline]
    fn prefetch(&self, node: u32) {
        if let Some(node) = self.nodes.get(node as usize) {
            prefetch(node);
        }
    }
}

/// The position of an entry in a pool: eight times its node, and its slot there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Position(u32);

impl Position {
    const NONE: Self = Self(u32::MAX);

    #[inline]
    fn node(self) -> usize {
        (self.0 / 8) as usize
    }

    #[inline]
    fn slot(self) -> usize {
        (self.0 % 8) as usize
    }

    #[inline]
    fn is_last_of_node(self) -> bool {
        self.0 % 8 == NODE_PACKETS - 1
    }

    #[inline]
    fn next(self, pool: &QueuePool) -> Self {
        if self.is_last_of_node() { Self(pool.nodes[self.node()].next * 8) } else { Self(self.0 + 1) }
    }
}

/// A FIFO queue of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    first: Position,
    last: Position,
    pub(crate) bytes: u64,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { first: Position::NONE, last: Position::NONE, bytes: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == Position::NONE
    }

    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one or two places")]
    #[inline(always)]
    pub(crate) fn push(&mut self, pool: &mut QueuePool, queued: QueuedPacket) {
        let position = if self.is_empty() {
            self.first = Position(pool.take() * 8);
            self.first
        } else if self.last.is_last_of_node() {
            let node = pool.take();
            pool.nodes[self.last.node()].next = node;
            Position(node * 8)
        } else {
            Position(self.last.0 + 1)
        };
        pool.nodes[position.node()].packets[position.slot()] = queued;
        self.last = position;
        self.bytes += u64::from(queued.bytes());
    }

    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one or two places")]
    #[inline(always)]
    pub(crate) fn pop(&mut self, pool: &mut QueuePool) -> Option<QueuedPacket> {
        (!self.is_empty()).then(|| self.pop_front(pool))
    }

    /// Takes the first packet out of a queue that is not empty.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one or two places")]
    #[inline(always)]
    pub(crate) fn pop_front(&mut self, pool: &mut QueuePool) -> QueuedPacket {
        let position = self.first;
        let queued = pool.nodes[position.node()].packets[position.slot()];
        let is_last = position == self.last;
        if is_last || position.is_last_of_node() {
            pool.free.push(position.node() as u32);
        }
        self.first = if is_last { Position::NONE } else { position.next(pool) };
        self.bytes -= u64::from(queued.bytes());
        queued
    }

    /// The packets in it, from first to last.
    pub(crate) fn iter<'a>(&self, pool: &'a QueuePool) -> impl Iterator<Item = QueuedPacket> + use<'a> {
        let (mut next, last) = (self.first, self.last);
        std::iter::from_fn(move || {
            let position = next;
            if position == Position::NONE {
                return None;
            }
            next = if position == last { Position::NONE } else { position.next(pool) };
            Some(pool.nodes[position.node()].packets[position.slot()])
        })
    }

    /// Prefetches the nodes of its first and last packets.
    #[inline]
    pub(crate) fn prefetch_ends(&self, pool: &QueuePool) {
        for position in [self.first, self.last] {
            pool.prefetch(position.node() as u32);
        }
    }

    /// Prefetches the node behind that of its first packet.
    #[inline]
    pub(crate) fn prefetch_second(&self, pool: &QueuePool) {
        if let Some(node) = pool.nodes.get(self.first.node()) {
            pool.prefetch(node.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(packet: u32) -> QueuedPacket {
        QueuedPacket::new(
            packet,
            &PacketMetadata { bytes: packet as u16, ..PacketMetadata::NONE },
            packet + 7,
            3,
        )
    }

    #[test]
    fn queues_are_first_in_first_out_and_share_a_pool() {
        let mut pool = QueuePool::default();
        let mut queues = [Queue::EMPTY; 3];
        let mut expected: [std::collections::VecDeque<u32>; 3] = Default::default();
        let mut random = railnet_core::Random::stream(1, "queued", 0);
        for packet in 0..10_000 {
            let one = random.below(3) as usize;
            if random.below(100) < 48 {
                let popped = queues[one].pop(&mut pool).map(QueuedPacket::packet);
                assert_eq!(popped, expected[one].pop_front());
            } else {
                queues[one].push(&mut pool, queued(packet));
                expected[one].push_back(packet);
            }
            for (queue, expected) in queues.iter().zip(&expected) {
                assert_eq!(queue.is_empty(), expected.is_empty());
                assert_eq!(queue.bytes, expected.iter().map(|packet| u64::from(*packet as u16)).sum());
            }
        }
        for (queue, expected) in queues.iter().zip(&expected) {
            let all: Vec<u32> = queue.iter(&pool).map(QueuedPacket::packet).collect();
            assert!(all.iter().eq(expected));
        }
        for queue in &mut queues {
            while queue.pop(&mut pool).is_some() {}
        }
        assert_eq!(pool.free.len(), pool.nodes.len(), "no node is lost");
    }

    #[test]
    fn fields_are_read_back() {
        let flags = crate::model::packet::Flags::NONE.with(Flag::Data, true).with(Flag::EcnCapable, true);
        let metadata = PacketMetadata { bytes: u16::MAX, priority: 6, flags, ..PacketMetadata::NONE };
        let queued = QueuedPacket::new(9, &metadata, 11, 5);
        assert_eq!((queued.packet(), queued.ingress(), queued.bytes()), (9, 11, 65_535));
        assert_eq!((queued.priority(), queued.ingress_priority()), (6, 5));
        assert!(
            queued.is_data() && queued.can_be_marked() && !queued.is_pause() && !queued.collects_telemetry()
        );
        let marked = PacketMetadata { flags: flags.with(Flag::Marked, true), ..metadata };
        assert!(!QueuedPacket::new(9, &marked, 11, 5).can_be_marked());
    }
}
