//! InfiniBand packets on links of their own, and on Ethernet as RoCE v1: what carries the transport headers where neither IP nor
//! UDP does.
//!
//! An InfiniBand link puts a local route header in front, and a global one behind it where a packet leaves its subnet, and ends
//! with ICRC and VCRC. RoCE v1 puts the global route header and all behind it on Ethernet, with the ICRC of a global packet.
//!
//! ```
//! use railnet_core::{Psn, QueuePairNumber};
//! use railnet_wire::{Bth, Extended, Extension, Frame, HEADROOM, Headers, Lid, Link, Lrh, Opcode, Route, emit_route_around};
//!
//! let lrh = Lrh { virtual_lane: 0, service_level: 0, source: Lid(1), target: Lid(2), is_global: false };
//! let route = Route { link: Link::Infiniband(lrh), grh: None };
//! let bth = Bth::new(Opcode::RcSendOnly, QueuePairNumber::new(0x11), Psn::new(7));
//! let headers = Headers { bth, extended: Extended::None };
//! let mut buffer = vec![0; HEADROOM];
//! buffer.extend_from_slice(b"hello");
//! let start = emit_route_around(&mut buffer, &route, &headers, &Extension::NONE);
//!
//! let Frame::Infiniband(packet) = Frame::parse_infiniband(&buffer[start..])? else { panic!("a local packet") };
//! assert_eq!((packet.route, packet.payload), (route, &b"hello"[..]));
//! assert!(packet.icrc.is_good() && packet.vcrc.is_some_and(|vcrc| vcrc.is_good()));
//! # Ok::<(), railnet_wire::Malformed>(())
//! ```

mod grh;
mod lrh;
mod vcrc;

pub use grh::Grh;
pub use lrh::{Lid, Lrh};
pub use vcrc::{VCRC_LENGTH, vcrc};

use crate::authentication::Authentication;
use crate::bytes::take;
use crate::ethernet::{EtherType, Ethernet};
use crate::frame::{
    Frame, HEADROOM, Icrc, Other, datagram_length, extension_of, found_icrc, parse_transport,
};
use crate::icrc::{self, ICRC_LENGTH};
use crate::malformed::{Layer, Malformed};
use crate::transport::{Extension, Headers, pad_length};

const _: () = assert!(HEADROOM >= Ethernet::TAGGED_LENGTH + Grh::LENGTH + Headers::MAX_LENGTH);

/// How packets of the InfiniBand transport travel from port to port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Framing {
    /// On UDP and IP: RoCE version 2.
    #[default]
    RoceV2,
    /// On Ethernet, behind a global route header: RoCE version 1.
    RoceV1,
    /// On InfiniBand links.
    Infiniband,
}

impl Framing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::RoceV2, Self::RoceV1, Self::Infiniband];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV2 => "RoCEv2",
            Self::RoceV1 => "RoCE v1",
            Self::Infiniband => "InfiniBand",
        }
    }

    /// Bytes of a packet in front of its BTH, as [`crate::Network`] or a simulated [`Route`] makes them: over IPv4 and without a
    /// tag, with a priority tag in RoCE v1, and within one subnet on InfiniBand.
    pub const fn front(self) -> usize {
        match self {
            Self::RoceV2 => Ethernet::LENGTH + crate::Ipv4::LENGTH + crate::Udp::LENGTH,
            Self::RoceV1 => Ethernet::TAGGED_LENGTH + Grh::LENGTH,
            Self::Infiniband => Lrh::LENGTH,
        }
    }

    /// Bytes that a packet occupies a link for besides transport headers and payload.
    ///
    /// Ethernet: preamble and gap (20), check sequence (4). InfiniBand: the delimiters at both ends of a packet (IBTA volume 2,
    /// 5.4), a byte each, and the VCRC.
    pub const fn overhead(self) -> u32 {
        let around = match self {
            Self::RoceV2 | Self::RoceV1 => 20 + 4,
            Self::Infiniband => 2 + VCRC_LENGTH,
        };
        (self.front() + ICRC_LENGTH + around) as u32
    }
}

/// What carries a packet from one port to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An InfiniBand link.
    Infiniband(Lrh),
    /// An Ethernet: RoCE v1.
    Ethernet(Ethernet),
}

