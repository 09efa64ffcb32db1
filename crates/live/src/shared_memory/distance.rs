//! How far away the core of a peer is.
//!
//! Cores that share a cache hand each other a line in some 40 ns, others in 150 and more. Between the first, what is
//! written for the other should stay in the caches; between others it should go past them, or not be copied at all. In a
//! virtual machine the host moves cores about, so that this changes within seconds: a sender measures it again and again, on
//! lines that the receiver had last and that it is about to write anyway.

use std::time::{Duration, Instant};

/// Bytes that are sent from one measurement to the next, and after one that something came between.
const PAUSE: usize = 1 << 20;
const PAUSE_SHORT: usize = 64 << 10;
/// A line that comes sooner is from near: half a line's way to a far core, and what the clock takes.
const NEAR: Duration = Duration::from_nanos(100);
/// A line that takes longer says nothing: its page was not there yet, or somebody else had the core meanwhile.
const BROKEN: Duration = Duration::from_nanos(500);

/// Lines of a slice that are measured. They do not follow each other, or one would be fetched with the other.
pub(super) const LINES: [usize; 4] = [0, 7, 15, 22];
/// Bytes of the shortest slice that has these lines.
pub(super) const LEAST: usize = 2 << 10;

/// What is known of a peer's distance.
#[derive(Debug)]
pub(super) struct Distance {
    is_far: bool,
    /// Bytes until it is measured.
    pause: usize,
    /// Whether the last measurement said otherwise than those before: a second one decides.
    is_in_doubt: bool,
}

impl Distance {
    /// Of a peer that was not measured yet.
    pub(super) const fn new() -> Self {
        Self { is_far: true, pause: 0, is_in_doubt: false }
    }

    /// Of a peer that is never measured: what a clock says is no part of a model.
    #[cfg(test)]
    pub(super) const fn unmeasured() -> Self {
        Self { is_far: true, pause: usize::MAX, is_in_doubt: false }
    }

    #[inline]
    pub(super) const fn is_far(&self) -> bool {
        self.is_far
    }

    /// A slice of so many bytes is about to be sent. `fetch` gets one of the lines that it will be written to.
    #[inline]
    pub(super) fn passes(&mut self, length: usize, fetch: impl Fn(usize)) {
        if length < LEAST {
            return;
        }
        match self.pause.checked_sub(length) {
            Some(rest) => self.pause = rest,
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
        self.learn(times);
    }

    /// Takes the times of four lines, the shortest first.
    fn learn(&mut self, [_, second, _, longest]: [Duration; 4]) {
        if longest > BROKEN {
            self.pause = PAUSE_SHORT;
            return;
        }
        let is_far = second > NEAR;
        let is_new = is_far != self.is_far;
        if is_new && self.is_in_doubt {
            self.is_far = is_far;
        }
        self.is_in_doubt = is_new && !self.is_in_doubt;
        self.pause = if self.is_in_doubt { 0 } else { PAUSE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_that_agree_change_what_is_known_and_one_does_not() {
        let times = |ns: u64| [ns - 5, ns, ns + 5, ns + 60].map(Duration::from_nanos);
        let (near, far) = (times(40), times(150));
        let broken = [40, 45, 50, 3000].map(Duration::from_nanos);
        let mut distance = Distance::new();
        let mut hear = |times: &[[Duration; 4]]| {
            for one in times {
                distance.learn(*one);
            }
            (distance.is_far(), distance.pause)
        };
        assert_eq!(hear(&[]), (true, 0));
        assert_eq!(hear(&[near]), (true, 0));
        assert_eq!(hear(&[broken]), (true, PAUSE_SHORT));
        assert_eq!(hear(&[near]), (false, PAUSE));
        assert_eq!(hear(&[far]), (false, 0));
        assert_eq!(hear(&[near]), (false, PAUSE));
        assert_eq!(hear(&[far, far]), (true, PAUSE));
    }

    #[test]
    fn it_is_measured_once_for_so_many_bytes() {
        let mut distance = Distance::new();
        let count = std::cell::Cell::new(0);
        let fetch = |_: usize| count.set(count.get() + 1);
        distance.passes(LEAST - 1, fetch);
        assert_eq!(count.get(), 0);
        distance.passes(LEAST, fetch);
        assert_eq!(count.get(), LINES.len());
        distance.pause = PAUSE;
        for _ in 0..PAUSE / LEAST {
            distance.passes(LEAST, fetch);
        }
        assert_eq!(count.get(), LINES.len());
        distance.passes(LEAST, fetch);
        assert_eq!(count.get(), 2 * LINES.len());
    }
}
