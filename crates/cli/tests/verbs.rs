//! `railnet verbs` from outside: every operation and every option, what they print and how they exit.

use std::process::Command;

use serde_json::Value;

use crate::harness::{is_installed, railnet, scratch, text};

const OPERATIONS: [&str; 5] = ["write", "read", "send", "write-imm", "atomic"];

/// The output of a run that ends as it should; its lines fit the page and carry no colour.
fn verbs(line: &str) -> String {
    let arguments: Vec<&str> = std::iter::once("verbs").chain(line.split_whitespace()).collect();
    let output = railnet(&arguments);
    let found = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{line}\n{found}\n{}", text(&output.stderr));
    assert!(!found.contains('\x1b'), "{line}: colour in a pipe");
    let too_wide = found.lines().find(|found| found.chars().count() > 110);
    assert_eq!(too_wide, None, "{line}: too wide");
    found
}

/// The steps of a run as JSON objects.
fn steps(line: &str) -> Vec<Value> {
    let arguments: Vec<&str> = ["verbs", "--json"].into_iter().chain(line.split_whitespace()).collect();
    let output = railnet(&arguments);
    assert_eq!(output.status.code(), Some(0), "{line}");
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_has(found: &str, parts: &[&str]) {
    for part in parts {
        assert!(found.contains(part), "{part:?} is missing in\n{found}");
    }
}

#[test]
fn a_write_is_told_from_the_post_to_the_poll() {
    let found = verbs("write");
    assert_has(
        &found,
        &[
            "RDMA WRITE: A puts 2048 B into B's memory · 2 packets",
            "posts a work request (WQE): WRITE, 2048 B, wr_id 1, signaled",
            "doorbell",
            "fetches WQE 1, checks its lkey",
            "reads 1024 B at 0x7f1000001000 by DMA",
            "RC WRITE First",
            "RETH: address 0x7f2000001000",
            "RC WRITE Last",
            "asks for an ACK (A)",
            "checks passed: queue pair, PSN, opcode order, QP access, length,",
            "rkey, permission, range",
            "writes 1024 B to 0x7f2000001400 by DMA",
            "RC Acknowledge",
            "writes a completion (CQE): wr_id 1, IBV_WC_SUCCESS",
            "polls: wr_id 1, WRITE, IBV_WC_SUCCESS, 2048 B",
            "memory compared: 2048 bytes equal at B and A",
            "B's CPU  not involved",
            "▶ WRITE",
        ],
    );
    assert!(found.lines().count() <= 48, "more than a screen:\n{found}");
}

#[test]
fn the_other_operations_show_what_is_special_about_them() {
    assert_has(
        &verbs("read"),
        &[
            "RC READ Request",
            "RC READ Response First",
            "RC READ Response Last",
            "of the answer to 0x7f1000001400",
            "memory compared: 2048 bytes equal at A and B",
            "B's CPU  not involved",
            "▶ READ",
        ],
    );
    assert_has(
        &verbs("send"),
        &[
            "posts a receive, wr_id 7: 2048 B at 0x7f2000001000",
            "a SEND needs no address",
            "RC SEND First",
            "receive posted",
            "polls: wr_id 7, receive of a SEND, IBV_WC_SUCCESS, 2048 B",
            "polls: wr_id 1, SEND, IBV_WC_SUCCESS, 2048 B",
            "B's CPU  took part",
            "▶ SEND",
        ],
    );
    assert_has(
        &verbs("write-imm"),
        &[
            "with no memory: none is needed",
            "RC WRITE Last with Immediate",
            "ImmDt: immediate 0xcafe0001",
            "polls: wr_id 7, receive of a WRITE with immediate, IBV_WC_SUCCESS, 2048 B,",
            "▶ WRITE imm",
        ],
    );
    assert_has(
        &verbs("atomic"),
        &[
            "RC FetchAdd",
            "AtomicETH: address 0x7f2000001000",
            "alignment",
            "RC ATOMIC Acknowledge",
            "AtomicAckETH: old value",
            "A was given the old value",
            "▶ atomic",
        ],
    );
}

#[test]
fn every_operation_moves_what_it_should_at_every_size() {
    for operation in ["write", "read", "send", "write-imm"] {
        for bytes in ["0", "1", "255", "1KiB", "5000"] {
            for mtu in ["256", "512", "1024", "2048", "4096"] {
                for behaviour in ["spec", "rxe"] {
                    let line = format!("{operation} --bytes {bytes} --mtu {mtu} --behaviour {behaviour}");
                    assert_has(&verbs(&line), &["as expected: IBV_WC_SUCCESS", "memory compared: "]);
                }
            }
        }
    }
}

#[test]
fn a_refused_access_says_which_check_failed_and_touches_nothing() {
    let troubles = [
        ("--wrong-rkey", "check FAILED: rkey"),
        ("--no-permission", "check FAILED: permission"),
        ("--out-of-range", "check FAILED: range"),
    ];
    for operation in ["write", "read", "write-imm", "atomic"] {
        for (trouble, failed) in troubles {
            for behaviour in ["spec", "rxe"] {
                let found = verbs(&format!("{operation} {trouble} --behaviour {behaviour}"));
                assert_has(
                    &found,
                    &[
                        failed,
                        "· NAK",
                        "AETH: remote access error",
                        "goes to the error state",
                        "polls: wr_id 1, IBV_WC_REM_ACCESS_ERR",
                        "as expected: IBV_WC_REM_ACCESS_ERR",
                        "of B's region are as they were",
                    ],
                );
            }
        }
    }
    assert_has(&verbs("write-imm --wrong-rkey"), &["IBV_WC_WR_FLUSH_ERR"]);
    assert_has(&verbs("write --wrong-rkey --bytes 0"), &["as expected: IBV_WC_SUCCESS", "touches no memory"]);
}

#[test]
fn a_late_receive_makes_the_sender_wait_and_try_again() {
    for operation in ["send", "write-imm"] {
        for behaviour in ["spec", "rxe"] {
            let line = format!("{operation} --no-receive --behaviour {behaviour}");
            assert_has(
                &verbs(&line),
                &[
                    "check FAILED: receive posted",
                    "RNR NAK",
                    "try again after 640 µs",
                    "before it tries again",
                    "the wait is over, goes back to PSN",
                    "sent again",
                    "as expected: IBV_WC_SUCCESS",
                ],
            );
            let steps = steps(&line);
            let is = |step: &&Value, name: &str| step["step"] == name;
            let naks = |step: &&Value| is(step, "packet") && step["syndrome"] == 0x2c;
            let posted = steps.iter().position(|step| is(&step, "post_receive")).unwrap();
            let before = steps[..posted].iter().filter(naks).count();
            assert_eq!(before, 3, "{line}: the receive comes after the third RNR NAK");
        }
    }
}

#[test]
fn a_lost_packet_is_sent_again() {
    let found = verbs("write --bytes 8KiB --drop-psn 2");
    assert_has(
        &found,
        &["╳ lost", "sequence error, this PSN is missing", "because of the NAK, goes back to PSN"],
    );
    // Nothing comes after the last packet that would show its loss: only the timer helps.
    let found = verbs("write --drop-psn 1");
    assert_has(&found, &["no answer for 1.048 ms: the timer ran out, goes back to PSN"]);
    let found = verbs("read --bytes 3000 --drop-psn 1");
    assert_has(
        &found,
        &["lost ╳", "part of the answer is missing", "its data is read and sent again", "length 1976 B"],
    );
    for operation in OPERATIONS {
        for behaviour in ["spec", "rxe"] {
            let found = verbs(&format!("{operation} --drop-psn 0 --behaviour {behaviour}"));
            assert_has(&found, &["lost", "1 lost", "as expected: IBV_WC_SUCCESS", "memory compared: "]);
        }
    }
}

#[test]
fn many_packets_are_summed_up_unless_all_are_wanted() {
    let short = verbs("write --bytes 256KiB");
    assert_has(&short, &["251 more packets like this, PSN", "more taken in like this"]);
    assert!(short.lines().count() < 80, "{short}");
    let long = verbs("write --bytes 256KiB --all");
    assert_eq!(long.matches("├─ RC WRITE").count(), 256);
    assert!(!long.contains("more packets like this"));
}

#[test]
fn the_same_command_prints_the_same() {
    for line in ["write", "send --no-receive", "read --bytes 64KiB --drop-psn 3", "atomic --seed 0x5eed"] {
        assert_eq!(verbs(line), verbs(line), "{line}");
    }
    assert_ne!(verbs("write"), verbs("write --seed 2"));
}

#[test]
fn json_has_every_step_in_the_order_of_time() {
    for operation in OPERATIONS {
        let steps = steps(operation);
        assert_eq!(steps[0]["step"], "setup");
        assert_eq!(steps[0]["operation"], operation);
        let last = steps.last().unwrap();
        assert_eq!((&last["step"], &last["as_expected"]), (&"result".into(), &true.into()));
        assert_eq!(last["status"], "IBV_WC_SUCCESS");
        let times: Vec<u64> = steps.iter().filter_map(|step| step["time_ps"].as_u64()).collect();
        assert_eq!(times.len(), steps.len() - 2);
        assert!(times.is_sorted(), "{operation}");
        let packets = steps.iter().filter(|step| step["step"] == "packet").count();
        assert_eq!(last["packets"], packets);
    }
    let steps = steps("write --bytes 64KiB");
    let sent = steps.iter().filter(|step| step["opcode"] == "RC WRITE Middle");
    assert_eq!(sent.count(), 62);
    let first = steps.iter().find(|step| step["step"] == "packet").unwrap();
    assert_eq!(first["psn"], steps[0]["hosts"][0]["first_psn"]);
    assert_eq!(first["length"], 65_536);
}

#[test]
fn a_capture_has_every_packet_and_decodes() {
    let path = scratch("verbs.pcapng");
    let file = path.to_str().unwrap();
    let found = verbs(&format!("write --bytes 8KiB --drop-psn 2 --pcap {file}"));
    assert_has(&found, &["1 lost; all of them in"]);
    let decoded = railnet(&["decode", "--check", "--json", file]);
    assert_eq!(decoded.status.code(), Some(0), "{}", text(&decoded.stderr));
    let packets: Vec<Value> =
        text(&decoded.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_has(&text(&decoded.stderr), &["good: ", "0 with a bad ICRC, 0 malformed"]);
    let names = |name: &str| packets.iter().filter(|packet| packet["interface_name"] == name).count();
    assert!(names("A.nic0") > 8 && names("B.nic0") >= 2);
    assert_eq!(names("A.nic0") + names("B.nic0"), packets.len());
    let comments: Vec<&str> = packets.iter().map(|packet| packet["comments"][0].as_str().unwrap()).collect();
    assert!(comments[0].starts_with("A to B: RC WRITE First"), "{}", comments[0]);
    assert_eq!(comments.iter().filter(|comment| comment.ends_with("LOST on the wire")).count(), 1);

    let refused = railnet(&["verbs", "write", "--pcap", file]);
    assert_eq!(refused.status.code(), Some(2));
    assert_has(&text(&refused.stderr), &["is there already", "--force"]);
    let _ = verbs(&format!("write --force --pcap {file}"));
    let again = railnet(&["decode", "--json", file]);
    assert_eq!(text(&again.stdout).lines().count(), 3);
}

#[test]
fn tshark_finds_the_same_packets() {
    if !is_installed("tshark") {
        return;
    }
    for operation in OPERATIONS {
        let path = scratch(&format!("tshark-{operation}.pcapng"));
        let line = format!("{operation} --drop-psn 0 --pcap {}", path.to_str().unwrap());
        let steps = steps(&line);
        // It guesses at payloads: some of ours look like the beginning of RPC over RDMA.
        let output = Command::new("tshark")
            .args(["--disable-protocol", "rpcordma", "-r"])
            .arg(&path)
            .args(["-T", "fields", "-e", "infiniband.bth.psn", "-e", "_ws.malformed"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let expected: Vec<String> = steps
            .iter()
            .filter(|step| step["step"] == "packet")
            .map(|step| format!("{}", step["psn"]))
            .collect();
        let found: Vec<String> =
            text(&output.stdout).lines().map(|line| line.trim_end_matches('\t').to_owned()).collect();
        assert_eq!(found, expected, "{operation}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_to_do() {
    let cases = [
        ("send --wrong-rkey", "a SEND names no address and no key of B"),
        ("send --no-permission", "--no-permission cannot be used with send"),
        ("send --out-of-range", "--out-of-range cannot be used with send"),
        ("write --no-receive", "it needs no receive"),
        ("atomic --no-receive", "try send or write-imm"),
        ("atomic --bytes 16", "an atomic always works on 8 bytes"),
        ("write --mtu 1000", "256, 512, 1024, 2048, 4096"),
        ("write --bytes 5XB", "unknown unit"),
        ("write --bytes 17MiB", "at most 16 MiB"),
        ("write --bytes 99999999999999999999999", "at most 16 MiB"),
        ("write --drop-psn 2", "the last one that can be lost is 1"),
        ("write --drop-psn 0 --wrong-rkey", "cannot be used with"),
        ("write --no-permission --out-of-range", "cannot be used with"),
        ("write --force", "--pcap <FILE>"),
        ("write --json --all", "cannot be used with"),
        ("writ", "a similar value exists: 'write'"),
        ("write --behaviour best", "[possible values: spec, rxe]"),
        ("write --seed x", "invalid value 'x' for '--seed <S>'"),
        ("", "<OPERATION>"),
        ("write --queue-pairs 2", "it runs one operation on one queue pair (try connect)"),
        ("connect --drop-psn 1", "--drop-psn and their like) cannot be used with connect"),
        ("connect --pcap x.pcap", "--pcap cannot be used with connect"),
        ("connect --bytes 0", "memory here is 1 to 16777216 B"),
        ("connect --bytes 16MiB", "memory here is 1 to 16777216 B"),
        ("connect --queue-pairs 17", "a whole number from 1 to 16"),
    ];
    for (line, expected) in cases {
        let arguments: Vec<&str> = std::iter::once("verbs").chain(line.split_whitespace()).collect();
        let output = railnet(&arguments);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty(), "{line}");
        assert_has(&text(&output.stderr), &[expected]);
    }
    assert_has(&verbs("atomic --bytes 8"), &["as expected"]);
    assert_has(&verbs("--help"), &["railnet verbs send --no-receive"]);
}

#[test]
fn a_connection_is_set_up_state_by_state_and_what_is_wrong_is_refused_by_the_nic() {
    let told = verbs("connect");
    assert_has(
        &told,
        &[
            "RTS at once            refused: a queue pair cannot go from INIT to RTS",
            "refused: the transition INIT to RTR needs the destination queue pair",
            "refused: queue pair 0x11 is in RTR: nothing can be posted to its send queue",
            "Outcome  as expected",
        ],
    );
    // Each state before what is tried in it.
    let states = ["\n  RESET\n", "\n  INIT\n", "RTS at once", "\n  RTR\n", "\n  RTS\n"];
    let places: Vec<usize> = states.iter().map(|state| told.find(state).unwrap()).collect();
    assert!(places.is_sorted(), "{told}");
}

#[test]
fn one_completion_stands_for_the_unsignaled_work_before_it() {
    for (queue_pairs, every) in [(1, 1), (3, 2), (16, 64)] {
        let steps = steps(&format!("connect --queue-pairs {queue_pairs} --signal-every {every} --bytes 256"));
        let found = |step: &str| steps.iter().filter(|one| one["step"] == step).cloned().collect::<Vec<_>>();
        let completions = found("completion");
        assert_eq!(completions.len(), 2 * queue_pairs);
        for queue_pair in 0x11..0x11 + queue_pairs {
            let of_it = completions.iter().filter(|one| one["qp"] == queue_pair);
            let ids: Vec<u64> = of_it.map(|one| one["wr_id"].as_u64().unwrap()).collect();
            assert_eq!(ids, [every, 2 * every]);
        }
        // An error completes whether it was signalled or not, and what is behind it is flushed.
        let failures = found("failure");
        let statuses: Vec<&Value> = failures.iter().map(|one| &one["status"]).collect();
        assert_eq!(statuses, ["IBV_WC_REM_ACCESS_ERR", "IBV_WC_WR_FLUSH_ERR"]);
        assert_eq!(found("result")[0]["bytes_equal"], true);
    }
}
