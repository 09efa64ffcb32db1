//! Every algorithm, collective and protocol on many shapes: the checker proves what is built, and what is not built is
//! refused for a reason that is listed here.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;

use railnet_coll::check::check;
use railnet_coll::{Algorithm, BuildError, Call, Choice, Collective, Counts, Protocol, Wiring, build};
use railnet_core::{Bytes, DataType, Random, Rank, ReduceOp, Scalar};

use Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendReceive,
};
use Protocol::{Ll, Ll128, Simple};

/// What each algorithm does, and over which protocols.
const DOES: [(Algorithm, &[Collective], &[Protocol]); 10] = [
    (Algorithm::Ring, &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce], &[Ll, Ll128, Simple]),
    (Algorithm::Tree, &[AllReduce], &[Ll, Ll128, Simple]),
    (Algorithm::CollNetDirect, &[AllReduce, AllGather, ReduceScatter], &[Simple]),
    (Algorithm::CollNetChain, &[AllReduce], &[Simple]),
    (Algorithm::Nvls, &[AllReduce, AllGather, ReduceScatter], &[Simple]),
    (Algorithm::NvlsTree, &[AllReduce], &[Simple]),
    (Algorithm::Pat, &[AllGather, ReduceScatter], &[Simple]),
    (Algorithm::Direct, &[AllReduce, AllGather, ReduceScatter, Broadcast], &[Ll, Ll128, Simple]),
    (Algorithm::Hypercube, &[AllReduce, AllGather, ReduceScatter, AllToAll], &[Simple]),
    (Algorithm::PointToPoint, &[AllToAll, Gather, Scatter, SendReceive, Barrier], &[Ll, Simple]),
];

const RANKS: [u32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 32, 64, 128];

/// Why a schedule must be refused, if it must.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Unsupported,
    WrongProtocol,
    Impossible,
    NotInPlace,
}

fn refusal(call: &Call, algorithm: Algorithm, protocol: Protocol, wiring: &Wiring) -> Option<Refusal> {
    let (_, collectives, protocols) = DOES.into_iter().find(|row| row.0 == algorithm).unwrap();
    let is_one_node = wiring.nodes.len() == 1;
    if !collectives.contains(&call.collective) {
        Some(Refusal::Unsupported)
    } else if !protocols.contains(&protocol) {
        Some(Refusal::WrongProtocol)
    } else if wiring.ranks() == 1 {
        None
    } else if call.collective == AllToAll && call.in_place {
        Some(Refusal::NotInPlace)
    } else if is_one_node
        && matches!(algorithm, Algorithm::CollNetDirect | Algorithm::CollNetChain | Algorithm::NvlsTree)
    {
        // No network to reduce in, and no second node for a tree.
        Some(Refusal::Impossible)
    } else if algorithm == Algorithm::Pat && wiring.nodes.iter().any(|node| node.len() > 1) {
        // One rank in each node.
        Some(Refusal::Impossible)
    } else if algorithm == Algorithm::Hypercube
        && (!wiring.ranks().is_power_of_two() || matches!(call.counts, Counts::PerPair(_)))
    {
        // Every bit has a rank that differs in it, and blocks that are passed on have one length.
        Some(Refusal::Impossible)
    } else {
        None
    }
}

fn kind(error: &BuildError) -> Option<Refusal> {
    match error {
        BuildError::Unsupported { .. } => Some(Refusal::Unsupported),
        BuildError::WrongProtocol { .. } => Some(Refusal::WrongProtocol),
        BuildError::Impossible { .. } => Some(Refusal::Impossible),
        BuildError::NotInPlace { .. } => Some(Refusal::NotInPlace),
        _ => None,
    }
}

/// One node, several nodes of several sizes, a rank in each; with rings and chains in another order on the second channel.
fn shapes(ranks: u32) -> Vec<Wiring> {
    let few = ranks > 17;
    let nodes = (1..=ranks).filter(|nodes| ranks.is_multiple_of(*nodes));
    let nodes = nodes.filter(|nodes| !few || [1, 3, ranks / 8, ranks].contains(nodes));
    nodes
        .map(|nodes| {
            let mut wiring = Wiring::uniform(nodes, ranks / nodes);
            let mut random = Random::stream(u64::from(ranks), "proof-wiring", u64::from(nodes));
            let mut ring = wiring.rings[0].clone();
            shuffle(&mut ring, &mut random);
            wiring.rings.push(ring);
            let mut chains = wiring.chains[0].clone();
            for chain in &mut chains {
                shuffle(chain, &mut random);
            }
            wiring.chains.push(chains);
            wiring
        })
        .collect()
}

