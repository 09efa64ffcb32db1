//! Who runs the graph: all ranks, or one for each kind of rank.
//!
//! Ranks that differ only by where they are on an axis do the same at the same time. So a graph can be run with one rank for
//! each stage of the pipeline, and a few more where some rank is unlike the others: then every rank is there whose place on
//! each axis is that of an unlike one, or that of one which is not. This is exact: what is left out behaves as one of those.

use std::collections::BTreeSet;

use railnet_core::Rank;

use crate::graph::StepGraph;
use crate::parallel::{Axis, Coordinates};

/// A rank that is unlike the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Special {
    /// Which.
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
}

impl Workers {
    /// Every rank.
    pub fn all(graph: &StepGraph, special: &[Special]) -> Self {
        let ranks = 0..graph.layout.ranks();
        let workers = ranks.map(|rank| worker(graph, special, Rank(rank), 1));
        Self { workers: workers.collect() }
    }

    /// One for each kind of rank.
    pub fn kinds(graph: &StepGraph, special: &[Special]) -> Self {
        let unlike: Vec<Coordinates> = special.iter().map(|one| graph.layout.coordinates(one.rank)).collect();
        let places = Axis::ALL.map(|axis| {
            let size = graph.layout.size(axis);
            if axis == Axis::Pipeline {
                return (0..size).map(|place| (place, 1)).collect::<Vec<_>>();
            }
            let mut named: BTreeSet<u32> = unlike.iter().map(|one| one.on(axis)).collect();
            let expert = if axis == Axis::Data { graph.expert } else { 1 };
            if expert > 1 && graph.loads[0] > graph.loads[1] {
                // The hot expert is on the first rank of each group.
                named.insert(0);
            }
            representatives(size, expert, &named)
        });
        let [tensors, contexts, datas, stages] = &places;
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
        Self { workers }
    }
}

/// Places on an axis that stand for all of them, each with how many. Ranks that share experts come in blocks; a block with
/// an unlike rank has one that stands for its others, and one block stands for all blocks without.
fn representatives(size: u32, block: u32, named: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    let touched: BTreeSet<u32> = named.iter().map(|place| place / block).collect();
    let blocks = size / block;
    let free = (0..blocks).find(|number| !touched.contains(number));
    let within: BTreeSet<u32> = named.iter().map(|place| place % block).collect();
    for number in touched.iter().copied().chain(free) {
        let times = if touched.contains(&number) { 1 } else { blocks - touched.len() as u32 };
        let mut rest = block;
        for place in &within {
            found.push((number * block + place, times));
            rest -= 1;
        }
        if rest > 0 {
            let other = (0..block).find(|place| !within.contains(place)).expect("some are left");
            found.push((number * block + other, times * rest));
        }
    }
    found.sort_unstable();
    found
}

fn worker(graph: &StepGraph, special: &[Special], rank: Rank, stands_for: u32) -> Worker {
    let place = graph.layout.coordinates(rank);
    let permille = special.iter().find(|one| one.rank == rank).map_or(1_000, |one| one.permille);
    let load = graph.loads[usize::from(!place.data.is_multiple_of(graph.expert))];
    let expert_permille = (load * 1_000.0).round() as u32;
    Worker { rank, place, stands_for, permille, expert_permille }
}
