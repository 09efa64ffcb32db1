//! Packets that come to a place in one window: nearly all that ever happens.
//!
//! What a window and a channel say need not be written down with each packet, so an arrival takes two words. They are put in order
//! once, when the turn of their place has come, by a look at when in the window they come: that leaves little to compare.

use railnet_core::Time;

use crate::packet::PacketIndex;

/// A packet that comes out of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// When, in picoseconds from the beginning of its window, above where its channel stands among all at the same moment.
    key: u64,
    pub(crate) channel: u32,
    pub(crate) packet: PacketIndex,
}

const OFFSET_SHIFT: u32 = 32;
/// Windows are shorter than this, in picoseconds.
pub(crate) const OFFSETS: u64 = 1 << OFFSET_SHIFT;

impl Arrival {
    const NONE: Self = Self { key: 0, channel: 0, packet: 0 };

    #[inline]
    pub(crate) fn new(offset: u64, standing: u32, channel: u32, packet: PacketIndex) -> Self {
        debug_assert!(offset < OFFSETS, "an arrival is in its window");
        Self { key: offset << OFFSET_SHIFT | u64::from(standing), channel, packet }
    }

    #[inline]
    pub(crate) fn offset(self) -> u64 {
        self.key >> OFFSET_SHIFT
    }
}

/// Parts of a window that are told apart before anything is compared.
const PARTS: usize = 64;
/// With fewer arrivals than this, or more than that, there is more to do for the parts than is saved.
const FEW: usize = 12;
const MANY: usize = 512;

/// The arrivals at the place whose turn it is, in order.
#[derive(Debug)]
pub(crate) struct Arrivals {
    sorted: Vec<Arrival>,
    /// How many of them are over.
    over: usize,
    /// When their window began, in picoseconds.
    began: u64,
    /// How many bits of an offset lie below the number of its part.
    part_shift: u32,
}

impl Arrivals {
    /// For windows of so many picoseconds.
    pub(crate) fn new(width: u64) -> Self {
        let bits = u64::BITS - (width - 1).leading_zeros();
        let part_shift = OFFSET_SHIFT + bits.saturating_sub(PARTS.ilog2());
        Self { sorted: Vec::new(), over: 0, began: 0, part_shift }
    }

    /// Takes these of the window that began then, in place of others. Those of one channel at one moment stay in their order.
    pub(crate) fn fill(&mut self, began: u64, list: &[Arrival]) {
        (self.over, self.began) = (0, began);
        self.sorted.clear();
        if list.len() > MANY {
            self.sorted.extend_from_slice(list);
            self.sorted.sort_by_key(|arrival| arrival.key);
            return;
        }
        if list.len() < FEW {
            self.sorted.extend_from_slice(list);
        } else {
            self.put_in_parts(list);
        }
        // By now hardly anything is far from its place.
        for index in 1..self.sorted.len() {
            let arrival = self.sorted[index];
            let mut at = index;
            while at > 0 && self.sorted[at - 1].key > arrival.key {
                self.sorted[at] = self.sorted[at - 1];
                at -= 1;
            }
            self.sorted[at] = arrival;
        }
    }

    fn put_in_parts(&mut self, list: &[Arrival]) {
        let part = |arrival: &Arrival| (arrival.key >> self.part_shift) as usize % PARTS;
        let mut starts = [0_u32; PARTS];
        for arrival in list {
            starts[part(arrival)] += 1;
        }
        let mut start = 0;
        for count in &mut starts {
            start += std::mem::replace(count, start);
        }
        self.sorted.resize(list.len(), Arrival::NONE);
        for arrival in list {
            let start = &mut starts[part(arrival)];
            self.sorted[*start as usize] = *arrival;
            *start += 1;
        }
    }

    /// Those that are not over.
    #[inline]
    pub(crate) fn left(&self) -> &[Arrival] {
        &self.sorted[self.over..]
    }

    /// The next one: when, by which channel, which packet.
    #[inline]
    pub(crate) fn next(&self) -> Option<(Time, u32, PacketIndex)> {
        let arrival = self.sorted.get(self.over)?;
        Some((Time::from_ps(self.began + arrival.offset()), arrival.channel, arrival.packet))
    }

    /// It is over.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.over += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Arrival> {
        let arrival = *self.sorted.get(self.over)?;
        self.over += 1;
        Some(arrival)
    }

    /// Nothing comes any more.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.sorted.clear();
        self.over = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sort that keeps what is equal in its order.
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
            all.fill(7_000, &arrivals);
            for arrival in sorted {
                let at = Time::from_ps(7_000 + arrival.offset());
                prop_assert_eq!(all.next(), Some((at, arrival.channel, arrival.packet)));
                prop_assert_eq!(all.pop(), Some(arrival));
            }
            prop_assert_eq!(all.next(), None);
            prop_assert_eq!(all.pop(), None);
        }
    }
}
