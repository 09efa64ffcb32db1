//! Communicators between ranks in threads: every collective over every conduit, groups, splits, calls that are started.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::float_cmp, reason = "sums of small whole numbers are exact")]

mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use railnet_coll::{Call, Collective, Counts};
use railnet_core::{DataType, ReduceOp, Scalar};
use railnet_live::communicator::{Error, Options, RoceOptions};
use railnet_live::{Communicator, Conduit};
use world::{LONG, world, world_with};

const CONDUITS: [Conduit; 3] = Conduit::ALL;

/// What a rank has: different for each, and exact in sums.
fn data(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| (rank * 1000 + index % 997) as f32).collect()
}

fn sum(ranks: usize, count: usize) -> Vec<f32> {
    let all: Vec<_> = (0..ranks).map(|rank| data(rank, count)).collect();
    (0..count).map(|index| all.iter().map(|data| data[index]).sum()).collect()
}

fn every_collective(world: &Communicator, count: usize) {
    let (rank, size) = (world.rank(), world.size());
    let own = data(rank, count);
    let total = sum(size, count);
    let mut output = vec![0.0; count];
    world.all_reduce(&own, &mut output, ReduceOp::Sum).unwrap();
    assert!(output == total, "all_reduce of {count}");
    let mut in_place = own.clone();
    world.all_reduce_in_place(&mut in_place, ReduceOp::Max).unwrap();
    assert!(in_place == data(size - 1, count), "all_reduce_in_place of {count}");

    let mut everything = vec![0.0; size * count];
    world.all_gather(&own, &mut everything).unwrap();
    let expected: Vec<f32> = (0..size).flat_map(|rank| data(rank, count)).collect();
    assert!(everything == expected, "all_gather of {count}");

    let mut block = vec![0.0; count];
    world.reduce_scatter(&expected, &mut block, ReduceOp::Average).unwrap();
    assert!(block == data(rank, count), "reduce_scatter of {count}");

    for root in 0..size {
        let mut all = if rank == root { data(root, count) } else { vec![-1.0; count] };
        world.broadcast(&mut all, root).unwrap();
        assert!(all == data(root, count), "broadcast of {count} from {root}");
        let mut result = vec![0.0; count];
        world.reduce(&own, &mut result, ReduceOp::Sum, root).unwrap();
        assert!(rank != root || result == total, "reduce of {count} to {root}");
        let mut gathered = vec![0.0; if rank == root { size * count } else { 0 }];
        world.gather(&own, &mut gathered, root).unwrap();
        assert!(rank != root || gathered == expected, "gather of {count} to {root}");
        let input = if rank == root { expected.clone() } else { Vec::new() };
        let mut part = vec![0.0; count];
        world.scatter(&input, &mut part, root).unwrap();
        assert!(part == own, "scatter of {count} from {root}");
    }

    let sent: Vec<f32> = (0..size).flat_map(|to| data(rank * size + to, count)).collect();
    let mut got = vec![0.0; size * count];
    world.all_to_all(&sent, &mut got).unwrap();
    let expected: Vec<f32> = (0..size).flat_map(|from| data(from * size + rank, count)).collect();
    assert!(got == expected, "all_to_all of {count}");
    world.barrier().unwrap();
}

#[test]
fn every_collective_gives_what_it_should() {
    for conduit in CONDUITS {
        for ranks in [1, 2, 3, 4] {
            world(ranks, conduit, LONG, |world| {
                for count in [0, 1, 2, 7, 12, 13, 1000, 8192, 8193, 100_000] {
                    every_collective(&world, count);
                }
            });
        }
    }
}

/// 5 % lost, 5 % overtaken, 5 % damaged, and some twice.
#[test]
fn a_bad_wire_changes_no_result() {
    let faults = "drop=0.05,reorder=0.05,corrupt=0.05,duplicate=0.02,seed=7".parse().unwrap();
    let roce = RoceOptions { faults, ..RoceOptions::default() };
    let options = Options { limit: LONG, conduit: Some(Conduit::Roce), roce, ..Options::default() };
    for ranks in [2, 4] {
        let damaged = world_with(ranks, &options, |world| {
            for count in [0, 1, 13, 1000, 8193, 50_000] {
                every_collective(&world, count);
            }
            world.unauthenticated_refused()
        });
        assert!(damaged.iter().sum::<u64>() > 0, "nothing was damaged");
    }
}

