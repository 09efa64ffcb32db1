//! What a collective must leave in the output of each rank: said once, for proofs of schedules and for checks of runs.

use railnet_core::Rank;

use crate::call::{Call, Collective, Counts};

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

/// What outputs should hold, with everything that is worth computing once for all ranks.
#[derive(Debug)]
pub(crate) struct Outputs<'a> {
    call: &'a Call,
    ranks: u32,
    /// AllToAllV: where the block for each begins in the input of each, in rows of the sender.
    starts: Vec<u64>,
}

impl<'a> Outputs<'a> {
    /// The outputs of a call among so many ranks.
    pub(crate) fn new(call: &'a Call, ranks: u32) -> Self {
        let starts = match (&call.collective, &call.counts) {
            (Collective::AllToAll, Counts::PerPair(counts)) => {
                let rows = counts.chunks(ranks as usize).flat_map(|row| {
                    row.iter().scan(0, |next, count| {
                        let start = *next;
                        *next += count;
                        Some(start)
                    })
                });
                rows.collect()
            }
            _ => Vec::new(),
        };
        Self { call, ranks, starts }
    }

    /// What the output of a rank holds after the call, in ascending order and without gaps; `out` is overwritten.
    pub(crate) fn of(&self, rank: Rank, out: &mut Vec<Source>) {
        out.clear();
        let Self { call, ranks, .. } = *self;
        let count = call.output_count(rank, ranks);
        let whole = |from, origin| Source { start: 0, count, from, origin };
        match call.collective {
            Collective::Barrier => {}
            Collective::AllReduce | Collective::Reduce => out.push(whole(None, 0)),
            Collective::Broadcast | Collective::SendReceive => out.push(whole(Some(call.root), 0)),
            Collective::ReduceScatter => out.push(whole(None, call.block_start(rank.0, ranks))),
            Collective::Scatter => out.push(whole(Some(call.root), call.block_start(rank.0, ranks))),
            Collective::AllGather | Collective::Gather => {
                if count > 0 {
                    self.blocks(|from| call.block_of(from, ranks), |_| 0, out);
                }
            }
            Collective::AllToAll => self.blocks(
                |from| call.block(Rank(from), rank, ranks),
                |from| {
                    let known = self.starts.get((from * ranks + rank.0) as usize).copied();
                    known.unwrap_or_else(|| call.block_of(from, ranks) * u64::from(rank.0))
                },
                out,
            ),
        }
        out.retain(|stretch| stretch.count > 0);
    }

    /// A block from each rank, one after the other.
    fn blocks(&self, count: impl Fn(u32) -> u64, origin: impl Fn(u32) -> u64, out: &mut Vec<Source>) {
        let mut start = 0;
        for from in 0..self.ranks {
            let count = count(from);
            out.push(Source { start, count, from: Some(Rank(from)), origin: origin(from) });
            start += count;
        }
    }
}

/// What the output of one rank holds after a call, in ascending order and without gaps.
pub fn expected_output(call: &Call, rank: Rank, ranks: u32) -> Vec<Source> {
    let mut sources = Vec::new();
    Outputs::new(call, ranks).of(rank, &mut sources);
    sources
}
