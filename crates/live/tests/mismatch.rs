//! One rank means another call than the rest, at once or late, over every conduit: every rank reports that rank, and no other.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod world;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use railnet_core::ReduceOp;
use railnet_live::communicator::Error;
use railnet_live::{Communicator, Conduit};
use world::{LONG, world};

/// In what a rank differs from the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Difference {
    Collective,
    Count,
    Type,
    Operation,
    Root,
    Order,
}

impl Difference {
    const ALL: [Self; 6] =
        [Self::Collective, Self::Count, Self::Type, Self::Operation, Self::Root, Self::Order];
}

/// Calls, of which one differs on the rank that differs.
fn calls(world: &Communicator, difference: Difference, differs: bool) -> Result<(), Error> {
    let mut floats = [1.0_f32; 64];
    match (difference, differs) {
        (Difference::Collective, true) => {
            world.all_to_all(&vec![1.0_f32; 64 * world.size()], &mut vec![0.0; 64 * world.size()])
        }
        (Difference::Count, true) => world.all_reduce_in_place(&mut [1.0_f32; 65], ReduceOp::Sum),
        (Difference::Type, true) => world.all_reduce_in_place(&mut [1_i32; 64], ReduceOp::Sum),
        (Difference::Operation, true) => world.all_reduce_in_place(&mut floats, ReduceOp::Max),
        (Difference::Root, _) => world.broadcast(&mut floats, if differs { world.size() - 1 } else { 0 }),
        (Difference::Order, true) => {
            world.barrier().and_then(|()| world.all_reduce_in_place(&mut floats, ReduceOp::Sum))
        }
        (Difference::Order, false) => {
            world.all_reduce_in_place(&mut floats, ReduceOp::Sum).and_then(|()| world.barrier())
        }
        _ => world.all_reduce_in_place(&mut floats, ReduceOp::Sum),
    }
    // A broadcast is over at its root when the data is on its way: what is wrong shows in the next call.
    .and_then(|()| world.barrier())
    .and_then(|()| world.barrier())
}

fn check(conduit: Conduit, ranks: u32, difference: Difference, lateness: Duration) {
    let case = format!("{difference:?} among {ranks} over {conduit}, {lateness:?} late");
    let last = ranks as usize - 1;
    let all_know = Barrier::new(ranks as usize);
    world(ranks, conduit, LONG, |world| {
        let differs = world.rank() == last;
        let began = Instant::now();
        // Who is not through with the barrier by then hears of it there.
        let outcome = world.barrier().and_then(|()| {
            if differs {
                std::thread::sleep(lateness);
            }
            calls(&world, difference, differs)
        });
        let took = began.elapsed();
        // Nobody leaves before all know: a rank that has left answers nothing.
        all_know.wait();
        let error = outcome.expect_err(&case);
        let text = error.to_string();
        assert!(text.contains("ranks disagree about collective #1"), "{case}, rank {}: {text}", world.rank());
        assert!(text.contains(&format!("rank {last}: ")), "{case}, rank {}: {text}", world.rank());
        let culprits: Vec<usize> = error.culprits();
        // Where a majority of all has said the same, the one that differs is the culprit; never another.
        let absent = text.lines().find_map(|line| line.strip_suffix(": not entered"));
        let absent = absent.map_or(0, |ranks| ranks.matches(|letter: char| letter.is_ascii_digit()).count());
        let expected = if 2 * (last - absent) > ranks as usize { vec![last] } else { Vec::new() };
        assert_eq!(culprits, expected, "{case}, rank {}: {text}", world.rank());
        assert!(took < lateness + Duration::from_secs(10), "{case}: {took:?}");
    });
}

/// Whether all of it runs: `tests/full/mismatch.sh` asks for it.
fn is_full() -> bool {
    std::env::var_os("RAILNET_MISMATCH_FULL").is_some()
}

fn matrix(conduit: Conduit) {
    for ranks in if is_full() { vec![2, 3, 4, 5] } else { vec![2, 3] } {
        for difference in Difference::ALL {
            check(conduit, ranks, difference, Duration::ZERO);
            if is_full() {
                for seconds in [1, 2, 3, 5, 10] {
                    check(conduit, ranks, difference, Duration::from_secs(seconds));
                }
            }
        }
    }
}

#[test]
fn a_difference_over_shared_memory_is_reported_by_all() {
    matrix(Conduit::SharedMemory);
}

#[test]
fn a_difference_over_tcp_is_reported_by_all() {
    matrix(Conduit::Tcp);
}

#[test]
fn a_difference_over_roce_is_reported_by_all() {
    matrix(Conduit::Roce);
}

#[test]
fn a_rank_that_differs_and_is_late_is_reported_and_no_other() {
    // Later than ranks wait for answers.
    let lateness = Duration::from_millis(2300);
    std::thread::scope(|scope| {
        for conduit in Conduit::ALL {
            for difference in [Difference::Collective, Difference::Count] {
                scope.spawn(move || check(conduit, 3, difference, lateness));
            }
        }
    });
}

#[test]
fn lateness_alone_is_no_error() {
    std::thread::scope(|scope| {
        for conduit in Conduit::ALL {
            scope.spawn(move || {
                world(3, conduit, LONG, |world| {
                    world.barrier().unwrap();
                    if world.rank() == 1 {
                        std::thread::sleep(Duration::from_millis(2300));
                    }
                    world.all_reduce_in_place(&mut [1.0_f32; 64], ReduceOp::Sum).unwrap();
                    world.barrier().unwrap();
                });
            });
        }
    });
}
