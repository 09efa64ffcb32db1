//! Algorithms: pure functions from a call, a choice and a wiring to a schedule. One file each.
//!
//! | algorithm | collectives | protocols | where |
//! | --- | --- | --- | --- |
//! | Ring | AllReduce, AllGather, ReduceScatter, Broadcast, Reduce | all | anywhere |
//! | Tree | AllReduce | all | anywhere |
//! | CollNetDirect | AllReduce; AllGather and ReduceScatter where every rank is a head | Simple | several nodes |
//! | CollNetChain | AllReduce | Simple | several nodes |
//! | NVLS | AllReduce; AllGather and ReduceScatter, between nodes where every rank is a head | Simple | switches that reduce |
//! | NVLSTree | AllReduce | Simple | switches that reduce, several nodes |
//! | PAT | AllGather, ReduceScatter | Simple | one rank in each node |
//! | Direct | AllReduce, AllGather, ReduceScatter, Broadcast | all | anywhere; meant for few ranks |
//! | Hypercube | AllReduce, AllGather, ReduceScatter, AllToAll | Simple | a power of two of ranks; meant for little data |
//! | P2P | AllToAll, Gather, Scatter, SendReceive, Barrier | all but LL128 | anywhere |
//!
//! One rank alone copies its input to its output, whatever the algorithm.

mod barrier;
mod collnet_chain;
mod collnet_direct;
pub(crate) mod direct;
mod heads;
pub(crate) mod hypercube;
mod local;
mod nvls;
mod nvls_tree;
mod pairs;
mod pat;
mod point_to_point;
mod rails;
mod ring;
pub(crate) mod split;
pub(crate) mod tree;
mod up_down;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use railnet_core::parse::{ParseError, unknown_name};
use railnet_core::{Bytes, DataType, Rank, ReduceOp};
use thiserror::Error;

use crate::call::{Call, Collective, Counts};
use crate::protocol::{Fifo, Protocol};
use crate::schedule::{Buffer, Connection, Peer, Piece, Program, Schedule};
use crate::wiring::Wiring;

pub use pairs::PairOrder;
pub use split::ChannelShares;
pub use tree::{TreeNode, binary_tree, double_tree, tree_place};

/// How a collective is carried out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Algorithm {
    /// A double binary tree between nodes, chains inside.
    Tree,
    /// A ring.
    Ring,
    /// The network's switches reduce; inside a node each head collects its part from all.
    CollNetDirect,
    /// The network's switches reduce; inside a node a chain leads to each head.
    CollNetChain,
    /// The NVLink switch reduces.
    Nvls,
    /// The NVLink switch reduces inside a node, a double binary tree between nodes.
    NvlsTree,
    /// Parallel aggregated trees.
    Pat,
    /// Everybody exchanges with everybody at once.
    Direct,
    /// Grouped sends and receives.
    PointToPoint,
    /// A program from a file.
    Custom,
    /// Ranks whose numbers differ in one bit exchange what they have, one bit after the other.
    Hypercube,
}

impl Algorithm {
    /// Those that NCCL's cost model knows, in its order.
    pub const TUNED: [Self; 7] = [
        Self::Tree,
        Self::Ring,
        Self::CollNetDirect,
        Self::CollNetChain,
        Self::Nvls,
        Self::NvlsTree,
        Self::Pat,
    ];

    /// NCCL's name for it, where NCCL has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "Tree",
            Self::Ring => "Ring",
            Self::CollNetDirect => "CollNetDirect",
            Self::CollNetChain => "CollNetChain",
            Self::Nvls => "NVLS",
            Self::NvlsTree => "NVLSTree",
            Self::Pat => "PAT",
            Self::Direct => "Direct",
            Self::PointToPoint => "P2P",
            Self::Custom => "Custom",
            Self::Hypercube => "Hypercube",
        }
    }
}

impl Algorithm {
    /// Those that a schedule can be built of: all but [`Algorithm::Custom`].
    pub const BUILT: [Self; 10] = [
        Self::Tree,
        Self::Ring,
        Self::CollNetDirect,
        Self::CollNetChain,
        Self::Nvls,
        Self::NvlsTree,
        Self::Pat,
        Self::Direct,
        Self::Hypercube,
        Self::PointToPoint,
    ];

    /// Whether it does this collective, somewhere.
    pub const fn does(self, collective: Collective) -> bool {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
        match self {
            Self::Tree | Self::CollNetChain | Self::NvlsTree => matches!(collective, AllReduce),
            Self::Ring => matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce),
            Self::CollNetDirect | Self::Nvls => {
                matches!(collective, AllReduce | AllGather | ReduceScatter)
            }
            Self::Hypercube => matches!(collective, AllReduce | AllGather | ReduceScatter | AllToAll),
            Self::Pat => matches!(collective, AllGather | ReduceScatter),
            Self::Direct => matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast),
            Self::PointToPoint => {
                !matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce)
            }
            Self::Custom => false,
        }
    }

    /// Whether its connections can use this protocol.
    pub const fn speaks(self, protocol: Protocol) -> bool {
        match self {
            Self::Tree | Self::Ring | Self::Direct | Self::Custom => true,
            Self::PointToPoint => !matches!(protocol, Protocol::Ll128),
            _ => matches!(protocol, Protocol::Simple),
        }
    }
}

