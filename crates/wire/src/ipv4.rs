//! The IPv4 header, without options.

use std::net::Ipv4Addr;

use crate::bytes::{header, put, put_u16, take, u16_at};
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const VERSION_LENGTH: usize = 0;
    pub(super) const TRAFFIC_CLASS: usize = 1;
    pub(super) const TOTAL_LENGTH: usize = 2;
    pub(super) const IDENTIFICATION: usize = 4;
    pub(super) const FLAGS_FRAGMENT: usize = 6;
    pub(super) const TIME_TO_LIVE: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const CHECKSUM: usize = 10;
    pub(super) const SOURCE: usize = 12;
    pub(super) const TARGET: usize = 16;
}

const VERSION_4_WORDS_5: u8 = 0x45;
const RESERVED_FLAG: u16 = 0x8000;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// An IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// DSCP and ECN in one byte.
    pub traffic_class: u8,
    /// Bytes after the header.
    pub payload_length: u16,
    /// The IP ID. RoCEv2's ICRC covers it.
    pub identification: u16,
    /// Routers must not fragment it.
    pub dont_fragment: bool,
    /// Other fragments of the same datagram follow.
    pub more_fragments: bool,
    /// Where in the datagram this fragment begins, in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub hop_limit: u8,
    /// What the payload is; 17 is UDP.
    pub protocol: u8,
    /// Who sent it.
    pub source: Ipv4Addr,
    /// Whom it is for.
    pub target: Ipv4Addr,
}

impl Ipv4 {
    /// Bytes of the header.
    pub const LENGTH: usize = 20;

    /// Reads the header at the front of `bytes`, which may run on after the datagram (Ethernet pads short frames).
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::Ipv4)?;
        let wrong = |field, value| Err(Malformed::Field { layer: Layer::Ipv4, field, value });
        let version_length = raw[field::VERSION_LENGTH];
        if version_length >> 4 != 4 {
            return wrong("version", (version_length >> 4).into());
        }
        // RoCEv2 has no place for options: the ICRC rule names a header of five words (IBTA annex A17).
        if version_length & 0xf != 5 {
            return wrong("header length in words", (version_length & 0xf).into());
        }
        let (found, computed) = (u16_at(raw, field::CHECKSUM), checksum(raw));
        if found != computed {
            return Err(Malformed::Ipv4Checksum { found, computed });
        }
        let total = usize::from(u16_at(raw, field::TOTAL_LENGTH));
        if total < Self::LENGTH || total > bytes.len() {
            let (least, most) = (Self::LENGTH, bytes.len());
            return Err(Malformed::Length { layer: Layer::Ipv4, stated: total, least, most });
        }
        let flags = u16_at(raw, field::FLAGS_FRAGMENT);
        if flags & RESERVED_FLAG != 0 {
            return wrong("flags", (flags >> 13).into());
        }
        Ok(Self {
            traffic_class: raw[field::TRAFFIC_CLASS],
            payload_length: (total - Self::LENGTH) as u16,
            identification: u16_at(raw, field::IDENTIFICATION),
            dont_fragment: flags & DONT_FRAGMENT != 0,
            more_fragments: flags & MORE_FRAGMENTS != 0,
            fragment_offset: flags & 0x1fff,
            hop_limit: raw[field::TIME_TO_LIVE],
            protocol: raw[field::PROTOCOL],
            source: Ipv4Addr::from(take::<4>(raw, field::SOURCE)),
            target: Ipv4Addr::from(take::<4>(raw, field::TARGET)),
        })
    }

    /// The header as bytes, with its checksum.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut raw = self.without_checksum();
        let sum = checksum(&raw);
        put_u16(&mut raw, field::CHECKSUM, sum);
        raw
    }

    /// The header as bytes, 0 in the place of its checksum.
    #[inline]
    pub(crate) fn without_checksum(&self) -> [u8; Self::LENGTH] {
        let mut raw = [0; Self::LENGTH];
        raw[field::VERSION_LENGTH] = VERSION_4_WORDS_5;
        raw[field::TRAFFIC_CLASS] = self.traffic_class;
        put_u16(&mut raw, field::TOTAL_LENGTH, self.payload_length.saturating_add(Self::LENGTH as u16));
        put_u16(&mut raw, field::IDENTIFICATION, self.identification);
        let flags = (u16::from(self.dont_fragment) * DONT_FRAGMENT)
            | (u16::from(self.more_fragments) * MORE_FRAGMENTS)
            | self.fragment_offset & 0x1fff;
        put_u16(&mut raw, field::FLAGS_FRAGMENT, flags);
        raw[field::TIME_TO_LIVE] = self.hop_limit;
        raw[field::PROTOCOL] = self.protocol;
        put(&mut raw, field::SOURCE, self.source.octets());
        put(&mut raw, field::TARGET, self.target.octets());
        raw
    }

    /// Whether it is a part of a larger datagram.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Sets to ones what may change on the way, as the ICRC wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        raw[field::TRAFFIC_CLASS] = 0xff;
        raw[field::TIME_TO_LIVE] = 0xff;
        put_u16(raw, field::CHECKSUM, 0xffff);
    }

    /// Bytes of the header after the IP ID.
    pub(crate) const AFTER_IDENTIFICATION: usize = Self::LENGTH - field::IDENTIFICATION - 2;
}

/// The checksum that belongs into this header, whatever stands there now. RFC 791.
fn checksum(raw: &[u8; Ipv4::LENGTH]) -> u16 {
    let total: u32 = (0..Ipv4::LENGTH)
        .step_by(2)
        .filter(|&at| at != field::CHECKSUM)
        .map(|at| u32::from(u16_at(raw, at)))
        .sum();
    let folded = (total & 0xffff) + (total >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
