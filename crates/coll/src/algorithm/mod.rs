//! Algorithms: pure functions from a call, a choice and a wiring to a schedule. One file each.

mod ring;
mod split;

use std::fmt;
use std::sync::Arc;

use railnet_core::Bytes;
use thiserror::Error;

use crate::call::{Call, Collective};
use crate::protocol::{Fifo, Protocol};
use crate::schedule::{Program, Schedule};
use crate::wiring::Wiring;

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
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
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
    /// The buffer of a connection; `None` for the protocol's own.
    pub buffer: Option<Bytes>,
    /// The longest chunk, in bytes of data; `None` for as much as the slots allow.
    pub chunk: Option<Bytes>,
    /// How chunks lie in slots; `None` for NCCL's way.
    pub fifo: Option<Fifo>,
}

impl Choice {
    /// One channel, and sizes as NCCL has them.
    pub const fn new(algorithm: Algorithm, protocol: Protocol) -> Self {
        Self { algorithm, protocol, channels: 1, buffer: None, chunk: None, fifo: None }
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
    #[error("{algorithm} does not do {collective}")]
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
    /// The algorithm cannot run on these ranks.
    #[error("{algorithm} cannot run here: {reason}")]
    Impossible {
        /// The algorithm.
        algorithm: Algorithm,
        /// Why.
        reason: String,
    },
}

/// The schedule of a call.
pub fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    match choice.algorithm {
        Algorithm::Ring => ring::build(call, choice, wiring),
        algorithm => Err(BuildError::Unsupported { algorithm, collective: call.collective }),
    }
}
