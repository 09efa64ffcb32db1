//! Packets as frames: what they look like on each link, for taps and for runs in which they travel as bytes.
//!
//! A fabric routes: at each hop a frame gets the addresses of the two ports at the ends of the link, one less of its hop
//! limit, and the ECN mark of a long queue. Switches of RoCE v1 are bridges and change nothing; those of InfiniBand write the virtual
//! lane, the congestion mark and the VCRC. In a run of bytes the frame itself travels and each switch changes it; in a run
//! of values a tap makes it from the packet's headers and metadata. Both must be the same frame.

use railnet_core::event::Sink;
use railnet_core::{Label, PacketSample};
use railnet_nic::frame::{self, Front, Sent, WireForm};
use railnet_nic::{Context, OutboundPayload, Transmit};
use railnet_topology::{End, Vertex};
use railnet_wire::{
    EtherType, Ethernet, Frame, Framing, HEADROOM, Lid, Mac, Pause, forward_infiniband, router,
};

use crate::model::fabric::Fabric;
use crate::model::host::Endpoints;
use crate::model::packet::{Flag, PacketIndex, PacketMetadata};
use crate::model::subnet::{ForwardingTables, base_lid, path_bits};
use crate::model::topology::Topology;
use crate::network::{Network, host_of};

/// Service levels are 0 to 15. A NIC has its own in place of a DSCP, which InfiniBand knows not.
const SERVICE_LEVEL_MASK: u8 = 15;

/// The MAC address of a port: 02 for hosts or 06 for switches, the number in three bytes, the port in two.
pub fn port_mac(end: End) -> Mac {
    let (kind, number) = match end.vertex {
        Vertex::Host(host) => (0x02, host),
        Vertex::Switch(switch) => (0x06, switch),
    };
    let ([_, a, b, c], [high, low]) = (number.to_be_bytes(), end.port.to_be_bytes());
    Mac([kind, a, b, c, high, low])
}

impl Fabric {
    /// The content of a pause frame: for which priorities, for how many quanta.
    pub(crate) fn read_pause(&self, packet: PacketIndex) -> (u8, u32) {
        let metadata = &self.packets.metadata[packet as usize];
        if self.form == WireForm::Values {
            return (metadata.target as u8, metadata.hash);
        }
        let Ok(Frame::Pause { pause, .. }) = Frame::parse(&self.packets.bytes[packet as usize]) else {
            panic!("a pause frame is not read back");
        };
        let quanta =
            pause.quanta.iter().enumerate().filter_map(|(priority, quanta)| Some((priority, (*quanta)?)));
        quanta.fold((0, 0), |(bits, _), (priority, quanta)| (bits | 1 << priority, u32::from(quanta)))
    }
}

impl Topology {
    fn ethernet(&self, egress: u32) -> Ethernet {
        let ends = &self.graph.links[egress as usize / 2].ends;
        let (near, far) = (egress as usize % 2, 1 - egress as usize % 2);
        let (source, target) = (port_mac(ends[near]), port_mac(ends[far]));
        Ethernet { target, source, vlan: None, ether_type: EtherType::IPV4 }
    }
}

impl<S: Sink> Network<S> {
    /// Whether packets travel as values or as bytes. The run is the same.
    ///
    /// # Panics
    /// When packets are under way.
    pub fn set_wire(&mut self, form: WireForm) {
        assert_eq!(self.fabric.packets.in_use(), 0, "packets under way keep their form");
        self.fabric.form = form;
        if form == WireForm::Bytes {
            self.fabric.show_frames();
        }
    }

    /// A packet is transmitted on a channel: updates its frame to what it is on this link, and copies it to a tap.
    #[cold]
    pub(crate) fn show_frame(&mut self, egress: u32, packet: PacketIndex) {
        let is_tapped = self.observers.taps.is_tapped(egress) && self.is_in_sample(packet);
        let is_corrupt = self.fabric.packets.metadata[packet as usize].is(Flag::Corrupt);
        if self.fabric.form == WireForm::Bytes {
            self.update_frame(egress, packet);
            if is_tapped {
                let about = self.about(packet);
                self.observers.taps.take(
                    self.now,
                    egress,
                    about,
                    is_corrupt,
                    &self.fabric.packets.bytes[packet as usize],
                );
            }
        } else if is_tapped {
            let mut buffer = Vec::new();
            self.make_frame(egress, packet, &mut buffer);
            self.observers.taps.take(self.now, egress, self.about(packet), is_corrupt, &buffer);
        }
    }

