//! What this host has and can do: by asking, and by trying where asking does not help.

mod cores;
mod limits;
mod network;
mod port;
mod shared_memory;

pub use cores::{Cores, Memory, cores, memory, running};
pub use limits::{Limits, limits};
pub use network::{Interface, UdpAbility, interfaces, udp};
pub use port::{PortHolder, roce_port_holders};
pub use shared_memory::{SharedMemory, shared_memory};

/// The name of the host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The kernel and its version, such as `Linux 6.12.1`.
pub fn system() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

/// A file with one line, as in /proc and /sys.
fn line(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
