//! Limits of the kernel.

use rustix::process::Resource;

use super::line;

/// Limits of the kernel; `None` where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The largest receive buffer of a socket (`net.core.rmem_max`).
    pub receive_buffer: Option<u64>,
    /// The largest send buffer of a socket (`net.core.wmem_max`).
    pub send_buffer: Option<u64>,
    /// The largest backlog of a listening socket (`net.core.somaxconn`).
    pub backlog: Option<u64>,
    /// Bytes of memory that may be locked (`ulimit -l`).
    pub locked_memory: Option<u64>,
    /// Open files (`ulimit -n`).
    pub open_files: Option<u64>,
    /// The hard limit of open files.
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
