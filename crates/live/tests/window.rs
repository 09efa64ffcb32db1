//! One-sided windows over every conduit: what is put arrives before its signal, mistakes and dead ranks are named.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]

mod ranks;
mod world;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use railnet_core::Random;
use railnet_live::communicator::{Error, Options, RoceOptions, WindowPath};
use railnet_live::{Communicator, Conduit, Window};
use ranks::Ranks;
use rustix::process::Signal;
use world::{LONG, world, world_with};

const CONDUITS: [Conduit; 3] = Conduit::ALL;
const SHORT: Duration = Duration::from_millis(200);

/// What a rank puts in a round: different for each.
fn data(from: usize, round: usize, count: usize) -> Vec<u32> {
    (0..count).map(|index| (from * 1_000_003 + round * 7919 + index) as u32).collect()
}

/// Rounds in which everybody puts something into everybody's part, at a place of its own, and looks at what it got.
fn exchange(world: &Communicator, counts: &[usize]) {
    let most = counts.iter().max().unwrap();
    let window = world.window::<u32>(world.size() * most).unwrap();
    exchange_in(world, &window, counts);
    window.close().unwrap();
}

fn exchange_in(world: &Communicator, window: &Window<'_, u32>, counts: &[usize]) {
    let (rank, size) = (world.rank(), world.size());
    let most = counts.iter().max().unwrap();
    for (round, count) in counts.iter().enumerate() {
        for step in 0..size {
            let target = (rank + step) % size;
            window.put(target, rank * most, &data(rank, round + 1, *count)).unwrap();
            // What is put later is there later.
            window.put_signal(target, rank * most, &data(rank, round, *count)).unwrap();
        }
        for from in 0..size {
            window.wait_signal(from, 1).unwrap();
            let mut found = vec![0; *count];
            window.read(from * most, &mut found).unwrap();
            assert!(found == data(from, round, *count), "{count} from {from} in round {round}");
        }
        let next = (rank + 1) % size;
        let mut found = vec![0; *count];
        window.get(next, rank * most, &mut found).unwrap();
        assert!(found == data(rank, round, *count), "{count} read back from {next} in round {round}");
        // Nobody may put again before all have looked.
        for target in 0..size {
            window.signal(target).unwrap();
        }
        let all: Vec<_> = (0..size).map(|from| (from, 1)).collect();
        window.wait_signals(&all).unwrap();
    }
}

#[test]
fn what_was_put_is_there_when_its_signal_is_seen() {
    for conduit in CONDUITS {
        world(3, conduit, LONG, |world| exchange(&world, &[1, 3, 1000, 0, 40_000, 300_001]));
    }
}

/// Exchanges through memory that ranks had before, and gets it back.
fn exchange_registered(world: &Communicator, path: WindowPath) {
    let counts = [1, 3, 1001, 0, 70_001];
    let (rank, size) = (world.rank(), world.size());
    let memory = vec![0; size * counts[4]];
    let start = memory.as_ptr();
    let window = world.register(memory).unwrap();
    for target in 0..size {
        let expected = if target == rank { WindowPath::SharedMemory } else { path };
        assert_eq!(window.path(target).unwrap(), expected);
    }
    exchange_in(world, &window, &counts);
    let memory = window.into_vec().unwrap();
    assert_eq!(memory.as_ptr(), start, "nothing was copied");
    for from in 0..size {
        assert!(memory[from * counts[4]..][..counts[4]] == data(from, 4, counts[4]), "from {from}");
    }
}

#[test]
fn memory_that_ranks_already_have_can_be_a_window() {
    let paths = [WindowPath::ProcessMemory, WindowPath::Service, WindowPath::Rdma];
    for (conduit, path) in CONDUITS.into_iter().zip(paths) {
        world(3, conduit, LONG, |world| exchange_registered(&world, path));
    }
    // As where the kernel does not let one process write to another.
    let forbids = |name: &str| (name == "NCCL_P2P_DISABLE").then(|| "1".to_owned());
    let options = Options { limit: LONG, ..Options::from_variables(&forbids).unwrap() };
    world_with(3, &options, |world| exchange_registered(&world, WindowPath::Service));
}

