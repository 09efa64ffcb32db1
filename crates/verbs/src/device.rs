//! Devices: one for each address of the host.

use std::net::{IpAddr, SocketAddr};

use railnet_live::machine::{Interface, interfaces};
use railnet_nic::Mtu;
use railnet_wire::{Gid, ROCE_PORT};

use crate::settings::Settings;

/// An address that can be opened as a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) index: usize,
    pub(crate) address: IpAddr,
    pub(crate) interface: String,
    /// The largest path MTU that its interface carries.
    pub(crate) mtu: Mtu,
    /// What the interface says of its rate, in Mb/s.
    pub(crate) rate_mbps: Option<u32>,
}

impl Device {
    pub(crate) fn gid(&self) -> Gid {
        Gid::from_ip(self.address)
    }

    /// Where its NIC receives.
    pub(crate) fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, ROCE_PORT)
    }

    /// A number that no other device has: the lower half of an IPv6 address, or an IPv4 one behind a locally administered
    /// prefix. In network byte order.
    pub(crate) fn guid(&self) -> u64 {
        let mut bytes = [0; 8];
        match self.address {
            IpAddr::V4(v4) => {
                bytes[..4].copy_from_slice(&[0x02, b'R', b'N', 0xff]);
                bytes[4..].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                bytes.copy_from_slice(&v6.octets()[8..]);
                bytes[0] |= 0x02;
            }
        }
        u64::from_ne_bytes(bytes)
    }
}

/// All devices: those of networks before the loopback's, IPv4 before IPv6.
pub(crate) fn all(settings: &Settings) -> std::io::Result<Vec<Device>> {
    let mut found: Vec<(Interface, IpAddr)> = Vec::new();
    for interface in interfaces()? {
        let addresses = interface.addresses.clone();
        found.extend(addresses.into_iter().filter(can_carry).map(|address| (interface.clone(), address)));
    }
    match &settings.addresses {
        None => found.sort_by_key(|(interface, address)| (address.is_ipv6(), interface.is_loopback)),
        Some(wanted) => {
            let place = |address: &IpAddr| wanted.iter().position(|one| one == address);
            found.retain(|(_, address)| place(address).is_some());
            found.sort_by_key(|(_, address)| place(address));
        }
    }
    let devices = found.into_iter().enumerate().map(|(index, (interface, address))| Device {
        name: format!("railnet{index}"),
        index,
        address,
        mtu: mtu(&interface, address, settings),
        rate_mbps: interface.rate_mbps,
        interface: interface.name,
    });
    Ok(devices.collect())
}

/// The kernel's number of an interface; 0 where it is gone.
pub(crate) fn interface_index(name: &str) -> u32 {
    let number = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    number.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Link-local IPv6 addresses need an interface beside them, which a GID does not have.
fn can_carry(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_unspecified() && !v4.is_multicast(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast() && !v6.is_unicast_link_local(),
    }
}

/// The largest MTU of RoCE whose packets fit the interface's: the longest headers are those of atomics and the ICRC.
fn mtu(interface: &Interface, address: IpAddr, settings: &Settings) -> Mtu {
    const TRANSPORT: u32 = 12 + 28 + 4;
    let headers = if address.is_ipv4() { 20 } else { 40 } + 8 + TRANSPORT;
    let room = interface.mtu.unwrap_or(1500).saturating_sub(headers);
    let fits = Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room).unwrap_or(Mtu::Mtu256);
    settings.mtu.map_or(fits, |wanted| wanted.min(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(addresses: Option<Vec<IpAddr>>) -> Settings {
        Settings { addresses, ..Settings::from_env().expect("no variables are set") }
    }

    #[test]
    fn the_loopback_is_a_device_with_a_large_mtu() {
        let devices = all(&settings(Some(vec!["127.0.0.1".parse().unwrap()]))).unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].name.as_str(), devices[0].mtu), ("railnet0", Mtu::Mtu4096));
    }

    #[test]
    fn an_ethernet_carries_1024_bytes() {
        let interface = Interface {
            name: "eth0".to_owned(),
            addresses: Vec::new(),
            mtu: Some(1500),
            rate_mbps: None,
            is_loopback: false,
        };
        let address = "10.0.0.1".parse().unwrap();
        assert_eq!(mtu(&interface, address, &settings(None)), Mtu::Mtu1024);
        let large = Interface { mtu: Some(9000), ..interface };
        assert_eq!(mtu(&large, address, &settings(None)), Mtu::Mtu4096);
    }
}
