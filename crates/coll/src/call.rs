//! What a collective means: who gives what, and who gets what.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use railnet_core::parse::{ParseError, unknown_name};
use railnet_core::{Bytes, DataType, Rank, ReduceOp};

/// What ranks do together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Collective {
    /// Everybody gets the reduction of what everybody has.
    AllReduce,
    /// Everybody gets what the root has.
    Broadcast,
    /// The root gets the reduction of what everybody has.
    Reduce,
    /// Everybody gets what everybody has, one block after the other.
    AllGather,
    /// Each gets its block of the reduction.
    ReduceScatter,
    /// Each has a block for each, and gets one from each.
    AllToAll,
    /// The root gets what everybody has, one block after the other.
    Gather,
    /// Each gets its block of what the root has.
    Scatter,
    /// One rank, the root, sends to another.
    SendReceive,
    /// Nobody goes on before everybody has come.
    Barrier,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::SendReceive,
        Self::Barrier,
    ];

    /// Its name, as NCCL writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "AllReduce",
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::AllToAll => "AlltoAll",
            Self::Gather => "Gather",
            Self::Scatter => "Scatter",
            Self::SendReceive => "SendRecv",
            Self::Barrier => "Barrier",
        }
    }

    /// Its name, as nccl-tests writes it in front of `_perf`.
    pub const fn test_name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "alltoall",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendReceive => "sendrecv",
            Self::Barrier => "barrier",
        }
    }

    /// Whether contributions are put together, rather than only moved.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether data goes one way, from a rank or to one: nobody waits for those that it sends to.
    pub const fn is_one_way(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter | Self::SendReceive)
    }

    /// What each of so many ranks sends at least, as a part of the bytes of a call; nccl-tests makes bus bandwidth of algorithm
    /// bandwidth with it (doc/PERFORMANCE.md).
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter => {
                (n - 1.0) / n
            }
            Self::Broadcast | Self::Reduce | Self::SendReceive | Self::Barrier => 1.0,
        }
    }

    /// Whether input and output may be the same memory. NCCL has no such AlltoAll and SendRecv, and nccl-tests does not
    /// check what comes of them.
    pub const fn has_in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::SendReceive | Self::Barrier)
    }

    /// Whether one rank is special.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter | Self::SendReceive)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reads `AllReduce`, `allreduce`, `all-reduce` and `all_reduce` alike.
impl FromStr for Collective {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
        let wanted = plain(text.trim());
        let found = Self::ALL.into_iter().find(|one| plain(one.name()) == wanted);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::test_name);
            unknown_name("collective", text, &names, &names)
        })
    }
}

/// How many elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Counts {
    /// The same number everywhere: of the buffer in AllReduce, Broadcast, Reduce and SendReceive, of a block in the
    /// others. This is how NCCL counts.
    Each(u64),
    /// The block of each rank: AllGatherV and its like.
    PerRank(Arc<[u64]>),
    /// What each rank has for each, in rows of the sender: AllToAllV.
    PerPair(Arc<[u64]>),
}

/// One call of a collective, as all ranks make it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// How many elements.
    pub counts: Counts,
    /// Of what type.
    pub dtype: DataType,
    /// How contributions are put together, where they are.
    pub op: ReduceOp,
    /// The special rank, where there is one; the sender of a [`Collective::SendReceive`].
    pub root: Rank,
    /// The receiver of a [`Collective::SendReceive`].
    pub peer: Rank,
    /// Whether input and output lie in the same memory, as NCCL's rules for each collective have it.
    pub in_place: bool,
}

impl Call {
    /// A call out of place, of f32, with a sum, and rank 0 as root.
    pub fn new(collective: Collective, count: u64) -> Self {
        Self {
            collective,
            counts: Counts::Each(count),
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            peer: Rank(0),
            in_place: false,
        }
    }

    /// The elements of the block that one rank gives to another.
    pub fn block(&self, from: Rank, to: Rank, ranks: u32) -> u64 {
        match &self.counts {
            Counts::Each(count) => *count,
            Counts::PerRank(counts) => counts[from.0 as usize],
            Counts::PerPair(counts) => counts[(from.0 * ranks + to.0) as usize],
        }
    }

