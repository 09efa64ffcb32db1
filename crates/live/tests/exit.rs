//! Programs that end without dropping their communicator: ranks that have finished count as such.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]
#![allow(clippy::exit, reason = "that is what is tested")]

mod ranks;

use std::time::{Duration, Instant};

use railnet_live::status::{RankState, ranks_of_job};
use railnet_live::{Communicator, Conduit};
use ranks::Ranks;
use rustix::process::Signal;

/// What a rank does: it keeps its communicator where nothing is dropped. Rank 1 sends something and ends its program; when it is
/// gone, the others come for that. Where it is told to, it ends in another way.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let world: &'static Communicator = Box::leak(Box::new(Communicator::from_env().unwrap()));
    println!("\nready");
    let mut data = vec![0_u32; 10_000];
    world.barrier().unwrap();
    if world.rank() == 1 {
        data.fill(7);
        match std::env::var("TEST_END").as_deref() {
            Ok("in a call") => {
                std::thread::spawn(move || world.barrier());
                let own = || ranks_of_job(std::process::id(), 1).map(|ranks| ranks[0].state);
                while !own().is_ok_and(|state| state == RankState::InCall) {
                    std::thread::yield_now();
                }
            }
            Ok("with a failure") => std::process::exit(3),
            Ok("by a signal") => {
                println!("waits");
                loop {
                    std::thread::park();
                }
            }
            _ => world.broadcast(&mut data, 1).unwrap(),
        }
        std::process::exit(0);
    }
    // Until its goodbye has arrived. Over RoCE it waits until the others receive what it sent.
    let began = Instant::now();
    while world.survivors().contains(&1) && began.elapsed() < Duration::from_millis(300) {
        std::thread::yield_now();
    }
    match world.broadcast(&mut data, 1) {
        Ok(()) => println!("got {}", data.iter().filter(|one| **one == 7).count()),
        Err(error) => println!("{error}"),
    }
    std::process::exit(0);
}

#[test]
fn a_program_that_ends_with_its_communicator_has_delivered_what_it_sent() {
    for conduit in Conduit::ALL {
        let mut ranks = Ranks::start(3, &[("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", "30s")]);
        for rank in [0, 2] {
            ranks.expect(rank, |line| line == "got 10000");
        }
    }
}

#[test]
fn a_program_that_ends_in_the_middle_of_a_call_with_a_failure_or_by_a_signal_is_lost() {
    for end in ["in a call", "with a failure", "by a signal"] {
        let variables = [("RAILNET_CONDUIT", "tcp"), ("RAILNET_TIMEOUT", "30s"), ("TEST_END", end)];
        let mut ranks = Ranks::start(3, &variables);
        if end == "by a signal" {
            ranks.expect(1, |line| line == "waits");
            ranks.signal(1, Signal::TERM);
        }
        for rank in [0, 2] {
            ranks.expect(rank, |line| line.contains("rank 1 is lost") && !line.contains("finished"));
        }
    }
}
