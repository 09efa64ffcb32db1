//! The storm itself: seeds pass, digests are what they should be, and the model notices what is falsified.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_nic::testing::WireForm;
use railnet_nic::testing::storm::{self, Sabotage, Scenario, Violation};

const SEEDS: std::ops::Range<u64> = 1..400;

/// A seed in which nothing goes wrong on purpose.
fn calm_seeds(count: usize) -> Vec<u64> {
    let is_calm =
        |seed: &u64| storm::run(*seed, WireForm::Values).is_ok_and(|run| run.scenario == Scenario::None);
    SEEDS.filter(is_calm).take(count).collect()
}

/// How many of the runs the model finds fault with.
fn caught(seeds: &[u64], sabotage: Sabotage) -> Vec<Violation> {
    seeds
        .iter()
        .filter_map(|&seed| storm::run_sabotaged(seed, WireForm::Values, sabotage).err())
        .map(|violation| *violation)
        .collect()
}

#[test]
fn every_seed_passes_and_values_and_bytes_are_one_machine() {
    let mut seen = Vec::new();
    for seed in SEEDS {
        let values = storm::run(seed, WireForm::Values).unwrap_or_else(|violation| panic!("{violation}"));
        let bytes = storm::run(seed, WireForm::Bytes).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(values, bytes, "seed {seed:#x}");
        seen.push(values.scenario);
    }
    for scenario in Scenario::ALL {
        assert!(seen.contains(&scenario), "no seed provokes {}", scenario.name());
    }
}

#[test]
fn the_same_seed_gives_the_same_digest_and_another_one_another() {
    let digest = |seed| storm::run(seed, WireForm::Values).unwrap().digest;
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn the_wire_does_all_that_it_can_do() {
    let mut total = storm::run(1, WireForm::Values).unwrap();
    for seed in SEEDS {
        let run = storm::run(seed, WireForm::Values).unwrap();
        total.injected.lost += run.injected.lost;
        total.injected.cut += run.injected.cut;
        total.injected.duplicated += run.injected.duplicated;
        total.injected.reordered += run.injected.reordered;
        total.injected.delayed += run.injected.delayed;
        total.injected.corrupted += run.injected.corrupted;
        total.injected.marked += run.injected.marked;
        total.timeouts += run.timeouts;
        total.sequence_naks += run.sequence_naks;
        total.rnr_naks += run.rnr_naks;
        total.notifications += run.notifications;
    }
    let injected = total.injected;
    let wire = [
        injected.lost,
        injected.cut,
        injected.duplicated,
        injected.reordered,
        injected.delayed,
        injected.corrupted,
        injected.marked,
    ];
    let recovery = [total.timeouts, total.sequence_naks, total.rnr_naks, total.notifications];
    assert!(wire.iter().chain(&recovery).all(|&count| count > 100), "{wire:?} {recovery:?}");
}

#[test]
fn a_changed_byte_is_noticed_wherever_it_is() {
    let seeds = calm_seeds(20);
    for place in [0, 77_777, 131_075, u64::MAX / 3] {
        for nic in 0..2 {
            let found = caught(&seeds, Sabotage::FlipByte { nic, place });
            // Where unreliable messages leave parts behind, one byte more or less cannot be told.
            assert!(found.len() + 3 >= seeds.len(), "{} of {}", found.len(), seeds.len());
        }
    }
}

#[test]
fn a_lost_completion_is_noticed() {
    let seeds = calm_seeds(20);
    for number in [0, 7] {
        let found = caught(&seeds, Sabotage::DropCompletion { number });
        // A lost receive of an unreliable service looks like a message that got lost on the way.
        assert!(found.len() + 3 >= seeds.len(), "{found:?}");
    }
}

#[test]
fn a_completion_that_comes_twice_is_noticed() {
    let seeds = calm_seeds(20);
    let found = caught(&seeds, Sabotage::RepeatCompletion { number: 3 });
    assert_eq!(found.len(), seeds.len(), "{found:?}");
}

#[test]
fn a_wrong_length_is_noticed() {
    let seeds = calm_seeds(20);
    let found = caught(&seeds, Sabotage::LengthenCompletion { number: 2 });
    assert_eq!(found.len(), seeds.len(), "{found:?}");
}

#[test]
fn a_wire_that_falls_silent_is_a_failure_and_names_who_waits() {
    let seeds = calm_seeds(20);
    let found = caught(&seeds, Sabotage::Silence { after: 10 });
    assert_eq!(found.len(), seeds.len());
    for violation in found {
        let is_hang = violation.what.starts_with("hang");
        assert!(is_hang || violation.what == "work failed for no reason", "{violation}");
        assert!(violation.queue_pair.is_some() && violation.nic.is_some());
    }
}
