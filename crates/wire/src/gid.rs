//! Global identifiers: on RoCEv2 a GID is an IP address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A 16-byte global identifier: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IPv4 address.
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// Who sent a datagram, by the 40 bytes in front of it: a GRH, or an IPv4 header in its second half.
    pub fn from_grh(area: &[u8; 40]) -> Self {
        match area[0] >> 4 {
            6 => Self(std::array::from_fn(|index| area[8 + index])),
            _ => Self::from_ipv4(Ipv4Addr::new(area[32], area[33], area[34], area[35])),
        }
    }

    /// The GID of an IPv6 address.
    pub const fn from_ipv6(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }

    /// The GID of an address of either family.
    pub const fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::from_ipv4(v4),
            IpAddr::V6(v6) => Self::from_ipv6(v6),
        }
    }

    /// The IP address: IPv4 where the GID is a mapped one.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether this stands for an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_ip(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
