//! `railnet replay` from outside: what it prints and how it exits.

use std::fs;
use std::path::Path;

use crate::harness::{golden, railnet, text};

#[test]
fn each_conversation_is_counted_and_equal() {
    let output = railnet(&["replay", &golden("cm_rping.pcap"), &golden("cm_rping.txt")]);
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{lines}");
    for part in [
        "RC responder 10.77.0.2 qp 0x6c, requester 10.77.0.3 qp 0x67\n  4 requests fed, 0 left out; 4 answers compared, 4 equal",
        "RC responder 10.77.0.3 qp 0x67, requester 10.77.0.2 qp 0x6c\n  8 requests fed, 0 left out; 8 answers compared, 8 equal",
        "region learned 2, memory learned 2",
        "skipped 5 management datagrams (queue pair 1)",
        "equal: 29 packets, 2 conversations, 12 requests fed, 0 left out, 12 of 12 answers equal",
    ] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    let alone = railnet(&["replay", &golden("user_udp_socket_vs_rxe.pcap")]);
    assert_eq!(alone.status.code(), Some(0));
    assert!(text(&alone.stdout).contains("204 of 204 answers equal"));
    let lost = railnet(&["replay", &golden("loss_rc_write_req_dropped.pcap")]);
    assert!(text(&lost.stdout).contains("not seen: packets 4, 22, 39"));
}

#[test]
fn every_answer_is_printed_when_asked_for() {
    let (capture, notes) = (golden("rc_cas_match.pcap"), golden("rc_cas_match.txt"));
    let output = railnet(&["replay", &capture, &notes, "--verbose"]);
    let lines = text(&output.stdout);
    assert_eq!(lines.matches("  equal: recorded, packet ").count(), 3, "{lines}");
    assert_eq!(lines.matches("ours, to packet ").count(), 3, "{lines}");
    assert!(lines.contains("freedom: IPv4 ID: an IPv4 ID may be anything"), "{lines}");
}

#[test]
fn a_mismatch_is_told_in_words_and_fails() {
    let (capture, notes) = (golden("err_rc_send_too_long.pcap"), golden("err_rc_send_too_long.txt"));
    let output = railnet(&["replay", &capture, &notes, "--profile", "specification"]);
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{lines}");
    for part in [
        "MISMATCH: syndrome: recorded NAK RemoteOperational (0x63), ours NAK InvalidRequest (0x61); migration bit",
        "    recorded, packet 2: 10.77.0.2:52624 → 10.77.0.3  RC Acknowledge  qp 0x38  psn 0  NAK RemoteOperational",
        "    ours, to packet 1: 10.77.0.2:52624 → 10.77.0.3  RC Acknowledge  qp 0x38  psn 0  NAK InvalidRequest",
        "MISMATCH: completion: recorded work 1000 status 2, ours work 1000 status 1",
        "DIFFERENT: 2 packets",
    ] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
}

#[test]
fn bad_files_and_bad_usage_are_told_apart() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay_notes.txt");
    fs::write(&scratch, "nothing to see here\n").unwrap();
    let scratch = scratch.to_str().unwrap();
    let capture = golden("rc_cas_match.pcap");
    for (arguments, hint) in [
        (vec!["replay", "/no/such/file.pcap"], "cannot read /no/such/file.pcap: there is no such file"),
        (vec!["replay", scratch], "not a pcap or pcapng capture"),
        (vec!["replay", &capture, scratch], "the notes fit no known format"),
        (vec!["replay", &capture, &capture], "this is no text"),
    ] {
        let output = railnet(&arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(errors.contains(hint), "{hint} is missing in\n{errors}");
    }
    assert_eq!(railnet(&["replay"]).status.code(), Some(2));
    let help = text(&railnet(&["replay", "--help"]).stdout);
    assert!(help.contains("railnet replay testdata/rxe/cm_rping.pcap"), "{help}");
}
