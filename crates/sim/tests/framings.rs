//! What carries the packets: lengths to the byte, a subnet manager's paths, and what does not go together.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::{Bytes, Digest, Rate, RunDigest, Span};
use railnet_sim::{Outcome, Run, Scenario};
use railnet_wire::{Frame, Framing, InfinibandPacket, Link};

const PAIR: &str = "topology = { kind = \"single-switch\", hosts = 2 }\n";
const SPINES: &str = "topology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 4, spines = 4 }\n";
const FLOW: &str = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1MB\"\n";

fn run(text: &str) -> (Outcome, RunDigest) {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let (outcome, digest) = Run::new(&scenario, Digest::new()).unwrap().finish().unwrap();
    (outcome, digest.finish())
}

fn fabric(framing: &str, shape: &str, rest: &str) -> String {
    format!("seed = 3\n[fabric]\n{shape}framing = \"{framing}\"\n{rest}")
}

#[test]
fn packets_take_the_time_of_all_their_bytes() {
    for (name, framing) in
        [("rocev2", Framing::RoceV2), ("rocev1", Framing::RoceV1), ("infiniband", Framing::Infiniband)]
    {
        let (outcome, _) = run(&fabric(name, PAIR, &format!("[nic]\ncontrol = \"none\"\n{FLOW}")));
        // 1 MB are 245 packets of a WRITE: BTH in each, a RETH in the first, immediate data in the last.
        let packets = 1_000_000_u64.div_ceil(4096);
        let around = u64::from(framing.overhead()) + 12;
        let all = Rate::gbps(100).serialize(Bytes(1_000_000 + packets * around + 16 + 4));
        // The first packet, the longest, crosses a link before the second one is busy with all of them.
        let first = Rate::gbps(100).serialize(Bytes(4096 + around + 16));
        let flow = &outcome.flows[0];
        assert_eq!(flow.finished.since(flow.started), first + all + Span::from_us(2), "{name}");
        assert_eq!(outcome.framing, framing);
    }
}

#[test]
fn the_name_of_the_default_changes_nothing() {
    let [old, new] = ["ethernet", "rocev2"].map(|name| run(&fabric(name, SPINES, PERMUTATION)).1);
    assert_eq!(old, new);
}

const PERMUTATION: &str = "[[traffic]]\nkind = \"permutation\"\nbytes = \"256KB\"\n";

/// The packets of InfiniBand links that pass a link, with the lanes and LIDs on them.
fn tapped(text: &str, link: u32) -> Vec<(u8, u8, u16, u16, Vec<u8>)> {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut run = Run::new(&scenario, Digest::new()).unwrap();
    run.tap(link);
    while !run.advance(Span::from_us(100)) {}
    let mut found = Vec::new();
    run.drain_taps(|tapped| {
        let Ok(Frame::Infiniband(InfinibandPacket { route, icrc, vcrc, .. })) =
            Frame::parse_infiniband(tapped.frame)
        else {
            panic!("an InfiniBand link carries nothing else: {:02x?}", tapped.frame)
        };
        assert!(icrc.is_good() && vcrc.unwrap().is_good() && route.grh.is_none());
        let Link::Infiniband(lrh) = route.link else { panic!("{route:?}") };
        let lids = (lrh.source.0, lrh.target.0);
        found.push((lrh.service_level, lrh.virtual_lane, lids.0, lids.1, tapped.frame.to_vec()));
    });
    assert!(!found.is_empty());
    found
}

#[test]
fn links_carry_lids_service_levels_and_their_lanes() {
    let flow = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"100KB\"\npriority = 3\n";
    let lanes = "infiniband = { sl2vl = [0, 1, 2, 6, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7], lmc = 2 }\n";
    for packet in tapped(&fabric("infiniband", PAIR, &format!("{lanes}{flow}")), 0) {
        assert_eq!((packet.0, packet.1), (3, 6));
        // Host 0 has LIDs 4 to 7, host 1 has 8 to 11; a connection keeps one of the four.
        let ends = [packet.2, packet.3].map(|lid| lid / 4);
        assert!(ends == [1, 2] || ends == [2, 1], "{ends:?}");
        assert_eq!(packet.2 % 4, packet.3 % 4);
    }
}

#[test]
fn a_host_is_reached_by_one_path_and_with_a_mask_by_several() {
    // Four connections between two hosts, each twice, over four spines.
    let flow = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 4\nbytes = \"64KB\"\n";
    let uplinks = |lmc: u8| {
        let flows: Vec<String> = (0..8).map(|priority| format!("{flow}priority = {priority}\n")).collect();
        let flows = flows.concat();
        let text = fabric("infiniband", SPINES, &format!("infiniband = {{ lmc = {lmc} }}\n{flows}"));
        let (outcome, _) = run(&text);
        let used = |link: &&railnet_sim::LinkResult| {
            link.from == "leaf0" && link.to.starts_with("spine") && link.counters.data_packets > 0
        };
        outcome.links.iter().filter(used).count()
    };
    assert_eq!(uplinks(0), 1, "one LID, one path");
    assert!(uplinks(2) > 1, "four LIDs, four paths");
}

