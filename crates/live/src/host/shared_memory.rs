//! What shared memory the kernel permits.

use std::io;

use rustix::fs::MemfdFlags;

/// Bytes that are tried.
const TRIED: u64 = 1 << 20;

/// Whether processes can share memory, and how much.
#[derive(Debug)]
pub struct SharedMemory {
    /// Whether a memfd can be created: its memory is freed with the last process that has it.
    pub memfd: io::Result<()>,
    /// Free and total bytes of `/dev/shm`, if it exists. It does not limit memfds, but the shared memory of other programs.
    pub folder: Option<(u64, u64)>,
}

/// Tries to create shared memory.
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
