//! Jobs: the graph of a step, with its communication by formulas or as packets in the fabric.

mod analytic;
mod driver;
mod packet;
mod recovery;
mod report;

pub use report::{
    Connections, FaultPrice, How, JobResult, JobsOutcome, RecoveryStory, SaidResult, StepResult,
};

use super::RunError;
use crate::scenario::{Fidelity, Scenario};

/// Runs the jobs of a scenario.
pub fn run_jobs(scenario: &Scenario) -> Result<JobsOutcome, RunError> {
    let mut outcome = match scenario.fidelity {
        Fidelity::Analytic => analytic::run(scenario),
        Fidelity::Packet => packet::run(scenario),
    }?;
    recovery::relive(scenario, &mut outcome)?;
    Ok(outcome)
}
