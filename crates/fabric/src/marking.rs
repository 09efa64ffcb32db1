//! Marking: random early detection on the queue in front of a channel.

use railnet_core::Random;
use railnet_core::event::Sink;

use crate::config::Marking;
use crate::network::Network;
use crate::packet::Flag;
use crate::waiting::Waiting;

impl<S: Sink> Network<S> {
    /// Marks a packet if the `depth` bytes in its queue say so, and its sender would understand.
    #[inline]
    pub(crate) fn mark(&mut self, switch: u32, egress: u32, waiting: Waiting, depth: u64) {
        if depth <= self.marks_above || !waiting.may_be_marked() {
            return;
        }
        let dice = &mut self.switches[switch as usize].dice;
        if is_marked(&self.marking[egress as usize], depth, dice) {
            self.packets.facts[waiting.packet as usize].set(Flag::Marked);
            self.channels[egress as usize].counters.marks += 1;
            self.note_marked(egress, waiting.packet, depth);
        }
    }
}

#[inline]
fn is_marked(marking: &Marking, depth: u64, dice: &mut Random) -> bool {
    if depth <= marking.low.0 {
        return false;
    }
    if depth > marking.high.0 {
        return true;
    }
    let part = depth - marking.low.0;
    let whole = (marking.high.0 - marking.low.0).max(1);
    dice.chance((u64::from(marking.most) * part / whole) as u32)
}
