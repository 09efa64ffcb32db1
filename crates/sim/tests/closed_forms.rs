//! Runs whose outcome can be worked out by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::Digest;
use railnet_core::event::NoSink;
use railnet_sim::{Outcome, Scenario};

/// Bytes of a packet on an Ethernet besides its payload: framing 70, BTH 12.
const OVERHEAD: u64 = 82;

fn run(text: &str) -> Outcome {
    let scenario =
        Scenario::parse(text).unwrap_or_else(|error| panic!("{error} at {:?}\n{text}", error.span));
    railnet_sim::run(&scenario, NoSink).unwrap().0
}

fn single_switch(hosts: u32, rest: &str) -> String {
    format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n\
         link = {{ rate = \"100Gbps\", delay = \"1us\" }}\n{rest}"
    )
}

fn incast(switch: &str, control: &str) -> String {
    let rest = format!(
        "switch = {{ {switch} }}\n[nic]\ncontrol = \"{control}\"\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..15\"\nto = 16\nbytes = \"8MB\"\n"
    );
    single_switch(17, &rest)
}

fn drops(outcome: &Outcome) -> u64 {
    outcome.links.iter().map(|link| link.counters.drops).sum()
}

fn close(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not within {tolerance} of {expected}");
}

/// Wire bytes of a message of full packets and a last one, sent as WRITE with immediate.
fn wire_bytes(message: u64) -> (u64, u64) {
    let packets = message.div_ceil(4096);
    // RETH on the first, immediate data on the last.
    let all = message + packets * OVERHEAD + 16 + 4;
    let last = message - (packets - 1) * 4096 + OVERHEAD + 4;
    (all, last)
}

#[test]
fn one_flow_takes_serialisation_propagation_and_one_stored_packet() {
    for (bytes, text) in [(8_000_000u64, "8MB"), (4096 * 3, "12288B")] {
        let outcome = run(&single_switch(
            2,
            &format!(
                "[nic]\ncontrol = \"none\"\n[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"{text}\"\n"
            ),
        ));
        let (all, last) = wire_bytes(bytes);
        // 80 ps a byte at 100 Gb/s; two links of 1 µs; the switch holds each packet until it is whole.
        let expected = (all + last) * 80 + 2_000_000;
        close(outcome.completion.as_ps() as f64, expected as f64, 0.001);
        assert_eq!(outcome.packet_hops, 2 * bytes.div_ceil(4096));
    }
}

#[test]
fn an_incast_ends_when_the_last_link_has_carried_everything() {
    let (all, _) = wire_bytes(8_000_000);
    let ideal = (16 * all * 80) as f64;
    for switch in ["flow_control = \"pfc\"", "flow_control = \"credits\""] {
        let outcome = run(&incast(switch, "none"));
        close(outcome.completion.as_ps() as f64, ideal, 0.01);
        assert_eq!(drops(&outcome), 0, "{switch}");
        assert_eq!(outcome.resent, 0);
    }
    let with_control = run(&incast("flow_control = \"pfc\"", "dcqcn"));
    assert_eq!(drops(&with_control), 0);
    // It loses time, as in ns-3 with the same parameters.
    close(with_control.completion.as_ps() as f64, ideal, 0.3);
}

#[test]
fn packets_are_dropped_where_headroom_is_cut_and_nowhere_else() {
    assert_eq!(drops(&run(&incast("flow_control = \"pfc\"", "none"))), 0);
    assert!(drops(&run(&incast("flow_control = \"pfc\", headroom = \"0B\"", "none"))) > 0);
    assert!(drops(&run(&incast("flow_control = \"none\"", "none"))) > 0);
}

#[test]
fn a_switch_sends_on_every_byte_it_took_in() {
    let outcome = run(&incast("flow_control = \"pfc\"", "none"));
    let data = |from: &dyn Fn(&str) -> bool, to: &dyn Fn(&str) -> bool| -> u64 {
        outcome
            .links
            .iter()
            .filter(|link| from(&link.from) && to(&link.to))
            .map(|link| link.counters.data_packets)
            .sum()
    };
    let is_switch = |name: &str| name.starts_with("switch");
    let is_host = |name: &str| name.starts_with("host");
    assert_eq!(data(&is_host, &is_switch), data(&is_switch, &is_host));
    assert_eq!(data(&is_host, &is_switch), 16 * 8_000_000u64.div_ceil(4096));
}

#[test]
fn n_flows_that_share_a_link_take_n_times_as_long() {
    let time = |flows: u32| {
        let rest = format!(
            "[nic]\ncontrol = \"none\"\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..{}\"\nto = {flows}\nbytes = \"4MB\"\n",
            flows - 1
        );
        run(&single_switch(flows + 1, &rest)).completion.as_ps() as f64
    };
    let alone = time(1);
    for flows in [2, 3, 8] {
        close(time(flows), f64::from(flows) * alone, 0.01);
    }
}

#[test]
fn flows_that_share_a_link_share_it_equally_under_credits() {
    let outcome = run(&incast("flow_control = \"credits\"", "none"));
    let times: Vec<f64> =
        outcome.flows.iter().map(|flow| (flow.finished - flow.started).as_us_f64()).collect();
    let (sum, squares) = times.iter().fold((0.0, 0.0), |(sum, squares), time| {
        let rate = 1.0 / time;
        (sum + rate, squares + rate * rate)
    });
    let fairness = sum * sum / (times.len() as f64 * squares);
    assert!(fairness > 0.99, "Jain's index {fairness}");
}

#[test]
fn a_ring_takes_its_steps_one_after_the_other() {
    let outcome = run("[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\n[nic]\ncontrol = \"none\"\n\
                       [[traffic]]\nkind = \"ring\"\nbytes = \"16MB\"\n");
    // 16 hosts: 30 steps of 1 MB. The slowest step crosses the core: six links of 1 µs, five stored packets.
    let (all, last) = wire_bytes(1_000_000);
    let slowest = all * 80 + 5 * last.max(4096 + OVERHEAD) * 80 + 6_000_000;
    let fastest = all * 80 + last * 80 + 2_000_000;
    let found = outcome.completion.as_ps();
    assert!(
        (30 * fastest..=30 * slowest).contains(&found),
        "{found} not in {}..={}",
        30 * fastest,
        30 * slowest
    );
    assert_eq!(outcome.flows.len(), 30 * 16);
}

#[test]
fn the_same_scenario_and_seed_give_the_same_digest() {
    let text = "seed = 5\n[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\n\
                [[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n";
    let scenario = Scenario::parse(text).unwrap();
    let digest = |scenario: &Scenario| railnet_sim::run(scenario, Digest::new()).unwrap().1.finish();
    assert_eq!(digest(&scenario), digest(&scenario));
    let mut other = scenario.clone();
    other.seed = 6;
    assert_ne!(digest(&scenario), digest(&other));
}

#[test]
fn bad_scenarios_are_refused_before_anything_runs() {
    for (text, hint) in [
        ("[fabric]\ntopology = { kind = \"ring\" }\n", "unknown variant"),
        ("[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\nspeed = 1\n", "unknown field"),
        (
            "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\nlink = { rate = \"0Gbps\" }\n",
            "rate of 0",
        ),
        ("[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\nlink = { rate = \"100\" }\n", "100"),
        ("[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n[nic]\nmtu = 1500\n", "256, 512"),
    ] {
        let error = Scenario::parse(text).unwrap_err();
        assert!(error.message.contains(hint), "{error} should speak of {hint}");
    }
    let unsent = Scenario::parse("[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n").unwrap();
    assert!(railnet_sim::run(&unsent, NoSink).unwrap_err().to_string().contains("nothing is sent"));
}

#[test]
fn spraying_is_near_the_ideal_where_hashing_collides() {
    let permutation = |routing: &str| {
        run(&format!(
            "[fabric]\ntopology = {{ kind = \"fat-tree\", k = 8 }}\nrouting = \"{routing}\"\n\
             [nic]\ncontrol = \"none\"\n[[traffic]]\nkind = \"permutation\"\nbytes = \"8MB\"\n"
        ))
    };
    // The longest way: six links, five stored packets.
    let (all, last) = wire_bytes(8_000_000);
    let ideal = (all * 80 + 5 * last.max(4096 + OVERHEAD) * 80 + 6_000_000) as f64;
    // The shortest queue at hand says nothing of the queues further on: adaptive routing is measured at 1.26.
    for (routing, most) in [("spray", 1.12), ("adaptive", 1.5)] {
        let outcome = permutation(routing);
        let found = outcome.completion.as_ps() as f64 / ideal;
        assert!((0.99..most).contains(&found), "{routing}: {found}");
        assert_eq!((outcome.resent, drops(&outcome)), (0, 0));
    }
    let hashed = permutation("ecmp").completion.as_ps() as f64 / ideal;
    assert!(hashed > 2.0, "{hashed}: several flows share a link");
}
