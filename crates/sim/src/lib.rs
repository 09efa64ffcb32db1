//! Scenarios: traffic in a simulated fabric, in virtual time.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod run;
mod scenario;
mod traffic;
mod written;

pub use run::{FlowResult, LinkResult, Outcome, RunError, graph, run};
pub use scenario::{Scenario, ScenarioError};
pub use traffic::Flow;
