//! Memory of this process, as a NIC reads and writes it.
//!
//! A [`Buffer`] is shared between the application and a NIC, whichever thread either runs on: like the memory under a
//! real NIC, it changes while the application looks at it. So every access is atomic. Bytes are placed by ascending,
//! aligned stores, and the last store of a packet is released after all before it: who sees the last word of a message
//! (with [`Buffer::load`]) sees the whole message, with no completion at all.
//!
//! ```
//! use railnet_live::memory::{Buffer, ProcessMemory};
//! use railnet_nic::memory::Memory;
//!
//! let buffer = Buffer::new(4096);
//! let mut memory = ProcessMemory::default();
//! let space = memory.add(&buffer);
//! memory.write(space, buffer.address() + 16, &7_u64.to_ne_bytes());
//! assert_eq!(buffer.load(16), 7);
//! ```
#![allow(unsafe_code, reason = "memory that two threads change at once is reached through pointers")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use railnet_core::{GhostRun, GhostTag};
use railnet_nic::memory::{Backing, GhostRuns, Memory, Segments, SpaceId};

/// Bytes of a word: what is read and written in one piece.
const WORD: usize = size_of::<u64>();

/// Buffers begin at a page.
const ALIGNMENT: usize = 4096;

/// Bytes that the application and a NIC share. Clones are the same memory.
#[derive(Clone)]
pub struct Buffer(Arc<Allocation>);

struct Allocation {
    pointer: NonNull<u8>,
    layout: Layout,
    length: usize,
}

// SAFETY: the memory belongs to the allocation alone, and every access to it is atomic.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and nobody holds it any more.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}

impl Buffer {
    /// `length` bytes of zeros, from the beginning of a page on.
    pub fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length.max(WORD).next_multiple_of(WORD), ALIGNMENT)
            .expect("a length that memory can have");
        // SAFETY: the size is not zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        Self(Arc::new(Allocation { pointer, layout, length }))
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.0.pointer.as_ptr() as u64
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// The word at `offset`, a multiple of eight. What was placed before the word was is there too.
    pub fn load(&self, offset: usize) -> u64 {
        // SAFETY: `word` has checked the place.
        unsafe { AtomicU64::from_ptr(self.word(offset)) }.load(Ordering::Acquire)
    }

    /// Replaces the word at `offset`, a multiple of eight, after all that this thread wrote before.
    pub fn store(&self, offset: usize, value: u64) {
        // SAFETY: `word` has checked the place.
        unsafe { AtomicU64::from_ptr(self.word(offset)) }.store(value, Ordering::Release);
    }

    fn word(&self, offset: usize) -> *mut u64 {
        assert!(offset.is_multiple_of(WORD), "words lie at multiples of eight, not at {offset}");
        self.at(offset, WORD).cast()
    }

    /// Copies bytes from `offset` on to `out`.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        // SAFETY: `at` has checked the place, and `out` is somewhere else.
        unsafe { load_ascending(self.at(offset, out.len()), out.as_mut_ptr(), out.len()) };
    }

    /// Copies `data` to the bytes from `offset` on.
    pub fn write(&self, offset: usize, data: &[u8]) {
        // SAFETY: `at` has checked the place.
        unsafe { store_ascending(self.at(offset, data.len()), data) };
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{length} bytes from {offset} on are not all there"
        );
        // SAFETY: inside the allocation, as just checked.
        unsafe { self.0.pointer.as_ptr().add(offset) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x})", self.len(), self.address())
    }
}

/// What a NIC of this process can reach: buffers that were added, each a space of its own, at their true addresses.
#[derive(Debug, Default)]
pub struct ProcessMemory {
    spaces: Vec<Option<Buffer>>,
}

impl ProcessMemory {
    /// Lets NICs reach a buffer.
    pub fn add(&mut self, buffer: &Buffer) -> SpaceId {
        let free = self.spaces.iter().position(Option::is_none).unwrap_or_else(|| {
            self.spaces.push(None);
            self.spaces.len() - 1
        });
        self.spaces[free] = Some(buffer.clone());
        SpaceId(free as u32)
    }

    /// Takes a buffer back. No region may lie in it any more.
    pub fn remove(&mut self, space: SpaceId) {
        self.spaces[space.0 as usize] = None;
    }

    #[inline]
    fn at(&self, space: SpaceId, address: u64, length: usize) -> *mut u8 {
        let buffer = self.spaces[space.0 as usize].as_ref().expect("a region lies in a buffer that is there");
        buffer.at(address.wrapping_sub(buffer.address()) as usize, length)
    }
}

impl Memory for ProcessMemory {
    fn backing(&self, space: SpaceId, address: u64, length: u64) -> Option<Backing> {
        let buffer = self.spaces.get(space.0 as usize)?.as_ref()?;
        let offset = address.checked_sub(buffer.address())?;
        (offset.checked_add(length)? <= buffer.len() as u64).then_some(Backing::Bytes)
    }

    #[inline]
    fn read(&self, space: SpaceId, address: u64, length: usize, out: &mut Vec<u8>) {
        let source = self.at(space, address, length);
        out.reserve(length);
        let end = out.len();
        // SAFETY: `at` has checked the source; the room behind the end of `out` was just made, and is filled before
        // it counts.
        unsafe {
            load_ascending(source, out.as_mut_ptr().add(end), length);
            out.set_len(end + length);
        }
    }

    #[inline]
    fn write(&mut self, space: SpaceId, address: u64, data: &[u8]) {
        // SAFETY: `at` has checked the place.
        unsafe { store_ascending(self.at(space, address, data.len()), data) };
    }

