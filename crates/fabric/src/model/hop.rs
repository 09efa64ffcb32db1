//! A packet's hop through a switch: route, admit, enqueue, transmit. Each step is one function.
//!
//! The steps at an egress port are written once, over a [`Path`]. The [`FastPath`] is a port that only transmits what is
//! first in line; the [`SlowPath`] has the policies switched on that few packets need: pause frames, XON, credits, weighted
//! scheduling, marking at arrival, cut-through, telemetry, faults, frames. A policy that is off compiles to nothing.

use std::marker::PhantomData;

use railnet_core::event::{Sink, SwitchDropReason};
use railnet_core::{Span, Time};
use railnet_topology::Vertex;

use crate::engine::epoch::Outlet;
use crate::engine::event_buffer::EventBuffer;
use crate::model::buffer::{Admission, IngressUsage, SharedBuffer};
use crate::model::channel::{Channel, NO_LOCAL_LP};
use crate::model::config::{FlowControl, MarksAt, Routing};
use crate::model::ecn::Marker;
use crate::model::fabric::{CREDIT_PACKET, Fabric};
use crate::model::packet::{Flag, PacketIndex, PacketMetadata};
use crate::model::queue::{QueuePool, QueuedPacket};
use crate::model::switch::Switch;
use crate::model::topology::{Topology, component};
use crate::model::valiant::raised_priority;
use crate::network::Network;
use crate::observe::emit::marked;

/// Bytes that must have arrived before a cut-through switch forwards.
const HEADER_BYTES: u32 = 64;

/// An egress port, with all that the fast path touches there.
pub(crate) struct EgressPort<'a> {
    pub(crate) channel: &'a mut Channel,
    pub(crate) buffer: &'a mut SharedBuffer,
    pub(crate) usage: &'a mut [IngressUsage],
    pub(crate) pool: &'a mut QueuePool,
    pub(crate) marker: &'a mut Marker,
    pub(crate) metadata: &'a mut [PacketMetadata],
}

/// An egress port with the policies of its packets.
///
/// The hooks with a body are those of a port without policies.
pub(crate) trait Path {
    /// Its channel, and the nodes of its queues.
    fn queues(&mut self) -> (&mut Channel, &mut QueuePool);

    /// Its channel and marker, and the metadata of all packets.
    fn marking(&mut self) -> (&mut Channel, &mut Marker, &mut [PacketMetadata]);

    /// Queue bytes up to which no packet is marked when it leaves.
    fn marks_above(&self) -> u64;

    /// The moment at which it should transmit next, if that is before `time`. It is going to.
    fn take_due(&mut self, time: Time) -> Option<Time>;

    /// The priority that transmits next.
    fn select(&mut self) -> Option<usize>;

    /// A packet was marked.
    fn emit_marked(&mut self, packet: QueuedPacket, now: Time, cause: u64, depth: u64);

    /// Puts a packet on the link, which it takes so long to serialise.
    fn launch(&mut self, packet: QueuedPacket, takes: Span);

    /// Releases the buffer of a packet.
    fn release(&mut self, packet: QueuedPacket);

    /// Whether a packet that finds the port idle can be transmitted at once.
    fn bypasses_queue(&mut self, _priority: usize) -> bool {
        true
    }

    /// A packet is about to be enqueued.
    fn before_enqueue(&mut self, _packet: QueuedPacket) {}

    /// A packet was enqueued.
    fn after_enqueue(&mut self, _packet: QueuedPacket) {}

    /// It has more to transmit when it is free.
    fn schedule(&mut self) {}

    /// Its channel.
    #[inline]
    fn channel(&mut self) -> &mut Channel {
        self.queues().0
    }
}

/// A packet joins its queue, or is transmitted at once if it finds the port idle.
#[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
#[inline(always)]
pub(crate) fn enqueue<P: Path>(path: &mut P, packet: QueuedPacket, now: Time, cause: u64) {
    path.before_enqueue(packet);
    let channel = path.channel();
    let is_free = channel.busy_until <= now;
    if is_free && channel.occupied == 0 && path.bypasses_queue(packet.priority()) {
        let counters = &mut path.channel().counters;
        counters.queue_max = counters.queue_max.max(packet.bytes().into());
        transmit(path, packet, now, cause, 0);
        return;
    }
    let (channel, pool) = path.queues();
    channel.enqueue(pool, packet);
    if is_free {
        // It becomes free at this very moment.
        transmit_next(path, now, cause);
    } else {
        path.schedule();
    }
    path.after_enqueue(packet);
}

