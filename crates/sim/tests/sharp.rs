//! Reduction and multicast in the network's switches: right results, half of a ring's bytes, and few wires in a row.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_coll::Algorithm;
use railnet_core::event::NoSink;
use railnet_sim::{Outcome, Run, Scenario};

/// Servers around one switch that reduces, or ports where there are no servers.
fn scenario(server: Option<&str>, nodes: u32, wire_ns: u32, aggregation: &str, call: &str) -> String {
    let hosts = nodes * if server.is_some() { 8 } else { 1 };
    let cluster = server.map_or_else(String::new, |server| format!("[cluster]\nserver = \"{server}\"\n"));
    format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n\
         link = {{ rate = \"400Gbps\", delay = \"{wire_ns}ns\" }}\nswitch = {{ aggregation = {aggregation} }}\n\
         {cluster}[env]\nNCCL_COLLNET_ENABLE = \"1\"\n[[collective]]\n{call}\n"
    )
}

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let run = Run::new(&scenario, NoSink).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let outcome = run.finish().unwrap_or_else(|error| panic!("{error}\n{text}")).0;
    for result in &outcome.collectives {
        assert_eq!(result.wrong, 0, "{result:?}\n{text}");
    }
    outcome
}

/// The most bytes of whole packets that a NIC sent and got, headers and all.
fn busiest(outcome: &Outcome) -> [f64; 2] {
    let is_nic = |name: &str| !name.starts_with("switch") && !name.ends_with("reduction");
    let most = |of: &dyn Fn(&&railnet_sim::LinkResult) -> bool| {
        outcome.links.iter().filter(of).map(|link| link.counters.bytes).max().unwrap_or(0) as f64
    };
    [most(&|link| is_nic(&link.from)), most(&|link| is_nic(&link.to))]
}

#[test]
fn every_nic_sends_and_gets_the_data_once_where_switches_reduce_and_twice_in_a_ring() {
    for (server, nodes, rails) in [(None, 2, 1), (None, 8, 1), (Some("dgx-h100"), 4, 8)] {
        let size = u64::from(rails) << 22;
        let ranks = f64::from(nodes * rails);
        // Theory: a ring sends 2 (n - 1) / n of the data; with reduction in switches it goes up once and comes down once.
        for (algorithm, theory) in [("ring", 2.0 * (ranks - 1.0) / ranks), ("collnetdirect", 1.0)] {
            let call = format!(
                "kind = \"all_reduce\"\nsize = \"{size}B\"\nalgorithm = \"{algorithm}\"\nprotocol = \"simple\"\nplacement = \"out\""
            );
            let outcome = run(&scenario(server, nodes, 500, "{}", &call));
            assert!(outcome.collectives[0].fell_back.is_none(), "{:?}", outcome.collectives[0].fell_back);
            for bytes in busiest(&outcome) {
                let ratio = bytes / (theory * size as f64 / f64::from(rails));
                // Headers are 2 %, acknowledgements the rest; segments of the network's switches have one each.
                assert!((1.01..1.06).contains(&ratio), "{server:?} × {nodes} {algorithm}: {ratio}");
            }
        }
    }
}

#[test]
fn a_ring_crosses_wires_for_every_rank_and_a_switch_that_reduces_two() {
    let time_ps = |nodes, algorithm: &str, wire_ns| {
        let call = format!(
            "kind = \"all_reduce\"\nsize = \"64B\"\nalgorithm = \"{algorithm}\"\nprotocol = \"simple\"\nplacement = \"out\""
        );
        let outcome = run(&scenario(None, nodes, wire_ns, "{}", &call));
        outcome.collectives[0].time.as_ps()
    };
    // What longer wires add is how many are crossed one after the other.
    let wires =
        |nodes, algorithm| (time_ps(nodes, algorithm, 2000) - time_ps(nodes, algorithm, 1000)) / 1_000_000;
    for nodes in [2, 4, 8, 16] {
        // Each of 2 (n - 1) messages crosses two wires, and so does the first clear-to-send.
        assert_eq!(wires(nodes, "ring"), 2 * (2 * (u64::from(nodes) - 1) + 1), "{nodes}");
        assert_eq!(wires(nodes, "collnetdirect"), 2, "{nodes}");
    }
}

#[test]
fn gathering_and_scattering_go_through_the_switches_too() {
    let size = 2_u64 << 20;
    for (server, nodes, rails, algorithm) in [
        (None, 4, 1, "collnetdirect"),
        (Some("dgx-h100"), 2, 8, "collnetdirect"),
        (Some("dgx-h100"), 3, 8, "nvls"),
    ] {
        for (kind, share) in
            [("all_gather", [1.0, f64::from(nodes) - 1.0]), ("reduce_scatter", [f64::from(nodes), 1.0])]
        {
            let call = format!(
                "kind = \"{kind}\"\nsize = [\"{size}B\", \"10012B\"]\nalgorithm = \"{algorithm}\"\niterations = 2"
            );
            let text = scenario(server, nodes, 500, "{}", &call);
            let outcome = run(&text);
            assert_eq!(outcome.collectives.len(), 4);
            for result in &outcome.collectives {
                assert!(result.fell_back.is_none(), "{:?}\n{text}", result.fell_back);
                assert_eq!(result.algorithm, algorithm.parse::<Algorithm>().unwrap());
            }
            // In place and out of place, twice each: blocks of all ranks of a rail, of which a NIC has one.
            let block = 4.0 * size as f64 / f64::from(nodes * rails);
            for (bytes, blocks) in busiest(&outcome).into_iter().zip(share) {
                let ratio = bytes / (blocks * block);
                // Whoever only gives or only gets a segment of a packet answers it with an empty one.
                assert!((1.0..1.2).contains(&ratio), "{kind} on {server:?} × {nodes}: {ratio}");
            }
        }
    }
}

#[test]
fn different_collectives_follow_each_other_on_one_communicator() {
    // Groups of one have the numbers of other groups of another.
    let order = ["all_reduce", "all_gather", "reduce_scatter", "all_reduce", "all_gather"];
    for algorithm in ["collnetdirect", "nvls"] {
        let call = |kind: &&str| format!("kind = \"{kind}\"\nsize = \"1MiB\"\nalgorithm = \"{algorithm}\"");
        let calls = order.iter().map(call).collect::<Vec<_>>().join("\n[[collective]]\n");
        let outcome = run(&scenario(Some("dgx-h100"), 2, 500, "{ contexts = 8 }", &calls));
        assert!(outcome.collectives.iter().all(|one| one.fell_back.is_none()));
    }
}

#[test]
fn where_contexts_run_out_a_call_falls_back_and_says_why() {
    let call = "kind = \"all_reduce\"\nsize = \"1MiB\"\nalgorithm = \"collnetdirect\"\nplacement = \"out\"";
    for (contexts, has_room) in [(8, true), (7, false)] {
        // Eight rails; all channels of a rail share its context.
        let text = scenario(Some("dgx-h100"), 2, 500, &format!("{{ contexts = {contexts} }}"), call);
        let result = run(&text).collectives.remove(0);
        assert_eq!(result.algorithm == Algorithm::CollNetDirect, has_room);
        match result.fell_back {
            Some(why) => assert!(why.contains("no reduction context left: all 7 are in use"), "{why}"),
            None => assert!(has_room),
        }
    }
}
