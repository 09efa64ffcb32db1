//! Jobs: the graph of a step, with its communication by formulas or as packets in the fabric.

mod analytic;
mod driver;
mod flow_level;
mod memo;
mod packet;
mod partitions;
mod recovery;
mod report;
mod worker_pool;

pub use memo::MemoCount;
pub use report::{
    Connections, FaultPrice, How, JobResult, JobsOutcome, KindResult, PortTraffic, RecoveryStory, SaidResult,
    Start, StepResult, Trouble,
};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use railnet_core::event::{NoSink, Sink};
use railnet_core::{Digest, Time};

use super::{Run, RunError};
use crate::scenario::{Fidelity, Scenario};

/// How jobs are run.
pub struct JobSettings<'a, S> {
    /// Whether a collective identical to an earlier one, with nothing in its way, is a memo hit. The result is the
    /// same.
    pub memo: bool,
    /// How many threads may share the work, where packets are sent and the network is large. The result is the same.
    pub threads: u32,
    /// Observes the run, where packets are sent.
    pub observer: Option<&'a mut dyn JobObserver<S>>,
}

impl<S> Default for JobSettings<'_, S> {
    fn default() -> Self {
        Self { memo: true, threads: 1, observer: None }
    }
}

/// Observes jobs while they run. With faults there is a second run without them, the baseline by which they are priced.
pub trait JobObserver<S> {
    /// A run is being set up, which takes long on large clusters: `part` comes next. Also called for the baseline.
    fn set_up(&mut self, _part: &'static str) {}

    /// A run is about to begin: taps can be opened, and the form of packets chosen. Not called for the baseline.
    fn begin(&mut self, _run: &mut Run<(Digest, S)>) {}

    /// All is set up, and the first microseconds begin, in which connections are made. From now on the run obeys [`JobObserver::stop`].
    fn runs(&mut self) {}

    /// A flag that stops the run before the next observation: on a large cluster that is long.
    fn stop(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// Called every few microseconds of virtual time. `false` stops the run: what is known by now is the result.
    fn observe(&mut self, run: &mut Run<(Digest, S)>, progress: &JobProgress) -> bool;

    /// The same for the baseline.
    fn observe_baseline(&mut self, _progress: &JobProgress) -> bool {
        true
    }
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
    /// Whether this is the baseline: the run without faults, by which those are priced.
    pub is_baseline: bool,
}

/// Runs the jobs of a scenario.
pub fn run_jobs(scenario: &Scenario) -> Result<JobsOutcome, RunError> {
    run_jobs_with(scenario, NoSink, JobSettings::default()).map(|(outcome, _)| outcome)
}

/// The same with an observer: events of packets go to `sink`, which comes back with the outcome. A sink
/// that wants details gets all that ranks did, too ([`JobResult::timeline`]), and nothing is memoised. Without
/// packets there are no events.
pub fn run_jobs_with<S: Sink>(
    scenario: &Scenario,
    sink: S,
    settings: JobSettings<'_, S>,
) -> Result<(JobsOutcome, S), RunError> {
    match run_jobs_to_failure(scenario, sink, settings)? {
        (_, _, Some(failure)) => Err(failure),
        (outcome, sink, None) => Ok((outcome, sink)),
    }
}

/// The same, with what happened until then where a run fails, and why it did. Errors are those of the scenario.
pub fn run_jobs_to_failure<S: Sink>(
    scenario: &Scenario,
    sink: S,
    settings: JobSettings<'_, S>,
) -> Result<(JobsOutcome, S, Option<RunError>), RunError> {
    scenario.check_flow_fidelity()?;
    let (mut outcome, sink, failure) = match scenario.fidelity {
        Fidelity::Analytic | Fidelity::Flow => (analytic::run(scenario, keeps_timeline::<S>())?, sink, None),
        Fidelity::Packet => packet::run(scenario, sink, settings)?,
    };
    if !outcome.is_partial {
        recovery::relive(scenario, &mut outcome)?;
    }
    Ok((outcome, sink, failure))
}

/// Whether the sink wants to know what each rank did.
const fn keeps_timeline<S: Sink>() -> bool {
    S::ENABLED && S::DETAIL
}
