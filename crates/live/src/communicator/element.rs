//! The element types of collectives.
#![expect(unsafe_code, reason = "the trait promises something about memory that the compiler cannot check")]

use railnet_core::DataType;

/// A type that collectives move and reduce.
///
/// # Safety
/// Any bytes of its size must be a value, and its layout must be that of its [`DataType`]: little-endian, without padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The data type of its elements.
    const TYPE: DataType;
}

/// Elements as bytes.
pub(super) fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, so that all of their bytes are there.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// So many elements of zero.
pub(super) fn zeros<T: Element>(length: usize) -> Vec<T> {
    // SAFETY: any bytes are an element.
    vec![unsafe { std::mem::zeroed() }; length]
}

/// Elements as bytes that can be written.
pub(super) fn bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and whatever bytes are put there are elements.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

macro_rules! elements {
    ($($type:ty => $name:ident;)*) => {$(
        // SAFETY: a number of this size, of which all bits are values.
        unsafe impl Element for $type {
            const TYPE: DataType = DataType::$name;
        }
    )*};
}

#[cfg(target_endian = "little")]
elements! {
    f64 => F64;
    f32 => F32;
    i8 => I8;
    i16 => I16;
    i32 => I32;
    i64 => I64;
    u8 => U8;
    u16 => U16;
    u32 => U32;
    u64 => U64;
    F16 => F16;
    Bf16 => Bf16;
    F8E4M3 => F8E4M3;
    F8E5M2 => F8E5M2;
}

macro_rules! small_floats {
    ($($(#[$doc:meta])* $name:ident($bits:ty), $widen:ident, $narrow:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[repr(transparent)]
        pub struct $name(
            /// The bit pattern.
            pub $bits,
        );

        impl From<f32> for $name {
            fn from(value: f32) -> Self {
                Self(railnet_core::float::$narrow(value))
            }
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> Self {
                railnet_core::float::$widen(value.0)
            }
        }
    )*};
}

small_floats! {
    /// A 16-bit float of IEEE 754.
    F16(u16), f16_to_f32, f32_to_f16;
    /// The upper half of an `f32`.
    Bf16(u16), bf16_to_f32, f32_to_bf16;
    /// An 8-bit float with 4 bits of exponent; the largest is 448.
    F8E4M3(u8), e4m3_to_f32, f32_to_e4m3;
    /// An 8-bit float with 5 bits of exponent; the largest is 57,344.
    F8E5M2(u8), e5m2_to_f32, f32_to_e5m2;
}
