//! RDMA devices of a host: one for each address that can carry RoCEv2.

use std::net::{IpAddr, SocketAddr};

use railnet_nic::Mtu;
use railnet_wire::{Gid, ROCE_PORT};

use super::Settings;
use crate::host::{Interface, interfaces};

/// An address that can be opened as a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// `railnet0` and so on.
    pub name: String,
    /// Its place in the list of devices.
    pub index: usize,
    /// Its only address.
    pub address: IpAddr,
    /// The network interface that has the address.
    pub interface: String,
    /// Whether that is the loopback.
    pub is_loopback: bool,
    /// The MTU of the interface, in bytes.
    pub interface_mtu: Option<u32>,
    /// The largest path MTU that its interface carries.
    pub mtu: Mtu,
    /// What the interface says of its rate, in Mb/s.
    pub rate_mbps: Option<u32>,
}

impl Device {
    /// The GID of its address.
    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.address)
    }

    /// Where its NIC receives.
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, ROCE_PORT)
    }

    /// A number that no other device has: the lower half of an IPv6 address, or an IPv4 one behind a locally administered
    /// prefix. In network byte order.
    pub fn guid(&self) -> u64 {
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

/// How a port's rate is told in verbs: lanes, and the speed of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The rate that both come to, in Mb/s.
    pub rate_mbps: u32,
    /// The code of the number of lanes: 1, 2, 4 are 1X, 4X, 8X.
    pub width: u8,
    /// The code of a lane's speed.
    pub speed: u8,
}

impl Device {
    /// The fastest link of verbs that is not faster than the interface. One that knows no rate, as the loopback, has 10 Gb/s.
    pub fn link(&self) -> Link {
        const LINKS: [(u32, u8, u8); 10] = [
            (2_500, 1, 1),
            (5_000, 1, 2),
            (10_000, 1, 4),
            (25_000, 1, 32),
            (40_000, 2, 4),
            (50_000, 1, 64),
            (100_000, 2, 32),
            (200_000, 2, 64),
            (400_000, 2, 128),
            (800_000, 4, 128),
        ];
        let rate = self.rate_mbps.unwrap_or(10_000);
        let found = LINKS.into_iter().rev().find(|(link, ..)| *link <= rate).unwrap_or(LINKS[0]);
        let (rate_mbps, width, speed) = found;
        Link { rate_mbps, width, speed }
    }
}

/// All devices: those of networks before the loopback's, IPv4 before IPv6.
pub fn devices(settings: &Settings) -> std::io::Result<Vec<Device>> {
    let mut found: Vec<(Interface, IpAddr)> = Vec::new();
    for interface in interfaces()? {
        let addresses = interface.addresses.clone();
        found.extend(addresses.into_iter().filter(can_carry).map(|address| (interface.clone(), address)));
    }
    match &settings.addresses {
        None => found.sort_by_key(|(interface, address)| (address.is_ipv6(), interface.is_loopback)),
        Some(wanted) => {
            if let Some(missing) = wanted.iter().find(|one| !found.iter().any(|(_, address)| address == *one))
            {
                return Err(no_address(*missing, &found));
            }
            let place = |address: &IpAddr| wanted.iter().position(|one| one == address);
            found.retain(|(_, address)| place(address).is_some());
            found.sort_by_key(|(_, address)| place(address));
        }
    }
    let all = found.into_iter().enumerate().map(|(index, (interface, address))| Device {
        name: format!("railnet{index}"),
        index,
        address,
        mtu: mtu(&interface, address, settings),
        rate_mbps: interface.rate_mbps,
        is_loopback: interface.is_loopback,
        interface_mtu: interface.mtu,
        interface: interface.name,
    });
    Ok(all.collect())
}

fn no_address(missing: IpAddr, found: &[(Interface, IpAddr)]) -> std::io::Error {
    let known: Vec<_> = found.iter().map(|(_, address)| address.to_string()).collect();
    let text = format!(
        "{}: {missing} is not an address of this host that can carry RoCEv2; it has {}",
        Settings::ADDRESSES,
        known.join(", ")
    );
    std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, text)
}

/// The kernel's number of an interface; 0 where it is gone.
pub fn interface_index(name: &str) -> u32 {
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
        Settings { addresses, ..Settings::read(|_| None).unwrap() }
    }

    #[test]
    fn the_loopback_is_a_device_with_a_large_mtu() {
        let devices = devices(&settings(Some(vec!["127.0.0.1".parse().unwrap()]))).unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].name.as_str(), devices[0].mtu), ("railnet0", Mtu::Mtu4096));
    }

    #[test]
    fn an_address_of_another_host_is_named() {
        let error = devices(&settings(Some(vec!["192.0.2.1".parse().unwrap()]))).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
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
