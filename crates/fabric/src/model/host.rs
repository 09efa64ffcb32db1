//! Hosts: NICs at the edge of the fabric.

use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_nic::frame::WireForm;
use railnet_nic::{CompletionQueue, Context, Inbound, Nic, OutboundPayload, Payload, Priorities, Transmit};
use railnet_topology::Vertex;
use railnet_wire::Framing;

use crate::engine::event::{Event, rank};
use crate::model::bus::Buses;
use crate::model::config::FlowControl;
use crate::model::ecmp::connection_hash;
use crate::model::fabric::{CREDIT_PACKET, Fabric};
use crate::model::packet::{Flag, Flags, PacketIndex, PacketMetadata};
use crate::model::queue::{NO_INGRESS, QueuedPacket};
use crate::model::telemetry;
use crate::network::{Network, host_of};

/// A NIC, and what the network keeps of it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) egress: u32,
    /// The queue whose completions the application hears of.
    pub(crate) watched: Option<CompletionQueue>,
    /// The queue on which reduction groups hear of messages.
    pub(crate) reduces: Option<CompletionQueue>,
    /// When its next timer event is scheduled, and when one after that: the next is often for a short timer, and would be
    /// followed by another event for the one it replaced.
    pub(crate) timer_at: Time,
    timer_later: Time,
    pub(crate) is_ready: bool,
    /// Messages of reduction groups wait.
    pub(crate) is_reducing: bool,
}

impl Host {
    pub(crate) fn new(nic: Nic, egress: u32) -> Self {
        Self {
            nic,
            egress,
            watched: None,
            reduces: None,
            timer_at: Time::NEVER,
            timer_later: Time::NEVER,
            is_ready: false,
            is_reducing: false,
        }
    }
}

/// All hosts, and what the application has to hear of them.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// The hosts, then the NICs of switches that reduce.
    pub(crate) hosts: Vec<Host>,
    /// Hosts with completions that the application has not seen.
    pub(crate) ready: Vec<u32>,
    /// Hosts with messages of reduction groups that were not handled.
    pub(crate) reducing: Vec<u32>,
    /// The application has to be notified of something.
    pub(crate) has_notifications: bool,
    /// A buffer for the payload of a packet.
    pub(crate) buffer: Vec<u8>,
    /// The buses inside hosts.
    pub(crate) buses: Buses,
}

impl Endpoints {
    pub(crate) fn new(hosts: Vec<Host>) -> Self {
        Self {
            hosts,
            ready: Vec::new(),
            reducing: Vec::new(),
            has_notifications: false,
            buffer: Vec::new(),
            buses: Buses::default(),
        }
    }
}

/// What a switch sees of a packet besides its addresses that differs between connections. In RoCE v1 there is nothing: Ethernet
/// switches know no UDP port there. On InfiniBand the connection chose among the LIDs of its peer.
fn entropy(framing: Framing, transmit: &Transmit) -> u16 {
    match framing {
        Framing::RoceV2 | Framing::Infiniband => transmit.network.source_port,
        Framing::RoceV1 => 0,
    }
}

impl<S: Sink> Network<S> {
    /// A packet comes out of a channel.
    pub(crate) fn arrive(&mut self, channel: u32, packet: PacketIndex) {
        match self.fabric.channels[channel as usize].to {
            Vertex::Host(host) => self.arrive_at_host(host, channel, packet),
            Vertex::Switch(switch) => self.arrive_at_switch(switch, channel, packet),
        }
    }

    /// A packet arrives at a host.
    pub(crate) fn arrive_at_host(&mut self, host: u32, channel: u32, packet: PacketIndex) {
        let is_pause = self.fabric.packets.metadata[packet as usize].is(Flag::Pause);
        if is_pause || !self.fabric.all_links_up && self.fabric.channels[channel as usize].is_down {
            self.end_in_port(channel, packet);
        } else {
            self.deliver(host, channel, packet);
        }
    }

