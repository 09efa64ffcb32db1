//! The storm itself: seeds pass, everything happens in them, and the checks notice what is falsified.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use railnet_fabric::testing::storm::{self, Sabotage};
use railnet_nic::frame::WireForm;

const SEEDS: std::ops::Range<u64> = 1..200;

#[test]
fn every_seed_passes_and_everything_happens() {
    let mut kinds = BTreeSet::new();
    let mut happened = [0; 12];
    for seed in SEEDS {
        let run = storm::run(seed).unwrap_or_else(|violation| panic!("{violation}"));
        kinds.insert(run.kind);
        let counts = [
            run.failed,
            run.resent,
            run.timeouts,
            run.sequence_naks,
            run.notifications,
            run.marked,
            run.dropped,
            run.unroutable,
            run.lost,
            run.corrupted,
            run.pauses,
            run.rerouted,
        ];
        for (sum, count) in happened.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    assert_eq!(kinds.len(), 6, "{kinds:?}");
    assert!(happened.iter().all(|&count| count > 10), "{happened:?}");
}

#[test]
fn the_same_seed_gives_the_same_digest_and_another_one_another() {
    let digest = |seed| storm::run_form(seed, WireForm::Values).unwrap().digest;
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn a_seed_is_described_in_words() {
    let words = storm::describe(0x12);
    for part in ["hosts", "switches", "flow control", "routing", "MTU", "messages"] {
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(words, storm::describe(0x12));
}

/// How many of so many runs the checks find fault with, and what they say.
fn caught(sabotage: Sabotage) -> Vec<String> {
    let found = SEEDS.filter_map(|seed| storm::run_sabotaged(seed, sabotage).err());
    found.map(|violation| violation.what).collect()
}

fn all() -> usize {
    SEEDS.count()
}

#[test]
fn a_changed_byte_is_noticed() {
    let found = caught(Sabotage::ChangeByte);
    // Where nothing arrives there is nothing to change.
    assert!(found.len() > all() * 9 / 10, "{} of {}", found.len(), all());
    assert!(found.iter().all(|what| what.contains("of its memory is wrong")), "{found:?}");
}

#[test]
fn a_hidden_completion_is_noticed() {
    let found = caught(Sabotage::HideCompletion { number: 1 });
    assert!(found.len() > all() * 9 / 10, "{} of {}", found.len(), all());
}

#[test]
fn a_packet_that_vanishes_is_noticed() {
    let found = caught(Sabotage::LosePacketSilently);
    // In some runs no look at the network finds a packet that waits.
    assert!(found.len() > all() / 3, "{} of {}", found.len(), all());
}

#[test]
fn memory_that_is_not_given_back_is_noticed() {
    for bytes in [1, 1_000_000] {
        let found = caught(Sabotage::ForgetMemory { bytes });
        assert_eq!(found.len(), all());
    }
}

#[test]
fn a_packet_or_a_pause_that_is_left_over_is_noticed() {
    for sabotage in [Sabotage::KeepPacket, Sabotage::KeepPause] {
        let found = caught(sabotage);
        // A run that ends in a deadlock has more of both.
        assert!(found.len() > all() * 9 / 10, "{} of {}", found.len(), all());
        assert!(found.iter().all(|what| what == "something is left over"), "{found:?}");
    }
}
