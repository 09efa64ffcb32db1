//! Collectives in the simulator: right results, the bytes that theory asks for, and times that make sense.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use railnet_coll::{Algorithm, Collective, Protocol};
use railnet_core::event::NoSink;
use railnet_core::{Digest, Span, Time};
use railnet_nic::frame::WireForm;
use railnet_sim::{CollectiveResult, Outcome, Run, Scenario};

/// Servers on one switch, and what is called.
fn servers(server: &str, nodes: u32, rest: &str) -> String {
    let rate = if server == "dgx-a100" { 200 } else { 400 };
    let hosts = 8 * nodes;
    format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n\
         link = {{ rate = \"{rate}Gbps\", delay = \"500ns\" }}\n[cluster]\nserver = \"{server}\"\n{rest}"
    )
}

/// Ports with memory right behind them, on one switch.
fn ports(hosts: u32, rest: &str) -> String {
    format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\nlink = {{ rate = \"100Gbps\" }}\n{rest}"
    )
}

fn call(kind: &str, size: &str, algorithm: &str, rest: &str) -> String {
    format!("[[collective]]\nkind = \"{kind}\"\nsize = \"{size}\"\nalgorithm = \"{algorithm}\"\n{rest}\n")
}

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    railnet_sim::run(&scenario, NoSink).unwrap_or_else(|error| panic!("{error}\n{text}")).0
}

fn results(text: &str) -> Vec<CollectiveResult> {
    let results = run(text).collectives;
    for result in &results {
        assert_eq!(result.wrong, 0, "{result:?}\n{text}");
    }
    results
}

/// What an algorithm can do on so many nodes of so many ranks, with switches that reduce or without.
fn can(algorithm: Algorithm, nodes: u32, per_node: u32, has_nvls: bool) -> bool {
    match algorithm {
        Algorithm::Nvls => nodes == 1 && has_nvls,
        Algorithm::NvlsTree => nodes > 1 && per_node > 1 && has_nvls,
        Algorithm::Pat => nodes > 1 && per_node == 1,
        Algorithm::CollNetDirect | Algorithm::CollNetChain => false,
        Algorithm::Hypercube => (nodes * per_node).is_power_of_two(),
        _ => true,
    }
}

/// A size that nothing divides, and one that takes several rounds of every buffer.
const SIZES: &str = "[\"10012B\", \"600KB\"]";

#[test]
fn every_algorithm_gives_every_rank_what_it_should_have() {
    // The GPUs of each node, and how many nodes; none where ports are ranks.
    let shapes = [
        (None, 4, 1, "0..3"),
        (Some("dgx-h100"), 1, 4, "0..3"),
        (Some("dgx-a100"), 2, 2, "0..1,8..9"),
        (Some("dgx-h100"), 2, 8, "0..15"),
        (Some("dgx-h100"), 3, 1, "0,8,16"),
    ];
    for (server, nodes, per_node, ranks) in shapes {
        let has_nvls = server == Some("dgx-h100");
        let (mut calls, mut count) = (String::new(), 0);
        for collective in Collective::ALL {
            let able = Algorithm::BUILT.into_iter().filter(|one| one.does(collective));
            for algorithm in able.filter(|one| can(*one, nodes, per_node, has_nvls)) {
                for protocol in Protocol::ALL.into_iter().filter(|one| algorithm.speaks(*one)) {
                    // Only NVLink keeps the lines of LL128 whole.
                    if protocol == Protocol::Ll128 && server.is_none() {
                        continue;
                    }
                    let _ = writeln!(
                        calls,
                        "[[collective]]\nkind = \"{}\"\nsize = {SIZES}\nalgorithm = \"{algorithm}\"\n\
                         protocol = \"{protocol}\"\nranks = \"{ranks}\"\nroot = 1\npeer = 2\nchannels = 2\n",
                        collective.test_name()
                    );
                    // Two sizes, out of place and in place.
                    count += if collective.has_in_place() { 4 } else { 2 };
                }
            }
        }
        let text = match server {
            Some(server) => servers(server, nodes, &calls),
            None => ports(nodes, &calls),
        };
        let results = results(&text);
        assert_eq!(results.len(), count, "{server:?} × {nodes}");
        assert!(results.iter().all(|result| result.time > Span::ZERO));
        assert!(results.iter().any(|result| result.call.in_place));
    }
}

#[test]
fn ranks_may_have_different_amounts() {
    let calls = "[[collective]]\nkind = \"all_gather\"\ncounts = [1000, 0, 70_001, 1]\n\
                 [[collective]]\nkind = \"reduce_scatter\"\ncounts = [0, 5, 123_456, 0]\ntype = \"bfloat16\"\n\
                 [[collective]]\nkind = \"gather\"\ncounts = [7, 100_000, 0, 9]\nroot = 2\n\
                 [[collective]]\nkind = \"alltoall\"\n\
                 counts = [[1, 2, 3, 4], [50_000, 0, 0, 0], [0, 0, 0, 0], [9, 80_000, 7, 6]]\n\
                 [[collective]]\nkind = \"alltoall\"\nsize = [\"1MiB\", \"4KiB\"]\nskew = 5\n\
                 [[collective]]\nkind = \"scatter\"\nsize = \"1MiB\"\nskew = 3\nalgorithm = \"p2p\"\n";
    for text in [ports(4, calls), servers("dgx-h100", 2, &calls.replace("kind", "ranks = \"0,1,8,9\"\nkind"))]
    {
        let results = results(&text);
        // Out of place and in place, but for all-to-all.
        let bytes: Vec<u64> = results.iter().map(|one| one.call.bytes(one.ranks).as_u64()).collect();
        let (gathered, scattered, collected) = (4 * 71_002, 2 * 123_461, 4 * 100_016);
        let to_all = 4 * 80_022;
        assert_eq!(
            bytes[..9],
            [gathered, gathered, scattered, scattered, collected, collected, to_all, 1 << 20, 4096],
            "{text}"
        );
        assert!((1 << 20) - bytes[9] < 16 && bytes.len() == 11, "{bytes:?}");
    }
    // What a popular rank gets takes longer than the same bytes shared out evenly.
    let time = |skew| {
        let text = format!("[[collective]]\nkind = \"alltoall\"\nsize = \"8MiB\"\nskew = {skew}\n");
        let result = results(&ports(8, &text)).remove(0);
        let all: u64 = (0..8).map(|rank| result.call.output_count(railnet_core::Rank(rank), 8)).sum();
        result.time.as_us_f64() / all as f64
    };
    assert!(time(8) > 1.5 * time(1), "{} and {}", time(8), time(1));
}

/// Bytes that the NICs of each node send, headers and all.
fn sent(outcome: &Outcome, nodes: usize) -> Vec<u64> {
    let from_hosts = outcome.links.iter().filter(|link| link.to.starts_with("switch"));
    let bytes: Vec<u64> = from_hosts.map(|link| link.counters.bytes).collect();
    bytes.chunks(bytes.len() / nodes).map(|node| node.iter().sum()).collect()
}

#[test]
fn links_carry_what_theory_says() {
    let size = 16_u64 << 20;
    // Of the size of the call, what each node sends in all: 16 ranks in two nodes, 4 ports.
    let cases = [
        (2, "all_reduce", "ring", 2.0 * 15.0 / 16.0),
        (2, "all_gather", "ring", 15.0 / 16.0),
        (2, "reduce_scatter", "ring", 15.0 / 16.0),
        // Half of the data up and half of it down, in both trees.
        (2, "all_reduce", "tree", 1.0),
        (2, "all_reduce", "nvlstree", 1.0),
        // Half of what each of eight ranks has.
        (2, "alltoall", "p2p", 8.0 / 2.0),
        (4, "all_reduce", "ring", 2.0 * 3.0 / 4.0),
        (4, "alltoall", "p2p", 3.0 / 4.0),
    ];
    for (nodes, kind, algorithm, factor) in cases {
        let only = call(kind, "16MiB", algorithm, "protocol = \"simple\"\nplacement = \"out\"");
        let text = if nodes == 2 { servers("dgx-h100", 2, &only) } else { ports(4, &only) };
        let outcome = run(&text);
        for bytes in sent(&outcome, nodes) {
            let ratio = bytes as f64 / (factor * size as f64);
            // Headers are 2 % of full packets of 4096 bytes; acknowledgements and slots that are given back are little more.
            assert!((1.015..1.05).contains(&ratio), "{kind} {algorithm}: {ratio}");
        }
        assert_eq!(outcome.resent, 0);
    }
}

#[test]
fn the_same_run_has_the_same_digest_as_values_and_as_bytes() {
    let calls = call("all_reduce", "300KB", "ring", "iterations = 2")
        + &call("alltoall", "200KB", "auto", "")
        + &call("all_reduce", "8KB", "tree", "");
    let text = servers("dgx-a100", 2, &calls);
    let digest = |form| {
        let scenario = Scenario::parse(&text).unwrap();
        let mut run = Run::new(&scenario, Digest::new()).unwrap();
        run.set_wire(form);
        let (outcome, digest) = run.finish().unwrap();
        (digest.finish(), outcome.collectives)
    };
    let values = digest(WireForm::Values);
    assert_eq!(values, digest(WireForm::Values));
    assert_eq!(values, digest(WireForm::Bytes));
}

#[test]
fn no_call_is_faster_than_its_bytes_and_steps_and_none_is_far_from_the_model() {
    // Nodes; bytes for each byte of the call over NVLink (371 GB/s a GPU) and over the NICs of a node (400 GB/s).
    let cases = [
        ("ring", 1, 14.0 / 8.0, 0.0),
        ("tree", 1, 14.0 / 8.0, 0.0),
        ("nvls", 1, 9.0 / 8.0, 0.0),
        ("ring", 2, 14.0 / 8.0, 30.0 / 16.0),
        ("nvlstree", 2, 9.0 / 8.0, 1.0),
    ];
    for (algorithm, nodes, inside, between) in cases {
        let mut calls = String::new();
        for size in ["4KiB", "1MiB", "32MiB"] {
            calls += &call("all_reduce", size, algorithm, "protocol = \"simple\"\nplacement = \"out\"");
        }
        let mut before = Span::ZERO;
        for result in results(&servers("dgx-h100", nodes, &calls)) {
            let bytes = result.call.bytes(result.ranks).as_u64() as f64;
            let steps_us = 8.4_f64.min(25.0);
            let bound_us = steps_us + bytes * f64::max(inside / 371e3, between / 400e3);
            let us = result.time.as_us_f64();
            assert!(us >= bound_us, "{algorithm} {nodes} {bytes}: {us} < {bound_us}");
            let predicted = result.predicted.unwrap().as_us_f64();
            let ratio = us / predicted;
            assert!((0.4..2.5).contains(&ratio), "{algorithm} × {nodes}, {bytes}: {us} and {predicted}");
            assert!(result.time > before, "more bytes take longer");
            before = result.time;
        }
    }
}

#[test]
fn groups_run_at_once_and_do_not_wait_for_each_other() {
    let one = |rest: &str| call("all_reduce", "4MiB", "ring", &format!("placement = \"out\"\n{rest}"));
    let time = |rest: &str, groups, ranks| {
        let result = results(&servers("dgx-h100", 2, &one(rest))).remove(0);
        assert_eq!((result.groups, result.ranks), (groups, ranks));
        result.time.as_us_f64()
    };
    // Rails are apart from each other, and servers are.
    let (all, alone) = (time("groups = { every = 8 }", 8, 2), time("ranks = \"3,11\"", 1, 2));
    assert!((all / alone - 1.0).abs() < 0.02, "{all} and {alone}");
    let (all, alone) = (time("groups = { of = 8 }", 2, 8), time("ranks = \"8..15\"", 1, 8));
    assert!((all / alone - 1.0).abs() < 0.02, "{all} and {alone}");
    // Groups of four of the same server share nothing but its switch.
    let half = time("groups = { of = 4 }", 4, 4);
    assert!(half < all * 1.5, "{half} and {all}");
}

#[test]
fn the_time_is_that_of_one_of_many_calls() {
    let outcome = |iterations| {
        run(&servers(
            "dgx-h100",
            1,
            &call("all_gather", "1MiB", "ring", &format!("placement = \"in\"\niterations = {iterations}")),
        ))
    };
    let (one, five) = (outcome(1), outcome(5));
    let time = |outcome: &Outcome| outcome.collectives[0].time.as_us_f64();
    assert!((time(&five) / time(&one) - 1.0).abs() < 0.3, "{} and {}", time(&five), time(&one));
    let whole = five.completion.since(Time::ZERO).as_us_f64();
    assert!((whole / (5.0 * time(&five)) - 1.0).abs() < 1e-3);
    assert_eq!(five.collectives[0].wrong, 0);
}

#[test]
fn what_makes_no_sense_is_refused_with_its_line_and_advice() {
    let cases = [
        ("kind = \"all_reduce\"\nsize = \"64\"", "64", "B"),
        ("kind = \"all_reduce\"\nsize = 64", "64", "a size such as \"64MiB\""),
        (
            "kind = \"all_reduce\"\nsize = { from = \"1MiB\", to = \"8B\" }",
            "1MiB",
            "by a factor of 2 or more",
        ),
        ("kind = \"all_reduse\"\nsize = \"1MiB\"", "all_reduse", "all_reduce"),
        ("kind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"rign\"", "rign", "Ring"),
        ("kind = \"all_reduce\"\nsize = \"1MiB\"\nprotocol = \"simpel\"", "simpel", "Simple"),
        ("kind = \"broadcast\"\nsize = \"1MiB\"\nroot = 16", "16", "a group has 16, counted from 0"),
        (
            "kind = \"all_reduce\"\nsize = \"1MiB\"\ngroups = { of = 3 }",
            "3",
            "16 ranks cannot be divided by 3",
        ),
        ("kind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"nvls\"", "nvls", ""),
        ("kind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"p2p\"", "p2p", "P2P does not do AllReduce"),
        ("kind = \"alltoall\"\nsize = \"1MiB\"\nalgorithm = \"ring\"", "ring", "Ring does not do AlltoAll"),
        (
            "kind = \"all_reduce\"\nsize = \"1MiB\"\nranks = \"0..1,10..11,2..3\"",
            "0..1,10..11,2..3",
            "that are on one server follow each other",
        ),
        (
            "kind = \"all_reduce\"\nsize = \"1MiB\"\nranks = \"0..1,11,10\"",
            "0..1,11,10",
            "in the order of its GPUs",
        ),
        ("kind = \"all_reduce\"\nsize = \"1MiB\"\niterations = 0", "0", "a call is made 1 to"),
        ("kind = \"all_reduce\"\nsize = \"1MiB\"\nchannels = 65", "65", "1 to 64 channels"),
        ("kind = \"all_gather\"", "all_gather", "say how much there is: `size`, or `counts`"),
        ("kind = \"all_gather\"\ncounts = [1, 2]", "[1, 2]", "16 ranks need 16 counts, and there are 2"),
        ("kind = \"all_gather\"\ncounts = [1, -2]", "[1, -2]", "whole numbers of elements"),
        ("kind = \"all_gather\"\ncounts = [1, [2]]", "[1, [2]]", "whole numbers of elements"),
        ("kind = \"all_gather\"\ncounts = \"1\"", "1", "a list of elements for each rank"),
        ("kind = \"all_gather\"\ncounts = [1]\nsize = \"1B\"", "[1]", "leave `size` and `skew` out"),
        ("kind = \"all_reduce\"\ncounts = [1]", "[1]", "AllReduce takes no counts"),
        ("kind = \"alltoall\"\ncounts = [1]", "[1]", "AlltoAll takes a row for each rank that sends"),
        ("kind = \"gather\"\ncounts = [[1]]", "[[1]]", "Gather takes one number for each rank"),
        ("kind = \"alltoall\"\ncounts = [[1]]", "[[1]]", "16 ranks need 16 rows of counts, and there are 1"),
        (
            "kind = \"alltoall\"\ncounts = [[1, 2], [3]]\nranks = \"0..1\"",
            "[[1, 2], [3]]",
            "2 ranks need 2 counts in each row, and that of rank 1 has 1",
        ),
        ("kind = \"all_gather\"\nsize = \"1MiB\"\nskew = 0", "0", "the last rank has 1 to 65536 times"),
        ("kind = \"broadcast\"\nsize = \"1MiB\"\nskew = 2", "2", "no blocks that could differ"),
        ("kind = \"alltoall\"\nsize = \"1MiB\"\nplacement = \"in\"", "in", "AlltoAll is always out of place"),
    ];
    for (lines, place, advice) in cases {
        let text = servers("dgx-a100", 2, &format!("[[collective]]\n{lines}\n"));
        let error = match Scenario::parse(&text) {
            Ok(scenario) => match Run::new(&scenario, NoSink) {
                Ok(_) => panic!("{lines} is taken"),
                Err(error) => error.located(&text),
            },
            Err(error) => error,
        };
        assert!(error.message.contains(advice), "{lines}: {error}");
        let span = error.span.clone().unwrap_or_else(|| panic!("{lines}: {error} has no place"));
        assert!(text[span.clone()].contains(place), "{lines}: {error} at {:?}", &text[span]);
    }
}

/// NCCL 2.30.7, src/graph/tuning.cc, for Hopper on Intel: `llMaxBws` of one node and of two, and 8 times what
/// `perChMaxRingLL128Bws` and `perChMaxTreeBws` have for a channel of two nodes. Trees fill slowly, a slot for each hop.
#[test]
fn threads_send_what_nccl_has_measured_and_no_more() {
    let cases = [
        (1, "ring", "ll", 141.0, 0.97),
        (2, "ring", "ll", 39.0, 0.97),
        (2, "ring", "ll128", 8.0 * 36.7, 0.8),
        (2, "tree", "simple", 8.0 * 41.4, 0.7),
    ];
    for (nodes, algorithm, protocol, limit, least) in cases {
        let rest = format!("protocol = \"{protocol}\"\nplacement = \"out\"");
        let text = servers("dgx-h100", nodes, &call("all_reduce", "256MiB", algorithm, &rest));
        let result = results(&text).remove(0);
        let bytes = f64::from(256 << 20);
        let ranks = f64::from(result.ranks);
        let bus = 2.0 * (ranks - 1.0) / ranks * bytes / result.time.as_secs_f64() / 1e9;
        let share = bus / limit;
        assert!((least..=1.0).contains(&share), "{nodes} × 8 {algorithm}/{protocol}: {bus} of {limit} GB/s");
    }
}
