//! `railnet perf` from outside: real ranks, checked results, the table that people paste.

use std::process::{Output, Stdio};

use railnet_formats::run_file::{MISSING, RunFile};

use crate::harness;

fn perf(arguments: &[&str]) -> Output {
    let mut command = harness::command::<&str>(&[]);
    for name in ["RANK", "WORLD_SIZE", "RAILNET_LAUNCHER", "RAILNET_CONDUIT", "RAILNET_PCAP"] {
        command.env_remove(name);
    }
    command.arg("perf").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn every_collective_is_measured_and_right_over_every_conduit() {
    let names = [
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "gather",
        "scatter",
        "sendrecv",
    ];
    for conduit in ["shm", "tcp", "roce"] {
        for name in names {
            let output = perf(&[
                name,
                "-n",
                "3",
                "--conduit",
                conduit,
                "-b",
                "24",
                "-e",
                "300K",
                "-f",
                "100",
                "--json",
            ]);
            assert!(output.status.success(), "{name} over {conduit}: {}", text(&output.stderr));
            let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(found["conduits_of_rank_0"], serde_json::json!([conduit, conduit]));
            let rows = found["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 3);
            for row in rows {
                assert_eq!(row["out_of_place"]["wrong"], 0, "{name} over {conduit}: {row}");
            }
        }
    }
}

#[test]
fn puts_are_measured_and_right_over_every_conduit() {
    for conduit in ["shm", "tcp", "roce"] {
        let words = ["put", "-n", "3", "--conduit", conduit, "-b", "8", "-e", "300K", "-f", "200"];
        let output = perf(&words);
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{conduit}: {printed}{}", text(&output.stderr));
        let rows: Vec<Vec<&str>> = printed
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows.len(), 2, "{printed}");
        for row in rows {
            // Neither an operation nor a root, and nothing wrong, in a window and in memory that was registered.
            assert_eq!((row[3], row[4], row[8], row[12]), ("none", "-1", "0", "0"), "{printed}");
        }
        assert!(printed.contains("# Collective test concluded: put_perf"), "{printed}");
        assert_eq!(printed.contains("# RoCEv2 packets"), conduit == "roce", "{printed}");
    }
}

#[test]
fn every_type_and_operation_is_right() {
    for (dtype, op) in
        [("f64", "sum"), ("bf16", "avg"), ("f16", "max"), ("u8", "min"), ("i32", "prod"), ("f32", "mulsum")]
    {
        let output =
            perf(&["all_reduce", "-n", "2", "-d", dtype, "-o", op, "-b", "64", "-e", "64K", "-f", "32"]);
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{dtype} {op}: {printed}{}", text(&output.stderr));
        assert!(printed.contains("# Out of bounds values : 0 OK"), "{dtype} {op}: {printed}");
    }
}

#[test]
fn all_types_and_operations_have_rows_of_their_own() {
    let all =
        ["all_reduce", "-n", "2", "-d", "all", "-o", "all", "-b", "1K", "-e", "2K", "--iters", "2", "--json"];
    let output = perf(&all);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["type"], &value["op"]), (&"all".into(), &"all".into()));
    let rows = value["rows"].as_array().unwrap();
    let kinds: std::collections::BTreeSet<(&str, &str)> =
        rows.iter().map(|row| (row["type"].as_str().unwrap(), row["op"].as_str().unwrap())).collect();
    assert_eq!((rows.len(), kinds.len()), (14 * 6 * 2, 14 * 6), "{kinds:?}");
    assert!(rows.iter().all(|row| row["out_of_place"]["wrong"] == 0 && row["in_place"]["wrong"] == 0));
    let gathered =
        perf(&["all_gather", "-n", "2", "-o", "all", "-b", "1K", "-e", "1K", "--iters", "2", "--csv"]);
    assert_eq!(text(&gathered.stdout).lines().count(), 2, "{}", text(&gathered.stdout));
}

#[test]
fn groups_of_hosts_share_no_memory() {
    let output = perf(&["all_reduce", "-n", "4", "--nodes", "2", "-b", "1K", "-e", "1K"]);
    let printed = text(&output.stdout);
    assert!(printed.contains("# 4 ranks") && printed.contains("conduit: shm and tcp"), "{printed}");
}

