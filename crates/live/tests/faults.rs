//! Ranks that die, stop, do something else or nothing: every other rank gets an error that says who and what.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]

mod ranks;
mod world;

use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use railnet_core::{Random, ReduceOp};
use railnet_live::communicator::{Options, RoceOptions};
use railnet_live::{Communicator, Conduit};
use ranks::Ranks;
use rustix::process::Signal;
use world::{LONG, world, world_with};

const CONDUITS: [Conduit; 3] = Conduit::ALL;
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn ranks_that_call_for_something_else_are_named_with_what_they_call_for() {
    for conduit in CONDUITS {
        let errors = world(3, conduit, LONG, |world| {
            // Who is not through with the barrier by then hears of it there.
            world
                .barrier()
                .and_then(|()| {
                    let mut data = vec![1.0_f32; if world.rank() == 2 { 1004 } else { 1000 }];
                    world.all_reduce_in_place(&mut data, ReduceOp::Sum)
                })
                .unwrap_err()
                .to_string()
        });
        for error in errors {
            assert!(error.contains("ranks disagree about collective #1 (count)"), "{error}");
            // The others may not all have come when it is seen.
            assert!(error.contains(": AllReduce #1 f32 × 1,000 sum"), "{error}");
            assert!(error.contains("rank 2: AllReduce #1 f32 × 1,004 sum"), "{error}");
        }
    }
}

#[test]
fn what_comes_where_nothing_is_awaited_tells_that_ranks_disagree() {
    for conduit in [Conduit::SharedMemory, Conduit::Tcp] {
        let all_know = Barrier::new(3);
        world(3, conduit, LONG, |world| {
            // A connection from each to each.
            world.all_gather(&[1_u8], &mut [0; 3]).unwrap();
            let began = Instant::now();
            // Rank 0 sends, and the others wait for each other.
            let root = [0, 2, 1][world.rank()];
            let outcome = world.broadcast(&mut [1_u8; 8], root);
            let took = began.elapsed();
            // No rank leaves before all know: one that has left answers nothing.
            all_know.wait();
            if world.rank() > 0 {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains("ranks disagree about collective #1 (root)"), "{error}");
                assert!(took < LONG / 4, "after {took:?}");
            }
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_with_what_it_did_last() {
    // Long enough for the other two to come and to answer each other on a busy machine.
    let limit = Duration::from_secs(2);
    for conduit in CONDUITS {
        let is_named = std::sync::Barrier::new(3);
        let errors = world(3, conduit, LONG, |world| {
            world.barrier().unwrap();
            world.set_timeout(limit);
            if world.rank() == 1 {
                is_named.wait();
                return world.barrier().unwrap_err().to_string();
            }
            let error = world.all_reduce_in_place(&mut [1_u8; 3], ReduceOp::Sum).unwrap_err();
            is_named.wait();
            error.to_string()
        });
        for error in [&errors[0], &errors[2]] {
            assert!(error.contains("rank 1 has not entered AllReduce #1"), "{error}");
            assert!(error.contains("finished Barrier #0"), "{error}");
            assert!(error.contains("rank 1 is process"), "{error}");
        }
        assert!(errors[1].contains("AllReduce #1"), "{}", errors[1]);
    }
}

#[test]
fn a_sender_that_does_not_come_is_named_by_its_number_in_the_communicator() {
    let is_over = std::sync::Barrier::new(3);
    world(3, Conduit::SharedMemory, LONG, |world| {
        if world.rank() == 1 {
            world.set_timeout(SHORT);
            let error = world.receive(&mut [0_u32], 2).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.culprits(), [2], "{text}");
            assert!(text.contains("rank 2 has not entered") && text.contains("rank 1 waits"), "{text}");
        }
        is_over.wait();
    });
}

#[test]
fn an_abort_ends_the_calls_of_all() {
    let errors = world(3, Conduit::SharedMemory, LONG, |world| {
        if world.rank() == 0 {
            world.abort();
        }
        world.barrier().unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("rank 0 aborted the communicator")), "{errors:?}");
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    let errors = world(2, Conduit::Tcp, LONG, |world| {
        world.barrier().unwrap();
        (world.rank() == 0).then(|| world.barrier().unwrap_err().to_string())
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("rank 1") && error.contains("Barrier #1"), "{error}");
}

#[test]
fn a_rank_that_left_before_anybody_reached_it_is_named_by_all() {
    for conduit in [Conduit::Tcp, Conduit::Roce] {
        let has_left = std::sync::Barrier::new(3);
        world(3, conduit, LONG, |world| {
            if world.rank() == 2 {
                drop(world);
                has_left.wait();
                return;
            }
            has_left.wait();
            let error = world.barrier().unwrap_err();
            assert!(error.to_string().contains("Barrier #0"), "{error}");
            assert_eq!(error.culprits(), [2]);
        });
    }
}

#[test]
fn a_rank_that_takes_nothing_of_what_was_sent_is_named() {
    let (told, hears) = std::sync::mpsc::channel();
    let (told, hears) = (std::sync::Mutex::new(told), std::sync::Mutex::new(hears));
    world(2, Conduit::Tcp, SHORT, |world| {
        if world.rank() == 1 {
            hears.lock().unwrap().recv_timeout(LONG).unwrap();
            return;
        }
        // The system takes some megabytes for it, and slots some more: then there is an end.
        let error = (0..10_000).find_map(|_| world.send(&vec![1_u8; 64 << 10], 1).err()).unwrap();
        told.lock().unwrap().send(()).unwrap();
        assert!(error.to_string().contains("has not taken what was sent to it for 0.3 s"), "{error}");
        assert!(error.to_string().contains("rank 1 is process"), "{error}");
    });
}

#[test]
fn connections_of_unauthenticated_peers_change_nothing_and_are_counted() {
    world(2, Conduit::Tcp, LONG, |world| {
        world.barrier().unwrap();
        // Every port of this process that listens gets garbage.
        if world.rank() == 0 {
            for port in listening() {
                for garbage in
                    [&b"GET / HTTP/1.1\r\n\r\n and a good deal more than a greeting"[..], &[0; 40], b"x"]
                {
                    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                        // A port that does not want it may say so at once.
                        let _ = stream.write_all(garbage);
                    }
                }
            }
        }
        for count in 1..50 {
            let mut data = vec![1_u32; count];
            world.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|one| *one == 2));
        }
        // Another connection makes them look at who called.
        let parts = world.split(Some(0), 0).unwrap().unwrap();
        parts.barrier().unwrap();
        if world.rank() == 0 {
            assert!(world.unauthenticated_refused() >= 2, "{}", world.unauthenticated_refused());
        }
        world.barrier().unwrap();
    });
}

