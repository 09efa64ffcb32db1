//! The local route header (LRH): how a packet finds its way through one InfiniBand subnet. IBTA volume 1, 7.7.

use std::fmt;

use crate::bytes::{header, put_u16, u16_at};
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const LANE_VERSION: usize = 0;
    pub(super) const LEVEL_NEXT: usize = 1;
    pub(super) const TARGET: usize = 2;
    pub(super) const LENGTH: usize = 4;
    pub(super) const SOURCE: usize = 6;
}

/// The virtual lane, which switches may change.
const LANE_MASK: u8 = 0xf0;
/// Link next header: which headers follow.
const NEXT_MASK: u8 = 3;
const NEXT_LOCAL: u8 = 2;
const NEXT_GLOBAL: u8 = 3;
/// The packet length counts words in 11 bits.
const WORDS_MAX: usize = 0x7ff;

/// A local identifier: the address of a port in its subnet, which the subnet manager assigns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// The first one of a port: 0 is reserved.
    pub const UNICAST_FIRST: Self = Self(1);
    /// The last one of a port: above are multicast groups, and 0xffff is the permissive LID.
    pub const UNICAST_LAST: Self = Self(0xbfff);
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A local route header, without its length field, which follows from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lrh {
    /// The virtual lane on this link, 0 to 15; 15 is for subnet management.
    pub virtual_lane: u8,
    /// The service level, 0 to 15: from it each port finds the virtual lane.
    pub service_level: u8,
    /// The port that sent it.
    pub source: Lid,
    /// The port that it is for.
    pub target: Lid,
    /// A GRH follows: the packet leaves the subnet, or is for a multicast group.
    pub is_global: bool,
}

impl Lrh {
    /// Bytes of the header.
    pub const LENGTH: usize = 8;

    /// Reads the header at the front of `bytes`; also gives the bytes from LRH to ICRC that it states. `None` stands for a raw
    /// packet, which has no InfiniBand transport.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::LocalRoute)?;
        let version = raw[field::LANE_VERSION] & !LANE_MASK;
        if version != 0 {
            let value = version.into();
            return Err(Malformed::Field { layer: Layer::LocalRoute, field: "LVer", value });
        }
        let next = raw[field::LEVEL_NEXT] & NEXT_MASK;
        if !matches!(next, NEXT_LOCAL | NEXT_GLOBAL) {
            return Ok(None);
        }
        let stated = (usize::from(u16_at(raw, field::LENGTH)) & WORDS_MAX) * 4;
        if stated < Self::LENGTH || stated > bytes.len() {
            let (least, most) = (Self::LENGTH, bytes.len());
            return Err(Malformed::Length { layer: Layer::LocalRoute, stated, least, most });
        }
        let lrh = Self {
            virtual_lane: raw[field::LANE_VERSION] >> 4,
            service_level: raw[field::LEVEL_NEXT] >> 4,
            source: Lid(u16_at(raw, field::SOURCE)),
            target: Lid(u16_at(raw, field::TARGET)),
            is_global: next == NEXT_GLOBAL,
        };
        Ok(Some((lrh, stated)))
    }

    /// The header as bytes, of a packet that has so many from LRH to ICRC.
    pub fn to_bytes(&self, packet_bytes: usize) -> [u8; Self::LENGTH] {
        debug_assert!(packet_bytes.is_multiple_of(4), "padding brings a packet to whole words");
        debug_assert!(packet_bytes / 4 <= WORDS_MAX, "a packet of {packet_bytes} bytes has no length field");
        let mut raw = [0; Self::LENGTH];
        let next = if self.is_global { NEXT_GLOBAL } else { NEXT_LOCAL };
        raw[field::LANE_VERSION] = self.virtual_lane << 4;
        raw[field::LEVEL_NEXT] = self.service_level << 4 | next;
        put_u16(&mut raw, field::TARGET, self.target.0);
        put_u16(&mut raw, field::LENGTH, (packet_bytes / 4) as u16);
        put_u16(&mut raw, field::SOURCE, self.source.0);
        raw
    }

    /// Sets to ones what may change within a subnet, as the ICRC of a local packet wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        raw[field::LANE_VERSION] |= LANE_MASK;
    }
}