    fn read_ghost(&self, _: SpaceId, _: u64, length: u32, out: &mut GhostRuns) {
        out.push(GhostRun { tag: GhostTag::POISON, length });
    }

    fn write_ghost(&mut self, space: SpaceId, address: u64, run: GhostRun) {
        let mut pattern = Vec::with_capacity(run.length as usize);
        Segments::append_pattern(&[run], &mut pattern);
        self.write(space, address, &pattern);
    }

    fn update(&mut self, space: SpaceId, address: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        let word: *mut u64 = self.at(space, address, WORD).cast();
        assert!(word.is_aligned(), "the NIC lets only aligned atomics through");
        // SAFETY: `at` has checked the place, and it is aligned.
        let word = unsafe { AtomicU64::from_ptr(word) };
        // Only this NIC changes words by atomics while it has the memory: the application's own stores may come
        // between, as they may on hardware whose atomics are the NIC's alone (IBV_ATOMIC_HCA).
        let old = word.load(Ordering::Acquire);
        word.store(change(old), Ordering::Release);
        old
    }
}

/// Copies `data` to `target` in ascending order: bytes up to a multiple of eight, then words, then bytes again; the last
/// store is released after the others.
///
/// # Safety
/// `target` must be good for as many bytes as `data` has, and reached by others through atomics only.
#[inline]
unsafe fn store_ascending(target: *mut u8, data: &[u8]) {
    let head = target.align_offset(WORD).min(data.len());
    let (front, rest) = data.split_at(head);
    let (words, back) = rest.as_chunks::<WORD>();
    let place = |bytes: &[u8], from: usize| {
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: inside of `target`.
            unsafe { AtomicU8::from_ptr(target.add(from + index)) }.store(byte, Ordering::Relaxed);
        }
    };
    place(front, 0);
    let first_word: *mut u64 = target.wrapping_add(head).cast();
    let put = |index: usize, word: &[u8; WORD]| {
        // SAFETY: inside of `target`, and aligned: the head ends at a multiple of eight.
        unsafe { AtomicU64::from_ptr(first_word.add(index)) }
            .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    };
    if let ([most @ .., last], []) = (words, back) {
        most.iter().enumerate().for_each(|(index, word)| put(index, word));
        fence(Ordering::Release);
        put(most.len(), last);
        return;
    }
    words.iter().enumerate().for_each(|(index, word)| put(index, word));
    fence(Ordering::Release);
    place(back, data.len() - back.len());
}

/// Copies `length` bytes from `source` to `out`, words where it can.
///
/// # Safety
/// Both must be good for `length` bytes; `source` must be changed by others through atomics only, `out` not at all.
#[inline]
unsafe fn load_ascending(source: *mut u8, out: *mut u8, length: usize) {
    let head = source.align_offset(WORD).min(length);
    let words = (length - head) / WORD;
    let take = |from: usize, to: usize| {
        for index in from..to {
            // SAFETY: inside of both.
            unsafe {
                *out.add(index) = AtomicU8::from_ptr(source.add(index)).load(Ordering::Relaxed);
            }
        }
    };
    take(0, head);
    let first_word: *mut u64 = source.wrapping_add(head).cast();
    for index in 0..words {
        // SAFETY: inside of both; the source is aligned, the target need not be.
        unsafe {
            let word = AtomicU64::from_ptr(first_word.add(index)).load(Ordering::Relaxed);
            out.add(head + index * WORD).cast::<u64>().write_unaligned(word);
        }
    }
    take(head + words * WORD, length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_is_copied_whole_and_nothing_beside_it() {
        let buffer = Buffer::new(64);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        for offset in 0..20 {
            for length in 0..40 {
                buffer.write(0, &[0xee; 64]);
                let data: Vec<u8> = (1..=length as u8).collect();
                memory.write(space, buffer.address() + offset as u64, &data);
                let mut expected = [0xee; 64];
                expected[offset..offset + length].copy_from_slice(&data);
                let mut found = [0; 64];
                buffer.read(0, &mut found);
                assert_eq!(found, expected, "{length} bytes from {offset} on");
                let mut out = vec![9];
                memory.read(space, buffer.address() + offset as u64, length, &mut out);
                assert_eq!(out[1..], data);
            }
        }
    }

    #[test]
    fn who_sees_the_last_word_sees_all_before_it() {
        const WORDS: usize = 512;
        let buffer = Buffer::new(WORDS * WORD);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        let reader = buffer.clone();
        let rounds = 2000_u64;
        let watcher = std::thread::spawn(move || {
            let mut seen = 0;
            while seen < rounds {
                let last = reader.load((WORDS - 1) * WORD);
                if last > seen {
                    let first = reader.load(0);
                    assert!(first >= last, "the first word is of round {first}, the last of {last}");
                    seen = last;
                }
                std::hint::spin_loop();
            }
        });
        for round in 1..=rounds {
            memory.write(space, buffer.address(), &round.to_ne_bytes().repeat(WORDS));
        }
        watcher.join().unwrap();
    }

    #[test]
    fn a_range_that_is_not_all_there_cannot_be_registered() {
        let buffer = Buffer::new(100);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        assert_eq!(memory.backing(space, buffer.address(), 100), Some(Backing::Bytes));
        assert_eq!(memory.backing(space, buffer.address(), 101), None);
        assert_eq!(memory.backing(space, buffer.address() - 1, 1), None);
        assert_eq!(memory.backing(space, u64::MAX, 2), None);
        memory.remove(space);
        assert_eq!(memory.backing(space, buffer.address(), 1), None);
        assert_eq!(memory.add(&buffer), space);
    }
}
