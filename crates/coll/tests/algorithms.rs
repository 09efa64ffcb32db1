//! Every algorithm, proved on shapes that are easy to get wrong, and its traffic against theory.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::sync::Arc;

use railnet_coll::check::check;
use railnet_coll::{
    Algorithm, BuildError, Call, Choice, Collective, Counts, Fifo, Program, Protocol, Schedule, Step,
    TreePattern, Wiring, build,
};
use railnet_core::{Bytes, Rank};

/// Shapes: one node, several, uneven ones, and orders that are not ascending.
fn wirings() -> Vec<Wiring> {
    let mut all: Vec<Wiring> = [1, 2, 3, 5, 8].into_iter().map(Wiring::flat).collect();
    for (nodes, per_node) in [(2, 1), (3, 1), (4, 1), (6, 1), (7, 1), (9, 1), (16, 1), (2, 4), (3, 3), (5, 2)]
    {
        all.push(Wiring::uniform(nodes, per_node));
    }
    let mut uneven = Wiring::flat(9);
    uneven.nodes = vec![vec![0, 1, 2, 3], vec![5, 4], vec![8, 6, 7]];
    uneven.rings = vec![vec![0, 3, 2, 1, 4, 5, 8, 7, 6], (0..9).rev().collect()];
    uneven.chains = vec![uneven.nodes.clone(), vec![vec![3, 1, 0, 2], vec![4, 5], vec![7, 8, 6]]];
    uneven.heads = vec![vec![1, 5, 7], vec![0, 4, 6]];
    uneven.patterns.fill(TreePattern::Balanced);
    all.push(uneven);
    let mut split = Wiring::uniform(4, 3);
    split.patterns.fill(TreePattern::Split);
    split.heads.truncate(2);
    all.push(split);
    all
}

/// Whether an algorithm is to run there.
fn fits(algorithm: Algorithm, collective: Collective, wiring: &Wiring) -> bool {
    let one_node = wiring.nodes.len() == 1;
    let all_heads = wiring.heads.iter().flatten().count() == wiring.ranks() as usize;
    let scatters = collective != Collective::AllReduce;
    match algorithm {
        _ if wiring.ranks() == 1 => true,
        Algorithm::Pat => wiring.nodes.iter().all(|node| node.len() == 1),
        Algorithm::CollNetDirect => !one_node && (all_heads || !scatters),
        Algorithm::CollNetChain | Algorithm::NvlsTree => !one_node,
        Algorithm::Nvls => one_node || all_heads || !scatters,
        Algorithm::Hypercube => wiring.ranks().is_power_of_two(),
        _ => true,
    }
}

/// Chunks of 64 bytes make many loops of few elements; one slot (a ring needs two) leaves nobody room to run
/// ahead.
fn choices(algorithm: Algorithm) -> Vec<Choice> {
    let mut all = Vec::new();
    for protocol in Protocol::ALL.into_iter().filter(|protocol| algorithm.speaks(*protocol)) {
        let choice = Choice::new(algorithm, protocol);
        all.push(choice.on(3));
        all.push(Choice { chunk: Some(Bytes(64)), ..choice });
    }
    if algorithm == Algorithm::Direct {
        let choice = Choice::new(algorithm, Protocol::Simple).on(2);
        all.push(Choice { chunk: Some(Bytes(64)), by_turns: true, ..choice });
    }
    let depth = if algorithm == Algorithm::Ring { 2 } else { 1 };
    let slot = Fifo { slot: Bytes(64), depth, slots_per_slice: 1, slices_per_chunk: 1 };
    let short = Choice { fifo: Some(slot), parts: Some(2), ..Choice::new(algorithm, Protocol::Simple).on(2) };
    all.extend([short, Choice { by_turns: true, ..short }]);
    all
}

/// A program that does not know what it uses but by looking at its steps.
#[derive(Debug)]
struct Walked(Arc<dyn Program>);

impl Program for Walked {
    fn workers(&self, rank: u32) -> u32 {
        self.0.workers(rank)
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        self.0.steps(rank, worker)
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        self.0.step(rank, worker, number)
    }
}

