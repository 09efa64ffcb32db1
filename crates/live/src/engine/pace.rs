//! Whether calls come one after the other: then small slices go together.
//!
//! A packet of its own costs a small slice of TCP several times what anything else of it does. Who makes one call after the
//! other (the root of many Broadcasts, say, and those that pass them on) is better off when several go in one. So in a row of
//! such calls the kernel may hold slices back until one before them is acknowledged (Nagle's algorithm), and their receiver has
//! that acknowledged when it waits for more: what is held back is fetched by who wants it, and this rank need not come back. It
//! also goes before this rank waits for anything, lest ranks wait for each other by turns, and when the process ends, in
//! whatever way.

use std::time::{Duration, Instant};

/// So many calls in a row are a stream.
const STREAM: u32 = 16;
/// The longest time between two of them: who does something else meanwhile may not come back soon. Where ranks share cores,
/// another may have had the core.
const GAP: Duration = Duration::from_micros(20);
const GAP_SHARED: Duration = Duration::from_micros(100);

/// How the calls of a communicator come that end with something to send.
#[derive(Debug)]
pub(super) struct Pace {
    gap: Duration,
    /// Calls in a row with nothing between them.
    row: u32,
    /// When the last of them was over.
    last: Option<Instant>,
    /// Whether data goes one way in the latest: in others, those that wait for it are waited for.
    pub(super) is_one_way: bool,
    /// Whether the system may hold something back.
    pub(super) is_holding: bool,
}

impl Pace {
    /// Where ranks of this host share cores, or where each has one.
    pub(super) const fn new(shares_cores: bool) -> Self {
        Self {
            gap: if shares_cores { GAP_SHARED } else { GAP },
            row: 0,
            last: None,
            is_one_way: false,
            is_holding: false,
        }
    }

    /// A call comes; it may be over now, or go on.
    pub(super) fn comes(&mut self, now: Instant) {
        let is_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) <= self.gap);
        self.row = if is_soon { (self.row + 1).min(STREAM + 1) } else { 1 };
        self.last = Some(now);
    }

    /// A call is over that went on.
    pub(super) fn leaves(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Something was held back, and nothing came that could go with it.
    pub(super) fn is_wrong(&mut self) {
        self.row = self.row.saturating_sub(STREAM / 2);
    }

    /// Whether another call will come soon, as far as can be known, so that what this one sends can wait for it.
    #[inline]
    pub(super) const fn is_stream(&self) -> bool {
        self.is_one_way && self.row > STREAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls, each so long after the one before, and whether they are a stream at the end.
    fn calls(pace: &mut Pace, now: &mut Instant, count: u32, gap: Duration) -> bool {
        for _ in 0..count {
            *now += gap;
            pace.comes(*now);
        }
        pace.is_stream()
    }

    fn pace(shares_cores: bool) -> Pace {
        Pace { is_one_way: true, ..Pace::new(shares_cores) }
    }

    const SOON: Duration = Duration::from_micros(2);

    #[test]
    fn a_long_row_is_a_stream() {
        let (mut pace, mut now) = (pace(false), Instant::now());
        assert!(!calls(&mut pace, &mut now, STREAM, SOON));
        assert!(calls(&mut pace, &mut now, 1, SOON));
        assert!(calls(&mut pace, &mut now, 1000, GAP));
    }

    #[test]
    fn what_others_are_waited_for_to_get_does_not_wait() {
        let (mut pace, mut now) = (Pace::new(false), Instant::now());
        assert!(!calls(&mut pace, &mut now, 1000, SOON));
    }

    #[test]
    fn who_does_something_between_calls_makes_no_stream() {
        let (mut pace, mut now) = (pace(false), Instant::now());
        for _ in 0..100 {
            assert!(!calls(&mut pace, &mut now, STREAM - 1, SOON));
            now += Duration::from_millis(1);
        }
    }

    #[test]
    fn where_ranks_share_cores_calls_may_come_later() {
        let (mut pace, mut now) = (pace(true), Instant::now());
        assert!(calls(&mut pace, &mut now, STREAM + 1, 2 * GAP));
        assert!(!calls(&mut pace, &mut now, STREAM + 1, 2 * GAP_SHARED));
    }

    #[test]
    fn how_long_a_call_takes_does_not_matter() {
        let (mut pace, mut now) = (pace(false), Instant::now());
        for _ in 0..=STREAM {
            pace.comes(now);
            now += Duration::from_millis(10);
            pace.leaves(now);
        }
        assert!(pace.is_stream());
        now += 2 * GAP;
        pace.comes(now);
        assert!(!pace.is_stream());
    }

    #[test]
    fn what_was_held_back_for_nothing_makes_the_row_shorter() {
        let (mut pace, mut now) = (pace(false), Instant::now());
        calls(&mut pace, &mut now, STREAM + 1, SOON);
        pace.is_wrong();
        assert!(!calls(&mut pace, &mut now, STREAM / 2 - 1, SOON));
        assert!(calls(&mut pace, &mut now, 1, SOON));
    }
}
