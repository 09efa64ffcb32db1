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
    BlockingCause, CollectiveResult, ConnectionSample, Connections, Coupled, CouplingError, FaultPrice,
    Finished, FlowFailure, FlowLevel, FlowLevelRun, FlowResult, How, JobObserver, JobProgress, JobResult,
    JobSettings, JobsOutcome, KindResult, LaneResult, LinkResult, LinkSample, MemoCount, Outcome,
    PortTraffic, RecoveryStory, Run, RunError, SaidResult, Series, StallReport, Start, StepResult,
    TransferResult, Trouble, Waiting, check, listed, run, run_jobs, run_jobs_to_failure, run_jobs_with,
};
pub use scenario::{
    Fidelity, Files, Filled, Inert, PlacedJob, Preset, Scenario, ScenarioError, SourceFile, Topology,
    WhyInert, graph,
};
pub use traffic::Flow;
