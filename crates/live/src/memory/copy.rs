//! Fast copies of words that may change meanwhile: the compiler emits one load for each atomic word, and a NIC reads megabytes
//! of them.
#![expect(
    unsafe_code,
    reason = "a loop of wide loads that the compiler must not look into, and a vector that it fills"
)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a block: what one round of the loop copies.
const BLOCK: usize = 8;

/// Appends the bytes of words, each loaded atomically, in ascending order.
#[inline]
pub(super) fn append(words: &[AtomicU64], out: &mut Vec<u8>) {
    let bytes = size_of_val(words);
    out.reserve(bytes);
    let target = out.spare_capacity_mut();
    let (blocks, rest) = words.as_chunks::<BLOCK>();
    let (front, back) = target[..bytes].split_at_mut(size_of_val(blocks));
    if !blocks.is_empty() {
        // SAFETY: `front` has room for all the blocks, and nobody else knows it.
        unsafe { copy_blocks(blocks, front.as_mut_ptr().cast()) };
    }
    for (word, place) in rest.iter().zip(back.as_chunks_mut().0) {
        *place = word.load(Ordering::Relaxed).to_ne_bytes().map(std::mem::MaybeUninit::new);
    }
    // SAFETY: that many bytes were reserved and all of them written.
    unsafe { out.set_len(out.len() + bytes) };
}

/// Copies at least one block to `target`.
///
/// # Safety
///
/// `target` must have room for them, and nobody else may use it meanwhile.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_blocks(blocks: &[[AtomicU64; BLOCK]], target: *mut u8) {
    // SAFETY: it reads the blocks and writes as many bytes to `target`, and nothing else. Others may store to the words
    // meanwhile: a load of 16 bytes at a multiple of 8 takes each word as it is before or after such a store, as on
    // every processor that has these instructions, and to the compiler this is no access at all.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{source}]",
            "movups {b}, [{source} + 16]",
            "movups {c}, [{source} + 32]",
            "movups {d}, [{source} + 48]",
            "movups [{target}], {a}",
            "movups [{target} + 16], {b}",
            "movups [{target} + 32], {c}",
            "movups [{target} + 48], {d}",
            "add {source}, 64",
            "add {target}, 64",
            "dec {count}",
            "jnz 2b",
            source = inout(reg) blocks.as_ptr() => _,
            target = inout(reg) target => _,
            count = inout(reg) blocks.len() => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies blocks to `target`.
///
/// # Safety
///
/// `target` must have room for them, and nobody else may use it meanwhile.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn copy_blocks(blocks: &[[AtomicU64; BLOCK]], target: *mut u8) {
    for (index, word) in blocks.as_flattened().iter().enumerate() {
        // SAFETY: the caller has room for all of them.
        unsafe { target.cast::<u64>().add(index).write_unaligned(word.load(Ordering::Relaxed)) };
    }
}
