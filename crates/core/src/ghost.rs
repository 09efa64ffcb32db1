//! Ghost contents: what a range of memory holds, without its bytes.
//!
//! Every (rank, buffer) that takes part in a run gets one random 128-bit word. A range that holds data of several of
//! them holds the wrapping sum of their words, and the logical offset of its first byte in the buffer it came from.
//! Copying keeps both; reducing adds sums of equal origin and poisons the rest. At the end of a collective each range
//! must hold exactly the sum of the words that should be in it, so thousands of GPUs are checked at no cost in bytes.

/// What a range of ghost memory holds: which contributions, and from which logical offset its first byte comes.
///
/// It is in every packet and in every piece of memory, so it takes no room for an alignment that nobody needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(Rust, packed(8))]
pub struct GhostTag {
    /// Wrapping sum of the words of everything that was added up here.
    pub sum: u128,
    /// Logical offset of the first byte of the range.
    pub origin: u64,
}

impl GhostTag {
    /// What memory holds before anything was written to it.
    pub const BLANK: Self = Self { sum: 0, origin: 0 };
    /// What a meaningless result holds: parts of different origin were reduced, or bytes landed in ghost memory.
    pub const POISON: Self = Self { sum: u128::MAX, origin: u64::MAX };

    /// Whether the contents are known to be meaningless.
    pub const fn is_poison(self) -> bool {
        self.sum == u128::MAX && self.origin == u64::MAX
    }

    /// The tag of the same data, `bytes` further in. Blank and poisoned memory look alike everywhere.
    #[must_use]
    pub const fn advanced(self, bytes: u64) -> Self {
        if self.is_poison() || self.sum == 0 {
            self
        } else {
            Self { sum: self.sum, origin: self.origin.wrapping_add(bytes) }
        }
    }

    /// The tag of the element-wise reduction of two ranges.
    #[must_use]
    pub const fn reduced_with(self, other: Self) -> Self {
        if self.is_poison() || other.is_poison() || self.origin != other.origin {
            return Self::POISON;
        }
        Self { sum: self.sum.wrapping_add(other.sum), origin: self.origin }
    }

    /// The byte that stands for offset `index` of this data where real bytes are wanted: on a tap, or in a packet
    /// that travels as bytes.
    pub const fn pattern(self, index: u64) -> u8 {
        let at = self.origin.wrapping_add(index);
        (self.sum as u64 ^ (self.sum >> 64) as u64 ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()[7]
    }
}

/// A stretch of ghost data: `length` bytes that begin with `tag`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GhostRun {
    /// What the first byte holds; the rest follows from it.
    pub tag: GhostTag,
    /// How many bytes.
    pub length: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reducing_adds_equal_origins_and_poisons_the_rest() {
        let a = GhostTag { sum: 5, origin: 64 };
        let b = GhostTag { sum: u128::MAX - 1, origin: 64 };
        assert_eq!(a.reduced_with(b), GhostTag { sum: 3, origin: 64 });
        assert!(a.reduced_with(b.advanced(8)).is_poison());
        assert!(GhostTag::POISON.reduced_with(a).is_poison());
    }

    #[test]
    fn blank_and_poison_have_no_place() {
        assert_eq!(GhostTag::BLANK.advanced(4096), GhostTag::BLANK);
        assert!(GhostTag::POISON.advanced(1).is_poison());
    }
}
