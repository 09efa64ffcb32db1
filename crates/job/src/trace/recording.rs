//! What a script did on one rank of each role, kernel by kernel and call by call, as `railnet dryrun` records it.
//!
//! A CUDA stream runs what it was given in order; collectives and messages have streams of their own, which begin when what was
//! queued before them is done and which nobody waits for who does not say so. [`TraceGraph::of_recording`] makes programs of it.

use std::collections::BTreeMap;

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType, Span};
use thiserror::Error;

use crate::compute::{Kernel, NoGpu};
use crate::graph::Pass;

/// What a script did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recording {
    /// How many ranks it would run on.
    pub ranks: u32,
    /// The ranks that ran, one of each role, in order.
    pub roles: Vec<Role>,
    /// What it was told to do.
    pub command: String,
}

/// What one rank did in a step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Role {
    /// Which rank.
    pub rank: u32,
    /// The lines of the script that other fields name, such as `train.py:88`.
    pub lines: Vec<String>,
    /// The kernels that operations name.
    pub kernels: Vec<Kernel>,
    /// The process groups that operations name.
    pub groups: Vec<RecordedGroup>,
    /// What it did, in the order in which the CPU started it.
    pub operations: Vec<RecordedOperation>,
    /// The memory that the script had.
    pub memory: RecordedMemory,
    /// What was assumed, and what had no effect.
    pub notes: Vec<String>,
}

/// A process group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedGroup {
    /// What the script calls it, such as the name of a mesh's dimension; empty where it has no name.
    pub name: String,
    /// Its ranks, in order.
    pub ranks: Vec<u32>,
}

/// Memory of a GPU as the script allocated it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordedMemory {
    /// Parameters of modules.
    pub parameters: Bytes,
    /// Their gradients.
    pub gradients: Bytes,
    /// What the optimiser made and kept.
    pub optimiser: Bytes,
    /// The most at any time.
    pub peak: Bytes,
}

/// Where an operation comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The place of its line among the lines.
    pub line: u32,
    /// The CUDA stream that was current: 0 is the default one.
    pub stream: u32,
    /// What part of the step it belongs to.
    pub pass: Pass,
}

/// What the CPU started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordedOperation {
    /// A kernel, by its place among the kernels.
    Kernel {
        /// Where it comes from.
        origin: Origin,
        /// Which.
        kernel: u32,
    },
    /// A collective.
    Collective {
        /// Where it comes from.
        origin: Origin,
        /// What others call it.
        id: u32,
        /// What.
        collective: Collective,
        /// The place of its group among the groups.
        group: u32,
        /// Bytes of the largest buffer.
        bytes: Bytes,
        /// Of what type.
        dtype: DataType,
    },
    /// A message to a rank.
    Send {
        /// Where it comes from.
        origin: Origin,
        /// What others call it.
        id: u32,
        /// The rank.
        to: u32,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A message from a rank.
    Receive {
        /// Where it comes from.
        origin: Origin,
        /// What others call it.
        id: u32,
        /// The rank.
        from: u32,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A stream waits for communication.
    Wait {
        /// Which stream.
        stream: u32,
        /// For what.
        id: u32,
    },
    /// An event is recorded in a stream.
    RecordEvent {
        /// Which stream.
        stream: u32,
        /// Which event.
        event: u32,
    },
    /// A stream waits for an event.
    WaitEvent {
        /// Which stream.
        stream: u32,
        /// Which event.
        event: u32,
    },
    /// The CPU waits for a stream; for all of them where none is named.
    Synchronise {
        /// Which stream.
        stream: Option<u32>,
    },
}

/// Why a recording makes no job.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// It has no roles.
    #[error("the recording has no roles")]
    Empty,
    /// The roles are not evenly spaced.
    #[error(
        "the roles are ranks {roles} of {ranks}: they have to begin with rank 0, be evenly spaced, and come out even in all ranks"
    )]
    Uneven {
        /// The ranks.
        roles: String,
        /// Of how many.
        ranks: u32,
    },
    /// A number that nothing has.
    #[error("operation {operation} of rank {rank} names {what} {number}, which the recording does not have")]
    Missing {
        /// The rank.
        rank: u32,
        /// The operation's place.
        operation: usize,
        /// What.
        what: &'static str,
        /// Which.
        number: u32,
    },
    /// A message to a rank that has no role.
    #[error(
        "{line}: rank {rank} exchanges messages with rank {other}, which did not run: name the ranks that differ (--roles {rank},{other}), or --roles all"
    )]
    NoRole {
        /// The rank.
        rank: u32,
        /// The other.
        other: u32,
        /// The line of the script.
        line: String,
    },
    /// A collective that jobs do not run.
    #[error("{line}: {what} inside a step is not run: it belongs before the first step or after the last")]
    NotRun {
        /// The line of the script.
        line: String,
        /// What it is.
        what: &'static str,
    },
    /// Ranks of a group are unevenly spaced.
    #[error(
        "{line}: the process group of ranks {ranks} is not evenly spaced: only groups along the axes of a mesh can run"
    )]
    UnevenGroup {
        /// The line of the script.
        line: String,
        /// Its ranks.
        ranks: String,
    },
    /// More kinds of groups than can be told apart.
    #[error("{line}: groups of {families} kinds are used in the step; {most} can be told apart")]
    TooMany {
        /// The line of the script.
        line: String,
        /// How many there are.
        families: usize,
        /// How many there may be.
        most: usize,
    },
    /// The GPU cannot compute it.
    #[error("{line}: {why}")]
    NoGpu {
        /// The line of the script.
        line: String,
        /// Why.
        why: NoGpu,
    },
}

/// Where operations of programs come from: what reports name beside the script's lines.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recorded {
    /// The lines of all roles.
    pub lines: Vec<String>,
    /// Of each program, of each operation: its lines, and how long the GPU computes for each.
    pub programs: Vec<Vec<Vec<(u32, Span)>>>,
    /// Operations of matrix products and attention in a step, of each program.
    pub flops: Vec<f64>,
    /// How long the GPU had nothing to do because the CPU had not started it yet, of each program.
    pub launch: Vec<Span>,
    /// Kernels of a step, of each program.
    pub kernels: Vec<u64>,
    /// The memory of each role.
    pub memory: Vec<RecordedMemory>,
    /// The ranks that ran.
    pub roles: Vec<u32>,
    /// What was assumed, and what had no effect.
    pub notes: Vec<String>,
}

/// Numbers lines of all roles.
#[derive(Debug, Default)]
pub(super) struct Lines {
    numbers: BTreeMap<String, u32>,
    pub(super) all: Vec<String>,
}

impl Lines {
    pub(super) fn number(&mut self, line: &str) -> u32 {
        if let Some(known) = self.numbers.get(line) {
            return *known;
        }
        let number = self.all.len() as u32;
        self.numbers.insert(line.to_owned(), number);
        self.all.push(line.to_owned());
        number
    }
}
