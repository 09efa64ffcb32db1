//! Flow fidelity against packets: the same paths to the byte, and times within what queues and congestion control make of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use railnet_core::event::NoSink;
use railnet_sim::{Fidelity, FlowLevelRun, Outcome, Scenario, run};

fn at(fidelity: &str, text: &str) -> Outcome {
    let scenario = Scenario::parse(&format!("fidelity = \"{fidelity}\"\n{text}"))
        .unwrap_or_else(|error| panic!("{}: {}\n{text}", error.key, error.message));
    match fidelity {
        "flow" => FlowLevelRun::new(&scenario).unwrap().finish().unwrap().0,
        _ => run(&scenario, NoSink).unwrap().0,
    }
}

fn both(text: &str) -> [Outcome; 2] {
    ["packet", "flow"].map(|fidelity| at(fidelity, text))
}

/// Packets with payload over each direction of each link.
fn packets(outcome: &Outcome) -> BTreeMap<(String, String), u64> {
    let links = outcome.links.iter();
    links.map(|link| ((link.from.clone(), link.to.clone()), link.counters.data_packets)).collect()
}

fn seconds(outcome: &Outcome) -> f64 {
    outcome.completion.since(railnet_core::Time::ZERO).as_secs_f64()
}

/// How much longer or shorter the run is at flow fidelity, in parts of the time that packets take.
fn difference(text: &str) -> f64 {
    let [packet, flow] = both(text).map(|outcome| seconds(&outcome));
    flow / packet - 1.0
}

const FAT_TREE: &str = "[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\nlink = { rate = \"100Gbps\", delay = \"1us\" }\n\
                        [nic]\ncontrol = \"none\"\n";

#[test]
fn flows_take_the_paths_of_their_packets() {
    for seed in [1, 2, 3] {
        for traffic in ["kind = \"permutation\"\nbytes = \"64KB\"", "kind = \"all-to-all\"\nbytes = \"10KB\""]
        {
            let [packet, flow] = both(&format!("seed = {seed}\n{FAT_TREE}[[traffic]]\n{traffic}\n"));
            assert_eq!(packets(&packet), packets(&flow), "seed {seed}, {traffic}");
        }
    }
}

#[test]
fn sprayed_flows_load_equal_paths_alike() {
    let text = "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 4 }\nrouting = \"spray\"\n\
                [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 2\nbytes = \"4MB\"\n";
    let flow = at("flow", text);
    let up: Vec<u64> = flow
        .links
        .iter()
        .filter(|link| link.from == "leaf0" && link.to.starts_with("spine"))
        .map(|link| link.counters.bytes)
        .collect();
    assert_eq!(up.len(), 4);
    assert!(up.iter().all(|bytes| *bytes == up[0] && *bytes > 1_000_000), "{up:?}");
}

#[test]
fn a_flow_alone_takes_as_long_as_its_packets() {
    for (from, to) in [(0, 1), (0, 15)] {
        for bytes in ["1B", "4096B", "5000B", "1MB", "100MB"] {
            let flow =
                format!("[[traffic]]\nkind = \"flow\"\nfrom = {from}\nto = {to}\nbytes = \"{bytes}\"\n");
            let off = difference(&format!("{FAT_TREE}{flow}"));
            assert!(off.abs() < 0.001, "{bytes} from {from} to {to}: {:+.3} %", off * 100.0);
        }
    }
}

#[test]
fn unlike_links_and_cut_through_count() {
    for more in ["up = { rate = \"50Gbps\" }", "edge = { rate = \"400Gbps\", delay = \"3us\" }"] {
        for cut_through in [true, false] {
            let text = format!(
                "[fabric]\ntopology = {{ kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 1 }}\n\
                 link = {{ rate = \"100Gbps\", delay = \"1us\", {more} }}\nswitch = {{ cut_through = {cut_through} }}\n\
                 [nic]\ncontrol = \"none\"\n[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 3\nbytes = \"40KB\"\n"
            );
            let off = difference(&text);
            assert!(off.abs() < 0.02, "{more}, cut-through {cut_through}: {:+.2} %", off * 100.0);
        }
    }
}

