//! Scenario texts: damaged ones never panic, and runs in steps are runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use railnet_core::event::NoSink;
use railnet_core::{Digest, Span};
use railnet_sim::{Run, Scenario};

const WHOLE: [&str; 6] = [
    "seed = 1\nlimit = \"1ms\"\n\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 5 }\n\
     link = { rate = \"100Gbps\", delay = \"1us\" }\n\
     switch = { buffer = \"32MB\", reserve = \"4KB\", headroom = \"50KB\", cut_through = true, \
     ecn = { kmin = \"400KB\", kmax = \"1600KB\", pmax = 0.2 }, flow_control = \"pfc\" }\n\
     routing = \"ecmp\"\nframing = \"ethernet\"\n\n\
     [nic]\nmtu = 4096\ncontrol = \"dcqcn\"\nrecovery = \"reorder\"\ntimeout = 14\nretry_count = 7\ncredits = false\n\n\
     [[traffic]]\nkind = \"incast\"\nfrom = \"0..3\"\nto = 4\nbytes = \"8KB\"\nstart = \"1us\"\n",
    "[fabric]\ntopology = { kind = \"fat-tree\", k = 4, tiers = 3 }\nrouting = \"spray\"\n\
     switch = { flow_control = \"credits\", ecn = false }\n\
     [[traffic]]\nkind = \"ring\"\nbytes = \"64KB\"\nhosts = 8\n\
     [[traffic]]\nkind = \"flow\"\nfrom = 1\nto = 2\nbytes = \"1MB\"\n",
    "[fabric]\ntopology = { kind = \"dragonfly\", groups = 3, routers = 2, hosts = 2, global_links = 1 }\n\
     switch = { flow_control = \"none\" }\n[nic]\ncontrol = \"none\"\n\
     [[traffic]]\nkind = \"all-to-all\"\nbytes = \"4KiB\"\n[[traffic]]\nkind = \"permutation\"\nbytes = \"0B\"\n",
    "preset = \"spectrum-x\"\nstall = \"10ms\"\nsample = \"2us\"\n[fabric]\n\
     topology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 2, links_per_spine = 2 }\n\
     link = { rate = \"100Gbps\", delay = \"1us\", loss = 0.001, bit_error_rate = 1e-9, up = { rate = \"200Gbps\" } }\n\
     [nic.swift]\nbase = \"20us\"\nhop = \"3us\"\nscaling_least = 0.1\nscaling_most = 100\nbeta = 0.8\n\
     window_least = 0.01\nwindow_first = \"20us\"\nwindow_most = \"40us\"\n\
     [[traffic]]\nkind = \"all-to-all\"\nhosts = \"0..3\"\nbytes = \"8KB\"\njitter = \"1us\"\n\
     [[faults]]\nkind = \"flap\"\nlink = 1\nat = \"1us\"\nperiod = \"4us\"\ndown = \"1us\"\ncount = 3\ndetection = \"1us\"\n\
     [[faults]]\nkind = \"slow-nic\"\nhost = 2\nshare = 0.5\nat = \"1us\"\nuntil = \"9us\"\n\
     [[faults]]\nkind = \"lose-packet\"\nfrom = 0\nto = 1\nnth = 2\n",
    "[fabric]\nlink = { rate = \"100Gbps\", delay = \"1us\" }\nswitch = { buffer = \"4MB\", lossless = [3] }\n\
     dscp = { 26 = 3, 48 = 6 }\nscheduling = { weights = [1, 2, 1, 4, 1, 1, 1, 1], strict = [6] }\n\
     [fabric.topology]\nkind = \"list\"\nhosts = 3\nswitches = [\"a\", \"b\"]\n\
     links = [[\"host0\", \"a\"], [\"host1\", \"a\"], [\"host2\", \"b\"], { between = [\"a\", \"b\"], rate = \"25Gbps\" }]\n\
     [nic]\ncontrol = \"timely\"\nack_priority = 6\nnotification_interval = \"5us\"\n\
     [nic.timely]\nlow = \"50us\"\nhigh = \"500us\"\nweight = 0.875\nbeta = 0.8\nburst = \"16KB\"\nhyper_after = 5\n\
     [[traffic]]\nkind = \"incast\"\nfrom = \"0..1\"\nto = \"host2\"\nbytes = \"64KB\"\ndscp = 26\n\
     [[traffic]]\nkind = \"flow\"\nfrom = \"host2\"\nto = 0\nbytes = \"64KB\"\npriority = 1\n\
     [[faults]]\nkind = \"link-down\"\nlink = [\"a\", \"b\"]\nat = \"2us\"\nuntil = \"4us\"\ndetection = \"1us\"\n\
     [[faults]]\nkind = \"pause-storm\"\nhost = 2\nat = \"3us\"\nuntil = \"9us\"\n\
     [[faults]]\nkind = \"wrong-class\"\nlossless = [4]\nswitch = \"a\"\ntowards = \"b\"\nat = \"5us\"\n",
    "[fabric]\ntopology = { kind = \"fat-tree\", k = 4, oversubscription = 2 }\n\
     [nic]\ncontrol = \"dcqcn-paper\"\n\
     [nic.dcqcn]\ngain = 0.01\ninitial_alpha = 1\nalpha_interval = \"1us\"\nalpha_rises_at_once = true\n\
     decrease_interval = \"4us\"\nincrease_interval = \"5us\"\nincrease_bytes = \"8KB\"\nfast_recovery = 2\n\
     additive = \"1Gbps\"\nhyper = \"5Gbps\"\nminimum = \"1Gbps\"\nclamp_target = true\n\
     [[traffic]]\nkind = \"permutation\"\nhosts = \"0..14/2\"\nbytes = \"64KB\"\n\
     [[traffic]]\nkind = \"ring\"\nhosts = 4\nbytes = \"64KB\"\npriority = 5\n\
     [[faults]]\nkind = \"loss\"\nlink = 3\nchance = 0.01\nat = \"1us\"\nuntil = \"5us\"\n\
     [[faults]]\nkind = \"corruption\"\nlink = \"host5\"\nchance = 0.01\n\
     [[faults]]\nkind = \"bit-errors\"\nlink = 4\nchance = 1e-7\n\
     [[faults]]\nkind = \"slow-link\"\nlink = [\"edge0.0\", \"agg0.1\"]\nshare = 0.5\n",
];

