//! How the data of a call is shared out over channels, and over the loops of a channel.

use std::sync::Arc;

use super::Choice;
use crate::call::{Call, Collective, Counts};
use crate::protocol::{Fifo, Protocol};
use railnet_core::Bytes;

/// The elements that a channel deals with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    pub(super) start: u64,
    pub(super) count: u64,
}

impl Share {
    /// A part of it: `at` most so many elements from `first` on.
    pub(super) fn part(self, first: u64, most: u64) -> (u64, u64) {
        let first = first.min(self.count);
        (self.start + first, most.min(self.count - first))
    }

    /// The part of one of `parts` in a loop over all of them, in chunks of at most `chunk`: the last loop is shared out
    /// evenly, in whole multiples of `grain`.
    pub(super) fn looped(self, chunk: u64, grain: u64, parts: u64, looped: u64, index: u64) -> (u64, u64) {
        let first = looped * parts * chunk;
        let left = self.count - first;
        let is_full = left >= parts * chunk;
        let size = if is_full { chunk } else { left.div_ceil(parts).next_multiple_of(grain).min(chunk) };
        self.part(first + index * size, size)
    }
}

/// How elements are shared out over channels: in cells of 32 KiB of traffic, the same number of them for all channels
/// but the last (NCCL 2.30 enqueue.cc, "continuous byte distribution").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cells {
    /// Elements of a cell.
    cell: u64,
    /// Bytes that go through a channel for each element.
    traffic: u64,
    /// Bytes of an element.
    size: u64,
    channels: u64,
}

/// Bytes of data in a cell, and the bytes that go through a channel for each byte of them.
pub(crate) fn cell(collective: Collective, protocol: Protocol, ranks: u32) -> (u64, u64) {
    let per_byte = match collective {
        Collective::AllReduce => 2,
        Collective::AllGather | Collective::ReduceScatter => u64::from(ranks),
        _ => 1,
    };
    let per_byte = per_byte * if protocol == Protocol::Ll { 4 } else { 1 };
    (Cells::LEAST.div_ceil(per_byte).next_multiple_of(16), per_byte)
}

impl Cells {
    const LEAST: u64 = 32 * 1024;

    pub(super) fn new(call: &Call, choice: &Choice, ranks: u32) -> Self {
        let size = call.dtype.size() as u64;
        let (bytes, per_byte) = cell(call.collective, choice.protocol, ranks);
        Self {
            cell: bytes / size,
            traffic: per_byte * size,
            size,
            channels: u64::from(choice.channels.max(1)),
        }
    }

    /// Elements that all channels get but the last.
    fn most(&self, count: u64) -> u64 {
        let target = (count * self.traffic / self.channels).max(Self::LEAST);
        let cells = target.div_ceil(self.cell * self.traffic).min(count.div_ceil(self.cell));
        cells.max(1) * self.cell
    }

    /// How many channels are used.
    pub(super) fn used(&self, count: u64) -> u32 {
        count.div_ceil(self.most(count)).clamp(1, self.channels) as u32
    }

    /// The share of a channel; an empty one beyond those used.
    pub(super) fn share(&self, count: u64, channel: u32) -> Share {
        let (used, most, channel) = (u64::from(self.used(count)), self.most(count), u64::from(channel));
        let start = (channel * most).min(count);
        let length = match channel + 1 {
            next if next < used => most,
            next if next == used => count - start,
            _ => 0,
        };
        Share { start, count: length }
    }

    /// The shares of all channels used.
    pub(super) fn shares(&self, count: u64) -> Vec<Share> {
        (0..self.used(count)).map(|channel| self.share(count, channel)).collect()
    }

    /// Elements that 16 bytes hold.
    pub(super) fn grain(&self) -> u64 {
        (16 / self.size).max(1)
    }
}

/// What each channel has of the data of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelShares {
    /// Channels that have anything.
    channels: u32,
    /// Cells of all but the last of them, and of all together.
    cells: (u64, u64),
}

impl ChannelShares {
    /// Of so many cells for each channel, one more or less is no matter.
    const MANY: u64 = 64;

    /// Of a call of so many bytes that may use so many channels.
    pub fn new(collective: Collective, protocol: Protocol, ranks: u32, bytes: Bytes, channels: u32) -> Self {
        let (cell, traffic) = cell(collective, protocol, ranks);
        let blocks = match collective {
            Collective::AllGather | Collective::ReduceScatter => u64::from(ranks.max(1)),
            _ => 1,
        };
        let count = bytes.as_u64() / blocks;
        let cells = Cells { cell, traffic, size: 1, channels: u64::from(channels.max(1)) };
        let channels = cells.used(count);
        let all = count.div_ceil(cell).max(1);
        let each = cells.most(count) / cell;
        let is_even = each >= Self::MANY || each * u64::from(channels) == all;
        Self { channels, cells: if is_even { (1, u64::from(channels)) } else { (each, all) } }
    }

    /// Channels that have anything.
    pub const fn channels(&self) -> u32 {
        self.channels
    }

    /// The part of the data that a channel has.
    pub fn of(&self, channel: u32) -> f64 {
        let (each, all) = self.cells;
        let before = (u64::from(channel) * each).min(all);
        (all - before).min(each) as f64 / all as f64
    }
}

#[derive(Debug)]
enum Lengths {
    /// All the same: so many elements, with these shares.
    Each(u64, Vec<Share>),
    /// The count of each, and where it begins.
    PerRank(Arc<[u64]>, Arc<[u64]>),
}

