//! Why a run failed.

use railnet_core::Span;
use railnet_nic::{PostError, Status};
use thiserror::Error;

use crate::scenario::ScenarioError;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scenario makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A flow failed.
    #[error("flow {flow} (host {from} to host {to}) failed: {status}")]
    Flow {
        /// Which.
        flow: u32,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// How.
        status: Status,
    },
    /// A flow could not be started.
    #[error("flow {flow} (host {from} to host {to}) cannot be started: {reason}")]
    Post {
        /// Which.
        flow: u32,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Why not.
        reason: PostError,
    },
    /// Flows did not finish.
    #[error(
        "{unfinished} of {flows} flows did not finish within {limit}; the first is flow {first} (host {from} to host {to})"
    )]
    Unfinished {
        /// How many.
        unfinished: usize,
        /// Of how many.
        flows: usize,
        /// The time they had.
        limit: Span,
        /// The first of them.
        first: u32,
        /// Its sender.
        from: u32,
        /// Its receiver.
        to: u32,
    },
}
