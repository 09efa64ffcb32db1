//! Faults in scenarios: they do what the page says, and bad ones are refused with their place.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::Digest;
use railnet_core::event::NoSink;
use railnet_sim::{Outcome, Run, Scenario};

const BASE: &str = "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 2 }\n\
                    [nic]\ncontrol = \"none\"\ntimeout = 8\n\
                    [[traffic]]\nkind = \"permutation\"\nbytes = \"4MB\"\n";

fn run(text: &str) -> Outcome {
    let scenario =
        Scenario::parse(text).unwrap_or_else(|error| panic!("{error} at {:?}\n{text}", error.span));
    railnet_sim::run(&scenario, NoSink).unwrap_or_else(|error| panic!("{error}\n{text}")).0
}

fn with(fault: &str) -> Outcome {
    run(&format!("{BASE}[[faults]]\n{fault}\n"))
}

fn us(outcome: &Outcome) -> f64 {
    outcome.completion.as_ps() as f64 / 1e6
}

fn losses(outcome: &Outcome) -> u64 {
    outcome.links.iter().map(|link| link.counters.losses).sum()
}

#[test]
fn a_fault_that_is_over_before_the_flows_start_costs_nothing() {
    let clean = us(&run(BASE));
    let late = BASE.replace("bytes = \"4MB\"", "bytes = \"4MB\"\nstart = \"1ms\"");
    for fault in [
        "kind = \"link-down\"\nlink = \"host0\"\nuntil = \"500us\"\ndetection = \"10us\"",
        "kind = \"flap\"\nlink = [\"leaf0\", \"spine0\"]\nperiod = \"10us\"\ncount = 20\ndetection = \"1us\"",
        "kind = \"loss\"\nlink = 0\nchance = 0.5\nuntil = \"500us\"",
        "kind = \"corruption\"\nlink = 0\nchance = 0.5\nuntil = \"500us\"",
        "kind = \"bit-errors\"\nlink = 0\nchance = 1e-5\nuntil = \"500us\"",
        "kind = \"slow-link\"\nlink = 0\nshare = 0.1\nuntil = \"500us\"",
        "kind = \"slow-nic\"\nhost = \"host0\"\nshare = 0.1\nuntil = \"500us\"",
        "kind = \"pause-storm\"\nhost = 0\nuntil = \"500us\"",
        "kind = \"wrong-class\"\nlossless = [3]\nuntil = \"500us\"",
    ] {
        let outcome = run(&format!("{late}[[faults]]\n{fault}\n"));
        assert!((us(&outcome) - 1000.0 - clean).abs() < 0.001, "{fault}: {} after {clean}", us(&outcome));
        assert_eq!(losses(&outcome), 0, "{fault}");
    }
}

#[test]
fn every_fault_costs_something_while_it_lasts() {
    let flow = BASE.replace("permutation\"", "flow\"\nfrom = 0\nto = 3");
    let clean = us(&run(&flow));
    for fault in [
        "kind = \"link-down\"\nlink = \"host0\"\nat = \"50us\"\nuntil = \"500us\"\ndetection = \"10us\"",
        "kind = \"flap\"\nlink = 0\nperiod = \"50us\"\ndown = \"5us\"\ncount = 5",
        "kind = \"loss\"\nlink = 0\nchance = 0.01",
        "kind = \"corruption\"\nlink = 0\nchance = 0.01",
        "kind = \"bit-errors\"\nlink = 0\nchance = 3e-7",
        "kind = \"slow-link\"\nlink = 0\nshare = 0.5",
        "kind = \"slow-nic\"\nhost = 0\nshare = 0.5",
        "kind = \"lose-packet\"\nfrom = 0\nnth = 7",
        "kind = \"pause-storm\"\nhost = 3\nat = \"50us\"\nuntil = \"500us\"",
    ] {
        let cost = us(&run(&format!("{flow}[[faults]]\n{fault}\n"))) - clean;
        assert!(cost > 5.0, "{fault}: {cost} us");
    }
}

#[test]
fn a_dead_link_carries_nothing_once_it_is_noticed() {
    let outcome = with("kind = \"link-down\"\nlink = [\"spine0\", \"leaf1\"]\ndetection = \"0s\"");
    let dead = |from: &str, to: &str| {
        let found = outcome.links.iter().find(|link| link.from == from && link.to == to);
        found.unwrap().counters.bytes
    };
    assert_eq!((dead("leaf1", "spine0"), dead("spine0", "leaf1")), (0, 0));
    assert_eq!(losses(&outcome), 0);
}

