//! Memory of this process, as a NIC reads and writes it.
//!
//! A [`Buffer`] is shared between the application and a NIC, whichever threads they run on: as with a hardware NIC, it changes
//! while the application reads it. So every access is atomic. Bytes are placed by ascending, aligned stores, and the last store
//! of a packet has release ordering: an application that sees the last word of a message (with [`Buffer::load`]) sees the whole
//! message, without a completion.
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

#[cfg(target_arch = "x86_64")]
pub mod application;
mod copy;
pub(crate) mod given;
mod sum;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use railnet_core::{GhostRun, GhostTag};
use railnet_nic::memory::{Backing, GhostRuns, Memory, Segments, SpaceId};
use railnet_wire::PayloadSum;

use crate::shared_memory::segment::Segment;
use given::Given;

/// Bytes of a word: the unit of atomic accesses.
const WORD: usize = size_of::<u64>();

/// Bytes that the application and a NIC share. Clones are the same memory.
#[derive(Clone)]
pub struct Buffer {
    words: Words,
    length: usize,
}

/// The memory of a buffer.
#[derive(Clone)]
enum Words {
    /// Memory of this process alone.
    Own(Arc<[AtomicU64]>),
    /// Memory that other processes have mapped too.
    Mapped(Arc<Segment>),
    /// Memory that the program had already.
    Given(Arc<Given>),
}

impl Buffer {
    /// `length` bytes of zeros, aligned to eight. They are touched here, so that no page faults follow.
    pub fn new(length: usize) -> Self {
        let words = (0..length.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect();
        Self { words: Words::Own(words), length }
    }

    /// A whole segment, which is aligned to a page.
    pub(crate) fn mapped(segment: Arc<Segment>) -> Self {
        let length = segment.len();
        Self { words: Words::Mapped(segment), length }
    }

    /// Memory that the program had already.
    pub(crate) fn given(given: Arc<Given>) -> Self {
        let length = given.length();
        Self { words: Words::Given(given), length }
    }

    /// The vector that its memory was; `None` if it was none, or the buffer has clones.
    pub(crate) fn into_vector<T: Copy + Send + 'static>(self) -> Option<Vec<T>> {
        match self.words {
            Words::Given(given) => Arc::into_inner(given)?.into_vector(),
            Words::Own(_) | Words::Mapped(_) => None,
        }
    }

    /// Whether its memory was a vector.
    pub(crate) fn is_vector(&self) -> bool {
        matches!(&self.words, Words::Given(given) if given.is_vector())
    }

