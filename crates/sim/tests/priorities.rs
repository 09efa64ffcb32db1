//! Eight priorities: who goes first, who is lossless, and what chooses them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_sim::{Outcome, Run, Scenario};

/// What 12 MB take on a link of 100 Gb/s, in µs: packets of 4096 + 82 bytes, 80 ps a byte.
const ALONE: f64 = 979.4;

fn run(text: &str) -> Outcome {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    railnet_sim::run(&scenario, NoSink).unwrap_or_else(|error| panic!("{error}\n{text}")).0
}

fn fabric(hosts: u32, rest: &str) -> String {
    format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n{rest}\n[nic]\ncontrol = \"none\"\n"
    )
}

fn flow(from: u32, to: u32, rest: &str) -> String {
    format!("[[traffic]]\nkind = \"flow\"\nfrom = {from}\nto = {to}\nbytes = \"12MB\"\n{rest}\n")
}

/// When each flow had finished, in µs.
fn finished(text: &str) -> Vec<f64> {
    run(text).flows.iter().map(|flow| flow.finished.as_ps() as f64 / 1e6).collect()
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} is not within 2 % of {expected}");
}

#[test]
fn a_higher_priority_takes_the_link_and_a_lower_one_starves() {
    // Two senders and one receiver, and one sender with two receivers: the switch and the NIC do the same.
    for flows in [
        flow(0, 2, "priority = 1") + &flow(1, 2, "priority = 4"),
        flow(0, 1, "priority = 1") + &flow(0, 2, "priority = 4"),
    ] {
        let times = finished(&(fabric(3, "") + &flows));
        close(times[1], ALONE);
        close(times[0], 2.0 * ALONE);
    }
    let equal = finished(&(fabric(3, "") + &flow(0, 2, "") + &flow(1, 2, "")));
    close(equal[0], 2.0 * ALONE);
    close(equal[1], 2.0 * ALONE);
}

#[test]
fn weights_share_a_link_within_two_percent() {
    let weights = "scheduling = { weights = [1, 1, 1, 3, 1, 1, 1, 1] }";
    for flows in [
        flow(0, 2, "priority = 1") + &flow(1, 2, "priority = 3"),
        flow(0, 1, "priority = 1") + &flow(0, 2, "priority = 3"),
    ] {
        let times = finished(&(fabric(3, weights) + &flows));
        // With three quarters of the link it takes 4/3 of the time; then the other one has all of it.
        close(times[1], ALONE * 4.0 / 3.0);
        close(times[0], 2.0 * ALONE);
    }
    // Three classes 1 : 2 : 5, through credits too.
    for control in ["pfc", "credits"] {
        let rest = format!(
            "scheduling = {{ weights = [1, 2, 5, 1, 1, 1, 1, 1] }}\nswitch = {{ flow_control = \"{control}\" }}"
        );
        let flows: String = (0..3).map(|host| flow(host, 3, &format!("priority = {host}"))).collect();
        let times = finished(&(fabric(4, &rest) + &flows));
        close(times[2], ALONE * 8.0 / 5.0);
        close(times[0], 3.0 * ALONE);
    }
}

#[test]
fn a_strict_priority_goes_before_the_weights() {
    let weights = "scheduling = { weights = [9, 1, 1, 1, 1, 1, 1, 1], strict = [6] }";
    let flows = flow(0, 3, "priority = 0") + &flow(1, 3, "priority = 1") + &flow(2, 3, "priority = 6");
    let times = finished(&(fabric(4, weights) + &flows));
    close(times[2], ALONE);
    close(times[0], ALONE + ALONE * 10.0 / 9.0);
}

#[test]
fn the_dscp_map_chooses_the_priority() {
    let outcome = |map: &str, high: &str| {
        let flows = flow(0, 2, "") + &flow(1, 2, high);
        let outcome = run(&(fabric(3, map) + &flows));
        let at = outcome.flows[1].finished.as_ps() as f64 / 1e6;
        (outcome.flows[1].flow.priority, at)
    };
    // Without a map it is the upper three bits.
    let (priority, at) = outcome("", "dscp = 26");
    assert_eq!(priority, 3);
    close(at, ALONE);
    let (priority, at) = outcome("dscp = { 26 = 0 }", "dscp = 26");
    assert_eq!(priority, 0);
    close(at, 2.0 * ALONE);
    let (priority, at) = outcome("dscp = { 5 = 7 }", "dscp = 5");
    assert_eq!(priority, 7);
    close(at, ALONE);
    assert_eq!(
        outcome("dscp = { 56 = 1, 57 = 7 }", "priority = 7").0,
        7,
        "57 is the lowest that is mapped to 7"
    );
}

