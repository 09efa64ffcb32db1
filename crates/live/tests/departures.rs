//! A rank dies, another fails because of it and leaves, and a third, which waits for that one in a communicator that the dead rank was
//! never in, names the rank that died.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]
#![allow(clippy::exit, reason = "that is one of the ways in which a rank leaves")]

mod ranks;
mod world;

use std::io::Write as _;
use std::time::Duration;

use railnet_core::{Rank, ReduceOp};
use railnet_live::communicator::Error;
use railnet_live::{Communicator, Conduit};
use ranks::Ranks;
use rustix::process::{Signal, getpid, kill_process};
use world::{LONG, world};

/// What four ranks do: rank 1 dies, rank 3 waits for it, the others wait for rank 3 in communicators without rank 1: rank 0 in one, and rank 2
/// in a receive.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let world = Communicator::from_env().unwrap();
    let end = std::env::var("TEST_END").unwrap();
    let part = world.split(if [0, 3].contains(&world.rank()) { Some(0) } else { None }, 0).unwrap();
    let group = part.as_ref().unwrap_or(&world);
    world.barrier().unwrap();
    println!("\nready");
    let mut data = vec![1.0_f32; 1000];
    let outcome = match world.rank() {
        0 => group.all_reduce_in_place(&mut data, ReduceOp::Sum),
        1 => {
            println!("waits");
            return std::thread::sleep(LONG);
        }
        2 => world.receive(&mut data, 3),
        _ => world.receive(&mut data, 1),
    };
    let error = outcome.unwrap_err();
    let numbers = |ranks: Vec<Rank>| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
    println!("{} {:?} {:?}", line(&error), numbers(error.culprits()), numbers(error.outsiders()));
    let _ = std::io::stdout().flush();
    match end.as_str() {
        "exit" => std::process::exit(0),
        "return" => {}
        // As soon as it knows.
        _ => _ = kill_process(getpid(), Signal::KILL),
    }
}

fn line(error: &Error) -> String {
    error.to_string().replace('\n', " | ")
}

#[test]
fn a_rank_that_leaves_after_a_failure_names_its_cause_to_those_that_wait_for_it_elsewhere() {
    for (conduit, end) in [
        (Conduit::SharedMemory, "killed"),
        (Conduit::Tcp, "killed"),
        (Conduit::Roce, "killed"),
        (Conduit::Tcp, "return"),
        (Conduit::Roce, "exit"),
        (Conduit::SharedMemory, "stopped"),
    ] {
        // A rank that is stopped is named after the timeout, the others after seconds.
        let timeout = if end == "stopped" { "3s" } else { "40s" };
        let variables =
            [("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", timeout), ("TEST_END", end)];
        let mut ranks = Ranks::start(4, &variables);
        ranks.expect(1, |line| line == "waits");
        ranks.signal(1, if end == "stopped" { Signal::STOP } else { Signal::KILL });
        let names = |rank: u32, line: &str| {
            assert!(line.contains("rank 3 left") || line.contains("rank 1 left"), "{conduit}, {end}: {line}");
            assert!(line.contains(&format!("because of rank {rank}")), "{conduit}, {end}: {line}");
        };
        let said = |ranks: &mut Ranks, rank| ranks.expect_line(rank, |line| line.ends_with(']'));
        // Rank 3 of the job is rank 1 of the group that rank 0 waits in, and rank 1 of the job is in none of its ranks.
        let zero = said(&mut ranks, 0);
        assert!(zero.ends_with("[] [1]"), "{conduit}, {end}: {zero}");
        names(1, &zero);
        // Both are in the communicator in which rank 2 receives.
        let two = said(&mut ranks, 2);
        assert!(two.ends_with("[1] []"), "{conduit}, {end}: {two}");
    }
}

/// Its failure was another matter: it went on, and left later.
#[test]
fn a_rank_that_goes_on_after_a_failure_leaves_for_reasons_of_its_own() {
    let is_over = std::sync::Barrier::new(2);
    world(3, Conduit::Tcp, LONG, |world| {
        let pair = world.split((world.rank() != 1).then_some(0), 0).unwrap();
        let other = world.split((world.rank() != 0).then_some(0), 0).unwrap();
        match world.rank() {
            0 => {
                pair.unwrap().barrier().unwrap();
                is_over.wait();
                let error = world.barrier().unwrap_err();
                assert!(
                    error.culprits().contains(&Rank(2)) || error.culprits().contains(&Rank(1)),
                    "{error}"
                );
                assert!(!error.to_string().contains("because of"), "{error}");
            }
            1 => other.unwrap().abort(),
            _ => {
                other.unwrap().barrier().unwrap_err();
                pair.unwrap().barrier().unwrap();
                drop(world);
                is_over.wait();
            }
        }
    });
}

/// A rank that waits for nothing but a signal of one that has left.
#[test]
fn a_wait_for_a_signal_names_the_cause_too() {
    world(3, Conduit::SharedMemory, Duration::from_secs(20), |world| {
        let part = world.split((world.rank() != 1).then_some(0), 0).unwrap();
        let window = part.as_ref().map(|part| part.window::<u8>(4096).unwrap());
        world.barrier().unwrap();
        match world.rank() {
            0 => {
                let error = window.unwrap().wait_signals(&[(1, 1)]).unwrap_err();
                assert_eq!((error.culprits(), error.outsiders()), (vec![], vec![Rank(1)]), "{error}");
            }
            1 => drop(world),
            _ => {
                let error = world.barrier().unwrap_err();
                assert_eq!(error.culprits(), [Rank(1)], "{error}");
            }
        }
    });
}