fn prove(schedule: &Schedule, what: &str) {
    let walked = Walked(Arc::clone(&schedule.program));
    for rank in 0..schedule.ranks {
        for worker in 0..walked.workers(rank) {
            let (said, seen) = (schedule.program.uses(rank, worker), walked.uses(rank, worker));
            assert_eq!(said, seen, "worker {worker} of rank {rank} in {what}");
        }
    }
    match check(schedule) {
        Ok(report) => assert!(report.is_free_of_races, "{what}"),
        Err(error) => panic!("{what}: {error}"),
    }
}

fn prove_all(algorithm: Algorithm) {
    for wiring in wirings() {
        let ranks = wiring.ranks();
        for collective in Collective::ALL.into_iter().filter(|one| algorithm.does(*one)) {
            for choice in choices(algorithm) {
                for (count, in_place) in [(0, false), (1, true), (37, true), (1000, false), (30_011, true)] {
                    let mut call = Call::new(collective, count);
                    call.in_place = in_place && collective != Collective::AllToAll;
                    let is_short = choice.chunk.is_some() || choice.fifo.is_some();
                    if count == 30_011 && is_short {
                        continue;
                    }
                    (call.root, call.peer) = (Rank(ranks / 2), Rank(ranks - 1));
                    let what = format!("{call:?} by {choice:?} on {:?}", wiring.nodes);
                    let built = build(&call, &choice, &wiring);
                    if !fits(algorithm, collective, &wiring) {
                        assert!(matches!(built, Err(BuildError::Impossible { .. })), "{what}");
                        continue;
                    }
                    prove(&built.unwrap_or_else(|error| panic!("{what}: {error}")), &what);
                }
            }
        }
    }
}

#[test]
fn rings_are_right() {
    prove_all(Algorithm::Ring);
}

#[test]
fn trees_are_right() {
    prove_all(Algorithm::Tree);
}

#[test]
fn grouped_sends_and_receives_are_right() {
    prove_all(Algorithm::PointToPoint);
}

#[test]
fn switches_inside_nodes_are_right() {
    prove_all(Algorithm::Nvls);
    prove_all(Algorithm::NvlsTree);
}

#[test]
fn switches_between_nodes_are_right() {
    prove_all(Algorithm::CollNetDirect);
    prove_all(Algorithm::CollNetChain);
}

#[test]
fn direct_exchanges_are_right() {
    prove_all(Algorithm::Direct);
    // So much that it takes two shots.
    for in_place in [false, true] {
        for wiring in [Wiring::flat(3), Wiring::flat(8)] {
            let call = Call { in_place, ..Call::new(Collective::AllReduce, 200_003) };
            let choice =
                Choice { chunk: Some(Bytes::kib(16)), ..Choice::new(Algorithm::Direct, Protocol::Ll128) };
            let schedule = build(&call, &choice.on(2), &wiring).unwrap();
            assert_eq!(schedule.program.workers(0), 6);
            prove(&schedule, "two shots");
        }
    }
}

#[test]
fn hypercubes_are_right() {
    prove_all(Algorithm::Hypercube);
}

#[test]
fn aggregated_trees_are_right() {
    prove_all(Algorithm::Pat);
}

