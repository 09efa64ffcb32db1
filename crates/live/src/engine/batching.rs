//! Nagle batching: whether the kernel may hold small slices, so that several go in one packet.
//!
//! A packet costs a small slice over TCP several times as much as everything else. In a burst of one-way calls (the root of
//! many Broadcasts, say, and the ranks that pass them on) the kernel may hold slices until one before them is acknowledged
//! (Nagle's algorithm). The receiver acknowledges when it waits for more, so that held slices are released by the rank that
//! wants them, and this rank need not return to them. They are also flushed before this rank waits for anything, lest ranks
//! wait for each other, and when the process ends, in whatever way.

use std::time::{Duration, Instant};

/// Calls in a row that make a burst.
const BURST: u32 = 16;
/// The longest gap between two of them: a program that computes in between may not come back soon. Where ranks share cores,
/// another may have had the core.
const GAP_MAX: Duration = Duration::from_micros(20);
const GAP_MAX_SHARED: Duration = Duration::from_micros(100);

/// The recent calls of a communicator that end with something to send.
#[derive(Debug)]
pub(super) struct Batching {
    gap: Duration,
    /// Calls in a row without a longer gap.
    burst: u32,
    /// When the last of them was over.
    last: Option<Instant>,
    /// Whether data goes one way in the latest call: in others a reply depends on it.
    pub(super) is_one_way: bool,
    /// Whether the kernel may hold slices.
    pub(super) is_holding: bool,
}

impl Batching {
    /// For ranks that share cores, or have one each.
    pub(super) const fn new(shares_cores: bool) -> Self {
        Self {
            gap: if shares_cores { GAP_MAX_SHARED } else { GAP_MAX },
            burst: 0,
            last: None,
            is_one_way: false,
            is_holding: false,
        }
    }

    /// A call begins. It may be over now, or wait.
    pub(super) fn call_begins(&mut self, now: Instant) {
        let is_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) <= self.gap);
        self.burst = if is_soon { (self.burst + 1).min(BURST + 1) } else { 1 };
        self.last = Some(now);
    }

    /// A call that waited is over.
    pub(super) fn call_ends(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Slices were held, and none followed that could go with them.
    pub(super) fn held_in_vain(&mut self) {
        self.burst = self.burst.saturating_sub(BURST / 2);
    }

    /// Whether another call is expected soon, so that what this one sends can wait for it.
    #[inline]
    pub(super) const fn is_burst(&self) -> bool {
        self.is_one_way && self.burst > BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes calls at such intervals; whether they are a burst at the end.
    fn calls(batching: &mut Batching, now: &mut Instant, count: u32, gap: Duration) -> bool {
        for _ in 0..count {
            *now += gap;
            batching.call_begins(*now);
        }
        batching.is_burst()
    }

    fn batching(shares_cores: bool) -> Batching {
        Batching { is_one_way: true, ..Batching::new(shares_cores) }
    }

    const SOON: Duration = Duration::from_micros(2);

    #[test]
    fn many_calls_in_a_row_are_a_burst() {
        let (mut batching, mut now) = (batching(false), Instant::now());
        assert!(!calls(&mut batching, &mut now, BURST, SOON));
        assert!(calls(&mut batching, &mut now, 1, SOON));
        assert!(calls(&mut batching, &mut now, 1000, GAP_MAX));
    }

    #[test]
    fn slices_that_a_reply_depends_on_are_not_held() {
        let (mut batching, mut now) = (Batching::new(false), Instant::now());
        assert!(!calls(&mut batching, &mut now, 1000, SOON));
    }

    #[test]
    fn a_pause_between_calls_ends_the_burst() {
        let (mut batching, mut now) = (batching(false), Instant::now());
        for _ in 0..100 {
            assert!(!calls(&mut batching, &mut now, BURST - 1, SOON));
            now += Duration::from_millis(1);
        }
    }

    #[test]
    fn where_ranks_share_cores_gaps_may_be_longer() {
        let (mut batching, mut now) = (batching(true), Instant::now());
        assert!(calls(&mut batching, &mut now, BURST + 1, 2 * GAP_MAX));
        assert!(!calls(&mut batching, &mut now, BURST + 1, 2 * GAP_MAX_SHARED));
    }

    #[test]
    fn the_duration_of_a_call_does_not_matter() {
        let (mut batching, mut now) = (batching(false), Instant::now());
        for _ in 0..=BURST {
            batching.call_begins(now);
            now += Duration::from_millis(10);
            batching.call_ends(now);
        }
        assert!(batching.is_burst());
        now += 2 * GAP_MAX;
        batching.call_begins(now);
        assert!(!batching.is_burst());
    }

    #[test]
    fn holding_in_vain_shortens_the_burst() {
        let (mut batching, mut now) = (batching(false), Instant::now());
        calls(&mut batching, &mut now, BURST + 1, SOON);
        batching.held_in_vain();
        assert!(!calls(&mut batching, &mut now, BURST / 2 - 1, SOON));
        assert!(calls(&mut batching, &mut now, 1, SOON));
    }
}
