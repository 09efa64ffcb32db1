//! Ranges of a stream: what has arrived early at a receiver, and, as a sender's scoreboard of selective acknowledgements, what is lost by
//! that (RFC 6675).
//!
//! Positions count the bytes of the stream from its SYN on, without wrapping.

use std::collections::BTreeMap;

/// Duplicate acknowledgements, or segments above, that make a segment count as lost.
pub(crate) const DUPLICATES: u64 = 3;

/// The ranges above an acknowledged position that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    /// First position and that behind the last; ranges neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
}

impl Ranges {
    /// A range has arrived; returns how many bytes of it are news.
    pub(crate) fn add(&mut self, mut first: u64, mut end: u64) -> u64 {
        if first >= end {
            return 0;
        }
        let (mut known, length) = (0, end - first);
        let (asked_first, asked_end) = (first, end);
        while let Some((&start, &stop)) = self.ranges.range(..=end).next_back() {
            if stop < first {
                break;
            }
            known += stop.min(asked_end).saturating_sub(start.max(asked_first));
            (first, end) = (first.min(start), end.max(stop));
            self.ranges.remove(&start);
        }
        self.ranges.insert(first, end);
        length - known
    }

    /// All up to here is acknowledged.
    pub(crate) fn advance(&mut self, acknowledged: u64) {
        while let Some((&start, &stop)) = self.ranges.first_key_value() {
            if start >= acknowledged {
                break;
            }
            self.ranges.remove(&start);
            if stop > acknowledged {
                self.ranges.insert(acknowledged, stop);
            }
        }
    }

    /// Nothing is known any more: a receiver may throw away what it told of.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Behind the last byte that has arrived.
    pub(crate) fn highest(&self) -> Option<u64> {
        self.ranges.last_key_value().map(|(_, end)| *end)
    }

    /// The range that a position lies in.
    pub(crate) fn at(&self, position: u64) -> Option<(u64, u64)> {
        let (first, end) = self.ranges.range(..=position).next_back()?;
        (position < *end).then_some((*first, *end))
    }

    /// The ranges, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(first, end)| (*first, *end))
    }

    /// The first byte from `position` on that has not arrived, and where the next range begins that has.
    pub(crate) fn gap_at(&self, position: u64) -> (u64, Option<u64>) {
        let mut position = position;
        if let Some((_, &end)) = self.ranges.range(..=position).next_back() {
            position = position.max(end);
        }
        (position, self.ranges.range(position..).next().map(|(first, _)| *first))
    }

    /// What has not arrived below this position is lost: above it three ranges have arrived, or bytes of more than two segments.
    pub(crate) fn lost_below(&self, segment_size: u64) -> u64 {
        let (mut count, mut bytes) = (0, 0);
        for (first, end) in self.ranges.iter().rev() {
            (count, bytes) = (count + 1, bytes + end - first);
            if count >= DUPLICATES || bytes > (DUPLICATES - 1) * segment_size {
                return *first;
            }
        }
        0
    }

    /// Bytes that have not arrived, of those from `from` to `to`.
    fn missing(&self, from: u64, to: u64) -> u64 {
        let first = self.at(from).map_or(from, |(_, end)| end);
        let within = self.ranges.range(first..to.max(first));
        let there: u64 = within.map(|(start, end)| (*end).min(to) - start).sum();
        to.saturating_sub(first) - there
    }

    /// Bytes taken to be on their way, of those from `from` to `to`: what has not arrived and is not lost, and what was sent again up
    /// to `sent_again`. `lost_below` is where a timeout or duplicates took all for lost.
    pub(crate) fn pipe(
        &self,
        (from, to): (u64, u64),
        sent_again: u64,
        lost_below: u64,
        segment_size: u64,
    ) -> u64 {
        let lost = self.lost_below(segment_size).max(lost_below).clamp(from, to);
        self.missing(lost, to) + self.missing(from, sent_again.clamp(from, lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn board(ranges: &[(u64, u64)]) -> Ranges {
        let mut board = Ranges::default();
        for (first, end) in ranges {
            board.add(*first, *end);
        }
        board
    }

    #[test]
    fn a_gap_is_lost_when_three_ranges_or_more_than_two_segments_lie_above() {
        assert_eq!(board(&[(100, 200), (300, 400)]).lost_below(100), 0);
        assert_eq!(board(&[(100, 200), (300, 400), (500, 501)]).lost_below(100), 100);
        assert_eq!(board(&[(100, 301)]).lost_below(100), 100);
        assert_eq!(board(&[(100, 300)]).lost_below(100), 0);
    }

    #[test]
    fn the_pipe_has_what_is_neither_here_nor_lost() {
        let board = board(&[(100, 400), (500, 600)]);
        // 0 to 100 is lost, 400 to 500 and 600 to 700 are not.
        assert_eq!(board.pipe((0, 700), 0, 0, 100), 200);
        assert_eq!(board.pipe((0, 700), 60, 0, 100), 260);
        assert_eq!(board.pipe((0, 700), 0, 700, 100), 0);
        assert_eq!(board.pipe((0, 700), 450, 700, 100), 150);
    }

    proptest! {
        #[test]
        fn ranges_are_a_set_of_bytes(parts in proptest::collection::vec((0..60u64, 0..20u64), 0..20), acknowledged in 0..70u64) {
            let (mut board, mut set) = (Ranges::default(), std::collections::BTreeSet::new());
            for (first, length) in parts {
                let before = set.len();
                set.extend(first..first + length);
                prop_assert_eq!(board.add(first, first + length), (set.len() - before) as u64);
            }
            board.advance(acknowledged);
            set.retain(|byte| *byte >= acknowledged);
            prop_assert_eq!(board.iter().map(|(first, end)| end - first).sum::<u64>(), set.len() as u64);
            for from in acknowledged..80 {
                let missing = (from..90).filter(|byte| !set.contains(byte)).count() as u64;
                prop_assert_eq!(board.missing(from, 90), missing);
            }
            prop_assert_eq!(board.highest(), set.last().map(|last| last + 1));
            for position in acknowledged..90 {
                let gap = (position..200).find(|byte| !set.contains(byte)).unwrap();
                prop_assert_eq!(board.gap_at(position), (gap, set.range(gap..).next().copied()));
            }
        }
    }
}
