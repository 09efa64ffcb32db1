//! Core-to-core latency: whether the core of a peer shares a last-level cache with this one.
//!
//! Cores that share a cache transfer a line in some 40 ns, others in 150 and more. Between the first, slots are written with
//! ordinary stores, so that data stays in the cache; between others with non-temporal stores, or zero-copy. The hypervisor of a
//! virtual machine migrates its CPUs, so that this changes within seconds: a sender measures it again and again, on lines that
//! the receiver had last and that it is about to write anyway.

use std::time::{Duration, Instant};

/// Bytes that are sent from one measurement to the next, and after an outlier.
const INTERVAL: usize = 1 << 20;
const RETRY_INTERVAL: usize = 64 << 10;
/// A line that arrives sooner comes from a shared cache. Includes the clock's own cost.
const SHARED_CACHE_MAX: Duration = Duration::from_nanos(100);
/// A line that takes longer is an outlier: a page fault, or another thread had the core meanwhile.
const OUTLIER_MIN: Duration = Duration::from_nanos(500);

/// Lines of a slice that are measured: not adjacent, because the adjacent-line prefetcher fetches pairs.
pub(super) const LINES: [usize; 4] = [0, 7, 15, 22];
/// Bytes of the shortest slice that has these lines.
pub(super) const SLICE_MIN: usize = 2 << 10;

/// Whether a peer is distant, by the latest measurements.
#[derive(Debug)]
pub(super) struct CoreLatency {
    is_distant: bool,
    /// Bytes until the next measurement.
    bytes_left: usize,
    /// Whether the last measurement disagreed with those before: a second one decides.
    is_changing: bool,
}

impl CoreLatency {
    /// A peer is taken for distant until it is measured.
    pub(super) const fn new() -> Self {
        Self { is_distant: true, bytes_left: 0, is_changing: false }
    }

    /// Never measures: a model checker has no clock.
    #[cfg(test)]
    pub(super) const fn unmeasured() -> Self {
        Self { is_distant: true, bytes_left: usize::MAX, is_changing: false }
    }

    #[inline]
    pub(super) const fn is_distant(&self) -> bool {
        self.is_distant
    }

    /// A slice of so many bytes is about to be sent. `fetch` takes ownership of one of the lines that it will be written to.
    #[inline]
    pub(super) fn on_send(&mut self, length: usize, fetch: impl Fn(usize)) {
        if length < SLICE_MIN {
            return;
        }
        match self.bytes_left.checked_sub(length) {
            Some(rest) => self.bytes_left = rest,
            None => self.measure(fetch),
        }
    }

    #[cold]
    fn measure(&mut self, fetch: impl Fn(usize)) {
        let mut times = LINES.map(|line| {
            let start = Instant::now();
            fetch(line);
            start.elapsed()
        });
        times.sort_unstable();
        self.update(times);
    }

    /// Takes the latencies of four lines in ascending order.
    fn update(&mut self, [_, second, _, longest]: [Duration; 4]) {
        if longest > OUTLIER_MIN {
            self.bytes_left = RETRY_INTERVAL;
            return;
        }
        let is_distant = second > SHARED_CACHE_MAX;
        let is_new = is_distant != self.is_distant;
        if is_new && self.is_changing {
            self.is_distant = is_distant;
        }
        self.is_changing = is_new && !self.is_changing;
        self.bytes_left = if self.is_changing { 0 } else { INTERVAL };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_that_agree_change_the_state_and_one_does_not() {
        let times = |ns: u64| [ns - 5, ns, ns + 5, ns + 60].map(Duration::from_nanos);
        let (close, distant) = (times(40), times(150));
        let outlier = [40, 45, 50, 3000].map(Duration::from_nanos);
        let mut latency = CoreLatency::new();
        let mut update_all = |times: &[[Duration; 4]]| {
            for one in times {
                latency.update(*one);
            }
            (latency.is_distant(), latency.bytes_left)
        };
        assert_eq!(update_all(&[]), (true, 0));
        assert_eq!(update_all(&[close]), (true, 0));
        assert_eq!(update_all(&[outlier]), (true, RETRY_INTERVAL));
        assert_eq!(update_all(&[close]), (false, INTERVAL));
        assert_eq!(update_all(&[distant]), (false, 0));
        assert_eq!(update_all(&[close]), (false, INTERVAL));
        assert_eq!(update_all(&[distant, distant]), (true, INTERVAL));
    }

    #[test]
    fn it_is_measured_once_for_so_many_bytes() {
        let mut latency = CoreLatency::new();
        let count = std::cell::Cell::new(0);
        let fetch = |_: usize| count.set(count.get() + 1);
        latency.on_send(SLICE_MIN - 1, fetch);
        assert_eq!(count.get(), 0);
        latency.on_send(SLICE_MIN, fetch);
        assert_eq!(count.get(), LINES.len());
        latency.bytes_left = INTERVAL;
        for _ in 0..INTERVAL / SLICE_MIN {
            latency.on_send(SLICE_MIN, fetch);
        }
        assert_eq!(count.get(), LINES.len());
        latency.on_send(SLICE_MIN, fetch);
        assert_eq!(count.get(), 2 * LINES.len());
    }
}
