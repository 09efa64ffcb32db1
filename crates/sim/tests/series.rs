//! Series over time agree with the sums at the end, and looking changes nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use railnet_core::{Digest, RunDigest, Span, Time};
use railnet_sim::{Outcome, Run, Scenario};

const TEXT: &str = "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 4, spines = 2 }\n\
                    switch = { buffer = \"8MB\" }\n[nic]\ncontrol = \"none\"\n\
                    [[traffic]]\nkind = \"incast\"\nfrom = \"0..6\"\nto = 7\nbytes = \"2MB\"\n";

fn run(head: &str) -> (Outcome, RunDigest) {
    let scenario = Scenario::parse(&format!("{head}{TEXT}")).unwrap();
    let (outcome, digest) = railnet_sim::run(&scenario, Digest::new()).unwrap();
    (outcome, digest.finish())
}

#[test]
fn samples_change_nothing() {
    let (plain, digest) = run("");
    assert!(plain.series.is_none());
    for sample in ["700ns", "10us", "1s"] {
        let (sampled, same) = run(&format!("sample = \"{sample}\"\n"));
        assert_eq!(
            (sampled.completion, sampled.events, same),
            (plain.completion, plain.events, digest),
            "{sample}"
        );
        assert_eq!(sampled.links, plain.links);
    }
}

#[test]
fn samples_do_not_depend_on_how_far_a_run_goes_at_once() {
    let scenario = Scenario::parse(&format!("sample = \"10us\"\n{TEXT}")).unwrap();
    let mut stepped = Run::new(&scenario, Digest::new()).unwrap();
    while !stepped.advance(Span::from_us(3)) {}
    let (stepped, _) = stepped.finish().unwrap();
    assert_eq!(stepped.series, run("sample = \"10us\"\n").0.series);
}

#[test]
fn what_was_seen_adds_up() {
    let (outcome, _) = run("sample = \"10us\"\n");
    let series = outcome.series.as_ref().unwrap();
    assert_eq!(series.interval, Span::from_us(10));
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut paused: BTreeMap<u32, u64> = BTreeMap::new();
    let mut deepest: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in &series.links {
        let link = &outcome.links[sample.link as usize];
        assert!(sample.bytes <= link.rate.bytes_in(series.interval).as_u64(), "{sample:?}");
        assert!(sample.paused <= series.interval, "{sample:?}");
        *bytes.entry(sample.link).or_default() += sample.bytes;
        *paused.entry(sample.link).or_default() += sample.paused.as_ps();
        let deep = deepest.entry(sample.link).or_default();
        *deep = (*deep).max(sample.queue);
    }
    let last = Time::ZERO + Span::from_us(outcome.completion.as_ps() / 1_000_000 / 10 * 10 + 10);
    assert_eq!(series.links.iter().map(|sample| sample.time).max(), Some(last), "until all had finished");
    for (index, link) in outcome.links.iter().enumerate() {
        let index = index as u32;
        let seen = bytes.get(&index).copied().unwrap_or(0);
        // A few acknowledgements may follow the last look.
        assert!(link.counters.bytes - seen < 2_000, "{} → {}: {seen}", link.from, link.to);
        let held = paused.get(&index).copied().unwrap_or(0);
        assert!(link.counters.paused_ps.abs_diff(held) < 1_000_000, "{} → {}: {held}", link.from, link.to);
        assert!(deepest.get(&index).copied().unwrap_or(0) <= link.counters.queue_max);
    }
    // The switch in front of the receiver was seen full, and somebody was seen paused.
    let queues = deepest.values().copied().max().unwrap();
    assert!(queues > 500_000, "{queues}");
    assert!(paused.values().any(|held| *held > 0));
    let arrived: u64 = series.connections.iter().map(|sample| sample.bytes).sum();
    // 489 packets of 4096 bytes for each 2 MB.
    assert_eq!(arrived, 7 * 489 * 4096);
    assert!(series.connections.iter().all(|sample| sample.target == 7 && sample.source < 7));
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let error = Scenario::parse(&format!("sample = \"1ns\"\n{TEXT}")).unwrap_err();
    assert!(error.message.contains("at least 100 ns"), "{error}");
}
