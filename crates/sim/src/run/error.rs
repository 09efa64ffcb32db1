//! Why a run failed.

use std::fmt;

use railnet_core::Span;
use railnet_nic::{PostError, Status};
use thiserror::Error;

use super::stall::{BlockingCause, Waiting, listed};
use crate::scenario::ScenarioError;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scenario makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A flow failed.
    #[error(transparent)]
    Flow(Box<FlowFailure>),
    /// A flow could not be started.
    #[error("flow {flow} (host {from} to host {to}) cannot be started: {reason}")]
    Post {
        /// The number of the flow.
        flow: u32,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Why the NIC refused it.
        reason: PostError,
    },
    /// What ranks do together did not come to its end.
    #[error("{0}")]
    Collective(String),
    /// Flows are stalled for good.
    #[error(transparent)]
    Stuck(Box<StallReport>),
    /// More was to be kept over time than is kept.
    #[error("more than {rows} samples, every {interval}: give a larger `sample`")]
    Samples {
        /// How many are kept.
        rows: usize,
        /// How often they were taken.
        interval: Span,
    },
    /// Flows did not finish in time.
    #[error(
        "{unfinished} of {flows} flows did not finish within {limit}; the first is flow {first} (host {from} to host \
         {to}){}",
        place(*.first, .waiting)
    )]
    Unfinished {
        /// Flows that did not finish.
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
        /// Those that had started, and where they are.
        waiting: Vec<Waiting>,
    },
}

/// A flow whose connection gave up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowFailure {
    /// Which, and where it was.
    pub waiting: Waiting,
    /// How it failed.
    pub status: Status,
    /// What blocked packets at that moment.
    pub cause: BlockingCause,
}

impl fmt::Display for FlowFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { flow, from, to, .. } = self.waiting;
        let (status, place) = (&self.status, self.waiting.place());
        write!(f, "flow {flow} (host {from} to host {to}) failed: {status}; it waited at {place}")?;
        if self.cause != BlockingCause::Nothing {
            write!(f, "; {}", self.cause)?;
        }
        Ok(())
    }
}

impl std::error::Error for FlowFailure {}

/// A stall: flows that will not move again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StallReport {
    /// What blocks them.
    pub cause: BlockingCause,
    /// For how long nothing had moved when the run was given up.
    pub idle: Span,
    /// The flows that wait.
    pub waiting: Vec<Waiting>,
}

impl StallReport {
    /// What blocks how many flows, without their names.
    pub fn headline(&self) -> String {
        let Self { cause, idle, waiting } = self;
        let moved = match *idle {
            Span::ZERO => String::new(),
            idle => format!("nothing has moved for {idle}, and "),
        };
        match waiting.len() {
            1 => format!("{cause}; {moved}1 flow waits"),
            flows => format!("{cause}; {moved}{flows} flows wait"),
        }
    }

    /// The flows that wait, those that are held first and then those behind them: what they are, and which.
    pub fn groups(&self) -> Vec<(String, Vec<Waiting>)> {
        let (direct, behind): (Vec<Waiting>, Vec<Waiting>) = match &self.cause {
            BlockingCause::Storm { numbers, .. } => {
                self.waiting.iter().partition(|waiting| numbers.contains(&waiting.to))
            }
            _ => (Vec::new(), self.waiting.clone()),
        };
        let them = self.cause.them();
        let others = match (&self.cause, direct.is_empty()) {
            (BlockingCause::Silence, _) => "for ever".to_owned(),
            (_, true) => format!("behind {them}"),
            (_, false) => format!("{} to others behind those", behind.len()),
        };
        let groups = [(format!("{} to {them}", direct.len()), direct), (others, behind)];
        groups.into_iter().filter(|(_, flows)| !flows.is_empty()).collect()
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> =
            self.groups().iter().map(|(what, flows)| format!("{what}: {}", listed(flows))).collect();
        let comma = if matches!(self.cause, BlockingCause::Storm { .. }) { "," } else { "" };
        write!(f, "{}{comma} {}", self.headline(), groups.join("; "))
    }
}

impl std::error::Error for StallReport {}

/// Where the first of the flows that did not finish is, if it had started.
fn place(first: u32, waiting: &[Waiting]) -> String {
    let first = waiting.iter().find(|waiting| waiting.flow == first);
    first.map(|first| format!(", at {}", first.place())).unwrap_or_default()
}
