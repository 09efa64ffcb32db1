//! The address of this host at which other ranks reach this one.

use std::net::{IpAddr, Ipv4Addr};

use super::{Error, Options};
use crate::host::Interface;
use crate::rendezvous::ConfigError;

/// Interfaces of containers and virtual machines, which reach no other host.
const INTERNAL: [&str; 4] = ["docker", "br-", "veth", "virbr"];

/// The address at which ranks on other hosts most likely reach this one: of the interfaces that `NCCL_SOCKET_IFNAME` names, or
/// else of the first that is not host-local; the loopback address if there is none.
pub fn own_address(options: &Options) -> Result<IpAddr, Error> {
    if let Some(named) = named_address(options)? {
        return Ok(named);
    }
    let mut interfaces = crate::host::interfaces().map_err(crate::ReachError::from)?;
    interfaces.retain(|one| !one.is_loopback);
    // A stable sort keeps the kernel's order among equals.
    interfaces.sort_by_key(|one| INTERNAL.iter().any(|prefix| one.name.starts_with(prefix)));
    let addresses = || interfaces.iter().flat_map(|one| &one.addresses).copied();
    let found = addresses().find(IpAddr::is_ipv4).or_else(|| addresses().find(|one| !is_link_local(one)));
    Ok(found.unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

/// A link-local address, which depends on the interface.
fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The address for streams and packets, if the user names interfaces.
pub(super) fn named_address(options: &Options) -> Result<Option<IpAddr>, Error> {
    let Some(filter) = options.nccl.devices("NCCL_SOCKET_IFNAME") else { return Ok(None) };
    let interfaces = crate::host::interfaces().map_err(crate::ReachError::from)?;
    // After an exclusion, what is left may be an interface of containers.
    let is_fit = |one: &&Interface| filter.allows(&one.name) && !(filter.excludes && one.is_loopback);
    let found = interfaces.iter().filter(is_fit).flat_map(|one| &one.addresses);
    let found = found.copied().min_by_key(IpAddr::is_ipv6);
    found.map(Some).ok_or_else(|| {
        let names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
        let need = format!("no interface with an address is meant by that: there are {}", names.join(", "));
        let (name, text) = ("NCCL_SOCKET_IFNAME", filter.to_string());
        ConfigError { name, text, need: need.into() }.into()
    })
}
