//! The sockets on UDP port 4791 of an address, read from `/proc/net/udp` without binding anything.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::network::ROCE_PORT;

/// A UDP socket that receives packets to port 4791 of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortHolder {
    /// The user who owns it.
    pub user: u32,
    /// Whether it is a socket of the kernel, as that of `rdma_rxe` is.
    pub is_kernel: bool,
}

/// The sockets on port 4791 of an address, in this network namespace.
pub fn roce_port_holders(address: IpAddr) -> io::Result<Vec<PortHolder>> {
    let mut found = Vec::new();
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        match fs::read_to_string(table) {
            Ok(text) => found.extend(text.lines().skip(1).filter_map(|line| holder(line, address))),
            // Without IPv6 the kernel has no such table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A line of the table: `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …`.
fn holder(line: &str, address: IpAddr) -> Option<PortHolder> {
    let mut fields = line.split_whitespace();
    let (local, port) = fields.nth(1)?.split_once(':')?;
    let bound = bound_address(local)?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_PORT || !(bound == address || bound.is_unspecified()) {
        return None;
    }
    let user = fields.nth(5)?.parse().ok()?;
    let inode: u64 = fields.nth(1)?.parse().ok()?;
    Some(PortHolder { user, is_kernel: inode == 0 })
}

/// The kernel prints addresses as 32-bit words of network byte order read in the host's.
fn bound_address(text: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        u32::from_str_radix(text.get(index * 8..index * 8 + 8)?, 16).ok().map(u32::to_ne_bytes)
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "  325: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 72 2 0 0";
        let loopback = "127.0.0.1".parse().unwrap();
        assert_eq!(holder(line, loopback), Some(PortHolder { user: 1000, is_kernel: false }));
        assert_eq!(holder(line, "10.0.0.1".parse().unwrap()), None);
        let wildcard =
            "  1: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 0 2 0 0";
        assert_eq!(holder(wildcard, loopback), Some(PortHolder { user: 0, is_kernel: true }));
        assert_eq!(holder("garbage", loopback), None);
    }

    #[test]
    fn a_socket_of_this_process_is_found() {
        // An address that no other test binds.
        let address = Ipv4Addr::new(127, 83, 7, 9);
        let Ok(_socket) = UdpSocket::bind((address, ROCE_PORT)) else { return };
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(roce_port_holders(address.into()).unwrap(), [PortHolder { user, is_kernel: false }]);
    }
}