    /// Elements of the input of a rank.
    pub fn input_count(&self, rank: Rank, ranks: u32) -> u64 {
        match self.collective {
            Collective::Barrier => 0,
            Collective::AllReduce | Collective::Reduce | Collective::AllGather | Collective::Gather => {
                self.block_of(rank.0, ranks)
            }
            Collective::Broadcast | Collective::SendReceive => {
                if rank == self.root {
                    self.block(rank, rank, ranks)
                } else {
                    0
                }
            }
            Collective::ReduceScatter => (0..ranks).map(|to| self.block_of(to, ranks)).sum(),
            Collective::AllToAll => (0..ranks).map(|to| self.block(rank, Rank(to), ranks)).sum(),
            Collective::Scatter => {
                if rank == self.root {
                    (0..ranks).map(|to| self.block_of(to, ranks)).sum()
                } else {
                    0
                }
            }
        }
    }

    /// Elements that a rank cannot have without others: so many come to it at least, however the call is carried out.
    pub fn received_count(&self, rank: Rank, ranks: u32) -> u64 {
        let all = self.output_count(rank, ranks);
        match self.collective {
            _ if ranks < 2 => 0,
            Collective::Broadcast | Collective::Scatter if rank == self.root => 0,
            Collective::AllGather | Collective::AllToAll | Collective::Gather => {
                all - self.block(rank, rank, ranks).min(all)
            }
            _ => all,
        }
    }

    /// Elements of the output of a rank.
    pub fn output_count(&self, rank: Rank, ranks: u32) -> u64 {
        match self.collective {
            Collective::Barrier => 0,
            Collective::AllReduce | Collective::Broadcast => self.block(self.root, rank, ranks),
            Collective::Reduce => {
                if rank == self.root {
                    self.block(rank, rank, ranks)
                } else {
                    0
                }
            }
            Collective::SendReceive => {
                if rank == self.peer {
                    self.block(self.root, rank, ranks)
                } else {
                    0
                }
            }
            Collective::AllGather => (0..ranks).map(|from| self.block_of(from, ranks)).sum(),
            Collective::Gather => {
                if rank == self.root {
                    (0..ranks).map(|from| self.block_of(from, ranks)).sum()
                } else {
                    0
                }
            }
            Collective::ReduceScatter | Collective::Scatter => self.block_of(rank.0, ranks),
            Collective::AllToAll => (0..ranks).map(|from| self.block(Rank(from), rank, ranks)).sum(),
        }
    }

    /// The block that belongs to a rank, where blocks belong to ranks.
    pub fn block_of(&self, rank: u32, ranks: u32) -> u64 {
        self.block(Rank(rank), Rank(rank), ranks)
    }

    /// Elements of the longest block.
    pub fn longest_block(&self) -> u64 {
        match &self.counts {
            Counts::Each(count) => *count,
            Counts::PerRank(counts) | Counts::PerPair(counts) => counts.iter().copied().max().unwrap_or(0),
        }
    }

    /// The first element of the block of a rank in a buffer that holds one after the other.
    pub fn block_start(&self, rank: u32, ranks: u32) -> u64 {
        match &self.counts {
            Counts::Each(count) => count * u64::from(rank),
            _ => (0..rank).map(|before| self.block_of(before, ranks)).sum(),
        }
    }

    /// Where in the output of a rank its input lies when both are in the same memory: the element of the output at
    /// which the input begins, or the element of the input at which the output begins. `None` where a rank has not both.
    pub fn overlap(&self, rank: Rank, ranks: u32) -> Option<Overlap> {
        if !self.in_place || self.input_count(rank, ranks) == 0 || self.output_count(rank, ranks) == 0 {
            return None;
        }
        Some(match self.collective {
            Collective::AllGather | Collective::Gather => {
                Overlap::InputInOutput(self.block_start(rank.0, ranks))
            }
            Collective::ReduceScatter | Collective::Scatter => {
                Overlap::OutputInInput(self.block_start(rank.0, ranks))
            }
            _ => Overlap::InputInOutput(0),
        })
    }

    /// Whether buffers of a rank that begin at these addresses are in the same memory, as the rules for its collective have it. A rank that
    /// only gives or only gets has one buffer.
    pub fn is_in_place_at(&self, rank: Rank, ranks: u32, (input, output): (usize, usize)) -> bool {
        let fits = match &self.counts {
            Counts::PerRank(counts) => counts.len() == ranks as usize,
            _ => self.root.0 < ranks,
        };
        let has_one = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        let distance = |elements: u64| self.dtype.bytes(elements).0 as usize;
        let call = Self { in_place: true, ..self.clone() };
        self.collective.has_in_place()
            && fits
            && match call.overlap(rank, ranks) {
                Some(Overlap::InputInOutput(first)) => input == output.wrapping_add(distance(first)),
                Some(Overlap::OutputInInput(first)) => output == input.wrapping_add(distance(first)),
                None => has_one && input == output,
            }
    }

