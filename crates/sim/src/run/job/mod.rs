//! Jobs: the graph of a step, with its communication by formulas or as packets in the fabric.

mod analytic;
mod crew;
mod driver;
mod flow_level;
mod memo;
mod packet;
mod recovery;
mod report;
mod stage;

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
    /// Whether a collective identical to an earlier one, with nothing in its way, is taken from memory. The result is the
    /// same.
    pub memo: bool,
    /// How many threads may share the work, where packets are sent and the network is large. The result is the same.
    pub threads: u32,
    /// Who looks on, where packets are sent.
    pub watch: Option<&'a mut dyn JobWatch<S>>,
}

impl<S> Default for JobSettings<'_, S> {
    fn default() -> Self {
        Self { memo: true, threads: 1, watch: None }
    }
}

/// One who looks on while jobs run.
pub trait JobWatch<S> {
    /// A run is being set up, which takes long on large clusters: this is what comes next. With faults, the one without them is told
    /// of too.
    fn set_up(&mut self, _stage: &'static str) {}

    /// A run is about to begin: taps can be opened, and the form of packets chosen. With faults there is a second one,
    /// without them, which it is not told of.
    fn begin(&mut self, _run: &mut Run<(Digest, S)>) {}

    /// All is set up, and the first microseconds begin, in which connections are made. From now on the run minds [`JobWatch::stop`].
    fn runs(&mut self) {}

    /// Is set where the run shall stop before it is looked at again: on a large cluster that takes long.
    fn stop(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// So far it has come. Whether it shall go on; else what is known by now is the result.
    fn look(&mut self, run: &mut Run<(Digest, S)>, progress: &JobProgress) -> bool;

    /// So far the one without faults has come.
    fn look_beside(&mut self, _progress: &JobProgress) -> bool {
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
    /// Whether this is the run without faults, by which those are priced.
    pub is_second: bool,
}

/// Runs the jobs of a scenario.
pub fn run_jobs(scenario: &Scenario) -> Result<JobsOutcome, RunError> {
    run_jobs_with(scenario, NoSink, JobSettings::default()).map(|(outcome, _)| outcome)
}

/// The same, as one says, where somebody watches: events of packets go to `sink`, which comes back with the outcome. A sink
/// that wants details gets all that ranks did, too ([`JobResult::timeline`]), and nothing is taken from memory. Without
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

/// Whether a watcher wants to know what each rank did.
const fn keeps_timeline<S: Sink>() -> bool {
    S::ENABLED && S::DETAIL
}
