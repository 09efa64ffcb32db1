//! Machines of whole communicators, in memory and in an order drawn by lot, against a plain reference.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use railnet_coll::machine::{Notice, OperationId, Output, RankMachine, Standing};
use railnet_coll::testing::{Data, Lab};
use railnet_coll::{Algorithm, Call, Choice, Collective, Counts, Protocol, Schedule, Wiring, build};
use railnet_core::{Bytes, DataType, Rank, ReduceOp, Scalar, Time};

const ALGORITHMS: [Algorithm; 10] = [
    Algorithm::Hypercube,
    Algorithm::Tree,
    Algorithm::Ring,
    Algorithm::CollNetDirect,
    Algorithm::CollNetChain,
    Algorithm::Nvls,
    Algorithm::NvlsTree,
    Algorithm::Pat,
    Algorithm::Direct,
    Algorithm::PointToPoint,
];

/// Small slots, so that little data makes many slices, with NCCL's division into chunks.
fn choice(algorithm: Algorithm, protocol: Protocol, channels: u32) -> Choice {
    let buffer = match protocol {
        Protocol::Simple => 8 * 512,
        Protocol::Ll => 8 * 256,
        Protocol::Ll128 => 8 * 2048,
    };
    Choice { buffer: Some(Bytes(buffer)), ..Choice::new(algorithm, protocol).on(channels) }
}

fn shapes() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![(Just(1u32), 1u32..10), (2u32..5, 1u32..5), (Just(8), Just(1)),]
}

fn run(schedules: &[Schedule], data: Data, seed: u64) -> Result<(), String> {
    run_in(Lab::new(schedules[0].ranks, data, seed), schedules)
}

fn run_in(mut lab: Lab, schedules: &[Schedule]) -> Result<(), String> {
    for schedule in schedules {
        lab.submit(schedule);
    }
    lab.run().map_err(|error| error.to_string())
}

#[test]
fn a_ring_sums_on_real_bytes() {
    let call = Call::new(Collective::AllReduce, 10_000);
    let schedule = build(&call, &choice(Algorithm::Ring, Protocol::Simple, 1), &Wiring::flat(5)).unwrap();
    let mut lab = Lab::new(5, Data::Bytes, 1);
    lab.submit(&schedule);
    lab.submit(&schedule);
    lab.run().unwrap();
    assert!(lab.work_done > 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every collective by every algorithm and protocol that does it, several after each other, on bytes and on ghosts, and with
    /// slices that are sent from buffers.
    #[test]
    fn every_schedule_gives_the_right_result(
        collective in prop::sample::select(Collective::ALL.to_vec()),
        protocol in prop::sample::select(Protocol::ALL.to_vec()),
        (nodes, per_node) in shapes(),
        count in prop_oneof![0u64..4, 0u64..3000, 3000u64..20_000],
        channels in 1u32..4,
        in_place: bool,
        root in 0u32..64,
        dtype in prop::sample::select(vec![DataType::F32, DataType::U8, DataType::F64]),
        (data, is_lent) in prop::sample::select(vec![(Data::Bytes, false), (Data::Bytes, true), (Data::Ghosts, false)]),
        is_uneven: bool,
        seed: u64,
    ) {
        let wiring = Wiring::uniform(nodes, per_node);
        let ranks = wiring.ranks();
        let mut call = Call { dtype, in_place, ..Call::new(collective, count) };
        if collective.has_root() {
            call.root = Rank(root % ranks);
            call.peer = Rank((root + 1) % ranks);
        }
        if !matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce) {
            let each = count.div_ceil(u64::from(ranks));
            let uneven = |length: u32| (0..u64::from(length)).map(|index| (each + seed % 97 * index) % 500).collect();
            call.counts = match collective {
                Collective::AllGather | Collective::Gather | Collective::Scatter if is_uneven => {
                    Counts::PerRank(uneven(ranks))
                }
                Collective::AllToAll if is_uneven => Counts::PerPair(uneven(ranks * ranks)),
                _ => Counts::Each(each),
            };
        }
        for algorithm in ALGORITHMS {
            let Ok(schedule) = build(&call, &choice(algorithm, protocol, channels), &wiring) else { continue };
            let other = build(&Call::new(Collective::AllReduce, 100), &choice(Algorithm::Ring, Protocol::Ll, 2), &wiring).unwrap();
            let all = [schedule.clone(), other, schedule];
            let lab = Lab::new(ranks, data, seed);
            let lab = if is_lent { lab.lending() } else { lab };
            prop_assert_eq!(run_in(lab, &all), Ok(()), "{} {} on {}x{}", algorithm, collective, nodes, per_node);
        }
    }
}