/// What is put in the place of a number, a text or a word.
const PIECES: [&str; 30] = [
    "0",
    "1",
    "-1",
    "255",
    "256",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "1e300",
    "nan",
    "true",
    "\"\"",
    "\"0\"",
    "\"0B\"",
    "\"1B\"",
    "\"16383PiB\"",
    "\"1bps\"",
    "\"18446744Tbps\"",
    "\"18446744073709551615ps\"",
    "\"213days\"",
    "\"0..4294967295\"",
    "\"9..1\"",
    "\"é\"",
    "[]",
    "{}",
    "{ kind = \"fat-tree\", k = 2 }",
    "\"none\"",
    "[nic]",
    "=",
    "\u{1f600}",
];

/// What is put in the place of a value of the same kind: extremes, and what is near them.
const NUMBERS: [&str; 14] =
    ["0", "1", "2", "3", "4", "6", "7", "8", "16", "31", "255", "1024", "65536", "4294967295"];
const AMOUNTS: [&str; 8] =
    ["\"0B\"", "\"1B\"", "\"3B\"", "\"4097B\"", "\"1MB\"", "\"1GB\"", "\"1TB\"", "\"16383PiB\""];
const RATES: [&str; 7] =
    ["\"1bps\"", "\"7bps\"", "\"1Mbps\"", "\"333Gbps\"", "\"800Gbps\"", "\"100Tbps\"", "\"18446744Tbps\""];
const SPANS: [&str; 7] =
    ["\"0s\"", "\"1ps\"", "\"1ns\"", "\"10us\"", "\"20ms\"", "\"1000s\"", "\"18446744073709551615ps\""];
const NAMES: [&str; 22] = [
    "\"selective\"",
    "\"infiniband\"",
    "\"roce-lossy\"",
    "\"strict\"",
    "\"host1\"",
    "\"a\"",
    "\"none\"",
    "\"pfc\"",
    "\"credits\"",
    "\"ecmp\"",
    "\"flowlet\"",
    "\"adaptive\"",
    "\"spray\"",
    "\"dcqcn\"",
    "\"dcqcn-paper\"",
    "\"dcqcn-connectx\"",
    "\"timely\"",
    "\"swift\"",
    "\"payload64\"",
    "\"go-back-n\"",
    "\"reorder\"",
    "\"0..4\"",
];