/// Transmits the packet that is next in line, in front of a free channel.
#[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
#[inline(always)]
pub(crate) fn transmit_next<P: Path>(path: &mut P, now: Time, cause: u64) {
    let Some(priority) = path.select() else { return };
    let (channel, pool) = path.queues();
    let (packet, depth) = channel.dequeue(pool, priority);
    let has_more = channel.occupied != 0;
    transmit(path, packet, now, cause, depth);
    if has_more {
        path.schedule();
    }
}

/// Transmits a packet, with `depth` bytes behind it in its queue, and releases its buffer.
#[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
#[inline(always)]
fn transmit<P: Path>(path: &mut P, packet: QueuedPacket, now: Time, cause: u64, depth: u64) {
    if depth > path.marks_above() && packet.can_be_marked() && mark(path, packet, depth) {
        path.emit_marked(packet, now, cause, depth);
    }
    let takes = path.channel().occupy(packet, now);
    path.launch(packet, takes);
    // Its port is taken before XON is sent, maybe by that very port: Valiant routing can lead a packet back where it came
    // from.
    path.release(packet);
}

/// Marks a packet, if `depth` bytes in its queue say so. Returns whether.
#[inline]
fn mark<P: Path>(path: &mut P, packet: QueuedPacket, depth: u64) -> bool {
    let (channel, marker, metadata) = path.marking();
    let marks = marker.marks(depth);
    if marks {
        metadata[packet.packet() as usize].set(Flag::Marked);
        channel.counters.marks += 1;
    }
    marks
}

/// Transmits whatever should have been before `until`. Returns how many packets, and when the last one was.
#[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
#[inline(always)]
pub(crate) fn transmit_due<P: Path>(path: &mut P, until: Time, cause: u64) -> (u64, Time) {
    let (mut count, mut last) = (0, Time::ZERO);
    while let Some(at) = path.take_due(until) {
        (count, last) = (count + 1, at);
        transmit_next(path, at, cause);
    }
    (count, last)
}

/// A port that transmits what is first in line and nothing else.
pub(crate) struct FastPath<'a, S> {
    pub(crate) egress: u32,
    pub(crate) port: EgressPort<'a>,
    pub(crate) outlet: Outlet<'a>,
    pub(crate) event_buffer: &'a mut EventBuffer,
    pub(crate) marks_above: u64,
    /// How many hosts and switches there are.
    pub(crate) nodes: (u32, u32),
    pub(crate) sink: PhantomData<S>,
}

#[allow(clippy::inline_always, reason = "they are called for each packet-hop, from one or two places")]
impl<S: Sink> Path for FastPath<'_, S> {
    #[inline(always)]
    fn queues(&mut self) -> (&mut Channel, &mut QueuePool) {
        (self.port.channel, self.port.pool)
    }

    #[inline(always)]
    fn marking(&mut self) -> (&mut Channel, &mut Marker, &mut [PacketMetadata]) {
        (self.port.channel, self.port.marker, self.port.metadata)
    }

    #[inline(always)]
    fn marks_above(&self) -> u64 {
        self.marks_above
    }

    #[inline(always)]
    fn take_due(&mut self, time: Time) -> Option<Time> {
        let Channel { occupied, busy_until, .. } = self.port.channel;
        (*occupied != 0 && *busy_until < time).then_some(*busy_until)
    }

    #[inline(always)]
    fn select(&mut self) -> Option<usize> {
        Some(7 - (self.port.channel.occupied | 1).leading_zeros() as usize)
    }

    #[inline(never)]
    fn emit_marked(&mut self, packet: QueuedPacket, now: Time, cause: u64, depth: u64) {
        if S::ENABLED {
            let EgressPort { channel, metadata, .. } = &self.port;
            let metadata = &metadata[packet.packet() as usize];
            let sender = component(Vertex::Host(metadata.source), self.nodes);
            self.event_buffer.cause = cause;
            self.event_buffer.put(now, channel.sender, &marked(sender, metadata, channel, depth));
        }
    }

    #[inline(always)]
    fn launch(&mut self, packet: QueuedPacket, _takes: Span) {
        let channel = &*self.port.channel;
        let at = channel.busy_until + channel.delay;
        self.outlet.arrive(channel.receiver_lp, at, channel.tie_break, self.egress, packet.packet());
    }

    #[inline(always)]
    fn release(&mut self, packet: QueuedPacket) {
        let EgressPort { buffer, usage, .. } = &mut self.port;
        let usage = &mut usage[packet.ingress() as usize];
        buffer.release_shared(usage, packet.ingress_priority(), packet.bytes());
    }
}

