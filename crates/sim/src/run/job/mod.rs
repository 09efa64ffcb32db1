//! Jobs: the graph of a step, with its communication by formulas or as packets in the fabric.

mod analytic;
mod driver;
mod packet;
mod recovery;
mod report;

pub use report::{
    Connections, FaultPrice, How, JobResult, JobsOutcome, KindResult, RecoveryStory, SaidResult, StepResult,
};

use railnet_core::Digest;
use railnet_core::event::{NoSink, Sink};

use super::{Run, RunError};
use crate::scenario::{Fidelity, Scenario};

/// Runs the jobs of a scenario.
pub fn run_jobs(scenario: &Scenario) -> Result<JobsOutcome, RunError> {
    run_jobs_watched(scenario, NoSink, &mut |_| {}).map(|(outcome, _)| outcome)
}

/// The same, where somebody watches: events of packets go to `sink`, which comes back with the outcome. A sink that wants
/// details gets all that ranks did, too ([`JobResult::timeline`]). `look` is called with the run before it begins and ever so
/// often on its way: for taps. Without packets there are no events, and nothing to look at.
pub fn run_jobs_watched<S: Sink>(
    scenario: &Scenario,
    sink: S,
    look: &mut Look<'_, S>,
) -> Result<(JobsOutcome, S), RunError> {
    let (mut outcome, sink) = match scenario.fidelity {
        Fidelity::Analytic => (analytic::run(scenario, keeps_timeline::<S>())?, sink),
        Fidelity::Packet => packet::run(scenario, sink, look)?,
    };
    recovery::relive(scenario, &mut outcome)?;
    Ok((outcome, sink))
}

/// Somebody who looks at a run on its way.
pub type Look<'a, S> = dyn FnMut(&mut Run<(Digest, S)>) + 'a;

/// Whether a watcher wants to know what each rank did.
const fn keeps_timeline<S: Sink>() -> bool {
    S::ENABLED && S::DETAIL
}
