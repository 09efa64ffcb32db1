//! What each parallel dimension says in a step: how often, how much, through what.

use std::collections::BTreeMap;

use railnet_coll::{Algorithm, Collective, CrossNic};
use railnet_core::{Bytes, Rank, Span};

use super::Ground;
use crate::graph::{Communication, Program, StepGraph, What, Work};
use crate::parallel::{Axis, Group, Scope};
use crate::run::Outcome;
use crate::run::analytic::{Asked, ClusterCosts, Network, NoPrice, Spread};

/// What a parallel dimension says in a step, of a rank of the stage that says most.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// Which dimension.
    pub scope: Scope,
    /// What most of its bytes are said with.
    pub what: What,
    /// Ranks that say it to each other.
    pub ranks: u32,
    /// Nodes that those are on.
    pub nodes: u32,
    /// Ranks of a group on one node.
    pub local: u32,
    /// Calls.
    pub calls: u64,
    /// Bytes of the largest.
    pub largest: Bytes,
    /// Bytes of all calls.
    pub bytes: Bytes,
    /// Bytes that a GPU sends for them.
    pub through_gpu: f64,
    /// Bytes that leave a node for them through all its NICs, those of all groups of the node together.
    pub out_of_node: f64,
    /// The part of those that arrives at the NIC of the same number as it left from.
    pub on_rails: f64,
    /// How long all calls take, one after the other, by NCCL's cost model.
    pub time: Span,
    /// How long an average rank waits for them.
    pub exposed: Span,
}

/// What there is of a dimension in one stage.
#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    bytes: u64,
    largest: Bytes,
    through_gpu: f64,
    out_of_node: f64,
    on_rails: f64,
    time: u64,
    most: Option<(u64, What)>,
}

/// What is said, how often: a stage says the same thing many times.
pub(super) fn counted(program: &Program, scope: Scope) -> BTreeMap<Communication, u64> {
    let mut counts = BTreeMap::new();
    for operation in &program.operations {
        if let Work::Communicate(said) = &operation.work
            && said.scope == scope
        {
            *counts.entry(*said).or_insert(0) += 1;
        }
    }
    counts
}

/// Between whom messages of a pipeline go: a rank of a stage and that of another.
pub(super) fn pair(graph: &StepGraph, stage: u32, said: &Communication) -> Option<[Rank; 2]> {
    let at = |stage: u32| graph.layout.rank(graph.layout.coordinates(Rank(0)).at(Axis::Pipeline, stage));
    match said.what {
        What::Send { stage: other } => Some([at(stage), at(other)]),
        What::Receive { stage: other } => Some([at(other), at(stage)]),
        _ => None,
    }
}

pub(super) fn demands(
    graph: &StepGraph,
    outcome: &Outcome,
    costs: &mut ClusterCosts<'_>,
    ground: &Ground<'_>,
) -> Result<Vec<Demand>, NoPrice> {
    let mut found = Vec::new();
    for scope in Scope::ALL.into_iter().filter(|scope| *scope != Scope::Storage) {
        let mut most: Option<(Sum, Group)> = None;
        for stage in 0..graph.layout.size(Axis::Pipeline) {
            let place = graph.layout.coordinates(Rank(0)).at(Axis::Pipeline, stage);
            let group = graph.layout.group(graph.layout.rank(place), scope);
            let sum = of_stage(graph, stage, &group, scope, costs, ground)?;
            if most.as_ref().is_none_or(|(other, _)| sum.bytes > other.bytes) {
                most = Some((sum, group));
            }
        }
        let Some((sum, group)) = most else { continue };
        let Some((_, what)) = sum.most else { continue };
        let (nodes, local, ranks) = match scope {
            Scope::Pipeline => (1 + u32::from(sum.out_of_node > 0.0), 1, 2),
            Scope::Servers => (2, 1, 2),
            _ => {
                let spread = costs.spread(&group)?;
                (spread.nodes, spread.local, group.size())
            }
        };
        found.push(Demand {
            scope,
            what,
            ranks,
            nodes,
            local,
            calls: sum.calls,
            largest: sum.largest,
            bytes: Bytes(sum.bytes),
            through_gpu: sum.through_gpu,
            out_of_node: sum.out_of_node,
            on_rails: if sum.out_of_node > 0.0 { sum.on_rails / sum.out_of_node } else { 0.0 },
            time: Span::from_ps(sum.time),
            exposed: outcome.average.exposed[scope as usize],
        });
    }
    found.sort_by_key(|demand| std::cmp::Reverse(demand.bytes));
    Ok(found)
}

