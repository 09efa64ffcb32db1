//! Memory that processes of one host share: a memfd, mapped by each of them. The kernel frees it with the last of them, however
//! that ends.
#![expect(unsafe_code, reason = "memory that processes share is mapped, and reached through pointers")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Memory that processes share.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    length: usize,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to the value and is not tied to a thread. Its atomics are reached as atomics, and its bytes
// only through pointers, whose users order their accesses by those atomics.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates one of zeros. Pages that are never touched take no memory.
    pub(crate) fn create(length: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("railnet", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, length as u64)?;
        // Peers rely on its length: a file that shrinks kills its readers by SIGBUS.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, length)
    }

    /// Maps one that another process created.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory that may shrink"));
        }
        let length = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        Self::map(file, length)
    }

    fn map(file: OwnedFd, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { base, length, file })
    }

    /// Its length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// The word at an offset, which is a multiple of eight.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let is_inside = self.length.checked_sub(8).is_some_and(|last| offset <= last);
        assert!(offset.is_multiple_of(8) && is_inside, "no word at {offset}");
        // SAFETY: it lies in the mapping, which lives as long as `self`, and is aligned; every process reaches it as an
        // atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// All of its words.
    #[inline]
    pub(crate) fn atomics(&self) -> &[AtomicU64] {
        // SAFETY: they lie in the mapping, which begins at a page and lives as long as `self`; every process that has it
        // reaches them as atomics.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.length / 8) }
    }

    /// Prefetches the cache line at an offset.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.base.as_ptr().wrapping_add(offset).cast();
            // SAFETY: a hint reads nothing and fails nowhere, whatever the address is.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
        }
        let _ = offset;
    }

    /// Prefetches it for writing: other cores give it up.
    #[inline]
    pub(crate) fn prefetch_for_write(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let at = self.base.as_ptr().wrapping_add(offset).cast();
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(at) }
        }
        let _ = offset;
    }

    /// Populates pages that will be written, all at once. A page that fails is faulted in when it is written.
    pub(crate) fn populate(&self, offset: usize, length: usize) {
        let at = self.pointer(offset, length).cast();
        // SAFETY: it lies in the mapping, and no byte of it changes.
        let _ = unsafe { rustix::mm::madvise(at, length, rustix::mm::Advice::LinuxPopulateWrite) };
    }

    /// The address of so many bytes at an offset.
    #[inline]
    pub(crate) fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "no {length} bytes at {offset}");
        // SAFETY: it lies in the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it any more. That it cannot be undone is of no use to anyone.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_one_writes_the_other_reads() {
        let ours = Segment::create(1 << 20).unwrap();
        let theirs = Segment::open(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        ours.word(4096).store(7, Ordering::Release);
        assert_eq!(theirs.word(4096).load(Ordering::Acquire), 7);
        assert_eq!(theirs.len(), 1 << 20);
    }

    #[test]
    fn a_word_lies_inside_with_all_of_its_bytes() {
        let segment = Segment::create(4100).unwrap();
        segment.word(4088).store(1, Ordering::Relaxed);
        for offset in [4096, 4104, 4, usize::MAX - 7] {
            let outside = std::panic::catch_unwind(|| segment.word(offset).load(Ordering::Relaxed));
            assert!(outside.is_err(), "there is no whole word at {offset}");
        }
        assert_eq!(segment.atomics().len(), 512);
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Segment::open(file).is_err());
    }
}