#[test]
fn only_lossless_priorities_are_lossless() {
    let incast = |lossless: &str, priority: u8| {
        let switch = format!("switch = {{ buffer = \"4MB\", lossless = {lossless} }}");
        let incast = format!(
            "timeout = 8\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..3\"\nto = 4\nbytes = \"1MB\"\npriority = {priority}\n"
        );
        let outcome = run(&(fabric(5, &switch) + &incast));
        outcome.links.iter().map(|link| link.counters.drops).sum::<u64>()
    };
    assert_eq!(incast("[3]", 3), 0);
    assert!(incast("[3]", 0) > 0);
    assert!(incast("[3]", 4) > 0);
    assert_eq!(incast("[0, 4]", 4), 0);
    assert!(incast("[]", 3) > 0);
}

#[test]
fn acknowledgements_in_a_priority_of_their_own_do_not_wait_behind_data() {
    // The answers to host 0 share its link with what three others send to it; Swift takes that for a long round trip.
    let text = |ack: &str| {
        format!(
            "{}[[traffic]]\nkind = \"incast\"\nfrom = \"2..4\"\nto = 0\nbytes = \"12MB\"\n",
            fabric(5, "")
        )
        .replace("\"none\"", &format!("\"swift\"\n{ack}"))
            + &flow(0, 1, "")
    };
    let (behind, before) = (finished(&text(""))[3], finished(&text("ack_priority = 6"))[3]);
    assert!(before * 1.1 < behind, "{before} and {behind}");
}

#[test]
fn bad_priorities_are_refused_with_their_place() {
    let bad = [
        ("switch = { lossless = [8] }", "", "no priority 8", "[8]"),
        ("switch = { lossless = 3 }", "", "expected a list", "3"),
        ("dscp = { 64 = 1 }", "", "\"64\" is no DSCP", "1"),
        ("dscp = { gold = 1 }", "", "\"gold\" is no DSCP", "1"),
        ("dscp = { 10 = 9 }", "", "no priority 9", "9"),
        ("scheduling = \"fair\"", "", "unknown variant", "fair"),
        ("scheduling = { weights = [1, 2] }", "", "8 priorities, and 2 weights", "[1, 2]"),
        ("scheduling = { weights = [1, 1, 1, 0, 1, 1, 1, 1] }", "", "wait for ever", "0"),
        ("scheduling = { weights = [1, 1, 1, 1, 1, 1, 1, 5000] }", "", "1 to 1000", "5000"),
        ("scheduling = { weight = [1] }", "", "unknown field `weight`", "weight"),
        ("scheduling = { weights = [1, 1, 1, 1, 1, 1, 1, 1], strict = [8] }", "", "no priority 8", "[8]"),
        ("", "priority = 8", "no priority 8", "8"),
        ("", "dscp = 64", "no DSCP 64", "64"),
        ("", "priority = 1\ndscp = 8", "not both", "1"),
        (
            "dscp = { 56 = 0, 57 = 0, 58 = 0, 59 = 0, 60 = 0, 61 = 0, 62 = 0, 63 = 0 }",
            "priority = 7",
            "{ 56 = 7 }",
            "7",
        ),
    ];
    for (rest, traffic, hint, place) in bad {
        let text = fabric(3, rest) + &flow(0, 1, traffic);
        let error = match Scenario::parse(&text) {
            Err(error) => error,
            Ok(scenario) => {
                Run::new(&scenario, NoSink).err().unwrap_or_else(|| panic!("{text}")).located(&text)
            }
        };
        assert!(error.message.contains(hint), "{rest} {traffic}: {error}");
        assert_eq!(&text[error.span.unwrap()], place, "{rest} {traffic}");
    }
    let text = fabric(3, "") + "ack_priority = 9\n" + &flow(0, 1, "");
    let error = Scenario::parse(&text).unwrap_err();
    assert_eq!((&text[error.span.unwrap()], error.key.as_str()), ("9", "nic.ack_priority"));
}
