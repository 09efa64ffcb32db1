//! Emitting events.
//!
//! A host's port emits as the host's component, a switch's as the switch's, and the network as a whole is one more component
//! after all of them. Without a sink all of this compiles to nothing.

use railnet_core::event::{Event, SentPacket, Sink, SwitchDropReason};
use railnet_core::{Component, Port};
use railnet_topology::Vertex;

use crate::model::channel::Channel;
use crate::model::fabric::Fabric;
use crate::model::packet::{Flag, PacketIndex, PacketMetadata};
use crate::network::Network;

/// A packet of `sender` was marked in front of a channel, with `depth` bytes behind it.
pub(crate) fn marked(sender: Component, metadata: &PacketMetadata, channel: &Channel, depth: u64) -> Event {
    let packet = SentPacket { sender, packet: metadata.packet };
    Event::Marked { packet, port: Port(channel.port.into()), depth }
}

impl Fabric {
    /// The egress port of a channel.
    pub(crate) fn port_of(&self, channel: u32) -> Port {
        Port(self.channels[channel as usize].port.into())
    }
}

impl<S: Sink> Network<S> {
    /// What events call a packet; `None` for a pause frame.
    pub(crate) fn packet_id_of(&self, packet: PacketIndex) -> Option<SentPacket> {
        let metadata = &self.fabric.packets.metadata[packet as usize];
        let sender = || self.component(Vertex::Host(metadata.source));
        (!metadata.is(Flag::Pause)).then(|| SentPacket { sender: sender(), packet: metadata.packet })
    }

    #[inline]
    pub(crate) fn emit_started(&mut self, egress: u32, packet: PacketIndex, bytes: u32) {
        if S::ENABLED && S::DETAIL {
            let (packet, port) = (self.packet_id_of(packet), self.fabric.port_of(egress));
            let waiting = self.fabric.channels[egress as usize].queued();
            self.emit_at_sender(egress, &Event::PacketStarted { packet, port, bytes, waiting });
        }
    }

    #[inline]
    pub(crate) fn emit_marked(&mut self, egress: u32, packet: PacketIndex, depth: u64) {
        if S::ENABLED
            && let Some(SentPacket { sender, .. }) = self.packet_id_of(packet)
        {
            let (metadata, channel) =
                (&self.fabric.packets.metadata[packet as usize], &self.fabric.channels[egress as usize]);
            let event = marked(sender, metadata, channel, depth);
            self.emit_at_sender(egress, &event);
        }
    }

    #[inline]
    pub(crate) fn emit_dropped(&mut self, ingress: u32, packet: PacketIndex, reason: SwitchDropReason) {
        let bytes = self.fabric.packets.metadata[packet as usize].bytes.into();
        if S::ENABLED
            && let Some(packet) = self.packet_id_of(packet)
        {
            // The switch is the sender of the other direction, by the same port.
            let back = self.fabric.channels[ingress as usize].reverse;
            let port = self.fabric.port_of(back);
            self.emit_at_sender(back, &Event::DroppedBySwitch { packet, port, bytes, reason });
        }
    }

    #[inline]
    pub(crate) fn emit_lost(&mut self, egress: u32, packet: PacketIndex) {
        if S::ENABLED {
            let bytes = self.fabric.packets.metadata[packet as usize].bytes.into();
            let (packet, port) = (self.packet_id_of(packet), self.fabric.port_of(egress));
            self.emit_at_sender(egress, &Event::PacketLost { packet, port, bytes });
        }
    }

    #[inline]
    pub(crate) fn emit_corrupted(&mut self, egress: u32, packet: PacketIndex) {
        if S::ENABLED {
            let (packet, port) = (self.packet_id_of(packet), self.fabric.port_of(egress));
            self.emit_at_sender(egress, &Event::PacketCorrupted { packet, port });
        }
    }

    /// The paused priorities of a channel were `before`: emits which were paused and which resumed.
    #[inline]
    pub(crate) fn emit_pauses(&mut self, egress: u32, before: u8) {
        let after = self.fabric.channels[egress as usize].paused;
        if S::ENABLED && before != after {
            let port = self.fabric.port_of(egress);
            for priority in (0..8).filter(|priority| (before ^ after) >> priority & 1 != 0) {
                let event = match after >> priority & 1 {
                    0 => Event::Resumed { port, priority },
                    _ => Event::Paused { port, priority },
                };
                self.emit_at_sender(egress, &event);
            }
        }
    }

    #[inline]
    pub(crate) fn emit_environment(&mut self, event: &Event) {
        if S::ENABLED {
            let component = self.environment();
            self.sink.record(self.now, component, event);
        }
    }

    pub(crate) fn emit_at_sender(&mut self, egress: u32, event: &Event) {
        let component = self.fabric.channels[egress as usize].sender;
        if !self.observers.event_buffer.put(self.now, component, event) {
            self.sink.record(self.now, component, event);
        }
    }
}
