#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use proptest::prelude::*;
use railnet_core::{Bytes, DataType, ReduceOp};
use railnet_topology::host::PathType;

use super::*;
use crate::variables::{Source, Variables};
use crate::wiring::TreePattern;
use crate::{Algorithm, Collective, Protocol};

const MIB: u64 = 1 << 20;

/// Hopper nodes of 8 with so many channels of so many GB/s; plain trees between nodes, as NCCL's search gives them.
fn nodes(nodes: u32, channels: u32, bandwidth: f32) -> Inputs {
    let ring = GraphFacts::uniform(channels, bandwidth);
    let tree = if nodes > 1 { ring.with_pattern(TreePattern::Plain) } else { ring };
    Inputs::hopper(nodes, 8, Graphs { ring: Some(ring), tree: Some(tree), ..Graphs::default() })
}

fn all_reduce(inputs: &Inputs) -> Table {
    Table::new(inputs, &Request::new(Collective::AllReduce, Bytes::ZERO))
}

fn best(table: &Table, bytes: u64) -> String {
    let (cell, _) = table.best(Bytes(bytes), 1).unwrap();
    format!("{}/{}", cell.algorithm, cell.protocol)
}

fn set(inputs: &mut Inputs, name: &str, value: &str) {
    let pairs = vec![(name.to_owned(), value.to_owned())];
    inputs.settings = Variables::merge([(Source::Environment, pairs)]).unwrap().settings();
}

/// nccl#1453: 3 nodes of 8 H100; NCCL logged these times. The graph is not in the log: 8 channels of 24 GB/s fit.
#[test]
fn a_logged_prediction_is_reproduced_to_its_last_digit() {
    let table = all_reduce(&nodes(3, 8, 24.0));
    let logged = [
        (128, Protocol::Ll, "25.214764"),
        (1024, Protocol::Ll, "25.331232"),
        (262_144, Protocol::Ll128, "54.707825"),
    ];
    for (bytes, protocol, time) in logged {
        let (cell, estimate) = table.best(Bytes(bytes), 1).unwrap();
        assert_eq!((cell.algorithm, cell.protocol), (Algorithm::Tree, protocol));
        assert_eq!(format!("{:.6}", estimate.time_us), time, "{bytes} bytes");
    }
}

/// What the search finds on a cluster of the catalogue.
fn found(name: &str, variables: &[(&str, &str)]) -> Inputs {
    let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let variables = Variables::merge([(Source::Environment, pairs)]).unwrap();
    let cluster = railnet_topology::catalogue::cluster(name).unwrap();
    let graphs = crate::search::search(&cluster.host, cluster.nodes, &variables.topology()).unwrap();
    Inputs::of(&cluster, &graphs, variables.settings(), variables.collnet())
}

/// AllReduce on Hopper and Intel without NVLS: latency in µs and GB/s of Tree LL, LL128, Simple, Ring LL, LL128, Simple,
/// worked out from NCCL's formulas by hand, for 1, 2, 8 and 64 nodes of 8.
const SHAPES: [&str; 4] = [
    "15.2/43.6 31.5/128.8 64.4/165.6 15.0/80.6 40.6/189.3 56.0/205.7",
    "25.2/16.6 48.5/124.8 92.4/140.8 40.0/20.8 75.2/156.6 131.6/204.8",
    "45.2/8.7 82.5/98.6 148.4/122.4 156.4/10.4 282.8/149.1 585.2/195.0",
    "75.2/8.7 133.5/98.6 232.4/122.4 1242.8/10.2 2220.4/147.1 4818.8/192.4",
];

#[test]
fn what_the_search_finds_gives_the_table_worked_out_by_hand() {
    let shapes = [
        (found("dgx-h100", &[]), SHAPES[0]),
        (found("dgx-h100x2", &[]), SHAPES[1]),
        (found("dgx-h100x8", &[]), SHAPES[2]),
        (found("dgx-h100x64", &[]), SHAPES[3]),
        (nodes(1, 12, 30.0), SHAPES[0]),
        (nodes(2, 8, 48.0), SHAPES[1]),
        (nodes(8, 8, 48.0), SHAPES[2]),
        (nodes(64, 8, 48.0), SHAPES[3]),
    ];
    for (inputs, expected) in shapes {
        let table = all_reduce(&inputs);
        let cells: Vec<_> = table.cells()[..6]
            .iter()
            .map(|cell| cell.outcome.clone().unwrap())
            .map(|model| format!("{:.1}/{:.1}", model.latency_us, model.bandwidth))
            .collect();
        assert_eq!(cells.join(" "), expected, "{} nodes", inputs.nodes);
    }
}