#[test]
fn packets_of_unauthenticated_peers_change_nothing_and_are_counted() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let roce = RoceOptions { port: Some(port), ..RoceOptions::default() };
    let options = Options { limit: LONG, conduit: Some(Conduit::Roce), roce, ..Options::default() };
    world_with(2, &options, |world| {
        world.barrier().unwrap();
        if world.rank() == 0 {
            let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut random = Random::from_seed(5);
            for length in [0, 1, 12, 16, 40, 64, 1000, 4000] {
                let mut garbage: Vec<u8> = (0..length).map(|_| random.next_u32() as u8).collect();
                forger.send_to(&garbage, ("127.0.0.1", port)).unwrap();
                // A header that could be one of RoCEv2: WRITE, only, to some queue pair.
                if length >= 12 {
                    garbage[..4].copy_from_slice(&[0x0a, 0x40, 0xff, 0xff]);
                    forger.send_to(&garbage, ("127.0.0.1", port)).unwrap();
                }
            }
        }
        for count in 1..50 {
            let mut data = vec![1_u32; count];
            world.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|one| *one == 2));
        }
        if world.rank() == 0 {
            assert!(world.unauthenticated_refused() >= 14, "{}", world.unauthenticated_refused());
        }
    });
}

/// The ports at which this process listens.
fn listening() -> Vec<u16> {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let own: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| Some(std::fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let ports = rows.filter_map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let is_ours = words[3] == "0A" && own.contains(&format!("socket:[{}]", words[9]));
        let port = u16::from_str_radix(words[1].rsplit(':').next()?, 16).ok()?;
        is_ours.then_some(port)
    });
    ports.collect()
}

