//! The header that the RDMA connection manager of Linux puts in front of its user's private data in REQ and SIDR_REQ
//! (IBTA annex A11, RDMA IP CM service).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{header, put, put_u16, take, u16_at};
use crate::malformed::{Layer, Malformed};

mod field {
    pub(super) const VERSION: usize = 0;
    pub(super) const IP_VERSION: usize = 1;
    pub(super) const PORT: usize = 2;
    pub(super) const SOURCE: usize = 4;
    pub(super) const TARGET: usize = 20;
}

/// Who connects to whom, in terms of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmaHeader {
    /// The port of the one who connects.
    pub source_port: u16,
    /// Its address.
    pub source: IpAddr,
    /// The address it connects to: of the same family.
    pub target: IpAddr,
}

impl CmaHeader {
    /// Bytes of the header; the user's private data follows.
    pub const LENGTH: usize = 36;

    /// Reads the header at the front of private data.
    pub fn parse(private: &[u8]) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(private, Layer::CmaPrivate)?;
        let wrong =
            |field, value: u8| Err(Malformed::Field { layer: Layer::CmaPrivate, field, value: value.into() });
        if raw[field::VERSION] != 0 {
            return wrong("version", raw[field::VERSION]);
        }
        let address: fn(&[u8], usize) -> IpAddr = match raw[field::IP_VERSION] >> 4 {
            // An IPv4 address stands in the last four of sixteen bytes.
            4 => |raw, at| Ipv4Addr::from(take::<4>(raw, at + 12)).into(),
            6 => |raw, at| Ipv6Addr::from(take::<16>(raw, at)).into(),
            other => return wrong("IP version", other),
        };
        Ok(Self {
            source_port: u16_at(raw, field::PORT),
            source: address(raw, field::SOURCE),
            target: address(raw, field::TARGET),
        })
    }

    /// Writes the header to the front of private data.
    pub fn emit(&self, private: &mut [u8]) {
        let raw = &mut private[..Self::LENGTH];
        raw.fill(0);
        put_u16(raw, field::PORT, self.source_port);
        let is_ipv4 = self.source.is_ipv4() && self.target.is_ipv4();
        raw[field::IP_VERSION] = if is_ipv4 { 0x40 } else { 0x60 };
        for (at, address) in [(field::SOURCE, self.source), (field::TARGET, self.target)] {
            match address {
                IpAddr::V4(v4) if is_ipv4 => put(raw, at + 12, v4.octets()),
                IpAddr::V4(v4) => put(raw, at, v4.to_ipv6_mapped().octets()),
                IpAddr::V6(v6) => put(raw, at, v6.octets()),
            }
        }
    }
}
