//! Probabilities in fixed point.

use railnet_core::Random;

/// A probability in parts of 2^64: fine enough for a bit error in a million million, and the same on every machine.
///
/// ```
/// use railnet_fabric::Chance;
///
/// let bit = Chance::of(1e-12).unwrap();
/// let packet = bit.any_of(4_178 * 8);
/// assert!((packet.share() / 3.3424e-8 - 1.0).abs() < 1e-4);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Chance(u64);

impl Chance {
    /// It does not happen.
    pub const NEVER: Self = Self(0);
    /// It happens every time.
    pub const ALWAYS: Self = Self(u64::MAX);

    /// So many times in a million.
    pub const fn parts_per_million(parts: u32) -> Self {
        if parts >= 1_000_000 {
            return Self::ALWAYS;
        }
        Self(((parts as u128 * (1 << 64)) / 1_000_000) as u64)
    }

    /// The probability nearest to a number from 0 to 1, as people write it; nothing for other numbers.
    pub fn of(share: f64) -> Option<Self> {
        // Scaling by a power of two is exact, and the cast stops at the largest there is.
        (0.0..=1.0).contains(&share).then(|| Self((share * 2f64.powi(64)) as u64))
    }

    /// As a number from 0 to 1, for reports.
    pub fn share(self) -> f64 {
        self.0 as f64 / 2f64.powi(64)
    }

    /// That it happens at least once in so many independent tries.
    #[must_use]
    pub fn any_of(self, tries: u32) -> Self {
        // By squaring: after n tries the chance is d(n), and d(a + b) = d(a) + d(b) - d(a) × d(b).
        let (mut power, mut left, mut sum) = (self, tries, Self::NEVER);
        while left > 0 {
            if left & 1 == 1 {
                sum = sum.or(power);
            }
            power = power.or(power);
            left >>= 1;
        }
        sum
    }

    fn or(self, other: Self) -> Self {
        let both = ((u128::from(self.0) * u128::from(other.0)) >> 64) as u64;
        Self(self.0.saturating_add(other.0 - both))
    }

    /// Draws whether it happens.
    pub(crate) fn happens(self, random: &mut Random) -> bool {
        self == Self::ALWAYS || (self != Self::NEVER && random.next_u64() < self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_given_back() {
        assert_eq!(Chance::of(0.0), Some(Chance::NEVER));
        assert_eq!(Chance::of(1.0), Some(Chance::ALWAYS));
        assert_eq!(Chance::of(0.5), Some(Chance(1 << 63)));
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Chance::of(bad), None);
        }
        assert_eq!(Chance::parts_per_million(1_000_000), Chance::ALWAYS);
        assert!((Chance::parts_per_million(10_000).share() - 0.01).abs() < 1e-12);
    }

    #[test]
    fn several_tries_are_as_likely_as_the_formula_says() {
        for (share, tries) in [(1e-12, 33_424u32), (1e-9, 33_424), (1e-3, 1_000), (0.5, 3), (0.25, 1)] {
            let expected = -f64::exp_m1(f64::from(tries) * f64::ln_1p(-share));
            let found = Chance::of(share).unwrap().any_of(tries).share();
            assert!((found / expected - 1.0).abs() < 1e-6, "{share} × {tries}: {found}, not {expected}");
        }
        assert_eq!(Chance::of(0.3).unwrap().any_of(0), Chance::NEVER);
        assert!(Chance::ALWAYS.any_of(7).share() > 0.999_999);
    }

    #[test]
    fn events_are_as_frequent_as_their_probability() {
        let mut random = Random::stream(1, "test", 0);
        let chance = Chance::of(0.2).unwrap();
        let hits = (0..100_000).filter(|_| chance.happens(&mut random)).count();
        assert!((19_500..20_500).contains(&hits), "{hits}");
        assert!(Chance::ALWAYS.happens(&mut random) && !Chance::NEVER.happens(&mut random));
    }
}
