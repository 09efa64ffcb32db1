//! Jobs by NCCL's cost model: no packets, milliseconds for thousands of GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use railnet_coll::Protocol;
use railnet_coll::search::{agree, search};
use railnet_core::digest::Fold;
use railnet_core::{Bytes, Rank, RunDigest, Span, Time};
use railnet_job::graph::StepGraph;
use railnet_job::parallel::Scope;
use railnet_job::run::analytic::{self, Asked, ClusterCosts, Network, NoPrice, Price};
use railnet_job::run::{RankSpan, Special, Workers, timeline};
use railnet_topology::Cluster;
use railnet_topology::host::Host;

use super::memo::MemoCount;
use super::report::{self, Connections, FaultPrice, How, JobResult, JobsOutcome, Start, StepResult};
use crate::run::RunError;
use crate::scenario::{Fidelity, PlacedJob, Scenario, ScenarioError, Slowed};

/// Runs the jobs of a scenario by formulas.
pub(super) fn run(scenario: &Scenario, keeps_timeline: bool) -> Result<JobsOutcome, RunError> {
    let slowed = scenario.slowed(true)?;
    let mut digest = Fold::new();
    let mut jobs = Vec::new();
    for placed in scenario.jobs()? {
        let timeline = keeps_timeline.then(Vec::new);
        jobs.push(job(scenario, placed, &slowed, (&mut digest, timeline))?);
    }
    let digest = RunDigest::from_u128(digest.finish_wide());
    let (network, memo, is_partial) = (None, MemoCount::default(), false);
    Ok(JobsOutcome { fidelity: Fidelity::Analytic, jobs, network, memo, is_partial, digest })
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
    let mut job = placed.resolved.job.clone();
    if is_written {
        job.checkpoint = placed.resolved.checkpoint.map(|(_, bytes)| bytes);
    }
    let graph = StepGraph::new(&job);
    let variables = scenario.nccl();
    let interconnect = Arc::new(scenario.interconnect(placed)?);
    let costs =
        ClusterCosts::new(&placed.cluster, variables.settings(), variables.topology(), placed.resolved.rates)
            .over(interconnect);
    let mut network = SlowedCosts { costs, placed, slowed, hit: BTreeMap::new() };
    let machine = analytic::run(&graph, Workers::kinds(&graph, &specials(placed, slowed)), &mut network)
        .map_err(|error| refused(&error))?;
    if let Some((digest, spans)) = kept {
        report::fold(&machine, digest);
        if let Some(spans) = spans {
            spans.extend(timeline(&machine, 0, Time::ZERO));
        }
    }
    let how = |said: &railnet_job::graph::Communication| {
        let group = graph.layout.group(Rank(0), said.scope);
        let asked = Asked { said, group: &group, pair: None, load: 1.0 };
        let decision = network.costs.decision(&asked).ok().flatten()?;
        let (algorithm, protocol) = (decision.algorithm, decision.protocol);
        Some(How { algorithm, protocol, channels: decision.channels })
    };
    let mut result = report::step(placed, &machine, how, &BTreeMap::new());
    result.bottlenecks = network.costs.bottlenecks().cloned().collect();
    result.caveats = network.costs.caveats().collect();
    Ok(result)
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
