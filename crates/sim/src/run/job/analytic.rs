//! Jobs without packets: by NCCL's cost model alone, or with what its calls send as rates on the links.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use railnet_coll::Protocol;
use railnet_coll::search::{agree, search};
use railnet_core::digest::Fold;
use railnet_core::{Bytes, Rank, RunDigest, Span, Time};
use railnet_job::graph::StepGraph;
use railnet_job::parallel::Scope;
use railnet_job::run::analytic::{self, Asked, ClusterCosts, Interconnect, Network, NoPrice, Price};
use railnet_job::run::{Machine, RankSpan, Special, Workers, timeline};
use railnet_topology::Cluster;
use railnet_topology::host::Host;

use super::flow_level::{self, JobCalls, JobSteps};
use super::memo::MemoCount;
use super::report::{self, Connections, FaultPrice, How, JobResult, JobsOutcome, Start, StepResult};
use crate::run::RunError;
use crate::run::flow_level::{CallPlans, FlowLevel};
use crate::scenario::{Fidelity, PlacedJob, Scenario, ScenarioError, Slowed};

/// Runs the jobs of a scenario by formulas, or at flow fidelity.
pub(super) fn run(scenario: &Scenario, keeps_timeline: bool) -> Result<JobsOutcome, RunError> {
    let slowed = scenario.slowed(true)?;
    let mut digest = Fold::new();
    let mut jobs = Vec::new();
    let placed = scenario.jobs()?;
    if scenario.fidelity == Fidelity::Flow && placed.len() > 1 {
        jobs = together(scenario, &placed, &slowed, &mut digest, keeps_timeline)?;
    } else {
        for placed in placed {
            let timeline = keeps_timeline.then(Vec::new);
            jobs.push(job(scenario, placed, &slowed, (&mut digest, timeline))?);
        }
    }
    let digest = RunDigest::from_u128(digest.finish_wide());
    let (network, memo, is_partial) = (None, MemoCount::default(), false);
    Ok(JobsOutcome { fidelity: scenario.fidelity, jobs, network, memo, is_partial, digest })
}

/// Jobs that share the fabric at flow fidelity: each runs all its steps beside those of the others.
fn together(
    scenario: &Scenario,
    placed: &[PlacedJob],
    slowed: &[Slowed],
    digest: &mut Fold,
    keeps_timeline: bool,
) -> Result<Vec<JobResult>, RunError> {
    let found = steps_together(scenario, placed, slowed, Some((digest, keeps_timeline)))?;
    let mut results = Vec::new();
    for (placed, (steps, first, timeline)) in placed.iter().zip(found) {
        let connections = connections(scenario, placed)?;
        let start = Start::new(placed.ranks(), connections.queue_pairs);
        let (ports, faults, life, placed) = (Vec::new(), Vec::new(), None, placed.clone());
        results.push(JobResult { placed, connections, start, ports, steps, first, faults, life, timeline });
    }
    if slowed.is_empty() {
        return Ok(results);
    }
    // What a fault costs each job that it is in: all jobs run without any, and with this one alone.
    let without = steps_together(scenario, placed, &[], None)?;
    for one in slowed {
        let with = steps_together(scenario, placed, &[*one], None)?;
        let both = with.iter().zip(&without);
        for (result, ((steps_with, ..), (steps_without, ..))) in results.iter_mut().zip(both) {
            if !one.is_in(&result.placed) {
                continue;
            }
            let first = |steps: &[Span]| steps.first().copied().unwrap_or(Span::ZERO);
            result.faults.push(FaultPrice {
                what: one.words(),
                with: first(steps_with),
                without: first(steps_without),
                total_with: report::sum(steps_with),
                total_without: report::sum(steps_without),
                recovery: None,
            });
        }
    }
    Ok(results)
}

/// The steps of a job, the first of them in full, and what ranks did in that.
type Steps = (Vec<Span>, StepResult, Vec<RankSpan>);

