//! A packet's way through a switch: where it goes, whether there is room for it, when it leaves.

use railnet_core::event::{Sink, SwitchDropReason};
use railnet_topology::Vertex;

use crate::model::buffer::Admission;
use crate::model::config::{FlowControl, MarksAt, Routing};
use crate::model::packet::{Flag, PacketIndex};
use crate::model::queue::QueuedPacket;
use crate::model::switch::Switch;
use crate::model::valiant::raised_priority;
use crate::network::{CREDIT_PACKET, Network};

impl<S: Sink> Network<S> {
    /// A packet comes to a switch.
    pub(crate) fn arrive_at_switch(&mut self, switch: u32, ingress: u32, packet: PacketIndex) {
        if matches!(self.config.routing, Routing::Adaptive | Routing::Flowlet(_)) {
            self.drain_ready_ports(switch);
        }
        let metadata = &mut self.packets.metadata[packet as usize];
        let channel = &self.channels[ingress as usize];
        if channel.is_down | metadata.is(Flag::Pause) {
            self.end_in_port(ingress, packet);
            return;
        }
        metadata.hops += 1;
        let ingress_priority = usize::from(metadata.priority & 7);
        if channel.raises_priority {
            metadata.priority = raised_priority(metadata.priority, self.config.lossless);
        }
        let ports = match &self.valiant {
            None => self.routes.next_hops(switch, metadata.target),
            Some(valiant) => valiant.next_hops(switch, metadata),
        };
        let metadata = *metadata;
        let waiting = QueuedPacket::new(packet, &metadata, ingress, ingress_priority);
        if ports.is_empty() {
            self.drop_packet(waiting, SwitchDropReason::NoRoute);
            return;
        }
        let (channels, now) = (&self.channels, self.now);
        let Switch { ports: egress, paths, buffer, .. } = &mut self.switches[switch as usize];
        let queued = |port: u16| channels[egress[usize::from(port)] as usize].queued();
        let port = match self.murmur3 {
            None => paths.select(self.config.routing, ports, metadata.hash, now, queued),
            Some(murmur3) => murmur3.choose(switch, ports, &metadata),
        };
        let egress = egress[usize::from(port)];
        if self.config.flow_control != FlowControl::Credits {
            let usage = &mut self.usage[ingress as usize];
            if !buffer.admit_fast(usage, ingress_priority, waiting.bytes())
                && !self.admit_slow(switch, waiting)
            {
                return;
            }
        }
        self.enqueue(switch, egress, waiting);
    }

    /// Takes in a packet for which there may be no room, or after which its sender has to stop. Returns whether it could.
    #[cold]
    fn admit_slow(&mut self, switch: u32, waiting: QueuedPacket) -> bool {
        self.drain_ready_ports(switch);
        let (ingress, priority) = (waiting.ingress(), waiting.ingress_priority());
        let channel = &self.channels[ingress as usize];
        let headroom = if channel.lossless & 1 << priority == 0 { 0 } else { channel.headroom_max };
        let usage = &mut self.usage[ingress as usize];
        let state = &mut self.switches[switch as usize];
        if state.buffer.admit(usage, priority, waiting.bytes(), headroom) == Admission::Dropped {
            self.drop_packet(waiting, SwitchDropReason::NoMemory);
            return false;
        }
        self.check_xoff(switch, ingress, priority);
        true
    }

    fn drop_packet(&mut self, waiting: QueuedPacket, reason: SwitchDropReason) {
        let (packet, ingress) = (waiting.packet(), waiting.ingress());
        self.emit_dropped(ingress, packet, reason);
        self.channels[ingress as usize].counters.drops += 1;
        self.forget(ingress, packet, waiting.ingress_priority() as u8);
    }

    /// A packet is lost on a channel.
    pub(crate) fn lose(&mut self, channel: u32, packet: PacketIndex) {
        self.emit_lost(channel, packet);
        self.channels[channel as usize].counters.losses += 1;
        let priority = self.packets.metadata[packet as usize].priority;
        self.forget(channel, packet, priority);
    }

