//! Memoised collectives: the result is that of sending all of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_sim::{JobSettings, JobsOutcome, Scenario, run_jobs_with};

fn run(text: &str, memo: bool) -> JobsOutcome {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    run_jobs_with(&scenario, NoSink, JobSettings { memo, threads: 1, observer: None })
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
        .0
}

/// Some servers, and a model of two layers.
fn job(server: &str, nodes: u32, rest: &str) -> String {
    format!(
        "steps = 2\n[cluster]\nserver = \"{server}\"\nnodes = {nodes}\n[fabric.link]\nrate = \"400Gbps\"\n\
         [model]\nname = \"gpt-400m\"\nlayers = 2\nvocabulary = 16384\n{rest}"
    )
}

/// Runs a job both ways and compares all there is to compare; how many of 100 collectives were memoised.
fn share(name: &str, text: &str) -> u64 {
    let without = run(text, false);
    let with = run(text, true);
    assert_eq!(without.memo.hits, 0, "{name}");
    assert_eq!(with.memo.calls, without.memo.calls, "{name}");
    for (with, without) in with.jobs.iter().zip(&without.jobs) {
        assert_eq!(with.steps, without.steps, "{name}");
        assert_eq!(with.first.outcome, without.first.outcome, "{name}");
        assert_eq!(with.first.said, without.first.said, "{name}");
        assert_eq!(with.first.path, without.first.path, "{name}");
        assert_eq!(with.connections, without.connections, "{name}");
    }
    assert_eq!(with.digest, without.digest, "{name}");
    let (with_network, without_network) = (with.network.unwrap(), without.network.unwrap());
    assert_eq!(with_network.links, without_network.links, "{name}");
    assert_eq!(with_network.completion, without_network.completion, "{name}");
    for lane in &without_network.lanes {
        let other = with_network.lanes.iter().find(|other| other.name == lane.name);
        assert_eq!(other, Some(lane), "{name}");
    }
    assert!(with_network.events <= without_network.events, "{name}");
    with.memo.hits * 100 / with.memo.calls
}

#[test]
fn a_collective_from_memory_changes_nothing() {
    let several = "[training]\nglobal_batch = 8\n[parallel]\n";
    let slow = "[[faults]]\nkind = \"slow-gpu\"\ngpu = 3\nshare = 0.8\n";
    // The least of 100 that are taken: what is beside other traffic is carried out.
    let cases = [
        ("matrices shared in each server", job("dgx-h100", 2, &format!("{several}tp = 8\n")), 60),
        ("and sequences", job("dgx-h100", 2, &format!("{several}tp = 8\nsp = true\nzero = 1\n")), 70),
        ("a pipeline in each server", job("dgx-h100", 2, "[parallel]\ntp = 4\npp = 2\n"), 0),
        ("two groups in each server", job("dgx-h100", 2, &format!("{several}tp = 4\n")), 50),
        ("groups of two", job("dgx-h100", 2, &format!("{several}tp = 2\n")), 50),
        ("gradients in one server", job("dgx-h100", 1, "[parallel]\ndp = 8\n"), 20),
        ("parameters shared out in one server", job("dgx-h100", 1, "[parallel]\nfsdp = true\n"), 30),
        ("over PCIe", job("pcie-4gpu", 1, "[parallel]\ntp = 4\n"), 70),
        (
            "a GPU that computes and sends slowly",
            job("dgx-h100", 1, &format!("[parallel]\ntp = 8\n{slow}")),
            0,
        ),
    ];
    for (name, text, least) in cases {
        let share = share(name, &text);
        assert!(share >= least, "{name}: {share} of 100 were memoised");
    }
}