    /// The label of a packet, and the hosts it travels between.
    fn about(&self, packet: PacketIndex) -> (Label, Option<[u32; 2]>) {
        let transmit = self
            .fabric
            .packets
            .headers(packet)
            .filter(|_| !self.fabric.packets.metadata[packet as usize].is(Flag::Pause));
        transmit.map_or_else(Default::default, |transmit| {
            let ends = [transmit.network.source, transmit.network.target];
            (transmit.label, Some(ends.map(host_of)))
        })
    }

    /// Whether the tap's sample has this packet: every pause frame, packets of the sample and of the connection that is
    /// followed, retransmissions, and the first sequence number, whose packet says what a connection writes to.
    fn is_in_sample(&self, packet: PacketIndex) -> bool {
        let sample = self.observers.taps.sample;
        sample == PacketSample::ALL
            || self.fabric.packets.headers(packet).is_none_or(
                |Transmit { packet, headers, network, .. }| {
                    let is_end = |end| end == (host_of(network.source), packet.queue_pair);
                    packet.transmission > 0
                        || packet.psn.value() == 0
                        || self.observers.taps.followed.is_some_and(|ends| ends.into_iter().any(is_end))
                        || sample.has(packet.psn, [packet.queue_pair, headers.bth.destination])
                },
            )
    }

    /// Updates the frame that travels.
    fn update_frame(&mut self, egress: u32, packet: PacketIndex) {
        let metadata = self.fabric.packets.metadata[packet as usize];
        let is_new =
            metadata.is(Flag::Pause) || matches!(self.fabric.channels[egress as usize].from, Vertex::Host(_));
        if is_new {
            let mut buffer = Vec::new();
            self.make_frame(egress, packet, &mut buffer);
            *self.fabric.packets.bytes_of(packet) = buffer;
            self.fabric.packets.metadata[packet as usize].set(Flag::HasBytes);
            return;
        }
        let Ethernet { source, target, .. } = self.topology.ethernet(egress);
        let bytes = &mut self.fabric.packets.bytes[packet as usize];
        let is_marked = metadata.is(Flag::Marked);
        let forwarded = match self.fabric.framing.kind {
            Framing::RoceV2 => router::forward(bytes, source, target)
                .and_then(|()| if is_marked { router::mark(bytes).map(|_| ()) } else { Ok(()) }),
            // Switches of an Ethernet leave a frame as it is.
            Framing::RoceV1 => Ok(()),
            Framing::Infiniband => forward_infiniband(bytes, metadata.priority, is_marked),
        };
        forwarded.expect("it was made a frame where it started");
    }

    /// The headers in front of a packet on a channel.
    fn front(&self, ethernet: Ethernet, metadata: &PacketMetadata, network: &railnet_wire::Network) -> Front {
        let (source, target) = (host_of(network.source), host_of(network.target));
        match self.fabric.framing.kind {
            Framing::RoceV2 => Front::Ip(ethernet, *network),
            Framing::RoceV1 => {
                let port = |host| port_mac(End { vertex: Vertex::Host(host), port: 0 });
                // The tag has the sender's priority: what switches of a dragonfly add is their own affair.
                Front::roce_v1([source, target].map(port), network, self.priority_of(source, network))
            }
            Framing::Infiniband => {
                let lmc = self.topology.tables.as_ref().map_or(0, ForwardingTables::lmc);
                let path = path_bits(metadata.hash, lmc) as u16;
                let lids = [source, target].map(|host| Lid(base_lid(host, lmc).0 + path));
                Front::infiniband(lids, metadata.priority, network.dscp() & SERVICE_LEVEL_MASK)
            }
        }
    }

    /// The priority with which a host sends a packet.
    fn priority_of(&self, source: u32, network: &railnet_wire::Network) -> u8 {
        self.endpoints.hosts[source as usize].nic.config().priorities[usize::from(network.dscp())]
    }

