//! Who has a UDP port: the kernel's table of sockets names an inode, and a process that has it open is its owner.

use std::fs;
use std::path::Path;

/// Names of threads that ranks, and programs on the software NIC, have.
const THREADS: &str = "railnet-";

/// A process that has the port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Owner {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Whether it is of Railnet.
    pub(super) is_railnet: bool,
}

/// The processes that have this port, of those that this user may look into; none where the kernel does not say.
pub(super) fn of_udp_port(port: u16) -> Vec<Owner> {
    let tables =
        ["/proc/net/udp", "/proc/net/udp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets: Vec<String> = tables.iter().flat_map(|table| inodes(table, port)).collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Owner> = pids.filter(|pid| has_any(*pid, &sockets)).filter_map(owner).collect();
    found.sort_unstable();
    found
}

/// The inodes of the sockets of a table of the kernel that are bound to a port, as links in `/proc/PID/fd` name them.
fn inodes(table: &str, port: u16) -> Vec<String> {
    let local = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let bound = rows.filter(|row| row.get(1).is_some_and(|address| address.ends_with(&local)));
    bound.filter_map(|row| row.get(9).map(|inode| format!("socket:[{inode}]"))).collect()
}

fn has_any(pid: u32, sockets: &[String]) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| sockets.iter().any(|socket| Path::new(socket) == target))
}

fn owner(pid: u32) -> Option<Owner> {
    let word = |path: String| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let name = word(format!("/proc/{pid}/comm")).ok()?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    let is_railnet = name.starts_with("railnet") || names.any(|name| name.starts_with(THREADS));
    Some(Owner { pid, name, is_railnet })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_a_port_are_found_in_the_kernels_table() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref\n \
                     102: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 31337 2 0 0\n \
                     103: 0100007F:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 31338 2 0 0\n";
        assert_eq!(inodes(table, 4791), ["socket:[31337]"]);
        assert!(inodes(table, 4793).is_empty());
    }

    #[test]
    fn this_process_owns_the_port_that_it_has_bound() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let owners = of_udp_port(port);
        assert!(owners.iter().any(|owner| owner.pid == std::process::id()), "{owners:?}");
    }
}
