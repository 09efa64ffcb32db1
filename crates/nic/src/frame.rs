//! Packets as frames: what a driver that moves bytes does with a packet at either end of its way.
//!
//! Ghost payload goes as a pattern, with its tag beside the frame. A driver that moves values and one that moves frames
//! come to the same run, which is the proof that the two are one machine.

use railnet_core::GhostRun;
use railnet_core::event::Sink;
use railnet_wire::{
    Ethernet, Extension, Frame, Framing, Grh, HEADROOM, Headers, InfinibandPacket, Lid, Link, Lrh, Mac,
    Network, RocePacket, Route, datagram_length, emit_around, emit_route_around, roce_v1_ethernet, seal_link,
};

use crate::context::Context;
use crate::error::DropReason;
use crate::memory::{Memory, Segments};
use crate::nic::Nic;
use crate::packet::{Inbound, Payload};

/// How packets travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WireForm {
    /// As header values and payload.
    #[default]
    Values,
    /// As bytes: every packet is emitted, and parsed again.
    Bytes,
}

/// The headers in front of the transport headers of a packet on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// RoCEv2.
    Ip(Ethernet, Network),
    /// RoCE v1, or an InfiniBand link.
    Route(Route),
}

impl Front {
    /// That of RoCE v1, between the ports with these addresses, with a priority tag.
    pub fn roce_v1([source, target]: [Mac; 2], network: &Network, priority: u8) -> Self {
        let Network { traffic_class, flow_label, hop_limit, .. } = *network;
        // The ECN bits are IP's: a GRH has a traffic class without them.
        let traffic_class = traffic_class & !3;
        let grh =
            Grh { traffic_class, flow_label, hop_limit, source: network.source, target: network.target };
        let link = Link::Ethernet(roce_v1_ethernet(source, target, priority));
        Self::Route(Route { link, grh: Some(grh) })
    }

    /// That of an InfiniBand link within a subnet.
    pub const fn infiniband([source, target]: [Lid; 2], virtual_lane: u8, service_level: u8) -> Self {
        let lrh = Lrh { virtual_lane, service_level, source, target, is_global: false };
        Self::Route(Route { link: Link::Infiniband(lrh), grh: None })
    }
}

/// Makes a frame of a packet. `buffer` holds the payload from [`HEADROOM`] on where that has bytes, and nothing behind
/// it where it is a ghost; the frame begins at the place that is returned.
pub fn emit(
    buffer: &mut Vec<u8>,
    front: &Front,
    headers: &Headers,
    extension: &Extension,
    ghost: Option<&[GhostRun]>,
) -> usize {
    debug_assert!(ghost.is_none() || buffer.len() == HEADROOM, "a ghost has no bytes");
    if let Some(runs) = ghost {
        Segments::append_pattern(runs, buffer);
    }
    match front {
        Front::Ip(ethernet, network) => emit_around(buffer, Some(ethernet), network, headers, extension),
        Front::Route(route) => emit_route_around(buffer, route, headers, extension),
    }
}

/// How many bits of a packet from its BTH on the ICRC covers: those that [`flip`] may hit.
pub fn covered_bits(headers: &Headers, extension: &Extension, payload: u32) -> u64 {
    (datagram_length(headers, extension, payload as usize) - extension.varying_bytes()) as u64 * 8
}

/// Flips bit `bit` of those that the ICRC covers, in a frame that has `extension`; over IPv4 without a VLAN tag, or with a [`Front`]
/// that was made here. The next port writes a VCRC anew, so that the ICRC alone finds the damage.
pub fn flip(frame: &mut [u8], framing: Framing, extension: &Extension, bit: u64) {
    let mut covered = (0..).filter(|at| !extension.varies(*at));
    let byte = covered.nth((bit / 8) as usize).expect("most bytes of a packet do not vary");
    frame[framing.front() + byte] ^= 1 << (bit % 8);
    if framing == Framing::Infiniband {
        seal_link(frame);
    }
}

/// What the bytes of a frame do not say.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// The ghost payload that its pattern stands for.
    pub ghost: Option<&'a [GhostRun]>,
    /// Its addressing when it was sent.
    pub network: &'a Network,
    /// Its headers when it was sent.
    pub headers: &'a Headers,
    /// What carries it.
    pub framing: Framing,
    /// A bit of it was flipped on the way.
    pub is_damaged: bool,
}

/// Hands a frame to a NIC, as a driver of real frames does: parsed, and with its ICRC checked.
///
/// A damaged frame may name another queue pair, or nobody. It is reported under what it was, so that a run is the same
/// in both forms; the NIC looks at nothing else of a packet that is not intact.
///
/// # Panics
/// When a frame that nothing touched is not read back.
pub fn deliver<M: Memory, S: Sink>(
    nic: &mut Nic,
    cx: &mut Context<'_, M, S>,
    frame: &[u8],
    sent: &Sent<'_>,
) -> Result<(), DropReason> {
    let parsed = match sent.framing {
        Framing::RoceV2 | Framing::RoceV1 => Frame::parse(frame),
        Framing::Infiniband => Frame::parse_infiniband(frame),
    };
    let network;
    let inbound = match &parsed {
        Ok(Frame::Roce(packet)) if packet.icrc.is_good() => {
            network = packet.network();
            let RocePacket { headers, extension, payload, .. } = packet;
            sent.inbound(&network, headers, extension, payload)
        }
        Ok(Frame::Infiniband(packet)) if packet.icrc.is_good() => {
            network = sent.network_of(packet);
            let InfinibandPacket { headers, extension, payload, .. } = packet;
            sent.inbound(&network, headers, extension, payload)
        }
        _ => {
            assert!(sent.is_damaged, "a frame that nothing touched is not read back: {:?}", sent.headers);
            let (network, headers) = (sent.network, sent.headers);
            Inbound { network, headers, extension: None, payload: Payload::Bytes(&[]), intact: false }
        }
    };
    nic.receive(cx, &inbound)
}

impl<'a> Sent<'a> {
    fn inbound(
        &self,
        network: &'a Network,
        headers: &'a Headers,
        extension: &'a Extension,
        payload: &'a [u8],
    ) -> Inbound<'a> {
        Inbound {
            network,
            headers,
            extension: (!extension.is_none()).then_some(extension),
            payload: self.ghost.map_or(Payload::Bytes(payload), Payload::Ghost),
            intact: true,
        }
    }

    /// The addressing of a packet that has none of IP's: what the receiver knows of its connection, and the congestion that the
    /// packet met, which InfiniBand says in the BTH (FECN).
    fn network_of(&self, packet: &InfinibandPacket<'_>) -> Network {
        debug_assert!(packet.route.grh.is_none_or(|grh| grh.source == self.network.source));
        let congestion = if packet.headers.bth.fecn { 3 } else { 0 };
        Network { traffic_class: self.network.traffic_class | congestion, ..*self.network }
    }
}
