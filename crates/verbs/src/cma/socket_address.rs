//! Addresses of C: IP address and port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errors;
use crate::object;

/// Reads an address of the application.
pub(crate) fn parse(address: *const sockaddr) -> Result<SocketAddr, c_int> {
    let family = object::load::<libc::sa_family_t>(address.cast())?;
    match c_int::from(family) {
        libc::AF_INET => {
            let v4: sockaddr_in = object::load(address.cast())?;
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            let v6: sockaddr_in6 = object::load(address.cast())?;
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// The same, where null means that the application leaves it open.
pub(crate) fn maybe(address: *const sockaddr) -> Result<Option<SocketAddr>, c_int> {
    if address.is_null() { Ok(None) } else { parse(address).map(Some) }
}

/// An address as C has it.
pub(crate) fn to_c(address: SocketAddr) -> sockaddr_storage {
    let mut storage: sockaddr_storage = object::zeroed();
    let pointer = &raw mut storage;
    match address.ip() {
        IpAddr::V4(v4) => {
            let mut c: sockaddr_in = object::zeroed();
            c.sin_family = libc::AF_INET as libc::sa_family_t;
            c.sin_port = address.port().to_be();
            c.sin_addr.s_addr = u32::from_ne_bytes(v4.octets());
            object::store(pointer.cast(), c);
        }
        IpAddr::V6(v6) => {
            let mut c: sockaddr_in6 = object::zeroed();
            c.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            c.sin6_port = address.port().to_be();
            c.sin6_addr.s6_addr = v6.octets();
            object::store(pointer.cast(), c);
        }
    }
    storage
}

/// Bytes of an address of C.
pub(crate) fn length(address: SocketAddr) -> usize {
    if address.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() }
}

/// The address of this host that the kernel sends from to a peer.
pub(super) fn source_for(peer: IpAddr) -> Result<IpAddr, c_int> {
    const DISCARD_PORT: u16 = 9;
    let local = || -> std::io::Result<IpAddr> {
        // Connecting a datagram socket sends nothing.
        let socket = UdpSocket::bind(SocketAddr::new(unspecified(peer), 0))?;
        socket.connect(SocketAddr::new(peer, DISCARD_PORT))?;
        Ok(socket.local_addr()?.ip())
    };
    local().map_err(|error| errors::of_io(&error))
}

/// The address of a family that stands for all.
pub(super) fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The peer that an application means: the address that stands for all is this host.
pub(super) fn peer(address: SocketAddr) -> SocketAddr {
    let loopback: IpAddr =
        if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let ip = if address.ip().is_unspecified() { loopback } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["10.1.2.3:4791", "[2001:db8::7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = to_c(address);
            assert_eq!(parse((&raw const c).cast()), Ok(address));
        }
    }

    #[test]
    fn other_families_and_null_are_refused() {
        let mut c: sockaddr_storage = object::zeroed();
        c.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(parse((&raw const c).cast()), Err(libc::EAFNOSUPPORT));
        assert_eq!(parse(std::ptr::null()), Err(libc::EINVAL));
        assert_eq!(maybe(std::ptr::null()), Ok(None));
    }

    #[test]
    fn the_unspecified_peer_is_this_host() {
        assert_eq!(peer("0.0.0.0:7".parse().unwrap()), "127.0.0.1:7".parse().unwrap());
        assert_eq!(source_for("127.0.0.1".parse().unwrap()), Ok("127.0.0.1".parse().unwrap()));
    }
}