/// A port of a switch with all policies.
pub(crate) struct SlowPath<'a, S> {
    pub(crate) network: &'a mut Network<S>,
    pub(crate) switch: u32,
    pub(crate) egress: u32,
}

#[allow(clippy::inline_always, reason = "they are called for each packet-hop, from one or two places")]
impl<S: Sink> Path for SlowPath<'_, S> {
    #[inline(always)]
    fn queues(&mut self) -> (&mut Channel, &mut QueuePool) {
        let Fabric { channels, pool, .. } = &mut self.network.fabric;
        (&mut channels[self.egress as usize], pool)
    }

    #[inline]
    fn marking(&mut self) -> (&mut Channel, &mut Marker, &mut [PacketMetadata]) {
        let Fabric { channels, markers, packets, .. } = &mut self.network.fabric;
        let egress = self.egress as usize;
        (&mut channels[egress], &mut markers[egress], &mut packets.metadata)
    }

    #[inline(always)]
    fn marks_above(&self) -> u64 {
        self.network.fabric.marks_above_at(MarksAt::Departure)
    }

    #[inline(always)]
    fn take_due(&mut self, time: Time) -> Option<Time> {
        let channel = &mut self.network.fabric.channels[self.egress as usize];
        if !channel.is_due_before(time) {
            return None;
        }
        channel.is_ready_planned = false;
        self.network.now = channel.busy_until;
        Some(channel.busy_until)
    }

    #[inline(always)]
    fn select(&mut self) -> Option<usize> {
        let channel = &mut self.network.fabric.channels[self.egress as usize];
        if channel.has_pause_frame {
            self.network.send_pause_frame(self.egress);
            return None;
        }
        let ready = match self.network.fabric.config.flow_control {
            FlowControl::Credits => channel.occupied & channel.with_credit(CREDIT_PACKET),
            _ => channel.occupied & !channel.paused,
        };
        channel.next_priority(ready)
    }

    #[inline(never)]
    fn emit_marked(&mut self, packet: QueuedPacket, _now: Time, _cause: u64, depth: u64) {
        self.network.emit_marked(self.egress, packet.packet(), depth);
    }

    #[inline(always)]
    fn launch(&mut self, packet: QueuedPacket, takes: Span) {
        self.network.launch(self.egress, packet, takes);
    }

    #[inline(always)]
    fn release(&mut self, packet: QueuedPacket) {
        let network = &mut *self.network;
        let (ingress, priority) = (packet.ingress(), packet.ingress_priority());
        if network.fabric.config.flow_control == FlowControl::Credits {
            network.return_credit(ingress, priority as u8, packet.bytes());
            return;
        }
        let channel = &mut network.fabric.channels[ingress as usize];
        let usage = &mut network.fabric.usage[ingress as usize];
        let switch = &mut network.fabric.switches[self.switch as usize];
        switch.buffer.release(usage, priority, packet.bytes());
        if channel.xoff & 1 << priority != 0 && switch.buffer.is_below_xon(usage, priority) {
            channel.xoff &= !(1 << priority);
            switch.xoff_count -= 1;
            network.send_pause(ingress, priority, 0);
        }
    }

    #[inline(always)]
    fn bypasses_queue(&mut self, priority: usize) -> bool {
        let channel = &self.network.fabric.channels[self.egress as usize];
        let is_blocked = channel.paused & 1 << priority != 0 || channel.is_weighted;
        self.network.fabric.config.flow_control != FlowControl::Credits
            && !is_blocked
            && !channel.has_pause_frame
    }

    #[inline(always)]
    fn before_enqueue(&mut self, packet: QueuedPacket) {
        if self.network.fabric.config.marks_at == MarksAt::Departure {
            return;
        }
        let depth = self.channel().queues[packet.priority()].bytes;
        let marks = depth > self.network.fabric.marks_above_at(MarksAt::Arrival) && packet.can_be_marked();
        if marks && mark(self, packet, depth) {
            self.network.emit_marked(self.egress, packet.packet(), depth);
        }
    }

    #[inline(always)]
    fn after_enqueue(&mut self, packet: QueuedPacket) {
        if S::DETAIL && self.network.fabric.config.flow_control == FlowControl::Credits {
            self.network.emit_credit_wait(self.egress, packet.priority());
        }
    }

    #[inline(always)]
    fn schedule(&mut self) {
        self.network.schedule_transmit(self.egress);
    }
}