/// From, until, who wins.
type Stretch = (u64, u64, &'static str);

/// The same machines, at powers of four.
#[test]
fn rings_and_trees_take_turns_as_sizes_grow() {
    let shapes: [(Inputs, &[Stretch]); 4] = [
        (
            nodes(1, 12, 30.0),
            &[(1, MIB, "Ring/LL"), (4 * MIB, 16 * MIB, "Ring/LL128"), (64 * MIB, 1 << 34, "Ring/Simple")],
        ),
        (
            nodes(2, 8, 48.0),
            &[
                (1, 1 << 16, "Tree/LL"),
                (1 << 18, 4 * MIB, "Tree/LL128"),
                (16 * MIB, 64 * MIB, "Ring/LL128"),
                (256 * MIB, 1 << 34, "Ring/Simple"),
            ],
        ),
        (
            nodes(8, 8, 48.0),
            &[
                (1, 1 << 16, "Tree/LL"),
                (1 << 18, 16 * MIB, "Tree/LL128"),
                (64 * MIB, 256 * MIB, "Ring/LL128"),
                (1 << 30, 1 << 34, "Ring/Simple"),
            ],
        ),
        (
            nodes(64, 8, 48.0),
            &[
                (1, 1 << 16, "Tree/LL"),
                (1 << 18, 64 * MIB, "Tree/LL128"),
                (256 * MIB, 1 << 30, "Tree/Simple"),
                (1 << 32, 1 << 34, "Ring/Simple"),
            ],
        ),
    ];
    for (inputs, stretches) in shapes {
        let table = all_reduce(&inputs);
        for bytes in (0..=17).map(|power| 1_u64 << (2 * power)) {
            let (_, _, expected) =
                stretches.iter().find(|(from, until, _)| (*from..=*until).contains(&bytes)).unwrap();
            assert_eq!(&best(&table, bytes), expected, "{} nodes, {bytes} bytes", inputs.nodes);
        }
    }
}

/// H100, one node: 8 heads of 40 GB/s, and what comes of it is what 8 × H100 reach (nccl#1455: 273 GB/s).
#[test]
fn nvls_on_one_node_reaches_what_is_measured() {
    let mut inputs = nodes(1, 12, 30.0);
    inputs.graphs.nvls = Some(GraphFacts { bandwidth_inter: 60.0, ..GraphFacts::uniform(8, 40.0) });
    let table = all_reduce(&inputs);
    let model = table.cell(Algorithm::Nvls, Protocol::Simple).outcome.clone().unwrap();
    assert_eq!(format!("{:.1}/{:.1}", model.latency_us, model.bandwidth), "25.0/272.0");
    assert_eq!(best(&table, 256 * MIB), "NVLS/Simple");
    // 16 channels of 8 heads: 64 loops of 128 KiB make 1 GiB.
    for (mib, chunk) in [(256, 64), (1024, 128)] {
        let request = Request::new(Collective::AllReduce, Bytes::mib(mib));
        let decision = choose(&inputs, &request).unwrap();
        assert_eq!((decision.channels, decision.threads, decision.chunk), (16, 640, Bytes::kib(chunk)));
    }
}

#[test]
fn what_cannot_run_says_why() {
    use Algorithm::{CollNetChain, CollNetDirect, Nvls, NvlsTree, Pat, Ring, Tree};
    use Protocol::{Ll, Ll128, Simple};
    let one = nodes(1, 12, 30.0);
    let many = nodes(8, 8, 48.0);
    let with = |inputs: &Inputs, change: fn(&mut Inputs)| {
        let mut inputs = inputs.clone();
        inputs.graphs.nvls = Some(GraphFacts::uniform(8, 40.0));
        change(&mut inputs);
        inputs
    };
    let plain = |_: &mut Inputs| {};
    let request = |collective| Request::new(collective, Bytes::mib(1));
    let average = Request { op: ReduceOp::Average, ..request(Collective::AllReduce) };
    let all_reduce = request(Collective::AllReduce);
    let cases = [
        (
            with(&many, plain),
            all_reduce,
            CollNetDirect,
            Simple,
            "SHARP is not enabled (NCCL_COLLNET_ENABLE=0)",
        ),
        (with(&many, plain), all_reduce, Nvls, Simple, "more than one node needs SHARP"),
        (with(&many, plain), all_reduce, Nvls, Ll, "NVLS has Simple only"),
        (with(&one, plain), all_reduce, NvlsTree, Simple, "it works between nodes, and there is one"),
        (with(&one, plain), average, Nvls, Simple, "NVLink switches do not do avg of f32"),
        (with(&one, plain), all_reduce, Pat, Simple, "PAT does not do AllReduce"),
        (with(&one, plain), request(Collective::Broadcast), Tree, Ll, "Tree does not do Broadcast"),
        (
            with(&many, plain),
            request(Collective::AllGather),
            Pat,
            Simple,
            "it needs one rank on each node, and there are 8",
        ),
        (with(&one, |i| i.switch_reduces = false), all_reduce, Nvls, Simple, "no NVLink switch that reduces"),
        (
            with(&one, |i| set(i, "NCCL_NVLS_ENABLE", "0")),
            all_reduce,
            Nvls,
            Simple,
            "NVLS is switched off (NCCL_NVLS_ENABLE=0)",
        ),
        (with(&one, |i| set(i, "NCCL_ALGO", "ring")), all_reduce, Tree, Ll, "NCCL_ALGO=ring leaves it out"),
        (
            with(&one, |i| set(i, "NCCL_PROTO", "^LL;broadcast:LL")),
            all_reduce,
            Ring,
            Ll,
            "NCCL_PROTO=^LL;broadcast:LL leaves it out",
        ),
        (
            with(&one, |i| i.graphs.ring.as_mut().unwrap().type_intra = PathType::Phb),
            all_reduce,
            Ring,
            Ll128,
            "LL128 needs NVLink inside the node, not PHB",
        ),
        (
            with(&many, |i| i.graphs.ring.as_mut().unwrap().type_inter = PathType::Sys),
            all_reduce,
            Ring,
            Ll128,
            "LL128 needs NICs near the GPUs, not SYS away",
        ),
        (
            with(&many, |i| (i.capability_min, i.capability_max) = (80, 90)),
            all_reduce,
            Ring,
            Ll128,
            "LL128 needs GPUs of one kind",
        ),
        (
            with(&many, |i| i.collnet.is_enabled = true),
            all_reduce,
            CollNetChain,
            Simple,
            "the network's switches do not reduce (no SHARP)",
        ),
        (
            with(&many, |i| {
                i.collnet = CollNet { is_enabled: true, is_available: true, gathers: true, heads: 4 };
            }),
            request(Collective::AllGather),
            CollNetDirect,
            Simple,
            "it needs a NIC for each of the 8 GPUs of a node, and 4 have one",
        ),
        (with(&one, |i| i.graphs.tree = None), all_reduce, Tree, Ll, "the search found no channel for it"),
        (
            with(&one, |i| (i.ranks, i.local_ranks) = (1, 1)),
            all_reduce,
            Tree,
            Ll,
            "one rank has nobody to talk to",
        ),
    ];
    for (inputs, request, algorithm, protocol, expected) in cases {
        let table = Table::new(&inputs, &request);
        let out = table.cell(algorithm, protocol).outcome.clone().unwrap_err();
        assert_eq!(out.to_string(), expected);
    }
}

#[test]
fn a_list_with_ll128_takes_it_without_nvlink() {
    let mut inputs = nodes(1, 2, 12.0);
    inputs.graphs.ring.as_mut().unwrap().type_intra = PathType::Phb;
    assert!(all_reduce(&inputs).cell(Algorithm::Ring, Protocol::Ll128).outcome.is_err());
    set(&mut inputs, "NCCL_PROTO", "LL128,Simple");
    assert!(all_reduce(&inputs).cell(Algorithm::Ring, Protocol::Ll128).outcome.is_ok());
}

#[test]
fn sharp_brings_collnet_and_nvls_between_nodes() {
    let mut inputs = nodes(8, 8, 48.0);
    inputs.collnet = CollNet { is_enabled: true, is_available: true, gathers: true, heads: 8 };
    inputs.graphs.nvls = Some(GraphFacts::uniform(8, 40.0));
    inputs.graphs.collnet_chain = Some(GraphFacts::uniform(8, 48.0));
    inputs.graphs.collnet_direct = Some(GraphFacts::uniform(8, 48.0));
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        let table = Table::new(&inputs, &Request::new(collective, Bytes::ZERO));
        for algorithm in [Algorithm::CollNetDirect, Algorithm::Nvls] {
            assert!(table.cell(algorithm, Protocol::Simple).outcome.is_ok(), "{algorithm} {collective}");
        }
    }
    // CollNetChain: 2 × 7 × 2.8 + 30 µs, half of 8 × 48 GB/s. CollNetDirect: 2 × (3.7 + 7 × 0.4) + 31 µs, and 0.85 of it.
    let table = all_reduce(&inputs);
    let chain = table.cell(Algorithm::CollNetChain, Protocol::Simple).outcome.clone().unwrap();
    let direct = table.cell(Algorithm::CollNetDirect, Protocol::Simple).outcome.clone().unwrap();
    assert!((chain.latency_us - 69.2).abs() < 1e-3 && (chain.bandwidth - 192.0).abs() < 1e-3, "{chain:?}");
    assert!((direct.latency_us - 44.0).abs() < 1e-3 && (direct.bandwidth - 163.2).abs() < 1e-3, "{direct:?}");
}

