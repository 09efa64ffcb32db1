//! Element-wise reductions on bytes.
//!
//! A collective reduces in three moves. Each rank's own data is [`prepare`]d, contributions are [`reduce`]d into each
//! other in whatever order the algorithm chooses, and the result is [`finish`]ed. For most operations only the middle
//! one does anything.
//!
//! ```
//! use railnet_core::{DataType, ReduceOp, reduce};
//!
//! let mut sum: Vec<u8> = [1.5_f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let other: Vec<u8> = [0.5_f32, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! reduce::reduce(DataType::F32, ReduceOp::Average, &mut sum, &other)?;
//! reduce::finish(DataType::F32, ReduceOp::Average, 2, &mut sum)?;
//! assert_eq!(sum[..4], 1.0_f32.to_le_bytes());
//! assert_eq!(sum[4..], 3.0_f32.to_le_bytes());
//! # Ok::<(), reduce::ReduceError>(())
//! ```
//!
//! What an operation means, for every type:
//! - Integers wrap, as they do on a GPU. Averages of signed integers are rounded towards zero.
//! - f16, bf16 and fp8 are computed in `f32` and rounded once per call, to nearest, ties to even ([`crate::float`]).
//! - Min and max ignore a NaN where the other side is a number, as CUDA's `fmin` and `fmax` do, and order -0 before +0.
//! - A result that is NaN is always the same quiet NaN, without sign or payload: processors differ in which one they
//!   make, and results should not. (Data that is only moved keeps its bits.)
//!
//! Buffers are plain bytes of any alignment; elements are little-endian.

use std::fmt;

use thiserror::Error;

use crate::dtype::DataType;
use crate::float;

/// How contributions are put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The bitwise AND; of integers only, like the next two.
    BitAnd,
    /// The bitwise OR.
    BitOr,
    /// The bitwise exclusive OR.
    BitXor,
    /// Their sum, divided by the number of ranks at the end.
    Average,
    /// The sum of the contributions, each multiplied by its rank's scalar beforehand.
    PreMulSum(Scalar),
}

