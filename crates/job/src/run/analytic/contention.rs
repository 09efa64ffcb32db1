//! Communication that overlaps in time: calls in which the same ranks take part share the interconnect.

use railnet_core::{Span, Time};

/// A call under way, as far as others are concerned.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Pace {
    /// When it ends, if nothing changes.
    pub(super) end: Time,
    /// The part of the interconnect that it needs to run at full speed.
    need: f64,
    /// How fast it runs, of full speed.
    speed: f64,
}

impl Pace {
    /// A call that would take so long alone, with the interconnect busy for a part of that.
    pub(super) fn new(now: Time, alone: Span, network_permille: u32) -> Self {
        Self { end: now + alone, need: f64::from(network_permille) / 1_000.0, speed: 1.0 }
    }

    /// The part of the interconnect that it needs.
    pub(super) const fn need(&self) -> f64 {
        self.need
    }

    /// The needs of all that share its ranks have changed. Whether its end has.
    pub(super) fn share(&mut self, now: Time, needs: f64) -> bool {
        let speed = if needs > 1.0 { 1.0 / needs } else { 1.0 };
        if (speed - self.speed).abs() < 1e-12 || self.need == 0.0 {
            return false;
        }
        let left = (self.end - now).as_ps() as f64 * self.speed / speed;
        self.end = now + Span::from_ps(left.round() as u64);
        self.speed = speed;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_need_all_of_it_take_turns() {
        let mut first = Pace::new(Time::ZERO, Span::from_us(10), 1_000);
        // Another one joins after 4 µs, for 6 µs of time: three of the six that are left are done.
        let at = |us: u64| Time::ZERO + Span::from_us(us);
        assert!(first.share(at(4), 2.0));
        assert_eq!(first.end, at(16));
        assert!(first.share(at(10), 1.0));
        assert_eq!(first.end, at(13));
    }

    #[test]
    fn those_that_leave_room_for_each_other_are_not_slowed_down() {
        let mut one = Pace::new(Time::ZERO, Span::from_us(10), 400);
        assert!(!one.share(Time::ZERO, 0.9));
        let mut local = Pace::new(Time::ZERO, Span::from_us(10), 0);
        assert!(!local.share(Time::ZERO, 3.0));
    }
}