const ROWS: &[Row] = &[
    Row { fabric: "fat-tree of 16", control: "none", traffic: "incast of 8 × 2 MB", most: 0.10 },
    Row { fabric: "fat-tree of 16", control: "dcqcn", traffic: "incast of 8 × 2 MB", most: 0.35 },
    Row { fabric: "fat-tree of 16", control: "hpcc", traffic: "incast of 8 × 2 MB", most: 0.30 },
    Row { fabric: "fat-tree of 16", control: "none", traffic: "permutation of 4 MB", most: 0.10 },
    Row { fabric: "fat-tree of 16", control: "dcqcn", traffic: "permutation of 4 MB", most: 0.35 },
    Row { fabric: "fat-tree of 16", control: "hpcc", traffic: "permutation of 4 MB", most: 0.30 },
    Row { fabric: "fat-tree of 16", control: "none", traffic: "all-to-all of 256 KB", most: 0.10 },
    Row { fabric: "fat-tree of 16", control: "dcqcn", traffic: "all-to-all of 256 KB", most: 0.35 },
    Row { fabric: "fat-tree of 16", control: "hpcc", traffic: "all-to-all of 256 KB", most: 0.30 },
    Row { fabric: "fat-tree of 16", control: "none", traffic: "ring of 16 MB", most: 0.10 },
    Row { fabric: "fat-tree of 16", control: "dcqcn", traffic: "ring of 16 MB", most: 0.35 },
    Row { fabric: "fat-tree of 16", control: "hpcc", traffic: "ring of 16 MB", most: 0.30 },
    Row { fabric: "leaf-spine 4:1", control: "none", traffic: "incast of 8 × 2 MB", most: 0.10 },
    Row { fabric: "leaf-spine 4:1", control: "dcqcn", traffic: "incast of 8 × 2 MB", most: 0.35 },
    Row { fabric: "leaf-spine 4:1", control: "hpcc", traffic: "incast of 8 × 2 MB", most: 0.30 },
    Row { fabric: "leaf-spine 4:1", control: "none", traffic: "permutation of 4 MB", most: 0.10 },
    Row { fabric: "leaf-spine 4:1", control: "dcqcn", traffic: "permutation of 4 MB", most: 0.35 },
    Row { fabric: "leaf-spine 4:1", control: "hpcc", traffic: "permutation of 4 MB", most: 0.30 },
    Row { fabric: "leaf-spine 4:1", control: "none", traffic: "all-to-all of 256 KB", most: 0.10 },
    Row { fabric: "leaf-spine 4:1", control: "dcqcn", traffic: "all-to-all of 256 KB", most: 0.35 },
    Row { fabric: "leaf-spine 4:1", control: "hpcc", traffic: "all-to-all of 256 KB", most: 0.30 },
    Row { fabric: "leaf-spine 4:1", control: "none", traffic: "ring of 16 MB", most: 0.10 },
    Row { fabric: "leaf-spine 4:1", control: "dcqcn", traffic: "ring of 16 MB", most: 0.35 },
    Row { fabric: "leaf-spine 4:1", control: "hpcc", traffic: "ring of 16 MB", most: 0.30 },
    Row { fabric: "sprayed", control: "none", traffic: "incast of 8 × 2 MB", most: 0.10 },
    Row { fabric: "sprayed", control: "dcqcn", traffic: "incast of 8 × 2 MB", most: 0.35 },
    Row { fabric: "sprayed", control: "hpcc", traffic: "incast of 8 × 2 MB", most: 0.30 },
    Row { fabric: "sprayed", control: "none", traffic: "permutation of 4 MB", most: 0.10 },
    Row { fabric: "sprayed", control: "dcqcn", traffic: "permutation of 4 MB", most: 0.35 },
    Row { fabric: "sprayed", control: "hpcc", traffic: "permutation of 4 MB", most: 0.30 },
    Row { fabric: "sprayed", control: "none", traffic: "all-to-all of 256 KB", most: 0.10 },
    Row { fabric: "sprayed", control: "dcqcn", traffic: "all-to-all of 256 KB", most: 0.35 },
    Row { fabric: "sprayed", control: "hpcc", traffic: "all-to-all of 256 KB", most: 0.30 },
    Row { fabric: "sprayed", control: "none", traffic: "ring of 16 MB", most: 0.10 },
    Row { fabric: "sprayed", control: "dcqcn", traffic: "ring of 16 MB", most: 0.35 },
    Row { fabric: "sprayed", control: "hpcc", traffic: "ring of 16 MB", most: 0.30 },
];

/// A row of docs/validation.md: a fabric, a congestion control, traffic, and how far from packets it may be.
struct Row {
    fabric: &'static str,
    control: &'static str,
    traffic: &'static str,
    most: f64,
}

const FABRICS: [(&str, &str); 3] = [
    ("fat-tree of 16", "topology = { kind = \"fat-tree\", k = 4 }"),
    ("leaf-spine 4:1", "topology = { kind = \"leaf-spine\", leaves = 4, hosts_per_leaf = 4, spines = 1 }"),
    (
        "sprayed",
        "topology = { kind = \"leaf-spine\", leaves = 4, hosts_per_leaf = 4, spines = 4 }\nrouting = \"spray\"",
    ),
];

