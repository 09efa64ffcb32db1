//! What connections need of shared memory: words that both ends reach, and places for data.
//!
//! The ends of connections and the directory are written against [`Words`], so that the same code runs in memory that processes share
//! ([`super::segment::Segment`]) and in that of a model checker (`super::model`), whose rings are short enough to go around.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mailbox;
use super::segment::Segment;
use crate::transport::limits::DEPTH;

/// A word that several threads or processes reach.
pub(crate) trait Word {
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
pub(crate) trait Words: Debug {
    type Word: Word;

    /// Lines of a mailbox that are used, short slots and long slots.
    const LINES: u64 = mailbox::LINES;
    const SHORTS: u64 = mailbox::SHORTS;
    const LONGS: u64 = DEPTH as u64;
    /// So many slices are taken before the sender is told, where it can do without knowing.
    const TELL: u64 = 8;

    /// Its bytes.
    fn len(&self) -> usize;
    /// A word, at a multiple of eight.
    fn word(&self, offset: usize) -> &Self::Word;
    /// Where bytes lie.
    fn pointer(&self, offset: usize, length: usize) -> *mut u8;
    /// Begins to fetch the line of a place.
    fn fetch(&self, _offset: usize) {}
    /// The same for one that will be written.
    fn fetch_to_write(&self, _offset: usize) {}
    /// Gets pages that will be written.
    fn populate(&self, _offset: usize, _length: usize) {}
    /// Lets others run, who have what this thread waits for.
    fn yield_now() {
        std::thread::yield_now();
    }
}

impl Word for AtomicU64 {
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

impl Words for Segment {
    type Word = AtomicU64;

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
    fn fetch(&self, offset: usize) {
        self.fetch(offset);
    }

    #[inline(always)]
    fn fetch_to_write(&self, offset: usize) {
        self.fetch_to_write(offset);
    }

    fn populate(&self, offset: usize, length: usize) {
        self.populate(offset, length);
    }
}
