//! What a rank tells of all ranks of its job, which it asks over the control channel.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod world;

use std::sync::atomic::{AtomicBool, Ordering};

use railnet_live::Conduit;
use railnet_live::status::{RankState, ranks_of_job};
use world::{LONG, world};

#[test]
fn a_rank_tells_what_all_ranks_of_its_job_do() {
    let ends = AtomicBool::new(false);
    world(4, Conduit::Tcp, LONG, |world| {
        world.barrier().unwrap();
        if world.rank() == 3 {
            // The others wait for it, and it computes.
            let pid = std::process::id();
            let ask = |rank: u32| {
                let ranks = ranks_of_job(pid, rank).unwrap();
                assert_eq!(ranks[0].rank, rank);
                ranks
            };
            let is_waited_for = |ranks: &[railnet_live::status::RankStatus]| {
                ranks.len() == 4
                    && ranks.iter().all(|one| match one.rank {
                        3 => one.state == RankState::Computes,
                        _ => one.state == RankState::InCall && !one.calls[0].waits_for.is_empty(),
                    })
            };
            for rank in 0..4 {
                let began = std::time::Instant::now();
                while !is_waited_for(&ask(rank)) {
                    assert!(began.elapsed() < LONG, "{:#?}", ask(rank));
                }
            }
            // Two that ask at the same time, each of them the other: none waits for the other in vain.
            std::thread::scope(|scope| {
                let asked = [0, 1].map(|rank| scope.spawn(move || ask(rank)));
                for one in asked {
                    let ranks = one.join().unwrap();
                    assert_eq!(ranks.len(), 4, "{ranks:#?}");
                }
            });
            ends.store(true, Ordering::Relaxed);
        }
        world.barrier().unwrap();
        assert!(ends.load(Ordering::Relaxed));
    });
}
