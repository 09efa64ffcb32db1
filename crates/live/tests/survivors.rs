//! Several ranks die at once, or one after the other: those that are left agree on who has failed and continue together, or say why not.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]

mod ranks;
mod world;

use std::time::{Duration, Instant};

use railnet_core::{Random, ReduceOp};
use railnet_live::agreement::Quorum;
use railnet_live::communicator::{Agreed, Error, Options};
use railnet_live::{Communicator, Conduit};
use ranks::Ranks;
use rustix::process::Signal;
use world::{LONG, world, world_with};

/// What a rank does: collectives without an end, and after each failure those of the ranks that are left.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let mut world = Communicator::from_env().unwrap();
    println!("\nready");
    loop {
        let mut data = vec![1.0_f32; 3000];
        let Err(error) = world.all_reduce_in_place(&mut data, ReduceOp::Sum) else {
            if std::mem::take(&mut data)[0] as usize != world.size() {
                println!("wrong sum");
                return;
            }
            continue;
        };
        println!("{}", error.to_string().replace('\n', " | "));
        let lost: Vec<usize> = error.culprits();
        world = match world.rebuild_without(&lost) {
            Ok(world) => world,
            Err(error) => {
                println!("ends: {}", error.to_string().replace('\n', " | "));
                return;
            }
        };
        println!("{} continue", world.size());
    }
}

fn start(count: usize, conduit: Conduit) -> Ranks {
    Ranks::start(
        count,
        &[("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", "30s"), ("RAILNET_SILENCE", "5s")],
    )
}

#[test]
fn two_ranks_that_die_at_once_are_survived() {
    for (conduit, killed) in [
        (Conduit::SharedMemory, [1, 3]),
        (Conduit::Tcp, [0, 2]),
        (Conduit::Roce, [0, 4]),
        (Conduit::SharedMemory, [0, 1]),
    ] {
        let mut ranks = start(5, conduit);
        let began = Instant::now();
        for rank in &killed {
            ranks.signal(*rank, Signal::KILL);
        }
        for rank in (0..5).filter(|rank| !killed.contains(rank)) {
            ranks.expect(rank, |line| line == "3 continue");
        }
        assert!(began.elapsed() < Duration::from_secs(20), "after {:?}", began.elapsed());
    }
}

#[test]
fn a_rank_that_dies_during_the_rebuild_is_survived() {
    let mut random = Random::from_seed(3);
    for killed in [[4, 0], [0, 1], [2, 3]] {
        let mut ranks = start(5, Conduit::Tcp);
        let began = Instant::now();
        for rank in killed {
            ranks.signal(rank, Signal::KILL);
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
        }
        for rank in (0..5).filter(|rank| !killed.contains(rank)) {
            ranks.expect(rank, |line| line == "3 continue");
        }
        assert!(began.elapsed() < Duration::from_secs(20), "after {:?}", began.elapsed());
    }
}

#[test]
fn a_minority_does_not_continue_and_says_why() {
    let mut ranks = start(4, Conduit::Tcp);
    for rank in [0, 1] {
        ranks.signal(rank, Signal::KILL);
    }
    for rank in [2, 3] {
        // Half of the ranks, without the lowest.
        ranks.expect(rank, |line| line.starts_with("ends: ranks 2 and 3 of 4 ranks answered: a quorum is"));
    }
}

/// How many rounds of random kills; `tests/full/survivors.sh` asks for more.
fn rounds() -> u64 {
    std::env::var("RAILNET_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn random_kills_leave_one_membership() {
    let seed = std::env::var("STORM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random = Random::from_seed(seed);
    for round in 0..rounds() {
        let size = random.between(2, 8) as usize;
        let deaths = random.between(1, size as u64 - 1) as usize;
        let conduit = *random.pick(&Conduit::ALL);
        let mut killed = Vec::new();
        let mut ranks = start(size, conduit);
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        let is_at_once = random.below(2) == 0;
        while killed.len() < deaths {
            let rank = random.below(size as u64) as usize;
            if !killed.contains(&rank) {
                killed.push(rank);
                ranks.signal(rank, Signal::KILL);
                if !is_at_once {
                    std::thread::sleep(Duration::from_micros(random.below(50_000)));
                }
            }
        }
        let began = Instant::now();
        let survivors: Vec<usize> = (0..size).filter(|rank| !killed.contains(rank)).collect();
        let all = format!("{} continue", survivors.len());
        let mut continued = 0;
        for rank in &survivors {
            let line = ranks.expect_line(*rank, |line| line == all || line.starts_with("ends: "));
            // Those that end do so for want of a quorum, and only where there may be none.
            let context = format!(
                "seed {seed}, round {round}: {killed:?} of {size} over {conduit}, rank {rank}: {line}"
            );
            assert!(line == all || 2 * survivors.len() <= size, "{context}");
            assert!(line == all || line.contains("a quorum is"), "{context}");
            continued += usize::from(line == all);
        }
        assert!(
            continued == 0 || continued == survivors.len(),
            "seed {seed}, round {round}: {killed:?} of {size}"
        );
        assert!(began.elapsed() < Duration::from_secs(40), "round {round} after {:?}", began.elapsed());
    }
}

#[test]
fn ranks_agree_on_flags_and_on_who_has_failed() {
    world(4, Conduit::SharedMemory, LONG, |world| {
        if world.rank() == 2 {
            return;
        }
        // A rank that has left is of no more use than one that died.
        assert!(world.barrier().is_err());
        let agreed = world.agree(!(1 << world.rank())).unwrap();
        assert_eq!(agreed, Agreed { flags: !0b1011, failed: vec![2] });
        // As often as one likes.
        assert_eq!(world.agree(7).unwrap().flags, 7);
    });
}

#[test]
fn a_revoked_communicator_shrinks_to_all_its_ranks() {
    world(3, Conduit::Tcp, LONG, |world| {
        if world.rank() == 1 {
            world.revoke();
        }
        let error = world.barrier().unwrap_err();
        assert!(error.culprits().is_empty(), "{error}");
        let again = world.shrink().unwrap();
        assert_eq!((again.size(), again.rank()), (3, world.rank()));
        again.barrier().unwrap();
    });
}

#[test]
fn the_program_sets_the_quorum() {
    let options = Options { limit: LONG, quorum: Quorum::AtLeast(1), ..Options::default() };
    world_with(3, &options, |world| {
        if world.rank() < 2 {
            return;
        }
        assert!(world.barrier().is_err());
        assert_eq!(world.shrink().unwrap().size(), 1);
    });
    world(3, Conduit::Tcp, LONG, |world| {
        if world.rank() < 2 {
            return;
        }
        assert!(world.barrier().is_err());
        let error = world.shrink().unwrap_err();
        assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    });
}