#[test]
fn wrong_usage_says_what_is_wrong() {
    for (arguments, wanted) in [
        (&["all_reduce", "-n", "2", "-b", "1M", "-e", "8"][..], "-b must not be more than -e"),
        (&["all_reduce", "-n", "2", "-o", "average"], "one of sum, prod, min, max, avg, mulsum"),
        (&["broadcast", "-r", "5"], "rank 5 does not exist"),
        (&["all_reduces"], "collective"),
        (&["all_reduce", "--conduit", "smh"], "shm"),
        (&["all_reduce", "-n", "0"], "rank"),
    ] {
        let output = perf(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(wanted), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// Every timed call of every rank is in the trace, under its own name.
#[test]
fn a_trace_has_the_calls_of_all_ranks() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls.pftrace");
    let _ = std::fs::remove_file(&file);
    let path = file.to_str().unwrap();
    let asked = "all_reduce -n 3 --nodes 3 --conduit tcp --minbytes 4K --maxbytes 4K --iters 7 --trace";
    let asked: Vec<&str> = asked.split(' ').chain([path]).collect();
    let output = perf(&asked);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(perf(&asked).status.code(), Some(2), "it is there already");
    let nowhere = perf(&["all_reduce", "-n", "2", "--trace", "/no/such/folder/calls.pftrace"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", text(&nowhere.stderr));
    assert!(nowhere.stdout.is_empty(), "it is refused before anything is measured");
    let trace = std::fs::read(file).unwrap();
    let times = |word: &str| trace.windows(word.len()).filter(|part| *part == word.as_bytes()).count();
    for rank in 0..3 {
        assert_eq!(times(&format!("rank {rank} (tcp)")), 1);
        assert_eq!(times(&format!("node{rank}")), 1, "its host group");
    }
    assert_eq!((times("AllReduce 4 KiB "), times(", in place")), (3 * 2 * 7, 3 * 7));
}

/// What goes from one rank to another has an arrow, and over RoCE the first packets of each connection are there.
#[test]
fn a_record_has_calls_arrows_and_packets() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("live.rail");
    let _ = std::fs::remove_file(&file);
    let asked = "broadcast -n 3 --nodes 3 --conduit roce -b 64K -e 64K --iterations 5 --record";
    let asked: Vec<&str> = asked.split(' ').chain([file.to_str().unwrap()]).collect();
    let output = perf(&asked);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = RunFile::parse(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&run.meta["kind"], &run.meta["nodes"][2]["name"]), (&"live".into(), &"node2".into()));
    let table = |name: &str| run.table(name).unwrap();
    let column = |name: &str, of: &str| -> Vec<u64> {
        let (table, place) = (table(name), table(name).column(of).unwrap());
        (0..table.rows).map(|row| table.get(row, place)).collect()
    };
    // Five calls of three ranks out of place and five in place; in each the root gives to the two others.
    assert_eq!((table("operations").rows, table("calls").rows, table("slices").rows), (30, 10, 20));
    assert!(column("slices", "from").iter().all(|from| *from == 0));
    let (sent, arrived) = (column("slices", "sent"), column("slices", "arrived"));
    assert!(sent.iter().zip(&arrived).all(|(sent, arrived)| sent < arrived), "{sent:?} {arrived:?}");
    // A broadcast of 64 KiB is at least 16 packets to each, and some come back.
    let packets = table("packets");
    assert!(packets.rows > 10 * 2 * 16, "{}", packets.rows);
    let (own, received) = (column("packets", "queue_pair"), column("packets", "received"));
    assert!(own.iter().all(|pair| *pair > 0), "both ends of every connection are known");
    let there = received.iter().filter(|at| **at != MISSING).count();
    assert!(there * 10 > packets.rows * 9, "{there} of {} were received", packets.rows);
    assert_eq!(table("frames").rows, packets.rows);
    assert!(table("connections").rows >= 4);
}

#[test]
fn options_of_nccl_tests_mean_what_they_do_there_or_say_why_not() {
    let ran = perf(&[
        "all_reduce",
        "-t",
        "2",
        "-g",
        "1",
        "-b",
        "8",
        "-e",
        "8",
        "-a",
        "3",
        "-z",
        "1",
        "-c",
        "2",
        "-n",
        "3",
    ]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let (out, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(out.contains("# 2 ranks") && out.contains("iters: 3 validation: 2"), "{out}");
    assert_eq!(said.matches("note: -z (--blocking) has no effect").count(), 1, "{said}");
    let grouped = perf(&["all_reduce", "-n", "2", "-m", "4"]);
    assert_eq!(grouped.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&grouped.stderr).contains("calls are not grouped here"));
    let unknown = perf(&["all_reduce", "-n", "2", "-o", "sun"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("did you mean \"sum\"?"));
}