impl ReduceOp {
    /// All operations but [`ReduceOp::PreMulSum`], which needs a scalar.
    pub const PLAIN: [Self; 8] = [
        Self::Sum,
        Self::Product,
        Self::Min,
        Self::Max,
        Self::Average,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    /// Its name, as nccl-tests writes it; bitwise operations, which NCCL lacks, are named as in MPI.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::Average => "avg",
            Self::PreMulSum(_) => "mulsum",
        }
    }

    /// Whether it combines the bits of integers.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }

    /// Whether elements of this type can be put together so.
    pub const fn applies_to(self, dtype: DataType) -> bool {
        !self.is_bitwise() || dtype.is_integer()
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One element: what a rank multiplies its data with in [`ReduceOp::PreMulSum`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scalar {
    dtype: DataType,
    bits: u64,
}

impl Scalar {
    /// The element whose bits are the lowest ones of `bits`.
    pub const fn from_bits(dtype: DataType, bits: u64) -> Self {
        let unused = 64 - 8 * dtype.size() as u32;
        Self { dtype, bits: bits << unused >> unused }
    }

    /// The element nearest to `value`; integers cut the decimals off.
    pub fn from_f32(dtype: DataType, value: f32) -> Self {
        let bits = match dtype {
            DataType::F64 => f64::from(value).to_bits(),
            DataType::F32 => u64::from(value.to_bits()),
            DataType::F16 => u64::from(float::f32_to_f16(value)),
            DataType::Bf16 => u64::from(float::f32_to_bf16(value)),
            DataType::F8E4M3 => u64::from(float::f32_to_e4m3(value)),
            DataType::F8E5M2 => u64::from(float::f32_to_e5m2(value)),
            DataType::I8 => value as i8 as u64,
            DataType::I16 => value as i16 as u64,
            DataType::I32 => value as i32 as u64,
            DataType::I64 => value as i64 as u64,
            DataType::U8 => value as u8 as u64,
            DataType::U16 => value as u16 as u64,
            DataType::U32 => value as u32 as u64,
            DataType::U64 => value as u64,
        };
        Self::from_bits(dtype, bits)
    }

    /// Its type.
    pub const fn dtype(self) -> DataType {
        self.dtype
    }

    /// Its bits, the rest zero.
    pub const fn bits(self) -> u64 {
        self.bits
    }

    fn bytes<const N: usize>(self) -> [u8; N] {
        let all = self.bits.to_le_bytes();
        std::array::from_fn(|index| all[index])
    }
}

/// Why nothing was reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// The two sides do not have the same length.
    #[error("cannot reduce {input} bytes into {accumulator} bytes: the lengths differ")]
    LengthsDiffer {
        /// Bytes of the side that takes the result.
        accumulator: usize,
        /// Bytes of the other.
        input: usize,
    },
    /// The last element is cut off.
    #[error("{length} bytes are no whole number of {dtype} elements of {} bytes", .dtype.size())]
    NotWhole {
        /// Bytes of the buffer.
        length: usize,
        /// The type of its elements.
        dtype: DataType,
    },
    /// The scalar of a pre-multiplied sum is of another type than the data.
    #[error("the scalar of a pre-multiplied sum is {scalar}, the data is {dtype}: they must be equal")]
    ScalarType {
        /// The type of the scalar.
        scalar: DataType,
        /// The type of the data.
        dtype: DataType,
    },
    /// An average over no ranks.
    #[error("an average needs at least one rank")]
    NoRanks,
    /// A bitwise operation on floating-point numbers.
    #[error("{op} combines the bits of integers, the data is {dtype}: use an integer type")]
    NotInteger {
        /// The operation.
        op: ReduceOp,
        /// The type of the data.
        dtype: DataType,
    },
}

/// Calls a function with the type and the size of an element.
macro_rules! for_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DataType::F64 => $function::<f64, 8>($($argument),*),
            DataType::F32 => $function::<f32, 4>($($argument),*),
            DataType::F16 => $function::<F16, 2>($($argument),*),
            DataType::Bf16 => $function::<Bf16, 2>($($argument),*),
            DataType::F8E4M3 => $function::<E4M3, 1>($($argument),*),
            DataType::F8E5M2 => $function::<E5M2, 1>($($argument),*),
            DataType::I8 => $function::<i8, 1>($($argument),*),
            DataType::I16 => $function::<i16, 2>($($argument),*),
            DataType::I32 => $function::<i32, 4>($($argument),*),
            DataType::I64 => $function::<i64, 8>($($argument),*),
            DataType::U8 => $function::<u8, 1>($($argument),*),
            DataType::U16 => $function::<u16, 2>($($argument),*),
            DataType::U32 => $function::<u32, 4>($($argument),*),
            DataType::U64 => $function::<u64, 8>($($argument),*),
        }
    };
}

/// Make a rank's own data ready to be reduced: multiply it by the scalar of a [`ReduceOp::PreMulSum`]. Other operations
/// leave it as it is.
pub fn prepare(dtype: DataType, op: ReduceOp, buffer: &mut [u8]) -> Result<(), ReduceError> {
    check(dtype, op, buffer)?;
    if let ReduceOp::PreMulSum(scalar) = op {
        for_type!(dtype, multiply(buffer, scalar));
    }
    Ok(())
}

/// Put `input` into `accumulator`, element by element.
pub fn reduce(
    dtype: DataType,
    op: ReduceOp,
    accumulator: &mut [u8],
    input: &[u8],
) -> Result<(), ReduceError> {
    if accumulator.len() != input.len() {
        return Err(ReduceError::LengthsDiffer { accumulator: accumulator.len(), input: input.len() });
    }
    check(dtype, op, accumulator)?;
    for_type!(dtype, reduce_into(op, accumulator, input));
    Ok(())
}

/// Put `left` and `right` together, element by element, into `result`: what copying `left` there and [`reduce`] with
/// `right` would give, in one pass.
pub fn combine(
    dtype: DataType,
    op: ReduceOp,
    result: &mut [u8],
    left: &[u8],
    right: &[u8],
) -> Result<(), ReduceError> {
    for input in [left, right] {
        if result.len() != input.len() {
            return Err(ReduceError::LengthsDiffer { accumulator: result.len(), input: input.len() });
        }
    }
    check(dtype, op, result)?;
    for_type!(dtype, combine_into(op, result, left, right));
    Ok(())
}