/// The headers in front of the transport headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// On this link.
    pub link: Link,
    /// From end to end: always in RoCE v1, and there where an LRH says so.
    pub grh: Option<Grh>,
}

impl Route {
    /// Bytes of the headers.
    pub const fn length(&self) -> usize {
        let link = match &self.link {
            Link::Infiniband(_) => Lrh::LENGTH,
            Link::Ethernet(ethernet) => ethernet.length(),
        };
        link + if self.grh.is_some() { Grh::LENGTH } else { 0 }
    }

    /// Whether the parts go together: a GRH where the link announces one.
    const fn is_consistent(&self) -> bool {
        match &self.link {
            Link::Infiniband(lrh) => lrh.is_global == self.grh.is_some(),
            Link::Ethernet(_) => self.grh.is_some(),
        }
    }

    /// Writes the headers in front of so many bytes from BTH to ICRC.
    fn emit(&self, out: &mut [u8], transport_bytes: usize) {
        let at = match &self.link {
            Link::Infiniband(lrh) => {
                let behind = if lrh.is_global { Grh::LENGTH } else { 0 };
                let raw = lrh.to_bytes(Lrh::LENGTH + behind + transport_bytes);
                out[..Lrh::LENGTH].copy_from_slice(&raw);
                Lrh::LENGTH
            }
            Link::Ethernet(ethernet) => {
                ethernet.emit(out);
                ethernet.length()
            }
        };
        if let Some(grh) = &self.grh {
            out[at..][..Grh::LENGTH].copy_from_slice(&grh.to_bytes(transport_bytes));
        }
    }

    /// The ICRC of a packet with these headers, of which `covered` are the bytes from BTH to padding.
    fn icrc(&self, covered: &[u8]) -> u32 {
        let transport_bytes = covered.len() + ICRC_LENGTH;
        match (&self.grh, &self.link) {
            (Some(grh), _) => global_icrc(grh.to_bytes(transport_bytes), covered),
            (None, Link::Infiniband(lrh)) => local_icrc(lrh.to_bytes(Lrh::LENGTH + transport_bytes), covered),
            (None, Link::Ethernet(_)) => unreachable!("RoCE v1 has a GRH"),
        }
    }
}

/// The ICRC of a packet with this GRH.
fn global_icrc(mut grh: [u8; Grh::LENGTH], covered: &[u8]) -> u32 {
    Grh::mask(&mut grh);
    icrc::of_global(&grh, covered)
}

/// The ICRC of a packet with this LRH and no GRH.
fn local_icrc(mut lrh: [u8; Lrh::LENGTH], covered: &[u8]) -> u32 {
    Lrh::mask(&mut lrh);
    icrc::of_local(lrh, covered)
}

/// A VCRC as found and as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vcrc {
    /// What stood at the end of the packet.
    pub found: u16,
    /// What belongs there.
    pub computed: u16,
}

impl Vcrc {
    /// Whether the packet is as it left the last port.
    pub const fn is_good(self) -> bool {
        self.found == self.computed
    }
}

/// A packet of the InfiniBand transport without IP and UDP, layer by layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InfinibandPacket<'a> {
    /// The headers in front of the transport headers.
    pub route: Route,
    /// The transport headers.
    pub headers: Headers,
    /// What the specification has no field for.
    pub extension: Extension,
    /// The payload, less padding.
    pub payload: &'a [u8],
    /// Its authentication trailer, where it has one.
    pub authentication: Option<Authentication>,
    /// Its ICRC.
    pub icrc: Icrc,
    /// Its VCRC; Ethernet has none, and not every capture keeps it.
    pub vcrc: Option<Vcrc>,
    /// What follows the packet in an Ethernet frame: padding of short frames.
    pub trailer: &'a [u8],
}

impl InfinibandPacket<'_> {
    /// How it travels.
    pub const fn framing(&self) -> Framing {
        match self.route.link {
            Link::Infiniband(_) => Framing::Infiniband,
            Link::Ethernet(_) => Framing::RoceV1,
        }
    }
}