#[test]
fn blocks_of_different_lengths_are_right() {
    for wiring in wirings() {
        let ranks = wiring.ranks();
        let lengths: Vec<u64> = (0..ranks).map(|rank| [0, 7, 1, 0, 5000, 64][rank as usize % 6]).collect();
        let pairs: Vec<u64> =
            (0..ranks * ranks).map(|pair| [3, 0, 0, 12_345, 64, 1, 700][pair as usize % 7]).collect();
        for algorithm in Algorithm::BUILT {
            for collective in [
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::Gather,
                Collective::Scatter,
                Collective::AllToAll,
            ] {
                // It passes blocks on, and takes those of one length.
                let is_passed = (algorithm, collective) == (Algorithm::Hypercube, Collective::AllToAll);
                if !algorithm.does(collective) || !fits(algorithm, collective, &wiring) || is_passed {
                    continue;
                }
                let mut call = Call::new(collective, 0);
                call.root = Rank(ranks / 3);
                call.in_place = collective != Collective::AllToAll;
                call.counts = match collective {
                    Collective::AllToAll => Counts::PerPair(pairs.clone().into()),
                    _ => Counts::PerRank(lengths.clone().into()),
                };
                let choice = Choice { chunk: Some(Bytes(512)), ..Choice::new(algorithm, Protocol::Simple) };
                let what = format!("{call:?} by {choice:?} on {:?}", wiring.nodes);
                prove(&build(&call, &choice.on(2), &wiring).unwrap(), &what);
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let refusal = |call: &Call, algorithm, protocol, wiring: &Wiring| {
        build(call, &Choice::new(algorithm, protocol), wiring).unwrap_err().to_string()
    };
    let simple = Protocol::Simple;
    let mut plain = Wiring::uniform(2, 2);
    plain.switch_reduces = false;
    let all_reduce = Call::new(Collective::AllReduce, 8);
    let gather = Call::new(Collective::AllGather, 8);
    let broadcast = Call { root: Rank(4), ..Call::new(Collective::Broadcast, 8) };
    let lengths =
        |lengths: &[u64], call: &Call| Call { counts: Counts::PerRank(lengths.into()), ..call.clone() };
    let in_place = Call { in_place: true, ..Call::new(Collective::AllToAll, 8) };
    let mut torn = Wiring::flat(4);
    torn.rings[0].swap_remove(1);
    let flat = Wiring::flat(4);
    let known = [
        (
            refusal(&all_reduce, Algorithm::Pat, simple, &flat),
            "PAT does not do AllReduce: choose Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, Direct, Hypercube",
        ),
        (refusal(&all_reduce, Algorithm::Nvls, Protocol::Ll, &flat), "NVLS does not use LL: choose Simple"),
        (
            refusal(&all_reduce, Algorithm::Nvls, simple, &plain),
            "NVLS cannot run here: the ranks of a node share no switch that reduces",
        ),
        (
            refusal(&all_reduce, Algorithm::CollNetChain, simple, &flat),
            "CollNetChain cannot run here: there is one node, and so no network that could reduce: it takes two or more",
        ),
        (
            refusal(&gather, Algorithm::Pat, simple, &plain),
            "PAT cannot run here: it needs one rank in each node",
        ),
        (
            refusal(&broadcast, Algorithm::Ring, simple, &flat),
            "rank 4 does not exist: there are 4, from 0 to 3",
        ),
        (
            refusal(&lengths(&[1, 2], &gather), Algorithm::Ring, simple, &flat),
            "the counts of AllGather do not fit: 4 ranks need 4 of them, and there are 2",
        ),
        (
            refusal(&lengths(&[1; 4], &all_reduce), Algorithm::Ring, simple, &flat),
            "the counts of AllReduce do not fit: it takes one count for all",
        ),
        (
            refusal(&in_place, Algorithm::PointToPoint, simple, &flat),
            "AlltoAll cannot be in place: blocks would be overwritten before they are sent",
        ),
        (
            refusal(&all_reduce, Algorithm::Ring, simple, &torn),
            "Ring cannot run here: ring 0 leaves out rank 1",
        ),
    ];
    for (said, expected) in known {
        assert_eq!(said, expected);
    }
}

#[test]
fn names_are_nccls_in_any_case() {
    for algorithm in Algorithm::BUILT {
        assert_eq!(algorithm.name().to_lowercase().parse(), Ok(algorithm));
    }
    for protocol in Protocol::ALL {
        assert_eq!(protocol.name().to_uppercase().parse(), Ok(protocol));
    }
    assert!("custom".parse::<Algorithm>().is_err());
    assert!("LL64".parse::<Protocol>().unwrap_err().to_string().contains("LL, LL128 or Simple"));
}

#[test]
fn small_messages_take_logarithmically_many_steps_in_aggregated_trees() {
    for (ranks, messages) in [(2, 1), (13, 4), (16, 4), (100, 7), (1024, 10)] {
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            let choice = Choice::new(Algorithm::Pat, Protocol::Simple);
            let schedule = build(&Call::new(collective, 4), &choice, &Wiring::uniform(ranks, 1)).unwrap();
            for worker in 0..2 {
                let steps =
                    (0..schedule.program.steps(0, worker)).map(|step| schedule.program.step(0, worker, step));
                let many = steps.filter(|step| !step.sends.is_empty() || !step.receives.is_empty()).count();
                assert_eq!(many, messages, "{collective} on {ranks} ranks");
            }
        }
    }
}
