//! The receiving half: data put in order, selective acknowledgements, and the window that is offered.

use std::collections::{BTreeMap, VecDeque};

use crate::ranges::Ranges;

/// Ranges whose order of growth is remembered: more than a segment can tell of.
const RECENT_MAX: usize = 8;

/// What came in, in order and out of it. Positions count the bytes of the peer's stream from its SYN on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receiver {
    /// The position that comes next.
    pub(crate) next: u64,
    /// What the program has not read.
    ready: VecDeque<u8>,
    /// What came early, by its first position; pieces do not overlap.
    early: BTreeMap<u64, Vec<u8>>,
    /// The ranges that those make.
    ranges: Ranges,
    /// First positions of early ranges, that which grew last first.
    recent: Vec<u64>,
    capacity: usize,
    /// The position of the peer's FIN.
    fin: Option<u64>,
    /// The right edge of the window that was offered: it never moves back.
    edge: u64,
}

/// What a segment's data was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrived {
    /// What came next; with early data behind it, the gap is closed.
    InOrder { closed_gap: bool },
    /// Something that came before, or came early: the sender should hear at once.
    OutOfOrder,
}

impl Receiver {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, next: 1, edge: 1 + capacity as u64, ..Self::default() }
    }

    /// Data at a position, and whether the peer's stream ends behind it.
    pub(crate) fn receive(&mut self, position: u64, data: &[u8], has_fin: bool) -> Arrived {
        let end = position + data.len() as u64;
        if has_fin && end <= self.edge {
            self.fin = Some(end);
        }
        // Only what the window has room for.
        let kept = (self.edge.saturating_sub(position) as usize).min(data.len());
        let (had_gap, before) = (!self.early.is_empty(), self.next);
        if position <= self.next {
            let known = (self.next - position) as usize;
            if known < kept {
                self.ready.extend(&data[known..kept]);
                self.next = position + kept as u64;
            }
            self.join();
        } else if kept > 0 {
            self.keep(position, &data[..kept]);
        }
        if self.fin == Some(self.next) {
            self.next += 1;
        }
        let is_news = self.next > before && position <= before;
        if is_news { Arrived::InOrder { closed_gap: had_gap } } else { Arrived::OutOfOrder }
    }

    /// Keeps early data, less what is there already.
    fn keep(&mut self, position: u64, data: &[u8]) {
        let end = position + data.len() as u64;
        let mut at = position;
        if let Some((first, piece)) = self.early.range(..=at).next_back() {
            at = at.max(first + piece.len() as u64);
        }
        while at < end {
            let next = self.early.range(at..).next().map(|(first, piece)| (*first, piece.len() as u64));
            let stop = next.map_or(end, |(first, _)| first.min(end));
            if stop > at {
                let piece = &data[(at - position) as usize..(stop - position) as usize];
                self.early.insert(at, piece.to_vec());
            }
            at = next.map_or(end, |(first, length)| first + length);
        }
        self.ranges.add(position, end);
        // One for each range, and more blocks than four nobody can be told of.
        let ranges = &self.ranges;
        let own = ranges.at(position);
        self.recent.retain(|first| ranges.at(*first) != own);
        self.recent.insert(0, position);
        self.recent.truncate(RECENT_MAX);
    }

    /// Takes early data that comes next now.
    fn join(&mut self) {
        while let Some((&first, piece)) = self.early.first_key_value() {
            if first > self.next {
                break;
            }
            let (known, length) = ((self.next - first) as usize, piece.len());
            if known < length {
                self.ready.extend(&piece[known..]);
                self.next = first + length as u64;
            }
            self.early.remove(&first);
        }
        self.ranges.advance(self.next);
        let next = self.next;
        self.recent.retain(|first| *first > next);
    }

    /// The program reads. Returns how many bytes there were.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.ready.len());
        for (place, byte) in out.iter_mut().zip(self.ready.drain(..count)) {
            *place = byte;
        }
        count
    }

    /// Bytes that the program can read.
    pub(crate) fn readable(&self) -> usize {
        self.ready.len()
    }

    /// Whether all of the peer's stream has come, its FIN too.
    pub(crate) fn is_over(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// The window to offer: what there is room for, in whole segments unless it is all (RFC 9293, 3.8.6.2.2: silly windows).
    pub(crate) fn window(&mut self, segment_size: u64) -> u64 {
        let room = (self.capacity - self.ready.len().min(self.capacity)) as u64;
        let wished = self.next + room;
        if wished >= self.edge + segment_size.min(self.capacity as u64 / 2) {
            self.edge = wished;
        }
        self.edge.saturating_sub(self.next)
    }

    /// Whether the program has read so much since that a window of at least two segments can be offered anew.
    pub(crate) fn should_update(&self, segment_size: u64) -> bool {
        let room = (self.capacity - self.ready.len().min(self.capacity)) as u64;
        let step = (2 * segment_size).min(self.capacity as u64 / 2);
        let offered = self.edge.saturating_sub(self.next);
        offered < step && room >= offered + step
    }

    /// Ranges that came early, that which grew last first (RFC 2018, 4).
    pub(crate) fn blocks(&self, most: usize) -> Vec<(u64, u64)> {
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        let recent = self.recent.iter().filter_map(|first| self.ranges.at(*first));
        for block in recent.chain(self.ranges.iter()) {
            if blocks.len() == most {
                break;
            }
            if !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_begin_with_what_came_last() {
        let mut receiver = Receiver::new(1000);
        for position in [11, 31, 51, 21] {
            assert_eq!(receiver.receive(position, &[0; 10], false), Arrived::OutOfOrder);
        }
        assert_eq!(receiver.blocks(3), [(11, 41), (51, 61)]);
        assert_eq!(receiver.receive(1, &[0; 10], false), Arrived::InOrder { closed_gap: true });
        assert_eq!((receiver.next, receiver.blocks(3)), (41, vec![(51, 61)]));
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_make_the_stream(pieces in proptest::collection::vec((0..200u64, 1..40usize), 1..60)) {
            let stream: Vec<u8> = (0..250).map(|at| at as u8 ^ 0x5a).collect();
            let mut receiver = Receiver::new(1 << 16);
            let mut has = vec![false; 250];
            for (at, length) in pieces {
                let end = (at as usize + length).min(250);
                receiver.receive(1 + at, &stream[at as usize..end], end == 250);
                has[at as usize..end].fill(true);
                let whole = has.iter().take_while(|has| **has).count() as u64;
                prop_assert_eq!(receiver.next, 1 + whole + u64::from(whole == 250));
                for (first, stop) in receiver.blocks(4) {
                    prop_assert!((first..stop).all(|byte| has[byte as usize - 1]) && first > receiver.next);
                }
            }
            let mut out = vec![0; 250];
            let count = receiver.read(&mut out);
            prop_assert_eq!(&out[..count], &stream[..count]);
        }
    }
}