#[test]
fn some_ranks_may_register_memory_and_others_not() {
    for conduit in CONDUITS {
        world(3, conduit, LONG, |world| {
            let rank = world.rank();
            let window = match rank {
                0 => world.register(vec![7_u8; 13]).unwrap(),
                1 => world.register(Vec::new()).unwrap(),
                _ => world.window(13).unwrap(),
            };
            for target in [0, 2] {
                window.put_signal(target, 4 * rank, &[rank as u8 + 1; 5]).unwrap();
            }
            window.signal(1).unwrap();
            window.wait_signals(&[(0, 1), (1, 1), (2, 1)]).unwrap();
            world.barrier().unwrap();
            assert_eq!(window.len_at(1).unwrap(), 0);
            assert!(window.put(1, 0, &[1]).is_err(), "it has no memory there");
            let mut last = [0; 4];
            window.get(0, 9, &mut last).unwrap();
            assert_eq!(last, [3; 4]);
            assert_eq!(window.into_vec().unwrap().len(), [13, 0, 13][rank]);
        });
    }
}

#[test]
fn a_wait_for_several_ranks_names_those_that_are_missing_and_uses_nothing_up() {
    for conduit in CONDUITS {
        world(3, conduit, LONG, |world| {
            let window = world.window::<u8>(1).unwrap();
            if world.rank() > 0 {
                (0..world.rank()).for_each(|_| window.signal(0).unwrap());
                window.flush().unwrap();
            }
            world.barrier().unwrap();
            if world.rank() == 0 {
                let late = window.wait_signals_for(&[(1, 2), (2, 1), (2, 2)], SHORT).unwrap_err();
                let expected = "wait for signals in window #0: rank 1 has sent 1 of 2, rank 2 has sent 2 of 3 in 200.0ms";
                assert!(late.to_string().starts_with(expected), "{late}");
                assert_eq!((window.signals(1).unwrap(), window.signals(2).unwrap()), (1, 2));
                // One that has signalled is not at fault.
                let late = window.wait_signals_for(&[(1, 1), (2, 3)], SHORT).unwrap_err();
                assert_eq!(late.culprits()[0], 2, "{late}");
                window.wait_signals(&[(1, 1), (2, 2)]).unwrap();
                assert_eq!((window.signals(1).unwrap(), window.signals(2).unwrap()), (0, 0));
                window.wait_signals(&[]).unwrap();
                assert!(window.wait_signals(&[(1, 0)]).is_err() && window.wait_signals(&[(3, 1)]).is_err());
            }
            window.close().unwrap();
        });
    }
}

#[test]
fn puts_arrive_where_packets_are_lost_and_damaged() {
    let faults = "drop=0.02,reorder=0.02,corrupt=0.02,seed=7".parse().unwrap();
    let roce = RoceOptions { faults, ..RoceOptions::default() };
    let options = Options { limit: LONG, conduit: Some(Conduit::Roce), roce, ..Options::default() };
    world_with(3, &options, |world| exchange(&world, &[1, 5000, 300_000]));
}

#[test]
fn a_target_need_not_take_part() {
    for conduit in CONDUITS {
        let (told, hears) = mpsc::channel();
        let (told, hears) = (Mutex::new(told), Arc::new(Mutex::new(hears)));
        world(2, conduit, LONG, |world| {
            let window = world.window::<u64>(100_000).unwrap();
            if world.rank() == 0 {
                window.put(1, 5, &vec![7; 90_000]).unwrap();
                window.flush().unwrap();
                told.lock().unwrap().send(()).unwrap();
            } else {
                // Rank 1 makes no call until all is over.
                hears.lock().unwrap().recv_timeout(LONG).unwrap();
                let mut found = vec![0; 90_002];
                window.read(4, &mut found).unwrap();
                assert!(found[0] == 0 && found[1..=90_000].iter().all(|one| *one == 7) && found[90_001] == 0);
            }
            window.close().unwrap();
        });
    }
}

