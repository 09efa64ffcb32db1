//! All layouts of a job on its GPUs, and why most of them are not the best.

use railnet_core::{Bytes, Rank, Span};
use railnet_topology::Cluster;

use super::{Ground, least_memory};
use crate::graph::{Communication, Job, Operation, Pass, Program, StepGraph, Stream, Work};
use crate::memory::{Memory, memory};
use crate::model::Model;
use crate::parallel::{Axis, Parallel, Schedule, Scope, Sharding};
use crate::run::analytic::{Asked, ClusterCosts, Network, NoPrice};
use crate::run::{Breakdown, Outcome};
use crate::training::{Recompute, Training};

/// A layout.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// The job, laid out so.
    pub job: Job,
    /// What lies in the memory of a GPU.
    pub memory: Memory,
}

impl Candidate {
    /// Whether that is there.
    pub fn fits(&self) -> bool {
        self.memory.total() <= least_memory(&self.job)
    }

    /// What a GPU lacks of what it would need.
    pub fn lacks(&self) -> Bytes {
        Bytes(self.memory.total().as_u64().saturating_sub(least_memory(&self.job).as_u64()))
    }
}

/// All layouts of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Sweep {
    /// Those that were tried, the best first.
    pub judged: Vec<Judged>,
    /// Those that fit but take longer by their computing alone, and what that is.
    pub beaten: Vec<(Candidate, Bound)>,
    /// Those that do not fit, the one that lacks least first.
    pub misfits: Vec<Candidate>,
}

impl Sweep {
    /// Finds at least so many of the best layouts, where there are as many.
    pub fn new(job: &Job, ground: &Ground<'_>, wanted: usize) -> Result<Self, NoPrice> {
        let all = candidates(job, common(ground.cluster));
        let (fits, mut misfits): (Vec<Candidate>, Vec<Candidate>) =
            all.into_iter().partition(Candidate::fits);
        misfits.sort_by_key(|one| one.memory.total());
        let mut costs = ground.costs();
        let mut bounded = Vec::new();
        for one in fits {
            let bound = bound(&one.job, &mut costs)?;
            bounded.push((one, bound));
        }
        bounded.sort_by_key(|(_, bound)| bound.at_least());
        let (mut judged, mut beaten): (Vec<Judged>, Vec<(Candidate, Bound)>) = (Vec::new(), Vec::new());
        for (candidate, bound) in bounded {
            let last = judged.get(wanted.max(1) - 1);
            if last.is_some_and(|last| bound.at_least() > last.outcome.step) {
                beaten.push((candidate, bound));
                continue;
            }
            let one = judge(candidate, ground, &mut costs)?;
            let place = judged.partition_point(|other| other.outcome.step <= one.outcome.step);
            judged.insert(place, one);
        }
        Ok(Self { judged, beaten, misfits })
    }
}

/// What a step takes at least: what is known of it without running it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bound {
    /// Computing of the stage that takes longest, but for what is computed again.
    pub compute: Span,
    /// Computing again.
    pub recompute: Span,
    /// What it says among those who share matrices, sequences or experts before it can compute on.
    pub said: Span,
    /// Waiting of that stage for the first microbatch, and of those before it for the last one.
    pub bubble: Span,
    /// Adding up gradients, or gathering parameters, of any stage: one call after the other.
    pub shared: Span,
}

impl Bound {
    /// The longer of what follows on each other and what runs beside it.
    pub fn at_least(&self) -> Span {
        (self.compute + self.recompute + self.said + self.bubble).max(self.shared)
    }
}

/// The least that a step can take: a stage computes its part of all microbatches, and each of those before it its part of one before
/// and after that. The stage counts that takes longest so.
pub(super) fn bound(job: &Job, costs: &mut ClusterCosts<'_>) -> Result<Bound, NoPrice> {
    let microbatches = job.training.microbatches(job.parallel.data);
    // One microbatch, which costs as much as the others.
    let chunks = u64::from(job.parallel.schedule.chunks());
    let parallel = Parallel { schedule: Schedule::OneForwardOneBackward, ..job.parallel.clone() };
    let global_batch = u64::from(parallel.data) * job.training.micro_batch;
    let training = Training { global_batch, ..job.training };
    let graph = StepGraph::new(&Job { parallel, training, ..job.clone() });
    let mut longest = Bound::default();
    let (mut before, mut shared) = (Span::ZERO, Span::ZERO);
    for stage in 0..graph.layout.size(Axis::Pipeline) {
        let of_stage = of_stage(&graph, stage, microbatches, job.parallel.sharding, costs)?;
        shared = shared.max(of_stage.shared);
        let bubble = Span::from_ps(before.as_ps() / chunks);
        before += of_stage.bubble;
        let bound = Bound { bubble, shared: Span::ZERO, ..of_stage };
        if bound.at_least() >= longest.at_least() {
            longest = bound;
        }
    }
    Ok(Bound { shared, ..longest })
}