#[test]
fn every_algorithm_runs_what_it_does() {
    let wirings = [Wiring::flat(4), Wiring::uniform(2, 2), Wiring::uniform(5, 1)];
    for algorithm in ALGORITHMS {
        for collective in Collective::ALL.into_iter().filter(|one| algorithm.does(*one)) {
            let call = Call { root: Rank(1), ..Call::new(collective, 3001) };
            let built = |wiring: &Wiring| build(&call, &choice(algorithm, Protocol::Simple, 2), wiring).ok();
            let schedules: Vec<_> = wirings.iter().filter_map(built).collect();
            assert!(!schedules.is_empty(), "{algorithm} {collective} runs nowhere");
            for schedule in schedules {
                assert_eq!(run(&[schedule], Data::Bytes, 1), Ok(()), "{algorithm} {collective}");
            }
        }
    }
}

/// Long reductions whose slices are sent in place, and are read there as late as they come.
#[test]
fn what_reductions_send_is_as_it_was_when_it_comes() {
    let ops = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::PreMulSum(Scalar::from_f32(DataType::F32, 0.5))];
    let calls = [Collective::AllReduce, Collective::ReduceScatter].into_iter().flat_map(|collective| {
        // Enough for two shots.
        let call = Call::new(collective, 600_000);
        let with = move |op| [false, true].map(|in_place| Call { in_place, op, ..call.clone() });
        ops.into_iter().flat_map(with)
    });
    for call in calls {
        for (algorithm, ranks) in
            [(Algorithm::Ring, 2), (Algorithm::Ring, 5), (Algorithm::Direct, 2), (Algorithm::Direct, 3)]
        {
            let choice = Choice::new(algorithm, Protocol::Simple);
            let schedule = build(&call, &choice, &Wiring::flat(ranks)).unwrap();
            let lab = Lab::new(ranks, Data::Bytes, u64::from(ranks)).lending();
            assert_eq!(run_in(lab, &[schedule]), Ok(()), "{algorithm}, {ranks} ranks: {call:?}");
        }
    }
}

#[test]
fn a_hundred_ranks_agree() {
    let call = Call::new(Collective::AllReduce, 1 << 18);
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let choice = Choice::new(algorithm, Protocol::Simple).on(4);
        let schedule = build(&call, &choice, &Wiring::uniform(13, 8)).unwrap();
        assert_eq!(run(&[schedule], Data::Ghosts, 1), Ok(()), "{algorithm}");
    }
}

/// A pre-multiplied sum by a scalar that keeps it exact.
fn operations(dtype: DataType) -> [ReduceOp; 6] {
    let scalar = Scalar::from_f32(dtype, 2.0);
    [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Average,
        ReduceOp::PreMulSum(scalar),
    ]
}

#[test]
fn all_types_and_operations_reduce() {
    let mut seen = BTreeSet::new();
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        for dtype in DataType::ALL {
            for op in operations(dtype) {
                let call = Call { dtype, op, ..Call::new(Collective::AllReduce, 777) };
                let choice = choice(algorithm, Protocol::Simple, 2);
                let Ok(schedule) = build(&call, &choice, &Wiring::uniform(2, 3)) else { continue };
                let result = run(&[schedule], Data::Bytes, index as u64);
                assert_eq!(result, Ok(()), "{algorithm} {dtype} {op}");
                seen.insert((algorithm, dtype, op.name()));
            }
        }
    }
    let rings = seen.iter().filter(|one| one.0 == Algorithm::Ring).count();
    assert_eq!(rings, 14 * 6, "the ring does all of them");
}

/// A schedule that only one rank has, for disagreements.
fn all_reduce(count: u64, wiring: &Wiring) -> Arc<Schedule> {
    let choice = choice(Algorithm::Ring, Protocol::Simple, 1);
    Arc::new(build(&Call::new(Collective::AllReduce, count), &choice, wiring).unwrap())
}

