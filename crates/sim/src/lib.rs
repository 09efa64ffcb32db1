//! Scenarios: traffic in a simulated fabric, in virtual time.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod locate;
mod round_trip;
mod run;
mod scenario;
mod traffic;
mod written;

pub use run::{FlowResult, LinkResult, Outcome, Run, RunError, graph, run};
pub use scenario::{Scenario, ScenarioError, Topology};
pub use traffic::Flow;
