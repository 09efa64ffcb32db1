//! What the fabric tells those who watch.
//!
//! A host's port speaks as the host's component, a switch's as the switch's, and what befalls the network as a whole as
//! one more component after all of them. Without a sink nothing of this is left in the program.

use railnet_core::event::{Event, SentPacket, Sink, SwitchDropReason};
use railnet_core::{Component, Port};
use railnet_topology::Vertex;

use crate::channel::Channel;
use crate::network::Network;
use crate::packet::{Facts, Flag, PacketIndex};

/// The component of a host or switch among so many.
pub(crate) fn component(vertex: Vertex, hosts: u32, switches: u32) -> Component {
    match vertex {
        Vertex::Host(host) if host < hosts => Component(host),
        // The network as a whole is in between.
        Vertex::Host(host) => Component(host + switches + 1),
        Vertex::Switch(switch) => Component(hosts + switch),
    }
}

/// A packet of `sender` was marked in front of a channel, with so many bytes behind it.
pub(crate) fn marked(sender: Component, facts: &Facts, channel: &Channel, depth: u64) -> Event {
    let packet = SentPacket { sender, packet: facts.packet };
    Event::Marked { packet, port: Port(channel.port.into()), depth }
}

impl<S: Sink> Network<S> {
    /// The component of the digest that a host or switch is: hosts first, then switches. The NICs of switches that reduce
    /// come last, so that they change nobody's number.
    pub fn component(&self, vertex: Vertex) -> Component {
        component(vertex, self.host_count, self.switches.len() as u32)
    }

    /// The component that stands for the network as a whole: link failures and changes of routes are its events.
    pub fn environment(&self) -> Component {
        Component(self.host_count + self.switches.len() as u32)
    }

    /// The component that stands for one outside of the network who has hosts do something. It has no events of its own.
    pub(crate) fn outside(&self) -> Component {
        Component(self.hosts.len() as u32 + self.switches.len() as u32 + 1)
    }

    /// The port that a channel leaves its sender by.
    pub(crate) fn port_of(&self, channel: u32) -> Port {
        Port(self.channels[channel as usize].port.into())
    }

    /// Whose packet this is; nothing for a pause frame.
    pub(crate) fn name_of(&self, packet: PacketIndex) -> Option<SentPacket> {
        let facts = &self.packets.facts[packet as usize];
        let sender = || self.component(Vertex::Host(facts.source));
        (!facts.is(Flag::Pause)).then(|| SentPacket { sender: sender(), packet: facts.packet })
    }

    #[inline]
    pub(crate) fn note_started(&mut self, egress: u32, packet: PacketIndex, bytes: u32) {
        if S::ENABLED && S::DETAIL {
            let (packet, port) = (self.name_of(packet), self.port_of(egress));
            let waiting = self.channels[egress as usize].queued();
            self.note_at_sender(egress, &Event::PacketStarted { packet, port, bytes, waiting });
        }
    }

    #[inline]
    pub(crate) fn note_marked(&mut self, egress: u32, packet: PacketIndex, depth: u64) {
        if S::ENABLED
            && let Some(SentPacket { sender, .. }) = self.name_of(packet)
        {
            let (facts, channel) = (&self.packets.facts[packet as usize], &self.channels[egress as usize]);
            let event = marked(sender, facts, channel, depth);
            self.note_at_sender(egress, &event);
        }
    }

    #[inline]
    pub(crate) fn note_dropped(&mut self, ingress: u32, packet: PacketIndex, reason: SwitchDropReason) {
        let bytes = self.packets.facts[packet as usize].bytes.into();
        if S::ENABLED
            && let Some(packet) = self.name_of(packet)
        {
            // The switch is the sender of the other direction, by the same port.
            let back = self.channels[ingress as usize].reverse;
            let port = self.port_of(back);
            self.note_at_sender(back, &Event::DroppedBySwitch { packet, port, bytes, reason });
        }
    }

    #[inline]
    pub(crate) fn note_lost(&mut self, egress: u32, packet: PacketIndex) {
        if S::ENABLED {
            let bytes = self.packets.facts[packet as usize].bytes.into();
            let (packet, port) = (self.name_of(packet), self.port_of(egress));
            self.note_at_sender(egress, &Event::PacketLost { packet, port, bytes });
        }
    }

    #[inline]
    pub(crate) fn note_corrupted(&mut self, egress: u32, packet: PacketIndex) {
        if S::ENABLED {
            let (packet, port) = (self.name_of(packet), self.port_of(egress));
            self.note_at_sender(egress, &Event::PacketCorrupted { packet, port });
        }
    }

    /// The priorities of a channel that are paused were `before`: tells which stopped and which go on.
    #[inline]
    pub(crate) fn note_pauses(&mut self, egress: u32, before: u8) {
        let after = self.channels[egress as usize].paused;
        if S::ENABLED && before != after {
            let port = self.port_of(egress);
            for priority in (0..8).filter(|priority| (before ^ after) >> priority & 1 != 0) {
                let event = match after >> priority & 1 {
                    0 => Event::Resumed { port, priority },
                    _ => Event::Paused { port, priority },
                };
                self.note_at_sender(egress, &event);
            }
        }
    }

    #[inline]
    pub(crate) fn note_environment(&mut self, event: &Event) {
        if S::ENABLED {
            let component = self.environment();
            self.sink.record(self.now, component, event);
        }
    }

    pub(crate) fn note_at_sender(&mut self, egress: u32, event: &Event) {
        let component = self.channels[egress as usize].sender;
        if !self.notebook.take(self.now, component, event) {
            self.sink.record(self.now, component, event);
        }
    }
}