#[test]
fn the_packet_that_was_named_is_the_one_that_is_lost() {
    let flow = BASE.replace("permutation\"", "flow\"\nfrom = 0\nto = 3");
    let lost = |name: &str| {
        let outcome = run(&format!("{flow}[[faults]]\nkind = \"lose-packet\"\nfrom = 0\n{name}\n"));
        (losses(&outcome), outcome.completion)
    };
    let (count, nth) = lost("nth = 43");
    assert_eq!(count, 1);
    assert_eq!(lost("to = 3\npsn = 42"), (1, nth));
    assert_eq!(lost("to = \"host3\"\nnth = 43"), (1, nth));
    assert_eq!(lost("to = 2\nnth = 43").0, 0, "nobody sends to host 2");
    assert_eq!(lost("nth = 43\nat = \"1s\"").0, 0);
}

#[test]
fn bad_links_lose_about_what_they_are_said_to() {
    // 2000 packets of 4178 bytes over two or four links each, and acknowledgements.
    let share = |link: &str| {
        let text = BASE.replace("[nic]", &format!("link = {{ {link} }}\n[nic]"));
        let outcome = run(&text);
        let packets: u64 = outcome.links.iter().map(|link| link.counters.packets).sum();
        losses(&outcome) as f64 / packets as f64
    };
    let found = share("loss = 0.01");
    assert!((0.007..0.013).contains(&found), "{found}");
    let found = share("bit_error_rate = 3e-7");
    assert!((0.006..0.013).contains(&found), "{found}");
}

#[test]
fn pauses_for_another_class_drop_packets_at_that_switch_alone() {
    let incast = BASE
        .replace("permutation\"", "incast\"\nfrom = \"0..2\"\nto = 3")
        .replace("[nic]", "switch = { buffer = \"4MB\" }\n[nic]");
    let drops = |fault: &str| {
        let outcome = run(&format!("{incast}{fault}"));
        let at = |switch: &str| {
            let links = outcome.links.iter().filter(|link| link.to == switch);
            links.map(|link| link.counters.drops).sum::<u64>()
        };
        (at("leaf0"), at("leaf1"))
    };
    let wrong = |rest: &str| format!("[[faults]]\nkind = \"wrong-class\"\n{rest}\n");
    assert_eq!(drops(""), (0, 0));
    assert_eq!(drops(&wrong("lossless = [0, 3]")), (0, 0));
    let (elsewhere, there) = drops(&wrong("lossless = [3]\nswitch = \"leaf1\""));
    assert!(elsewhere == 0 && there > 0, "{elsewhere}, {there}");
    let (elsewhere, there) = drops(&wrong("lossless = [3]\nswitch = \"leaf1\"\ntowards = \"host2\""));
    assert!(elsewhere == 0 && there > 0, "{elsewhere}, {there}");
}

#[test]
fn faults_are_the_same_in_every_run_and_have_random_streams_of_their_own() {
    let digest = |text: &str| {
        let scenario = Scenario::parse(text).unwrap();
        railnet_sim::run(&scenario, Digest::new()).unwrap().1.finish()
    };
    let lossy = format!("{BASE}[[faults]]\nkind = \"loss\"\nlink = 0\nchance = 0.01\n");
    assert_eq!(digest(&lossy), digest(&lossy));
    // Trouble on a link that nobody uses does not change the random stream of another.
    let idle = BASE.replace("permutation\"", "flow\"\nfrom = 0\nto = 1");
    let one = format!("{idle}[[faults]]\nkind = \"loss\"\nlink = 0\nchance = 0.01\n");
    let two = format!("{one}[[faults]]\nkind = \"loss\"\nlink = \"host3\"\nchance = 0.5\n");
    assert_eq!(digest(&one), digest(&two));
}