/// Reads NCCL's names, in any case.
impl FromStr for Algorithm {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let plain = |name: &str| name.trim().to_ascii_lowercase().replace(['-', '_'], "");
        let wanted = plain(text);
        let found = Self::BUILT.into_iter().find(|one| plain(one.name()) == wanted);
        found.ok_or_else(|| {
            let names = Self::BUILT.map(Self::name);
            unknown_name("algorithm", text, &names, &names)
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An algorithm from elsewhere, such as a file.
pub trait CustomAlgorithm: fmt::Debug + Send + Sync {
    /// The schedule of a call among so many ranks, or why there is none.
    fn schedule(&self, call: &Call, ranks: u32) -> Result<Schedule, String>;
}

/// How a call is to be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// How many channels share the data.
    pub channels: u32,
    /// Over how many of them grouped sends and receives spread each message; `None` for what there are for each rank.
    pub parts: Option<u32>,
    /// The buffer of a connection; `None` for the protocol's own.
    pub buffer: Option<Bytes>,
    /// The longest chunk, in bytes of data; `None` for as much as the slots allow.
    pub chunk: Option<Bytes>,
    /// How chunks lie in slots; `None` for NCCL's way.
    pub fifo: Option<Fifo>,
    /// Whether a rank alternates between sending and receiving a chunk, instead of doing both at once: where what is given should
    /// still be in a cache when it is taken. An AllGather by Direct knows how.
    pub by_turns: bool,
}

impl Choice {
    /// One channel, and sizes as NCCL has them.
    pub const fn new(algorithm: Algorithm, protocol: Protocol) -> Self {
        Self {
            algorithm,
            protocol,
            channels: 1,
            parts: None,
            buffer: None,
            chunk: None,
            fifo: None,
            by_turns: false,
        }
    }

    /// On so many channels.
    #[must_use]
    pub const fn on(self, channels: u32) -> Self {
        Self { channels, ..self }
    }

    /// How chunks lie in slots; `fine` where NCCL makes two slices of a chunk of four slots.
    fn fifo(&self, fine: bool) -> Fifo {
        self.fifo
            .unwrap_or_else(|| Fifo::new(self.protocol, self.buffer.unwrap_or(self.protocol.buffer()), fine))
    }
}

/// Why there is no such schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The algorithm does not do this collective.
    #[error("{algorithm} does not do {collective}: choose {}", doers(*.collective))]
    Unsupported {
        /// The algorithm.
        algorithm: Algorithm,
        /// The collective.
        collective: Collective,
    },
    /// There is no such rank.
    #[error("rank {rank} does not exist: there are {ranks}, from 0 to {}", ranks - 1)]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// The algorithm cannot use the protocol.
    #[error("{algorithm} does not use {protocol}: choose {}", spoken(*.algorithm))]
    WrongProtocol {
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
    },
    /// The counts do not fit the collective or the ranks.
    #[error("the counts of {collective} do not fit: {reason}")]
    WrongCounts {
        /// The collective.
        collective: Collective,
        /// What is wrong with the counts.
        reason: String,
    },
    /// Input and output cannot be the same memory.
    #[error("{collective} cannot be in place: blocks would be overwritten before they are sent")]
    NotInPlace {
        /// The collective.
        collective: Collective,
    },
    /// The operation is not one of elements of this type.
    #[error("{op} combines the bits of integers, and the data is {dtype}: use an integer type")]
    NotInteger {
        /// The operation.
        op: ReduceOp,
        /// The type of the data.
        dtype: DataType,
    },
    /// The algorithm cannot run on these ranks.
    #[error("{algorithm} cannot run here: {reason}")]
    Impossible {
        /// The algorithm.
        algorithm: Algorithm,
        /// Why the algorithm cannot run here.
        reason: String,
    },
}

fn doers(collective: Collective) -> String {
    let names = Algorithm::BUILT.into_iter().filter(|one| one.does(collective)).map(Algorithm::name);
    names.collect::<Vec<_>>().join(", ")
}

fn spoken(algorithm: Algorithm) -> String {
    let names = Protocol::ALL.into_iter().filter(|protocol| algorithm.speaks(*protocol)).map(Protocol::name);
    names.collect::<Vec<_>>().join(" or ")
}

/// The schedule of a call.
pub fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    let Choice { algorithm, protocol, .. } = *choice;
    let collective = call.collective;
    if !algorithm.does(collective) {
        return Err(BuildError::Unsupported { algorithm, collective });
    }
    if !algorithm.speaks(protocol) {
        return Err(BuildError::WrongProtocol { algorithm, protocol });
    }
    check(call, choice, wiring)?;
    if wiring.ranks() == 1 {
        return Ok(local::build(call, choice));
    }
    match algorithm {
        Algorithm::Ring => ring::build(call, choice, wiring),
        Algorithm::PointToPoint if collective == Collective::Barrier => {
            Ok(barrier::build(call, choice, wiring))
        }
        Algorithm::PointToPoint => point_to_point::build(call, choice, wiring),
        Algorithm::CollNetDirect => collnet_direct::build(call, choice, wiring),
        Algorithm::CollNetChain => collnet_chain::build(call, choice, wiring),
        Algorithm::Nvls => nvls::build(call, choice, wiring),
        Algorithm::NvlsTree => nvls_tree::build(call, choice, wiring),
        Algorithm::Direct => Ok(direct::build(call, choice, wiring)),
        Algorithm::Hypercube => hypercube::build(call, choice, wiring),
        Algorithm::Pat => pat::build(call, choice, wiring),
        Algorithm::Tree => tree::build(call, choice, wiring),
        Algorithm::Custom => Err(BuildError::Unsupported { algorithm, collective }),
    }
}