    /// The bytes by which it is measured and its algorithm chosen: those of the largest buffer.
    pub fn bytes(&self, ranks: u32) -> Bytes {
        let most = (0..ranks)
            .map(|rank| self.input_count(Rank(rank), ranks).max(self.output_count(Rank(rank), ranks)));
        let elements = match &self.counts {
            Counts::Each(count) => match self.collective {
                Collective::Barrier => 0,
                Collective::AllReduce
                | Collective::Broadcast
                | Collective::Reduce
                | Collective::SendReceive => *count,
                _ => count * u64::from(ranks),
            },
            _ => most.max().unwrap_or(0),
        };
        self.dtype.bytes(elements)
    }
}

/// How input and output of a call in place lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// The input is part of the output, from this element on.
    InputInOutput(u64),
    /// The output is part of the input, from this element on.
    OutputInInput(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements that come to ranks 0 and 1 of four at least.
    fn come(collective: Collective) -> [u64; 2] {
        let call = Call { peer: Rank(1), ..Call::new(collective, 10) };
        [0, 1].map(|rank| call.received_count(Rank(rank), 4))
    }

    #[test]
    fn what_a_rank_has_itself_does_not_come_to_it() {
        assert_eq!(come(Collective::AllReduce), [10, 10]);
        assert_eq!(come(Collective::ReduceScatter), [10, 10]);
        assert_eq!(come(Collective::AllGather), [30, 30]);
        assert_eq!(come(Collective::AllToAll), [30, 30]);
        assert_eq!(come(Collective::Broadcast), [0, 10]);
        assert_eq!(come(Collective::Scatter), [0, 10]);
        assert_eq!(come(Collective::Reduce), [10, 0]);
        assert_eq!(come(Collective::Gather), [30, 0]);
        assert_eq!(come(Collective::SendReceive), [0, 10]);
        assert_eq!(Call::new(Collective::AllReduce, 10).received_count(Rank(0), 1), 0);
    }

    /// Whether rank 2 of four is in place with buffers of 4-byte elements at these addresses.
    fn is_in_place(collective: Collective, input: usize, output: usize) -> bool {
        Call { root: Rank(2), ..Call::new(collective, 10) }.is_in_place_at(Rank(2), 4, (input, output))
    }

    #[test]
    fn addresses_tell_whether_a_call_is_in_place() {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            assert!(is_in_place(collective, 1000, 1000), "{collective}");
            assert!(!is_in_place(collective, 1000, 1040), "{collective}");
        }
        for collective in [Collective::AllGather, Collective::Gather] {
            assert!(
                is_in_place(collective, 1080, 1000) && !is_in_place(collective, 1000, 1000),
                "{collective}"
            );
        }
        for collective in [Collective::ReduceScatter, Collective::Scatter] {
            assert!(
                is_in_place(collective, 1000, 1080) && !is_in_place(collective, 1000, 1000),
                "{collective}"
            );
        }
        for collective in [Collective::AllToAll, Collective::Barrier] {
            assert!(!is_in_place(collective, 1000, 1000), "{collective}");
        }
        // A rank that only gives or only gets has one buffer; a root that is none is found out elsewhere.
        let elsewhere = |collective, root| Call { root: Rank(root), ..Call::new(collective, 10) };
        for collective in [Collective::Broadcast, Collective::Reduce] {
            assert!(elsewhere(collective, 0).is_in_place_at(Rank(2), 4, (1000, 1000)), "{collective}");
        }
        for collective in [Collective::Gather, Collective::Scatter] {
            assert!(!elsewhere(collective, 0).is_in_place_at(Rank(2), 4, (1000, 1000)), "{collective}");
        }
        assert!(!elsewhere(Collective::Broadcast, 7).is_in_place_at(Rank(2), 4, (1000, 1000)));
        let short = Call { counts: Counts::PerRank([1, 2].into()), ..Call::new(Collective::AllGather, 0) };
        assert!(!short.is_in_place_at(Rank(2), 4, (1080, 1000)));
    }
}