fn steps_together(
    scenario: &Scenario,
    placed: &[PlacedJob],
    slowed: &[Slowed],
    kept: Option<(&mut Fold, bool)>,
) -> Result<Vec<Steps>, RunError> {
    let (mut hurt, mut special) = (Vec::new(), Vec::new());
    for one in placed {
        let mine: Vec<Slowed> = slowed.iter().filter(|fault| fault.is_in(one)).copied().collect();
        let one = one.with(&mine)?;
        special.push(specials(&one, &mine));
        hurt.push(one);
    }
    let interconnects =
        hurt.iter().map(|one| scenario.interconnect(one).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let graphs: Vec<[StepGraph; 2]> =
        hurt.iter().map(|one| [false, true].map(|is_written| step_graph(one, is_written))).collect();
    let mut costs: Vec<ClusterCosts<'_>> =
        hurt.iter().zip(&interconnects).map(|(one, net)| cluster_costs(scenario, one, net)).collect();
    let plans = call_plans(scenario, &hurt, slowed, &interconnects[0])?;
    let mut jobs = Vec::new();
    for (((costs, placed), graphs), special) in costs.iter_mut().zip(&hurt).zip(&graphs).zip(&special) {
        let workers = Workers::kinds(&graphs[0], special);
        let interval = placed.resolved.checkpoint.map_or(u32::MAX, |(interval, _)| interval);
        let of_step = |number: u32| &graphs[usize::from(number.is_multiple_of(interval))];
        jobs.push(JobSteps {
            calls: JobCalls::new(costs, placed, &graphs[0].layout, workers),
            graphs: (1..=placed.resolved.steps).map(of_step).collect(),
        });
    }
    let (ran, network) = flow_level::run(&mut jobs, plans)?;
    let (digest, keeps_timeline) = kept.map_or((None, false), |(digest, keeps)| (Some(digest), keeps));
    if let Some(digest) = digest {
        for one in &ran {
            report::fold(&one.first, digest);
            one.steps.iter().for_each(|step| digest.push(step.as_ps()));
        }
        flow_level::fold(&network, digest);
    }
    let mut found = Vec::new();
    for (job, ran) in jobs.iter_mut().zip(ran) {
        let spans = if keeps_timeline { timeline(&ran.first, 0, Time::ZERO) } else { Vec::new() };
        let result = step_result(job.calls.placed, job.calls.costs, &ran.first, Some(network.seen()));
        found.push((ran.steps, result, spans));
    }
    Ok(found)
}

fn job(
    scenario: &Scenario,
    placed: PlacedJob,
    slowed: &[Slowed],
    (digest, mut timeline): (&mut Fold, Option<Vec<RankSpan>>),
) -> Result<JobResult, RunError> {
    let mine: Vec<Slowed> = slowed.iter().filter(|one| one.is_in(&placed)).copied().collect();
    // Where every step writes a checkpoint, so does the first.
    let is_written = placed.resolved.checkpoint.is_some_and(|(interval, _)| interval == 1);
    let first = step(scenario, &placed, &mine, is_written, Some((&mut *digest, timeline.as_mut())))?;
    let steps = steps(scenario, &placed, &mine, first.outcome.step, Some(digest))?;
    let mut faults = Vec::new();
    if !mine.is_empty() {
        let priced = |slowed: &[Slowed]| -> Result<(Span, Span), RunError> {
            let one = step(scenario, &placed, slowed, is_written, None)?.outcome.step;
            Ok((one, report::sum(&self::steps(scenario, &placed, slowed, one, None)?)))
        };
        let (without, total_without) = priced(&[])?;
        for one in &mine {
            let (with, total_with) = priced(&[*one])?;
            let what = one.words();
            faults.push(FaultPrice { what, with, without, total_with, total_without, recovery: None });
        }
    }
    let connections = connections(scenario, &placed)?;
    let timeline = timeline.unwrap_or_default();
    let start = Start::new(placed.ranks(), connections.queue_pairs);
    Ok(JobResult {
        placed,
        connections,
        start,
        ports: Vec::new(),
        steps,
        first,
        faults,
        life: None,
        timeline,
    })
}

/// How long each step of a job takes, the first being known.
fn steps(
    scenario: &Scenario,
    placed: &PlacedJob,
    slowed: &[Slowed],
    first: Span,
    digest: Option<&mut Fold>,
) -> Result<Vec<Span>, RunError> {
    let interval = placed.resolved.checkpoint.map_or(u32::MAX, |(interval, _)| interval);
    let written = match placed.resolved.steps >= interval && interval > 1 {
        true => step(scenario, placed, slowed, true, digest.map(|digest| (digest, None)))?.outcome.step,
        false => first,
    };
    let number = 1..=placed.resolved.steps;
    Ok(number.map(|number| if number.is_multiple_of(interval) { written } else { first }).collect())
}

/// How long each step of a job takes that is put somewhere else.
pub(super) fn elsewhere(scenario: &Scenario, placed: &PlacedJob) -> Result<Vec<Span>, RunError> {
    let slowed = scenario.slowed(true)?;
    let mine: Vec<Slowed> = slowed.iter().filter(|one| one.is_in(placed)).copied().collect();
    let is_written = placed.resolved.checkpoint.is_some_and(|(interval, _)| interval == 1);
    let first = step(scenario, placed, &mine, is_written, None)?.outcome.step;
    steps(scenario, placed, &mine, first, None)
}

fn step(
    scenario: &Scenario,
    placed: &PlacedJob,
    slowed: &[Slowed],
    is_written: bool,
    kept: Option<(&mut Fold, Option<&mut Vec<RankSpan>>)>,
) -> Result<StepResult, RunError> {
    let placed = &placed.with(slowed)?;
    let graph = step_graph(placed, is_written);
    let interconnect = Arc::new(scenario.interconnect(placed)?);
    let costs = cluster_costs(scenario, placed, &interconnect);
    let mut network = SlowedCosts { costs, placed, slowed, hit: BTreeMap::new() };
    let workers = Workers::kinds(&graph, &specials(placed, slowed));
    let mut carried = None;
    let machine = match scenario.fidelity {
        Fidelity::Flow => {
            let plans = call_plans(scenario, std::slice::from_ref(placed), slowed, &interconnect)?;
            let calls = JobCalls::new(&mut network.costs, placed, &graph.layout, workers);
            let (mut ran, network) = flow_level::run(&mut [JobSteps { calls, graphs: vec![&graph] }], plans)?;
            carried = Some(network);
            ran.remove(0).first
        }
        Fidelity::Packet | Fidelity::Analytic => {
            analytic::run(&graph, workers, &mut network).map_err(|error| refused(&error))?
        }
    };
    if let Some((digest, spans)) = kept {
        report::fold(&machine, digest);
        if let Some(carried) = &carried {
            flow_level::fold(carried, digest);
        }
        if let Some(spans) = spans {
            spans.extend(timeline(&machine, 0, Time::ZERO));
        }
    }
    let seen = carried.map(|network| network.seen());
    Ok(step_result(placed, &mut network.costs, &machine, seen))
}

/// The graph of a step of a job, which writes a checkpoint or does not.
fn step_graph(placed: &PlacedJob, is_written: bool) -> StepGraph {
    let mut job = placed.resolved.job.clone();
    if is_written {
        job.checkpoint = placed.resolved.checkpoint.map(|(_, bytes)| bytes);
    }
    StepGraph::new(&job)
}

fn cluster_costs<'a>(
    scenario: &Scenario,
    placed: &'a PlacedJob,
    interconnect: &Arc<Interconnect>,
) -> ClusterCosts<'a> {
    let variables = scenario.nccl();
    let (settings, options) = (variables.settings(), variables.topology());
    ClusterCosts::new(&placed.cluster, settings, options, placed.resolved.rates)
        .over(Arc::clone(interconnect))
}

