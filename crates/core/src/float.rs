//! The small floating-point formats of training: to `f32`, and back with one rounding to nearest, ties to even.
//!
//! | format | bits (sign, exponent, mantissa) | largest | infinities |
//! | --- | --- | --- | --- |
//! | f16 | 1, 5, 10 | 65,504 | yes |
//! | bf16 | 1, 8, 7 | 3.39e38 | yes |
//! | e4m3 | 1, 4, 3 | 448 | no |
//! | e5m2 | 1, 5, 2 | 57,344 | yes |
//!
//! Too large a value becomes infinite in f16 and bf16. In the two 8-bit formats (OCP 8-bit floating point, revision
//! 1.0) it becomes the largest finite value, and so does infinity: their specification leaves the choice, and this is
//! what CUDA's conversion does, through which NCCL rounds its sums. A NaN stays one, quiet, with its sign.
//!
//! The code is free of branches, so that loops over it can be vectorised. Subnormal numbers are left to the `f32` unit:
//! multiplying by a power of two is exact, and adding a number whose last bit is the format's last bit rounds there.

/// Bits of the mantissa of an `f32`.
const MANTISSA: u32 = 23;
/// The exponent bits of an `f32`: all ones in infinities and NaNs.
const INFINITY: u32 = 0x7f80_0000;
/// The bit that makes a NaN of an `f32` a quiet one.
const QUIET: u32 = 0x0040_0000;

/// A format with `EXPONENT` and `MANTISSA` bits behind its sign; `SATURATES` says what becomes of too large a value.
struct Format<const E: u32, const M: u32, const SATURATES: bool>;

type F16 = Format<5, 10, false>;
type E4M3 = Format<4, 3, true>;
type E5M2 = Format<5, 2, true>;

impl<const E: u32, const M: u32, const SATURATES: bool> Format<E, M, SATURATES> {
    const BIAS: u32 = (1 << (E - 1)) - 1;
    /// The shift between the two mantissas.
    const SHIFT: u32 = MANTISSA - M;
    /// The difference of the two biases, in the exponent bits of an `f32`.
    const REBIAS: u32 = (127 - Self::BIAS) << MANTISSA;
    /// The first magnitude that is not finite. e4m3 has no infinities: only its very last code is a NaN.
    const NOT_FINITE: u32 = if Self::HAS_INFINITY { ((1 << E) - 1) << M } else { (1 << (E + M)) - 1 };
    /// Of the 8-bit formats, the one with four exponent bits spends its top exponent on numbers.
    const HAS_INFINITY: bool = E != 4;
    /// The quiet NaN with no payload.
    const NAN: u32 = if Self::HAS_INFINITY { Self::NOT_FINITE | 1 << (M - 1) } else { Self::NOT_FINITE };

    #[inline(always)]
    fn widen(code: u32) -> f32 {
        let sign = (code >> (E + M)) << 31;
        let magnitude = code & ((1 << (E + M)) - 1);
        let shifted = magnitude << Self::SHIFT;
        let scale = f32::from_bits((127 + 127 - Self::BIAS) << MANTISSA);
        let finite = (f32::from_bits(shifted) * scale).to_bits();
        let quiet = if magnitude > Self::NOT_FINITE || !Self::HAS_INFINITY { QUIET } else { 0 };
        let special = INFINITY | shifted | quiet;
        f32::from_bits(sign | if magnitude >= Self::NOT_FINITE { special } else { finite })
    }

    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        let bits = value.to_bits();
        let sign = (bits >> 31) << (E + M);
        let magnitude = bits & 0x7fff_ffff;
        // Half of the last place, less one bit where the number is even: ties go to even.
        let half = (1 << (Self::SHIFT - 1)) - 1 + ((magnitude >> Self::SHIFT) & 1);
        let normal = magnitude.wrapping_add(half).wrapping_sub(Self::REBIAS) >> Self::SHIFT;
        // The last place of this sum is the format's smallest number.
        let grid = (127 - Self::BIAS + 1 - M + MANTISSA) << MANTISSA;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(grid)).to_bits().wrapping_sub(grid);
        let smallest_normal = Self::REBIAS + (1 << MANTISSA);
        let rounded = if magnitude < smallest_normal { subnormal } else { normal };
        let too_large = if SATURATES { Self::NOT_FINITE - 1 } else { Self::NOT_FINITE };
        // Compared before the exponent is taken off: what is far too large would wrap around.
        let largest = Self::REBIAS + (Self::NOT_FINITE << Self::SHIFT);
        let limited = if magnitude.wrapping_add(half) >= largest { too_large } else { rounded };
        let payload = (magnitude >> Self::SHIFT) & ((1 << M) - 1);
        let nan = if Self::HAS_INFINITY { Self::NAN | payload } else { Self::NAN };
        sign | if magnitude > INFINITY { nan } else { limited }
    }
}

