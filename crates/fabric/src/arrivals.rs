//! Packets that come to a place in one turn: nearly all that ever happens.
//!
//! What a window and a channel say need not be written down with each packet, so an arrival takes two words. They are put in order
//! once, when the turn of their place has come and if order matters there, by a look at when in the turn they come: that leaves
//! little to compare.

use railnet_core::Time;

use crate::packet::PacketIndex;

/// A packet that comes out of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// When, in picoseconds from the beginning of its window, above where its channel stands among all at the same moment.
    pub(crate) key: u64,
    pub(crate) channel: u32,
    pub(crate) packet: PacketIndex,
}

pub(crate) const OFFSET_SHIFT: u32 = 32;
/// Windows are shorter than this, in picoseconds.
pub(crate) const OFFSETS: u64 = 1 << OFFSET_SHIFT;

impl Arrival {
    const NONE: Self = Self { key: 0, channel: 0, packet: 0 };

    #[inline]
    pub(crate) fn new(offset: u64, standing: u32, channel: u32, packet: PacketIndex) -> Self {
        debug_assert!(offset < OFFSETS, "an arrival is in its window");
        Self { key: offset << OFFSET_SHIFT | u64::from(standing), channel, packet }
    }

    /// The same, so much later: after the beginning of a window before its own.
    #[inline]
    fn later(self, span: u64) -> Self {
        Self { key: self.key + (span << OFFSET_SHIFT), ..self }
    }

    /// The same, so much sooner.
    #[inline]
    pub(crate) fn sooner(self, span: u64) -> Self {
        Self { key: self.key - (span << OFFSET_SHIFT), ..self }
    }

    #[inline]
    pub(crate) fn offset(self) -> u64 {
        self.key >> OFFSET_SHIFT
    }
}

/// Parts of a turn that are told apart before anything is compared.
const PARTS: usize = 128;
/// With fewer arrivals than this, or more than that, there is more to do for the parts than is saved.
const FEW: usize = 16;
const MANY: usize = 1_024;

/// The arrivals at the place whose turn it is.
#[derive(Debug)]
pub(crate) struct Arrivals {
    list: Vec<Arrival>,
    /// How many of them are over.
    over: usize,
    /// How many bits of an offset lie below the number of its part.
    part_shift: u32,
    /// Room to put them in order.
    spare: Vec<Arrival>,
}

impl Arrivals {
    /// For turns of so many picoseconds.
    pub(crate) fn new(span: u64) -> Self {
        let bits = u64::BITS - (span - 1).leading_zeros();
        let part_shift = OFFSET_SHIFT + bits.saturating_sub(PARTS.ilog2());
        Self { list: Vec::new(), over: 0, part_shift, spare: Vec::new() }
    }

    /// Adds those of a window that begins `later` than the first, behind those of windows before it.
    #[inline]
    pub(crate) fn add(&mut self, later: u64, list: &[Arrival]) {
        self.list.extend(list.iter().map(|arrival| arrival.later(later)));
    }

    /// Puts them in order. Those of one channel at one moment stay as they are.
    pub(crate) fn sort(&mut self) {
        if self.list.is_sorted_by_key(|arrival| arrival.key) {
            return;
        }
        if self.list.len() > MANY {
            self.list.sort_by_key(|arrival| arrival.key);
            return;
        }
        if self.list.len() >= FEW {
            self.put_in_parts();
        }
        // By now hardly anything is far from its place.
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

    fn put_in_parts(&mut self) {
        let part = |arrival: &Arrival| (arrival.key >> self.part_shift) as usize % PARTS;
        let mut starts = [0_u32; PARTS];
        for arrival in &self.list {
            starts[part(arrival)] += 1;
        }
        let mut start = 0;
        for count in &mut starts {
            start += std::mem::replace(count, start);
        }
        self.spare.resize(self.list.len(), Arrival::NONE);
        for arrival in &self.list {
            let start = &mut starts[part(arrival)];
            self.spare[*start as usize] = *arrival;
            *start += 1;
        }
        std::mem::swap(&mut self.list, &mut self.spare);
    }

    /// Those that are not over, in order where they were put in order.
    #[inline]
    pub(crate) fn left(&self) -> &[Arrival] {
        &self.list[self.over..]
    }

    /// The next one, where the first of their windows began then: when, by which channel, which packet.
    #[inline]
    pub(crate) fn next(&self, began: u64) -> Option<(Time, u32, PacketIndex)> {
        let arrival = self.list.get(self.over)?;
        Some((Time::from_ps(began + arrival.offset()), arrival.channel, arrival.packet))
    }

    /// It is over.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.over += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Arrival> {
        let arrival = *self.list.get(self.over)?;
        self.over += 1;
        Some(arrival)
    }

    /// Nothing comes any more.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
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
