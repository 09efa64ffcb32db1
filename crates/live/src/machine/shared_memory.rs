//! Memory that processes share.

use std::io;

use rustix::fs::MemfdFlags;

/// How much is tried.
const TRIED: u64 = 1 << 20;

/// Whether and how much memory processes can share.
#[derive(Debug)]
pub struct SharedMemory {
    /// Whether memory without a name can be had: it goes with the last process that has it.
    pub memfd: io::Result<()>,
    /// Free and total bytes of `/dev/shm`, where there is one. Memory without a name is not limited by it, but other
    /// programs' is.
    pub folder: Option<(u64, u64)>,
}

/// Tries to get memory that can be shared.
pub fn shared_memory() -> SharedMemory {
    let memfd = || {
        let memory = rustix::fs::memfd_create("railnet-doctor", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, TRIED)?;
        let written = rustix::io::pwrite(&memory, b"railnet", TRIED - 7)?;
        if written == 7 { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
    };
    let folder = rustix::fs::statvfs("/dev/shm").ok();
    let sizes = folder.map(|folder| (folder.f_bavail * folder.f_frsize, folder.f_blocks * folder.f_frsize));
    SharedMemory { memfd: memfd(), folder: sizes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_name_can_be_had_here() {
        shared_memory().memfd.unwrap();
    }
}
