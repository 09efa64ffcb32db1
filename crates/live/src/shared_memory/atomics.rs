//! Memory with atomic words, of which shared memory and a model checker are implementations.
//!
//! The ends of connections and the directory are written against [`AtomicMemory`], so that the same code runs in memory that
//! processes share ([`super::segment::Segment`]) and in that of a model checker (`super::model`), whose rings are short enough
//! to wrap around.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ring;
use super::segment::Segment;
use crate::transport::limits::DEPTH;

/// An atomic word of 64 bits.
pub(crate) trait AtomicWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn compare_exchange(
        &self,
        expected: u64,
        value: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

/// Memory that several threads or processes share.
pub(crate) trait AtomicMemory: Debug {
    type AtomicWord: AtomicWord;

    /// Lines, short slots and long slots of a connection.
    const LINES: u64 = ring::LINES;
    const SHORT_SLOTS: u64 = ring::SHORT_SLOTS;
    const LONG_SLOTS: u64 = DEPTH as u64;
    /// The receiver returns credits after so many slices, unless the sender wants them at once.
    const CREDIT_INTERVAL: u64 = 8;

    /// Its length in bytes.
    fn len(&self) -> usize;
    /// The word at an offset, which is a multiple of eight.
    fn word(&self, offset: usize) -> &Self::AtomicWord;
    /// The address of so many bytes at an offset.
    fn pointer(&self, offset: usize, length: usize) -> *mut u8;
    /// Prefetches the cache line at an offset.
    fn prefetch(&self, _offset: usize) {}
    /// Prefetches it for writing.
    fn prefetch_for_write(&self, _offset: usize) {}
    /// Populates pages that will be written.
    fn populate(&self, _offset: usize, _length: usize) {}
    /// Yields to threads that this one waits for.
    fn yield_now() {
        std::thread::yield_now();
    }
}

impl AtomicWord for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    #[inline(always)]
    fn compare_exchange(
        &self,
        expected: u64,
        value: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(expected, value, success, failure)
    }
}

impl AtomicMemory for Segment {
    type AtomicWord = AtomicU64;

    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.word(offset)
    }

    #[inline(always)]
    fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        self.pointer(offset, length)
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        self.prefetch(offset);
    }

    #[inline(always)]
    fn prefetch_for_write(&self, offset: usize) {
        self.prefetch_for_write(offset);
    }

    fn populate(&self, offset: usize, length: usize) {
        self.populate(offset, length);
    }
}
