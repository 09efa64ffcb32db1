//! Training jobs: from a model and a layout of ranks to a step's graph of compute and collectives, and what came of it.
//!
//! - [`model::Model`] describes a transformer, [`model::catalogue`] has some; [`training::Training`] says how it is trained.
//! - [`parallel::Parallel`] spreads it over ranks; [`parallel::Layout`] says who is in a group with whom.
//! - [`compute`] says how long a GPU takes for the parts of a layer.
//! - [`graph::StepGraph`] is what every rank does in a step, and what waits for what.
//! - [`run`] runs it, and says how long the step takes and where the time goes.
//! - [`memory::fit`] says what lies in the memory of a GPU, and what to change where that is too much.
//! - [`plan`] says what a job needs of its network, what there is, and which layout is best.
//! - [`trace`] has what ranks did, read from files, instead of a model.
//! - [`mod@file`] has the sections of a job file.
//!
//! Nothing here does input or output, and nothing here has seen a packet.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod compute;
pub mod file;
pub mod graph;
pub mod memory;
pub mod model;
pub mod parallel;
pub mod plan;
pub mod run;
pub mod stage;
pub mod trace;
pub mod training;

/// The example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