/// The value of an f16 (IEEE 754 binary16).
#[inline(always)]
pub fn f16_to_f32(code: u16) -> f32 {
    F16::widen(u32::from(code))
}

/// The f16 nearest to `value`.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    F16::narrow(value) as u16
}

/// The value of a bf16: the upper half of an `f32`.
#[inline(always)]
pub fn bf16_to_f32(code: u16) -> f32 {
    let bits = u32::from(code) << 16;
    f32::from_bits(if bits & 0x7fff_ffff > INFINITY { bits | QUIET } else { bits })
}

/// The bf16 nearest to `value`.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let half = 0x7fff + ((bits >> 16) & 1);
    let is_nan = bits & 0x7fff_ffff > INFINITY;
    (if is_nan { (bits | QUIET) >> 16 } else { bits.wrapping_add(half) >> 16 }) as u16
}

/// The value of an fp8 e4m3.
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    E4M3::widen(u32::from(code))
}

/// The e4m3 nearest to `value`; beyond 448 it is 448.
#[inline(always)]
pub fn f32_to_e4m3(value: f32) -> u8 {
    E4M3::narrow(value) as u8
}

/// The value of an fp8 e5m2.
#[inline(always)]
pub fn e5m2_to_f32(code: u8) -> f32 {
    E5M2::widen(u32::from(code))
}

