//! The global route header (GRH): the addresses of a packet between subnets, in RoCE v1 those of every packet. IBTA volume 1, 8.3.

use crate::bytes::{header, put, put_u16, put_u32, take, u16_at, u32_at};
use crate::gid::Gid;
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const VERSION_CLASS_FLOW: usize = 0;
    pub(super) const PAYLOAD_LENGTH: usize = 4;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SOURCE: usize = 8;
    pub(super) const TARGET: usize = 24;
}

/// As that of IPv6.
const VERSION: u32 = 6 << 28;
/// A BTH follows.
const NEXT_HEADER: u8 = 0x1b;

/// A global route header, without its length field, which follows from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// Routers that it may pass.
    pub hop_limit: u8,
    /// The port that sent it.
    pub source: Gid,
    /// The port that it is for.
    pub target: Gid,
}

impl Grh {
    /// Bytes of the header.
    pub const LENGTH: usize = 40;

    /// Reads the header at the front of `bytes`; also gives the bytes behind it, BTH to ICRC, that it states.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::GlobalRoute)?;
        let wrong = |field, value| Err(Malformed::Field { layer: Layer::GlobalRoute, field, value });
        let first = u32_at(raw, field::VERSION_CLASS_FLOW);
        if first >> 28 != VERSION >> 28 {
            return wrong("IPVer", (first >> 28).into());
        }
        if raw[field::NEXT_HEADER] != NEXT_HEADER {
            return wrong("NxtHdr", raw[field::NEXT_HEADER].into());
        }
        let (stated, most) = (usize::from(u16_at(raw, field::PAYLOAD_LENGTH)), bytes.len() - Self::LENGTH);
        if stated > most {
            return Err(Malformed::Length { layer: Layer::GlobalRoute, stated, least: 0, most });
        }
        let grh = Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: raw[field::HOP_LIMIT],
            source: Gid(take(raw, field::SOURCE)),
            target: Gid(take(raw, field::TARGET)),
        };
        Ok((grh, stated))
    }

    /// The header as bytes, in front of so many from BTH to ICRC.
    pub fn to_bytes(&self, transport_bytes: usize) -> [u8; Self::LENGTH] {
        let mut raw = [0; Self::LENGTH];
        let first = VERSION | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put_u32(&mut raw, field::VERSION_CLASS_FLOW, first);
        put_u16(&mut raw, field::PAYLOAD_LENGTH, transport_bytes as u16);
        raw[field::NEXT_HEADER] = NEXT_HEADER;
        raw[field::HOP_LIMIT] = self.hop_limit;
        put(&mut raw, field::SOURCE, self.source.0);
        put(&mut raw, field::TARGET, self.target.0);
        raw
    }

    /// Sets to ones what routers may change, as the ICRC wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        put_u32(raw, field::VERSION_CLASS_FLOW, VERSION | 0x0fff_ffff);
        raw[field::HOP_LIMIT] = 0xff;
    }
}
