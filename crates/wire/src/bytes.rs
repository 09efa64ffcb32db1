//! Big-endian numbers in byte slices: the few helpers that every header shares.

use crate::malformed::{Layer, Malformed};

/// The first `N` bytes as an array, so that fixed offsets into it are checked at compile time.
pub(crate) fn header<const N: usize>(bytes: &[u8], layer: Layer) -> Result<&[u8; N], Malformed> {
    bytes.first_chunk().ok_or(Malformed::Truncated { layer, needed: N, found: bytes.len() })
}

/// The bytes from `at` on that a field of `N` bytes takes.
#[inline]
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("field offsets lie within the header that was checked")
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(take(bytes, at))
}

/// Three bytes: queue pair numbers, sequence numbers.
#[inline]
pub(crate) fn u24_at(bytes: &[u8], at: usize) -> u32 {
    let [high, middle, low] = take(bytes, at);
    u32::from_be_bytes([0, high, middle, low])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(take(bytes, at))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(take(bytes, at))
}

#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    *bytes[at..].first_chunk_mut().expect("field offsets lie within the header that is emitted") = value;
}

#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, value.to_be_bytes());
}

/// The low three bytes of `value`.
#[inline]
pub(crate) fn put_u24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, high, middle, low] = value.to_be_bytes();
    put(bytes, at, [high, middle, low]);
}

#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, value.to_be_bytes());
}

#[inline]
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, value.to_be_bytes());
}
