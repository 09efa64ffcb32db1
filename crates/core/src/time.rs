//! Points in time and spans of it, in whole picoseconds.
//!
//! At 10, 25, 100, 200, 400 and 800 Gb/s a byte takes a whole number of picoseconds, so serialisation adds up without
//! rounding; in nanoseconds an 84-byte frame at 800 Gb/s would be 19 % wrong. A `u64` of picoseconds lasts 213 days.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A point in time: picoseconds since the start of the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// A length of time in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens: the deadline of a timer that is not set.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point `ps` picoseconds after the start.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Picoseconds since the start.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// The span since `earlier`; zero where `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Whether this is a point that will come, i.e. not [`Time::NEVER`].
    pub const fn is_set(self) -> bool {
        self.0 != u64::MAX
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than any run.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of whole picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// A span of whole nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1_000))
    }

    /// A span of whole microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000_000))
    }

    /// A span of whole milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000_000))
    }

    /// A span of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000_000))
    }

    /// Whole picoseconds.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Seconds, for rates and reports; never for protocol state.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// Microseconds, for reports.
    pub fn as_us_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add<Span> for Time {
    type Output = Self;
    /// Saturates: a deadline past the end of time is [`Time::NEVER`].
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub for Time {
    type Output = Span;
    fn sub(self, earlier: Self) -> Span {
        debug_assert!(self >= earlier, "{self:?} is before {earlier:?}");
        self.since(earlier)
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Span {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Div<u64> for Span {
    type Output = Self;
    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// Prints with the largest unit that keeps it readable, cut off after three decimals: `840 ps`, `2.5 us`, `67.108 ms`.
/// With `{:#}` no digit is cut off (`67.108864 ms`), and the text reads back as the same span.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, usize, &str); 4] =
            [(1_000_000_000_000, 12, "s"), (1_000_000_000, 9, "ms"), (1_000_000, 6, "us"), (1_000, 3, "ns")];
        for (size, digits, name) in UNITS {
            if self.0 >= size {
                let text = format!("{}.{:0digits$}", self.0 / size, self.0 % size);
                let text = if f.alternate() { &text[..] } else { &text[..text.len() - digits + 3] };
                let text = text.trim_end_matches('0').trim_end_matches('.');
                return f.pad(&format!("{text} {name}"));
            }
        }
        f.pad(&format!("{} ps", self.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_set() { Span(self.0).fmt(f) } else { f.pad("never") }
    }
}

// Exact: two spans that differ must not look the same in a failed assertion.
impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_with_the_unit_people_read() {
        assert_eq!(Span::from_ps(840).to_string(), "840 ps");
        assert_eq!(Span::from_ns(2_500).to_string(), "2.5 us");
        assert_eq!(Span::from_ps(67_108_864_000).to_string(), "67.108 ms");
        assert_eq!(Span::from_secs(3).to_string(), "3 s");
        assert_eq!(format!("{:>8}", Span::from_us(3)), "    3 us");
        assert_eq!(Time::NEVER.to_string(), "never");
    }

    #[test]
    fn the_exact_form_keeps_every_picosecond() {
        assert_eq!(format!("{:#}", Span::from_ps(67_108_864_000)), "67.108864 ms");
        assert_eq!(format!("{:#}", Span::from_ps(1_000_000_000_001)), "1.000000000001 s");
        assert_eq!(format!("{:?}", Time::from_ps(2_500_001)), "2.500001 us");
    }

    #[test]
    fn deadlines_saturate_instead_of_wrapping() {
        assert_eq!(Time::from_ps(u64::MAX - 1) + Span::from_ns(5), Time::NEVER);
    }
}