#[test]
fn ranks_that_disagree_about_the_count_are_all_told_who_and_what() {
    let wiring = Wiring::flat(4);
    let (most, one) = (all_reduce(1_048_580, &wiring), all_reduce(1_048_576, &wiring));
    for seed in 0..20 {
        let mut lab = Lab::new(4, Data::Ghosts, seed);
        for rank in 0..4 {
            lab.submit_on(rank, if rank == 2 { &one } else { &most });
        }
        let failures = lab.run_out();
        assert_eq!(failures.len(), 4, "every rank ends");
        for failure in failures.values() {
            let text = failure.to_string();
            assert!(text.starts_with("ranks disagree about collective #0 (count)."), "{text}");
            assert!(text.contains("ranks 0, 1, 3: AllReduce #0 f32 × 1,048,580 sum"), "{text}");
            assert!(text.contains("rank 2: AllReduce #0 f32 × 1,048,576 sum"), "{text}");
        }
    }
}

#[test]
fn a_difference_in_anything_that_the_caller_wrote_is_named() {
    let wiring = Wiring::flat(3);
    let plain = Call::new(Collective::Reduce, 5000);
    let others = [
        ("collective", Call::new(Collective::AllReduce, 5000)),
        ("count", Call::new(Collective::Reduce, 0)),
        ("type", Call { dtype: DataType::I32, ..plain.clone() }),
        ("operation", Call { op: ReduceOp::Max, ..plain.clone() }),
        ("root", Call { root: Rank(1), ..plain.clone() }),
    ];
    let schedule =
        |call: &Call| Arc::new(build(call, &choice(Algorithm::Ring, Protocol::Simple, 1), &wiring).unwrap());
    for (name, other) in others {
        for seed in 0..5 {
            let mut lab = Lab::new(3, Data::Ghosts, seed);
            lab.submit(&schedule(&Call::new(Collective::AllReduce, 10)));
            for rank in 0..3 {
                lab.submit_on(rank, &schedule(if rank == 1 { &other } else { &plain }));
            }
            let failures = lab.run_out();
            assert_eq!(failures.len(), 3, "{name}: every rank ends");
            for failure in failures.values() {
                let text = failure.to_string();
                assert!(text.contains(&format!("collective #1 ({name})")), "{name}: {text}");
            }
        }
    }
    // Each rank's own scalar and its own buffers are its own business.
    let mut lab = Lab::new(3, Data::Ghosts, 1);
    for rank in 0..3 {
        let scalar = Scalar::from_f32(DataType::F32, 1.5 + rank as f32);
        let call = Call {
            op: ReduceOp::PreMulSum(scalar),
            in_place: rank == 1,
            ..Call::new(Collective::AllReduce, 5000)
        };
        lab.submit_on(rank, &schedule(&call));
    }
    lab.run().unwrap();
}

#[test]
fn ranks_that_choose_another_protocol_are_told_so() {
    let wiring = Wiring::flat(2);
    let call = Call::new(Collective::AllReduce, 5000);
    let mut lab = Lab::new(2, Data::Ghosts, 3);
    for (rank, protocol) in [(0, Protocol::Ll), (1, Protocol::Simple)] {
        let schedule = build(&call, &choice(Algorithm::Ring, protocol, 1), &wiring).unwrap();
        lab.submit_on(rank, &Arc::new(schedule));
    }
    let failures = lab.run_out();
    assert_eq!(failures.len(), 2);
    let text = failures[&0].to_string();
    assert!(text.contains("(protocol, slots)") && text.contains("Ring/LL, 1 channels"), "{text}");
}

#[test]
fn a_rank_that_does_not_come_is_named_with_what_it_did_last() {
    let wiring = Wiring::flat(4);
    let (first, second) = (all_reduce(100, &wiring), all_reduce(200, &wiring));
    let mut lab = Lab::new(4, Data::Ghosts, 1);
    lab.submit(&first);
    for rank in 0..3 {
        lab.submit_on(rank, &second);
    }
    let failures = lab.run_out().clone();
    assert_eq!(failures.len(), 4, "also the one that never came");
    let text = failures[&0].to_string();
    assert!(text.starts_with("rank 3 has not entered AllReduce #1 for 30 s; ranks 0, 1, 2 wait."), "{text}");
    assert!(text.contains("last seen: finished AllReduce #0 30"), "{text}");
    assert!(failures.values().all(|one| one.to_string() == text), "everybody is told the same");
    // What comes too late is refused with the reason.
    assert_eq!(lab.machines[3].submit(lab.now, &second).unwrap_err(), failures[&0]);
}

