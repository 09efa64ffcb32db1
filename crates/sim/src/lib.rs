//! Scenarios: traffic in a simulated fabric, in virtual time.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod flow_list;
mod locate;
mod round_trip;
mod rows;
mod run;
mod scenario;
mod traffic;
mod written;

pub use run::{
    CollectiveResult, ConnectionSample, FlowFailure, FlowResult, Hold, LaneResult, LinkResult, LinkSample,
    Outcome, Run, RunError, Series, Standstill, TransferResult, Waiting, listed, run,
};
pub use scenario::{Files, Preset, Scenario, ScenarioError, SourceFile, Topology, graph};
pub use traffic::Flow;