/// Turn what `ranks` contributions were reduced to into the result: divide the sum of an [`ReduceOp::Average`]. Other
/// operations leave it as it is.
///
/// NCCL multiplies floats by 1 / ranks beforehand instead; for a number of ranks that is a power of two the two agree
/// unless something overflows or underflows on the way.
pub fn finish(dtype: DataType, op: ReduceOp, ranks: u32, buffer: &mut [u8]) -> Result<(), ReduceError> {
    check(dtype, op, buffer)?;
    if op == ReduceOp::Average {
        if ranks == 0 {
            return Err(ReduceError::NoRanks);
        }
        for_type!(dtype, divide(buffer, ranks));
    }
    Ok(())
}

fn check(dtype: DataType, op: ReduceOp, buffer: &[u8]) -> Result<(), ReduceError> {
    if let ReduceOp::PreMulSum(scalar) = op
        && scalar.dtype != dtype
    {
        return Err(ReduceError::ScalarType { scalar: scalar.dtype, dtype });
    }
    if !op.applies_to(dtype) {
        return Err(ReduceError::NotInteger { op, dtype });
    }
    if !buffer.len().is_multiple_of(dtype.size()) {
        return Err(ReduceError::NotWhole { length: buffer.len(), dtype });
    }
    Ok(())
}

fn reduce_into<T: Number<N>, const N: usize>(op: ReduceOp, accumulator: &mut [u8], input: &[u8]) {
    match op {
        // Prepared beforehand and finished afterwards, the other two are sums.
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::PreMulSum(_) => zip(accumulator, input, T::sum),
        ReduceOp::Product => zip(accumulator, input, T::product),
        ReduceOp::Min => zip(accumulator, input, T::smaller),
        ReduceOp::Max => zip(accumulator, input, T::larger),
        ReduceOp::BitAnd => zip_bits(accumulator, input, |left, right| left & right),
        ReduceOp::BitOr => zip_bits(accumulator, input, |left, right| left | right),
        ReduceOp::BitXor => zip_bits(accumulator, input, |left, right| left ^ right),
    }
}

fn combine_into<T: Number<N>, const N: usize>(op: ReduceOp, result: &mut [u8], left: &[u8], right: &[u8]) {
    match op {
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::PreMulSum(_) => zip_into(result, left, right, T::sum),
        ReduceOp::Product => zip_into(result, left, right, T::product),
        ReduceOp::Min => zip_into(result, left, right, T::smaller),
        ReduceOp::Max => zip_into(result, left, right, T::larger),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {
            result.copy_from_slice(left);
            reduce_into::<T, N>(op, result, right);
        }
    }
}

/// Bits have no type.
#[inline(always)]
fn zip_bits(accumulator: &mut [u8], input: &[u8], operation: impl Fn(u8, u8) -> u8) {
    for (left, right) in accumulator.iter_mut().zip(input) {
        *left = operation(*left, *right);
    }
}

fn multiply<T: Number<N>, const N: usize>(buffer: &mut [u8], scalar: Scalar) {
    let scalar = T::load(scalar.bytes());
    map(buffer, |value: T| value.product(scalar));
}

fn divide<T: Number<N>, const N: usize>(buffer: &mut [u8], ranks: u32) {
    map(buffer, |value: T| value.over(ranks));
}

/// The loop that the compiler vectorises: no bounds, no branches, no alignment.
#[inline(always)]
fn zip<T: Number<N>, const N: usize>(accumulator: &mut [u8], input: &[u8], operation: impl Fn(T, T) -> T) {
    let (accumulator, _) = accumulator.as_chunks_mut::<N>();
    let (input, _) = input.as_chunks::<N>();
    for (left, right) in accumulator.iter_mut().zip(input) {
        *left = operation(T::load(*left), T::load(*right)).store();
    }
}

