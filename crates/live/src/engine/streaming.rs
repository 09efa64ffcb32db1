//! Copies by non-temporal (streaming) stores.
//!
//! A slot in shared memory is written by one core and read by another. An ordinary store first takes ownership of the line from
//! the core that read it last: where the two do not share a cache this costs 200 ns a line, and writing is three times slower
//! than it could be. Non-temporal stores need no ownership.
#![expect(unsafe_code, reason = "such stores are instructions that the compiler does not make by itself")]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Copies bytes by non-temporal stores. Later stores of this core are ordered after them.
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
        // Non-temporal stores are weakly ordered: the store that publishes the slot must come after them.
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