impl Fabric {
    /// Selects the channel by which a packet leaves a switch; `None` where there is no route.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one place")]
    #[inline(always)]
    fn route(
        &mut self,
        topology: &Topology,
        now: Time,
        (switch, ingress): (u32, u32),
        packet: PacketIndex,
    ) -> (QueuedPacket, Option<u32>) {
        let metadata = &mut self.packets.metadata[packet as usize];
        metadata.hops += 1;
        let ingress_priority = usize::from(metadata.priority & 7);
        if self.channels[ingress as usize].raises_priority {
            metadata.priority = raised_priority(metadata.priority, self.config.lossless);
        }
        let ports = match (&topology.valiant, &topology.tables) {
            (None, None) => topology.routes.next_hops(switch, metadata.target),
            (None, Some(tables)) => tables.next_hop(switch, metadata.target, metadata.hash),
            (Some(valiant), _) => valiant.next_hops(switch, metadata),
        };
        let queued = QueuedPacket::new(packet, metadata, ingress, ingress_priority);
        if ports.is_empty() {
            return (queued, None);
        }
        let channels = &self.channels;
        let Switch { ports: egress, paths, .. } = &mut self.switches[switch as usize];
        let depth = |port: u16| channels[egress[usize::from(port)] as usize].queued();
        let port = match topology.murmur3 {
            None => paths.select(self.config.routing, ports, metadata.hash, now, depth),
            Some(murmur3) => murmur3.choose(switch, ports, metadata),
        };
        (queued, Some(egress[usize::from(port)]))
    }
}

impl<S: Sink> Network<S> {
    /// A packet arrives at a switch.
    pub(crate) fn arrive_at_switch(&mut self, switch: u32, ingress: u32, packet: PacketIndex) {
        if matches!(self.fabric.config.routing, Routing::Adaptive | Routing::Flowlet(_)) {
            self.drain_ready_ports(switch);
        }
        let is_pause = self.fabric.packets.metadata[packet as usize].is(Flag::Pause);
        if self.fabric.channels[ingress as usize].is_down | is_pause {
            self.end_in_port(ingress, packet);
            return;
        }
        let (queued, egress) = self.fabric.route(&self.topology, self.now, (switch, ingress), packet);
        let Some(egress) = egress else {
            self.drop_packet(queued, SwitchDropReason::NoRoute);
            return;
        };
        if self.admit(switch, queued) {
            self.enqueue(switch, egress, queued);
        }
    }

    /// Admits a packet to the shared buffer. Returns whether it was, and drops it otherwise.
    #[inline]
    fn admit(&mut self, switch: u32, packet: QueuedPacket) -> bool {
        if self.fabric.config.flow_control == FlowControl::Credits {
            return true;
        }
        let usage = &mut self.fabric.usage[packet.ingress() as usize];
        let buffer = &mut self.fabric.switches[switch as usize].buffer;
        buffer.admit_fast(usage, packet.ingress_priority(), packet.bytes()) || self.admit_slow(switch, packet)
    }

    /// Admits a packet that may exceed its threshold: then it sends XOFF, or drops the packet.
    #[cold]
    fn admit_slow(&mut self, switch: u32, packet: QueuedPacket) -> bool {
        self.drain_ready_ports(switch);
        let (ingress, priority) = (packet.ingress(), packet.ingress_priority());
        let channel = &self.fabric.channels[ingress as usize];
        let headroom = if channel.lossless & 1 << priority == 0 { 0 } else { channel.headroom_max };
        let usage = &mut self.fabric.usage[ingress as usize];
        let buffer = &mut self.fabric.switches[switch as usize].buffer;
        if buffer.admit(usage, priority, packet.bytes(), headroom) == Admission::Dropped {
            self.drop_packet(packet, SwitchDropReason::NoMemory);
            return false;
        }
        self.check_xoff(switch, ingress, priority);
        true
    }

    fn drop_packet(&mut self, queued: QueuedPacket, reason: SwitchDropReason) {
        let (packet, ingress) = (queued.packet(), queued.ingress());
        self.emit_dropped(ingress, packet, reason);
        self.fabric.channels[ingress as usize].counters.drops += 1;
        self.forget(ingress, packet, queued.ingress_priority() as u8);
    }

    /// A packet is lost on a channel.
    pub(crate) fn lose(&mut self, channel: u32, packet: PacketIndex) {
        self.emit_lost(channel, packet);
        self.fabric.channels[channel as usize].counters.losses += 1;
        let priority = self.fabric.packets.metadata[packet as usize].priority;
        self.forget(channel, packet, priority);
    }

