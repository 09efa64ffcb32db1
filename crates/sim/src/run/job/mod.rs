//! Jobs: the graph of a step, with its communication by formulas or as packets in the fabric.

mod analytic;
mod driver;
mod memo;
mod packet;
mod report;

pub use memo::MemoCount;
pub use report::{
    Connections, FaultPrice, How, JobResult, JobsOutcome, PortTraffic, SaidResult, Start, StepResult, Trouble,
};

use railnet_core::{Digest, Time};

use super::{Run, RunError};
use crate::scenario::{Fidelity, Scenario};

/// How jobs are run.
pub struct JobSettings<'a> {
    /// Whether a collective identical to an earlier one, with nothing in its way, is taken from memory. The result is the
    /// same.
    pub memo: bool,
    /// Who looks on, where packets are sent.
    pub watch: Option<&'a mut dyn JobWatch>,
}

impl Default for JobSettings<'_> {
    fn default() -> Self {
        Self { memo: true, watch: None }
    }
}

/// One who looks on while jobs run.
pub trait JobWatch {
    /// A run is about to begin: taps can be opened, and the form of packets chosen. With faults there is a second one,
    /// without them, which it is not told of.
    fn begin(&mut self, _run: &mut Run<Digest>) {}

    /// So far it has come. Whether it shall go on; else what is known by now is the result.
    fn look(&mut self, run: &mut Run<Digest>, progress: &JobProgress) -> bool;
}

/// How far jobs have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobProgress {
    /// In virtual time.
    pub now: Time,
    /// Events handled.
    pub events: u64,
    /// Steps that are over, of all jobs.
    pub steps: (u64, u64),
    /// Calls of ranks that are over, of all that will be made.
    pub calls: (u64, u64),
    /// Whether this is the run without faults, by which those are priced.
    pub is_second: bool,
}

/// Runs the jobs of a scenario.
pub fn run_jobs(scenario: &Scenario) -> Result<JobsOutcome, RunError> {
    run_jobs_with(scenario, JobSettings::default())
}

/// The same, as one says.
pub fn run_jobs_with(scenario: &Scenario, settings: JobSettings<'_>) -> Result<JobsOutcome, RunError> {
    match scenario.fidelity {
        Fidelity::Analytic => analytic::run(scenario),
        Fidelity::Packet => packet::run(scenario, settings),
    }
}
