//! In-band telemetry: what each switch on the way writes into a packet as it sends it on (the INT of HPCC).

use railnet_core::{Bytes, Rate, Span, Time};

/// The fields of a hop, from the lowest bit up: (place, bits).
mod field {
    pub(super) const QUEUE: (u32, u32) = (0, 14);
    pub(super) const SENT: (u32, u32) = (14, 18);
    pub(super) const TIME: (u32, u32) = (32, 22);
    pub(super) const MANTISSA: (u32, u32) = (54, 5);
    pub(super) const EXPONENT: (u32, u32) = (59, 5);
}

/// The rate with exponent and mantissa 0. Every Ethernet rate from 10 Gb/s on is this times a power of two and a
/// multiple of 1/4, so that it is exact; others are told up to 3 % too low.
const SLOWEST: u64 = 5_000_000_000 >> SLOWEST_SHIFT;
const SLOWEST_SHIFT: u32 = 8;
/// The exponent from which on one counts in larger units than bytes: 128 B at 25 Gb/s, and in proportion.
const UNIT_EXPONENT: u32 = 3;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// What one switch wrote: how fast the link is that the packet left by, when that was, how many bytes had gone over the
/// link, and how many waited for it. Eight bytes; time and bytes wrap around, so that only differences mean something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop([u8; 8]);

impl Hop {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;
    /// After this long the time of a hop begins again.
    pub const TIME_WRAP: Span = Span::from_ns(1 << field::TIME.1);

    /// The record of a link of this rate: the present, bytes ever sent, bytes that wait.
    pub fn new(rate: Rate, now: Time, sent: Bytes, queued: Bytes) -> Self {
        let (exponent, mantissa) = encode_rate(rate);
        let unit = unit_shift(exponent);
        let queue = (queued.as_u64() >> unit).min(mask(field::QUEUE.1));
        let put = |value: u64, (place, bits): (u32, u32)| (value & mask(bits)) << place;
        let word = put(exponent.into(), field::EXPONENT)
            | put(mantissa, field::MANTISSA)
            | put(now.as_ps() / 1_000, field::TIME)
            | put(sent.as_u64() >> unit, field::SENT)
            | put(queue, field::QUEUE);
        Self(word.to_be_bytes())
    }

    /// From its bytes. All of them mean something.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        self.0
    }

    const fn get(self, (place, bits): (u32, u32)) -> u64 {
        u64::from_be_bytes(self.0) >> place & mask(bits)
    }

    const fn unit(self) -> u32 {
        unit_shift(self.get(field::EXPONENT) as u32)
    }

    /// How fast the link is.
    pub const fn rate(self) -> Rate {
        let whole = SLOWEST << self.get(field::EXPONENT);
        Rate::from_bps(whole + (whole >> field::MANTISSA.1) * self.get(field::MANTISSA))
    }

    /// When the packet left, in nanoseconds on a clock that wraps with [`Hop::TIME_WRAP`].
    pub const fn nanoseconds(self) -> u32 {
        self.get(field::TIME) as u32
    }

    /// Bytes that waited for the link; what is more than the field holds (0.6 ms at full rate and more) is not counted.
    pub const fn queued(self) -> Bytes {
        Bytes(self.get(field::QUEUE) << self.unit())
    }

    /// Bytes that had gone over the link, on a counter that wraps.
    pub const fn sent(self) -> Bytes {
        Bytes(self.get(field::SENT) << self.unit())
    }

    /// Time since an earlier record of the same link, if that was less than [`Hop::TIME_WRAP`] ago.
    pub const fn since(self, earlier: Self) -> Span {
        let wrapped = self.nanoseconds().wrapping_sub(earlier.nanoseconds());
        Span::from_ns(wrapped as u64 & mask(field::TIME.1))
    }

    /// Bytes that went over the link since an earlier record of it. Both must tell the same rate.
    pub const fn sent_since(self, earlier: Self) -> Bytes {
        let wrapped = self.get(field::SENT).wrapping_sub(earlier.get(field::SENT));
        Bytes((wrapped & mask(field::SENT.1)) << self.unit())
    }
}

/// Exponent and mantissa of the nearest rate that is not above this one.
fn encode_rate(rate: Rate) -> (u32, u64) {
    let times = rate.as_bps().max(SLOWEST) / SLOWEST;
    let exponent = times.ilog2().min(mask(field::EXPONENT.1) as u32);
    let whole = SLOWEST << exponent;
    let above = rate.as_bps().saturating_sub(whole);
    (exponent, (above / (whole >> field::MANTISSA.1).max(1)).min(mask(field::MANTISSA.1)))
}

