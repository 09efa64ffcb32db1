//! How long GPUs compute, and jobs whose computing time is given instead of modelled.

use railnet_core::Span;

use crate::graph::{Job, Pace, Pass, StepGraph, Work};
use crate::parallel::Axis;

/// How long a GPU computes in the passes of a step, all microbatches together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passes {
    /// Forward.
    pub forward: Span,
    /// Backward, with what is computed again for it.
    pub backward: Span,
    /// The optimiser.
    pub optimiser: Span,
}

impl Passes {
    /// Of a GPU that does nothing else, on average over the stages of the pipeline; of several kinds of GPUs, the first.
    pub fn of(job: &Job) -> Self {
        let graph = StepGraph::new(job);
        let stages = graph.layout.size(Axis::Pipeline) as usize;
        let mut sums = Self::default();
        for operation in graph.programs.iter().take(stages).flat_map(|program| &program.operations) {
            let Work::Compute { time, experts } = operation.work else { continue };
            let sum = match operation.pass {
                Pass::Forward => &mut sums.forward,
                Pass::Recompute | Pass::Backward => &mut sums.backward,
                Pass::Optimiser | Pass::Checkpoint => &mut sums.optimiser,
            };
            *sum = *sum + time + experts;
        }
        let average = |sum: Span| Span::from_ps(sum.as_ps() / stages.max(1) as u64);
        Self {
            forward: average(sums.forward),
            backward: average(sums.backward),
            optimiser: average(sums.optimiser),
        }
    }

    /// All of them.
    pub fn total(&self) -> Span {
        self.forward + self.backward + self.optimiser
    }
}

/// How long a GPU of a job computes in a step if it does nothing else, on average over the stages of its pipeline; of several
/// kinds of GPUs, the first.
pub fn compute(job: &Job) -> Span {
    Passes::of(job).total()
}

/// The same job on GPUs that compute its step in this time, however fast they would have to be. Passes keep their proportions.
#[must_use]
pub fn paced(job: &Job, told: Span) -> Job {
    let times = ratio(told, compute(job));
    let Pace { forward, backward, optimiser } = job.pace;
    let pace = Pace { forward: forward * times, backward: backward * times, optimiser: optimiser * times };
    Job { pace, ..job.clone() }
}

/// The same job on GPUs that compute its forward and its backward pass in these times, where they are given.
#[must_use]
pub fn paced_by_pass(job: &Job, forward: Option<Span>, backward: Option<Span>) -> Job {
    if forward.is_none() && backward.is_none() {
        return job.clone();
    }
    let by_itself = Passes::of(job);
    let mut pace = job.pace;
    pace.forward *= forward.map_or(1.0, |told| ratio(told, by_itself.forward));
    pace.backward *= backward.map_or(1.0, |told| ratio(told, by_itself.backward));
    Job { pace, ..job.clone() }
}

fn ratio(told: Span, by_itself: Span) -> f64 {
    told.as_secs_f64() / by_itself.as_secs_f64().max(f64::MIN_POSITIVE)
}
