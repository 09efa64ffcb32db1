//! Packets that wait in front of a channel.
//!
//! In a congested network most packets wait, for longer than a cache remembers them. What is needed when the turn of one has
//! come is written down where it waits, one behind the other, so that the packet itself is looked at by the switch that it
//! comes to and by nobody else on its way.

use crate::packet::{Facts, Flag, PacketIndex};

/// No channel: it came from a NIC, or from the switch itself.
pub(crate) const NO_INGRESS: u32 = u32::MAX;

/// A packet whose turn to be sent will come.
///
/// What is written in parts and soon read as a whole keeps a processor waiting until the parts have reached the cache, so packet and
/// channel are one word; and five of these with the way to the next five are one line.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(crate) struct Waiting {
    /// The packet, above it the channel by which it came to this switch.
    who: u64,
    /// Bytes, then the priority it goes out with, the one it came with and under which it is counted in, and flags.
    rest: u32,
}

const INGRESS_SHIFT: u32 = 32;
const PRIORITY_SHIFT: u32 = 16;
const HELD_AS_SHIFT: u32 = 19;
const FLAGS_SHIFT: u32 = 22;

impl Waiting {
    /// One that came by `ingress` with the priority `held_as`.
    #[inline]
    pub(crate) fn new(packet: PacketIndex, facts: &Facts, ingress: u32, held_as: usize) -> Self {
        let rest = u32::from(facts.bytes)
            | u32::from(facts.priority & 7) << PRIORITY_SHIFT
            | (held_as as u32 & 7) << HELD_AS_SHIFT
            | facts.flags.bits() << FLAGS_SHIFT;
        Self { who: u64::from(ingress) << INGRESS_SHIFT | u64::from(packet), rest }
    }

    #[inline]
    pub(crate) fn packet(self) -> PacketIndex {
        self.who as PacketIndex
    }

    /// The channel it came to this switch by, or [`NO_INGRESS`].
    #[inline]
    pub(crate) fn ingress(self) -> u32 {
        (self.who >> INGRESS_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn bytes(self) -> u32 {
        self.rest & 0xffff
    }

    #[inline]
    pub(crate) fn priority(self) -> usize {
        (self.rest >> PRIORITY_SHIFT & 7) as usize
    }

    #[inline]
    pub(crate) fn held_as(self) -> usize {
        (self.rest >> HELD_AS_SHIFT & 7) as usize
    }

    /// What was so when it came.
    #[inline]
    fn is(self, flag: Flag) -> bool {
        self.rest >> (FLAGS_SHIFT + flag as u32) & 1 != 0
    }

    #[inline]
    pub(crate) fn is_pause(self) -> bool {
        self.is(Flag::Pause)
    }

    #[inline]
    pub(crate) fn is_data(self) -> bool {
        self.is(Flag::Data)
    }

    #[inline]
    pub(crate) fn gathers(self) -> bool {
        self.is(Flag::Gathers)
    }

    /// Its sender understands marks, and it had none when it came.
    #[inline]
    pub(crate) fn may_be_marked(self) -> bool {
        self.is(Flag::Markable) && !self.is(Flag::Marked)
    }
}

/// Packets that fit into a row.
const ROW: u32 = 5;

/// Some packets of one queue: a line of the cache.
#[derive(Debug)]
#[repr(align(64))]
struct Row {
    places: [Waiting; ROW as usize],
    /// The row behind it.
    next: u32,
}

const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    const EMPTY: Self = Self { places: [Waiting { who: u64::MAX, rest: 0 }; ROW as usize], next: 0 };
}

/// Room for all queues of all channels, in rows that are used again, the last one first: that is still in the cache.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    rows: Vec<Row>,
    free: Vec<u32>,
}

impl WaitingRoom {
    #[inline]
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::EMPTY);
            self.rows.len() as u32 - 1
        })
    }

    /// Looks at a row, and says nothing of use.
    #[inline]
    pub(crate) fn look(&self, row: u32) -> u32 {
        self.rows.get(row as usize).map_or(0, |row| row.next)
    }
}

/// A place in a room: eight times the row, and the place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place(u32);

impl Place {
    const NONE: Self = Self(u32::MAX);

    #[inline]
    fn row(self) -> usize {
        (self.0 / 8) as usize
    }

    #[inline]
    fn at(self) -> usize {
        (self.0 % 8) as usize
    }

    #[inline]
    fn is_last_of_row(self) -> bool {
        self.0 % 8 == ROW - 1
    }

    #[inline]
    fn next(self, room: &WaitingRoom) -> Self {
        if self.is_last_of_row() { Self(room.rows[self.row()].next * 8) } else { Self(self.0 + 1) }
    }
}

