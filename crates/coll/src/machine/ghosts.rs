//! What a collective must leave in the output of each rank, and how much of it is not there.

use railnet_core::{DataType, GhostTag, Rank};
use railnet_nic::memory::GhostMemory;
use smallvec::SmallVec;

use crate::call::{Call, Collective};

/// Where a stretch of an output comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The first element of it in the output.
    pub start: u64,
    /// How many elements.
    pub count: u64,
    /// Whose input it holds; `None` for the reduction of everybody's.
    pub from: Option<Rank>,
    /// The first element of it in the input.
    pub origin: u64,
}

/// What the output of a rank holds after a call, in ascending order and without gaps.
pub fn expected_output(call: &Call, rank: Rank, ranks: u32) -> Vec<Source> {
    let whole = |from: Option<Rank>, origin: u64| {
        vec![Source { start: 0, count: call.output_count(rank, ranks), from, origin }]
    };
    let mut sources = match call.collective {
        Collective::Barrier => Vec::new(),
        Collective::AllReduce | Collective::Reduce => whole(None, 0),
        Collective::Broadcast | Collective::SendReceive => whole(Some(call.root), 0),
        Collective::ReduceScatter => whole(None, call.block_start(rank.0, ranks)),
        Collective::Scatter => whole(Some(call.root), call.block_start(rank.0, ranks)),
        Collective::Gather if rank != call.root => Vec::new(),
        Collective::AllGather | Collective::Gather => {
            let block = |from: u32| Source {
                start: call.block_start(from, ranks),
                count: call.block_of(from, ranks),
                from: Some(Rank(from)),
                origin: 0,
            };
            (0..ranks).map(block).collect()
        }
        Collective::AllToAll => {
            let block = |from: u32| {
                let (origin, start) = call.pair_starts(from, rank.0, ranks);
                let count = call.block(Rank(from), rank, ranks);
                Source { start, count, from: Some(Rank(from)), origin }
            };
            (0..ranks).map(block).collect()
        }
    };
    sources.retain(|source| source.count > 0);
    sources
}

/// Bytes of an output that do not hold what they should. `words` are those of the ranks: a rank's input holds its word
/// from origin 0 on. `start` is the first byte of the output in the memory.
pub fn wrong_bytes(
    expected: &[Source],
    dtype: DataType,
    words: &[u128],
    memory: &GhostMemory,
    start: u64,
) -> u64 {
    let everybody = words.iter().fold(0u128, |sum, word| sum.wrapping_add(*word));
    let mut wrong = 0;
    for source in expected {
        let sum = source.from.map_or(everybody, |rank| words[rank.0 as usize]);
        let tag = GhostTag { sum, origin: dtype.bytes(source.origin).0 };
        let (mut offset, length) = (0, dtype.bytes(source.count).0);
        while offset < length {
            let part = (length - offset).min(1 << 30) as u32;
            let mut runs = SmallVec::new();
            memory.read(start + dtype.bytes(source.start).0 + offset, part, &mut runs);
            for run in runs {
                wrong += if run.tag == tag.advanced(offset) { 0 } else { u64::from(run.length) };
                offset += u64::from(run.length);
            }
        }
    }
    wrong
}
