//! Packet sequence numbers: 24 bits, compared modulo 2^24.

use std::fmt;

use crate::QueuePairNumber;
use crate::random::mix;

/// A packet sequence number. Order is modular, so there is no `Ord`: ask [`Psn::distance_from`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The bits that exist on the wire.
    pub const MASK: u32 = 0x00ff_ffff;
    /// The largest window in which before and after can be told apart.
    pub const WINDOW: u32 = 1 << 23;

    /// The number modulo 2^24.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The 24 bits as a number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later, wrapping.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & Self::MASK)
    }

    /// The number `count` packets earlier, wrapping.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & Self::MASK)
    }

    /// How far this is ahead of `other`; negative when it is behind. IBTA 9.7.2: half of the space is ahead.
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether this comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// Whether this comes after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn {:#08x}", self.0)
    }
}

/// Runs of consecutive sequence numbers of connections, one in so many, chosen by chance. A packet, those around it and its
/// acknowledgement are in the sample together or not at all: both directions of a connection count alike.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PacketSample {
    thinned: u32,
}

impl PacketSample {
    /// Sequence numbers of a run.
    pub const RUN: u32 = 32;
    /// Everything.
    pub const ALL: Self = Self::halved(0);

    /// One run in two to this power.
    #[must_use]
    pub const fn halved(times: u32) -> Self {
        Self { thinned: times }
    }

    /// Whether a packet with this sequence number between these queue pairs is in it.
    pub const fn has(self, psn: Psn, pair: [QueuePairNumber; 2]) -> bool {
        self.thinned == 0 || Self::depth(psn, pair) >= self.thinned
    }

    /// How often a sample can be halved until such a packet is no more in it.
    pub const fn depth(psn: Psn, pair: [QueuePairNumber; 2]) -> u32 {
        let [one, two] = [pair[0].value() as u64, pair[1].value() as u64];
        let (low, high) = if one < two { (one, two) } else { (two, one) };
        let connection = mix(low << 32 | high);
        mix(connection ^ (psn.value() / Self::RUN) as u64).trailing_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_wraps_at_24_bits() {
        assert!(Psn::new(0xff_fffe).is_before(Psn::new(1)));
        assert_eq!(Psn::new(1).distance_from(Psn::new(0xff_fffe)), 3);
        assert_eq!(Psn::new(0).minus(1), Psn::new(0xff_ffff));
    }

    #[test]
    fn halving_halves() {
        let pair = [3, 9].map(QueuePairNumber::new);
        let runs = || (0..1 << 16).map(|run| Psn::new(run * PacketSample::RUN));
        for times in 0..6 {
            let kept = runs().filter(|psn| PacketSample::halved(times).has(*psn, pair)).count();
            let wanted = (1 << 16) >> times;
            assert!(kept.abs_diff(wanted) < wanted / 16 + 1, "{kept} instead of {wanted}");
        }
    }

    proptest! {
        #[test]
        fn distance_undoes_plus(start in 0u32..=Psn::MASK, step in 0u32..Psn::WINDOW) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(step).distance_from(start), step as i32);
            prop_assert_eq!(start.plus(step).minus(step), start);
        }

        #[test]
        fn a_packet_and_its_answer_are_in_a_sample_together(psn in 0u32..=Psn::MASK, one in 0u32..1 << 24, two in 0u32..1 << 24) {
            let pair = [one, two].map(QueuePairNumber::new);
            let depth = PacketSample::depth(Psn::new(psn), pair);
            prop_assert_eq!(PacketSample::depth(Psn::new(psn / 32 * 32), [pair[1], pair[0]]), depth);
            for halved in 0..24 {
                prop_assert_eq!(PacketSample::halved(halved).has(Psn::new(psn), pair), halved <= depth);
            }
        }

        #[test]
        fn exactly_one_of_before_equal_after_holds_inside_the_window(a in 0u32..=Psn::MASK, step in 1u32..Psn::WINDOW) {
            let (a, b) = (Psn::new(a), Psn::new(a).plus(step));
            prop_assert!(a.is_before(b) && !a.is_after(b) && b.is_after(a) && !b.is_before(a));
        }
    }
}