/// What came of a step.
fn step_result(
    placed: &PlacedJob,
    costs: &mut ClusterCosts<'_>,
    machine: &Machine<'_>,
    seen: Option<FlowLevel>,
) -> StepResult {
    let layout = &machine.graph().layout;
    let how = |said: &railnet_job::graph::Communication| {
        let group = layout.group(Rank(0), said.scope);
        let asked = Asked { said, group: &group, pair: None, load: 1.0 };
        let decision = costs.decision(&asked).ok().flatten()?;
        let (algorithm, protocol) = (decision.algorithm, decision.protocol);
        Some(How { algorithm, protocol, channels: decision.channels })
    };
    let mut result = report::step(placed, machine, how, &BTreeMap::new());
    // What formulas say of the interconnect is about formulas.
    if seen.is_none() {
        result.bottlenecks = costs.bottlenecks().cloned().collect();
        result.caveats = costs.caveats().collect();
    }
    result.flow_level = seen;
    result
}

/// The network that the calls of jobs share at flow fidelity, with what is slow.
fn call_plans(
    scenario: &Scenario,
    jobs: &[PlacedJob],
    slowed: &[Slowed],
    interconnect: &Interconnect,
) -> Result<CallPlans, RunError> {
    let mut cluster = (*jobs[0].whole).clone();
    for placed in jobs {
        // Servers that are hurt are so in the job's own cluster.
        for node in 0..placed.cluster.nodes {
            if placed.cluster.host_of(node) != cluster.host_of(placed.home(node)) {
                cluster.replace(placed.home(node), placed.cluster.host_of(node).clone());
            }
        }
    }
    let mut plans = CallPlans::new(scenario, &cluster, interconnect.host_path, interconnect.queue_pairs)?;
    for one in slowed {
        if let Slowed::Nic { port, share } = one {
            plans.slow_port(*port, *share);
        }
    }
    Ok(plans)
}

