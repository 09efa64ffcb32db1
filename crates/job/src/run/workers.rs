//! Who runs the graph: all ranks, or one for each kind of rank.
//!
//! Ranks that differ only by where they are on an axis do the same at the same time. So a graph can be run with one rank for
//! each stage of the pipeline, and a few more where some rank is unlike the others: then every rank is there whose place on
//! each axis is that of an unlike one, or that of one which is not. This is exact: what is left out behaves as one of those.

use std::collections::{BTreeMap, BTreeSet};

use railnet_core::Rank;

use crate::graph::StepGraph;
use crate::parallel::{Axis, Coordinates, Layout};

/// A rank that is unlike the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Special {
    /// The rank.
    pub rank: Rank,
    /// What it takes for what others do in 1,000.
    pub permille: u32,
}

/// A rank that runs its program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Worker {
    /// Which rank.
    pub rank: Rank,
    /// Where it is.
    pub place: Coordinates,
    /// What it runs: the place of its program among those of the graph.
    pub program: u32,
    /// For how many ranks it stands, itself included.
    pub stands_for: u32,
    /// What it takes for what an ordinary one does in 1,000.
    pub permille: u32,
    /// What its experts take for what they would with an even share of tokens in 1,000.
    pub expert_permille: u32,
}

/// Those who run a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Workers {
    /// In the order of ranks.
    pub workers: Vec<Worker>,
    /// For each place of each axis the place that stands for it.
    representing: [Vec<u32>; 4],
}

impl Workers {
    /// Every rank.
    pub fn all(graph: &StepGraph, special: &[Special]) -> Self {
        let ranks = 0..graph.layout.ranks();
        let workers = ranks.map(|rank| worker(graph, special, Rank(rank), 1));
        let representing = Axis::ALL.map(|axis| (0..graph.layout.size(axis)).collect());
        Self { workers: workers.collect(), representing }
    }

    /// The rank that runs in the place of a rank, which may be itself.
    pub fn representative(&self, layout: &Layout, rank: Rank) -> Rank {
        let place = layout.coordinates(rank);
        let places = Axis::ALL.into_iter().zip(&self.representing);
        layout.rank(
            places.fold(place, |found, (axis, representing)| {
                found.at(axis, representing[place.on(axis) as usize])
            }),
        )
    }

    /// One for each kind of rank.
    pub fn kinds(graph: &StepGraph, special: &[Special]) -> Self {
        let marks = marks(graph, special);
        let is_hot = graph.expert > 1 && graph.loads[0] > graph.loads[1];
        let places = Axis::ALL.map(|axis| {
            let size = graph.layout.size(axis);
            if axis == Axis::Pipeline {
                return (0..size).collect::<Vec<_>>();
            }
            let mut profiles: BTreeMap<u32, Profile> = BTreeMap::new();
            for (rank, mark) in &marks {
                let place = graph.layout.coordinates(*rank);
                let others = graph.layout.rank(place.at(axis, 0));
                profiles.entry(place.on(axis)).or_default().push((others, *mark));
            }
            // The hot expert is on the first rank of each group.
            let block = if axis == Axis::Data { graph.expert } else { 1 };
            representatives(size, block, &profiles, is_hot && axis == Axis::Data)
        });
        let [tensors, contexts, datas, stages] = &places.each_ref().map(|all| counts(all));
        let mut workers = Vec::new();
        for (pipeline, _) in stages {
            for (data, datas) in datas {
                for (context, contexts) in contexts {
                    for (tensor, tensors) in tensors {
                        let place = Coordinates {
                            tensor: *tensor,
                            context: *context,
                            data: *data,
                            pipeline: *pipeline,
                        };
                        let rank = graph.layout.rank(place);
                        workers.push(worker(graph, special, rank, tensors * contexts * datas));
                    }
                }
            }
        }
        workers.sort_by_key(|worker| worker.rank);
        Self { workers, representing: places }
    }
}

/// The places that stand for all of an axis, each with how many.
fn counts(representing: &[u32]) -> Vec<(u32, u32)> {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for place in representing {
        *counts.entry(*place).or_default() += 1;
    }
    counts.into_iter().collect()
}

/// What is unlike at a place of an axis: ranks there, by where they are on the other axes, and how.
type Profile = Vec<(Rank, u32)>;

/// Ranks that are unlike the others, in order, and how: those that are named are each like nobody else.
fn marks(graph: &StepGraph, special: &[Special]) -> BTreeMap<Rank, u32> {
    let mut marks = BTreeMap::new();
    for other in &graph.others {
        // The kind and the place in the server, which has fewer GPUs than this.
        let mark = |rank: u32| (other.kind << 16) | ((rank - other.ranks.start) % other.per_node);
        marks.extend(other.ranks.clone().map(|rank| (Rank(rank), mark(rank))));
    }
    let first = marks.values().max().map_or(0, |mark| mark + 1);
    marks.extend(special.iter().zip(first..).map(|(one, mark)| (one.rank, mark)));
    marks
}

/// For each place on an axis the one that stands for it. Ranks that share experts come in blocks; blocks that look alike have one
/// that stands for them, and in it the places where some block has an unlike rank stand for themselves.
fn representatives(size: u32, block: u32, profiles: &BTreeMap<u32, Profile>, is_hot: bool) -> Vec<u32> {
    let mut within: BTreeSet<u32> = profiles.keys().map(|place| place % block).collect();
    if is_hot {
        within.insert(0);
    }
    let other = (0..block).find(|place| !within.contains(place)).unwrap_or(0);
    let mut blocks: BTreeMap<Vec<(u32, &Profile)>, u32> = BTreeMap::new();
    let mut found = Vec::with_capacity(size as usize);
    for number in 0..size / block {
        let of_block = profiles.range(number * block..(number + 1) * block);
        let looks = of_block.map(|(place, profile)| (place % block, profile)).collect();
        let first = *blocks.entry(looks).or_insert(number) * block;
        found.extend((0..block).map(|place| first + if within.contains(&place) { place } else { other }));
    }
    found
}

fn worker(graph: &StepGraph, special: &[Special], rank: Rank, stands_for: u32) -> Worker {
    let place = graph.layout.coordinates(rank);
    let permille = special.iter().find(|one| one.rank == rank).map_or(1_000, |one| one.permille);
    let load = graph.loads[usize::from(!place.data.is_multiple_of(graph.expert))];
    let expert_permille = (load * 1_000.0).round() as u32;
    let program = graph.program_of(rank);
    Worker { rank, place, program, stands_for, permille, expert_permille }
}
