//! Weighted priorities: deficit round robin over bytes (Shreedhar and Varghese, SIGCOMM 1995).
//!
//! In this form a packet is charged after it was chosen, and the deficit may go below zero: so its length need not be known
//! before, which a NIC that has not built it yet cannot tell.

use crate::model::config::Weights;

/// Bytes that the smallest weight earns in a round: a full packet, so that no priority waits for several rounds.
const QUANTUM: u64 = 4_096 + 128;

/// The deficit counters of one channel.
#[derive(Clone, Debug)]
pub(crate) struct DeficitRoundRobin {
    /// Priorities that go before all others.
    strict: u8,
    /// What a round earns each priority.
    quantum: [i64; 8],
    /// What each may still transmit in this round; below zero where it has transmitted more.
    account: [i64; 8],
    at: usize,
}

impl DeficitRoundRobin {
    pub(crate) fn new(weights: &Weights) -> Self {
        let least = weights.weights.iter().copied().min().unwrap_or(1).max(1);
        // Rounded up, so that it is never less than a packet.
        let quantum = weights
            .weights
            .map(|weight| (QUANTUM * u64::from(weight.max(1))).div_ceil(u64::from(least)) as i64);
        Self { strict: weights.strict, quantum, account: [0; 8], at: 7 }
    }

    /// Which of the `ready` priorities transmits next.
    pub(crate) fn next(&mut self, ready: u8) -> Option<usize> {
        let strict = ready & self.strict;
        if strict != 0 {
            return Some(7 - strict.leading_zeros() as usize);
        }
        if ready == 0 {
            return None;
        }
        let is_ready = |priority: usize| ready & 1 << priority != 0;
        // A debt is at most a packet, and a round earns one at least: two rounds always suffice.
        for _ in 0..=16 {
            if is_ready(self.at) && self.account[self.at] > 0 {
                return Some(self.at);
            }
            if !is_ready(self.at) {
                // An idle priority saves nothing up.
                self.account[self.at] = self.account[self.at].min(0);
            }
            self.at = self.at.checked_sub(1).unwrap_or(7);
            if is_ready(self.at) {
                self.account[self.at] += self.quantum[self.at];
            }
        }
        Some(7 - ready.leading_zeros() as usize)
    }

    /// Charges a packet of a priority.
    pub(crate) fn charge(&mut self, priority: usize, bytes: u32) {
        if self.strict & 1 << priority == 0 {
            self.account[priority] -= i64::from(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that each priority transmits in so many packets, where all of `ready` always have some of these lengths.
    fn shares(weights: [u32; 8], strict: u8, ready: u8, lengths: [u32; 8]) -> [u64; 8] {
        let mut drr = DeficitRoundRobin::new(&Weights { weights, strict });
        let mut sent = [0; 8];
        for _ in 0..100_000 {
            let priority = drr.next(ready).unwrap();
            drr.charge(priority, lengths[priority]);
            sent[priority] += u64::from(lengths[priority]);
        }
        sent
    }

    fn close(found: u64, whole: u64, share: f64) {
        let found = found as f64 / whole as f64;
        assert!((found - share).abs() < 0.001, "{found}, not {share}");
    }

    #[test]
    fn bytes_are_shared_by_weight_whatever_the_lengths_of_packets() {
        let sent = shares([1, 1, 2, 4, 1, 1, 1, 1], 0, 0b1110, [64, 4178, 1100, 4178, 0, 0, 0, 0]);
        let whole = sent.iter().sum();
        for (priority, share) in [(1, 1.0 / 7.0), (2, 2.0 / 7.0), (3, 4.0 / 7.0)] {
            close(sent[priority], whole, share);
        }
        assert_eq!(sent[0], 0);
    }

    #[test]
    fn a_strict_priority_goes_before_all_weights() {
        let sent = shares([1; 8], 0b100_0000, 0b100_0001, [1000; 8]);
        assert_eq!(sent[0], 0);
        assert_eq!(sent[6], 100_000_000);
    }

    #[test]
    fn who_was_silent_has_saved_nothing_up() {
        let mut drr = DeficitRoundRobin::new(&Weights { weights: [1; 8], strict: 0 });
        for _ in 0..1_000 {
            let priority = drr.next(0b1).unwrap();
            drr.charge(priority, 4178);
        }
        let mut sent = [0u32; 2];
        for _ in 0..100 {
            let priority = drr.next(0b11).unwrap();
            drr.charge(priority, 4178);
            sent[priority] += 1;
        }
        assert!(sent[0].abs_diff(sent[1]) <= 2, "{sent:?}");
        assert_eq!(drr.next(0), None);
    }
}
