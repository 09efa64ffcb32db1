//! DCTCP: falls by as much as the share of marked bytes says. RFC 8257.

use railnet_core::Time;

use super::{Acked, CongestionControl, Reno};

/// One, in the fixed point of alpha.
const ONE: u64 = 1 << 10;
/// The weight of a window's share in alpha: 1/16.
const GAIN: u32 = 4;

/// DCTCP.
#[derive(Clone, Debug)]
pub struct Dctcp {
    /// Without marks it is Reno.
    reno: Reno,
    segment_size: u64,
    /// The smoothed share of marked bytes.
    alpha: u64,
    /// Bytes acknowledged in this window of data, and those of them that were marked.
    bytes: (u64, u64),
    /// Where this window of data ends.
    end: u64,
    /// The window was reduced for this window of data.
    is_reduced: bool,
}

impl Dctcp {
    /// With a first window. Alpha begins at 1 (RFC 8257, 4.2).
    pub fn new(segment_size: u64, first: u64) -> Self {
        let reno = Reno::new(segment_size, first);
        Self { reno, segment_size, alpha: ONE, bytes: (0, 0), end: 0, is_reduced: false }
    }

    /// The smoothed share of marked bytes, in thousandths.
    pub fn alpha_permille(&self) -> u64 {
        self.alpha * 1000 / ONE
    }
}

impl CongestionControl for Dctcp {
    fn window(&self) -> u64 {
        self.reno.window()
    }

    fn on_ack(&mut self, acked: &Acked) {
        self.bytes.0 += acked.bytes;
        self.bytes.1 += if acked.is_marked { acked.bytes } else { 0 };
        let (acknowledged, next) = acked.positions;
        if acknowledged >= self.end {
            let share = self.bytes.1 * ONE / self.bytes.0.max(1);
            self.alpha = self.alpha - (self.alpha >> GAIN) + (share >> GAIN);
            (self.bytes, self.end, self.is_reduced) = ((0, 0), next, false);
        }
        if acked.is_marked && !self.is_reduced {
            self.is_reduced = true;
            let window = self.reno.window();
            let to = window - window * self.alpha / (2 * ONE);
            // Reno halves what it is told: so it falls to `to`.
            self.reno.on_congestion(acked.now, 2 * to.max(2 * self.segment_size));
        } else if !acked.is_marked {
            self.reno.on_ack(acked);
        }
    }

    fn on_congestion(&mut self, now: Time, in_flight: u64) {
        self.reno.on_congestion(now, in_flight);
    }

    fn on_timeout(&mut self, now: Time, in_flight: u64) {
        self.reno.on_timeout(now, in_flight);
    }

    fn counts_marks(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(dctcp: &mut Dctcp, at: u64, is_marked: bool) {
        let positions = (at, at + dctcp.window());
        dctcp.on_ack(&Acked {
            now: Time::ZERO,
            bytes: 1000,
            is_marked,
            positions,
            round_trip: None,
            is_limited: true,
        });
    }

    #[test]
    fn it_falls_by_half_of_the_marked_share_once_a_window() {
        let mut dctcp = Dctcp::new(1000, 100_000);
        dctcp.on_congestion(Time::ZERO, 200_000);
        assert_eq!((dctcp.window(), dctcp.alpha_permille()), (100_000, 1000));
        // Windows without a mark: alpha decays by a sixteenth each.
        let mut at = 0;
        while dctcp.alpha_permille() > 100 {
            at += 1000;
            ack(&mut dctcp, at, false);
        }
        let before = dctcp.window();
        at += 1000;
        ack(&mut dctcp, at, true);
        let fell = (before - dctcp.window()) * 1000 / before;
        assert!((40..=60).contains(&fell), "half of a tenth, not {fell} per mille");
        let after = dctcp.window();
        at += 1000;
        ack(&mut dctcp, at, true);
        assert_eq!(dctcp.window(), after, "once a window");
    }
}
