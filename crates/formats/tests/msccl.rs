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
    for (count, op) in [(0, 0), (7, 1), (9_011, 2)] {
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
    for (nodes, per_node) in [(1, 4), (2, 2), (4, 1), (1, 7), (3, 3), (2, 8), (16, 1)] {
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

fn sample(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/msccl").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn samples_are_proved_for_all_sizes() {
    for (name, steps) in [
        ("allreduce-ring.xml", 4 * 7),
        ("allreduce-allpairs.xml", 4 * (8 + 4 + 4)),
        ("allreduce-hierarchical.xml", 4 * 6),
    ] {
        let text = sample(name);
        let file = read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((file.collective, file.ranks, file.steps()), (Collective::AllReduce, 4, steps), "{name}");
        let call = Call { in_place: file.in_place, ..Call::new(Collective::AllReduce, 0) };
        round_trip(&text, &call, name);
    }
    // The ring is right in place too; the other call is not its business.
    let ring = read(&sample("allreduce-ring.xml")).unwrap();
    let in_place = Call { in_place: true, ..Call::new(Collective::AllReduce, 1000) };
    check(&ring.schedule(&in_place, None).unwrap()).unwrap();
    let other = ring.schedule(&Call::new(Collective::AllGather, 8), None).unwrap_err();
    assert_eq!(other.to_string(), "the file is for AllReduce, and the call for AllGather");
}

#[test]
fn a_missing_dependency_is_found_whichever_it_is() {
    let error = read(&sample("wrong-dependency.xml")).unwrap_err().to_string();
    assert!(error.contains("gpu 2, thread block"), "{error}");
    assert!(error.contains("a dependency is missing"), "{error}");

    let mut broken = 0;
    for name in ["allreduce-allpairs.xml", "allreduce-hierarchical.xml"] {
        let text = sample(name);
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(at) = line.find("depid=").filter(|at| !line[*at..].starts_with("depid=\"-1\"")) else {
                continue;
            };
            let has = line.find("hasdep=").unwrap();
            let without = format!("{}depid=\"-1\" deps=\"-1\" {}", &line[..at], &line[has..]);
            let mut lines = lines.clone();
            lines[index] = &without;
            let error = read(&lines.join("\n")).map(|file| file.name).unwrap_err().to_string();
            let is_named = error.contains("a dependency is missing") || error.contains("before it is ready");
            assert!(is_named && error.contains("line "), "{name}:{}: {error}", index + 1);
            broken += 1;
        }
    }
    assert_eq!(broken, 4 * (2 + 2) + 4 * 2);
}

#[test]
fn wrong_files_are_refused_with_the_place() {
    let ring = sample("allreduce-ring.xml");
    let cases = [
        ("<algo ", "<algo", "line 2, column 10: "),
        ("coll=\"allreduce\"", "coll=\"custom\"", "line 2: coll=\"custom\" cannot be proved"),
        ("proto=\"Simple\"", "proto=\"simpel\"", "line 2: proto: "),
        ("ngpus=\"4\"", "ngpus=\"5\"", "line 2: gpu 4 of 5 is missing"),
        ("inplace=\"0\"", "inplace=\"2\"", "line 2: inplace=\"2\" should be 0 or 1"),
        (
            "i_chunks=\"4\"",
            "i_chunks=\"3\"",
            "line 3: gpu 0: i_chunks=\"3\" does not go with nchunksperloop=\"4\"",
        ),
        ("gpu id=\"3\"", "gpu id=\"2\"", "line 36: gpu 2: it is there twice"),
        ("send=\"1\"", "send=\"0\"", "line 4: gpu 0, thread block 0: send=\"0\" is the GPU itself"),
        ("send=\"1\"", "send=\"9\"", "line 4: gpu 0, thread block 0: send=\"9\": there are 4 GPUs"),
        (
            "send=\"1\"",
            "send=\"-1\"",
            "line 5: gpu 0, thread block 0, step 0: type=\"s\" sends, and the thread",
        ),
        ("chan=\"0\"", "chan=\"1\"", "line 4: gpu 0, thread block 0: chan=\"1\": there are 1 channels"),
        (
            "type=\"rrcs\"",
            "type=\"rrsc\"",
            "line 8: gpu 0, thread block 0, step 3: type=\"rrsc\" should be one of",
        ),
        (
            "s=\"2\"",
            "s=\"4\"",
            "line 7: gpu 0, thread block 0, step 4: steps are numbered one after the other",
        ),
        ("depid=\"-1\"", "depid=\"7\"", "line 5: gpu 0, thread block 0, step 0: depid and deps go together"),
        ("cnt=\"1\"", "cnt=\"0\"", "line 5: gpu 0, thread block 0, step 0: cnt=\"0\" moves nothing"),
        ("<step ", "<stop ", "line 5: gpu 0, thread block 0: <stop> has no place here"),
        // From here on it can be read, and is wrong.
        (
            "srcoff=\"3\"",
            "srcoff=\"4\"",
            "line 5: gpu 0, thread block 0, step 0: goes past the end of its input",
        ),
        (
            "type=\"rrs\"",
            "type=\"rcs\"",
            "gpu 0, thread block 0, step 1: writes to the input of a call that is out of place",
        ),
        ("type=\"rrcs\"", "type=\"rcs\"", "lacks rank 0's contribution"),
        ("type=\"r\"", "type=\"nop\"", "are never received"),
    ];
    for (from, to, words) in cases {
        assert!(ring.contains(from), "{from}");
        let text = read(&ring.replacen(from, to, 1)).map(|file| file.name).unwrap_err().to_string();
        assert!(text.contains(words), "{from} → {to}: {text:?} instead of {words:?}");
    }
    let circle = ring.replace("type=\"s\"", "type=\"r\"").replace("dstbuf=\"i\"", "dstbuf=\"o\"");
    let text = read(&circle).map(|file| file.name).unwrap_err().to_string();
    assert!(
        text.starts_with("deadlock: 4 steps wait for each other\n  line 5: gpu 0, thread block 0"),
        "{text}"
    );

    let awaited = sample("allreduce-hierarchical.xml").replacen("hasdep=\"1\"", "hasdep=\"0\"", 1);
    let text = read(&awaited).map(|file| file.name).unwrap_err().to_string();
    assert!(
        text.ends_with(
            "waits for step 1 of thread block 0 (line 6), which has hasdep=\"0\" and tells nobody"
        ),
        "{text}"
    );
}

#[test]
fn what_msccl_cannot_say_is_refused() {
    let wiring = Wiring::flat(4);
    let choice = Choice::new(Algorithm::Ring, Protocol::Simple);
    let large = build(&Call::new(Collective::AllReduce, 1 << 30), &choice, &wiring).unwrap();
    let error = write(&large).unwrap_err().to_string();
    assert!(error.contains("steps in a thread block, and MSCCL allows 256: a file is repeated"), "{error}");
    let empty = build(&Call::new(Collective::AllReduce, 0), &choice, &wiring).unwrap();
    assert!(write(&empty).unwrap_err().to_string().contains("without data has no chunks"));
}
