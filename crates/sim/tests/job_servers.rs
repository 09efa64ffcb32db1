//! Jobs whose parameters or checkpoints are on servers of the cluster: what goes there is packets, and the network is felt.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_job::graph::What;
use railnet_job::parallel::Scope;
use railnet_sim::{JobsOutcome, Scenario};

use crate::training::{SMALL, run};

/// The small job on so many servers, all together.
fn job(fidelity: &str, nodes: u32, rest: &str) -> String {
    let small = SMALL.replace("nodes = 2", &format!("nodes = {nodes}"));
    let small = small.replace("layers = 4", "layers = 1\nvocabulary = 16384");
    format!("fidelity = \"{fidelity}\"\n{small}{rest}")
}

fn step(found: &JobsOutcome) -> f64 {
    found.jobs[0].first.outcome.step.as_secs_f64()
}

#[test]
fn all_ranks_at_once_are_an_incast_at_a_server_and_cost_more_than_formulas_say() {
    let one = "[parameters]\nservers = 1\n";
    let found = run(&job("packet", 5, one));
    let placed = &found.jobs[0].placed;
    assert_eq!((placed.ranks(), placed.servers.clone(), placed.storage.clone()), (32, 4..5, 5..5));
    let pushed = found.jobs[0].first.said.iter().find(|row| row.said.what == What::Push).unwrap();
    let trouble = pushed.trouble.unwrap();
    assert!(trouble.marks > 0, "four senders of each rail for one NIC: {trouble:?}");
    assert_eq!((trouble.lost, trouble.resent), (0, 0));
    // Every byte that ranks push and pull passes the NICs of the server, the same of each rail.
    let of_server: Vec<_> =
        found.jobs[0].ports.iter().filter(|port| port.port.starts_with("node4.")).collect();
    assert_eq!(of_server.len(), 8);
    for port in &of_server {
        assert_eq!(port.scope, Scope::Servers);
        assert_eq!((port.sent, port.received), (of_server[0].sent, of_server[0].received));
    }
    let formulas = step(&run(&job("analytic", 5, one)));
    assert!((1.0..1.3).contains(&(step(&found) / formulas)), "{} and {formulas}", step(&found));
    let four = step(&run(&job("packet", 8, "[parameters]\nservers = 4\n")));
    assert!(step(&found) / four > 2.5, "four servers take four times as much: {} and {four}", step(&found));
}

#[test]
fn the_same_file_gives_the_same_digest_with_and_without_memory() {
    let text = job(
        "packet",
        4,
        "[parameters]\nservers = 1\n[parallel]\ntp = 8\n[storage]\nrate = \"50GB/s\"\nservers = 1\ninterval = 2\n",
    );
    let scenario = Scenario::parse(&format!("steps = 2\n{text}")).unwrap();
    let [with, without] = [true, false].map(|memo| {
        let settings = railnet_sim::JobSettings { memo, threads: 1, observer: None };
        railnet_sim::run_jobs_with(&scenario, railnet_core::event::NoSink, settings).unwrap().0
    });
    assert!(with.memo.hits > 0, "matrices are shared inside servers");
    assert_eq!(with.digest, without.digest);
    assert_eq!(with.jobs[0].steps, without.jobs[0].steps);
    let steps = &with.jobs[0].steps;
    assert!(steps[1] > steps[0], "the second writes a checkpoint: {steps:?}");
}

#[test]
fn drives_of_the_servers_themselves_need_no_packets() {
    let storage = "[storage]\nrate = \"8GB/s\"\ngpudirect = true\ncheckpoint = \"800MB\"\ninterval = 2\n";
    let found = run(&format!("steps = 2\n{}", job("packet", 2, storage)));
    assert!(found.jobs[0].ports.iter().all(|port| port.scope != Scope::Storage));
}

#[test]
fn servers_need_nodes_of_their_own_and_are_not_lost() {
    let cases = [
        (
            2,
            "[parameters]\nservers = 2\n",
            "parameters.servers",
            "it needs 3: 2 that have parameters or storage and 1 for",
        ),
        (
            2,
            "[launch]\nnodes = 2\n[parameters]\nservers = 1\n",
            "parameters.servers",
            "has 2 nodes for this job, and it needs 3",
        ),
        (
            3,
            "[launch]\nspares = 1\n[storage]\nrate = \"1GB/s\"\nservers = 2\n",
            "storage.servers",
            "2 that have parameters or storage, 1 spares and 1",
        ),
        (
            3,
            "[parameters]\nservers = 1\n[[faults]]\nkind = \"crash\"\nnode = 2\nat = \"1ms\"\n",
            "faults.0",
            "server 2 has the parameters or the storage of a job",
        ),
    ];
    for (nodes, rest, key, message) in cases {
        let error = Scenario::parse(&job("packet", nodes, rest)).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
}
