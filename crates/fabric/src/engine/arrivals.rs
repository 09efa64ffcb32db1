//! Packets that arrive at an LP in one stride: nearly all events are arrivals.
//!
//! Epoch and LP are known from the list that an arrival is in, so it takes two words. Arrivals are sorted once, when their
//! LP is activated and if it needs them in order: a bucket pass by time leaves little to compare.

use railnet_core::Time;

use crate::model::packet::PacketIndex;

/// A packet that comes out of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Picoseconds from the beginning of its epoch, above the tie-break rank of its channel.
    pub(crate) key: u64,
    pub(crate) channel: u32,
    pub(crate) packet: PacketIndex,
}

pub(crate) const OFFSET_SHIFT: u32 = 32;
/// Epochs are shorter than this, in picoseconds.
pub(crate) const OFFSETS: u64 = 1 << OFFSET_SHIFT;

impl Arrival {
    const NONE: Self = Self { key: 0, channel: 0, packet: 0 };

    #[inline]
    pub(crate) fn new(offset: u64, tie_break: u32, channel: u32, packet: PacketIndex) -> Self {
        debug_assert!(offset < OFFSETS, "an arrival is in its epoch");
        Self { key: offset << OFFSET_SHIFT | u64::from(tie_break), channel, packet }
    }

    /// The same arrival, counted from the beginning of an epoch that is `span` earlier.
    #[inline]
    fn later(self, span: u64) -> Self {
        Self { key: self.key + (span << OFFSET_SHIFT), ..self }
    }

    /// The same arrival, counted from the beginning of an epoch that is `span` later.
    #[inline]
    pub(crate) fn sooner(self, span: u64) -> Self {
        Self { key: self.key - (span << OFFSET_SHIFT), ..self }
    }

    #[inline]
    pub(crate) fn offset(self) -> u64 {
        self.key >> OFFSET_SHIFT
    }
}

/// Buckets of the first pass.
const BUCKETS: usize = 128;
/// With fewer arrivals than the one, or more than the other, the bucket pass costs more than it saves.
const BUCKETED_MIN: usize = 16;
const BUCKETED_MAX: usize = 1_024;

/// The arrivals of the active LP.
#[derive(Debug)]
pub(crate) struct Arrivals {
    list: Vec<Arrival>,
    /// How many of them were taken out.
    taken: usize,
    /// Bits of an offset below the number of its bucket.
    bucket_shift: u32,
    /// A buffer for the bucket pass.
    spare: Vec<Arrival>,
}

impl Arrivals {
    /// For strides of so many picoseconds.
    pub(crate) fn new(span: u64) -> Self {
        let bits = u64::BITS - (span - 1).leading_zeros();
        let bucket_shift = OFFSET_SHIFT + bits.saturating_sub(BUCKETS.ilog2());
        Self { list: Vec::new(), taken: 0, bucket_shift, spare: Vec::new() }
    }

    /// Adds the arrivals of an epoch that begins `later` after the first, behind those of epochs before it.
    #[inline]
    pub(crate) fn add(&mut self, later: u64, list: &[Arrival]) {
        self.list.extend(list.iter().map(|arrival| arrival.later(later)));
    }

    /// Sorts them by time, then tie-break rank. The sort is stable.
    pub(crate) fn sort(&mut self) {
        if self.list.is_sorted_by_key(|arrival| arrival.key) {
            return;
        }
        if self.list.len() > BUCKETED_MAX {
            self.list.sort_by_key(|arrival| arrival.key);
            return;
        }
        if self.list.len() >= BUCKETED_MIN {
            self.bucket_pass();
        }
        // After the bucket pass hardly any arrival is far from its position.
        let list = &mut self.list[..];
        for index in 1..list.len() {
            let arrival = list[index];
            let mut at = index;
            while at > 0 && list[at - 1].key > arrival.key {
                list[at] = list[at - 1];
                at -= 1;
            }
            list[at] = arrival;
        }
    }

    fn bucket_pass(&mut self) {
        let bucket = |arrival: &Arrival| (arrival.key >> self.bucket_shift) as usize % BUCKETS;
        let mut starts = [0_u32; BUCKETS];
        for arrival in &self.list {
            starts[bucket(arrival)] += 1;
        }
        let mut start = 0;
        for count in &mut starts {
            start += std::mem::replace(count, start);
        }
        self.spare.resize(self.list.len(), Arrival::NONE);
        for arrival in &self.list {
            let start = &mut starts[bucket(arrival)];
            self.spare[*start as usize] = *arrival;
            *start += 1;
        }
        std::mem::swap(&mut self.list, &mut self.spare);
    }

    /// Those that were not taken out.
    #[inline]
    pub(crate) fn left(&self) -> &[Arrival] {
        &self.list[self.taken..]
    }

    /// The next one, where the stride began then: when, by which channel, which packet.
    #[inline]
    pub(crate) fn next(&self, began: u64) -> Option<(Time, u32, PacketIndex)> {
        let arrival = self.list.get(self.taken)?;
        Some((Time::from_ps(began + arrival.offset()), arrival.channel, arrival.packet))
    }

    /// Takes the next one out.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.taken += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Arrival> {
        let arrival = *self.list.get(self.taken)?;
        self.taken += 1;
        Some(arrival)
    }

    /// Forgets all of them.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a stable sort.
        #[test]
        fn arrivals_come_in_order(width in 1_u64..1 << 32, some in prop::collection::vec(any::<(u64, u8)>(), 0..700)) {
            let width = if width.is_multiple_of(2) { width % 1_000_000 + 1 } else { width };
            let arrivals: Vec<_> = some.iter().enumerate().map(|(index, (offset, channel))| {
                let channel = u32::from(*channel % 5);
                Arrival::new(offset % width, 9 - channel, channel, index as u32)
            }).collect();
            let mut sorted = arrivals.clone();
            sorted.sort_by_key(|arrival| arrival.key);
            let mut all = Arrivals::new(width);
            let half = arrivals.len() / 2;
            all.add(0, &arrivals[..half]);
            all.add(0, &arrivals[half..]);
            all.sort();
            for arrival in sorted {
                let at = Time::from_ps(7_000 + arrival.offset());
                prop_assert_eq!(all.next(7_000), Some((at, arrival.channel, arrival.packet)));
                prop_assert_eq!(all.pop(), Some(arrival));
            }
            prop_assert_eq!(all.next(7_000), None);
            prop_assert_eq!(all.pop(), None);
        }
    }
}