fn refused(error: &NoPrice) -> RunError {
    RunError::Scenario(ScenarioError::new(error.to_string()))
}

/// Ranks that are unlike the others: those on slow GPUs, and those that send through slow NICs.
pub(super) fn specials(placed: &PlacedJob, slowed: &[Slowed]) -> Vec<Special> {
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    for one in slowed {
        match one {
            Slowed::Gpu { gpu, share } => {
                let Some(rank) = placed.rank_on(*gpu) else { continue };
                let takes = found.entry(rank).or_insert(1_000);
                *takes = (f64::from(*takes) / share).round() as u32;
            }
            Slowed::Server { .. } | Slowed::Expert { .. } => {}
            Slowed::Nic { .. } => {
                for rank in (0..placed.ranks()).filter(|rank| one.carries(placed, *rank)) {
                    found.entry(rank).or_insert(1_000);
                }
            }
        }
    }
    found.into_iter().map(|(rank, permille)| Special { rank: Rank(rank), permille }).collect()
}

/// The cost model with slow NICs: whoever's data goes through one takes as much longer as that carries less.
struct SlowedCosts<'a> {
    costs: ClusterCosts<'a>,
    placed: &'a PlacedJob,
    slowed: &'a [Slowed],
    /// What is left of the rate of each group.
    hit: BTreeMap<(u32, Vec<(u32, u32)>), f64>,
}

