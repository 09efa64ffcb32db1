//! ECN marking: random early detection on the queue in front of a channel. What it does to a packet is part of its
//! [`hop`](crate::model::hop).

use railnet_core::Random;

use crate::model::config::Marking;

/// What marks in front of a channel: a cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Marker {
    marking: Marking,
    random: Random,
}

impl Marker {
    pub(crate) fn new(marking: Marking, random: Random) -> Self {
        Self { marking, random }
    }

    /// Up to this queue length it never marks.
    pub(crate) fn low(&self) -> u64 {
        self.marking.low.0
    }

    /// Whether it will mark each of the next packets, if the queue keeps its length.
    pub(crate) fn foresee(&self, depth: u64) -> impl Iterator<Item = bool> {
        let mut like = Self { random: self.random.clone(), ..*self };
        std::iter::from_fn(move || Some(like.marks(depth)))
    }

    /// Whether a packet is marked with so many bytes in its queue.
    #[inline]
    pub(crate) fn marks(&mut self, depth: u64) -> bool {
        let marking = &self.marking;
        if depth <= marking.low.0 {
            return false;
        }
        if depth > marking.high.0 {
            return true;
        }
        let part = depth - marking.low.0;
        let whole = (marking.high.0 - marking.low.0).max(1);
        self.random.chance((u64::from(marking.most) * part / whole) as u32)
    }
}