/// Whether the choice can be carried out, and the call makes sense, among these ranks.
fn check(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<(), BuildError> {
    let ranks = wiring.ranks();
    let impossible = |reason| Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    if ranks == 0 {
        return impossible("there are no ranks".to_owned());
    }
    if choice.channels > MOST_CHANNELS {
        return impossible(format!("{} channels are more than {MOST_CHANNELS}", choice.channels));
    }
    let fifo = choice.fifo(false);
    if fifo.slots_per_chunk() == 0 || fifo.slots_per_chunk() > fifo.depth {
        let (takes, has) = (fifo.slots_per_chunk(), fifo.depth);
        return impossible(format!("a chunk takes {takes} slots, and a connection has {has}"));
    }
    check_call(call, ranks)
}

/// Whether a call makes sense among so many ranks: before that is known, nobody can ask how long its buffers are. [`build`] finds it
/// out, too.
pub fn check_call(call: &Call, ranks: u32) -> Result<(), BuildError> {
    let collective = call.collective;
    let special = [call.root, call.peer];
    let named = match collective {
        Collective::SendReceive => &special[..],
        _ if collective.has_root() => &special[..1],
        _ => &[],
    };
    if let Some(Rank(rank)) = named.iter().find(|rank| rank.0 >= ranks) {
        return Err(BuildError::NoSuchRank { rank: *rank, ranks });
    }
    let wrong = |reason| Err(BuildError::WrongCounts { collective, reason });
    let all = |counts: &[u64]| counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
    let (many, wanted, takes, elements) = match &call.counts {
        Counts::Each(count) => (1, 1, true, count.checked_mul(ranks.into())),
        Counts::PerRank(counts) => {
            let takes = matches!(
                collective,
                Collective::AllGather | Collective::ReduceScatter | Collective::Gather | Collective::Scatter
            );
            (counts.len(), ranks as usize, takes, all(counts))
        }
        Counts::PerPair(counts) => {
            let wanted = ranks as usize * ranks as usize;
            (counts.len(), wanted, collective == Collective::AllToAll, all(counts))
        }
    };
    if !takes {
        return wrong("it takes one count for all".to_owned());
    }
    if many != wanted {
        return wrong(format!("{ranks} ranks need {wanted} of them, and there are {many}"));
    }
    let bytes = elements.and_then(|elements| elements.checked_mul(call.dtype.size() as u64));
    if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        return wrong(format!("so many elements of {} are more bytes than can be addressed", call.dtype));
    }
    if collective.reduces() && !call.op.applies_to(call.dtype) {
        return Err(BuildError::NotInteger { op: call.op, dtype: call.dtype });
    }
    Ok(())
}

/// More channels than this have no place in a [`Connection`]. (NCCL has 64 at most.)
const MOST_CHANNELS: u32 = 1 << 15;

/// A place in the input.
const fn input(offset: u64) -> Piece {
    Piece { buffer: Buffer::Input, offset }
}

/// A place in the output.
const fn output(offset: u64) -> Piece {
    Piece { buffer: Buffer::Output, offset }
}

/// The connection with a rank.
const fn with(channel: u32, lane: u8, rank: u32) -> Connection {
    Connection { channel: channel as u16, lane, peer: Peer::Rank(rank) }
}

impl Choice {
    /// A schedule without switches and scratch memory.
    fn schedule(
        &self,
        call: &Call,
        ranks: u32,
        fifo: Fifo,
        channels: u32,
        program: Arc<dyn Program>,
    ) -> Schedule {
        Schedule {
            call: call.clone(),
            ranks,
            algorithm: self.algorithm,
            protocol: self.protocol,
            channels,
            fifo,
            groups: Vec::new(),
            scratch: 0,
            program,
        }
    }
}
