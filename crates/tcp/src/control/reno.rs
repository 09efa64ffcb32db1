//! Reno: a segment more each round trip, and half after a loss. RFC 5681.

use railnet_core::Time;

use super::{Acked, CongestionControl, Window};

/// Reno.
#[derive(Clone, Debug)]
pub struct Reno {
    window: Window,
    /// Bytes acknowledged since the window grew last.
    counted: u64,
}

impl Reno {
    /// With a first window.
    pub fn new(segment_size: u64, first: u64) -> Self {
        Self { window: Window::new(segment_size, first), counted: 0 }
    }
}

impl CongestionControl for Reno {
    fn window(&self) -> u64 {
        self.window.bytes
    }

    fn on_ack(&mut self, acked: &Acked) {
        self.counted += self.window.slow_start(acked);
        while self.counted >= self.window.bytes {
            self.counted -= self.window.bytes;
            self.window.bytes += self.window.segment_size;
        }
    }

    fn on_congestion(&mut self, _now: Time, in_flight: u64) {
        self.counted = 0;
        self.window.reduce(in_flight / 2);
    }

    fn on_timeout(&mut self, _now: Time, in_flight: u64) {
        self.counted = 0;
        self.window.collapse(in_flight / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(bytes: u64) -> Acked {
        Acked {
            now: Time::ZERO,
            bytes,
            is_marked: false,
            positions: (0, 0),
            round_trip: None,
            is_limited: true,
        }
    }

    #[test]
    fn it_doubles_then_adds_a_segment_a_round_trip_and_halves() {
        let mut reno = Reno::new(1000, 10_000);
        (0..10).for_each(|_| reno.on_ack(&acked(1000)));
        assert_eq!(reno.window(), 20_000);
        reno.on_congestion(Time::ZERO, 20_000);
        assert_eq!(reno.window(), 10_000);
        (0..10).for_each(|_| reno.on_ack(&acked(1000)));
        assert_eq!(reno.window(), 11_000);
        reno.on_timeout(Time::ZERO, 11_000);
        assert_eq!(reno.window(), 1000);
        (0..5).for_each(|_| reno.on_ack(&acked(1000)));
        assert_eq!(reno.window(), 5_500, "slow start up to half of what was");
    }
}
