//! Prefetching: asks the processor for cache lines before they are needed.
//!
//! A simulation of thousands of NICs has more state than any cache holds. A load that misses stalls the code behind it for
//! a hundred nanoseconds; a prefetch does not wait. So a driver that knows the next few packets prefetches the state of all
//! of them and then handles one after the other, and their misses overlap.
//!
//! A prefetch is a hint: it reads nothing, changes nothing and cannot fault. It is the processor's own instruction on
//! x86-64 (`prefetcht0`) and AArch64 (`prfm pldl1keep`), and nothing on other processors.
//!
//! ```
//! use railnet_core::prefetch::{prefetch, prefetch_lines};
//!
//! let table = vec![[0_u64; 16]; 1024];
//! let next = [7, 900, 31];
//! for index in next {
//!     prefetch_lines(&table[index]);
//! }
//! let sum: u64 = next.iter().map(|index| table[*index][3]).sum();
//! assert_eq!(sum, 0);
//! # prefetch(&sum);
//! ```
#![expect(unsafe_code, reason = "the prefetch instruction takes a raw pointer")]

/// Bytes of a cache line. Prefetching assumes it; nothing depends on it for correctness.
pub const CACHE_LINE: usize = 64;

/// Prefetches the cache line in which a value begins.
#[allow(clippy::inline_always, reason = "it is one instruction")]
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    fetch(std::ptr::from_ref(value).cast());
}

/// Prefetches all cache lines of a value.
#[allow(clippy::inline_always, reason = "it is an instruction for each cache line")]
#[inline(always)]
pub fn prefetch_lines<T>(value: &T) {
    let first = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(CACHE_LINE) {
        fetch(first.wrapping_add(offset));
    }
    if !align_of::<T>().is_multiple_of(CACHE_LINE) && size_of::<T>() > 1 {
        // A value that does not begin with a cache line may end in one more.
        fetch(first.wrapping_add(size_of::<T>() - 1));
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::inline_always, reason = "it is one instruction")]
#[inline(always)]
fn fetch(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of x86-64, and a prefetch of any address, valid or not, has no architectural effect.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(target_arch = "aarch64")]
#[allow(clippy::inline_always, reason = "it is one instruction")]
#[inline(always)]
fn fetch(address: *const u8) {
    // SAFETY: a prefetch of any address, valid or not, has no architectural effect.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fetch(_address: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_changes_nothing_whatever_it_is_given() {
        let values = [[7_u8; 200], [9; 200]];
        prefetch(&values[1]);
        prefetch_lines(&values[1]);
        prefetch_lines(&values);
        prefetch_lines(&());
        let empty: [u64; 0] = [];
        prefetch_lines(&empty);
        fetch(std::ptr::null());
        assert_eq!(values, [[7; 200], [9; 200]]);
    }
}