/// Other values of the kind of `old`.
fn alike(old: &str) -> &'static [&'static str] {
    let inside = old.trim().trim_matches('"');
    match inside.chars().next_back() {
        _ if !old.trim().starts_with('"') => &NUMBERS,
        Some('B') => &AMOUNTS,
        Some('s') if inside.ends_with("bps") => &RATES,
        Some('s') if inside.starts_with(|first: char| first.is_ascii_digit()) => &SPANS,
        _ => &NAMES,
    }
}

/// One change to a text.
#[derive(Clone, Debug)]
enum Damage {
    /// A value, counted from the first, becomes another of its kind.
    Value(usize, usize),
    /// A value becomes something else.
    Swap(usize, usize),
    /// A letter goes.
    Drop(usize),
    /// Something comes in.
    Insert(usize, usize),
    /// The rest goes.
    Cut(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        24 => (any::<usize>(), any::<usize>()).prop_map(|(at, piece)| Damage::Value(at, piece)),
        2 => (any::<usize>(), 0..PIECES.len()).prop_map(|(at, piece)| Damage::Swap(at, piece)),
        1 => any::<usize>().prop_map(Damage::Drop),
        1 => (any::<usize>(), 0..PIECES.len()).prop_map(|(at, piece)| Damage::Insert(at, piece)),
        1 => any::<usize>().prop_map(Damage::Cut),
    ]
}

fn damaged(mut text: String, damage: &Damage) -> String {
    let values: Vec<usize> = text.match_indices("= ").map(|(at, _)| at + 2).collect();
    let letters: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let pick = |places: &[usize], at: usize| places.get(at % places.len().max(1)).copied().unwrap_or(0);
    match *damage {
        Damage::Value(at, piece) | Damage::Swap(at, piece) => {
            let start = pick(&values, at);
            let end = text[start..].find([',', '}', '\n']).map_or(text.len(), |length| start + length);
            let others = alike(&text[start..end]);
            let new =
                if matches!(damage, Damage::Swap(..)) { PIECES[piece] } else { others[piece % others.len()] };
            text.replace_range(start..end, new);
        }
        Damage::Drop(at) if !text.is_empty() => {
            text.remove(pick(&letters, at));
        }
        Damage::Drop(_) => {}
        Damage::Insert(at, piece) => text.insert_str(pick(&letters, at), PIECES[piece]),
        Damage::Cut(at) => text.truncate(pick(&letters, at)),
    }
    text
}

