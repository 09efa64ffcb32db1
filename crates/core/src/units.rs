//! Bytes, rates and exact ratios.

use std::fmt;

use crate::time::Span;

/// An amount of data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Bytes(pub u64);

/// A data rate in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// `bits` per second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// Megabits per second.
    pub const fn mbps(megabits: u64) -> Self {
        Self(megabits * 1_000_000)
    }

    /// Gigabits per second.
    pub const fn gbps(gigabits: u64) -> Self {
        Self(gigabits * 1_000_000_000)
    }

    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// How long `bytes` take at this rate, rounded up to a whole picosecond.
    pub const fn serialize(self, bytes: Bytes) -> Span {
        const PS_PER_SECOND: u64 = 1_000_000_000_000;
        if self.0 == 0 {
            return Span::MAX;
        }
        // Packets fit 64 bits; the wide division is many times slower and only for whole transfers.
        match (bytes.0 * 8).checked_mul(PS_PER_SECOND) {
            Some(work) => Span::from_ps(work.div_ceil(self.0)),
            None => Span::from_ps((bytes.0 as u128 * 8 * PS_PER_SECOND as u128).div_ceil(self.0 as u128) as u64),
        }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bit/s", self.0)
    }
}