#[test]
fn pat_runs_with_one_rank_on_each_node() {
    let ring = GraphFacts::uniform(2, 24.0);
    let graphs = Graphs { ring: Some(ring), tree: Some(ring), ..Graphs::default() };
    let inputs = Inputs::hopper(16, 1, graphs);
    let gather = Request::new(Collective::AllGather, Bytes::ZERO);
    let pat = Table::new(&inputs, &gather).cell(Algorithm::Pat, Protocol::Simple).outcome.clone().unwrap();
    // 8 + 4 × 14 / 3.5 + 2.8 × 16 µs; three quarters of 48 GB/s.
    assert!((pat.latency_us - 68.8).abs() < 1e-4 && (pat.bandwidth - 36.0).abs() < 1e-4, "{pat:?}");
    let average = Request { op: ReduceOp::Average, ..Request::new(Collective::ReduceScatter, Bytes::ZERO) };
    let out = Table::new(&inputs, &average).cell(Algorithm::Pat, Protocol::Simple).outcome.clone();
    assert_eq!(out.unwrap_err().to_string(), "PAT does not do avg");
    let decision = choose(&inputs, &gather.sized(Bytes::mib(1))).unwrap();
    assert_eq!(decision.algorithm, Algorithm::Pat);
    assert_eq!((decision.threads, decision.chunk), (640, Bytes::kib(64)));
}

