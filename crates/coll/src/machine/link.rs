//! One end of a connection: how far its slots are filled, taken and freed. Counters run on across operations.

use super::signature::Mark;
use super::work::{Direction, Layout};
use crate::schedule::Connection;

/// No worker.
pub(super) const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) to: Connection,
    pub(super) direction: Direction,
    /// The worker that sleeps until something happens here.
    pub(super) waiter: u32,
    /// How the slots are used now.
    layout: Option<Layout>,
    /// The slot to fill or take next, counted from the first one ever.
    position: u64,
    /// Which of the slots that is: kept, because a division takes a while.
    slot: u32,
    /// Sending: slices that are filled and were not freed. Receiving: slices that have arrived and were not taken.
    slices: u32,
    /// Sending: slices of another layout are still in the slots, so that none can be filled.
    is_draining: bool,
    /// Receiving: where the slices of operations that were submitted end, and how the last of them lie.
    expected: u64,
    expected_layout: Option<Layout>,
    /// The last thing that the peer said about its operations, and that was found to be right.
    pub(super) heard: Option<Mark>,
}

impl Link {
    pub(super) fn new(to: Connection, direction: Direction) -> Self {
        Self {
            to,
            direction,
            waiter: NOBODY,
            layout: None,
            position: 0,
            slot: 0,
            slices: 0,
            is_draining: false,
            expected: 0,
            expected_layout: None,
            heard: None,
        }
    }

    /// Where an operation begins. Another layout begins with the first slot.
    fn start(position: u64, before: Option<Layout>, layout: &Layout) -> u64 {
        let goes_on = before.is_some_and(|before| before == *layout);
        if goes_on { position } else { position.next_multiple_of(u64::from(layout.fifo.depth)) }
    }

    /// An operation was submitted that will receive so many slices. Gives the slot of the first.
    pub(super) fn expect(&mut self, layout: Layout, slices: u64) -> u32 {
        let start = Self::start(self.expected, self.expected_layout, &layout);
        self.expected_layout = Some(layout);
        self.expected = start + slices * u64::from(layout.fifo.slots_per_slice);
        (start % u64::from(layout.fifo.depth)) as u32
    }

    /// An operation that uses the connection begins.
    #[inline]
    pub(super) fn begin(&mut self, layout: &Layout) {
        if self.layout.as_ref() == Some(layout) {
            return;
        }
        self.position = Self::start(self.position, self.layout, layout);
        if self.direction == Direction::Send {
            self.is_draining = self.slices > 0;
        }
        self.slot = (self.position % u64::from(layout.fifo.depth)) as u32;
        self.layout = Some(*layout);
    }

    /// Whether its slots are used this way now.
    #[inline]
    pub(super) fn has(&self, layout: &Layout) -> bool {
        self.layout.as_ref() == Some(layout)
    }

    #[inline]
    fn layout(&self) -> &Layout {
        self.layout.as_ref().expect("an operation that uses the connection has begun")
    }

    /// Whether a worker can use the connection for its next slice.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        match self.direction {
            Direction::Receive => self.slices > 0,
            Direction::Send => {
                let fifo = &self.layout().fifo;
                !self.is_draining && (self.slices + 1) * fifo.slots_per_slice <= fifo.depth
            }
        }
    }

    /// The slot to fill or take next.
    #[inline]
    pub(super) const fn slot(&self) -> u32 {
        self.slot
    }

    /// A slice is filled or taken. Gives its slot.
    #[inline]
    pub(super) fn advance(&mut self) -> u32 {
        let (slot, fifo) = (self.slot, self.layout().fifo);
        self.position += u64::from(fifo.slots_per_slice);
        // A slice never lies across the end of the slots.
        let next = slot + fifo.slots_per_slice;
        self.slot = if next == fifo.depth { 0 } else { next };
        match self.direction {
            Direction::Receive => self.slices -= 1,
            Direction::Send => self.slices += 1,
        }
        slot
    }

    /// A slice has arrived.
    #[inline]
    pub(super) fn arrived(&mut self) {
        assert_eq!(self.direction, Direction::Receive, "data arrives where it is received");
        self.slices += 1;
    }

    /// The slots of the oldest filled slice may be used again.
    #[inline]
    pub(super) fn freed(&mut self) {
        assert_eq!(self.direction, Direction::Send, "slots are freed where they were filled");
        assert!(self.slices > 0, "no slice is under way");
        self.slices -= 1;
        if self.slices == 0 {
            self.is_draining = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use railnet_core::{Bytes, Random};

    use super::*;
    use crate::protocol::{Fifo, Protocol};
    use crate::schedule::Peer;

    fn layout(slots_per_slice: u32, slot: u64) -> Layout {
        let fifo = Fifo { slot: Bytes(slot), depth: 8, slots_per_slice, slices_per_chunk: 1 };
        Layout { protocol: Protocol::Simple, fifo }
    }

    /// Operations of several layouts after each other: no byte is filled that is in use, and all slots are used.
    #[test]
    fn no_slot_is_filled_twice_and_none_is_wasted() {
        let to = Connection { channel: 0, lane: 0, peer: Peer::Rank(1) };
        let mut link = Link::new(to, Direction::Send);
        let mut random = Random::from_seed(5);
        let mut in_use: VecDeque<std::ops::Range<u64>> = VecDeque::new();
        let (mut most, mut drained) = (0, 0);
        for _ in 0..3000 {
            let layout = layout(*random.pick(&[1, 2]), *random.pick(&[64, 64, 64, 128]));
            link.begin(&layout);
            for _ in 0..random.below(12) {
                while !link.is_ready() {
                    drained += u32::from(in_use.len() < 4);
                    in_use.pop_front().expect("it waits for something");
                    link.freed();
                }
                let start = u64::from(link.advance()) * layout.stride();
                let taken = start..start + layout.slice();
                assert!(taken.end <= layout.bytes());
                assert!(in_use.iter().all(|other| other.end <= taken.start || taken.end <= other.start));
                in_use.push_back(taken);
                most = most.max(in_use.len());
            }
        }
        assert_eq!(most, 8);
        assert!(drained > 100, "layouts did change over slots in use");
    }

    #[test]
    fn what_is_expected_lies_where_it_will_be_taken() {
        let to = Connection { channel: 0, lane: 0, peer: Peer::Rank(1) };
        let mut link = Link::new(to, Direction::Receive);
        let mut random = Random::from_seed(6);
        for _ in 0..300 {
            let layout = layout(*random.pick(&[1, 2]), *random.pick(&[64, 128]));
            let slices = random.below(20) + 1;
            let first = link.expect(layout, slices);
            link.begin(&layout);
            assert_eq!(link.slot(), first);
            for _ in 0..slices {
                link.arrived();
                link.advance();
            }
        }
    }
}
