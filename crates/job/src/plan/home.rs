//! Where each parallel dimension belongs: inside servers, over NVLink, or between them.

use railnet_core::{Rank, Span};
use railnet_topology::Cluster;
use smallvec::smallvec;

use super::demand::{counted, pair};
use crate::graph::{StepGraph, What};
use crate::parallel::{Axis, Group, Scope};
use crate::run::analytic::{Asked, ClusterCosts, Network, NoPrice};

/// What a dimension takes inside servers, and what it takes between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Which dimension.
    pub scope: Scope,
    /// Ranks that it joins.
    pub ranks: u32,
    /// Whether it is inside a server as the job is laid out.
    pub is_inside: bool,
    /// All its calls of a step with its ranks side by side in a server; nothing where a server has fewer GPUs.
    pub inside: Option<Span>,
    /// The same with its ranks on as many servers as there are.
    pub across: Option<Span>,
    /// Whether it should be inside: what costs most between servers goes first, until a server is full. As it is, where no other
    /// order makes the step shorter.
    pub belongs_inside: bool,
}

/// The dimensions that can be placed.
const PLACED: [Scope; 5] = [Scope::Tensor, Scope::Context, Scope::Expert, Scope::Pipeline, Scope::Data];

pub(super) fn homes(
    graph: &StepGraph,
    costs: &mut ClusterCosts<'_>,
    cluster: &Cluster,
) -> Result<Vec<Home>, NoPrice> {
    let run = alike(cluster);
    let mut found = Vec::new();
    for scope in PLACED {
        let is_said = graph.programs.iter().any(|program| program.volume(scope).0 > 0);
        if !is_said {
            continue;
        }
        let group = graph.layout.group(Rank(0), scope);
        let ranks = if scope == Scope::Pipeline { graph.layout.size(Axis::Pipeline) } else { group.size() };
        let (inside, across) = places(ranks, &run);
        let now = if scope == Scope::Pipeline { graph.layout.group(Rank(0), Scope::World) } else { group };
        let is_inside = match scope {
            Scope::Pipeline => {
                let last = graph.layout.coordinates(Rank(0)).at(Axis::Pipeline, ranks - 1);
                costs.place_of(graph.layout.rank(last))?.0 == costs.place_of(Rank(0))?.0
            }
            _ => costs.spread(&now)?.nodes == 1,
        };
        let mut time = |place: Option<Group>| -> Result<Option<Span>, NoPrice> {
            place.map(|place| total(graph, scope, &place, costs)).transpose()
        };
        let (inside, across) = (time(inside)?, time(across)?);
        found.push(Home { scope, ranks, is_inside, inside, across, belongs_inside: false });
    }
    settle(&mut found, run.each);
    Ok(found)
}

/// Nodes that follow each other and have as many GPUs each.
struct Run {
    /// The first rank on them.
    first: Rank,
    each: u32,
    nodes: u32,
}

/// The most nodes that follow each other and have as many GPUs each: all of them where all have as many. Where a dimension belongs
/// is asked of these.
fn alike(cluster: &Cluster) -> Run {
    let ranks = cluster.ranks();
    if let Some(each) = ranks.each() {
        return Run { first: Rank(0), each, nodes: cluster.nodes };
    }
    let mut most = Run { first: Rank(0), each: 0, nodes: 0 };
    let mut node = 0;
    while node < cluster.nodes {
        let (each, first) = (ranks.count(node), ranks.range(node).start);
        let nodes = (node..cluster.nodes).take_while(|other| ranks.count(*other) == each).count() as u32;
        if each * nodes > most.each * most.nodes {
            most = Run { first: Rank(first), each, nodes };
        }
        node += nodes;
    }
    most
}

/// So many ranks side by side, and so many on as many nodes as there are.
fn places(ranks: u32, run: &Run) -> (Option<Group>, Option<Group>) {
    let Run { first, each, nodes } = *run;
    let inside = (ranks <= each).then(|| Group { first, levels: smallvec![(ranks, 1)] });
    let spread = (1..=nodes.min(ranks)).rev().find(|nodes| ranks.is_multiple_of(*nodes)).unwrap_or(1);
    let local = ranks / spread;
    let fits = spread > 1 && local <= each;
    let across = fits.then(|| Group { first, levels: smallvec![(local, 1), (spread, each)] });
    (inside, across)
}

/// All calls of a dimension, one after the other, of the stage that takes longest.
fn total(
    graph: &StepGraph,
    scope: Scope,
    place: &Group,
    costs: &mut ClusterCosts<'_>,
) -> Result<Span, NoPrice> {
    let mut longest = Span::ZERO;
    let stages = graph.layout.size(Axis::Pipeline) as usize;
    for (stage, program) in graph.programs.iter().take(stages).enumerate() {
        let mut sum = Span::ZERO;
        for (said, count) in counted(program, scope) {
            if matches!(said.what, What::Receive { .. }) {
                continue;
            }
            let message = pair(graph, stage as u32, &said).map(|_| [place.rank(0), place.rank(1)]);
            let load = if scope == Scope::Expert { graph.loads[0] } else { 1.0 };
            let asked = Asked { said: &said, group: place, pair: message, load };
            sum += costs.price(&asked)?.time * count;
        }
        longest = longest.max(sum);
    }
    Ok(longest)
}

/// Fills servers with those that lose most by leaving them.
fn settle(homes: &mut [Home], each: u32) {
    let lost = |home: &Home| match (home.inside, home.across) {
        (Some(inside), Some(across)) => across - inside.min(across),
        (Some(_), None) => Span::from_ps(u64::MAX),
        _ => Span::ZERO,
    };
    let mut order: Vec<usize> = (0..homes.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(lost(&homes[*place])));
    let mut room = each;
    for place in order {
        let home = &mut homes[place];
        if home.inside.is_some() && home.ranks <= room && lost(home) > Span::ZERO {
            home.belongs_inside = true;
            room /= home.ranks;
        }
    }
}

/// The order of axes with those inside that belong there; nothing where all are where they belong.
pub(super) fn order(now: [Axis; 4], homes: &[Home]) -> Option<[Axis; 4]> {
    if homes.iter().all(|home| home.is_inside == home.belongs_inside) {
        return None;
    }
    let axis = |scope: Scope| match scope {
        Scope::Tensor => Axis::Tensor,
        Scope::Context => Axis::Context,
        Scope::Pipeline => Axis::Pipeline,
        _ => Axis::Data,
    };
    let is_inside = |one: Axis| homes.iter().any(|home| home.belongs_inside && axis(home.scope) == one);
    let mut order = now;
    // Stable: those that stay where they are keep their order.
    order.sort_by_key(|one| !is_inside(*one));
    (order != now).then_some(order)
}
