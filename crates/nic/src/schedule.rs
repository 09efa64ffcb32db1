//! Whose turn it is on a port.
//!
//! Queue pairs with something to send stand in rings, one pair of rings per priority: answers go before data, and data
//! goes round by bursts, so that a call costs the same with one queue pair or with thousands.

use std::collections::VecDeque;

use railnet_core::prefetch::prefetch;

/// The priorities that a port may send now, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priorities(pub u8);

impl Priorities {
    /// All eight.
    pub const ALL: Self = Self(0xff);
}

/// Queue pairs of a data ring that are prefetched at most.
const PREFETCHED: usize = 4;

/// The rings of one port.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    control: [VecDeque<u32>; 8],
    data: [VecDeque<u32>; 8],
    /// Priorities whose rings are not empty.
    control_mask: u8,
    data_mask: u8,
    /// Packets that the queue pair at the head of the data ring has sent in this turn.
    pub(crate) burst: u16,
}

impl Schedule {
    #[inline]
    pub(crate) fn push_control(&mut self, priority: u8, slot: u32) {
        self.control[usize::from(priority & 7)].push_back(slot);
        self.control_mask |= 1 << (priority & 7);
    }

    #[inline]
    pub(crate) fn push_data(&mut self, priority: u8, slot: u32) {
        self.data[usize::from(priority & 7)].push_back(slot);
        self.data_mask |= 1 << (priority & 7);
    }

    /// The next queue pair with an answer, taken off its ring.
    #[inline]
    pub(crate) fn pop_control(&mut self, allowed: Priorities) -> Option<(u8, u32)> {
        let priority = highest(self.control_mask & allowed.0)?;
        let ring = &mut self.control[usize::from(priority)];
        let slot = ring.pop_front().expect("the mask says that the ring holds something");
        if ring.is_empty() {
            self.control_mask &= !(1 << priority);
        }
        Some((priority, slot))
    }

    /// The queue pair at the head of the data rings.
    #[inline]
    pub(crate) fn front_data(&self, allowed: Priorities) -> Option<(u8, u32)> {
        let priority = highest(self.data_mask & allowed.0)?;
        let slot = self.data[usize::from(priority)].front();
        Some((priority, *slot.expect("the mask says that the ring holds something")))
    }

    /// The first queue pairs of the data ring that is served first.
    #[inline]
    pub(crate) fn next_data(&self) -> impl Iterator<Item = u32> {
        let ring = highest(self.data_mask).map(|priority| &self.data[usize::from(priority)]);
        ring.into_iter().flat_map(|ring| ring.iter().take(PREFETCHED).copied())
    }

    /// Prefetches which rings hold something.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.control_mask);
        prefetch(&self.control[0]);
    }

    /// Whether nobody stands in a ring.
    pub(crate) fn is_empty(&self) -> bool {
        self.control_mask == 0 && self.data_mask == 0
    }

    /// Takes the head of a data ring off.
    pub(crate) fn pop_data(&mut self, priority: u8) {
        let ring = &mut self.data[usize::from(priority)];
        ring.pop_front();
        self.burst = 0;
        if ring.is_empty() {
            self.data_mask &= !(1 << priority);
        }
    }

    /// The head has sent a packet: after `limit` of them it goes to the back.
    #[inline]
    pub(crate) fn count_data(&mut self, priority: u8, limit: u16) {
        self.burst += 1;
        if self.burst >= limit {
            self.burst = 0;
            let ring = &mut self.data[usize::from(priority)];
            if ring.len() > 1 {
                ring.rotate_left(1);
            }
        }
    }
}

#[inline]
fn highest(mask: u8) -> Option<u8> {
    (mask != 0).then(|| 7 - mask.leading_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_round_by_bursts() {
        let mut schedule = Schedule::default();
        for slot in 0..3 {
            schedule.push_data(0, slot);
        }
        let order: Vec<_> = (0..8)
            .map(|_| {
                let (priority, slot) = schedule.front_data(Priorities::ALL).unwrap();
                schedule.count_data(priority, 2);
                slot
            })
            .collect();
        assert_eq!(order, [0, 0, 1, 1, 2, 2, 0, 0]);
    }

    #[test]
    fn a_paused_priority_waits_and_higher_ones_go_first() {
        let mut schedule = Schedule::default();
        schedule.push_data(3, 30);
        schedule.push_data(5, 50);
        assert_eq!(schedule.front_data(Priorities::ALL), Some((5, 50)));
        assert_eq!(schedule.front_data(Priorities(!(1 << 5))), Some((3, 30)));
        schedule.pop_data(3);
        assert_eq!(schedule.front_data(Priorities(!(1 << 5))), None);
    }
}
