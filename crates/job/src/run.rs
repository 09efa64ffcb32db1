//! Runs the graph of a step: the same machine whoever carries its communication.
//!
//! [`Machine`] knows no network. It computes, says which rank enters which communication, and is told when that is done.
//! [`analytic::run`] drives it with the cost model of NCCL over a cluster; a simulator with packets drives it the same way.

pub mod analytic;
mod late;
mod life;
mod lines;
mod machine;
mod outcome;
mod path;
mod said;
mod timeline;
mod workers;

#[cfg(test)]
mod tests;

pub use life::{Failure, Life, Past, relive};
pub use lines::{LineTime, lines};
pub use machine::{Machine, Record, Ticket};
pub use outcome::{Breakdown, Outcome, Straggler};
pub use path::{PathStep, critical_path};
pub use said::{Said, Worst, kind, said};
pub use timeline::{RankSpan, timeline, timeline_until};
pub use workers::{Special, Worker, Workers};
