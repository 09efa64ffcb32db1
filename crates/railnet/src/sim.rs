//! The simulator: scenarios as files or built in code, runs of them, what came of a run, and a network that another simulator
//! drives.
//!
//! A [`ScenarioSpec`] is a scenario as a value: every section is a type with defaults, it is written to TOML by
//! [`ScenarioSpec::to_toml`] and read from it, and [`ScenarioSpec::build`] checks it. What a type has no field for is in its
//! `more`, under the key that docs/scenarios.md has.
//!
//! ```
//! use railnet::sim::{FabricSpec, ScenarioSpec, TopologySpec, TrafficSpec, simulate};
//! use railnet::units::{Bytes, Time};
//!
//! let spec = ScenarioSpec {
//!     fabric: Some(FabricSpec { topology: TopologySpec::SingleSwitch { hosts: 5 }, ..FabricSpec::default() }),
//!     traffic: vec![TrafficSpec::incast("0..3", 4, Bytes(500_000))],
//!     ..ScenarioSpec::default()
//! };
//! let outcome = simulate(&spec.build()?)?;
//! assert_eq!(outcome.flows.len(), 4);
//! // Four senders share the receiver's 100 Gb/s: 2 MB take 160 µs at least.
//! assert!(outcome.completion.since(Time::ZERO).as_us_f64() > 160.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what | how |
//! | --- | --- |
//! | run traffic or collectives | [`simulate`]; [`run`] with a sink of events; [`Run`] step by step |
//! | run training jobs | [`simulate_jobs`] |
//! | change one key and run again | change the [`ScenarioSpec`], or its `more` |
//! | read a file | [`Scenario::parse`]; to change it first, [`ScenarioSpec::from_toml`] |

mod quantity;
mod spec;

pub use railnet_core::event::{Event, NoSink, Sink};
pub use railnet_core::{Component, RunDigest, Span, Time};
pub use railnet_sim::{
    CollectiveResult, Connections, Coupled, CouplingError, FaultPrice, Fidelity, Finished, Flow, FlowResult,
    JobResult, JobsOutcome, KindResult, LaneResult, LinkResult, MemoCount, Outcome, Preset, Run, RunError,
    SaidResult, Scenario, ScenarioError, Series, Start, StepResult, TransferResult, Trouble, run,
};
pub use spec::{
    ClusterSpec, CollectiveSpec, FabricSpec, FaultSpec, LinkSpec, ModelSpec, NicSpec, ParallelSpec,
    ScenarioSpec, SpecError, SwitchSpec, TopologySpec, TrafficSpec, TrainingSpec,
};

/// Runs the traffic and the collectives of a scenario to their end.
pub fn simulate(scenario: &Scenario) -> Result<Outcome, RunError> {
    run(scenario, NoSink).map(|(outcome, _)| outcome)
}

/// Runs the training jobs of a scenario: the section `model`, or each of the `job`s.
pub fn simulate_jobs(scenario: &Scenario) -> Result<JobsOutcome, RunError> {
    railnet_sim::run_jobs(scenario)
}