fn shuffle(list: &mut [u32], random: &mut Random) {
    for index in (1..list.len()).rev() {
        list.swap(index, random.below(index as u64 + 1) as usize);
    }
}

/// Small slots, so that few elements take many loops.
fn choice(algorithm: Algorithm, protocol: Protocol, channels: u32) -> Choice {
    let buffer = match protocol {
        Simple => 4096,
        Ll => 8192,
        Ll128 => 16384,
    };
    Choice { buffer: Some(Bytes(buffer)), ..Choice::new(algorithm, protocol).on(channels) }
}

/// Nothing, one, fewer than ranks, not divisible, several loops on several channels.
fn counts(ranks: u32) -> Vec<(u64, u32)> {
    let few = u64::from(ranks);
    if ranks > 17 {
        return vec![(few - 1, 1), (few * 33 + 5, 2)];
    }
    vec![(0, 1), (1, 2), (7, 1), (few - 1, 3), (few * 100 + 3, 1), (9_000 + few, 2), (20_003, 3)]
}

/// Goes through everything for an algorithm and some collectives; what is not looped over (in place, root, type,
/// operation) takes turns, so that all of it comes up with all the rest.
fn prove(algorithm: Algorithm, collectives: &[Collective]) {
    let mut proved = 0;
    let mut turn = 0u32;
    let scalar = Scalar::from_f32(DataType::F32, 0.5);
    for ranks in RANKS {
        // Direct exchanges take no notice of nodes.
        let many = if algorithm == Algorithm::Direct { 1 } else { usize::MAX };
        for wiring in shapes(ranks).into_iter().take(many) {
            for (collective, protocol) in
                collectives.iter().flat_map(|one| Protocol::ALL.map(|protocol| (*one, protocol)))
            {
                for (count, channels) in counts(ranks) {
                    turn += 1;
                    // Blocks of all ranks make a buffer as large as the others'.
                    let is_blocked =
                        !matches!(collective, AllReduce | Broadcast | Reduce | SendReceive | Barrier);
                    let count =
                        if is_blocked && count > 1000 { count / u64::from(ranks).min(8) } else { count };
                    let op =
                        [ReduceOp::Sum, ReduceOp::Average, ReduceOp::PreMulSum(scalar)][turn as usize % 3];
                    let call = Call {
                        op,
                        in_place: turn / 3 % 2 == 1,
                        root: Rank(turn * 7 % ranks),
                        peer: Rank((turn * 7 + turn / 5) % ranks),
                        ..Call::new(collective, count)
                    };
                    let choice = choice(algorithm, protocol, channels);
                    let what = || {
                        let nodes = wiring.nodes.len();
                        format!("{algorithm} {protocol} on {nodes} nodes, {channels} channels: {call:?}")
                    };
                    match (refusal(&call, algorithm, protocol, &wiring), build(&call, &choice, &wiring)) {
                        (None, Ok(schedule)) => {
                            let report =
                                check(&schedule).unwrap_or_else(|error| panic!("{}: {error}", what()));
                            assert!(report.is_free_of_races || ranks > 17, "{}", what());
                            proved += 1;
                        }
                        (Some(reason), Err(error)) => assert_eq!(kind(&error), Some(reason), "{}", what()),
                        (None, Err(error)) => panic!("{} is refused: {error}", what()),
                        (Some(reason), Ok(_)) => panic!("{} should be refused: {reason:?}", what()),
                    }
                }
            }
        }
    }
    assert!(proved > 100, "only {proved} schedules were proved");
}

#[test]
fn rings_are_proved() {
    prove(Algorithm::Ring, &[AllReduce, AllGather, ReduceScatter]);
}

#[test]
fn rings_with_a_root_are_proved() {
    prove(Algorithm::Ring, &[Broadcast, Reduce, AllToAll]);
}

#[test]
fn trees_are_proved() {
    prove(Algorithm::Tree, &[AllReduce, Broadcast]);
}

#[test]
fn switches_of_the_network_are_proved() {
    prove(Algorithm::CollNetDirect, &[AllReduce, AllGather, ReduceScatter]);
    prove(Algorithm::CollNetChain, &[AllReduce, AllGather]);
}

