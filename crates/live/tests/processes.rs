//! Ranks as real processes, some of which are killed or stopped: the others say who.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use railnet_live::control::NoticeKind;
use railnet_live::{Launch, rendezvous};
use rustix::process::{Pid, Signal, kill_process};

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

struct Ranks(Vec<(Child, BufReader<ChildStdout>)>);

impl Ranks {
    /// Starts ranks and waits until all have met. Something will happen to the target; a silence is noticed after a time.
    fn start(count: usize, target: usize, silence: &str) -> Self {
        let port = railnet_live::launch::free_port().unwrap();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--ignored", "--exact", "rank", "--nocapture"]);
            command.env("RAILNET_RANK", rank.to_string()).env("RAILNET_WORLD_SIZE", count.to_string());
            command.env("RAILNET_RENDEZVOUS", format!("127.0.0.1:{port}"));
            command.env("RAILNET_SILENCE", silence).env("TEST_TARGET", target.to_string());
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap());
            (child, lines)
        };
        let mut ranks = Self((0..count).map(start).collect());
        for rank in 0..count {
            ranks.expect(rank, "ready");
        }
        ranks
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.0[rank].0), signal).unwrap();
    }

    /// Waits for a line of a rank.
    fn expect(&mut self, rank: usize, line: &str) {
        let mut seen = String::new();
        while self.0[rank].1.read_line(&mut seen).unwrap() > 0 {
            if seen.lines().last() == Some(line) {
                return;
            }
        }
        panic!("rank {rank} did not say {line:?} but:\n{seen}");
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    let mut ranks = Ranks::start(3, 1, "10s");
    ranks.signal(1, Signal::KILL);
    for rank in [0, 2] {
        ranks.expect(rank, "rank 1 is lost: its connection was closed");
        ranks.expect(rank, "exchange \"barrier\": rank 1 is gone (rank 1: its connection was closed)");
    }
}

#[test]
fn the_death_of_rank_0_is_told_by_all_others() {
    let mut ranks = Ranks::start(3, 0, "10s");
    ranks.signal(0, Signal::KILL);
    for rank in [1, 2] {
        ranks.expect(rank, "rank 0 is lost: its connection was closed");
        ranks.expect(rank, "exchange \"barrier\": rank 0 is gone: its connection was closed");
    }
}

#[test]
fn a_stopped_rank_is_named_and_so_is_its_return() {
    for stopped in [0, 2] {
        let mut ranks = Ranks::start(3, stopped, "300ms");
        ranks.signal(stopped, Signal::STOP);
        let others: Vec<usize> = (0..3).filter(|rank| *rank != stopped).collect();
        for rank in &others {
            ranks.expect(*rank, &format!("rank {stopped} gives no sign of life: nothing heard for 300.0ms"));
        }
        ranks.signal(stopped, Signal::CONT);
        for rank in &others {
            ranks.expect(*rank, &format!("rank {stopped} is back"));
        }
    }
}