    /// Its whole words, and one that begins in it if there is room for it.
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        match &self.words {
            Words::Own(words) => words,
            Words::Mapped(segment) => segment.atomics(),
            Words::Given(given) => given.words(),
        }
    }

    /// The bytes after them.
    #[cold]
    fn tail(&self) -> &[AtomicU8] {
        match &self.words {
            Words::Given(given) => given.tail(),
            Words::Own(_) | Words::Mapped(_) => &[],
        }
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.words().as_ptr() as u64
    }

    /// The address of its first byte. Direct accesses must be synchronised by other means.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.words().as_ptr().cast_mut().cast()
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Loads the word at `offset`, a multiple of eight, with acquire ordering.
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores the word at `offset`, a multiple of eight, with release ordering.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Adds to the word at `offset`, a multiple of eight, with release ordering.
    pub(crate) fn add(&self, offset: usize, more: u64) {
        self.word(offset).fetch_add(more, Ordering::AcqRel);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(WORD), "words lie at multiples of eight, not at {offset}");
        self.check(offset, WORD);
        &self.words()[offset / WORD]
    }

    /// Copies bytes from `offset` on to `out`.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        let (first, skip) = (offset / WORD, offset % WORD);
        let head = if skip == 0 { 0 } else { (WORD - skip).min(out.len()) };
        let (front, rest) = out.split_at_mut(head);
        if head > 0 {
            front.copy_from_slice(&self.bytes_of(first)[skip..][..head]);
        }
        let first = first + usize::from(head > 0);
        let (whole, back) = rest.as_chunks_mut::<WORD>();
        for (bytes, word) in whole.iter_mut().zip(self.words().get(first..).unwrap_or_default()) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if !back.is_empty() {
            back.copy_from_slice(&self.bytes_of(first + whole.len())[..back.len()]);
        }
    }

    /// Appends `length` bytes from `offset` on to `out`.
    #[inline]
    fn append(&self, offset: usize, length: usize, out: &mut Vec<u8>) {
        self.check(offset, length);
        let (first, skip) = (offset / WORD, offset % WORD);
        let head = if skip == 0 { 0 } else { (WORD - skip).min(length) };
        if head > 0 {
            out.extend_from_slice(&self.bytes_of(first)[skip..][..head]);
        }
        let first = first + usize::from(head > 0);
        let (whole, back) = ((length - head) / WORD, (length - head) % WORD);
        if whole > 0 {
            copy::append(&self.words()[first..][..whole], out);
        }
        if back > 0 {
            out.extend_from_slice(&self.bytes_of(first + whole)[..back]);
        }
    }

    /// As [`Buffer::append`], with the contribution to the ICRC if it can be computed by the way.
    #[inline]
    fn append_summed(&self, offset: usize, length: usize, out: &mut Vec<u8>) -> Option<PayloadSum> {
        self.check(offset, length);
        if offset.is_multiple_of(WORD)
            && length.is_multiple_of(WORD)
            && let Some(sum) = sum::append(&self.words()[offset / WORD..][..length / WORD], out)
        {
            return Some(sum);
        }
        self.append(offset, length, out);
        None
    }

    fn bytes_of(&self, index: usize) -> [u8; WORD] {
        match self.words().get(index) {
            Some(word) => word.load(Ordering::Relaxed).to_ne_bytes(),
            None => {
                let mut bytes = [0; WORD];
                let tail = bytes.iter_mut().zip(self.tail());
                tail.for_each(|(byte, there)| *byte = there.load(Ordering::Relaxed));
                bytes
            }
        }
    }

    /// Stores some bytes of a word, and leaves the others. With release ordering.
    #[cold]
    fn merge(&self, index: usize, skip: usize, bytes: &[u8]) {
        match self.words().get(index) {
            Some(word) => merge(word, skip, bytes),
            None => {
                let tail = self.tail()[skip..].iter().zip(bytes);
                tail.for_each(|(there, byte)| there.store(*byte, Ordering::Release));
            }
        }
    }

    /// Copies `data` to the bytes from `offset` on, in ascending order; the last word with release ordering.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        let (first, skip) = (offset / WORD, offset % WORD);
        let head = if skip == 0 { 0 } else { (WORD - skip).min(data.len()) };
        let (front, rest) = data.split_at(head);
        if head > 0 {
            self.merge(first, skip, front);
        }
        let (whole, back) = rest.as_chunks::<WORD>();
        let next = first + usize::from(head > 0);
        let words = self.words().get(next..).unwrap_or_default();
        let put = |(word, bytes): (&AtomicU64, &[u8; WORD])| {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        };
        let Some((last, most)) = whole.split_last() else {
            if !back.is_empty() {
                self.merge(next, 0, back);
            }
            return;
        };
        words.iter().zip(most).for_each(put);
        fence(Ordering::Release);
        put((&words[most.len()], last));
        if !back.is_empty() {
            self.merge(next + whole.len(), 0, back);
        }
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{length} bytes from {offset} on are not all there"
        );
    }
}

/// Stores some bytes of a word, and leaves the others even if they change at the same time. With release ordering.
#[cold]
fn merge(word: &AtomicU64, skip: usize, bytes: &[u8]) {
    let (mut mask, mut value) = ([0; WORD], [0; WORD]);
    mask[skip..][..bytes.len()].fill(0xff);
    value[skip..][..bytes.len()].copy_from_slice(bytes);
    let (mask, value) = (u64::from_ne_bytes(mask), u64::from_ne_bytes(value));
    let changed = word.fetch_update(Ordering::Release, Ordering::Relaxed, |old| Some(old & !mask | value));
    debug_assert!(changed.is_ok(), "there is always a value to replace it by");
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x})", self.len(), self.address())
    }
}

/// The memory that a NIC of this process can reach: buffers, each a space of its own, at their true addresses.
#[derive(Debug, Default)]
pub struct ProcessMemory {
    spaces: Vec<Option<Buffer>>,
}