/// Blocks of ranks one after the other in a buffer, and what of each a channel deals with.
#[derive(Debug)]
pub(super) struct Blocks {
    cells: Cells,
    lengths: Lengths,
    /// The longest share that a channel has of any block, for each channel used.
    longest: Vec<u64>,
}

impl Blocks {
    pub(super) fn new(call: &Call, choice: &Choice, ranks: u32) -> Self {
        let cells = Cells::new(call, choice, ranks);
        let different: &[u64] = match &call.counts {
            Counts::Each(count) => &[*count],
            Counts::PerRank(counts) | Counts::PerPair(counts) => counts,
        };
        let used = different.iter().map(|count| cells.used(*count)).max().unwrap_or(1);
        let longest = (0..used)
            .map(|channel| {
                different.iter().map(|count| cells.share(*count, channel).count).max().unwrap_or(0)
            })
            .collect();
        let lengths = match &call.counts {
            Counts::Each(count) => Lengths::Each(*count, cells.shares(*count)),
            Counts::PerRank(counts) | Counts::PerPair(counts) => {
                Lengths::PerRank(Arc::clone(counts), starts(counts))
            }
        };
        Self { cells, lengths, longest }
    }

    pub(super) fn channels(&self) -> u32 {
        self.longest.len() as u32
    }

    /// Elements that 16 bytes hold.
    pub(super) fn grain(&self) -> u64 {
        self.cells.grain()
    }

    /// The loops of a channel in chunks of so many elements.
    pub(super) fn loops(&self, channel: u32, chunk: u64) -> u64 {
        self.longest[channel as usize].div_ceil(chunk)
    }

    /// A channel's share of a block, from the beginning of the block.
    pub(super) fn share(&self, block: u32, channel: u32) -> Share {
        match &self.lengths {
            Lengths::Each(_, shares) => shares[channel as usize],
            Lengths::PerRank(counts, _) => self.cells.share(counts[block as usize], channel),
        }
    }

    /// Where a block begins in the buffer of all.
    pub(super) fn start(&self, block: u32) -> u64 {
        match &self.lengths {
            Lengths::Each(count, _) => count * u64::from(block),
            Lengths::PerRank(_, starts) => starts[block as usize],
        }
    }
}

/// Where each of blocks one after the other begins, and where the last ends.
pub(super) fn starts(counts: &[u64]) -> Arc<[u64]> {
    let mut end = 0;
    std::iter::once(0)
        .chain(counts.iter().map(|count| {
            end += count;
            end
        }))
        .collect()
}

/// The elements of a full chunk: what the slots hold and the choice allows, in whole grains.
pub(super) fn chunk(call: &Call, choice: &Choice, fifo: &Fifo) -> u64 {
    let longest = choice.chunk.map_or(u64::MAX, |bytes| bytes.0);
    let bytes = fifo.chunk().0.min(longest);
    let grain = choice.protocol.grain();
    let whole = if bytes >= grain { bytes / grain * grain } else { bytes };
    (whole / call.dtype.size() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;

    fn lengths(call: &Call, channels: u32, count: u64) -> Vec<u64> {
        let cells = Cells::new(call, &Choice::new(Algorithm::Ring, Protocol::Simple).on(channels), 4);
        let shares: Vec<_> = cells.shares(count).into_iter().map(|share| share.count).collect();
        assert_eq!(shares.iter().sum::<u64>(), count, "{shares:?}");
        shares
    }

    #[test]
    fn channels_are_filled_in_cells_and_the_last_gets_the_rest() {
        // 16 KiB of f32 make 32 KiB of traffic in an AllReduce.
        let call = Call::new(Collective::AllReduce, 0);
        assert_eq!(lengths(&call, 4, 1), [1]);
        assert_eq!(lengths(&call, 4, 4096), [4096]);
        assert_eq!(lengths(&call, 4, 4097), [4096, 1]);
        assert_eq!(lengths(&call, 4, 10 * 4096), [3 * 4096, 3 * 4096, 3 * 4096, 4096]);
        assert_eq!(lengths(&call, 2, 0), [0]);
        // Four ranks: 8 KiB of a block of an AllGather.
        let call = Call::new(Collective::AllGather, 0);
        assert_eq!(lengths(&call, 8, 5000), [2048, 2048, 904]);
    }

    #[test]
    fn shares_of_channels_are_those_that_schedules_have() {
        let of = |mib: u64| {
            let bytes = Bytes(mib << 20);
            ChannelShares::new(Collective::AllGather, Protocol::Ll128, 16, bytes, 16)
        };
        // Blocks of 98,304 bytes are 48 cells, of which a channel takes three; one byte more makes it four.
        let even = ChannelShares::new(Collective::AllGather, Protocol::Ll128, 16, Bytes(48 << 15), 16);
        assert_eq!((even.channels(), even.of(0), even.of(15)), (16, 1.0 / 16.0, 1.0 / 16.0));
        let uneven =
            ChannelShares::new(Collective::AllGather, Protocol::Ll128, 16, Bytes((48 << 15) + 16), 16);
        assert_eq!((uneven.channels(), uneven.of(0), uneven.of(12)), (13, 4.0 / 49.0, 1.0 / 49.0));
        for mib in 1..200 {
            let shares = of(mib);
            let all: f64 = (0..shares.channels()).map(|channel| shares.of(channel)).sum();
            assert!((all - 1.0).abs() < 1e-9, "{shares:?}");
        }
    }

    #[test]
    fn every_element_is_in_one_share() {
        let call = Call::new(Collective::AllReduce, 0);
        for channels in 1..20 {
            for count in (0..200_000).step_by(3331) {
                lengths(&call, channels, count);
            }
        }
    }
}
