//! Runs that stand still say what holds them and whom.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_core::{Digest, Span};
use railnet_sim::{BlockingCause, Run, RunError, Scenario, StallReport};

/// Two leaves with two hosts each and a small memory, joined by one spine.
fn text(nic: &str, rest: &str) -> String {
    format!(
        "[fabric]\ntopology = {{ kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 1 }}\n\
         switch = {{ buffer = \"4MB\" }}\n[nic]\ncontrol = \"none\"\n{nic}\n\
         [[traffic]]\nkind = \"incast\"\nfrom = \"0..1\"\nto = 3\nbytes = \"8MB\"\n\
         [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 2\nbytes = \"8MB\"\n{rest}"
    )
}

fn error(text: &str) -> RunError {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    railnet_sim::run(&scenario, NoSink).unwrap_err()
}

fn stall(text: &str) -> StallReport {
    match error(text) {
        RunError::Stuck(stall) => *stall,
        error => panic!("{error}"),
    }
}

const STORM: &str = "[[faults]]\nkind = \"pause-storm\"\nhost = 3\nat = \"50us\"\n";

#[test]
fn a_host_that_pauses_for_ever_is_named_with_its_victims() {
    let found = stall(&text("", STORM));
    assert_eq!(found.cause, BlockingCause::Storm { hosts: vec!["host3".to_owned()], numbers: vec![3] });
    // Two flows go to the host that pauses; the third goes elsewhere and stands behind them.
    let pairs: Vec<_> = found.waiting.iter().map(|waiting| (waiting.from, waiting.to)).collect();
    assert_eq!(pairs, [(0, 3), (1, 3), (0, 2)]);
    assert!(found.waiting.iter().all(|waiting| waiting.psn.value() > 0), "each had begun");
    let words = found.to_string();
    for part in [
        "host3 keeps its switch paused and does not let go; nothing has moved for ",
        "3 flows wait, 2 to it: host 0 to host 3 (PSN ",
        " of queue pair 0x11)",
        "; 1 to others behind those: host 0 to host 2 (PSN ",
    ] {
        assert!(words.contains(part), "{part} is not in {words}");
    }
}

#[test]
fn how_long_nothing_may_move_can_be_said() {
    let found = stall(&text("", STORM));
    assert!((Span::from_ms(10)..Span::from_ms(16)).contains(&found.idle), "{}", found.idle);
    let short = stall(&format!("stall = \"1ms\"\n{}", text("", STORM)));
    assert!((Span::from_ms(1)..Span::from_ms(2)).contains(&short.idle), "{}", short.idle);
    assert_eq!(short.waiting, found.waiting);
    let error = Scenario::parse(&format!("stall = \"1us\"\n{}", text("", STORM))).unwrap_err();
    assert!(error.message.contains("at least 100 us"), "{error}");
}

#[test]
fn a_storm_that_will_end_is_waited_for() {
    let scenario = Scenario::parse(&text("", &format!("{STORM}until = \"30ms\"\n"))).unwrap();
    let (outcome, _) = railnet_sim::run(&scenario, NoSink).unwrap();
    assert!(outcome.completion.as_ps() > 30_000_000_000);
    // And so are flows that have not started.
    let late = text("", "").replace("bytes = \"8MB\"", "bytes = \"8MB\"\nstart = \"100ms\"");
    assert!(railnet_sim::run(&Scenario::parse(&late).unwrap(), NoSink).is_ok());
}

#[test]
fn a_connection_that_gives_up_is_named_with_what_held_it() {
    let failure = |text: &str| match error(text) {
        RunError::Flow(failure) => *failure,
        error => panic!("{error}"),
    };
    // 8 times 262 µs are over before anybody would call it a stall.
    let found = failure(&text("timeout = 6", STORM));
    assert!(matches!(found.cause, BlockingCause::Storm { .. }), "{found}");
    let cut = "[[faults]]\nkind = \"link-down\"\nlink = \"host2\"\nat = \"200us\"\n";
    let found = failure(&text("timeout = 8", cut));
    assert_eq!(found.cause, BlockingCause::Dead { links: vec!["host2 - leaf1".to_owned()] });
    assert_eq!((found.waiting.from, found.waiting.to), (0, 2));
    assert!(found.waiting.psn.value() > 100, "{found}");
    let words = found.to_string();
    assert!(words.contains("flow 2 (host 0 to host 2) failed: ") && words.contains("; it waited at PSN "));
    assert!(words.ends_with("; the link host2 - leaf1 is down"), "{words}");
}

#[test]
fn a_connection_without_a_timer_is_named_when_nothing_is_left_to_happen() {
    let lost = "[[faults]]\nkind = \"lose-packet\"\nfrom = 0\nto = 2\nnth = 1954\n";
    let found = stall(&text("timeout = 0", lost));
    assert_eq!(found.cause, BlockingCause::Silence);
    assert_eq!(found.waiting.len(), 1);
    assert_eq!((found.waiting[0].flow, found.waiting[0].psn.value()), (2, 1953), "the last packet");
}

#[test]
fn a_run_that_is_given_up_says_where_its_first_flow_is() {
    let words = error(&format!("limit = \"300us\"\n{}", text("", ""))).to_string();
    assert!(words.contains("did not finish within 300 us; the first is flow 0 (host 0 to host 3), at PSN "));
    let unborn = text("", "").replace("bytes = \"8MB\"", "bytes = \"8MB\"\nstart = \"1ms\"");
    let words = error(&format!("limit = \"300us\"\n{unborn}")).to_string();
    assert!(words.ends_with("(host 0 to host 3)"), "{words}");
}

#[test]
fn looking_changes_nothing_and_steps_do_not_matter() {
    let scenario = |stall: &str| Scenario::parse(&format!("stall = \"{stall}\"\n{}", text("", ""))).unwrap();
    let digest = |stall| railnet_sim::run(&scenario(stall), Digest::new()).unwrap().1.finish();
    assert_eq!(digest("100us"), digest("1s"));
    let stuck = Scenario::parse(&text("", STORM)).unwrap();
    let mut run = Run::new(&stuck, NoSink).unwrap();
    while !run.advance(Span::from_us(7)) {}
    assert_eq!(run.finish().unwrap_err(), error(&text("", STORM)));
}