#[test]
fn communicators_of_one_world_are_built_anew_one_after_the_other() {
    world(3, Conduit::Tcp, LONG, |world| {
        let pairs = [1, 2].map(|other| {
            let color = [0, other].contains(&world.rank()).then_some(0);
            world.split(color, 0).unwrap()
        });
        // Rank 2 calls while rank 0 waits for rank 1 at the same door.
        if world.rank() == 1 {
            std::thread::sleep(SHORT);
        }
        for pair in pairs.into_iter().flatten() {
            // The door is not used up.
            for _ in 0..2 {
                let mut data = [1_u64];
                pair.rebuild_without(&[]).unwrap().all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, [2]);
            }
        }
    });
}

/// What a rank does: random collectives without an end, and what is left of the world once more after a failure.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let world = Communicator::from_env().unwrap();
    println!("\nready");
    let mut random = Random::from_seed(7);
    let error = loop {
        let count = *random.pick(&[1, 10, 1000, 30_000, 1_000_000]);
        if let Err(error) = collective(&world, random.below(5), count) {
            break error;
        }
    };
    println!("{}", error.to_string().replace('\n', " | "));
    let lost: Vec<usize> = error.culprits();
    let rest = world.rebuild_without(&lost).unwrap();
    let mut data = [1_u64];
    rest.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
    println!("{} are left", data[0]);
}

fn collective(
    world: &Communicator,
    kind: u64,
    count: usize,
) -> Result<(), railnet_live::communicator::Error> {
    let size = world.size();
    let mut data = vec![1.0_f32; count * size];
    match kind {
        0 => world.all_reduce_in_place(&mut data, ReduceOp::Max),
        1 => world.all_gather(&vec![1.0; count], &mut data),
        2 => world.reduce_scatter(&vec![1.0; count * size], &mut data[..count], ReduceOp::Min),
        3 => world.broadcast(&mut data, 1),
        _ => world.all_to_all(&vec![1.0; count * size], &mut data),
    }
}

/// The sockets of a process, as `/proc/net/unix` and `/proc/net/tcp` number them.
fn sockets_of(pid: i32) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(inode).collect()
}

#[test]
fn a_killed_rank_is_named_at_any_moment_and_the_others_go_on_without_it() {
    let mut random = Random::from_seed(11);
    for conduit in CONDUITS {
        for killed in [2, 1, 0] {
            let mut ranks =
                Ranks::start(3, &[("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", "30s")]);
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            let began = Instant::now();
            ranks.signal(killed, Signal::KILL);
            for rank in (0..3).filter(|rank| *rank != killed) {
                let lost = format!("rank {killed} is lost");
                ranks.expect(rank, |line| line.contains(&lost) && line.contains('#'));
                ranks.expect(rank, |line| line == "2 are left");
            }
            assert!(began.elapsed() < LONG);
        }
    }
}

#[test]
fn a_stopped_rank_is_named_with_its_state() {
    for conduit in CONDUITS {
        // Long enough for the others to come that share two cores with tests beside them: a late one would be named, too.
        let mut ranks = Ranks::start(3, &[("RAILNET_CONDUIT", conduit.name()), ("RAILNET_TIMEOUT", "6s")]);
        ranks.signal(2, Signal::STOP);
        for rank in [0, 1] {
            ranks.expect(rank, |line| {
                line.contains("rank 2 does not answer in") && line.contains("it is stopped (state T)")
            });
            ranks.expect(rank, |line| line == "2 are left");
        }
    }
}

#[test]
fn nothing_is_left_after_all_ranks_are_killed() {
    let ranks = Ranks::start(3, &[("RAILNET_CONDUIT", "shm"), ("RAILNET_TIMEOUT", "30s")]);
    let sockets: Vec<String> =
        (0..3).flat_map(|rank| sockets_of(ranks.pid(rank).as_raw_nonzero().get())).collect();
    assert!(sockets.len() >= 3, "each listens for the others: {sockets:?}");
    for rank in 0..3 {
        ranks.signal(rank, Signal::KILL);
    }
    drop(ranks);
    // Segments are memfds, which have no name; sockets of a dead process may be closed a moment later.
    let began = Instant::now();
    loop {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let is_left = |line: &str| {
            line.split_whitespace().nth(6).is_some_and(|inode| sockets.iter().any(|one| one == inode))
        };
        let left: Vec<&str> = table.lines().filter(|line| is_left(line)).collect();
        if left.is_empty() {
            break;
        }
        assert!(began.elapsed() < LONG, "{left:#?}");
    }
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains("railnet")).collect();
    assert!(left.is_empty(), "shared memory has no names: {left:?}");
}
