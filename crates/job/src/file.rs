//! The sections of a job file: what a person writes, with defaults, and what is made of it.
//!
//! `[model]`, `[training]`, `[parallel]`, `[launch]`, `[storage]` and `parameters` are fields of a [`JobSection`]; a file has
//! several as `[[job]]`. What is wrong is told with the key it is about, so that whoever has the text can point at it.

mod error;
mod model;
mod parallel;
mod resolve;
mod training;
mod written;

#[cfg(test)]
mod tests;

use railnet_core::{Bytes, Rate, Span};
use serde::Deserialize;

pub use error::FileError;
pub use model::{ExpertsSection, ModelSection};
pub use parallel::{AxisName, ParallelSection, ScheduleName};
pub use resolve::{Recovery, Resolved, others};
pub use training::{
    AttentionName, GradientName, OptimiserName, PrecisionName, RecomputeName, TrainingSection,
};
pub use written::Written;

/// `[[job]]`, or the same sections at the top of a file with one job.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct JobSection {
    /// What it is called in reports.
    pub name: Option<String>,
    /// What is trained.
    pub model: ModelSection,
    /// Batches, formats and recomputation.
    pub training: TrainingSection,
    /// Spread how.
    pub parallel: ParallelSection,
    /// On what part of the cluster.
    pub launch: LaunchSection,
    /// Where checkpoints go.
    pub storage: Option<StorageSection>,
    /// Parameters that live away from the GPUs.
    pub parameters: Option<ParametersSection>,
}

/// `[launch]`: what Slurm is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct LaunchSection {
    /// Nodes; all of the cluster by default.
    pub nodes: Option<u32>,
    /// Ranks on each of them; one for each GPU by default.
    pub ranks_per_node: Option<u32>,
    /// Nodes beside them that are kept for those that fail.
    pub spares: u32,
    /// How long ranks wait for one that is lost before they give up.
    pub timeout: Option<Written<Span>>,
    /// From giving up to the moment when all ranks are there again.
    pub restart: Option<Written<Span>>,
}

/// `[storage]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageSection {
    /// What a node writes to its own drives, all together, or what each of the servers that have the storage takes.
    pub rate: Written<Rate>,
    /// Nodes of the cluster that have the storage, beside those of ranks; where there are none, every node has its own.
    #[serde(default)]
    pub servers: u32,
    /// Whether GPUs write to it themselves (GPUDirect Storage), or data goes through the memory of the host.
    #[serde(default)]
    pub gpudirect: bool,
    /// Bytes of a checkpoint, of all ranks together; by default parameters and the optimiser's state.
    #[serde(default)]
    pub checkpoint: Option<Written<Bytes>>,
    /// Steps from one checkpoint to the next; none by default.
    #[serde(default)]
    pub interval: Option<u32>,
    /// What a node reads from its drives, or what each server gives, when a job begins again; as `rate` by default.
    #[serde(default)]
    pub read: Option<Written<Rate>>,
}

/// `parameters = { … }`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParametersSection {
    /// How many nodes of the cluster have them, beside those of ranks.
    pub servers: u32,
    /// What each takes and gives; what its NICs carry by default.
    #[serde(default)]
    pub rate: Option<Written<Rate>>,
}
