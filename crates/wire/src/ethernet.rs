//! The Ethernet header, with or without an 802.1Q VLAN tag.

use std::fmt;

use crate::bytes::{header, put, put_u16, take, u16_at};
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const TARGET: usize = 0;
    pub(super) const SOURCE: usize = 6;
    pub(super) const TYPE: usize = 12;
    /// With a tag: its contents, then the type.
    pub(super) const TAG: usize = 14;
    pub(super) const TAGGED_TYPE: usize = 16;
}

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if index == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an Ethernet frame carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// Address resolution.
    pub const ARP: Self = Self(0x0806);
    /// An 802.1Q tag; the real type follows it.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// MAC control: pause frames.
    pub const MAC_CONTROL: Self = Self(0x8808);
    /// Link layer discovery.
    pub const LLDP: Self = Self(0x88cc);
    /// RoCE version 1: InfiniBand headers right on Ethernet.
    pub const ROCE_V1: Self = Self(0x8915);

    /// Its name, where it has one that matters here.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::IPV4 => "IPv4",
            Self::ARP => "ARP",
            Self::VLAN => "VLAN",
            Self::IPV6 => "IPv6",
            Self::MAC_CONTROL => "MAC control",
            Self::LLDP => "LLDP",
            Self::ROCE_V1 => "RoCEv1",
            _ => return None,
        })
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "{:#06x}", self.0),
        }
    }
}

/// The contents of an 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VlanTag {
    /// Priority code point, three bits: the priority that PFC pauses.
    pub priority: u8,
    /// Drop this frame first.
    pub is_drop_eligible: bool,
    /// Which VLAN, twelve bits.
    pub id: u16,
}

/// An Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Whom it is for.
    pub target: Mac,
    /// Who sent it.
    pub source: Mac,
    /// The tag, where there is one. A second tag is not looked into.
    pub vlan: Option<VlanTag>,
    /// What it carries, inside the tag.
    pub ether_type: EtherType,
}

impl Ethernet {
    /// Bytes of an untagged header.
    pub const LENGTH: usize = 14;
    /// Bytes of a tagged header.
    pub const TAGGED_LENGTH: usize = 18;

    /// Reads the header at the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::Ethernet)?;
        let mut ether_type = EtherType(u16_at(raw, field::TYPE));
        let mut vlan = None;
        if ether_type == EtherType::VLAN {
            let raw: &[u8; Self::TAGGED_LENGTH] = header(bytes, Layer::Vlan)?;
            let tag = u16_at(raw, field::TAG);
            vlan = Some(VlanTag {
                priority: (tag >> 13) as u8,
                is_drop_eligible: tag >> 12 & 1 != 0,
                id: tag & 0xfff,
            });
            ether_type = EtherType(u16_at(raw, field::TAGGED_TYPE));
        }
        let (target, source) = (Mac(take(raw, field::TARGET)), Mac(take(raw, field::SOURCE)));
        Ok(Self { target, source, vlan, ether_type })
    }

    /// Bytes of the header.
    pub const fn length(&self) -> usize {
        if self.vlan.is_some() { Self::TAGGED_LENGTH } else { Self::LENGTH }
    }

    /// Writes the header to the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, field::TARGET, self.target.0);
        put(out, field::SOURCE, self.source.0);
        match self.vlan {
            None => put_u16(out, field::TYPE, self.ether_type.0),
            Some(tag) => {
                put_u16(out, field::TYPE, EtherType::VLAN.0);
                let priority = u16::from(tag.priority & 7) << 13;
                let drop_eligible = u16::from(tag.is_drop_eligible) << 12;
                put_u16(out, field::TAG, priority | drop_eligible | tag.id & 0xfff);
                put_u16(out, field::TAGGED_TYPE, self.ether_type.0);
            }
        }
    }
}
