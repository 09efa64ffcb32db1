//! A rank dies, another fails because of it and leaves, and a third, which waits for that one in a communicator that the dead rank was
//! never in, names the rank that died.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]
#![allow(clippy::exit, reason = "that is one of the ways in which a rank leaves")]

mod ranks;
mod world;

use std::io::Write as _;
use std::time::Duration;

use railnet_core::ReduceOp;
use railnet_live::communicator::Error;
use railnet_live::{Communicator, Conduit};
use ranks::Ranks;
use rustix::process::{Signal, getpid, kill_process};
use world::{LONG, world};

/// What four ranks do: rank 1 dies, rank 3 waits for it, the others wait for rank 3 in communicators without rank 1: rank 0 in one, and rank 2
/// in a receive. Ranks 0 and 1 may have each other's part.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let world = Communicator::from_env().unwrap();
    let end = std::env::var("TEST_END").unwrap();
    let victim: usize = std::env::var("TEST_VICTIM").unwrap().parse().unwrap();
    let other = 1 - victim;
    let part = world.split([other, 3].contains(&world.rank()).then_some(0), 0).unwrap();
    let group = part.as_ref().unwrap_or(&world);
    world.barrier().unwrap();
    println!("\nready");
    let mut data = vec![1.0_f32; 1000];
    let outcome = match world.rank() {
        rank if rank == victim => {
            println!("waits");
            return std::thread::sleep(LONG);
        }
        2 => world.receive(&mut data, 3),
        3 => world.receive(&mut data, victim),
        _ => group.all_reduce_in_place(&mut data, ReduceOp::Sum),
    };
    let error = outcome.unwrap_err();
    println!("{} {:?} {:?}", line(&error), error.culprits(), error.outsiders());
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

/// Lets the victim end, and gives what the two ranks say that wait for rank 3 elsewhere.
fn play(conduit: Conduit, victim: usize, end: &str, timeout: &str) -> [String; 2] {
    let number = victim.to_string();
    let variables = [
        ("RAILNET_CONDUIT", conduit.name()),
        ("RAILNET_TIMEOUT", timeout),
        ("TEST_END", end),
        ("TEST_VICTIM", &number),
    ];
    let mut ranks = Ranks::start(4, &variables);
    ranks.expect(victim, |line| line == "waits");
    ranks.signal(victim, if end == "stopped" { Signal::STOP } else { Signal::KILL });
    [1 - victim, 2].map(|rank| ranks.expect_line(rank, |line| line.ends_with(']')))
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
        let [zero, two] = play(conduit, 1, end, timeout);
        for line in [&zero, &two] {
            assert!(line.contains("rank 3 left") || line.contains("rank 1 left"), "{conduit}, {end}: {line}");
            assert!(line.contains("because of rank 1"), "{conduit}, {end}: {line}");
        }
        // Rank 3 of the job is rank 1 of the group that rank 0 waits in, and rank 1 of the job is in none of its ranks.
        assert!(zero.ends_with("[] [1]"), "{conduit}, {end}: {zero}");
        // Both are in the communicator in which rank 2 receives.
        assert!(two.ends_with("[1] []"), "{conduit}, {end}: {two}");
    }
}

/// Without it ranks cannot tell each other anything: that is said, and who is gone.
#[test]
fn where_rank_0_dies_it_is_named_by_all() {
    for (conduit, end) in
        [(Conduit::SharedMemory, "killed"), (Conduit::Tcp, "killed"), (Conduit::Roce, "return")]
    {
        let [one, two] = play(conduit, 0, end, "3s");
        assert!(one.ends_with("[] [0]"), "{conduit}, {end}: {one}");
        assert!(two.ends_with("[0] []"), "{conduit}, {end}: {two}");
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
                assert!(error.culprits().contains(&2) || error.culprits().contains(&1), "{error}");
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
                assert_eq!((error.culprits(), error.outsiders()), (vec![], vec![1]), "{error}");
            }
            1 => drop(world),
            _ => {
                let error = world.barrier().unwrap_err();
                assert_eq!(error.culprits(), [1], "{error}");
            }
        }
    });
}