impl ProcessMemory {
    /// Adds a buffer.
    pub fn add(&mut self, buffer: &Buffer) -> SpaceId {
        let free = self.spaces.iter().position(Option::is_none).unwrap_or_else(|| {
            self.spaces.push(None);
            self.spaces.len() - 1
        });
        self.spaces[free] = Some(buffer.clone());
        SpaceId(free as u32)
    }

    /// Removes a buffer. No region may be in it any more.
    pub fn remove(&mut self, space: SpaceId) {
        self.spaces[space.0 as usize] = None;
    }

    /// The buffer of a space, and the offset of an address in it.
    #[inline]
    fn at(&self, space: SpaceId, address: u64) -> (&Buffer, usize) {
        let buffer = self.spaces[space.0 as usize].as_ref().expect("a region lies in a buffer that is there");
        (buffer, address.wrapping_sub(buffer.address()) as usize)
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
        let (buffer, offset) = self.at(space, address);
        buffer.append(offset, length, out);
    }

    #[inline]
    fn read_summed(
        &self,
        space: SpaceId,
        address: u64,
        length: usize,
        out: &mut Vec<u8>,
    ) -> Option<PayloadSum> {
        let (buffer, offset) = self.at(space, address);
        buffer.append_summed(offset, length, out)
    }

    #[inline]
    fn write(&mut self, space: SpaceId, address: u64, data: &[u8]) {
        let (buffer, offset) = self.at(space, address);
        buffer.write(offset, data);
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
        let (buffer, offset) = self.at(space, address);
        // Only this NIC's atomics are excluded: the application's own stores may come between, as on hardware with atomics of
        // the NIC alone (IBV_ATOMIC_HCA).
        let old = buffer.load(offset);
        buffer.store(offset, change(old));
        old
    }
}

#[cfg(test)]
mod tests {
    use railnet_wire::{Fronts, Gid, Network, ROCE_PORT, icrc};

    use super::*;

    #[test]
    fn every_offset_and_length_is_copied_whole_and_nothing_beside_it() {
        let buffer = Buffer::new(256);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        for offset in 0..20 {
            for length in 0..220 {
                buffer.write(0, &[0xee; 256]);
                let data: Vec<u8> = (1..=length as u8).collect();
                memory.write(space, buffer.address() + offset as u64, &data);
                let mut expected = [0xee; 256];
                expected[offset..offset + length].copy_from_slice(&data);
                let mut found = [0; 256];
                buffer.read(0, &mut found);
                assert_eq!(found, expected, "{length} bytes from {offset} on");
                let mut out = vec![9];
                memory.read(space, buffer.address() + offset as u64, length, &mut out);
                assert_eq!(out[1..], data);
            }
        }
    }

    #[test]
    fn what_is_summed_while_it_is_read_has_the_sum_of_its_bytes() {
        let buffer = Buffer::new(3 * 4096);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        let data: Vec<u8> = (0..buffer.len()).map(|at| (at * 13 + at / 257) as u8).collect();
        buffer.write(0, &data);
        let network = Network {
            source: Gid::from_ip([10, 0, 0, 1].into()),
            target: Gid::from_ip([10, 0, 0, 2].into()),
            source_port: 0xc001,
            target_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            identification: 3,
            flow_label: 0,
        };
        let mut fronts = Fronts::default();
        for offset in [0, 8, 24, 64, 1000, 4096, 4099] {
            for length in [8, 256, 1024, 1032, 2048, 4095, 4096, 4104] {
                let mut out = vec![9; 12];
                let address = buffer.address() + offset as u64;
                let sum = memory.read_summed(space, address, length, &mut out);
                assert_eq!(out[..12], [9; 12]);
                assert_eq!(out[12..], data[offset..][..length], "{length} bytes from {offset} on");
                if let Some(sum) = sum {
                    let whole = icrc::of_datagram(&network, &out);
                    let summed = icrc::of_sum(&mut fronts, &network, &[9; 12], sum, &[]);
                    assert_eq!(summed, whole, "{length} from {offset}");
                }
            }
        }
    }

    #[test]
    fn a_reader_of_the_last_word_sees_all_before_it() {
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
