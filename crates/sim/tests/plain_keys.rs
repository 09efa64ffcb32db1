//! `nic.rate` and `cluster.gpus_per_node`: the common questions "what if" in one key each.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::Rate;
use railnet_sim::{Scenario, graph, run_jobs};
use railnet_topology::LinkKind;

fn job(fidelity: &str, cluster: &str, nic: &str) -> Scenario {
    let text = format!(
        "fidelity = \"{fidelity}\"\nsteps = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n{cluster}\n[nic]\n{nic}\n\
         [model]\nname = \"tiny\"\n"
    );
    Scenario::parse(&text).unwrap()
}

fn step_us(scenario: &Scenario) -> f64 {
    run_jobs(scenario).unwrap().jobs[0].first.outcome.step.as_us_f64()
}

#[test]
fn the_rate_of_nics_is_that_of_their_links_and_no_others() {
    let slow = job("packet", "", "rate = \"100Gbps\"");
    let plain = job("packet", "", "");
    let (with, without) = (graph(&slow).unwrap(), graph(&plain).unwrap());
    for (link, before) in with.links.iter().zip(&without.links) {
        let expected = if link.kind == LinkKind::Edge { Rate::gbps(100) } else { before.rate };
        assert_eq!(link.rate, expected);
    }
    assert!(without.links.iter().all(|link| link.rate == Rate::gbps(400)));
    assert_eq!(slow.edge_rate(), Rate::gbps(100));
}

#[test]
fn slower_nics_make_a_step_longer_by_packets_and_by_formulas() {
    for fidelity in ["packet", "analytic"] {
        let (slow, plain) = (job(fidelity, "", "rate = \"25Gbps\""), job(fidelity, "", ""));
        assert!(step_us(&slow) > 1.2 * step_us(&plain), "{fidelity}: {} {}", step_us(&slow), step_us(&plain));
    }
}

#[test]
fn fewer_gpus_of_a_server_are_the_first_ones_and_its_nics_stay() {
    for fidelity in ["packet", "analytic"] {
        let half = job(fidelity, "gpus_per_node = 4", "");
        let servers = half.servers().unwrap();
        assert_eq!((servers.gpus(), servers.ports().total()), (8, 16));
        assert_eq!(run_jobs(&half).unwrap().jobs[0].placed.ranks(), 8);
    }
}

#[test]
fn what_cannot_be_is_refused_at_its_key() {
    let wrong = |cluster: &str, nic: &str| {
        let text = format!("[cluster]\n{cluster}\n[nic]\n{nic}\n[model]\nname = \"tiny\"\n");
        let error = Scenario::parse(&text).unwrap_err();
        (error.key.clone(), error.message)
    };
    let server = "server = \"dgx-h100\"\nnodes = 2\n";
    let (key, message) = wrong(&format!("{server}gpus_per_node = 9"), "");
    assert_eq!(
        (key.as_str(), message.as_str()),
        ("cluster.gpus_per_node", "dgx-h100 has 8 GPUs: 1 to 8 of them, not 9")
    );
    assert_eq!(wrong(server, "rate = \"0Gbps\"").0, "nic.rate");
    let groups = "gpus_per_node = 2\n[[cluster.groups]]\nserver = \"dgx-h100\"\nnodes = 1\n";
    assert!(wrong(groups, "").1.contains("not both"));
}