#[inline(always)]
fn zip_into<T: Number<N>, const N: usize>(
    result: &mut [u8],
    left: &[u8],
    right: &[u8],
    operation: impl Fn(T, T) -> T,
) {
    let (result, _) = result.as_chunks_mut::<N>();
    let (left, _) = left.as_chunks::<N>();
    let (right, _) = right.as_chunks::<N>();
    for ((result, left), right) in result.iter_mut().zip(left).zip(right) {
        *result = operation(T::load(*left), T::load(*right)).store();
    }
}

#[inline(always)]
fn map<T: Number<N>, const N: usize>(buffer: &mut [u8], operation: impl Fn(T) -> T) {
    let (elements, _) = buffer.as_chunks_mut::<N>();
    for element in elements {
        *element = operation(T::load(*element)).store();
    }
}

/// An element of `N` bytes in memory, in the form in which it is computed with.
trait Number<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn over(self, ranks: u32) -> Self;
}

macro_rules! integer {
    ($($type:ty, $bytes:literal, $wide:ty;)*) => {$(
        impl Number<$bytes> for $type {
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self) -> [u8; $bytes] {
                self.to_le_bytes()
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            // In 64 bits: there may be more ranks than a small integer can count.
            #[inline(always)]
            fn over(self, ranks: u32) -> Self {
                (self as $wide / ranks as $wide) as Self
            }
        }
    )*};
}

integer! {
    i8, 1, i64;
    i16, 2, i64;
    i32, 4, i64;
    i64, 8, i64;
    u8, 1, u64;
    u16, 2, u64;
    u32, 4, u64;
    u64, 8, u64;
}

macro_rules! float {
    ($type:ty, $bytes:literal, $nan:literal) => {
        impl Number<$bytes> for $type {
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self) -> [u8; $bytes] {
                (if self.is_nan() { $nan } else { self.to_bits() }).to_le_bytes()
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            // Equal numbers differ at most in the sign of zero: either bit makes it negative.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let not_more = if self < other { self } else { equal };
                let lower = if other < self || self.is_nan() { other } else { not_more };
                if other.is_nan() { self } else { lower }
            }

            // Both bits are needed to keep it negative.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let not_less = if self > other { self } else { equal };
                let higher = if other > self || self.is_nan() { other } else { not_less };
                if other.is_nan() { self } else { higher }
            }

            #[inline(always)]
            fn over(self, ranks: u32) -> Self {
                self / ranks as Self
            }
        }
    };
}

float!(f64, 8, 0x7ff8_0000_0000_0000_u64);
float!(f32, 4, 0x7fc0_0000_u32);

macro_rules! small_float {
    ($name:ident, $code:ty, $bytes:literal, $widen:path, $narrow:path) => {
        #[derive(Clone, Copy)]
        struct $name(f32);

        impl Number<$bytes> for $name {
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> Self {
                Self($widen(<$code>::from_le_bytes(bytes)))
            }

            #[inline(always)]
            fn store(self) -> [u8; $bytes] {
                // Through the bits, to make every NaN the same one.
                $narrow(f32::from_le_bytes(self.0.store())).to_le_bytes()
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Self(self.0.sum(other.0))
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                Self(self.0.product(other.0))
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                Self(self.0.smaller(other.0))
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Self(self.0.larger(other.0))
            }

            #[inline(always)]
            fn over(self, ranks: u32) -> Self {
                Self(self.0.over(ranks))
            }
        }
    };
}

small_float!(F16, u16, 2, float::f16_to_f32, float::f32_to_f16);
small_float!(Bf16, u16, 2, widen_bf16, narrow_bf16);
small_float!(E4M3, u8, 1, float::e4m3_to_f32, float::f32_to_e4m3);
small_float!(E5M2, u8, 1, float::e5m2_to_f32, float::f32_to_e5m2);

/// As [`float::bf16_to_f32`], but a signalling NaN stays one: `store` makes all alike. Vectorised it takes a third of the time.
#[inline(always)]
fn widen_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// As [`float::f32_to_bf16`] of what `store` gives: its one NaN is left as it is by rounding.
#[inline(always)]
fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests;