#[test]
fn credits_drop_nothing_and_a_sweep_leads_around_a_dead_link() {
    let incast = "[[traffic]]\nkind = \"incast\"\nfrom = \"0..6\"\nto = 7\nbytes = \"512KB\"\n";
    let (outcome, _) = run(&fabric("infiniband", SPINES, incast));
    assert!(outcome.links.iter().all(|link| link.counters.drops == 0 && link.counters.pauses == 0));
    assert_eq!(outcome.resent, 0);
    let fault = "[[faults]]\nkind = \"link-down\"\nlink = [\"leaf0\", \"spine1\"]\nat = \"5us\"\n";
    let text = fabric("infiniband", SPINES, &format!("[nic]\ntimeout = 6\n{PERMUTATION}{fault}"));
    let (outcome, _) = run(&text);
    assert_eq!(outcome.flows.len(), 8, "all arrive");
}

#[test]
fn flow_fidelity_takes_the_paths_of_the_tables() {
    let scenario = |lmc: u8| {
        let text = format!(
            "fidelity = \"flow\"\n{}",
            fabric("infiniband", SPINES, &format!("infiniband = {{ lmc = {lmc} }}\n{PERMUTATION}"))
        );
        Scenario::parse(&text).unwrap()
    };
    let (outcome, _) = railnet_sim::FlowLevelRun::new(&scenario(0)).unwrap().finish().unwrap();
    // Each of four hosts behind a leaf has an uplink of its own towards it: nothing is shared, nothing waits.
    let took = outcome.flows.iter().map(|flow| flow.finished.since(flow.started));
    let (least, most) = (took.clone().min().unwrap(), took.max().unwrap());
    assert!(most.as_ps() < least.as_ps() * 5 / 4, "{least} to {most}");
}

#[test]
fn what_does_not_go_together_is_refused_with_the_reason() {
    let cases = [
        (
            "infiniband",
            "switch = { flow_control = \"pfc\" }\n",
            "fabric.switch.flow_control",
            "pause frames are Ethernet's",
        ),
        (
            "infiniband",
            "switch = { flow_control = \"none\" }\n",
            "fabric.switch.flow_control",
            "without credits",
        ),
        ("infiniband", "switch = { ecn = true }\n", "fabric.switch.ecn", "no ECN bits"),
        ("infiniband", "dscp = { 26 = 3 }\n", "fabric.dscp", "sl2vl"),
        ("infiniband", "routing = \"ecmp\"\n", "fabric.routing", "forward by LID"),
        ("infiniband", "[nic]\ncontrol = \"dcqcn\"\n", "nic.control", "for Ethernet"),
        ("infiniband", "infiniband = { lmc = 8 }\n", "fabric.infiniband.lmc", "three bits"),
        ("infiniband", "infiniband = { sl2vl = [0, 1] }\n", "fabric.infiniband.sl2vl", "16 service levels"),
        ("rocev1", "switch = { ecn = true }\n", "fabric.switch.ecn", "no ECN bits"),
        ("rocev1", "[nic]\ncontrol = \"dcqcn\"\n", "nic.control", "RoCE v1"),
        ("rocev1", "[nic]\ncontrol = \"hpcc\"\n", "nic.control", "telemetry"),
        ("rocev1", "dscp = { 26 = 3 }\n", "fabric.dscp", "VLAN tag"),
        ("rocev1", "routing = \"lft\"\n", "fabric.routing", "InfiniBand's"),
        ("rocev2", "routing = \"lft\"\n", "fabric.routing", "InfiniBand's"),
    ];
    for (framing, rest, key, words) in cases {
        let error = Scenario::parse(&fabric(framing, PAIR, rest)).unwrap_err();
        assert_eq!(error.key, key, "{framing} {rest}: {error}");
        assert!(error.message.contains(words), "{framing} {rest}: {error}");
    }
    let runs = [
        ("[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1KB\"\ndscp = 26\n", "service level"),
        (&format!("{FLOW}[[faults]]\nkind = \"pause-storm\"\nhost = 1\n"), "pause frames"),
    ];
    for (rest, words) in runs {
        let scenario = Scenario::parse(&fabric("infiniband", PAIR, rest)).unwrap();
        let error = railnet_sim::check(&scenario).unwrap_err();
        assert!(error.message.contains(words), "{rest}: {error}");
    }
    let many = "topology = { kind = \"fat-tree\", k = 64 }\n";
    let error =
        railnet_sim::check(&Scenario::parse(&fabric("infiniband", many, PERMUTATION)).unwrap()).unwrap_err();
    assert!(error.message.contains("LIDs up to"), "{error}");
}