/// A queue of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    first: Place,
    last: Place,
    pub(crate) bytes: u64,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { first: Place::NONE, last: Place::NONE, bytes: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == Place::NONE
    }

    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one or two places")]
    #[inline(always)]
    pub(crate) fn push(&mut self, room: &mut WaitingRoom, waiting: Waiting) {
        let place = if self.is_empty() {
            self.first = Place(room.take() * 8);
            self.first
        } else if self.last.is_last_of_row() {
            let row = room.take();
            room.rows[self.last.row()].next = row;
            Place(row * 8)
        } else {
            Place(self.last.0 + 1)
        };
        room.rows[place.row()].places[place.at()] = waiting;
        self.last = place;
        self.bytes += u64::from(waiting.bytes());
    }

    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one or two places")]
    #[inline(always)]
    pub(crate) fn pop(&mut self, room: &mut WaitingRoom) -> Option<Waiting> {
        (!self.is_empty()).then(|| self.pop_front(room))
    }

    /// The first packet of a queue that has one.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from one or two places")]
    #[inline(always)]
    pub(crate) fn pop_front(&mut self, room: &mut WaitingRoom) -> Waiting {
        let place = self.first;
        let waiting = room.rows[place.row()].places[place.at()];
        let is_last = place == self.last;
        if is_last || place.is_last_of_row() {
            room.free.push(place.row() as u32);
        }
        self.first = if is_last { Place::NONE } else { place.next(room) };
        self.bytes -= u64::from(waiting.bytes());
        waiting
    }

    /// The packets in it, first to last.
    pub(crate) fn iter<'a>(&self, room: &'a WaitingRoom) -> impl Iterator<Item = Waiting> + use<'a> {
        let (mut next, last) = (self.first, self.last);
        std::iter::from_fn(move || {
            let place = next;
            if place == Place::NONE {
                return None;
            }
            next = if place == last { Place::NONE } else { place.next(room) };
            Some(room.rows[place.row()].places[place.at()])
        })
    }

    /// Looks at the rows where its first and its last packets wait, and says what is behind each, which is a row or was one.
    #[inline]
    pub(crate) fn look(&self, room: &WaitingRoom) -> [u32; 2] {
        [self.first, self.last].map(|place| room.look(place.row() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(packet: u32) -> Waiting {
        Waiting::new(packet, &Facts { bytes: packet as u16, ..Facts::NOTHING }, packet + 7, 3)
    }

    #[test]
    fn queues_keep_their_order_and_share_a_room() {
        let mut room = WaitingRoom::default();
        let mut queues = [Queue::EMPTY; 3];
        let mut expected: [std::collections::VecDeque<u32>; 3] = Default::default();
        let mut dice = railnet_core::Random::stream(1, "waiting", 0);
        for packet in 0..10_000 {
            let one = dice.below(3) as usize;
            if dice.below(100) < 48 {
                let popped = queues[one].pop(&mut room).map(Waiting::packet);
                assert_eq!(popped, expected[one].pop_front());
            } else {
                queues[one].push(&mut room, waiting(packet));
                expected[one].push_back(packet);
            }
            for (queue, expected) in queues.iter().zip(&expected) {
                assert_eq!(queue.is_empty(), expected.is_empty());
                assert_eq!(queue.bytes, expected.iter().map(|packet| u64::from(*packet as u16)).sum());
            }
        }
        for (queue, expected) in queues.iter().zip(&expected) {
            let all: Vec<u32> = queue.iter(&room).map(Waiting::packet).collect();
            assert!(all.iter().eq(expected));
        }
        for queue in &mut queues {
            while queue.pop(&mut room).is_some() {}
        }
        assert_eq!(room.free.len(), room.rows.len(), "no row is lost");
    }

    #[test]
    fn what_is_written_down_is_read_back() {
        let flags = crate::packet::Flags::NONE.with(Flag::Data, true).with(Flag::Markable, true);
        let facts = Facts { bytes: u16::MAX, priority: 6, flags, ..Facts::NOTHING };
        let waiting = Waiting::new(9, &facts, 11, 5);
        assert_eq!((waiting.packet(), waiting.ingress(), waiting.bytes()), (9, 11, 65_535));
        assert_eq!((waiting.priority(), waiting.held_as()), (6, 5));
        assert!(waiting.is_data() && waiting.may_be_marked() && !waiting.is_pause() && !waiting.gathers());
        let marked = Facts { flags: flags.with(Flag::Marked, true), ..facts };
        assert!(!Waiting::new(9, &marked, 11, 5).may_be_marked());
    }
}