/// What a rank has sent arrives while it makes no call: a NIC is kept going behind its back.
#[test]
fn data_arrives_while_the_sender_does_something_else() {
    for conduit in CONDUITS {
        let (told, arrived) = std::sync::mpsc::channel();
        let arrived = std::sync::Mutex::new(arrived);
        world(2, conduit, LONG, |world| {
            world.barrier().unwrap();
            if world.rank() == 0 {
                world.send(&data(0, 10_000), 1).unwrap();
                arrived.lock().unwrap().recv_timeout(LONG).unwrap();
            } else {
                let mut got = vec![0.0; 10_000];
                world.receive(&mut got, 0).unwrap();
                assert!(got == data(0, 10_000));
                told.send(()).unwrap();
            }
        });
    }
}

/// Small calls that follow each other go several at a time, and the last of them as well as the first: who passes them on makes
/// no call after them either.
#[test]
fn the_end_of_a_stream_arrives_while_its_senders_do_something_else() {
    for conduit in CONDUITS {
        let all_have_it = std::sync::Barrier::new(3);
        world(3, conduit, LONG, |world| {
            for round in 0..20 {
                for number in 0..100 + round {
                    let mut value = if world.rank() == 0 { [number] } else { [0] };
                    world.broadcast(&mut value, 0).unwrap();
                    assert_eq!(value, [number]);
                }
                all_have_it.wait();
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_has_delivered_what_it_sent() {
    let faults = "drop=0.2,seed=3".parse().unwrap();
    for conduit in CONDUITS {
        let roce = RoceOptions { faults, ..RoceOptions::default() };
        let options = Options { limit: LONG, conduit: Some(conduit), roce, ..Options::default() };
        world_with(2, &options, |world| {
            world.barrier().unwrap();
            if world.rank() == 1 {
                return world.send(&data(1, 10_000), 0).unwrap();
            }
            // Until it has left, or for a while: some transports send when it is received.
            let began = Instant::now();
            while world.survivors().contains(&1) && began.elapsed() < Duration::from_millis(50) {
                std::thread::yield_now();
            }
            let mut got = vec![0.0; 10_000];
            world.receive(&mut got, 1).unwrap();
            assert!(got == data(1, 10_000));
        });
    }
}

#[test]
fn what_goes_over_the_wire_can_be_captured() {
    let folder = std::env::temp_dir().join(format!("railnet-capture-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let capture = Some(folder.join("run.pcapng"));
    let roce = RoceOptions { capture, ..RoceOptions::default() };
    let options = Options { limit: LONG, conduit: Some(Conduit::Roce), roce, ..Options::default() };
    world_with(2, &options, |world| world.barrier().unwrap());
    for rank in 0..2 {
        let file = std::fs::File::open(folder.join(format!("run.pcapng.rank{rank}"))).unwrap();
        let mut packets = railnet_wire::capture::Reader::new(file).unwrap();
        assert!(packets.next_packet().unwrap().unwrap().frame().is_ok());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn blocks_may_differ_in_length() {
    for conduit in CONDUITS {
        world(3, conduit, LONG, |world| {
            let (rank, counts) = (world.rank(), [5, 0, 20_000]);
            let own = vec![rank as u64; counts[rank]];
            let mut all = vec![9; 20_005];
            world.all_gather_v(&own, &mut all, &counts).unwrap();
            assert!(all[..5].iter().all(|one| *one == 0) && all[5..].iter().all(|one| *one == 2));
            // Rank r has 10 r + t elements for rank t.
            let counts: Vec<usize> = (0..3).map(|to| 10 * rank + to).collect();
            let sent: Vec<u16> = (0..3).flat_map(|to| vec![(rank * 3 + to) as u16; 10 * rank + to]).collect();
            let got = world.all_to_all_v(&sent, &counts).unwrap();
            for (from, part) in got.into_iter().enumerate() {
                assert_eq!(part, vec![(from * 3 + rank) as u16; 10 * from + rank]);
            }
        });
    }
}

#[test]
fn scalars_and_averages_are_applied_once() {
    world(2, Conduit::SharedMemory, LONG, |world| {
        let rank = world.rank();
        let op = ReduceOp::PreMulSum(Scalar::from_f32(DataType::F32, (rank + 2) as f32));
        let mut data = vec![1.0_f32; 70_000];
        world.all_reduce_in_place(&mut data, op).unwrap();
        assert!(data.iter().all(|one| *one == 5.0));
        let wrong = ReduceOp::PreMulSum(Scalar::from_f32(DataType::F64, 1.0));
        let error = world.all_reduce_in_place(&mut data, wrong).unwrap_err();
        assert!(error.to_string().contains("they must be equal"), "{error}");
    });
}

#[test]
fn pairs_exchange_in_any_order() {
    for conduit in CONDUITS {
        world(3, conduit, LONG, |world| {
            let (rank, size) = (world.rank(), world.size());
            let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
            for count in [1, 100_000] {
                let (gives, mut gets) = (vec![rank as i32; count], vec![-1; count]);
                let mut group = world.group();
                group.send(&gives, next).unwrap().receive(&mut gets, before).unwrap();
                group.run().unwrap();
                assert!(gets.iter().all(|one| *one == before as i32));
            }
            // One after the other.
            let mut word = [0_u64];
            if rank == 0 {
                world.send(&[7_u64], 2).unwrap();
            } else if rank == 2 {
                world.receive(&mut word, 0).unwrap();
                assert_eq!(word, [7]);
            }
            // To itself.
            let (gives, mut gets) = ([rank], [0_usize; 1].map(|one| one as u64));
            let gives = gives.map(|one| one as u64 + 5);
            let mut group = world.group();
            group.receive(&mut gets, rank).unwrap().send(&gives, rank).unwrap();
            group.run().unwrap();
            assert_eq!(gets, gives);
        });
    }
}

#[test]
fn parts_of_a_communicator_work_by_themselves() {
    for conduit in CONDUITS {
        world(4, conduit, LONG, |world| {
            let rank = world.rank();
            // Odd and even ranks, in reverse order; rank 3 stays out.
            let color = (rank < 3).then_some(rank as u32 % 2);
            let part = world.split(color, -(rank as i64)).unwrap();
            assert_eq!(part.is_some(), rank < 3);
            if let Some(part) = part {
                let mut data = [rank as u64];
                part.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                let expected = if rank == 1 { (1, 1, 0) } else { (2, 2, 1 - rank / 2) };
                assert_eq!((part.size(), data[0], part.rank()), expected);
            }
            world.barrier().unwrap();
        });
    }
}

#[test]
fn calls_that_are_started_end_while_the_program_does_something_else() {
    for conduit in CONDUITS {
        world(2, conduit, LONG, |world| {
            let started: Vec<_> = (1..5)
                .map(|scale| {
                    let data = vec![scale as f32; 1000 * scale];
                    world.start_all_reduce(data, ReduceOp::Sum).unwrap()
                })
                .collect();
            while !started.last().unwrap().is_done().unwrap() {
                std::thread::yield_now();
            }
            for (scale, pending) in (1..).zip(started) {
                let data = pending.wait().unwrap();
                assert!(data.len() == 1000 * scale && data.iter().all(|one| *one == 2.0 * scale as f32));
            }
            let rank = world.rank();
            let mut blocks = vec![0_u32; 4];
            blocks[2 * rank..][..2].fill(rank as u32 + 1);
            assert_eq!(world.start_all_gather(blocks).unwrap().wait().unwrap(), [1, 1, 2, 2]);
            let reduced =
                world.start_reduce_scatter(vec![1_u32, 2, 3, 4], ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(reduced[2 * rank..][..2], [2 + 4 * rank as u32, 4 + 4 * rank as u32]);
            let data = vec![if rank == 1 { 9_u8 } else { 0 }; 3];
            assert_eq!(world.start_broadcast(data, 1).unwrap().wait().unwrap(), [9; 3]);
        });
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_and_nothing_breaks() {
    world(2, Conduit::SharedMemory, LONG, |world| {
        let error = world.all_gather(&[1_u8; 3], &mut [0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "the output has 5 elements: 6 (a block from each rank) are needed");
        let error = world.broadcast(&mut [0_u8], 2).unwrap_err();
        assert_eq!(error.to_string(), "rank 2 does not exist: there are 2, from 0 to 1");
        assert!(world.all_to_all(&[0_u8; 3], &mut [0; 3]).is_err());
        world.barrier().unwrap();
    });
}

#[test]
fn calls_of_bytes_whose_buffers_do_not_fit_are_refused_and_nothing_breaks() {
    world(2, Conduit::SharedMemory, LONG, |world| {
        let all_gather = |count| Call { dtype: DataType::F32, ..Call::new(Collective::AllGather, count) };
        for count in [0, 2, 1 << 30, u64::from(u32::MAX)] {
            assert!(world.call(&all_gather(count), &[0; 4], &mut [0; 8]).is_err());
        }
        let of_each = |counts: &[u64]| Call { counts: Counts::PerRank(counts.into()), ..all_gather(1) };
        for (call, reason) in [
            (of_each(&[1, 1, 1]), "2 ranks need 2 of them, and there are 3"),
            (of_each(&[]), "2 ranks need 2 of them, and there are 0"),
            (of_each(&[u64::MAX, 2]), "more bytes than can be addressed"),
            (all_gather(1 << 61), "more bytes than can be addressed"),
            (all_gather(u64::MAX), "more bytes than can be addressed"),
            (Call { counts: Counts::PerPair([1; 4].into()), ..all_gather(1) }, "it takes one count for all"),
        ] {
            let error = world.call(&call, &[0; 4], &mut [0; 8]).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            let error = world.how(&call).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let fits = all_gather(1);
        let (own, mut all) = ([world.rank() as u8; 4], [9; 8]);
        let error = world.call(&fits, &own, &mut all[..7]).unwrap_err();
        let text = "the output, in bytes, has 7 elements: 8 (as the call says) are needed";
        assert_eq!(error.to_string(), text);
        world.call(&fits, &own, &mut all).unwrap();
        assert_eq!(all, [0, 0, 0, 0, 1, 1, 1, 1]);
    });
}

/// Long blocks of one host are sent zero-copy: no call is over before its blocks were read.
#[test]
fn blocks_that_are_read_where_they_lie_are_those_of_the_call() {
    for disabled in ["0", "1"] {
        let options = Options::from_variables(&|name| match name {
            "NCCL_P2P_DISABLE" => Some(disabled.to_owned()),
            "RAILNET_CONDUIT" => Some("shm".to_owned()),
            _ => None,
        });
        let options = Options { limit: LONG, ..options.unwrap() };
        world_with(3, &options, |world| {
            let (rank, size) = (world.rank(), world.size());
            for (round, count) in [33_000, 70_001, 400_000, 5, 1_200_000].into_iter().enumerate() {
                let value = |from: usize, to: usize| (from * 100 + to * 10 + round) as f32;
                let mut gives = vec![value(rank, 0); count];
                let mut gets = vec![-1.0; size * count];
                world.all_gather(&gives, &mut gets).unwrap();
                // It may be changed as soon as the call is over.
                gives.fill(-2.0);
                let right = |(index, got): (usize, &f32)| *got == value(index / count, 0);
                assert!(gets.iter().enumerate().all(right), "all_gather of {count}");
                let mut gives: Vec<f32> = (0..size).flat_map(|to| vec![value(rank, to); count]).collect();
                world.all_to_all(&gives, &mut gets).unwrap();
                gives.fill(-3.0);
                let right = |(index, got): (usize, &f32)| *got == value(index / count, rank);
                assert!(gets.iter().enumerate().all(right), "all_to_all of {count}");
            }
        });
    }
}

#[test]
fn a_receive_from_any_rank_gets_what_ranks_sent_that_have_left() {
    for conduit in CONDUITS {
        let leaving = AtomicUsize::new(0);
        world(3, conduit, LONG, |world| {
            if world.rank() > 0 {
                for number in 0..2 {
                    world.send(&[world.rank() as u64, number], 0).unwrap();
                }
                leaving.fetch_add(1, Ordering::SeqCst);
                return;
            }
            while leaving.load(Ordering::SeqCst) < 2 && conduit != Conduit::Roce {
                std::thread::yield_now();
            }
            let mut seen = Vec::new();
            for _ in 0..4 {
                let from = world.await_sender(0, Some(LONG), &mut || true).unwrap();
                let mut data = [0_u64; 2];
                world.receive(&mut data, from).unwrap();
                assert_eq!(data[0], from as u64);
                seen.push(data);
            }
            seen.sort_unstable();
            assert_eq!(seen, [[1, 0], [1, 1], [2, 0], [2, 1]], "{conduit}");
            let error = world.await_sender(0, Some(LONG), &mut || true).unwrap_err();
            assert!(matches!(error, Error::AllLeft { rank: 0, .. }), "{conduit}: {error}");
        });
    }
}