    /// A packet goes no further than the ingress port: it is lost with its link, or is a pause frame.
    #[cold]
    pub(crate) fn end_in_port(&mut self, channel: u32, packet: PacketIndex) {
        if self.fabric.channels[channel as usize].is_down {
            self.lose(channel, packet);
        } else {
            self.receive_pause(channel, packet);
        }
    }

    /// Delivers a packet to its NIC.
    fn deliver(&mut self, host: u32, channel: u32, packet: PacketIndex) {
        let metadata = self.fabric.packets.metadata[packet as usize];
        if self.fabric.config.flow_control == FlowControl::Credits {
            self.return_credit(channel, metadata.priority, metadata.bytes.into());
        }
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
        if self.fabric.form == WireForm::Bytes {
            self.deliver_frame(host, packet);
        } else if let Some(transmit) = self.fabric.packets.headers.get_mut(packet) {
            // Only IP has routers here.
            if self.fabric.framing.kind == Framing::RoceV2 {
                transmit.network.hop_limit = transmit.network.hop_limit.saturating_sub(metadata.hops);
            }
            if metadata.is(Flag::Marked) {
                transmit.network.traffic_class |= 3;
            }
            let payload = match &transmit.payload {
                OutboundPayload::Ghost(runs) => Payload::Ghost(runs),
                OutboundPayload::Bytes(0) => Payload::Bytes(&[]),
                OutboundPayload::Bytes(_) => Payload::Bytes(&self.fabric.packets.bytes[packet as usize]),
            };
            let (network, headers) = (&transmit.network, &transmit.headers);
            let (extension, intact) = (transmit.extension.as_deref(), !metadata.is(Flag::Corrupt));
            let inbound = Inbound { network, headers, extension, payload, intact };
            // A packet that the NIC drops is loss: its counters say so.
            let _ = self.endpoints.hosts[host as usize].nic.receive(&mut cx, &inbound);
        }
        self.fabric.packets.release(packet);
        self.endpoints.has_notifications |= self.memory.is_touched();
        self.kick(host);
    }

    /// Lets a NIC send what it can, and schedules its timer and notifications. Call it after every verb.
    pub fn kick(&mut self, host: u32) {
        let egress = self.endpoints.hosts[host as usize].egress;
        loop {
            let channel = &self.fabric.channels[egress as usize];
            if channel.busy_until > self.now {
                // A transmit-ready event of this very moment may come after a packet that left just before it.
                self.schedule_transmit(egress);
                break;
            }
            if channel.has_pause_frame {
                self.send_next(egress);
                break;
            }
            let mut allowed = !channel.paused;
            if self.fabric.config.flow_control == FlowControl::Credits {
                allowed &= channel.with_credit(CREDIT_PACKET);
            }
            let sent = match channel.is_weighted {
                false => self.send_from_nic(host, egress, Priorities(allowed)),
                true => self.send_weighted(host, egress, allowed),
            };
            if !sent {
                break;
            }
        }
        let host_state = &mut self.endpoints.hosts[host as usize];
        if let Some((at, _)) = host_state.nic.poll_timeout()
            && at < host_state.timer_at
        {
            host_state.timer_later = std::mem::replace(&mut host_state.timer_at, at);
            let by = self.fabric.channels[egress as usize].sender;
            let at = at.max(self.now);
            self.scheduler.lookahead.note_timer(at);
            self.schedule_at(Vertex::Host(host), at, rank::TIMER, by, Event::Timer { host });
        }
        let host_state = &mut self.endpoints.hosts[host as usize];
        if let Some(queue) = host_state.watched
            && !host_state.is_ready
            && host_state.nic.completions(queue) > 0
        {
            host_state.is_ready = true;
            self.endpoints.ready.push(host);
            self.endpoints.has_notifications = true;
        }
        if let Some(queue) = host_state.reduces
            && !host_state.is_reducing
            && host_state.nic.completions(queue) > 0
        {
            host_state.is_reducing = true;
            self.endpoints.reducing.push(host);
            self.endpoints.has_notifications = true;
        }
    }