#[test]
fn parts_may_differ_in_length_and_mistakes_are_named() {
    for conduit in CONDUITS {
        world(3, conduit, LONG, |world| {
            let window = world.window::<u16>(10 * world.rank()).unwrap();
            assert_eq!((window.len(), window.len_at(2).unwrap()), (10 * world.rank(), 20));
            window.put_signal(2, 19, &[world.rank() as u16]).unwrap();
            let text = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();
            let outside = text(window.put(1, 9, &[1, 2]));
            assert_eq!(outside, "4 B at 18 end outside of window 0 on rank 1, which has 20 B");
            assert!(text(window.get(1, usize::MAX, &mut [0])).contains("outside of window 0 on rank 1"));
            assert!(text(window.put(3, 0, &[])).contains("rank 3"));
            assert!(text(window.wait_signal(1, 0)).contains("a wait for 0 signals from rank 1"));
            window.flush().unwrap();
            world.barrier().unwrap();
            if world.rank() == 2 {
                world.set_timeout(SHORT);
                for from in 0..3 {
                    let late = window.wait_signal(from, 2).unwrap_err();
                    let expected = format!(
                        "wait for signals in window #0: rank {from} has sent 1 of 2 in 200.0ms\n  rank {from} is process"
                    );
                    assert!(late.to_string().starts_with(&expected), "{late}");
                    assert_eq!(late.culprits()[0], from);
                    // Nothing was used up.
                    assert_eq!(window.signals(from).unwrap(), 1);
                    window.wait_signal(from, 1).unwrap();
                }
            }
            world.set_timeout(LONG);
            if world.rank() == 2 {
                window.signal(0).unwrap();
                window.signal(1).unwrap();
            } else {
                window.wait_signal(2, 1).unwrap();
            }
            window.close().unwrap();
        });
    }
}

#[test]
fn a_window_of_two_types_is_refused_everywhere() {
    world(2, Conduit::SharedMemory, LONG, |world| {
        let outcome = match world.rank() {
            0 => world.window::<f32>(5).map(|_| ()),
            _ => world.window::<u8>(20).map(|_| ()),
        };
        let expected = "making window #0: rank 0 cannot take part: window #0 has elements of type f32 here and u8 on rank 1";
        assert_eq!(outcome.unwrap_err().to_string(), expected);
        // The communicator goes on.
        world.window::<f32>(5).unwrap().close().unwrap();
    });
}

#[test]
fn a_window_that_another_rank_gave_up_is_named() {
    for conduit in [Conduit::SharedMemory, Conduit::Tcp] {
        world(2, conduit, LONG, |world| {
            let window = world.window::<u8>(100).unwrap();
            if world.rank() == 1 {
                drop(window);
                world.barrier().unwrap();
                world.barrier().unwrap();
                return;
            }
            world.barrier().unwrap();
            let error = window.put(1, 0, &[1]).and_then(|()| window.flush()).unwrap_err();
            assert!(error.to_string().contains("rank 1 has closed the window"), "{error}");
            world.barrier().unwrap();
        });
    }
}

#[test]
fn an_abort_ends_a_wait_for_signals() {
    let errors = world(2, Conduit::SharedMemory, LONG, |world| {
        let window = world.window::<u8>(1).unwrap();
        if world.rank() == 0 {
            world.abort();
        }
        window.wait_signal(1 - world.rank(), 1).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("rank 0 aborted the communicator")), "{errors:?}");
}

/// What a rank does: passes something on to the next one without an end.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let world = Communicator::from_env().unwrap();
    let (rank, size) = (world.rank(), world.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let window = match std::env::var_os("TEST_REGISTER") {
        Some(_) => world.register(vec![0_u64; 1 << 20]).unwrap(),
        None => world.window::<u64>(1 << 20).unwrap(),
    };
    println!("\nready");
    let mut random = Random::from_seed(7);
    let error = loop {
        let length = *random.pick(&[1, 100, 10_000, 1 << 20]);
        let put = window.put_signal(next, 0, &vec![1; length]);
        if let Err(error) = put.and_then(|()| window.flush()).and_then(|()| window.wait_signal(before, 1)) {
            break error;
        }
    };
    println!("{}", error.to_string().replace('\n', " | "));
}

#[test]
fn a_killed_rank_is_named_by_those_that_put_to_it_and_wait_for_it() {
    let mut random = Random::from_seed(11);
    for conduit in CONDUITS {
        for killed in [1, 0] {
            // Killed rank 0 of a window, killed rank 1 of one over memory that ranks already had.
            let register = [("TEST_REGISTER", "1")];
            let settings = [("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", "60s")];
            let settings = [&settings[..], &register[..killed]].concat();
            let mut ranks = Ranks::start(2, &settings);
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            ranks.signal(killed, Signal::KILL);
            let lost = format!("in window #0: rank {killed} is lost");
            ranks.expect(1 - killed, |line| line.contains(&lost) && line.contains("is process"));
        }
    }
}

#[test]
fn a_stopped_rank_is_named_with_its_state() {
    for conduit in CONDUITS {
        let settings = [("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", "2s")];
        let mut ranks = Ranks::start(2, &settings);
        ranks.signal(1, Signal::STOP);
        ranks.expect(0, |line| {
            line.contains("in window #0: rank 1 has ") && line.contains("it is stopped (state T)")
        });
    }
}