impl<'a> Frame<'a> {
    /// Takes a packet apart that begins with its local route header, and ends with its VCRC where that was captured.
    pub fn parse_infiniband(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some((lrh, length)) = Lrh::parse(bytes)? else {
            return Ok(Self::Other { ethernet: None, kind: Other::RawInfiniband });
        };
        let (packet, behind) = bytes.split_at(length);
        let mut at = Lrh::LENGTH;
        let grh = if lrh.is_global {
            let (grh, stated) = Grh::parse(&packet[at..])?;
            at += Grh::LENGTH;
            let there = packet.len() - at;
            if stated != there {
                let (least, most) = (there, there);
                return Err(Malformed::Length { layer: Layer::GlobalRoute, stated, least, most });
            }
            Some(grh)
        } else {
            None
        };
        let found = match *behind {
            [] => None,
            [low, high] => Some(u16::from_le_bytes([low, high])),
            _ => {
                let (stated, least, most) = (length, bytes.len() - VCRC_LENGTH, bytes.len());
                return Err(Malformed::Length { layer: Layer::LocalRoute, stated, least, most });
            }
        };
        let vcrc = found.map(|found| Vcrc { found, computed: vcrc(packet) });
        let route = Route { link: Link::Infiniband(lrh), grh };
        let packet = parse_behind(route, packet, at)?;
        Ok(Self::Infiniband(InfinibandPacket { vcrc, ..packet }))
    }

    /// Takes what follows the Ethernet header of a RoCE v1 frame apart.
    pub(crate) fn parse_roce_v1(ethernet: Ethernet, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (grh, length) = Grh::parse(bytes)?;
        let (packet, trailer) = bytes.split_at(Grh::LENGTH + length);
        let packet =
            parse_behind(Route { link: Link::Ethernet(ethernet), grh: Some(grh) }, packet, Grh::LENGTH)?;
        Ok(Self::Infiniband(InfinibandPacket { trailer, ..packet }))
    }
}

/// Takes a packet apart whose BTH begins at `at`, behind the headers of its route, and that ends with its ICRC.
fn parse_behind(route: Route, packet: &[u8], at: usize) -> Result<InfinibandPacket<'_>, Malformed> {
    let (front, transport) = packet.split_at(at);
    let (parsed, payload, authentication) = parse_transport(transport)?;
    let (covered, found) = transport.split_at(transport.len() - ICRC_LENGTH);
    // Reserved bits count as they stand there.
    let computed = match front.last_chunk() {
        Some(grh) => global_icrc(*grh, covered),
        None => local_icrc(take(front, 0), covered),
    };
    Ok(InfinibandPacket {
        route,
        headers: parsed.headers,
        extension: Extension::parse(&transport[extension_of(&parsed)])?,
        payload: &transport[payload],
        authentication,
        icrc: Icrc { found: found_icrc(found), computed },
        vcrc: None,
        trailer: &[],
    })
}

/// Writes the headers in front of the payload that begins at [`HEADROOM`] and fills the rest of `buffer`, and padding, ICRC and, on
/// an InfiniBand link, VCRC behind it. Returns where the packet begins.
///
/// # Panics
/// When `buffer` is shorter than [`HEADROOM`], or the route lacks a GRH that its link announces.
pub fn emit_route_around(
    buffer: &mut Vec<u8>,
    route: &Route,
    headers: &Headers,
    extension: &Extension,
) -> usize {
    assert!(route.is_consistent(), "{route:?} has a GRH where its link says so");
    let payload_bytes = buffer.len().checked_sub(HEADROOM).expect("the payload begins at HEADROOM");
    let transport = HEADROOM - headers.length() - extension.length();
    let (start, length) = (transport - route.length(), datagram_length(headers, extension, payload_bytes));
    buffer.resize(transport + length, 0);
    route.emit(&mut buffer[start..], length);
    headers.emit_with(extension, &mut buffer[transport..], pad_length(payload_bytes));
    let covered = transport + length - ICRC_LENGTH;
    let crc = route.icrc(&buffer[transport..covered]);
    buffer[covered..].copy_from_slice(&crc.to_le_bytes());
    if matches!(route.link, Link::Infiniband(_)) {
        buffer.extend([0; VCRC_LENGTH]);
        seal_link(&mut buffer[start..]);
    }
    start
}

