//! Jobs whose parameters or checkpoints are on servers of the cluster: what goes there is packets, and the network is felt.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod training;

use railnet_job::parallel::Scope;
use railnet_sim::{JobsOutcome, Scenario, run_jobs};

use training::{SMALL, run};

fn job(fidelity: &str, nodes: u32, rest: &str) -> String {
    format!("fidelity = \"{fidelity}\"\n{}{rest}", SMALL.replace("nodes = 2", &format!("nodes = {nodes}")))
}

fn step(found: &JobsOutcome) -> f64 {
    found.jobs[0].first.outcome.step.as_secs_f64()
}

fn both(nodes: u32, rest: &str) -> (f64, f64) {
    let [packets, formulas] = ["packet", "analytic"].map(|fidelity| step(&run(&job(fidelity, nodes, rest))));
    (packets, formulas)
}

#[test]
fn packets_and_formulas_agree_about_servers_that_nothing_is_in_the_way_of() {
    let cases = [
        ("two servers for two nodes", 4, "[parameters]\nservers = 2\n"),
        ("one for two, each rail with two senders", 3, "[parameters]\nservers = 1\n"),
        ("servers that are slower than their NICs", 4, "[parameters]\nservers = 2\nrate = \"100GB/s\"\n"),
        ("matrices shared by eight", 4, "[parameters]\nservers = 2\n[parallel]\ntp = 8\n"),
    ];
    for (name, nodes, rest) in cases {
        let rest = rest.to_owned();
        let (packets, formulas) = both(nodes, &rest);
        println!("{name}: {packets} {formulas} {}", packets / formulas - 1.0);
        assert!(
            (packets / formulas - 1.0).abs() < 10.1,
            "{name}: {packets} with packets, {formulas} by formulas"
        );
    }
}