/// Reads a text, and where it is a scenario of a size for tests, begins to run it.
fn try_out(text: &str) {
    let scenario = match Scenario::parse(text) {
        Ok(scenario) => scenario,
        Err(error) => {
            assert!(!error.message.is_empty());
            if let Some(span) = error.span {
                assert!(text.get(span.clone()).is_some(), "{span:?} is not in the text");
            }
            return;
        }
    };
    match railnet_sim::graph(&scenario) {
        Ok(graph) if graph.hosts.len() <= 64 => {}
        _ => return,
    }
    let Ok(mut run) = Run::new(&scenario, NoSink) else { return };
    for _ in 0..20 {
        if run.advance(Span::from_us(5)) {
            let _ = run.finish();
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn a_damaged_scenario_is_refused_or_run_but_never_panics(
        which in 0..WHOLE.len(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let text = damages.iter().fold(WHOLE[which].to_owned(), damaged);
        try_out(&text);
    }
}

#[test]
fn whole_scenarios_are_good_ones() {
    for text in WHOLE {
        assert!(railnet_sim::run(&Scenario::parse(text).unwrap(), NoSink).is_ok(), "{text}");
    }
}

#[test]
fn a_run_in_steps_is_the_same_run() {
    for text in WHOLE {
        let scenario = Scenario::parse(text).unwrap();
        let (outcome, digest) = railnet_sim::run(&scenario, Digest::new()).unwrap();
        let mut run = Run::new(&scenario, Digest::new()).unwrap();
        let mut before = run.unfinished();
        while !run.advance(Span::from_ns(700)) {
            assert!(run.unfinished() <= before && run.unfinished() <= run.flows());
            before = run.unfinished();
        }
        let (stepped, other) = run.finish().unwrap();
        assert_eq!(digest.finish(), other.finish());
        assert_eq!((outcome.completion, outcome.events), (stepped.completion, stepped.events));
    }
}

#[test]
fn a_run_is_over_before_timers_that_are_for_nothing_and_not_before_others() {
    // Timers for acknowledgements that are late after 1 ms, and after 67 ms. On a link that loses packets the last acknowledgement
    // may be lost after all has arrived: then there is something to come.
    for (timeout, loss) in [(8, "0"), (14, "0"), (8, "0.05"), (14, "0.05")] {
        let text = format!(
            "seed = 3\n[fabric]\ntopology = {{ kind = \"single-switch\", hosts = 4 }}\nlink = {{ loss = {loss} }}\n\
             [nic]\ntimeout = {timeout}\n[[traffic]]\nkind = \"all-to-all\"\nbytes = \"64KB\"\n"
        );
        let scenario = Scenario::parse(&text).unwrap();
        let seen = |stride| {
            let mut run = Run::new(&scenario, Digest::new()).unwrap();
            while !run.advance(stride) {}
            let now = run.now();
            let (outcome, digest) = run.finish().unwrap();
            (now, digest.finish(), outcome.completion, outcome.events, outcome.resent)
        };
        let at_once = seen(Span::from_secs(1));
        assert_eq!(at_once, seen(Span::from_ns(700)), "{text}");
        let (now, _, completion, _, resent) = at_once;
        assert_eq!(resent > 0, loss != "0", "{text}");
        let is_late = now.since(completion) > Span::from_ms(60);
        assert!(!is_late, "{text}{now} is long after {completion}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let base = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n";
    for (rest, hint, place) in [
        ("link = { rate = \"0Gbps\" }\n", "rate of 0", "\"0Gbps\""),
        ("link = { rate = \"101Tbps\" }\n", "no link has 101 Tbps: at most 100 Tbps", "\"101Tbps\""),
        ("link = { delay = \"1s\" }\n", "three delays", "\"1s\""),
        ("switch = { buffer = \"2PB\" }\n", "more than any switch", "\"2PB\""),
        ("switch = { ecn = 7 }\n", "true, false or", "7"),
        ("[nic]\nmtu = 1500\n", "256, 512", "1500"),
        ("[nic]\ntimeout = 32\n", "0 (never) to 31", "32"),
        ("[nic]\nretry_count = 8\n", "0 to 7", "8"),
        ("[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 4\nbytes = \"1B\"\n", "no host 4", "4"),
        ("[[traffic]]\nkind = \"flow\"\nfrom = 1\nto = 1\nbytes = \"1B\"\n", "to itself", "1"),
        (
            "[[traffic]]\nkind = \"incast\"\nfrom = \"0..9\"\nto = 1\nbytes = \"1B\"\n",
            "no host 9",
            "\"0..9\"",
        ),
        ("[[traffic]]\nkind = \"ring\"\nhosts = 1\nbytes = \"1B\"\n", "two hosts", "1"),
    ] {
        let text = format!("{base}{rest}");
        let error = match Scenario::parse(&text) {
            Err(error) => error,
            Ok(scenario) => Run::new(&scenario, NoSink).err().unwrap().located(&text),
        };
        assert!(error.message.contains(hint), "{error} should speak of {hint}");
        assert_eq!(&text[error.span.unwrap()], place, "{rest}");
    }
}

#[test]
fn more_than_can_be_run_is_refused_before_memory_is_taken() {
    let huge = "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 512, hosts_per_leaf = 512, spines = 1 }\n\
                [[traffic]]\nkind = \"all-to-all\"\nbytes = \"1B\"\n";
    let error = Run::new(&Scenario::parse(huge).unwrap(), NoSink).err().unwrap();
    assert!(error.message.contains("too many"), "{error}");
    let long = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n\
                [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"1PB\"\n";
    let error = railnet_sim::run(&Scenario::parse(long).unwrap(), NoSink).unwrap_err();
    assert!(error.to_string().contains("32 TiB is the limit"), "{error}");
}
