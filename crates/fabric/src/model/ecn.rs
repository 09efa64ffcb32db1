//! ECN marking: random early detection on the queue in front of a channel.

use railnet_core::Random;
use railnet_core::event::Sink;

use crate::model::config::Marking;
use crate::model::packet::Flag;
use crate::model::queue::QueuedPacket;
use crate::network::Network;

/// What marks in front of a channel: a cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Marker {
    marking: Marking,
    random: Random,
}

impl Marker {
    pub(crate) fn new(marking: Marking, random: Random) -> Self {
        Self { marking, random }
    }

    /// Up to this queue length it never marks.
    pub(crate) fn low(&self) -> u64 {
        self.marking.low.0
    }

    /// Whether it will mark each of the next packets, if the queue keeps its length.
    pub(crate) fn foresee(&self, depth: u64) -> impl Iterator<Item = bool> {
        let mut like = Self { random: self.random.clone(), ..*self };
        std::iter::from_fn(move || Some(like.marks(depth)))
    }

    #[inline]
    pub(crate) fn marks(&mut self, depth: u64) -> bool {
        let marking = &self.marking;
        if depth <= marking.low.0 {
            return false;
        }
        if depth > marking.high.0 {
            return true;
        }
        let part = depth - marking.low.0;
        let whole = (marking.high.0 - marking.low.0).max(1);
        self.random.chance((u64::from(marking.most) * part / whole) as u32)
    }
}

impl<S: Sink> Network<S> {
    /// Marks a packet if `depth` bytes in its queue say so, and it is ECN-capable.
    #[allow(clippy::inline_always, reason = "most queues are short")]
    #[inline(always)]
    pub(crate) fn mark(&mut self, egress: u32, waiting: QueuedPacket, depth: u64) {
        if depth > self.marks_above && waiting.can_be_marked() {
            self.mark_by_chance(egress, waiting, depth);
        }
    }

    #[inline(never)]
    fn mark_by_chance(&mut self, egress: u32, waiting: QueuedPacket, depth: u64) {
        if self.markers[egress as usize].marks(depth) {
            self.packets.metadata[waiting.packet() as usize].set(Flag::Marked);
            self.channels[egress as usize].counters.marks += 1;
            self.emit_marked(egress, waiting.packet(), depth);
        }
    }
}
