//! Limits that the system sets.

use rustix::process::Resource;

use super::line;

/// Limits that the system sets; nothing where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most bytes that a socket may buffer of what it received (`net.core.rmem_max`).
    pub receive_buffer: Option<u64>,
    /// The most bytes that a socket may buffer of what it sends (`net.core.wmem_max`).
    pub send_buffer: Option<u64>,
    /// The most callers that may wait for a listening socket (`net.core.somaxconn`).
    pub backlog: Option<u64>,
    /// The most bytes that may be locked in memory (`ulimit -l`).
    pub locked_memory: Option<u64>,
    /// The most files that may be open (`ulimit -n`).
    pub open_files: Option<u64>,
    /// How far this process may raise that by itself.
    pub open_files_hard: Option<u64>,
}

/// The limits of this process.
pub fn limits() -> Limits {
    let setting = |name: &str| line(&format!("/proc/sys/net/core/{name}"))?.parse().ok();
    let files = rustix::process::getrlimit(Resource::Nofile);
    Limits {
        receive_buffer: setting("rmem_max"),
        send_buffer: setting("wmem_max"),
        backlog: setting("somaxconn"),
        locked_memory: rustix::process::getrlimit(Resource::Memlock).current,
        open_files: files.current,
        open_files_hard: files.maximum,
    }
}