    /// A packet is gone. Its credit is not: both ends count all that was ever sent (IBTA 7.9), so a loss shows and is
    /// made up for. It was sent at `priority`.
    fn forget(&mut self, channel: u32, packet: PacketIndex, priority: u8) {
        let metadata = self.fabric.packets.metadata[packet as usize];
        if self.fabric.config.flow_control == FlowControl::Credits && !metadata.is(Flag::Pause) {
            self.return_credit(channel, priority, metadata.bytes.into());
        }
        self.fabric.packets.release(packet);
    }

    /// A packet joins the queue of its port, or is transmitted at once.
    #[inline]
    pub(crate) fn enqueue(&mut self, switch: u32, egress: u32, packet: QueuedPacket) {
        self.catch_up_port(egress);
        let (now, cause) = (self.now, self.observers.event_buffer.cause);
        enqueue(&mut SlowPath { network: self, switch, egress }, packet, now, cause);
    }

    /// Transmits the packet that is next in front of a channel, if that is free.
    pub(crate) fn send_next(&mut self, egress: u32) {
        if self.fabric.channels[egress as usize].busy_until > self.now {
            self.schedule_transmit(egress);
        } else {
            self.send_first(egress);
        }
    }

    /// The same, for a channel that is known to be free.
    pub(crate) fn send_first(&mut self, egress: u32) {
        match self.fabric.channels[egress as usize].from {
            Vertex::Switch(switch) => {
                let (now, cause) = (self.now, self.observers.event_buffer.cause);
                transmit_next(&mut SlowPath { network: self, switch, egress }, now, cause);
            }
            // The packets of a host wait in its NIC, and only pause frames here.
            Vertex::Host(_) => self.send_pause_frame(egress),
        }
    }

    /// A packet goes onto the wire, at a switch or at a host.
    #[allow(clippy::inline_always, reason = "it is called for each packet a NIC sends, from two places")]
    #[inline(always)]
    pub(crate) fn start(&mut self, egress: u32, packet: QueuedPacket) {
        let takes = self.fabric.channels[egress as usize].occupy(packet, self.now);
        self.launch(egress, packet, takes);
    }

    /// Puts a packet on a link that is taken for it.
    #[allow(clippy::needless_bitwise_bool, reason = "one branch for all that is rare")]
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from three places")]
    #[inline(always)]
    fn launch(&mut self, egress: u32, packet: QueuedPacket, takes: Span) {
        let channel = &self.fabric.channels[egress as usize];
        if self.fabric.needs_slow_path | packet.collects_telemetry() | channel.needs_slow_path() {
            self.launch_slow(egress, packet, takes);
            return;
        }
        let at = channel.busy_until + channel.delay;
        match &mut self.scheduler.epochs {
            Some(epochs) if channel.receiver_lp != NO_LOCAL_LP => {
                epochs.arrive(channel.receiver_lp, at, channel.tie_break, egress, packet.packet());
            }
            _ => self.schedule_arrival(egress, at, packet.packet()),
        }
    }

    /// The same with all policies.
    #[inline(never)]
    fn launch_slow(&mut self, egress: u32, packet: QueuedPacket, takes: Span) {
        if let Some(until_there) = self.apply_policies(egress, packet, takes) {
            let at = self.now + until_there + self.fabric.channels[egress as usize].delay;
            self.schedule_arrival(egress, at, packet.packet());
        }
    }

    /// Returns how long it is before enough of the packet has left for the other end to forward it; `None` where it never
    /// arrives.
    fn apply_policies(&mut self, egress: u32, queued: QueuedPacket, takes: Span) -> Option<Span> {
        let (packet, bytes, priority) = (queued.packet(), queued.bytes(), queued.priority());
        let channel = &mut self.fabric.channels[egress as usize];
        let takes_credit = self.fabric.config.flow_control == FlowControl::Credits && !queued.is_pause();
        if takes_credit {
            channel.credits[priority] = channel.credits[priority].saturating_sub(bytes);
        }
        if !queued.is_pause() {
            channel.charge(priority, bytes);
        }
        let (is_down, has_faults) = (channel.is_down, channel.has_faults);
        let until_there = match channel.to {
            Vertex::Switch(_) if self.fabric.config.cut_through => channel.serialize(bytes.min(HEADER_BYTES)),
            _ => takes,
        };
        if queued.collects_telemetry() {
            self.stamp(egress, packet);
        }
        self.emit_started(egress, packet, bytes);
        if S::DETAIL && takes_credit {
            self.emit_credit_wait(egress, priority);
        }
        if self.fabric.shows_frames {
            self.show_frame(egress, packet);
        }
        if is_down || has_faults && self.meets_fault(egress, packet) {
            self.observers.taps.lose_last(egress);
            self.lose(egress, packet);
            return None;
        }
        Some(until_there)
    }
}
