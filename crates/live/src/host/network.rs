//! Network interfaces, and what UDP sockets can do.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use quinn_udp::{UdpSockRef, UdpSocketState};

use super::line;

/// The port of RoCEv2.
pub(super) const ROCE_PORT: u16 = 4791;

/// A network interface that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its MTU: the most bytes of an IP packet.
    pub mtu: Option<u32>,
    /// Its rate in Mb/s, if the driver knows one.
    pub rate_mbps: Option<u32>,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
}

/// What UDP sockets can do here.
#[derive(Debug)]
pub struct UdpAbility {
    /// Whether the port of RoCEv2 can be bound now.
    pub roce_port: io::Result<()>,
    /// Packets that one system call can send (GSO); 1 without it.
    pub segments_sent: usize,
    /// Packets that one system call can receive as one (GRO); 1 without it.
    pub segments_received: usize,
}

/// The interfaces that have an address.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for one in if_addrs::get_if_addrs()? {
        let (address, is_loopback) = (one.ip(), one.is_loopback());
        if let Some(known) = found.iter_mut().find(|known| known.name == one.name) {
            known.addresses.push(address);
            continue;
        }
        let setting = |name: &str| line(&format!("/sys/class/net/{}/{name}", one.name))?.parse().ok();
        let (mtu, rate_mbps) = (setting("mtu"), setting("speed"));
        found.push(Interface { name: one.name, addresses: vec![address], mtu, rate_mbps, is_loopback });
    }
    Ok(found)
}

/// Tries what UDP sockets can do.
pub fn udp() -> io::Result<UdpAbility> {
    let roce_port = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)).map(|_| ());
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    Ok(UdpAbility {
        roce_port,
        segments_sent: state.max_gso_segments(),
        segments_received: state.gro_segments(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|one| one.is_loopback).unwrap();
        assert!(loopback.addresses.iter().all(IpAddr::is_loopback));
    }

    #[test]
    fn a_socket_sends_and_receives_one_packet_at_least() {
        let ability = udp().unwrap();
        assert!(ability.segments_sent >= 1 && ability.segments_received >= 1);
    }
}
