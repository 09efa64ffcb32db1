//! Bytes, rates and exact ratios. How they are written as text is in [`crate::parse`].
//!
//! Arithmetic saturates instead of wrapping, as it does for [`Span`]: an absurd amount stays absurd and visible. Where
//! running out matters, ask [`Bytes::checked_add`] and [`Bytes::checked_sub`].

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign};

use crate::time::Span;

/// An amount of data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// More than any machine holds.
    pub const MAX: Self = Self(u64::MAX);

    /// Units of 1,024 bytes.
    pub const fn kib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 10))
    }

    /// Units of 1,048,576 bytes.
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// Units of 1,073,741,824 bytes.
    pub const fn gib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 30))
    }

    /// The amount as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The sum, unless it does not fit.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// What is left, unless `other` is more than there is.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// How many pieces of at most `piece` bytes this makes, a short last one included. `piece` must not be zero.
    pub const fn div_ceil(self, piece: Self) -> u64 {
        self.0.div_ceil(piece.0)
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

/// One of `parts` equal parts, rounded down.
impl Div<u64> for Bytes {
    type Output = Self;
    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// How often `piece` fits.
impl Div for Bytes {
    type Output = u64;
    fn div(self, piece: Self) -> u64 {
        self.0 / piece.0
    }
}

/// What is left over after whole pieces.
impl Rem for Bytes {
    type Output = Self;
    fn rem(self, piece: Self) -> Self {
        Self(self.0 % piece.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

/// Prints exactly, in the unit that takes the fewest letters: `64 KiB`, `1.5 MiB`, `8 MB`, `1082 B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 11] = [
            (1, "B"),
            (1 << 10, "KiB"),
            (1 << 20, "MiB"),
            (1 << 30, "GiB"),
            (1 << 40, "TiB"),
            (1 << 50, "PiB"),
            (1_000, "KB"),
            (1_000_000, "MB"),
            (1_000_000_000, "GB"),
            (1_000_000_000_000, "TB"),
            (1_000_000_000_000_000, "PB"),
        ];
        f.pad(&shortest(self.0, &UNITS))
    }
}

/// A data rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// Nothing moves.
    pub const ZERO: Self = Self(0);

    /// `bits` per second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// Megabits per second.
    pub const fn mbps(megabits: u64) -> Self {
        Self(megabits.saturating_mul(1_000_000))
    }

    /// Gigabits per second.
    pub const fn gbps(gigabits: u64) -> Self {
        Self(gigabits.saturating_mul(1_000_000_000))
    }

    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// How long `bytes` take at this rate, rounded up to a whole picosecond; [`Span::MAX`] where they never arrive.
    pub const fn serialize(self, bytes: Bytes) -> Span {
        if self.0 == 0 {
            return Span::MAX;
        }
        // Packets fit 64 bits; the wide division is many times slower and only for whole transfers.
        if let Some(work) = bytes.0.checked_mul(8 * PS_PER_SECOND) {
            return Span::from_ps(work.div_ceil(self.0));
        }
        let work = bytes.0 as u128 * (8 * PS_PER_SECOND) as u128;
        Span::from_ps(narrowed(work.div_ceil(self.0 as u128)))
    }

    /// How many whole bytes pass in `span`.
    pub const fn bytes_in(self, span: Span) -> Bytes {
        let work = self.0 as u128 * span.as_ps() as u128;
        Bytes(narrowed(work / (8 * PS_PER_SECOND) as u128))
    }
}

const PS_PER_SECOND: u64 = 1_000_000_000_000;

/// Saturates.
const fn narrowed(value: u128) -> u64 {
    if value > u64::MAX as u128 { u64::MAX } else { value as u64 }
}

/// Prints exactly, as it is written in scenarios: `400 Gbps`, `2.5 Mbps`, `64 bps`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (1, "bps"),
            (1_000, "Kbps"),
            (1_000_000, "Mbps"),
            (1_000_000_000, "Gbps"),
            (1_000_000_000_000, "Tbps"),
        ];
        f.pad(&shortest(self.0, &UNITS))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An exact fraction: a probability, a threshold, a gain. Kept in lowest terms, so equal values are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// Nothing.
    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };
    /// All of it.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// `numerator` / `denominator`. The denominator must not be zero.
    pub const fn new(numerator: u64, denominator: u64) -> Self {
        assert!(denominator > 0, "a ratio needs a denominator");
        let (mut a, mut b) = (numerator, denominator);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        Self { numerator: numerator / a, denominator: denominator / a }
    }

    /// The number above the line, in lowest terms.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The number below the line, in lowest terms; never zero.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// This share of `whole`, rounded down.
    pub const fn of(self, whole: u64) -> u64 {
        narrowed(whole as u128 * self.numerator as u128 / self.denominator as u128)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.numerator) * u128::from(other.denominator);
        let right = u128::from(other.numerator) * u128::from(self.denominator);
        left.cmp(&right)
    }
}

/// Prints exactly: `0.2` where a few decimals do, `1/256` where they do not.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match decimal(self.numerator, self.denominator, 4) {
            Some(text) => f.pad(&text),
            None => f.pad(&format!("{}/{}", self.numerator, self.denominator)),
        }
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The shortest exact text for `value`; of two that are equally short, the unit that is listed first.
fn shortest(value: u64, units: &[(u64, &str)]) -> String {
    let fitting = units.iter().filter(|(size, _)| *size == 1 || value >= *size);
    let texts = fitting.filter_map(|&(size, name)| Some(format!("{} {name}", decimal(value, size, 3)?)));
    texts.min_by_key(String::len).expect("the smallest unit is always exact")
}

