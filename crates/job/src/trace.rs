//! Traces: what ranks did, as somebody wrote it down, instead of a model.
//!
//! A [`RankTrace`] is what one rank does, node by node; [`TraceGraph::new`] puts those of all ranks together into programs and
//! groups that run as those of a model do. Readers of files make the first (`railnet_formats::chakra`).

mod graph;
mod recording;
mod roles;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use railnet_coll::Collective;
use railnet_core::{Bytes, Span};
use thiserror::Error;

pub use graph::TraceGraph;
pub use recording::{
    Origin, Recorded, RecordedGroup, RecordedMemory, RecordedOperation, Recording, RecordingError, Role,
};
pub use roles::Pricing;

/// What one rank does.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RankTrace {
    /// Its nodes, in the order of the file.
    pub nodes: Vec<TraceNode>,
    /// Attributes that nobody reads, and how often they were there.
    pub ignored: BTreeMap<String, u64>,
}

/// A node of a trace.
#[derive(Clone, PartialEq, Debug)]
pub struct TraceNode {
    /// Its number.
    pub id: u64,
    /// What it is called.
    pub name: String,
    /// What it does.
    pub what: TraceWork,
    /// Nodes that have to be done first.
    pub after: Vec<u64>,
    /// When it began, where that was written down: of two that could run, the earlier one does.
    pub start: Span,
}

/// What a node does.
#[derive(Clone, PartialEq, Debug)]
pub enum TraceWork {
    /// Nothing that takes time: metadata, and what the CPU does.
    Nothing,
    /// Computes: for so long where that is known, else so many operations on so many bytes.
    Compute {
        /// For how long, where that was measured.
        time: Option<Span>,
        /// Floating-point operations.
        operations: u64,
        /// Bytes that it touches.
        bytes: Bytes,
    },
    /// A collective of a process group; all ranks where none is named.
    Collective {
        /// The collective.
        collective: Collective,
        /// Bytes of what each rank gives.
        bytes: Bytes,
        /// The process group.
        group: Option<String>,
    },
    /// A message to a rank.
    Send {
        /// The rank that receives.
        to: u32,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A message from a rank.
    Receive {
        /// The rank that sends.
        from: u32,
        /// Its bytes.
        bytes: Bytes,
    },
}

/// Why traces make no job.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A node waits for one that is not there.
    #[error("node {node} of rank {rank} waits for node {missing}, which its trace does not have")]
    Missing {
        /// The rank.
        rank: u32,
        /// The node.
        node: u64,
        /// What it waits for.
        missing: u64,
    },
    /// Two nodes have one number.
    #[error("rank {rank} has two nodes with number {node}")]
    Twice {
        /// The rank.
        rank: u32,
        /// The number.
        node: u64,
    },
    /// Nodes wait for each other.
    #[error("node {node} of rank {rank} waits for itself, by way of others")]
    Circle {
        /// The rank.
        rank: u32,
        /// One of them.
        node: u64,
    },
    /// A message leads nowhere.
    #[error(
        "node {node} of rank {rank} is a message between it and rank {other}: there are ranks 0 to {last}"
    )]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The node.
        node: u64,
        /// The other end.
        other: u32,
        /// The last rank.
        last: u32,
    },
    /// A collective that jobs do not run.
    #[error("node {node} of rank {rank} is a {what}, which jobs do not run")]
    NotRun {
        /// The rank.
        rank: u32,
        /// The node.
        node: u64,
        /// What it is.
        what: &'static str,
    },
    /// The ranks of a group are not evenly spaced.
    #[error("process group \"{group}\" has ranks {ranks}: only groups of evenly spaced ranks can run")]
    Uneven {
        /// The group.
        group: String,
        /// Its ranks.
        ranks: String,
    },
    /// Too many groups overlap.
    #[error(
        "process group \"{group}\" overlaps with groups of {families} other kinds: that many ways to share out ranks cannot run"
    )]
    TooMany {
        /// The group.
        group: String,
        /// How many kinds there are.
        families: usize,
    },
}
