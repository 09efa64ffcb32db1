//! The types of elements that collectives move and reduce.

use std::fmt;
use std::str::FromStr;

use crate::parse::{ParseError, unknown_name};
use crate::units::Bytes;

/// The type of an element. Elements lie in memory in little-endian order, as on every GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DataType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// 8-bit floating point with 4 bits of exponent and 3 of mantissa; no infinities, largest 448.
    F8E4M3,
    /// 8-bit floating point with 5 bits of exponent and 2 of mantissa; largest 57,344.
    F8E5M2,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
}

impl DataType {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Bytes of `count` elements.
    pub fn bytes(self, count: u64) -> Bytes {
        Bytes(self.size() as u64) * count
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4M3 | Self::F8E5M2)
    }

    /// Whether elements are integers.
    pub const fn is_integer(self) -> bool {
        !self.is_float()
    }

    /// Its name in Railnet.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Its name in nccl-tests, in their tables and after their `-d`; for a type that NCCL does not have, the name it
    /// would have there.
    pub const fn nccl_name(self) -> &'static str {
        self.names()[1]
    }

    /// Everything it is called: by Railnet, nccl-tests, NCCL's header, PyTorch and people.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::F64 => &["f64", "double", "float64", "ncclFloat64", "ncclDouble"],
            Self::F32 => &["f32", "float", "float32", "fp32", "ncclFloat32", "ncclFloat"],
            Self::F16 => &["f16", "half", "float16", "fp16", "ncclFloat16", "ncclHalf"],
            Self::Bf16 => &["bf16", "bfloat16", "ncclBfloat16"],
            Self::F8E4M3 => &["f8e4m3", "fp8_e4m3", "e4m3", "float8_e4m3fn", "ncclFloat8e4m3"],
            Self::F8E5M2 => &["f8e5m2", "fp8_e5m2", "e5m2", "float8_e5m2", "ncclFloat8e5m2"],
            Self::I8 => &["i8", "int8", "char", "ncclInt8", "ncclChar"],
            Self::I16 => &["i16", "int16"],
            Self::I32 => &["i32", "int32", "int", "ncclInt32", "ncclInt"],
            Self::I64 => &["i64", "int64", "ncclInt64"],
            Self::U8 => &["u8", "uint8", "ncclUint8"],
            Self::U16 => &["u16", "uint16"],
            Self::U32 => &["u32", "uint32", "ncclUint32"],
            Self::U64 => &["u64", "uint64", "ncclUint64"],
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reads Railnet's names (`f32`), those of nccl-tests (`float`) and those of NCCL's header (`ncclFloat32`).
impl FromStr for DataType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.names().contains(&text.trim()));
        found.ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().flat_map(|dtype| dtype.names()).copied().collect();
            unknown_name("data type", text, &known, &Self::ALL.map(Self::name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_means_one_type() {
        for dtype in DataType::ALL {
            for name in dtype.names() {
                assert_eq!(name.parse(), Ok(dtype));
            }
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
            assert_eq!(dtype.nccl_name().parse(), Ok(dtype));
        }
    }

    #[test]
    fn the_names_of_nccl_tests_are_known() {
        let names = "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 fp8_e4m3 fp8_e5m2";
        for name in names.split(' ') {
            assert_eq!(name.parse::<DataType>().unwrap().nccl_name(), name);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let message = |text: &str| text.parse::<DataType>().unwrap_err().to_string();
        assert_eq!(message("BF16"), r#"unknown data type "BF16": did you mean "bf16"?"#);
        assert_eq!(message("fp8-e4m3"), r#"unknown data type "fp8-e4m3": did you mean "fp8_e4m3"?"#);
        assert_eq!(
            message("f31"),
            "unknown data type \"f31\": write f64, f32, f16, bf16, f8e4m3, f8e5m2, i8, i16, i32, i64, u8, u16, u32 or u64"
        );
        assert!(message("").starts_with("unknown data type \"\": write"));
    }

    #[test]
    fn sizes_are_those_of_memory() {
        assert_eq!(DataType::Bf16.bytes(1 << 20), Bytes::mib(2));
        assert_eq!(DataType::ALL.iter().map(|dtype| dtype.size()).sum::<usize>(), 3 * 8 + 3 * 4 + 4 * 2 + 4);
    }
}
