//! A packet's way through a switch: where it goes, whether there is room for it, when it leaves.

use railnet_core::event::{Sink, SwitchDropReason};
use railnet_topology::Vertex;

use crate::config::{FlowControl, MarksAt, Routing};
use crate::detour::raised;
use crate::network::{CREDIT_PACKET, Network};
use crate::packet::{Flag, PacketIndex};
use crate::switch::Admission;
use crate::waiting::Waiting;

impl<S: Sink> Network<S> {
    /// A packet comes to a switch.
    pub(crate) fn arrive_at_switch(&mut self, switch: u32, ingress: u32, packet: PacketIndex) {
        if matches!(self.config.routing, Routing::Adaptive | Routing::Flowlet(_)) {
            self.wake_ports(switch);
        }
        let facts = &mut self.packets.facts[packet as usize];
        let channel = &self.channels[ingress as usize];
        if channel.is_down | facts.is(Flag::Pause) {
            self.end_in_port(ingress, packet);
            return;
        }
        facts.hops += 1;
        let held_as = usize::from(facts.priority & 7);
        if channel.raises_priority {
            facts.priority = raised(facts.priority, self.config.lossless);
        }
        let ports = match &self.detours {
            None => self.routes.next_hops(switch, facts.target),
            Some(detours) => detours.next_hops(switch, facts),
        };
        let facts = *facts;
        let waiting = Waiting::new(packet, &facts, ingress, held_as);
        if ports.is_empty() {
            self.drop_packet(waiting, SwitchDropReason::NoRoute);
            return;
        }
        let (channels, now) = (&self.channels, self.now);
        let queued = |channel: u32| channels[channel as usize].queued();
        let state = &mut self.switches[switch as usize];
        let port = match self.murmur {
            None => state.choose(self.config.routing, ports, facts.hash, now, queued),
            Some(murmur) => murmur.choose(switch, ports, &facts),
        };
        let egress = state.ports[usize::from(port)];
        if self.config.flow_control != FlowControl::Credits {
            let held = &mut self.held[ingress as usize];
            if !state.admit_surely(held, held_as, waiting.bytes()) && !self.admit_barely(switch, waiting) {
                return;
            }
        }
        self.enqueue(switch, egress, waiting);
    }

    /// Takes in a packet for which there may be no room, or after which its sender has to stop. Returns whether it could.
    #[cold]
    fn admit_barely(&mut self, switch: u32, waiting: Waiting) -> bool {
        self.wake_ports(switch);
        let (ingress, priority) = (waiting.ingress(), waiting.held_as());
        let channel = &self.channels[ingress as usize];
        let headroom = if channel.lossless & 1 << priority == 0 { 0 } else { channel.headroom_max };
        let held = &mut self.held[ingress as usize];
        let state = &mut self.switches[switch as usize];
        if state.admit(held, priority, waiting.bytes(), headroom) == Admission::Dropped {
            self.drop_packet(waiting, SwitchDropReason::NoMemory);
            return false;
        }
        self.check_stop(switch, ingress, priority);
        true
    }

    fn drop_packet(&mut self, waiting: Waiting, reason: SwitchDropReason) {
        let (packet, ingress) = (waiting.packet(), waiting.ingress());
        self.note_dropped(ingress, packet, reason);
        self.channels[ingress as usize].counters.drops += 1;
        self.forget(ingress, packet, waiting.held_as() as u8);
    }

    /// A packet is lost on a channel.
    pub(crate) fn lose(&mut self, channel: u32, packet: PacketIndex) {
        self.note_lost(channel, packet);
        self.channels[channel as usize].counters.losses += 1;
        let priority = self.packets.facts[packet as usize].priority;
        self.forget(channel, packet, priority);
    }

    /// A packet is gone. Its credit is not: both ends count all that was ever sent (IBTA 7.9), so a loss shows and is
    /// made up for. It was sent at `priority`.
    fn forget(&mut self, channel: u32, packet: PacketIndex, priority: u8) {
        let facts = self.packets.facts[packet as usize];
        if self.config.flow_control == FlowControl::Credits && !facts.is(Flag::Pause) {
            self.return_credit(channel, priority, facts.bytes.into());
        }
        self.packets.release(packet);
    }

