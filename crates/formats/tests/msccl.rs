//! Schedules as MSCCL files and back, samples, and files that are wrong.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use railnet_coll::check::check;
use railnet_coll::{Algorithm, Call, Choice, Collective, Protocol, Wiring, build};
use railnet_core::{Bytes, DataType, Rank, ReduceOp, Scalar};
use railnet_formats::msccl::{read, write};

/// Reads the file again and proves it for sizes that it was not written for, in all operations.
fn round_trip(text: &str, call: &Call, what: &str) {
    let file = read(text).unwrap_or_else(|error| panic!("{what}: {error}\n{text}"));
    let scalar = Scalar::from_f32(DataType::F32, 2.0);
    let ops = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::PreMulSum(scalar)];
    for (count, op) in [(0, 0), (1, 1), (7, 2), (1_000, 1), (20_011, 2)] {
        let counts = railnet_coll::Counts::Each(count);
        let call = Call { op: ops[op], counts, ..call.clone() };
        let fifo = railnet_coll::Fifo::new(file.protocol, Bytes(1 << 13), true);
        let schedule = file.schedule(&call, Some(fifo)).unwrap();
        check(&schedule).unwrap_or_else(|error| panic!("{what}, {count} × {}: {error}", call.op));
    }
}

#[test]
fn every_schedule_comes_back_from_its_file() {
    let mut written = 0;
    for (nodes, per_node) in [(1, 4), (2, 2), (4, 1), (1, 7), (2, 4), (3, 3), (4, 3), (2, 8), (16, 1)] {
        let wiring = Wiring::uniform(nodes, per_node);
        let ranks = nodes * per_node;
        for algorithm in Algorithm::BUILT {
            for (collective, in_place) in
                Collective::ALL.into_iter().flat_map(|one| [false, true].map(|in_place| (one, in_place)))
            {
                // One loop: blocks of 512, or a buffer that the ranks share out.
                let is_whole =
                    matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast);
                let count = if is_whole { u64::from(ranks) * 512 } else { 512 };
                let call =
                    Call { in_place, root: Rank(ranks / 2), peer: Rank(1), ..Call::new(collective, count) };
                let Ok(schedule) = build(&call, &Choice::new(algorithm, Protocol::Simple), &wiring) else {
                    continue;
                };
                let what = format!("{algorithm} {collective}, {nodes} × {per_node}, in place: {in_place}");
                match write(&schedule) {
                    Ok(text) => {
                        round_trip(&text, &call, &what);
                        written += 1;
                        assert_eq!(text.contains("exchange among the ranks"), !schedule.groups.is_empty());
                    }
                    Err(error) => {
                        assert!(
                            matches!(collective, Collective::SendReceive | Collective::Barrier),
                            "{what}: {error}"
                        );
                        assert!(error.to_string().starts_with("MSCCL has no way to say this: it knows no"));
                    }
                }
            }
        }
    }
    assert!(written > 150, "only {written} were written");
}