/// What a stage does in so many microbatches, and in one of them.
fn of_stage(
    graph: &StepGraph,
    stage: u32,
    microbatches: u64,
    sharding: Sharding,
    costs: &mut ClusterCosts<'_>,
) -> Result<Bound, NoPrice> {
    let rank = graph.layout.rank(graph.layout.coordinates(Rank(0)).at(Axis::Pipeline, stage));
    let program = &graph.programs[stage as usize];
    let mut price = |said: &Communication| -> Result<Span, NoPrice> {
        let group = graph.layout.group(rank, said.scope);
        let load = if said.scope == Scope::Expert { graph.loads[0] } else { 1.0 };
        Ok(costs.price(&Asked { said, group: &group, pair: None, load })?.time)
    };
    let mut found = Bound::default();
    let (mut gathered, mut reduced) = (Span::ZERO, Span::ZERO);
    for operation in &program.operations {
        match &operation.work {
            Work::Compute { time, experts } => {
                let one = *time + *experts;
                // What it waits for was said since the last time that anything was computed, one after the other.
                let mut said = Span::ZERO;
                for before in &operation.after {
                    if let Work::Communicate(call) = &program.operations[*before as usize].work
                        && matches!(call.scope, Scope::Tensor | Scope::Context | Scope::Expert)
                        && follows(program, *before, operation)
                    {
                        said += price(call)?;
                    }
                }
                let is_repeated = !matches!(operation.pass, Pass::Optimiser | Pass::Checkpoint);
                let times = if is_repeated { microbatches } else { 1 };
                match operation.pass {
                    Pass::Recompute => found.recompute += one * times,
                    _ => found.compute += one * times,
                }
                found.said += said * times;
                if is_repeated {
                    found.bubble += one + said;
                }
            }
            Work::Communicate(call) if operation.stream == Stream::Gather => gathered += price(call)?,
            Work::Communicate(call) if operation.stream == Stream::Reduce => reduced += price(call)?,
            Work::Communicate(_) => {}
        }
    }
    let each = |is_each: bool| if is_each { microbatches } else { 1 };
    found.shared = (gathered * each(sharding >= Sharding::Parameters))
        .max(reduced * each(sharding >= Sharding::Gradients));
    Ok(found)
}

/// Whether nothing is computed between a call and what waits for it.
fn follows(program: &Program, call: u32, waiter: &Operation) -> bool {
    let between = program.operations[call as usize + 1..].iter();
    let next = between.into_iter().find(|operation| operation.stream == Stream::Compute);
    next.is_some_and(|next| std::ptr::eq(next, waiter))
}

/// A layout that has been tried.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged {
    /// The layout.
    pub candidate: Candidate,
    /// A step of it.
    pub outcome: Outcome,
}

/// Tries a layout; the costs are those of the ground.
pub(super) fn judge(
    candidate: Candidate,
    ground: &Ground<'_>,
    costs: &mut ClusterCosts<'_>,
) -> Result<Judged, NoPrice> {
    let graph = StepGraph::new(&candidate.job);
    let outcome = super::step(&candidate.job, &graph, costs, ground.gpudirect)?;
    Ok(Judged { candidate, outcome })
}