    /// Lets a packet join its queue, marked if that is long, and sends it if nothing is before it.
    #[inline]
    pub(crate) fn enqueue(&mut self, switch: u32, egress: u32, waiting: Waiting) {
        self.wake_before_now(egress);
        let priority = waiting.priority();
        if self.config.marks && self.config.marks_at == MarksAt::Arrival {
            let depth = self.channels[egress as usize].queues[priority].bytes;
            self.mark(egress, waiting, depth);
        }
        let channel = &mut self.channels[egress as usize];
        if self.config.flow_control != FlowControl::Credits && channel.is_free_for(priority, self.now) {
            channel.counters.queue_max = channel.counters.queue_max.max(waiting.bytes().into());
            self.leave(switch, egress, waiting, 0);
            return;
        }
        let queue = &mut channel.queues[priority];
        queue.push(&mut self.room, waiting);
        channel.occupied |= 1 << priority;
        channel.counters.queue_max = channel.counters.queue_max.max(queue.bytes);
        if channel.busy_until > self.now {
            if channel.needs_wake() {
                self.plan_wake(egress);
            }
        } else {
            self.send_next(egress);
        }
        if S::DETAIL && self.config.flow_control == FlowControl::Credits {
            self.note_credit(egress, priority);
        }
    }

    /// Sends what stands first in front of a free channel.
    pub(crate) fn send_next(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        if channel.busy_until > self.now {
            self.set_wake(egress);
        } else {
            self.send_first(egress);
        }
    }

    /// The same, for a channel that is known to be free.
    pub(crate) fn send_first(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        if channel.is_urgent {
            self.send_urgent(egress);
            return;
        }
        let ready = match self.config.flow_control {
            FlowControl::Credits => channel.occupied & channel.with_credit(CREDIT_PACKET),
            _ => channel.occupied & !channel.paused,
        };
        let Some(priority) = channel.next_priority(ready) else { return };
        let queue = &mut channel.queues[priority];
        let Some(waiting) = queue.pop(&mut self.room) else { return };
        if queue.is_empty() {
            channel.occupied &= !(1 << priority);
        }
        let (more, depth, from) = (channel.occupied != 0, queue.bytes, channel.from);
        match from {
            Vertex::Switch(switch) => self.leave(switch, egress, waiting, depth),
            Vertex::Host(_) => self.start(egress, waiting),
        }
        if more {
            self.set_wake(egress);
        }
    }

    /// A pause frame goes before all else.
    #[cold]
    fn send_urgent(&mut self, egress: u32) {
        if let Some(waiting) = self.channels[egress as usize].pop_urgent(&mut self.room) {
            self.start(egress, waiting);
            self.set_wake(egress);
        }
    }

    /// A packet leaves a switch, with `depth` bytes behind it: its memory is free, and whoever waited for that is told.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
    #[inline(always)]
    fn leave(&mut self, switch: u32, egress: u32, waiting: Waiting, depth: u64) {
        if self.config.marks && self.config.marks_at == MarksAt::Departure {
            self.mark(egress, waiting, depth);
        }
        // It takes its port before anyone is told, who may have to be told by that port: a detour can lead a packet back
        // where it came from.
        self.start(egress, waiting);
        let (bytes, priority) = (waiting.bytes(), waiting.held_as());
        if self.config.flow_control == FlowControl::Credits {
            self.return_credit(waiting.ingress(), priority as u8, bytes);
            return;
        }
        let ingress = &mut self.channels[waiting.ingress() as usize];
        let held = &mut self.held[waiting.ingress() as usize];
        let state = &mut self.switches[switch as usize];
        state.release(held, priority, bytes);
        if ingress.told_to_stop & 1 << priority != 0 && state.may_resume(held, priority) {
            ingress.told_to_stop &= !(1 << priority);
            state.stopped -= 1;
            self.send_pause(waiting.ingress(), priority, 0);
        }
    }
}