/// NCCL 2.30 enqueue.cc, worked out by hand.
#[test]
fn channels_threads_and_chunks_shrink_with_the_message() {
    let one = nodes(1, 12, 30.0);
    let many = nodes(8, 8, 48.0);
    let forced = |inputs: &Inputs, algorithm: &str, protocol: &str| {
        let mut inputs = inputs.clone();
        let pairs = [("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)];
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        inputs.settings = Variables::merge([(Source::Environment, pairs)]).unwrap().settings();
        inputs
    };
    let cases = [
        // Enough for 24 channels of 512 threads with 64 bytes each.
        (forced(&one, "ring", "simple"), MIB, (24, 544, 2 << 20)),
        // 64 KiB: 2 channels of 512 × 64 B.
        (forced(&one, "ring", "simple"), 1 << 16, (2, 544, 2 << 20)),
        // 1 KiB: one channel, threads halve to 64 and no further; at least three warps.
        (forced(&one, "ring", "simple"), 1 << 10, (1, 96, 2 << 20)),
        // LL in a ring wants 8 B × ranks for each thread: 32 KiB a channel, of which 4 KiB are worth a channel.
        (forced(&one, "ring", "ll"), 1 << 18, (8, 512, 1 << 15)),
        // A tree with LL128 of 8 nodes: 4.8 steps; 576,000 B halve to 288,000, 144,000, 72,000, 36,000, 18,000.
        (forced(&many, "tree", "ll128"), MIB, (16, 640, 17_280)),
        (forced(&many, "tree", "simple"), 64 * MIB, (16, 640, 1 << 19)),
    ];
    for (inputs, bytes, expected) in cases {
        let decision = choose(&inputs, &Request::new(Collective::AllReduce, Bytes(bytes))).unwrap();
        assert_eq!((decision.channels, decision.threads, decision.chunk.0), expected, "{decision:?}");
        assert_eq!(decision.choice().channels, expected.0);
    }
}

#[test]
fn transfers_between_two_ranks_are_spread_over_channels() {
    let mut inside = nodes(1, 12, 30.0);
    inside.peers = PeerFacts { channels: 32, per_peer: 32, chunk: Bytes::kib(512) };
    let mut between = nodes(2, 8, 48.0);
    between.peers = PeerFacts { channels: 16, per_peer: 4, chunk: Bytes::kib(128) };
    let cases = [
        // 32 channels over 8 ranks: 4 each; parts of 64 KiB at least.
        (&inside, Collective::AllToAll, 8 * MIB, (Protocol::Simple, 4, 512 << 10)),
        (&inside, Collective::AllToAll, 8 << 14, (Protocol::Ll, 1, 32 << 10)),
        (&inside, Collective::AllToAll, 0, (Protocol::Ll, 1, 32 << 10)),
        // Parts of more than 16 MiB are split again, up to what a peer may have.
        (&inside, Collective::SendReceive, 1 << 30, (Protocol::Simple, 32, 512 << 10)),
        // Between nodes there is one channel for each of 16 ranks; long transfers take more.
        (&between, Collective::AllToAll, 16 << 15, (Protocol::Simple, 1, 32 << 10)),
        (&between, Collective::AllToAll, 16 << 18, (Protocol::Simple, 2, 64 << 10)),
        (&between, Collective::AllToAll, 16 * MIB, (Protocol::Simple, 4, 128 << 10)),
    ];
    for (inputs, collective, bytes, expected) in cases {
        let decision = choose(inputs, &Request::new(collective, Bytes(bytes))).unwrap();
        assert_eq!(decision.algorithm, Algorithm::PointToPoint);
        assert_eq!(
            (decision.protocol, decision.parts.unwrap(), decision.chunk.0),
            expected,
            "{collective} {bytes}"
        );
    }
}

#[test]
fn one_rank_copies_and_nothing_at_all_is_an_error() {
    let one = Inputs { ranks: 1, nodes: 1, local_ranks: 1, ..nodes(1, 12, 30.0) };
    let decision = choose(&one, &Request::new(Collective::AllReduce, Bytes::mib(1))).unwrap();
    assert_eq!((decision.algorithm, decision.protocol), (Algorithm::Ring, Protocol::Simple));
    let mut none = nodes(8, 8, 48.0);
    set(&mut none, "NCCL_ALGO", "nvls");
    let error = choose(&none, &Request::new(Collective::AllReduce, Bytes::mib(1))).unwrap_err().to_string();
    assert!(error.contains("no algorithm and protocol can run AllReduce"), "{error}");
    assert!(error.contains("Ring/LL: NCCL_ALGO=nvls leaves it out"), "{error}");
    assert!(error.contains("NVLS/Simple: more than one node needs SHARP"), "{error}");
}

/// fp8 is rounded in each step: rings of more than 8 ranks are left to others.
#[test]
fn rings_are_dear_for_fp8() {
    let inputs = nodes(2, 8, 48.0);
    let request = Request { dtype: DataType::F8E4M3, ..Request::new(Collective::AllReduce, Bytes::gib(1)) };
    assert_eq!(best(&Table::new(&inputs, &request), 1 << 30), "Tree/Simple");
    assert_eq!(best(&all_reduce(&inputs), 1 << 30), "Ring/Simple");
}

fn any_graph() -> impl Strategy<Value = Option<GraphFacts>> {
    let bandwidths = prop::sample::select(vec![0.12_f32, 2.4, 12.0, 24.0, 30.0, 48.0, 60.0]);
    let graph = (0_u32..17, bandwidths.clone(), bandwidths, any::<bool>(), any::<bool>());
    let graph = graph.prop_map(|(channels, intra, inter, same_channels, nvlink)| GraphFacts {
        bandwidth_intra: intra,
        bandwidth_inter: inter,
        same_channels,
        type_intra: if nvlink { PathType::Nvl } else { PathType::Sys },
        ..GraphFacts::uniform(channels, 1.0)
    });
    prop::option::weighted(0.9, graph)
}

prop_compose! {
    fn any_inputs()(
        shape in (1_u32..70, 1_u32..10),
        graphs in (any_graph(), any_graph(), any_graph(), any_graph(), any_graph()),
        capability in prop::sample::select(vec![60_u32, 70, 80, 90, 100]),
        collnet in any::<bool>(),
        cpu in prop::sample::select(vec![CpuVendor::Intel, CpuVendor::Amd, CpuVendor::Power, CpuVendor::Other]),
    ) -> Inputs {
        let (ring, tree, collnet_chain, collnet_direct, nvls) = graphs;
        let graphs = Graphs { ring, tree, collnet_chain, collnet_direct, nvls };
        Inputs {
            capability_min: capability,
            capability_max: capability,
            cpu,
            collnet: CollNet { is_enabled: collnet, is_available: collnet, gathers: collnet, heads: 8 },
            ..Inputs::hopper(shape.0, shape.1, graphs)
        }
    }
}

proptest! {
    #[test]
    fn times_are_numbers_and_the_decision_is_the_least_of_them(
        inputs in any_inputs(),
        collective in prop::sample::select(crate::variables::TUNED.to_vec()),
        bytes in (0_u64..1 << 36, 0_u32..36).prop_map(|(bytes, shift)| bytes >> shift),
    ) {
        let request = Request::new(collective, Bytes(bytes));
        let table = Table::new(&inputs, &request);
        let mut least = f32::INFINITY;
        for cell in table.cells() {
            let estimate = table.estimate(cell, Bytes(bytes), 1);
            prop_assert_eq!(estimate.is_some(), cell.outcome.is_ok());
            if let Some(estimate) = estimate {
                prop_assert!(estimate.time_us.is_finite() && estimate.time_us >= 0.0, "{:?}", cell);
                least = least.min(estimate.time_us);
            }
        }
        match choose(&inputs, &request) {
            Ok(decision) => {
                prop_assert_eq!(decision.estimate.map(|estimate| estimate.time_us), Some(least));
                prop_assert!(decision.channels >= 1 && decision.chunk.0 >= 1 && decision.threads <= 640);
            }
            Err(_) => prop_assert!(least.is_infinite()),
        }
    }

    #[test]
    fn between_two_crossovers_nobody_else_is_cheaper(
        inputs in any_inputs(),
        collective in prop::sample::select(crate::variables::TUNED.to_vec()),
        sizes in prop::collection::vec((1_u64..1 << 34, 0_u32..34), 50),
    ) {
        let table = Table::new(&inputs, &Request::new(collective, Bytes::ZERO));
        let Ok(crossovers) = table.crossovers(Bytes(1 << 34)) else { return Ok(()) };
        prop_assert_eq!(crossovers[0].from, Bytes(1));
        let told = |bytes: u64| crossovers.iter().rev().find(|one| one.from.0 <= bytes).unwrap();
        for pair in crossovers.windows(2) {
            let (cell, _) = table.best(Bytes(pair[1].from.0 - 1), 1).unwrap();
            prop_assert_eq!((cell.algorithm, cell.protocol), (pair[0].algorithm, pair[0].protocol));
        }
        for bytes in sizes.into_iter().map(|(bytes, shift)| (bytes >> shift).max(1)) {
            let told = told(bytes);
            let (_, least) = table.best(Bytes(bytes), 1).unwrap();
            let cost = table.estimate(table.cell(told.algorithm, told.protocol), Bytes(bytes), 1).unwrap();
            // Equal to the digits that single precision has.
            prop_assert!(cost.time_us <= least.time_us * 1.000_001, "{bytes}: {cost:?} {least:?}");
        }
    }
}
