//! Ranks as real processes, some of which are killed or stopped: the others say who.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]

mod ranks;

use std::time::{Duration, Instant};

use railnet_live::control::NoticeKind;
use railnet_live::{Launch, rendezvous};
use ranks::Ranks;
use rustix::process::Signal;

/// Longer than anything takes that goes well.
const LONG: Duration = Duration::from_secs(20);

/// What a rank does: it meets the others, says so, and prints all news until the rank in question is lost or back.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let launch = Launch::from_env().unwrap();
    let control = rendezvous::meet(&rendezvous::Config::from_env(&launch).unwrap(), b"").unwrap();
    control.barrier(LONG).unwrap();
    println!("\nready");
    while let Some(notice) = control.wait_notice(LONG) {
        println!("{notice}");
        // On a busy machine others may fall silent for a moment too.
        let is_meant = std::env::var("TEST_TARGET").unwrap() == notice.rank.0.to_string();
        if is_meant && matches!(notice.kind, NoticeKind::Lost | NoticeKind::Heard) {
            break;
        }
    }
    // Who waits for the dead is told so at once, and not after the limit.
    let began = Instant::now();
    match control.barrier(LONG) {
        Ok(()) => println!("all are there"),
        Err(error) => println!("{error}"),
    }
    assert!(began.elapsed() < LONG);
    control.leave(LONG);
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    let mut ranks = Ranks::start(3, &[("TEST_TARGET", "1"), ("RAILNET_SILENCE", "10s")]);
    ranks.signal(1, Signal::KILL);
    for rank in [0, 2] {
        ranks.expect(rank, |line| line == "rank 1 is lost: its connection was closed");
        ranks.expect(rank, |line| {
            line == "exchange \"barrier\": rank 1 is gone (rank 1: its connection was closed)"
        });
    }
}

#[test]
fn the_death_of_rank_0_is_told_by_all_others() {
    let mut ranks = Ranks::start(3, &[("TEST_TARGET", "0"), ("RAILNET_SILENCE", "10s")]);
    ranks.signal(0, Signal::KILL);
    for rank in [1, 2] {
        ranks.expect(rank, |line| line == "rank 0 is lost: its connection was closed");
        ranks.expect(rank, |line| line == "exchange \"barrier\": rank 0 is gone: its connection was closed");
    }
}

#[test]
fn a_stopped_rank_is_named_and_so_is_its_return() {
    for stopped in [0, 2] {
        let mut ranks =
            Ranks::start(3, &[("TEST_TARGET", stopped.to_string().as_str()), ("RAILNET_SILENCE", "300ms")]);
        ranks.signal(stopped, Signal::STOP);
        let others: Vec<usize> = (0..3).filter(|rank| *rank != stopped).collect();
        for rank in &others {
            let expected = format!("rank {stopped} gives no sign of life: nothing heard for 300.0ms");
            ranks.expect(*rank, |line| line == expected);
        }
        ranks.signal(stopped, Signal::CONT);
        for rank in &others {
            let expected = format!("rank {stopped} is back");
            ranks.expect(*rank, |line| line == expected);
        }
    }
}
