//! Cubic: a window that grows with the cube of the time since it was reduced, whatever the round trip. RFC 9438.
//!
//! In whole numbers: times in microseconds, the window in bytes. C is 0.4 segments for each second cubed, beta 0.7.

use railnet_core::Time;

use super::{Acked, CongestionControl, Window};

/// Beta, as a fraction.
const BETA: (u64, u64) = (7, 10);
/// What the window loses further where the last reduction was from less than the one before: (1 + beta) / 2.
const CONVERGENCE: (u64, u64) = (17, 20);
/// 10¹⁸ microseconds cubed are a second cubed; C is 4 / 10.
const PER_C: u128 = 10 * 1_000_000_000_000_000_000;
const C: u128 = 4;
/// Growth of the Reno-friendly estimate, 3 (1 - beta) / (1 + beta).
const FRIENDLY: (u64, u64) = (9, 17);

/// Cubic.
#[derive(Clone, Debug)]
pub struct Cubic {
    window: Window,
    /// The window before the last reduction.
    most: u64,
    /// Since when it grows by the cube.
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Time,
    /// Microseconds from then until the window is what it was.
    plateau: u64,
    /// What Reno would have, and what counts towards its next byte.
    friendly: u64,
    counted: u64,
    /// The window when it began.
    before: u64,
}

impl Cubic {
    /// With a first window.
    pub fn new(segment_size: u64, first: u64) -> Self {
        Self { window: Window::new(segment_size, first), most: 0, epoch: None }
    }

    fn remember(&mut self) {
        let now = self.window.bytes;
        self.most = if now < self.most { now * CONVERGENCE.0 / CONVERGENCE.1 } else { now };
        self.epoch = None;
    }

    /// The window of the cubic function so many microseconds after the epoch began.
    fn cubic(&self, epoch: &Epoch, elapsed: u64) -> u64 {
        let distance = u128::from(elapsed.abs_diff(epoch.plateau)).min(1 << 40);
        let change = C * distance.pow(3) / PER_C * u128::from(self.window.segment_size)
            + C * distance.pow(3) % PER_C * u128::from(self.window.segment_size) / PER_C;
        let change = u64::try_from(change).unwrap_or(u64::MAX / 4);
        match elapsed < epoch.plateau {
            true => self.most.saturating_sub(change),
            false => self.most.saturating_add(change),
        }
    }
}

impl CongestionControl for Cubic {
    fn window(&self) -> u64 {
        self.window.bytes
    }

    fn on_ack(&mut self, acked: &Acked) {
        let rest = self.window.slow_start(acked);
        if rest == 0 {
            return;
        }
        let (now, size, bytes) = (acked.now, self.window.segment_size, self.window.bytes);
        let most = self.most.max(bytes);
        let mut epoch = self.epoch.unwrap_or_else(|| Epoch {
            began: now,
            plateau: cube_root(u128::from(most - bytes) * PER_C / (C * u128::from(size))),
            friendly: bytes,
            counted: 0,
            before: bytes,
        });
        self.most = most;
        // The window a round trip from now: each acknowledgement moves towards it.
        let ahead = acked.round_trip.map_or(0, |span| span.as_ps() / 1_000_000);
        let elapsed = now.since(epoch.began).as_ps() / 1_000_000;
        let target = self.cubic(&epoch, elapsed + ahead).clamp(bytes, bytes + bytes / 2);
        let growth = u128::from(target - bytes) * u128::from(rest) / u128::from(bytes);
        // What Reno would have by now is the least.
        epoch.counted +=
            rest * if epoch.friendly < epoch.before * BETA.1 / BETA.0 { FRIENDLY.0 } else { FRIENDLY.1 };
        let friendly = u128::from(epoch.counted) * u128::from(size) / u128::from(epoch.friendly * FRIENDLY.1);
        if friendly > 0 {
            epoch.friendly += friendly as u64;
            epoch.counted = 0;
        }
        self.window.bytes = (bytes + growth as u64).max(epoch.friendly.min(bytes + rest));
        self.epoch = Some(epoch);
    }

    fn on_congestion(&mut self, _now: Time, _in_flight: u64) {
        self.remember();
        self.window.reduce(self.window.bytes * BETA.0 / BETA.1);
    }

    fn on_timeout(&mut self, _now: Time, _in_flight: u64) {
        self.remember();
        self.window.collapse(self.window.bytes * BETA.0 / BETA.1);
    }
}

/// The largest number whose cube is not above this.
fn cube_root(value: u128) -> u64 {
    let (mut low, mut high) = (0_u64, 1 << 42);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if u128::from(middle).pow(3) <= value { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_core::Span;

    #[test]
    fn cube_roots_are_exact() {
        for root in [0, 1, 2, 1000, 123_456_789, 1 << 41] {
            let cube = u128::from(root).pow(3);
            assert_eq!(cube_root(cube), root);
            if root > 0 {
                assert_eq!((cube_root(cube - 1), cube_root(cube + 1)), (root - 1, root));
            }
        }
    }

    #[test]
    fn it_is_back_at_its_plateau_after_the_time_of_the_rfc() {
        // 1000 segments, reduced to 700: K is the cube root of 300 / 0.4, 9.09 s.
        let mut cubic = Cubic::new(1000, 1_000_000);
        cubic.on_congestion(Time::ZERO, 1_000_000);
        assert_eq!(cubic.window(), 700_000);
        let round_trip = Some(Span::from_ms(10));
        let mut now = Time::ZERO;
        let mut reached = None;
        for _ in 0..2000 {
            now += Span::from_ms(10);
            let bytes = cubic.window();
            cubic.on_ack(&Acked {
                now,
                bytes,
                is_marked: false,
                positions: (0, 0),
                round_trip,
                is_limited: true,
            });
            // Reno would be there after 300 / 0.53 round trips, 5.7 s: the friendly region leads up to then.
            if reached.is_none() && cubic.window() >= 1_000_000 {
                reached = Some(now.since(Time::ZERO));
            }
        }
        let reached = reached.unwrap();
        assert!(reached > Span::from_secs(5) && reached < Span::from_ms(9_200), "{reached}");
        assert!(cubic.window() > 1_200_000, "{}", cubic.window());
        // Over a long path Reno is slow, and the cube leads: 9.09 s.
        let (mut cubic, mut now) = (Cubic::new(1000, 1_000_000), Time::ZERO);
        cubic.on_congestion(Time::ZERO, 1_000_000);
        while cubic.window() < 999_000 {
            now += Span::from_ms(200);
            let (bytes, round_trip) = (cubic.window(), Some(Span::from_ms(200)));
            cubic.on_ack(&Acked {
                now,
                bytes,
                is_marked: false,
                positions: (0, 0),
                round_trip,
                is_limited: true,
            });
        }
        let took = now.since(Time::ZERO);
        assert!(took > Span::from_secs(7) && took < Span::from_secs(10), "{took}");
    }
}
