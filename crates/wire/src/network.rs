//! The addressing of a RoCEv2 packet as a NIC sees it, one shape for IPv4 and IPv6.

use std::net::IpAddr;

use crate::gid::Gid;
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::udp::{UDP_PROTOCOL, Udp};

/// Bytes of the address area in front of every datagram receive.
pub const GRH_LENGTH: usize = 40;

/// Where a packet comes from and goes to, and how the network is to treat it.
///
/// It goes over IPv4 when both GIDs are IPv4-mapped, always with "do not fragment"; otherwise over IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// The sender's address.
    pub source: Gid,
    /// The receiver's address.
    pub target: Gid,
    /// UDP source port: which of several paths is taken.
    pub source_port: u16,
    /// UDP target port: 4791, or the one that a Railnet process has for itself.
    pub target_port: u16,
    /// DSCP (upper six bits) and ECN (lower two).
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// The IPv4 ID; of no meaning over IPv6.
    pub identification: u16,
    /// The IPv6 flow label, 20 bits; of no meaning over IPv4.
    pub flow_label: u32,
}

impl Network {
    /// The two ECN bits: 0 not capable, 1 and 2 capable, 3 congestion experienced.
    pub const fn ecn(self) -> u8 {
        self.traffic_class & 3
    }

    /// The differentiated services code point.
    pub const fn dscp(self) -> u8 {
        self.traffic_class >> 2
    }

    /// Whether the packet goes over IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.source.is_ipv4() && self.target.is_ipv4()
    }

    /// Bytes of the IP header.
    pub fn ip_length(&self) -> usize {
        if self.is_ipv4() { Ipv4::LENGTH } else { Ipv6::LENGTH }
    }

    /// The 40 bytes that a datagram receive finds in front of its payload.
    ///
    /// `udp_payload_bytes` are all bytes after the UDP header: BTH to ICRC. An IPv6 header fills the area; an IPv4
    /// header fills its second half, behind 20 zero bytes (IBTA annex A17).
    pub fn grh(&self, udp_payload_bytes: usize) -> [u8; GRH_LENGTH] {
        match self.ip(udp_payload_bytes) {
            Ip::V4(header) => {
                let mut area = [0; GRH_LENGTH];
                area[GRH_LENGTH - Ipv4::LENGTH..].copy_from_slice(&header.to_bytes());
                area
            }
            Ip::V6(header) => header.to_bytes(),
        }
    }

    /// The IP header in front of a UDP header and so many bytes.
    #[inline]
    pub fn ip(&self, udp_payload_bytes: usize) -> Ip {
        self.ip_carrying(UDP_PROTOCOL, udp_payload_bytes + Udp::LENGTH)
    }

    /// The IP header in front of so many bytes of a protocol.
    #[inline]
    pub(crate) fn ip_carrying(&self, protocol: u8, bytes: usize) -> Ip {
        let payload_length = length_field(bytes);
        let (traffic_class, hop_limit) = (self.traffic_class, self.hop_limit);
        match (self.source.to_ip(), self.target.to_ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => Ip::V4(Ipv4 {
                traffic_class,
                payload_length,
                identification: self.identification,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                hop_limit,
                protocol,
                source,
                target,
            }),
            _ => Ip::V6(Ipv6 {
                traffic_class,
                flow_label: self.flow_label,
                payload_length,
                next_header: protocol,
                hop_limit,
                source: self.source.0.into(),
                target: self.target.0.into(),
            }),
        }
    }

    /// The UDP header in front of so many bytes; without a checksum, as RoCEv2 senders have it.
    #[inline]
    pub fn udp(&self, udp_payload_bytes: usize) -> Udp {
        let payload_length = length_field(udp_payload_bytes);
        Udp { source_port: self.source_port, target_port: self.target_port, payload_length, checksum: 0 }
    }
}

/// A length as its field can hold it. No path MTU comes near the limit, and parsing refuses more.
fn length_field(bytes: usize) -> u16 {
    debug_assert!(u16::try_from(bytes).is_ok(), "a packet of {bytes} bytes has no length field");
    bytes as u16
}

/// An IP header of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Ip {
    V4(Ipv4),
    V6(Ipv6),
}

impl Ip {
    /// Reads the header whose version nibble says which it is.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, crate::Malformed> {
        match bytes.first().map(|byte| byte >> 4) {
            Some(6) => Ipv6::parse(bytes).map(Self::V6),
            _ => Ipv4::parse(bytes).map(Self::V4),
        }
    }

    /// Bytes of the header.
    pub const fn length(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::LENGTH,
            Self::V6(_) => Ipv6::LENGTH,
        }
    }

    /// Bytes that follow the header.
    pub fn payload_length(&self) -> usize {
        match self {
            Self::V4(header) => header.payload_length,
            Self::V6(header) => header.payload_length,
        }
        .into()
    }

    /// What follows the header; 17 is UDP.
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::V4(header) => header.protocol,
            Self::V6(header) => header.next_header,
        }
    }

    /// Writes the header to the front of `out`.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        match self {
            Self::V4(header) => out[..Ipv4::LENGTH].copy_from_slice(&header.to_bytes()),
            Self::V6(header) => out[..Ipv6::LENGTH].copy_from_slice(&header.to_bytes()),
        }
    }

    /// The addressing of the packet, given its UDP header.
    #[inline]
    pub fn network(&self, udp: &Udp) -> Network {
        let (source_port, target_port) = (udp.source_port, udp.target_port);
        match *self {
            Self::V4(header) => Network {
                source: Gid::from_ipv4(header.source),
                target: Gid::from_ipv4(header.target),
                source_port,
                target_port,
                traffic_class: header.traffic_class,
                hop_limit: header.hop_limit,
                identification: header.identification,
                flow_label: 0,
            },
            Self::V6(header) => Network {
                source: Gid::from_ipv6(header.source),
                target: Gid::from_ipv6(header.target),
                source_port,
                target_port,
                traffic_class: header.traffic_class,
                hop_limit: header.hop_limit,
                identification: 0,
                flow_label: header.flow_label,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::ROCE_PORT;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn words(text: &str) -> Vec<u8> {
        text.split(' ').flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_be_bytes()).collect()
    }

    #[test]
    fn grh_areas_are_those_that_soft_roce_delivered() {
        let mut network = Network {
            source: Gid::from_ipv4(Ipv4Addr::new(10, 77, 0, 3)),
            target: Gid::from_ipv4(Ipv4Addr::new(10, 77, 0, 2)),
            source_port: 0xc000,
            target_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            identification: 0xa7ee,
            flow_label: 0,
        };
        let v4 = "00000000 00000000 00000000 00000000 00000000 45000438 a7ee4000 40117a28 0a4d0003 0a4d0002";
        assert_eq!(network.grh(12 + 8 + 4 + 1024 + 4)[..], words(v4));
        network.source = Gid::from_ipv6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3));
        network.target = Gid::from_ipv6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));
        let v6 = "60000000 00481140 fd770000 00000000 00000000 00000003 fd770000 00000000 00000000 00000002";
        assert_eq!(network.grh(12 + 8 + 4 + 33 + 3 + 4)[..], words(v6));
    }
}