/// `value` / `unit` as a decimal number, if at most `digits` digits after the point say it exactly.
fn decimal(value: u64, unit: u64, digits: u32) -> Option<String> {
    let scale = 10_u128.pow(digits);
    let scaled = u128::from(value % unit) * scale;
    if !scaled.is_multiple_of(u128::from(unit)) {
        return None;
    }
    let fraction = scaled / u128::from(unit);
    if fraction == 0 {
        return Some((value / unit).to_string());
    }
    let text = format!("{}.{fraction:0width$}", value / unit, width = digits as usize);
    Some(text.trim_end_matches('0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_print_in_the_shortest_exact_form() {
        let cases = [
            (0, "0 B"),
            (1, "1 B"),
            (1_000, "1 KB"),
            (1_024, "1 KiB"),
            (1_082, "1082 B"),
            (1_500, "1500 B"),
            (65_536, "64 KiB"),
            (1_572_864, "1.5 MiB"),
            (8_000_000, "8 MB"),
            (8_000_001, "8000001 B"),
            (1 << 30, "1 GiB"),
            (u64::MAX, "18446744073709551615 B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Bytes::kib(64)), "  64 KiB");
    }

    #[test]
    fn amounts_saturate_and_say_so_when_asked() {
        assert_eq!(Bytes::MAX + Bytes(1), Bytes::MAX);
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes::MAX.checked_add(Bytes(1)), None);
        assert_eq!(Bytes(1).checked_sub(Bytes(2)), None);
        assert_eq!(Bytes::gib(u64::MAX), Bytes::MAX);
        assert_eq!([Bytes(1), Bytes(2)].into_iter().sum::<Bytes>(), Bytes(3));
    }

    #[test]
    fn amounts_divide_into_pieces() {
        assert_eq!(Bytes(10_000) / Bytes::kib(4), 2);
        assert_eq!(Bytes(10_000) % Bytes::kib(4), Bytes(1_808));
        assert_eq!(Bytes(10_000).div_ceil(Bytes::kib(4)), 3);
        assert_eq!(Bytes(10_000) / 4, Bytes(2_500));
    }

    #[test]
    fn the_usual_rates_take_whole_picoseconds_per_byte() {
        for (gigabits, picoseconds) in [(10, 800), (25, 320), (100, 80), (200, 40), (400, 20), (800, 10)] {
            assert_eq!(Rate::gbps(gigabits).serialize(Bytes(1)), Span::from_ps(picoseconds));
        }
    }

    #[test]
    fn serialization_never_wraps() {
        assert_eq!(Rate::from_bps(1).serialize(Bytes::MAX), Span::MAX);
        assert_eq!(Rate::ZERO.serialize(Bytes(1)), Span::MAX);
        // Far beyond 64 bits of work: 2^61 bytes at 800 Gbps.
        assert_eq!(Rate::gbps(800).serialize(Bytes(1 << 60)).as_ps(), (1 << 60) * 10);
        assert_eq!(Rate::from_bps(u64::MAX).bytes_in(Span::MAX), Bytes::MAX);
    }

    #[test]
    fn rates_print_as_scenarios_write_them() {
        assert_eq!(Rate::gbps(400).to_string(), "400 Gbps");
        assert_eq!(Rate::from_bps(2_500_000).to_string(), "2.5 Mbps");
        assert_eq!(Rate::from_bps(1_000_000_000_001).to_string(), "1000000000001 bps");
        assert_eq!(Rate::ZERO.to_string(), "0 bps");
    }

    #[test]
    fn ratios_are_exact_and_in_lowest_terms() {
        assert_eq!(Ratio::new(2, 10), Ratio::new(1, 5));
        assert_eq!(Ratio::new(0, 7), Ratio::ZERO);
        assert_eq!(Ratio::new(1, 5).of(1_600_000), 320_000);
        assert_eq!(Ratio::new(u64::MAX, u64::MAX - 1).of(u64::MAX), u64::MAX);
        assert!(Ratio::new(1, 3) < Ratio::new(34, 100));
        assert_eq!(Ratio::new(1, 5).to_string(), "0.2");
        assert_eq!(Ratio::new(1, 256).to_string(), "1/256");
        assert_eq!(Ratio::new(3, 2).to_string(), "1.5");
    }

    proptest! {
        #[test]
        fn what_was_serialized_has_passed(bps in 1u64.., bytes in 0u64..1 << 40) {
            let (rate, bytes) = (Rate::from_bps(bps), Bytes(bytes));
            let span = rate.serialize(bytes);
            prop_assume!(span < Span::MAX);
            prop_assert!(rate.bytes_in(span) >= bytes);
            // One picosecond less is too short: the rounding is up, and by no more than it must be.
            if span > Span::ZERO {
                prop_assert!(rate.bytes_in(span - Span::from_ps(1)) < bytes);
            }
        }

        #[test]
        fn a_share_is_at_most_the_whole(a in 0u64.., b in 1u64.., whole: u64) {
            let ratio = Ratio::new(a.min(b), b);
            prop_assert!(ratio.of(whole) <= whole);
        }
    }
}