/// The logarithm of the unit in which bytes are counted.
const fn unit_shift(exponent: u32) -> u32 {
    exponent.saturating_sub(UNIT_EXPONENT)
}

/// What the switches of a path wrote, nearest to the sender first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Telemetry {
    hops: [Hop; Self::HOPS_MAX],
    count: u8,
}

impl Telemetry {
    /// Switches that a packet has room for: those of the longest path in a fat-tree of three tiers.
    pub const HOPS_MAX: usize = 5;
    /// Bytes of a record that is being written: always room for all of them, so that packets do not grow on the way.
    pub const LENGTH: usize = Self::HOPS_MAX * Hop::LENGTH;

    /// Nothing written yet.
    pub const EMPTY: Self = Self { hops: [Hop([0; 8]); Self::HOPS_MAX], count: 0 };

    /// A switch writes. One more than there is room for is not recorded.
    #[inline]
    pub fn push(&mut self, hop: Hop) {
        if let Some(place) = self.hops.get_mut(usize::from(self.count)) {
            *place = hop;
            self.count += 1;
        }
    }

    /// How many wrote.
    pub(super) const fn hop_count(&self) -> u8 {
        self.count
    }

    /// What was written.
    pub fn hops(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count)]
    }

    /// Reads so many hops.
    pub(super) fn parse(bytes: &[u8], count: usize) -> Self {
        let mut telemetry = Self::EMPTY;
        for raw in bytes.as_chunks().0.iter().take(count) {
            telemetry.push(Hop(*raw));
        }
        telemetry
    }

    /// Writes the hops to the front of `out`, and zeros behind them.
    pub(super) fn emit(&self, out: &mut [u8]) {
        for (raw, hop) in out.as_chunks_mut().0.iter_mut().zip(&self.hops) {
            *raw = hop.0;
        }
    }
}

impl FromIterator<Hop> for Telemetry {
    fn from_iter<I: IntoIterator<Item = Hop>>(hops: I) -> Self {
        let mut telemetry = Self::EMPTY;
        hops.into_iter().for_each(|hop| telemetry.push(hop));
        telemetry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hop(gbps: u64, ns: u64, sent: u64, queued: u64) -> Hop {
        let now = Time::ZERO + Span::from_ns(ns);
        Hop::new(Rate::gbps(gbps), now, Bytes(sent), Bytes(queued))
    }

    #[test]
    fn ethernet_rates_are_exact_and_others_close() {
        for gbps in [10, 25, 40, 50, 100, 200, 400, 800, 1_600, 3_200] {
            assert_eq!(hop(gbps, 0, 0, 0).rate(), Rate::gbps(gbps));
        }
        for mbps in (20..4_000_000u64).step_by(997) {
            let rate = Rate::mbps(mbps);
            let told = Hop::new(rate, Time::ZERO, Bytes::ZERO, Bytes::ZERO).rate();
            assert!(
                told <= rate && (rate.as_bps() - told.as_bps()) * 32 <= rate.as_bps(),
                "{rate} as {told}"
            );
        }
    }

    #[test]
    fn differences_survive_the_wrap() {
        let before = hop(100, 4_194_000, 134_217_000, 0);
        let after = hop(100, 4_194_000 + 700, 134_217_000 + 8_192, 0);
        assert_eq!(after.since(before), Span::from_ns(700));
        assert_eq!(after.sent_since(before), Bytes(8_192));
        assert!(after.nanoseconds() < before.nanoseconds());
    }

    #[test]
    fn a_queue_is_told_in_units_of_the_rate_and_never_too_long() {
        assert_eq!(hop(100, 0, 0, 100_000).queued(), Bytes(195 * 512));
        assert_eq!(hop(25, 0, 0, 100_000).queued(), Bytes(781 * 128));
        assert_eq!(hop(100, 0, 0, 1 << 40).queued(), Bytes(((1 << 14) - 1) * 512));
    }

    #[test]
    fn a_sixth_switch_finds_no_room() {
        let all: Telemetry = (1..=6).map(|queue| hop(100, 0, 0, queue * 512)).collect();
        let queues: Vec<u64> = all.hops().iter().map(|hop| hop.queued().as_u64() / 512).collect();
        assert_eq!(queues, [1, 2, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn any_eight_bytes_are_a_hop(bytes: [u8; 8], other: [u8; 8]) {
            let (hop, earlier) = (Hop::from_bytes(bytes), Hop::from_bytes(other));
            prop_assert_eq!(hop.to_bytes(), bytes);
            prop_assert!(hop.rate() >= Rate::from_bps(SLOWEST) && hop.since(earlier) < Hop::TIME_WRAP);
            let _ = (hop.queued(), hop.sent_since(earlier));
        }
    }
}