/// The e5m2 nearest to `value`; beyond 57,344 it is 57,344.
#[inline(always)]
pub fn f32_to_e5m2(value: f32) -> u8 {
    E5M2::narrow(value) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One format under test: its layout and its two functions.
    struct Case {
        name: &'static str,
        exponent: u32,
        mantissa: u32,
        /// The largest finite code.
        largest: u32,
        saturates: bool,
        widen: fn(u32) -> f32,
        narrow: fn(f32) -> u32,
    }

    const CASES: [Case; 4] = [
        Case {
            name: "f16",
            exponent: 5,
            mantissa: 10,
            largest: 0x7bff,
            saturates: false,
            widen: |code| f16_to_f32(code as u16),
            narrow: |value| u32::from(f32_to_f16(value)),
        },
        Case {
            name: "bf16",
            exponent: 8,
            mantissa: 7,
            largest: 0x7f7f,
            saturates: false,
            widen: |code| bf16_to_f32(code as u16),
            narrow: |value| u32::from(f32_to_bf16(value)),
        },
        Case {
            name: "e4m3",
            exponent: 4,
            mantissa: 3,
            largest: 0x7e,
            saturates: true,
            widen: |code| e4m3_to_f32(code as u8),
            narrow: |value| u32::from(f32_to_e4m3(value)),
        },
        Case {
            name: "e5m2",
            exponent: 5,
            mantissa: 2,
            largest: 0x7b,
            saturates: true,
            widen: |code| e5m2_to_f32(code as u8),
            narrow: |value| u32::from(f32_to_e5m2(value)),
        },
    ];

    impl Case {
        const fn sign(&self) -> u32 {
            1 << (self.exponent + self.mantissa)
        }

        /// The textbook's definition of a finite code's value, in `f64`, where every step is exact.
        fn slow_value(&self, code: u32) -> f64 {
            let mantissa = f64::from(code % (1 << self.mantissa)) / f64::from(1 << self.mantissa);
            let exponent = ((code % self.sign()) >> self.mantissa) as i32;
            let bias = (1 << (self.exponent - 1)) - 1;
            let magnitude = match exponent {
                0 => mantissa * 2_f64.powi(1 - bias),
                _ => (1.0 + mantissa) * 2_f64.powi(exponent - bias),
            };
            if code & self.sign() == 0 { magnitude } else { -magnitude }
        }
    }

    #[test]
    fn every_finite_code_has_its_value_and_comes_back() {
        for case in &CASES {
            for code in (0..=case.largest).flat_map(|code| [code, code | case.sign()]) {
                let wide = (case.widen)(code);
                assert_eq!(
                    f64::from(wide).to_bits(),
                    case.slow_value(code).to_bits(),
                    "{} {code:#x}",
                    case.name
                );
                assert_eq!((case.narrow)(wide), code, "{} {code:#x}", case.name);
            }
        }
    }

    /// Rounding is monotonic, so what happens around the middle between any two neighbours decides every `f32`.
    #[test]
    fn every_midpoint_rounds_to_even_and_its_neighbours_to_the_nearest() {
        for case in &CASES {
            for low in 0..case.largest {
                let high = low + 1;
                let middle = f64::midpoint(case.slow_value(low), case.slow_value(high)) as f32;
                let even = if low % 2 == 0 { low } else { high };
                for sign in [0, case.sign()] {
                    let signed = |value: f32| if sign == 0 { value } else { -value };
                    let found = |value: f32| (case.narrow)(signed(value));
                    assert_eq!(found(middle.next_down()), low | sign, "{} below {middle}", case.name);
                    assert_eq!(found(middle), even | sign, "{} at {middle}", case.name);
                    assert_eq!(found(middle.next_up()), high | sign, "{} above {middle}", case.name);
                }
            }
        }
    }

    #[test]
    fn too_large_values_end_where_the_format_says() {
        for case in &CASES {
            let end = if case.saturates { case.largest } else { case.largest + 1 };
            // The middle between the largest number and the one that would come next.
            let step = case.slow_value(case.largest) - case.slow_value(case.largest - 1);
            let limit = (case.slow_value(case.largest) + step / 2.0) as f32;
            assert_eq!((case.narrow)(limit.next_down()), case.largest, "{}", case.name);
            for value in [limit, limit.next_up(), f32::MAX, f32::INFINITY] {
                assert_eq!((case.narrow)(value), end, "{} {value}", case.name);
                assert_eq!((case.narrow)(-value), end | case.sign(), "{} -{value}", case.name);
            }
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "these values are exact")]
    fn the_largest_values_are_those_of_the_specifications() {
        assert_eq!(f16_to_f32(0x7bff), 65_504.0);
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e5m2_to_f32(0x7b), 57_344.0);
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        assert_eq!(f16_to_f32(1), 2_f32.powi(-24));
        assert_eq!(e4m3_to_f32(1), 2_f32.powi(-9));
        assert_eq!(e5m2_to_f32(1), 2_f32.powi(-16));
    }

    #[test]
    fn infinities_and_nans_are_what_they_were() {
        for case in &CASES {
            let count = 2 * case.sign();
            let has_infinity = case.name != "e4m3";
            for code in (0..count).filter(|code| code % case.sign() > case.largest) {
                let wide = (case.widen)(code);
                if has_infinity && code % case.sign() == case.largest + 1 {
                    assert!(wide.is_infinite(), "{} {code:#x}", case.name);
                    let kept = if case.saturates { code - 1 } else { code };
                    assert_eq!((case.narrow)(wide), kept, "{} {code:#x}", case.name);
                } else {
                    assert!(wide.is_nan(), "{} {code:#x}", case.name);
                    let quiet = if has_infinity { 1 << (case.mantissa - 1) } else { 0 };
                    assert_eq!((case.narrow)(wide), code | quiet, "{} {code:#x}", case.name);
                }
            }
        }
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
    }
}