#[test]
fn a_dead_rank_is_silent() {
    let wiring = Wiring::flat(3);
    let schedule = all_reduce(100, &wiring);
    let mut lab = Lab::new(3, Data::Ghosts, 1);
    lab.dead.push(1);
    for rank in [0, 2] {
        lab.submit_on(rank, &schedule);
    }
    let failures = lab.run_out();
    assert_eq!(failures.keys().copied().collect::<Vec<_>>(), [0, 2]);
    let text = failures[&0].to_string();
    assert_eq!(text, "rank 1 does not answer in AllReduce #0 for 60 s; ranks 0, 2 wait.");
}

#[test]
fn a_rank_in_an_earlier_call_says_that_it_is_behind() {
    let wiring = Wiring::flat(3);
    let first = all_reduce(100, &wiring);
    let mut machine = RankMachine::new(Rank(0), 3);
    machine.submit(Time::ZERO, &first).unwrap();
    machine.notice(Time::from_ps(30_000_000_000_000), Rank(1), Notice::Ask(OperationId(1)));
    let answered = std::iter::from_fn(|| machine.poll_output()).find_map(|output| match output {
        Output::Notice { notice, .. } => match *notice {
            Notice::Answer(operation, answer) => Some((operation, answer.standing)),
            _ => None,
        },
        _ => None,
    });
    let (operation, standing) = answered.expect("a question is answered");
    assert_eq!(operation, OperationId(1));
    assert!(matches!(standing, Standing::Behind { .. }), "{standing:?}");
}

#[test]
fn an_abort_ends_everybody() {
    let wiring = Wiring::flat(3);
    let mut lab = Lab::new(3, Data::Ghosts, 1);
    lab.submit(&all_reduce(100_000, &wiring));
    lab.machines[1].abort();
    lab.submit_on(1, &all_reduce(1, &wiring));
    let failures = lab.run_out();
    assert_eq!(failures.len(), 3);
    assert!(failures.values().all(|one| one.to_string() == "rank 1 aborted the communicator"));
}

#[test]
fn where_nothing_moves_everybody_says_what_it_waits_for() {
    let schedule = all_reduce(100, &Wiring::flat(2));
    let mut machines = [0, 1].map(|rank| RankMachine::new(Rank(rank), 2));
    let mut failures = Vec::new();
    // A network that carries nothing but notices.
    let mut drain = |machines: &mut [RankMachine; 2], now: Time| {
        for _ in 0..8 {
            for rank in 0..2 {
                while let Some(output) = machines[rank].poll_output() {
                    match output {
                        Output::Work(id) => machines[rank].finished(now, id),
                        Output::Notice { notice, .. } => {
                            machines[1 - rank].notice(now, Rank(rank as u32), *notice);
                        }
                        Output::Failed(failure) => failures.push(failure.to_string()),
                        _ => {}
                    }
                }
            }
        }
    };
    for machine in &mut machines {
        machine.submit(Time::ZERO, &schedule).unwrap();
    }
    drain(&mut machines, Time::ZERO);
    let waits: Vec<_> = machines[0].waiting_for().iter().map(ToString::to_string).collect();
    assert_eq!(waits, ["data from rank 1 on channel 0 (worker 0, step 1)"]);
    let due = machines[0].poll_timeout().unwrap();
    assert_eq!(due, Time::ZERO + RankMachine::LIMIT);
    machines[0].handle_timeout(due);
    drain(&mut machines, due);
    let text = "all ranks are in AllReduce #0, and nothing moved for 30 s\n  \
                rank 0 waits for data from rank 1 on channel 0 (worker 0, step 1)\n  \
                rank 1 waits for data from rank 0 on channel 0 (worker 0, step 1)";
    assert_eq!(failures, [text, text]);
}