    /// Makes the frame of a packet on a channel.
    fn make_frame(&self, egress: u32, packet: PacketIndex, buffer: &mut Vec<u8>) {
        let metadata = &self.fabric.packets.metadata[packet as usize];
        let ethernet = self.topology.ethernet(egress);
        let Some(transmit) = self.fabric.packets.headers(packet).filter(|_| !metadata.is(Flag::Pause)) else {
            let mut pause = Pause::default();
            for (priority, quanta) in pause.quanta.iter_mut().enumerate() {
                *quanta = (metadata.target >> priority & 1 != 0).then_some(metadata.hash as u16);
            }
            buffer.extend_from_slice(&pause.to_frame(ethernet.source));
            return;
        };
        let Transmit { mut network, mut headers, payload, .. } = transmit.clone();
        let extension = transmit.extension();
        let is_marked = metadata.is(Flag::Marked);
        match self.fabric.framing.kind {
            Framing::RoceV2 => {
                network.hop_limit = network.hop_limit.saturating_sub(metadata.hops);
                network.traffic_class |= if is_marked { 3 } else { 0 };
            }
            Framing::RoceV1 => {}
            Framing::Infiniband => headers.bth.fecn |= is_marked,
        }
        let front = self.front(ethernet, metadata, &network);
        buffer.resize(HEADROOM, 0);
        let ghost = match &payload {
            OutboundPayload::Ghost(runs) => Some(&runs[..]),
            OutboundPayload::Bytes(_) => {
                buffer.extend_from_slice(
                    self.fabric.packets.bytes.get(packet as usize).map_or(&[], Vec::as_slice),
                );
                None
            }
        };
        let start = frame::emit(buffer, &front, &headers, extension, ghost);
        buffer.drain(..start);
        if let Some(bit) = self.fabric.packets.flipped.get(&packet).filter(|_| metadata.is(Flag::Corrupt)) {
            frame::flip(buffer, self.fabric.framing.kind, extension, *bit);
        }
    }

    /// Flips a bit of a packet on a channel, one that the ICRC covers. A second time nothing more changes.
    pub(crate) fn damage(&mut self, egress: u32, packet: PacketIndex) {
        let metadata = &mut self.fabric.packets.metadata[packet as usize];
        if metadata.is(Flag::Corrupt) {
            return;
        }
        metadata.set(Flag::Corrupt);
        self.fabric.channels[egress as usize].counters.losses += 1;
        // A pause frame has no ICRC: its receiver finds the damage by the frame check sequence.
        if !metadata.is(Flag::Pause)
            && let Some(transmit) = self.fabric.packets.headers.get(packet)
        {
            // The same random numbers are drawn in both forms, so that both are the same run.
            let covered =
                frame::covered_bits(&transmit.headers, transmit.extension(), transmit.payload.length());
            let bit = self.fabric.faults.random_of(egress).below(covered);
            match self.fabric.form {
                WireForm::Values => {
                    self.fabric.packets.flipped.insert(packet, bit);
                }
                WireForm::Bytes => {
                    let (framing, bytes) = (self.fabric.framing.kind, &mut self.fabric.packets.bytes);
                    frame::flip(&mut bytes[packet as usize], framing, transmit.extension(), bit);
                }
            }
        }
        self.emit_corrupted(egress, packet);
    }

    /// Delivers the frame of a packet to its NIC.
    pub(crate) fn deliver_frame(&mut self, host: u32, packet: PacketIndex) {
        let Self {
            memory,
            sink,
            endpoints: Endpoints { hosts, .. },
            fabric: Fabric { packets, framing, .. },
            ..
        } = self;
        let mut cx = Context::new(self.now, memory, sink);
        let Some(Transmit { network, headers, payload, .. }) = packets.headers(packet) else {
            return;
        };
        let ghost = match payload {
            OutboundPayload::Ghost(runs) => Some(&runs[..]),
            OutboundPayload::Bytes(_) => None,
        };
        let is_damaged = packets.metadata[packet as usize].is(Flag::Corrupt);
        let sent = Sent { ghost, network, headers, framing: framing.kind, is_damaged };
        // A packet that the NIC drops is loss: its counters say so.
        let _ =
            frame::deliver(&mut hosts[host as usize].nic, &mut cx, &packets.bytes[packet as usize], &sent);
    }
}
