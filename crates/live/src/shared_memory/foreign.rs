//! The memory of another process of this host, read and written in place (`process_vm_readv`, `process_vm_writev`): data that
//! goes from one caller's buffer to another's is then copied once, not twice.
//!
//! The system allows it among processes of one user, unless it is told not to (`kernel.yama.ptrace_scope`) or they are in
//! different containers. So it is tried once for each pair, with a number that only the right process can have. The number of a process may be
//! another's when it has ended: a descriptor of it (pidfd) tells whether it still ran when its memory had been read.
#![expect(unsafe_code, reason = "a system call that writes to memory")]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

/// A process whose memory can be read.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    number: u32,
    /// Becomes readable when it ends.
    descriptor: Arc<OwnedFd>,
}

impl Process {
    /// The process of this number, if a certain number lies at a certain address of it.
    pub(crate) fn find(process: u32, address: u64, number: u64) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
        let descriptor = Arc::new(rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?);
        let found = Self { number: process, descriptor };
        let mut read = [0; 8];
        // SAFETY: `read` is eight bytes that are ours.
        let outcome = unsafe { found.read(address, read.as_mut_ptr(), read.len()) };
        (outcome.is_ok() && u64::from_ne_bytes(read) == number).then_some(found)
    }

    /// Copies bytes of it.
    ///
    /// # Safety
    /// `into` must be so many bytes of memory that nobody else uses now.
    pub(crate) unsafe fn read(&self, address: u64, into: *mut u8, length: usize) -> io::Result<()> {
        self.move_all(address, into, length, libc::process_vm_readv)?;
        self.check()
    }

    /// Whether it runs: then its number was no other's until now.
    fn check(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&*self.descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::NotFound, "its process has ended")),
            Err(error) => Err(error.into()),
        }
    }

    /// The same into memory that is the caller's.
    pub(crate) fn read_to(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        // SAFETY: it is so many bytes that nobody else uses.
        unsafe { self.read(address, out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes from memory of this process to it, in ascending order.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.move_all(address, data.as_ptr().cast_mut(), data.len(), libc::process_vm_writev)
    }

    /// Copies from its memory to ours or the other way round, as the system call has it.
    fn move_all(&self, address: u64, ours: *mut u8, length: usize, call: Call) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let local = libc::iovec { iov_base: ours.wrapping_add(done).cast(), iov_len: length - done };
            let start = (address + done as u64) as usize as *mut libc::c_void;
            let remote = libc::iovec { iov_base: start, iov_len: length - done };
            // SAFETY: of our memory the system touches `local` alone, which callers have for it; it checks addresses of
            // the other process.
            let moved =
                unsafe { call(self.number as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
            match moved {
                -1 => return Err(io::Error::last_os_error()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => done += length as usize,
            }
        }
        Ok(())
    }
}

/// A system call that moves bytes between processes.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_the_number_it_has_and_no_other_is() {
        let number = Box::new(0x5eed_1234_5678_9abc_u64);
        let address = std::ptr::from_ref(&*number) as u64;
        let Some(own) = Process::find(std::process::id(), address, *number) else {
            // A process may always read its own memory; a sandbox may have no such call.
            return;
        };
        assert!(Process::find(std::process::id(), address, *number + 1).is_none());
        assert!(Process::find(std::process::id(), 8, *number).is_none());
        let data: Vec<u8> = (0..100_000).map(|index| index as u8).collect();
        let mut out = vec![0; data.len()];
        // SAFETY: both are vectors of that length.
        unsafe { own.read(data.as_ptr() as u64, out.as_mut_ptr(), out.len()) }.unwrap();
        assert!(out == data);
        out.fill(0);
        let address = out.as_mut_ptr() as u64;
        own.write(address, &data).unwrap();
        assert!(out == data);
        assert!(own.write(8, &data).is_err());
        // SAFETY: as above.
        assert!(unsafe { own.read(8, out.as_mut_ptr(), 100) }.is_err());
    }

    /// What is read by the number of a process that has ended is not taken for its memory, whoever has the number now.
    #[test]
    fn nothing_is_read_of_a_process_that_has_ended() {
        let number = Box::new(0x5eed_1234_5678_9abd_u64);
        let address = std::ptr::from_ref(&*number) as u64;
        let Some(own) = Process::find(std::process::id(), address, *number) else { return };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let descriptor = Arc::new(rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap());
        child.wait().unwrap();
        // As if this process had got the number of the one that ended.
        let gone = Process { descriptor, ..own };
        let mut out = [0; 8];
        assert_eq!(gone.read_to(address, &mut out).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(gone.write(address, &out).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(*number, 0x5eed_1234_5678_9abd);
    }
}
