//! Words that may change meanwhile, copied and summed for the ICRC in one pass: the copy is bound by memory and the sum by the
//! multipliers, so that both together cost little more than one of them.
#![expect(
    unsafe_code,
    reason = "loads that the compiler must not look into, instructions that not every processor has, and a vector that is filled"
)]

use std::sync::atomic::AtomicU64;

use railnet_wire::PayloadSum;

/// Appends the bytes of words, each loaded atomically, and returns their contribution to the ICRC. `None`, with nothing
/// appended, if the processor or the length does not permit it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn append(words: &[AtomicU64], out: &mut Vec<u8>) -> Option<PayloadSum> {
    let bytes = size_of_val(words);
    if !PayloadSum::is_for(bytes) || !folding::is_possible() {
        return None;
    }
    out.reserve(bytes);
    // SAFETY: the processor has the instructions, `words` are as many bytes, a multiple of a block and more than one, and
    // as many were reserved.
    let folded =
        unsafe { folding::copy(words.as_ptr().cast(), bytes, out.spare_capacity_mut().as_mut_ptr().cast()) };
    // SAFETY: that many bytes were reserved and all of them written.
    unsafe { out.set_len(out.len() + bytes) };
    PayloadSum::of(bytes, &folded)
}

/// This processor lacks the instructions.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn append(_: &[AtomicU64], _: &mut Vec<u8>) -> Option<PayloadSum> {
    None
}

/// A CRC's polynomial division by carry-less multiplication, 512 bits at a time (Gopal and others, "Fast CRC computation for
/// generic polynomials using PCLMULQDQ instruction", Intel 2009).
#[cfg(target_arch = "x86_64")]
mod folding {
    use std::arch::x86_64::{__m512i, _mm512_clmulepi64_epi128, _mm512_set_epi64, _mm512_ternarylogic_epi64};

    /// Bytes of one round: four registers.
    pub(super) const BLOCK: usize = 256;

    const REGISTER: usize = size_of::<__m512i>();

    /// The powers of x that carry 64 bits over a block, for the earlier half of 128 bits and the later one: 2048 + 32 and
    /// 2048 - 32, modulo the generator, bits reflected.
    const OVER_A_BLOCK: [i64; 2] = [0x1_1542_778a, 0x1_322d_1430];

    #[inline]
    pub(super) fn is_possible() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// Copies `bytes` bytes, and leaves a block that is the same to a CRC that starts with 0.
    ///
    /// # Safety
    ///
    /// [`is_possible`]; `bytes` is a multiple of [`BLOCK`] and not 0; that many can be read at `source`, words that others
    /// may store to meanwhile included, and be written at `target`, which nobody else may use meanwhile.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) unsafe fn copy(source: *const u8, bytes: usize, target: *mut u8) -> [u8; BLOCK] {
        let [earlier, later] = OVER_A_BLOCK;
        let powers = _mm512_set_epi64(later, earlier, later, earlier, later, earlier, later, earlier);
        // SAFETY: within the bytes that the caller has.
        let take = |at: usize| unsafe { copy_register(source.add(at), target.add(at)) };
        let mut folded: [__m512i; BLOCK / REGISTER] = std::array::from_fn(|index| take(index * REGISTER));
        let mut at = BLOCK;
        while at < bytes {
            for (index, register) in folded.iter_mut().enumerate() {
                *register = fold(*register, take(at + index * REGISTER), powers);
            }
            at += BLOCK;
        }
        // SAFETY: both are as many bytes, and any bits are bytes.
        unsafe { std::mem::transmute(folded) }
    }

    /// Carries what was read over a block to what is there.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(before: __m512i, here: __m512i, powers: __m512i) -> __m512i {
        const EXCLUSIVE_OR: i32 = 0x96;
        let earlier = _mm512_clmulepi64_epi128::<0x00>(before, powers);
        let later = _mm512_clmulepi64_epi128::<0x11>(before, powers);
        _mm512_ternarylogic_epi64::<EXCLUSIVE_OR>(here, earlier, later)
    }

    /// Copies a register's worth of bytes, and returns it.
    ///
    /// # Safety
    ///
    /// As for [`copy`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn copy_register(source: *const u8, target: *mut u8) -> __m512i {
        let register;
        // SAFETY: it reads from `source` and writes to `target`, and nothing else. Others may store to the words
        // meanwhile: a load at a multiple of 8 takes each word as it is before or after such a store, and to the compiler
        // this is no access at all. What is summed is what was written.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 {register}, [{source}]",
                "vmovdqu64 [{target}], {register}",
                register = out(zmm_reg) register,
                source = in(reg) source,
                target = in(reg) target,
                options(nostack, preserves_flags),
            );
        }
        register
    }
}