    /// A packet is gone. Its credit is not: both ends count all that was ever sent (IBTA 7.9), so a loss shows and is
    /// made up for. It was sent at `priority`.
    fn forget(&mut self, channel: u32, packet: PacketIndex, priority: u8) {
        let metadata = self.packets.metadata[packet as usize];
        if self.config.flow_control == FlowControl::Credits && !metadata.is(Flag::Pause) {
            self.return_credit(channel, priority, metadata.bytes.into());
        }
        self.packets.release(packet);
    }

    /// Lets a packet join its queue, marked if that is long, and sends it if nothing is before it.
    #[inline]
    pub(crate) fn enqueue(&mut self, switch: u32, egress: u32, waiting: QueuedPacket) {
        self.transmit_due(egress);
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
        queue.push(&mut self.pool, waiting);
        channel.occupied |= 1 << priority;
        channel.counters.queue_max = channel.counters.queue_max.max(queue.bytes);
        if channel.busy_until > self.now {
            if channel.needs_transmit_event() {
                self.plan_transmit(egress);
            }
        } else {
            self.send_next(egress);
        }
        if S::DETAIL && self.config.flow_control == FlowControl::Credits {
            self.emit_credit_wait(egress, priority);
        }
    }

    /// Sends what stands first in front of a free channel.
    pub(crate) fn send_next(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        if channel.busy_until > self.now {
            self.schedule_transmit(egress);
        } else {
            self.send_first(egress);
        }
    }

    /// The same, for a channel that is known to be free.
    pub(crate) fn send_first(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        if channel.has_pause_frame {
            self.send_pause_frame(egress);
            return;
        }
        let ready = match self.config.flow_control {
            FlowControl::Credits => channel.occupied & channel.with_credit(CREDIT_PACKET),
            _ => channel.occupied & !channel.paused,
        };
        let Some(priority) = channel.next_priority(ready) else { return };
        let queue = &mut channel.queues[priority];
        let Some(waiting) = queue.pop(&mut self.pool) else { return };
        if queue.is_empty() {
            channel.occupied &= !(1 << priority);
        }
        let (more, depth, from) = (channel.occupied != 0, queue.bytes, channel.from);
        match from {
            Vertex::Switch(switch) => self.leave(switch, egress, waiting, depth),
            Vertex::Host(_) => self.start(egress, waiting),
        }
        if more {
            self.schedule_transmit(egress);
        }
    }

    /// A pause frame goes before all else.
    #[cold]
    fn send_pause_frame(&mut self, egress: u32) {
        if let Some(waiting) = self.channels[egress as usize].pop_pause_frame(&mut self.pool) {
            self.start(egress, waiting);
            self.schedule_transmit(egress);
        }
    }

    /// A packet leaves a switch, with `depth` bytes behind it: its memory is free, and whoever waited for that is told.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
    #[inline(always)]
    fn leave(&mut self, switch: u32, egress: u32, waiting: QueuedPacket, depth: u64) {
        if self.config.marks && self.config.marks_at == MarksAt::Departure {
            self.mark(egress, waiting, depth);
        }
        // It takes its port before anyone is told, who may have to be told by that port: a detour can lead a packet back
        // where it came from.
        self.start(egress, waiting);
        let (bytes, priority) = (waiting.bytes(), waiting.ingress_priority());
        if self.config.flow_control == FlowControl::Credits {
            self.return_credit(waiting.ingress(), priority as u8, bytes);
            return;
        }
        let ingress = &mut self.channels[waiting.ingress() as usize];
        let usage = &mut self.usage[waiting.ingress() as usize];
        let state = &mut self.switches[switch as usize];
        state.buffer.release(usage, priority, bytes);
        if ingress.xoff & 1 << priority != 0 && state.buffer.is_below_xon(usage, priority) {
            ingress.xoff &= !(1 << priority);
            state.xoff_count -= 1;
            self.send_pause(waiting.ingress(), priority, 0);
        }
    }
}
