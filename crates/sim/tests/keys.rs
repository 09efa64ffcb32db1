//! Keys that exist to repeat other simulators, or other hardware: each has the effect that it names.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_sim::{Outcome, Scenario};

fn parse(switch: &str, nic: &str, traffic: &str) -> Result<Scenario, railnet_sim::ScenarioError> {
    Scenario::parse(&format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = 17 }}\nswitch = {{ {switch} }}\n[nic]\n{nic}\n{traffic}"
    ))
}

fn run(switch: &str, nic: &str, traffic: &str) -> Outcome {
    railnet_sim::run(&parse(switch, nic, traffic).unwrap(), NoSink).unwrap().0
}

const INCAST: &str = "[[traffic]]\nkind = \"incast\"\nfrom = \"0..15\"\nto = 16\nbytes = \"1MB\"\n";

fn refusal(switch: &str, nic: &str) -> String {
    parse(switch, nic, INCAST).unwrap_err().to_string()
}

fn pauses(outcome: &Outcome) -> u64 {
    outcome.links.iter().map(|link| link.counters.pauses).sum()
}

/// The longest queue of the run.
fn queue(outcome: &Outcome) -> u64 {
    outcome.links.iter().map(|link| link.counters.queue_max).max().unwrap()
}

#[test]
fn packets_may_have_any_payload_of_whole_words() {
    let one = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1MB\"\n";
    for (payload, packets) in [(1000, 1_000), (1024, 977), (4096, 245), (3000, 334)] {
        let outcome = run("", &format!("payload = {payload}"), one);
        assert_eq!(outcome.packet_hops, 2 * packets, "payload of {payload}");
    }
    assert!(refusal("", "payload = 1001").contains("not 1001"));
    assert!(refusal("", "payload = 9000").contains("not 9000"));
}

#[test]
fn connections_take_turns_by_bursts() {
    // One host, two receivers, 16 packets each: interleaved by one packet both end together, by 16 one after the other.
    let two = "[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"64KiB\"\n\
               [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 2\nbytes = \"64KiB\"\n";
    let apart = |burst: u16| {
        let outcome = run("", &format!("control = \"none\"\nburst = {burst}"), two);
        (outcome.flows[1].finished - outcome.flows[0].finished).as_us_f64()
    };
    let packet = 0.335;
    assert!(apart(1) < 3.0 * packet, "packets apart: {}", apart(1));
    assert!((apart(16) - 16.0 * packet).abs() < 0.1, "a message apart: {}", apart(16));
    assert!(refusal("", "burst = 0").contains("at least one packet"));
}

#[test]
fn a_window_bounds_what_dcqcn_has_in_flight() {
    let free = run("", "control = \"dcqcn\"", INCAST);
    // 16 windows of 5 µs at 100 Gb/s are 1 MB, and each sender may be one packet beyond.
    let bound = run("", "control = \"dcqcn\"\ndcqcn = { window = \"5us\" }", INCAST);
    assert!(queue(&bound) < 16 * (62_500 + 4_200) && queue(&bound) < queue(&free) / 2);
    let fixed =
        run("", "control = \"dcqcn\"\ndcqcn = { window = \"5us\", window_follows_rate = false }", INCAST);
    assert!(fixed.completion != bound.completion);
    assert!(refusal("", "control = \"dcqcn\"\ndcqcn = { window = \"1s\" }").contains("a window is at most"));
}

#[test]
fn cuts_are_made_by_a_clock_or_at_once() {
    // Whoever is told twice within 4 µs is cut at once and again by the paper's rule, and once by the clock.
    let took = |at_once: bool| {
        run("", &format!("control = \"dcqcn\"\ndcqcn = {{ cuts_at_once = {at_once} }}"), INCAST).completion
    };
    assert!(took(false) != took(true));
}

#[test]
fn alpha_and_static_thresholds_say_when_senders_are_paused() {
    let control = "control = \"none\"";
    let of = |switch: &str| run(switch, control, INCAST);
    // 16 MB in all: an eighth of what is free is reached by nobody, a 128th is by all.
    let (usual, small, large) = (of(""), of("alpha = \"1/128\""), of("alpha = 8"));
    assert_eq!((pauses(&usual), pauses(&large)), (0, 0));
    assert!(pauses(&small) > 16);
    // A static threshold: each of 16 ingress ports holds so much, its reserve, and what was on its way when it was paused.
    let fixed = of("pause_at = \"100KB\"");
    assert!(pauses(&fixed) > 16);
    assert!((1_600_000..16 * 200_000).contains(&queue(&fixed)), "{}", queue(&fixed));
    // Further down before it goes on: fewer and longer pauses.
    let deep = of("pause_at = \"100KB\", resume_offset = \"80KB\"");
    assert!(pauses(&deep) < pauses(&fixed));
    assert!(fixed.links.iter().chain(&deep.links).all(|link| link.counters.drops == 0));
    assert!(refusal("alpha = \"1/3\"", "").contains("is no alpha of a switch"));
}

#[test]
fn the_hash_of_ns_3_has_its_paths_whatever_the_seed() {
    // HPCC's ns-3 on this tree, SwitchNode::GetOutDev: 90 to 9 by switches 150, 183, 206, 163 and 130, where hosts are
    // 0 to 127, then edges, aggregations and cores; 99 to 22 by 152, 187, 204, 167 and 133.
    let names = |nodes: [u32; 5]| {
        nodes.map(|node| match node - 128 {
            edge @ 0..32 => format!("edge{}.{}", edge / 4, edge % 4),
            agg @ 32..64 => format!("agg{}.{}", (agg - 32) / 4, agg % 4),
            core => format!("core{}", core - 64),
        })
    };
    for (from, to, nodes) in [(90, 9, [150, 183, 206, 163, 130]), (99, 22, [152, 187, 204, 167, 133])] {
        for seed in [1, 2] {
            let text = format!(
                "seed = {seed}\n[fabric]\ntopology = {{ kind = \"fat-tree\", k = 8 }}\nhash = \"ns-3\"\n\
                 [[traffic]]\nkind = \"flow\"\nfrom = {from}\nto = {to}\nbytes = \"1MB\"\n"
            );
            let outcome = railnet_sim::run(&Scenario::parse(&text).unwrap(), NoSink).unwrap().0;
            let used: Vec<(&str, &str)> = outcome
                .links
                .iter()
                .filter(|link| link.counters.bytes > 1_000_000)
                .map(|link| (link.from.as_str(), link.to.as_str()))
                .collect();
            let names = names(nodes);
            for hop in names.windows(2) {
                assert!(used.contains(&(&hop[0], &hop[1])), "{hop:?} is not in {used:?}");
            }
            assert_eq!(used.len(), 6);
        }
    }
    let text = "[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\nhash = \"ns-3\"\nrouting = \"spray\"\n\
                [[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n";
    assert!(Scenario::parse(text).unwrap_err().to_string().contains("goes with routing \"ecmp\""));
}