const TRAFFIC: [(&str, &str); 4] = [
    ("incast of 8 × 2 MB", "kind = \"incast\"\nfrom = \"0..7\"\nto = 15\nbytes = \"2MB\""),
    ("permutation of 4 MB", "kind = \"permutation\"\nbytes = \"4MB\""),
    ("all-to-all of 256 KB", "kind = \"all-to-all\"\nbytes = \"256KB\""),
    ("ring of 16 MB", "kind = \"ring\"\nbytes = \"16MB\""),
];

fn named(list: &[(&'static str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(one, _)| *one == name).unwrap_or_else(|| panic!("no {name:?}")).1
}

#[test]
fn traffic_takes_about_as_long_as_its_packets() {
    let (mut table, mut wrong) = (String::new(), Vec::new());
    for Row { fabric, control, traffic, most } in ROWS {
        let text = format!(
            "[fabric]\n{}\nlink = {{ rate = \"100Gbps\", delay = \"1us\" }}\n[nic]\ncontrol = \"{control}\"\n[[traffic]]\n{}\n",
            named(&FABRICS, fabric),
            named(&TRAFFIC, traffic)
        );
        let [packet, flow] = both(&text).map(|outcome| seconds(&outcome) * 1e6);
        let off = flow / packet - 1.0;
        let _ = writeln!(
            table,
            "| {fabric} | {traffic} | {control} | {packet:.1} | {flow:.1} | {:+.1} % |",
            off * 100.0
        );
        if off.abs() > *most {
            wrong.push(format!("{fabric}, {traffic}, {control}: {:+.2} %", off * 100.0));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/validation.md")).unwrap();
    assert!(page.contains(&table), "docs/validation.md has another table; this is it:\n{table}");
}

#[test]
fn the_same_run_has_the_same_digest_and_another_seed_another() {
    let digest = |seed: u32| {
        let text = format!(
            "seed = {seed}\nfidelity = \"flow\"\n{FAT_TREE}[[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n"
        );
        FlowLevelRun::new(&Scenario::parse(&text).unwrap()).unwrap().finish().unwrap().1
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn what_flows_do_not_know_is_refused_with_what_does() {
    let traffic = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1MB\"\n";
    let rows = [
        (
            format!(
                "{FAT_TREE}{traffic}[[faults]]\nkind = \"link-down\"\nlink = \"host0:edge0\"\nat = \"1us\"\n"
            ),
            "faults",
        ),
        (format!("sample = \"1us\"\n{FAT_TREE}{traffic}"), "sample"),
        (format!("[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n{traffic}"), "servers"),
        (
            format!("[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[model]\nname = \"tiny\"\n{traffic}"),
            "beside a job",
        ),
    ];
    for (text, word) in rows {
        let error = Scenario::parse(&format!("fidelity = \"flow\"\n{text}")).unwrap_err();
        assert!(error.message.contains(word) && error.key == "fidelity", "{}: {}", error.key, error.message);
    }
    let two = "[[traffic]]\nkind = \"flow\"\nfrom = 2\nto = 1\nbytes = \"1MB\"\npriority = 3\n";
    let scenario = Scenario::parse(&format!("fidelity = \"flow\"\n{FAT_TREE}{traffic}{two}")).unwrap();
    let error = FlowLevelRun::new(&scenario).err().unwrap();
    assert!(error.message.contains("priorities 0 and 3"), "{}", error.message);
}

#[test]
fn a_scenario_is_checked_also_where_its_fidelity_was_set_by_hand() {
    let faults = "[[faults]]\nkind = \"link-down\"\nlink = \"host0:edge0.0\"\nat = \"1us\"\n";
    let traffic = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1MB\"\n";
    let mut scenario = Scenario::parse(&format!("{FAT_TREE}{traffic}{faults}")).unwrap();
    assert_eq!(FlowLevelRun::new(&scenario).err().unwrap().key, "fidelity");
    scenario.fidelity = Fidelity::Flow;
    assert!(FlowLevelRun::new(&scenario).err().unwrap().message.contains("no faults of the network"));
}

#[test]
fn a_limit_ends_a_run_and_names_the_first_flow_that_was_left() {
    let text = format!(
        "fidelity = \"flow\"\nlimit = \"10us\"\n{FAT_TREE}[[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n"
    );
    let error = FlowLevelRun::new(&Scenario::parse(&text).unwrap()).unwrap().finish().unwrap_err();
    assert!(error.to_string().contains("16 of 16 flows did not finish within 10 us"), "{error}");
}
