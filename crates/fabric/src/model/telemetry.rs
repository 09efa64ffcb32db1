//! In-band network telemetry (INT): what a switch writes into a packet that it transmits.

use railnet_core::Bytes;
use railnet_nic::Transmit;
use railnet_nic::frame::WireForm;
use railnet_topology::Vertex;
use railnet_wire::{Hop, TelemetryBlock, router};

use crate::model::packet::PacketIndex;
use crate::network::Network;

/// Whether a packet collects telemetry.
#[inline]
pub(crate) fn collects_telemetry(transmit: &Transmit) -> bool {
    let telemetry = transmit.extension.as_ref().map(|extension| &extension.telemetry);
    matches!(telemetry, Some(TelemetryBlock::Gathered(_)))
}

impl<S> Network<S> {
    /// Writes the state of a channel into a packet that it transmits. NICs do not: they know their own queues.
    #[cold]
    pub(crate) fn stamp(&mut self, egress: u32, packet: PacketIndex) {
        let channel = &self.fabric.channels[egress as usize];
        if !matches!(channel.from, Vertex::Switch(_)) {
            return;
        }
        let (sent, queued) = (Bytes(channel.counters.bytes), Bytes(channel.queued()));
        let hop = Hop::new(channel.rate(), self.now, sent, queued);
        let transmit_slot = self.fabric.packets.headers.get_mut(packet).as_mut();
        let extension = transmit_slot.and_then(|transmit_slot| transmit_slot.extension.as_mut());
        if let Some(TelemetryBlock::Gathered(telemetry)) = extension.map(|extension| &mut extension.telemetry)
        {
            telemetry.push(hop);
        }
        if self.fabric.form == WireForm::Bytes {
            // A corrupted frame may not be readable; it will be dropped.
            let _ = router::stamp(&mut self.fabric.packets.bytes[packet as usize], hop);
        }
    }

    /// The length of the longest queue.
    pub fn longest_queue(&self) -> Bytes {
        self.fabric.longest_queue()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::packet::{Flag, Flags, PacketMetadata};
    use crate::model::queue::{NO_INGRESS, QueuedPacket};
    use crate::{Framing, SwitchConfig, host_gid};
    use railnet_core::event::{NoSink, PacketId};
    use railnet_core::{Component, Label, Psn, QueuePairNumber, Rate, Span, Time};
    use railnet_nic::{Nic, NicConfig, OutboundPayload};
    use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};
    use railnet_topology::{FabricGraph, Routes};
    use railnet_wire::{Bth, Extended, Extension, Headers, Network as Addressing, Opcode, Telemetry};

    const FACTS: PacketMetadata =
        PacketMetadata { target: 1, flags: Flags::NONE.with(Flag::Data, true), ..PacketMetadata::NONE };

    fn transmit(telemetry: TelemetryBlock) -> Transmit {
        let (queue_pair, psn) = (QueuePairNumber::new(1), Psn::new(0));
        let bth = Bth::new(Opcode::RcWriteMiddle, queue_pair, psn);
        Transmit {
            network: Addressing {
                source: host_gid(0),
                target: host_gid(1),
                source_port: 0xc000,
                target_port: railnet_wire::ROCE_PORT,
                traffic_class: 2,
                hop_limit: 64,
                identification: 0,
                flow_label: 0,
            },
            headers: Headers { bth, extended: Extended::None },
            extension: Some(Box::new(Extension { telemetry, ..Extension::NONE })),
            payload: OutboundPayload::Bytes(0),
            priority: 0,
            packet: PacketId { queue_pair, psn, transmission: 0, opcode: bth.opcode as u8 },
            label: Label::default(),
        }
    }

    fn network() -> Network<NoSink> {
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        let graph: FabricGraph = FabricKind::SingleSwitch(SingleSwitch { hosts: 2 }).build(&links).unwrap();
        let nic = |host| Nic::new(NicConfig::new(Component(host), 1, host_gid(host)));
        let (config, routes) = (SwitchConfig::default(), Routes::shortest(&graph));
        Network::new(&graph, routes, config, Framing::ETHERNET, 1, NoSink, nic)
    }

    /// Stamps a packet at each of `channels` in turn, and returns what was written.
    fn stamped(network: &mut Network<NoSink>, telemetry: TelemetryBlock, channels: &[u32]) -> TelemetryBlock {
        let metadata = PacketMetadata { flags: FACTS.flags.with(Flag::CollectsTelemetry, true), ..FACTS };
        let packet = network.fabric.packets.take(metadata);
        *network.fabric.packets.headers.get_mut(packet) = Some(transmit(telemetry));
        for &channel in channels {
            network.stamp(channel, packet);
        }
        let transmit_slot = network.fabric.packets.headers(packet).unwrap();
        transmit_slot.extension.as_ref().unwrap().telemetry
    }

    #[test]
    fn a_switch_writes_what_its_link_sent_and_what_waits() {
        let mut network = network();
        let is_from = |vertex: Vertex| move |channel: &crate::model::channel::Channel| channel.from == vertex;
        let leaves = network.fabric.channels.iter().position(is_from(Vertex::Switch(0))).unwrap();
        let host = network.fabric.channels.iter().position(is_from(Vertex::Host(0))).unwrap();
        network.now = Time::ZERO + Span::from_us(7);
        network.fabric.channels[leaves].counters.bytes = 512_000;
        let metadata = PacketMetadata { bytes: 5_120, ..FACTS };
        let queued = QueuedPacket::new(network.fabric.packets.take(metadata), &metadata, NO_INGRESS, 3);
        network.fabric.channels[leaves].queues[3].push(&mut network.fabric.pool, queued);

        let empty = TelemetryBlock::Gathered(Telemetry::EMPTY);
        let emitted = stamped(&mut network, empty, &[host as u32, leaves as u32]);
        let hop = Hop::new(Rate::gbps(100), network.now, Bytes(512_000), Bytes(5_120));
        assert_eq!(emitted, TelemetryBlock::Gathered([hop].into_iter().collect()), "the NIC wrote nothing");
        assert_eq!(network.longest_queue(), Bytes(5_120));

        let echo = TelemetryBlock::Echoed(Telemetry::EMPTY);
        assert_eq!(stamped(&mut network, echo, &[leaves as u32]), echo, "an echo stays as it is");
    }
}