fn of_stage(
    graph: &StepGraph,
    stage: u32,
    group: &Group,
    scope: Scope,
    costs: &mut ClusterCosts<'_>,
    ground: &Ground<'_>,
) -> Result<Sum, NoPrice> {
    let mut sum = Sum::default();
    for (said, count) in counted(&graph.programs[stage as usize], scope) {
        // What one receives another one sends.
        if matches!(said.what, What::Receive { .. }) {
            continue;
        }
        let pair = pair(graph, stage, &said);
        let load = if scope == Scope::Expert { graph.loads[0] } else { 1.0 };
        let asked = Asked { said: &said, group, pair, load };
        let (sends, leaves) = crossing(&asked, costs)?;
        let bytes = said.bytes.as_u64() * count;
        let times = count as f64;
        sum.calls += count;
        sum.bytes += bytes;
        sum.largest = sum.largest.max(said.bytes);
        sum.through_gpu += sends * times;
        sum.out_of_node += leaves * times;
        sum.on_rails += leaves * times * on_rails(&asked, costs, ground)?;
        sum.time += costs.price(&asked)?.time.as_ps() * count;
        if sum.most.is_none_or(|(most, _)| bytes > most) {
            sum.most = Some((bytes, said.what));
        }
    }
    Ok(sum)
}

/// Bytes that a GPU sends for a communication, and that leave a node for it and for those of the other groups of the node at
/// the same time. Of nodes with unlike numbers of GPUs it is the one with most ranks of the group, or the sender's.
pub(super) fn crossing(asked: &Asked<'_>, costs: &mut ClusterCosts<'_>) -> Result<(f64, f64), NoPrice> {
    let bytes = asked.said.bytes.as_u64() as f64;
    if let Some([from, to]) = asked.pair {
        let is_between = costs.place_of(from)?.0 != costs.place_of(to)?.0;
        let gpus = f64::from(costs.gpus_beside(from)?);
        return Ok((bytes, if is_between { bytes * gpus } else { 0.0 }));
    }
    let What::Collective(collective) = asked.said.what else {
        return Ok((bytes, bytes * f64::from(costs.gpus_beside(asked.group.first)?)));
    };
    let ranks = asked.group.size();
    let sends = bytes * collective.bus_factor(ranks);
    let Spread { nodes, local, gpus } = costs.spread(asked.group)?;
    if nodes == 1 {
        return Ok((sends, 0.0));
    }
    let groups = f64::from(gpus) / f64::from(local);
    let leaves = if collective == Collective::AllToAll {
        bytes * f64::from(ranks - local) / f64::from(ranks) * f64::from(local)
    } else {
        // A ring passes each node once. Trees add up inside nodes first, and go between those.
        let is_tree = costs
            .decision(asked)?
            .is_some_and(|decision| matches!(decision.algorithm, Algorithm::Tree | Algorithm::NvlsTree));
        bytes * collective.bus_factor(if is_tree { nodes } else { ranks })
    };
    Ok((sends, leaves * groups))
}

/// The part of what leaves a node that stays on its rail.
pub(super) fn on_rails(
    asked: &Asked<'_>,
    costs: &mut ClusterCosts<'_>,
    ground: &Ground<'_>,
) -> Result<f64, NoPrice> {
    let (host, options) = (&ground.cluster.host, &ground.options);
    // With PXN a GPU that is on the receiver's rail sends for the others of its node, which hand it data over NVLink.
    let has_relays = !options.pxn_disable && host.nvlinks(host.gpus()[0]) > 0;
    let keeps = has_relays || options.cross_nic == CrossNic::Never;
    Ok(match (asked.said.what, asked.pair) {
        (_, Some([from, to])) => {
            let is_same = costs.place_of(from)?.1 == costs.place_of(to)?.1;
            f64::from(u8::from(keeps || is_same))
        }
        (What::Collective(Collective::AllToAll), None) => {
            let local = costs.spread(asked.group)?.local;
            if keeps { 1.0 } else { 1.0 / f64::from(local) }
        }
        // Those who talk to other nodes in a tree are those of the same number, with the NIC beside them.
        (What::Collective(_), None) if !is_ring(asked, costs)? => 1.0,
        (What::Collective(_), None) => costs.on_rails(asked.group)?,
        _ => 0.0,
    })
}

fn is_ring(asked: &Asked<'_>, costs: &mut ClusterCosts<'_>) -> Result<bool, NoPrice> {
    let decision = costs.decision(asked)?;
    Ok(decision.is_none_or(|decision| decision.algorithm == Algorithm::Ring))
}
