//! Marking: random early detection on the queue in front of a channel.

use railnet_core::Random;
use railnet_core::event::Sink;

use crate::config::Marking;
use crate::network::Network;
use crate::packet::Flag;
use crate::waiting::Waiting;

/// Who marks in front of a channel: a line of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Marker {
    marking: Marking,
    dice: Random,
}

impl Marker {
    pub(crate) fn new(marking: Marking, dice: Random) -> Self {
        Self { marking, dice }
    }

    /// Bytes below which it never marks.
    pub(crate) fn low(&self) -> u64 {
        self.marking.low.0
    }

    /// Whether it will mark each of the next packets, if its queue stays as long as it is.
    pub(crate) fn foresee(&self, depth: u64) -> impl Iterator<Item = bool> {
        let mut like = Self { dice: self.dice.clone(), ..*self };
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
        self.dice.chance((u64::from(marking.most) * part / whole) as u32)
    }
}

impl<S: Sink> Network<S> {
    /// Marks a packet if the `depth` bytes in its queue say so, and its sender would understand.
    #[allow(clippy::inline_always, reason = "most queues are short")]
    #[inline(always)]
    pub(crate) fn mark(&mut self, egress: u32, waiting: Waiting, depth: u64) {
        if depth > self.marks_above && waiting.may_be_marked() {
            self.mark_by_chance(egress, waiting, depth);
        }
    }

    #[inline(never)]
    fn mark_by_chance(&mut self, egress: u32, waiting: Waiting, depth: u64) {
        if self.markers[egress as usize].marks(depth) {
            self.packets.facts[waiting.packet() as usize].set(Flag::Marked);
            self.channels[egress as usize].counters.marks += 1;
            self.note_marked(egress, waiting.packet(), depth);
        }
    }
}
