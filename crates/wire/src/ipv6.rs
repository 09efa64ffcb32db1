//! The IPv6 header.

use std::net::Ipv6Addr;

use crate::bytes::{header, put, put_u16, put_u32, take, u16_at, u32_at};
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const VERSION_CLASS_FLOW: usize = 0;
    pub(super) const PAYLOAD_LENGTH: usize = 4;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SOURCE: usize = 8;
    pub(super) const TARGET: usize = 24;
}

const VERSION: u32 = 6 << 28;

/// An IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// DSCP and ECN in one byte.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_length: u16,
    /// What the payload is; 17 is UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Who sent it.
    pub source: Ipv6Addr,
    /// Whom it is for.
    pub target: Ipv6Addr,
}

impl Ipv6 {
    /// Bytes of the header.
    pub const LENGTH: usize = 40;

    /// Reads the header at the front of `bytes`, which may run on after the datagram.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::parse_as(bytes, Layer::Ipv6, "version")
    }

    /// The same of a header with this layout that belongs to a layer of its own, where the version has this name.
    pub(crate) fn parse_as(bytes: &[u8], layer: Layer, version: &'static str) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, layer)?;
        let first = u32_at(raw, field::VERSION_CLASS_FLOW);
        if first >> 28 != VERSION >> 28 {
            return Err(Malformed::Field { layer, field: version, value: (first >> 28).into() });
        }
        let payload_length = u16_at(raw, field::PAYLOAD_LENGTH);
        let most = bytes.len() - Self::LENGTH;
        if usize::from(payload_length) > most {
            let stated = payload_length.into();
            return Err(Malformed::Length { layer, stated, least: 0, most });
        }
        Ok(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_length,
            next_header: raw[field::NEXT_HEADER],
            hop_limit: raw[field::HOP_LIMIT],
            source: Ipv6Addr::from(take::<16>(raw, field::SOURCE)),
            target: Ipv6Addr::from(take::<16>(raw, field::TARGET)),
        })
    }

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut raw = [0; Self::LENGTH];
        let first = VERSION | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put_u32(&mut raw, field::VERSION_CLASS_FLOW, first);
        put_u16(&mut raw, field::PAYLOAD_LENGTH, self.payload_length);
        raw[field::NEXT_HEADER] = self.next_header;
        raw[field::HOP_LIMIT] = self.hop_limit;
        put(&mut raw, field::SOURCE, self.source.octets());
        put(&mut raw, field::TARGET, self.target.octets());
        raw
    }

    /// Sets to ones what may change on the way, as the ICRC wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        put_u32(raw, field::VERSION_CLASS_FLOW, VERSION | 0x0fff_ffff);
        raw[field::HOP_LIMIT] = 0xff;
    }
}