/// Writes the VCRC of an InfiniBand packet whose other bytes are in place: what every port does that sends it.
///
/// # Panics
/// When there is no room for it.
pub fn seal_link(packet: &mut [u8]) {
    let (covered, end) = packet.split_at_mut(packet.len() - VCRC_LENGTH);
    end.copy_from_slice(&vcrc(covered).to_le_bytes());
}

/// Puts an InfiniBand packet on another virtual lane and writes its VCRC anew, as a switch does; with `is_marked` it also says that
/// it has met congestion (FECN).
pub fn forward_infiniband(packet: &mut [u8], virtual_lane: u8, is_marked: bool) -> Result<(), Malformed> {
    let Some((lrh, length)) = Lrh::parse(packet)? else { return Ok(()) };
    packet[0] = virtual_lane << 4;
    if is_marked {
        mark_forward(&mut packet[Lrh::LENGTH + if lrh.is_global { Grh::LENGTH } else { 0 }..]);
    }
    if packet.len() == length + VCRC_LENGTH {
        seal_link(packet);
    }
    Ok(())
}

/// Sets the FECN bit of a BTH.
fn mark_forward(transport: &mut [u8]) {
    if let Some(byte) = transport.get_mut(crate::transport::Bth::VARYING) {
        *byte |= 0x80;
    }
}

/// The Ethernet header of RoCE v1, with the priority in a tag of VLAN 0: it has no DSCP.
pub fn roce_v1_ethernet(source: crate::Mac, target: crate::Mac, priority: u8) -> Ethernet {
    let vlan = Some(crate::VlanTag { priority, is_drop_eligible: false, id: 0 });
    Ethernet { target, source, vlan, ether_type: EtherType::ROCE_V1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample packet of IBTA volume 1, 7.8: a WRITE of 14 bytes in its subnet.
    const SAMPLE: [u8; 58] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00,
        0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00,
        0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00,
        0x00, 0x96, 0x25, 0xb7, 0x5a, 0x45, 0xfa,
    ];

    #[test]
    fn the_specifications_sample_is_read_with_good_check_sequences() {
        let Ok(Frame::Infiniband(packet)) = Frame::parse_infiniband(&SAMPLE) else {
            panic!("a local packet")
        };
        let lrh = Lrh {
            virtual_lane: 7,
            service_level: 1,
            source: Lid(0x17d2),
            target: Lid(0x375c),
            is_global: false,
        };
        assert_eq!(packet.route, Route { link: Link::Infiniband(lrh), grh: None });
        assert_eq!((packet.headers.bth.opcode.name(), packet.payload.len()), ("RC WRITE Only", 14));
        assert!(packet.icrc.is_good() && packet.vcrc.is_some_and(Vcrc::is_good));
        let cut = Frame::parse_infiniband(&SAMPLE[..56]).unwrap();
        assert!(matches!(cut, Frame::Infiniband(InfinibandPacket { vcrc: None, .. })));
    }

    #[test]
    fn a_switch_changes_lane_and_congestion_and_leaves_the_icrc_right() {
        let mut packet = SAMPLE;
        forward_infiniband(&mut packet, 3, true).unwrap();
        let Ok(Frame::Infiniband(forwarded)) = Frame::parse_infiniband(&packet) else {
            panic!("a local packet")
        };
        assert!(matches!(forwarded.route.link, Link::Infiniband(Lrh { virtual_lane: 3, .. })));
        assert!(forwarded.headers.bth.fecn && forwarded.icrc.is_good());
        assert!(forwarded.vcrc.is_some_and(Vcrc::is_good));
    }

    #[test]
    fn every_flipped_bit_is_found_by_one_of_the_check_sequences() {
        for bit in 0..SAMPLE.len() * 8 {
            let mut damaged = SAMPLE;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let is_good = match Frame::parse_infiniband(&damaged) {
                Ok(Frame::Infiniband(packet)) => {
                    packet.icrc.is_good() && packet.vcrc.is_some_and(Vcrc::is_good)
                }
                _ => false,
            };
            assert!(!is_good, "bit {} of byte {} is not missed", bit % 8, bit / 8);
        }
    }

    #[test]
    fn overheads_are_those_of_the_headers() {
        assert_eq!(Framing::ALL.map(Framing::overhead), [70, 86, 16]);
        assert_eq!(Framing::ALL.map(Framing::front), [42, 58, 8]);
    }
}