    /// As [`Network::send_from_nic`], for weighted priorities: those with nothing to send are skipped.
    fn send_weighted(&mut self, host: u32, egress: u32, mut allowed: u8) -> bool {
        while let Some(priority) = self.fabric.channels[egress as usize].next_priority(allowed) {
            if self.send_from_nic(host, egress, Priorities(1 << priority)) {
                return true;
            }
            allowed &= !(1 << priority);
        }
        false
    }

    /// Takes a packet of an allowed priority from a NIC, and transmits it. Returns whether there was one.
    fn send_from_nic(&mut self, host: u32, egress: u32, allowed: Priorities) -> bool {
        let Self { memory, sink, endpoints: Endpoints { hosts, buffer, .. }, fabric, .. } = self;
        let Fabric { packets, framing, .. } = fabric;
        buffer.clear();
        let mut cx = Context::new(self.now, memory, sink);
        let next_free = packets.next_free();
        let headers_slot = packets.headers.get_mut(next_free);
        if !hosts[host as usize].nic.poll_transmit_into(&mut cx, 0, allowed, buffer, headers_slot) {
            return false;
        }
        let Some(transmit) = headers_slot else { return false };
        let payload = transmit.payload.length();
        // What Railnet adds to RoCEv2 is overhead in every framing.
        let extension = transmit.extension.as_ref().map_or(0, |extension| extension.length() as u32);
        let headers = extension + if framing.headers { transmit.headers.length() as u32 } else { 0 };
        let network = &transmit.network;
        let (source, target) = (host_of(network.source), host_of(network.target));
        let bytes = framing.overhead + headers + payload.next_multiple_of(4);
        debug_assert!(bytes <= u16::MAX.into(), "a packet of {bytes} bytes");
        let metadata = PacketMetadata {
            packet: transmit.packet,
            source,
            target,
            hash: connection_hash(source, target, entropy(framing.kind, transmit)),
            bytes: bytes as u16,
            priority: transmit.priority,
            flags: Flags::NONE
                .with(Flag::Data, payload > 0)
                .with(Flag::EcnCapable, network.ecn() != 0)
                .with(Flag::CollectsTelemetry, telemetry::collects_telemetry(transmit))
                .with(Flag::HasBytes, !buffer.is_empty()),
            ..PacketMetadata::NONE
        };
        let packet = self.fabric.packets.take(metadata);
        if !self.endpoints.buffer.is_empty() {
            self.fabric.packets.bytes_of(packet).extend_from_slice(&self.endpoints.buffer);
        }
        self.start(egress, QueuedPacket::new(packet, &metadata, NO_INGRESS, metadata.priority.into()));
        self.schedule_transmit(egress);
        true
    }

    /// A transmit-ready event.
    pub(crate) fn transmit_ready(&mut self, egress: u32) {
        let channel = &mut self.fabric.channels[egress as usize];
        channel.is_ready_planned = false;
        if channel.busy_until > self.now {
            // A packet left at this very moment before it: the event has no effect, and does not count.
            self.scheduler.events -= 1;
            self.schedule_transmit(egress);
            return;
        }
        match self.fabric.channels[egress as usize].from {
            Vertex::Host(host) => self.kick(host),
            Vertex::Switch(_) => self.send_next(egress),
        }
    }

    /// A channel may transmit again.
    pub(crate) fn resume(&mut self, egress: u32) {
        match self.fabric.channels[egress as usize].from {
            Vertex::Host(host) => self.kick(host),
            Vertex::Switch(_) => self.send_next(egress),
        }
    }

    /// A timer event of a NIC.
    pub(crate) fn timer(&mut self, host: u32) {
        let state = &mut self.endpoints.hosts[host as usize];
        if state.timer_at > self.now {
            return;
        }
        state.timer_at = std::mem::replace(&mut state.timer_later, Time::NEVER);
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
        state.nic.handle_timeout(&mut cx);
        self.kick(host);
    }
}