/// The most ranks that can be side by side in every server: what divides the number of GPUs of each.
pub fn common(cluster: &Cluster) -> u32 {
    if let Some(each) = cluster.ranks().each() {
        return each;
    }
    let counts = (0..cluster.nodes).map(|node| cluster.ranks().count(node)).filter(|count| *count > 0);
    counts.reduce(greatest_common_divisor).unwrap_or(1)
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// Layouts of a job on as many GPUs as it has, with the batch it has: tensor parallelism stays inside servers, with sequence
/// parallelism; each computes as much again as it has to in order to fit. One that never fits is there with all of that. The layout
/// that the job has comes first.
pub fn candidates(job: &Job, side_by_side: u32) -> Vec<Candidate> {
    let ranks = job.parallel.ranks();
    let mut found = vec![laid_out(job, job.parallel.clone(), job.training.recompute)];
    for tensor in divisors(ranks.min(side_by_side)).filter(|tensor| ranks.is_multiple_of(*tensor)) {
        for context in both(1, job.parallel.context) {
            let left = ranks / tensor;
            if !left.is_multiple_of(context) {
                continue;
            }
            for pipeline in divisors(left / context) {
                let data = left / context / pipeline;
                for expert in experts(&job.model, data) {
                    let parallel = Parallel {
                        tensor,
                        context,
                        data,
                        pipeline,
                        expert,
                        sequence: tensor > 1,
                        ..job.parallel.clone()
                    };
                    let variants = variants(job, &parallel);
                    found.extend(variants.into_iter().filter(|one| one.job != *job));
                }
            }
        }
    }
    found
}

fn divisors(number: u32) -> impl Iterator<Item = u32> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

fn both(one: u32, other: u32) -> impl Iterator<Item = u32> {
    std::iter::once(one).chain((other != one).then_some(other))
}

/// Ranks that may share the experts.
fn experts(model: &Model, data: u32) -> Vec<u32> {
    let Some(experts) = model.experts else { return vec![1] };
    divisors(data).filter(|expert| experts.count.is_multiple_of(u64::from(*expert))).collect()
}

/// For each way of sharing out, the least that has to be computed again.
fn variants(job: &Job, parallel: &Parallel) -> Vec<Candidate> {
    let Training { global_batch, micro_batch, .. } = job.training;
    if parallel.check(parallel.ranks(), &job.model, global_batch, micro_batch).is_err() {
        return Vec::new();
    }
    let is_alone = parallel.data * parallel.context == 1;
    let ways = match is_alone || job.servers.is_some() {
        true => vec![Sharding::None],
        // To share out the optimiser costs no more bytes than to add up gradients everywhere.
        false => {
            vec![job.parallel.sharding.max(Sharding::Optimiser), Sharding::Optimiser, Sharding::Parameters]
        }
    };
    let again = [Recompute::None, Recompute::Selective, Recompute::Full];
    let again = again.into_iter().filter(|recompute| *recompute >= job.training.recompute);
    let mut found: Vec<Candidate> = Vec::new();
    for (place, sharding) in ways.iter().enumerate() {
        if ways[..place].contains(sharding) {
            continue;
        }
        let with = Parallel { sharding: *sharding, ..parallel.clone() };
        let mut tried: Vec<Candidate> =
            again.clone().map(|recompute| laid_out(job, with.clone(), recompute)).collect();
        let fits = tried.iter().position(Candidate::fits);
        found.extend(fits.map(|place| tried.swap_remove(place)).or_else(|| tried.pop()));
    }
    found
}

fn laid_out(job: &Job, parallel: Parallel, recompute: Recompute) -> Candidate {
    let training = Training { recompute, ..job.training };
    let memory = memory(&job.model, &parallel, &training, job.servers);
    Candidate { job: Job { parallel, training, ..job.clone() }, memory }
}

/// Parts of a step that may be longer in one layout than in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Computing, but for what is computed again.
    Compute,
    /// Computing again.
    Recompute,
    /// Computing beside communication.
    Contention,
    /// Waiting for a dimension.
    Exposed(Scope),
    /// Waiting for other stages.
    Bubble,
    /// Waiting for ranks that come late.
    Waiting,
}

/// By how much each part of a step is longer than that of a better layout: the longest first, without what is not.
pub fn why(better: &Breakdown, worse: &Breakdown) -> Vec<(Part, Span)> {
    let plain = |one: &Breakdown| one.forward + one.backward + one.optimiser;
    let mut parts = vec![
        (Part::Compute, plain(better), plain(worse)),
        (Part::Recompute, better.recompute, worse.recompute),
        (Part::Contention, better.contention, worse.contention),
        (Part::Bubble, better.bubble, worse.bubble),
        (Part::Waiting, better.waiting, worse.waiting),
    ];
    parts.extend(
        Scope::ALL.into_iter().map(|scope| {
            (Part::Exposed(scope), better.exposed[scope as usize], worse.exposed[scope as usize])
        }),
    );
    let longer = parts.into_iter().filter(|(_, better, worse)| worse > better);
    let mut longer: Vec<(Part, Span)> = longer.map(|(part, better, worse)| (part, worse - better)).collect();
    longer.sort_by_key(|(_, span)| std::cmp::Reverse(*span));
    longer
}