#[test]
fn bad_faults_are_refused_with_their_place_before_anything_runs() {
    for (fault, hint, place) in [
        ("kind = \"link-donw\"\nlink = 0", "unknown variant", "link-donw"),
        ("kind = \"link-down\"\nlink = 0\nwhen = \"1us\"", "unknown field", "when"),
        ("kind = \"link-down\"\nlink = 0\nat = \"5\"", "no unit", "5"),
        ("kind = \"link-down\"\nlink = 0\nat = 5", "with its unit", "5"),
        ("kind = \"link-down\"\nlink = 12", "links 0 to 7", "12"),
        ("kind = \"link-down\"\nlink = [\"leaf0\", \"spin1\"]", "no host or switch \"spin1\"", "\"spin1\""),
        (
            "kind = \"link-down\"\nlink = [\"leaf0\", \"leaf1\"]",
            "is joined to host0, host1",
            "[\"leaf0\", \"leaf1\"]",
        ),
        ("kind = \"link-down\"\nlink = \"leaf0\"", "4 links", "\"leaf0\""),
        ("kind = \"link-down\"\nlink = [\"leaf0\"]", "two ends", "leaf0"),
        ("kind = \"link-down\"\nlink = true", "a link: its ends", "true"),
        ("kind = \"link-down\"\nlink = 0\nat = \"2us\"\nuntil = \"1us\"", "comes after", "\"1us\""),
        ("kind = \"flap\"\nlink = 0\nperiod = \"1us\"\ncount = 0", "1 to 100000 times", "0"),
        (
            "kind = \"flap\"\nlink = 0\nperiod = \"1us\"\ndown = \"1us\"\ncount = 1",
            "does not flap",
            "\"1us\"",
        ),
        ("kind = \"flap\"\nlink = 0\nperiod = \"0s\"\ncount = 1", "does not flap", "\"0s\""),
        ("kind = \"loss\"\nlink = 0\nchance = 1.5", "no probability", "1.5"),
        ("kind = \"bit-errors\"\nlink = 0\nchance = -1e-9", "no probability", "-1e-9"),
        ("kind = \"slow-nic\"\nhost = 4\nshare = 0.5", "no host 4", "4"),
        ("kind = \"slow-nic\"\nhost = \"leaf0\"\nshare = 0.5", "is a switch", "\"leaf0\""),
        ("kind = \"slow-nic\"\nhost = 0\nshare = 0.0", "no share", "0.0"),
        ("kind = \"slow-link\"\nlink = 0\nshare = 2", "no share", "2"),
        ("kind = \"lose-packet\"\nfrom = 0", "which packet", "\"lose-packet\""),
        ("kind = \"lose-packet\"\nfrom = 0\nnth = 0", "counted from 1", "0"),
        ("kind = \"lose-packet\"\nfrom = 0\npsn = 5", "say `to`", "5"),
        ("kind = \"lose-packet\"\nfrom = 0\nto = 1\npsn = 16777216", "24 bits", "16777216"),
        ("kind = \"lose-packet\"\nfrom = 0\nto = 1\nnth = 1\npsn = 1", "not by both", "1"),
        ("kind = \"pause-storm\"\nhost = \"hots1\"", "no host or switch \"hots1\"", "\"hots1\""),
        ("kind = \"wrong-class\"\nlossless = [8]", "0 to 7", "[8]"),
        ("kind = \"wrong-class\"\nlossless = [3]\nswitch = \"host0\"", "is a host", "\"host0\""),
        ("kind = \"wrong-class\"\nlossless = [3]\ntowards = \"host0\"", "say which `switch`", "\"host0\""),
    ] {
        let text = format!("{BASE}[[faults]]\n{fault}\n");
        let error = match Scenario::parse(&text) {
            Err(error) => error,
            Ok(scenario) => {
                Run::new(&scenario, NoSink).err().unwrap_or_else(|| panic!("{fault}")).located(&text)
            }
        };
        assert!(error.message.contains(hint), "{fault}: {error} should speak of {hint}");
        assert_eq!(&text[error.span.clone().unwrap()], place, "{fault}: {error}");
    }
    for (link, key) in [("loss = 1.1", "1.1"), ("bit_error_rate = -1.0", "-1.0")] {
        let text = BASE.replace("[nic]", &format!("link = {{ {link} }}\n[nic]"));
        let error = Run::new(&Scenario::parse(&text).unwrap(), NoSink).err().unwrap().located(&text);
        assert_eq!(&text[error.span.unwrap()], key);
    }
    // A slip of the finger is recognised; a number that is too high is not one.
    let meant = |name: &str| {
        let text = format!("{BASE}[[faults]]\nkind = \"link-down\"\nlink = [\"leaf0\", \"{name}\"]\n");
        Run::new(&Scenario::parse(&text).unwrap(), NoSink).err().unwrap().meant
    };
    assert_eq!(meant("spin1").as_deref(), Some("spine1"));
    assert_eq!(meant("spine9"), None);
}