#[test]
fn switches_of_nodes_are_proved() {
    prove(Algorithm::Nvls, &[AllReduce, AllGather, ReduceScatter, Reduce]);
    prove(Algorithm::NvlsTree, &[AllReduce, ReduceScatter]);
}

#[test]
fn grouped_sends_and_receives_are_proved() {
    prove(Algorithm::PointToPoint, &[AllToAll, Gather, Scatter, SendReceive, Barrier, AllReduce]);
}

#[test]
fn direct_exchanges_are_proved() {
    prove(Algorithm::Direct, &[AllReduce, AllGather, ReduceScatter, Broadcast, Gather]);
}

#[test]
fn parallel_aggregated_trees_are_proved() {
    prove(Algorithm::Pat, &[AllGather, ReduceScatter, AllReduce]);
}

/// Sizes of every day with NCCL's own buffers: some algorithms go another way there.
#[test]
fn large_calls_are_proved() {
    let mut proved = 0;
    for (nodes, per_node) in [(1, 3), (1, 8), (2, 4), (4, 1), (5, 2)] {
        let wiring = Wiring::uniform(nodes, per_node);
        for (algorithm, collectives, protocols) in DOES {
            for (collective, protocol) in
                collectives.iter().flat_map(|one| protocols.iter().map(|protocol| (*one, *protocol)))
            {
                let call = Call { in_place: proved % 2 == 1, ..Call::new(collective, 1_500_001) };
                if refusal(&call, algorithm, protocol, &wiring).is_some() {
                    continue;
                }
                let schedule = build(&call, &Choice::new(algorithm, protocol).on(4), &wiring);
                let schedule = schedule.unwrap_or_else(|error| panic!("{algorithm} {call:?}: {error}"));
                check(&schedule).unwrap_or_else(|error| panic!("{algorithm} {protocol} {call:?}: {error}"));
                proved += 1;
            }
        }
    }
    assert!(proved > 100, "only {proved} schedules were proved");
}

/// Blocks of different lengths, among them empty ones.
#[test]
fn counts_that_differ_are_proved() {
    let mut proved = 0;
    for ranks in [1u32, 2, 3, 5, 8, 12] {
        for wiring in shapes(ranks) {
            for (algorithm, collectives, protocols) in DOES {
                for (collective, protocol) in
                    collectives.iter().flat_map(|one| protocols.iter().map(|protocol| (*one, *protocol)))
                {
                    let mut random = Random::stream(u64::from(ranks), collective.name(), 0);
                    let mut some = |many: u32| -> Arc<[u64]> {
                        (0..many).map(|_| if random.below(4) == 0 { 0 } else { random.below(300) }).collect()
                    };
                    let counts = match collective {
                        AllGather | ReduceScatter | Gather | Scatter => Counts::PerRank(some(ranks)),
                        AllToAll => Counts::PerPair(some(ranks * ranks)),
                        _ => continue,
                    };
                    let call = Call { counts, root: Rank(ranks - 1), ..Call::new(collective, 0) };
                    if refusal(&call, algorithm, protocol, &wiring).is_some() {
                        continue;
                    }
                    let schedule = build(&call, &choice(algorithm, protocol, 2), &wiring);
                    let schedule = schedule.unwrap_or_else(|error| panic!("{algorithm} {call:?}: {error}"));
                    check(&schedule).unwrap_or_else(|error| panic!("{algorithm} {call:?}: {error}"));
                    proved += 1;
                }
            }
        }
    }
    assert!(proved > 100, "only {proved} schedules were proved");
}

/// Nodes of different sizes: rings and trees do not need equal ones.
#[test]
fn unlike_nodes_are_proved() {
    let nodes = vec![vec![0, 1, 2], vec![3], vec![4, 5, 6, 7, 8], vec![9, 10]];
    let mut wiring = Wiring { rings: vec![nodes.concat()], chains: vec![nodes.clone()], ..Wiring::flat(1) };
    wiring.heads = vec![nodes.iter().map(|node| node[0]).collect()];
    wiring.nodes = nodes;
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::NvlsTree, Algorithm::CollNetChain] {
        for in_place in [false, true] {
            let call = Call { in_place, op: ReduceOp::Average, ..Call::new(AllReduce, 10_001) };
            let schedule = build(&call, &choice(algorithm, Simple, 2), &wiring);
            let schedule = schedule.unwrap_or_else(|error| panic!("{algorithm}: {error}"));
            check(&schedule).unwrap_or_else(|error| panic!("{algorithm}: {error}"));
        }
    }
}
