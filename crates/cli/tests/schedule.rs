//! `railnet schedule` from outside: words, pictures, files, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::harness;
use crate::harness::text;

fn railnet(line: &str) -> Output {
    let arguments = std::iter::once("schedule").chain(line.split_whitespace());
    harness::command::<&str>(&[]).args(arguments).output().unwrap()
}

fn good(line: &str) -> String {
    let output = railnet(line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn has(whole: &str, parts: &[&str]) {
    for part in parts {
        assert!(whole.contains(part), "{part:?} is missing in\n{whole}");
    }
}

fn sample(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/msccl").join(name);
    path.to_str().unwrap().to_owned()
}

/// A place for files of one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("schedule-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_ring_is_told_on_one_screen() {
    let told = good("allreduce --algo ring --ranks 4");
    has(
        &told,
        &[
            "AllReduce · Ring · Simple · 4 ranks · 1 MiB = 262,144 × float\n",
            "\n  round  rank 0  rank 1  rank 2  rank 3\n  1      3→1     0→2     1→3     2→0\n",
            "\n  4      0=→1    1=→2    2=→3    3=→0\n",
            "\n  3      receives chunk 1 from rank 3, adds its own, sends it to rank 1   3 of 4\n",
            "\n  4      receives chunk 0 from rank 3, adds its own, keeps it, sends it to rank 1   complete\n",
            "\n  Steps      28                     in 6 rounds, 24 chunks over 4 connections\n",
            "by a rank at most; 1.500 × the size on average\n",
            "\n  Theory     1.500 ",
            "\n  Proved     every element that a rank gets holds exactly the 4 contributions it should, each once\n",
            "workers of a rank do not race",
        ],
    );
    assert!(told.lines().count() < 40 && told.lines().all(|line| line.chars().count() < 120), "{told}");
}

#[test]
fn a_tree_goes_up_and_down() {
    let told = good("allreduce --algo tree --ranks 8 --nodes 4 --rank 4");
    has(
        &told,
        &[
            "8 ranks on 4 nodes",
            "\n  1              0→0             0→2             ",
            "0=→2,5,6",
            "What rank 4 does, by 2 workers at once",
            "receives chunk 0 from ranks 2, 5 and 6, adds it up, adds its own, sends it to rank 0   6 of 8",
            "\n  Leaving    6.29 MB                from all nodes together; 1.500 × the size from each\n",
        ],
    );
}

#[test]
fn every_algorithm_has_something_to_tell() {
    for line in [
        "allreduce --algo nvls --ranks 8 --size 64KiB",
        "allreduce --algo nvlstree --ranks 8 --nodes 2 --size 64KiB",
        "allreduce --algo collnetdirect --ranks 8 --nodes 2 --size 64KiB",
        "allreduce --algo collnetchain --ranks 8 --nodes 2 --size 64KiB --in-place",
        "allreduce --algo direct --ranks 4 --proto ll --size 4KiB",
        "allgather --algo pat --ranks 8 --nodes 8 --size 4KiB",
        "broadcast --algo ring --ranks 5 --root 3 --proto ll128 --channels 2",
        "alltoall --algo p2p --ranks 8 --size 64KiB",
        "gather --algo p2p --ranks 3 --size 768B",
        "sendrecv --algo p2p --ranks 3 --peer 2",
        "barrier --algo p2p --ranks 5",
        "allreduce --algo ring --ranks 1",
        "allreduce --algo ring --ranks 200 --size 800B",
    ] {
        let told = good(line);
        has(&told, &["\n  Proved     ", "no deadlock"]);
        assert!(told.lines().count() < 64, "{line}:\n{told}");
    }
}

#[test]
fn json_has_every_move() {
    let value: Value =
        serde_json::from_str(&good("allreduce --algo ring --ranks 4 --size 64B --json")).unwrap();
    assert_eq!((&value["steps"], &value["rounds"], &value["proved"]), (&28.into(), &6.into(), &true.into()));
    assert_eq!(value["sent_bytes"], serde_json::json!([96, 96, 96, 96]));
    assert_eq!(value["least_sent_bytes"], 96.0);
    let moves = value["moves"].as_array().unwrap();
    assert_eq!(moves.len(), 24);
    assert_eq!(
        moves[0],
        serde_json::json!({ "round": 1, "from": 0, "to": 1, "channel": 0, "chunk": 3, "elements": 4, "contributions": 1 })
    );
}

#[test]
fn a_picture_has_an_arrow_for_each_chunk_and_nothing_is_overwritten() {
    let folder = folder("picture");
    let file = folder.join("tree.svg");
    let line = format!("allreduce --algo tree --ranks 8 --nodes 4 --svg {}", file.display());
    has(&good(&line), &["\n  Picture    "]);
    let picture = fs::read_to_string(&file).unwrap();
    assert_eq!(picture.matches("marker-end=").count(), 28);
    assert_eq!(picture.matches(">rank ").count(), 8);
    let again = railnet(&line);
    assert_eq!(again.status.code(), Some(2));
    has(&text(&again.stderr), &["is there already: --force replaces it"]);
    good(&format!("{line} --force"));

    // One lane for the switch, whatever its groups.
    let file = folder.join("nvls.svg");
    good(&format!("allreduce --algo nvls --ranks 4 --size 64KiB --svg {}", file.display()));
    let picture = fs::read_to_string(&file).unwrap();
    assert_eq!(picture.matches(">switch<").count(), 1);
    let many =
        railnet(&format!("allreduce --algo ring --ranks 100 --size 400B --svg {}/x.svg", folder.display()));
    assert_eq!(many.status.code(), Some(2));
    has(&text(&many.stderr), &["100 ranks and switches are too many for a picture"]);
}

#[test]
fn what_is_written_for_msccl_is_read_again() {
    let file = folder("msccl").join("tree.xml");
    let name = file.display();
    good(&format!("allreduce --algo tree --ranks 8 --nodes 4 --size 64KiB --msccl {name}"));
    has(
        &good(&format!("--file {name} --size 1MiB --nodes 4")),
        &[
            "AllReduce · \"Tree AllReduce 8\" from ",
            "8 ranks on 4 nodes",
            "1.750 × the size",
            "Proved     every",
        ],
    );
    let told = good(&format!("--file {} --size 64KiB", sample("allreduce-allpairs.xml")));
    has(&told, &["\n  2      0=→1-3    ", "in 2 rounds"]);
    let never = folder("msccl").join("never.xml");
    let long = railnet(&format!("allreduce --algo ring --ranks 4 --size 1GiB --msccl {}", never.display()));
    assert!(!never.exists());
    assert_eq!(long.status.code(), Some(1));
    has(&text(&long.stderr), &["steps in a thread block, and MSCCL allows 256"]);
}

#[test]
fn a_wrong_file_is_refused_with_its_line() {
    let output = railnet(&format!("--file {}", sample("wrong-dependency.xml")));
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    has(
        &text(&output.stderr),
        &[
            "wrong-dependency.xml is refused\n  line 31: gpu 2, thread block 0, step 1: ",
            "a dependency is missing",
        ],
    );
    assert_eq!(railnet("--file no-such-file.xml").status.code(), Some(2));
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_to_do() {
    for (line, words) in [
        ("", "<COLLECTIVE>"),
        ("allreduce --ranks 4", "--algo <NAME>"),
        ("allreduce --algo ring", "--ranks <N>"),
        ("allredcue --algo ring --ranks 4", "unknown collective \"allredcue\": write all_reduce, broadcast"),
        ("allreduce --algo rnig --ranks 4", "unknown algorithm \"rnig\": write Tree, Ring"),
        ("allreduce --algo ring --ranks 4 --proto l", "unknown protocol"),
        ("allreduce --algo pat --ranks 4", "PAT does not do AllReduce"),
        ("allreduce --algo nvls --ranks 4 --proto ll", "NVLS does not use LL: choose Simple"),
        ("allreduce --algo nvlstree --ranks 4", "a tree needs several: choose NVLS"),
        ("allreduce --algo ring --ranks 4 --nodes 3", "4 ranks cannot be shared out evenly over 3 nodes"),
        ("allreduce --algo ring --ranks 4 --nodes 0", "there is at least one node"),
        ("allreduce --algo ring --ranks 0", "--ranks 0: from 1 to"),
        ("allreduce --algo ring --ranks 4 --size 5B", "a whole number of floats of 4 bytes"),
        ("allgather --algo ring --ranks 3 --size 1MiB", "a block for each of 3 ranks is needed"),
        ("broadcast --algo ring --ranks 4 --root 4", "rank 4 does not exist: there are 4"),
        ("allreduce --algo ring --ranks 4 --rank 9", "--rank 9: there are 4"),
        ("alltoall --algo p2p --ranks 4 --in-place", "cannot be in place"),
        ("allreduce --algo ring --ranks 4 --file x.xml", "cannot be used with"),
        ("allreduce --algo ring --ranks 4 --size 1MB2", "1MB2"),
    ] {
        let output = railnet(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty(), "{line}");
        has(&text(&output.stderr), &[words]);
    }
    has(
        &good("--help"),
        &["railnet schedule allreduce --algo tree --ranks 8 --nodes 4", "docs/schedules.md"],
    );
}
