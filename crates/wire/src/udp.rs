//! The UDP header, and the source port that spreads RoCEv2 flows over paths.

use railnet_core::QueuePairNumber;

use crate::bytes::{header, put_u16, u16_at};
use crate::malformed::{Layer, Malformed};
use crate::network::Ip;

/// The UDP target port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;
/// UDP as an IP protocol number.
pub const UDP_PROTOCOL: u8 = 17;

mod field {
    pub(super) const SOURCE_PORT: usize = 0;
    pub(super) const TARGET_PORT: usize = 2;
    pub(super) const LENGTH: usize = 4;
    pub(super) const CHECKSUM: usize = 6;
}

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source port: entropy for load balancing, of no other meaning.
    pub source_port: u16,
    /// Target port.
    pub target_port: u16,
    /// Bytes after the header.
    pub payload_length: u16,
    /// As it stands on the wire; 0 means that there is none, which is what RoCEv2 senders use.
    pub checksum: u16,
}

impl Udp {
    /// Bytes of the header.
    pub const LENGTH: usize = 8;

    /// Reads the header at the front of `bytes`, which may run on after the datagram.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::Udp)?;
        let stated = usize::from(u16_at(raw, field::LENGTH));
        if stated < Self::LENGTH || stated > bytes.len() {
            let (least, most) = (Self::LENGTH, bytes.len());
            return Err(Malformed::Length { layer: Layer::Udp, stated, least, most });
        }
        Ok(Self {
            source_port: u16_at(raw, field::SOURCE_PORT),
            target_port: u16_at(raw, field::TARGET_PORT),
            payload_length: (stated - Self::LENGTH) as u16,
            checksum: u16_at(raw, field::CHECKSUM),
        })
    }

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut raw = [0; Self::LENGTH];
        put_u16(&mut raw, field::SOURCE_PORT, self.source_port);
        put_u16(&mut raw, field::TARGET_PORT, self.target_port);
        put_u16(&mut raw, field::LENGTH, self.payload_length.saturating_add(Self::LENGTH as u16));
        put_u16(&mut raw, field::CHECKSUM, self.checksum);
        raw
    }

    /// Sets to ones what may change on the way, as the ICRC wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        put_u16(raw, field::CHECKSUM, 0xffff);
    }
}

/// The UDP source port of a connection: its flow label folded to 14 bits, above 0xc000.
///
/// Without a label (0) the two queue pair numbers make one, in such a way that both ends pick the same port. The
/// formula is the kernel's, include/rdma/ib_verbs.h `rdma_get_udp_sport`.
pub fn udp_source_port(flow_label: u32, local: QueuePairNumber, remote: QueuePairNumber) -> u16 {
    let mut label = flow_label & 0xf_ffff;
    if label == 0 {
        let mut product = u64::from(local.value()) * u64::from(remote.value());
        product ^= product >> 20;
        product ^= product >> 40;
        label = (product & 0xf_ffff) as u32;
    }
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

/// Puts the UDP checksum into a packet that begins with its IP header and has everything else in place, the ICRC too,
/// which does not cover it. RFC 768 and 8200.
///
/// RoCEv2 senders use 0, which over IPv6 not every receiver takes.
pub fn fill_udp_checksum(packet: &mut [u8]) -> Result<(), Malformed> {
    let ip = Ip::parse(packet)?;
    let (start, end) = (ip.length(), ip.length() + ip.payload_length());
    let addresses = match ip {
        Ip::V4(_) => start - 8..start,
        Ip::V6(_) => start - 32..start,
    };
    Udp::parse(&packet[start..end])?;
    let datagram = &mut packet[start..end];
    put_u16(datagram, field::CHECKSUM, 0);
    let pseudo_header = sum(&packet[addresses]) + u64::from(UDP_PROTOCOL) + (end - start) as u64;
    let mut total = pseudo_header + sum(&packet[start..end]);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    // A sum of 0 is sent as its other form: 0 itself says that there is none.
    let checksum = if total == 0xffff { 0xffff } else { !total as u16 };
    put_u16(&mut packet[start..end], field::CHECKSUM, checksum);
    Ok(())
}

/// The 16-bit words of `bytes` added up, an odd byte at the end as the high half of one.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
    words + rest.first().map_or(0, |&byte| u64::from(byte) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_those_that_soft_roce_picked() {
        let port = |label, local, remote| {
            udp_source_port(label, QueuePairNumber::new(local), QueuePairNumber::new(remote))
        };
        assert_eq!(port(0, 0x1b, 0x16), 49746);
        assert_eq!(port(0, 0x16, 0x1b), 49746);
        assert_eq!(port(0xa_bcde, 1, 2), 64756);
        assert_eq!(port(0x1_2345, 1, 2), 58177);
    }
}
