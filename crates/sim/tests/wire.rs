//! Whether packets travel as values or as bytes makes no difference to a run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::{Digest, Span};
use railnet_nic::frame::WireForm;
use railnet_sim::{Run, Scenario};

fn run(scenario: &Scenario, form: WireForm) -> (String, u64, Vec<(u64, u64)>) {
    let mut run = Run::new(scenario, Digest::new()).unwrap();
    run.set_wire(form);
    while !run.advance(Span::from_us(100)) {}
    let (outcome, digest) = run.finish().unwrap();
    let flows = outcome.flows.iter().map(|flow| (flow.started.as_ps(), flow.finished.as_ps()));
    (format!("{:?}", digest.finish()), outcome.events, flows.collect())
}

fn scenario(topology: &str, switch: &str, rest: &str) -> Scenario {
    let text = format!(
        "seed = 7\n[fabric]\ntopology = {topology}\nswitch = {switch}\n{rest}\n\
         [[traffic]]\nkind = \"all-to-all\"\nbytes = \"50KB\"\n"
    );
    Scenario::parse(&text).unwrap()
}

#[test]
fn a_run_of_bytes_has_the_digest_of_the_run_of_values() {
    let single = "{ kind = \"single-switch\", hosts = 9 }";
    let leaves = "{ kind = \"leaf-spine\", leaves = 3, hosts_per_leaf = 3, spines = 2 }";
    let dragonfly = "{ kind = \"dragonfly\", groups = 3, routers = 2, hosts = 2, global_links = 1 }";
    let eager = "ecn = { kmin = \"10KB\", kmax = \"40KB\", pmax = 0.5 }";
    let cases = [
        (single, format!("{{ buffer = \"2MB\", {eager} }}"), "[nic]\ncontrol = \"none\""),
        (leaves, format!("{{ {eager} }}"), "[nic]\nmtu = 1024"),
        (leaves, "{ flow_control = \"credits\" }".to_owned(), "[nic]\ncontrol = \"swift\""),
        (leaves, "{ flow_control = \"none\", buffer = \"1MB\" }".to_owned(), "[nic]\ntimeout = 8"),
        (leaves, "{ }".to_owned(), "routing = \"spray\"\n[nic]\nrecovery = \"reorder\""),
        (
            leaves,
            "{ cut_through = true }".to_owned(),
            "routing = \"adaptive\"\n[nic]\nrecovery = \"go-back-n\"",
        ),
        (
            dragonfly,
            "{ }".to_owned(),
            "routing = \"flowlet\"\nframing = \"payload64\"\n[nic]\ncontrol = \"timely\"",
        ),
        (leaves, format!("{{ {eager} }}"), "framing = \"rocev2\"\nlink = { bit_error_rate = 1e-7 }"),
        (
            leaves,
            "{ }".to_owned(),
            "framing = \"rocev1\"\nlink = { bit_error_rate = 1e-7 }\n[nic]\nack_priority = 5",
        ),
        (single, "{ buffer = \"2MB\" }".to_owned(), "framing = \"rocev1\"\n[nic]\ncontrol = \"timely\""),
        (
            leaves,
            "{ }".to_owned(),
            "framing = \"infiniband\"\ninfiniband = { lmc = 1 }\n[nic]\nack_priority = 2",
        ),
        (
            leaves,
            "{ cut_through = true }".to_owned(),
            "framing = \"infiniband\"\nrouting = \"adaptive\"\nlink = { bit_error_rate = 1e-7 }\n[nic]\nrecovery = \"selective-repeat\"",
        ),
        (dragonfly, "{ }".to_owned(), "framing = \"infiniband\""),
    ];
    for (index, (topology, switch, rest)) in cases.iter().enumerate() {
        let case = &scenario(topology, switch, rest);
        let values = run(case, WireForm::Values);
        assert_eq!(values, run(case, WireForm::Bytes), "case {index}");
    }
}