impl SlowedCosts<'_> {
    fn share(&mut self, asked: &Asked<'_>) -> f64 {
        let (group, pair) = (asked.group, asked.pair);
        let is_beside = !self.placed.beside(asked.said.scope).is_empty();
        let of = |ranks: &mut dyn Iterator<Item = Rank>| -> f64 {
            let ranks: Vec<Rank> = ranks.collect();
            let places = self.placed.cluster.ranks();
            let nodes: BTreeSet<u32> = ranks.iter().map(|rank| places.node_of(rank.0)).collect();
            if nodes.len() < 2 && !is_beside {
                return 1.0;
            }
            let slow = self.slowed.iter().filter_map(|one| match one {
                Slowed::Nic { share, .. } => {
                    ranks.iter().any(|rank| one.carries(self.placed, rank.0)).then_some(*share)
                }
                _ => None,
            });
            slow.fold(1.0, f64::min)
        };
        if let Some(pair) = pair {
            return of(&mut pair.into_iter());
        }
        if is_beside {
            return of(&mut group.ranks());
        }
        let key = (group.first.0, group.levels.to_vec());
        if let Some(share) = self.hit.get(&key) {
            return *share;
        }
        let share = of(&mut group.ranks());
        self.hit.insert(key, share);
        share
    }
}

impl Network for SlowedCosts<'_> {
    fn price(&mut self, asked: &Asked<'_>) -> Result<Price, NoPrice> {
        let mut price = self.costs.price(asked)?;
        if self.slowed.iter().any(|one| matches!(one, Slowed::Nic { .. })) {
            let share = self.share(asked);
            price.time = Span::from_ps((price.time.as_ps() as f64 / share).round() as u64);
        }
        Ok(price)
    }
}

/// Connections that rings across servers need: one for each channel from each server to the next, with a queue pair and a
/// buffer at both ends.
fn connections(scenario: &Scenario, placed: &PlacedJob) -> Result<Connections, RunError> {
    let graph = StepGraph::new(&placed.resolved.job);
    let variables = scenario.nccl();
    let places = placed.cluster.ranks();
    let mut found = Connections::default();
    let mut seen: BTreeMap<Vec<(u32, u32)>, u32> = BTreeMap::new();
    for scope in report::scopes(&graph) {
        if matches!(scope, Scope::Pipeline | Scope::Servers | Scope::Storage) {
            continue;
        }
        let group = graph.layout.group(Rank(0), scope);
        let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in group.ranks() {
            let (node, gpu) = places.place(rank.0);
            nodes.entry(node).or_default().push(gpu);
        }
        if nodes.len() < 2 {
            continue;
        }
        // Where all servers have as many GPUs and NICs, the first tells of all.
        let looked_at = if placed.cluster.is_uneven() { nodes.len() } else { 1 };
        let some: Vec<(u32, &Vec<u32>)> =
            nodes.iter().map(|(node, gpus)| (*node, gpus)).take(looked_at).collect();
        let key: Vec<(u32, u32)> =
            some.iter().flat_map(|(node, gpus)| gpus.iter().map(|gpu| (*node, *gpu))).collect();
        let channels = match seen.get(&key) {
            Some(channels) => *channels,
            None => {
                let options = variables.topology();
                let found = if let [(_, local)] = some[..] {
                    search(&placed.cluster.host.with_gpus(local), nodes.len() as u32, &options)
                } else {
                    let host = |node: u32, gpus: &[u32]| placed.cluster.host_of(node).with_gpus(gpus);
                    let groups: Vec<(Host, u32)> =
                        some.iter().map(|(node, gpus)| (host(*node, gpus), 1)).collect();
                    let cluster = Cluster::of_groups(&groups).expect("a group has a rank");
                    agree(&cluster, &options).map(|(graphs, _)| graphs)
                };
                found.map_err(|error| refused(&error.into()))?.counts.collective
            }
        };
        seen.insert(key, channels);
        let groups = u64::from(placed.ranks() / group.size().max(1));
        let joined = groups * nodes.len() as u64 * u64::from(channels);
        found.communicators += groups;
        found.queue_pairs += 2 * joined;
        found.buffers += Bytes(2 * joined * Protocol::Simple.buffer().as_u64());
        if group.size() > found.ranks {
            (found.ranks, found.channels) = (group.size(), channels);
        }
    }
    Ok(found)
}
