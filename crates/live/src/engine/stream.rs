//! Copies that go past the caches.
//!
//! A slot in shared memory is written by one core and read by another. Ordinary stores first fetch each line from the
//! core that read it last: where the two do not share a cache this takes 200 ns a line, and writing is three times
//! slower than it could be. Stores that go past the caches need not know what was there.
#![expect(unsafe_code, reason = "such stores are instructions that the compiler does not make by itself")]

/// Bytes of a line.
const LINE: usize = 64;

/// Copies bytes past the caches. Whatever this core stores afterwards is seen after them.
///
/// # Safety
/// Both must be so many bytes of memory that nobody else uses now, and not overlap.
#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "loads take any alignment, and stores are at multiples of a line"
)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let head = to.align_offset(LINE).min(length);
    let lines = (length - head) / LINE;
    let tail = length - head - lines * LINE;
    // SAFETY: all of it lies in the bytes that the caller has; stores are aligned, as they must be. Instructions of
    // this kind are part of every x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (mut source, mut target) = (from.add(head), to.add(head));
        for _ in 0..lines {
            let load = |index: usize| _mm_loadu_si128(source.cast::<__m128i>().add(index));
            let words = [load(0), load(1), load(2), load(3)];
            for (index, word) in words.into_iter().enumerate() {
                _mm_stream_si128(target.cast::<__m128i>().add(index), word);
            }
            (source, target) = (source.add(LINE), target.add(LINE));
        }
        std::ptr::copy_nonoverlapping(source, target, tail);
        // Such stores keep no order among others: what follows, such as the word that hands the slot over, must.
        _mm_sfence();
    }
}

/// Copies bytes.
///
/// # Safety
/// Both must be so many bytes of memory that nobody else uses now, and not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller says so.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let source: Vec<u8> = (0..1000).map(|index| (index % 251) as u8).collect();
        for length in [0, 1, 15, 63, 64, 65, 127, 128, 200, 900] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 17), (7, 63)] {
                let mut target = vec![0xee; 1000];
                // SAFETY: both lie in vectors of a thousand bytes.
                unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), length) };
                assert_eq!(target[to..to + length], source[from..from + length]);
                assert!(target[..to].iter().chain(&target[to + length..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
