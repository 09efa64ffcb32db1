//! `railnet decode` from outside: what it prints and how it exits.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness;
use crate::harness::{golden, is_installed, left_out, railnet, text, written};

#[test]
fn a_line_per_packet_tells_what_it_is() {
    let output = railnet(&["decode", &golden("cm_rping.pcap")]);
    let lines = text(&output.stdout);
    assert!(output.status.success());
    assert_eq!(lines.lines().count(), 29);
    let expected = [
        "0.000000 us  10.77.0.3:55410 → 10.77.0.2:4791  UD SEND Only  qp 0x1",
        "CM REQ",
        "from 10.77.0.3:39971  to 10.77.0.2",
        "158050.000000 us  10.77.0.2:50255 → 10.77.0.3:4791  RC Acknowledge  qp 0x67  psn 10170903  ACK  msn 1  0 B  ICRC good",
        "RC READ Request  qp 0x67  psn 12140447  ack request  address 0x555cce2200e0  rkey 0x635f  length 100 B",
        "CM DREP",
    ];
    for part in expected {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    let refused = text(&railnet(&["decode", &golden("cm_reject_no_listener.pcap")]).stdout);
    assert!(refused.contains("CM REJ") && refused.contains("reason 8 (invalid service id)"), "{refused}");
    let v6 = text(&railnet(&["decode", &golden("v6_ud_send_33B.pcap")]).stdout);
    assert!(v6.contains("[fd77::3]:63843 → [fd77::2]:4791") && v6.contains("33 B"), "{v6}");
}

#[test]
fn json_lines_hold_every_field() {
    let output = railnet(&["decode", "--json", &golden("rc_cas_match.pcap")]);
    assert!(output.status.success());
    let objects: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 6);
    assert_eq!(objects[4]["opcode"], "RC CmpSwap");
    assert_eq!(objects[4]["opcode_number"], 0x13);
    assert_eq!(objects[4]["qp"], 0x68);
    assert_eq!(objects[4]["compare"], 0x9791_8b85_7f79_736d_u64);
    assert_eq!(objects[4]["source"], "10.77.0.3");
    assert_eq!(objects[5]["icrc_is_good"], true);
}

#[test]
fn a_check_passes_good_captures_and_fails_damaged_ones() {
    let file = golden("rc_all_ops_mtu256_1000B.pcap");
    let good = railnet(&["decode", "--check", &file]);
    assert_eq!(good.status.code(), Some(0));
    assert_eq!(text(&good.stderr), "good: 25 packets, 25 RoCE, 0 with a bad ICRC, 0 malformed\n");

    let mut bytes = fs::read(&file).unwrap();
    // A byte of the first packet's payload: behind file header, packet header, Ethernet, IP, UDP and BTH.
    bytes[24 + 16 + 14 + 20 + 8 + 12 + 5] ^= 0x10;
    let damaged = written("damaged.pcap", &bytes);
    let bad = railnet(&["decode", "--check", damaged.as_str()]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(text(&bad.stdout).contains("ICRC BAD (found 0x"));
    assert_eq!(text(&bad.stderr), "BAD: 25 packets, 25 RoCE, 1 with a bad ICRC, 0 malformed\n");
    assert_eq!(railnet(&["decode", damaged.as_str()]).status.code(), Some(0));

    bytes[24 + 16 + 14 + 20 + 8] = 0xff;
    let unknown = written("unknown-opcode.pcap", &bytes);
    let malformed = railnet(&["decode", "--check", unknown.as_str()]);
    assert_eq!(malformed.status.code(), Some(1));
    assert!(text(&malformed.stdout).contains("malformed:  BTH opcode 0xff"), "{}", text(&malformed.stdout));
}

#[test]
fn pause_frames_and_foreign_packets_are_named() {
    use railnet_wire::capture::{LinkType, PcapngWriter, Timestamp};
    use railnet_wire::{Mac, Pause};
    let mut pause = Pause::default();
    pause.quanta[3] = Some(0xffff);
    pause.quanta[4] = Some(0);
    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let port = writer.interface("port", LinkType::ETHERNET, 12).unwrap();
    writer.write(port, Timestamp::new(0, 5), &pause.to_frame(Mac([2, 0, 0, 0, 0, 1])), &[]).unwrap();
    writer.write(port, Timestamp::new(0, 80_007), &arp, &["not ours", "\x1b[2J"]).unwrap();
    let file = written("pause.pcapng", &writer.finish().unwrap());
    let output = railnet(&["decode", "--check", file.as_str()]);
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(lines.contains("PFC pause  priority 3 65535 quanta  priority 4 resume"), "{lines}");
    let json = text(&railnet(&["decode", "--json", file.as_str()]).stdout);
    assert!(json.contains(r#""interface_name":"port""#) && json.contains(r#""what":"ARP""#), "{json}");
    assert!(lines.contains("0.080002 us  not RoCE:  ARP  # not ours  # \\u{1b}[2J\n"), "{lines}");
}

#[test]
fn extension_headers_are_read_aloud() {
    use railnet_core::{Bytes, Psn, QueuePairNumber, Rate, Time};
    use railnet_wire::capture::{LinkType, PcapngWriter, Timestamp};
    use railnet_wire::{
        Aeth, Bth, CongestionEcho, EtherType, Ethernet, Extended, Extension, Gid, Headers, Hop, Mac, Network,
        Opcode, RocePacket, SelectiveAck, Syndrome, TelemetryBlock,
    };
    let hop = |queued| Hop::new(Rate::gbps(100), Time::from_ps(7_000), Bytes(5_120), Bytes(queued));
    let hops = [hop(1_024), hop(51_200)].into_iter().collect();
    let bth = Bth::new(Opcode::RcWriteMiddle, QueuePairNumber::new(0x11), Psn::new(7));
    let data = Headers { bth, extended: Extended::None };
    let gathered = Extension { telemetry: TelemetryBlock::Gathered(hops), ..Extension::NONE };
    let extended = Extended::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 });
    let answer = Headers { bth: Bth { opcode: Opcode::RcAcknowledge, ..bth }, extended };
    let echoed = Extension {
        telemetry: TelemetryBlock::Echoed(hops),
        congestion: Some(CongestionEcho { marked: 1, packets: 3 }),
        selective: Some(SelectiveAck::new(Psn::new(9), 0b101)),
    };
    let network = Network {
        source: Gid::from_ip([10, 0, 0, 1].into()),
        target: Gid::from_ip([10, 0, 0, 2].into()),
        source_port: 0xc000,
        target_port: railnet_wire::ROCE_PORT,
        traffic_class: 2,
        hop_limit: 64,
        identification: 0,
        flow_label: 0,
    };
    let (target, source) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    let ethernet = Ethernet { target, source, vlan: None, ether_type: EtherType::IPV4 };
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let port = writer.interface("port", LinkType::ETHERNET, 12).unwrap();
    for (headers, extension) in [(data, gathered), (answer, echoed)] {
        let packet = RocePacket::with_extension(Some(ethernet), &network, headers, extension, b"");
        let bytes = packet.to_bytes();
        writer.write(port, Timestamp::new(0, 0), &bytes, &[]).unwrap();
    }
    let file = written("extensions.pcapng", &writer.finish().unwrap());
    let output = railnet(&["decode", "--check", file.as_str()]);
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{lines}");
    let expected = [
        "RC WRITE Middle  qp 0x11  psn 7  telemetry 1 KiB at 100 Gbps, 50 KiB at 100 Gbps  0 B  ICRC good",
        "RC Acknowledge  qp 0x11  psn 7  telemetry echo 1 KiB at 100 Gbps, 50 KiB at 100 Gbps  \
         1 of 3 packets marked  arrived early 2 from psn 9  ACK",
    ];
    for part in expected {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    let json = text(&railnet(&["decode", "--json", file.as_str()]).stdout);
    let objects: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects[0]["is_extended"], true);
    assert_eq!(objects[0]["telemetry"][1]["queued_bytes"], 51_200);
    assert_eq!(objects[1]["telemetry_echo"][0]["sent_bytes"], 5_120);
    assert_eq!(objects[1]["congestion_echo"]["marked"], 1);
    assert_eq!(objects[1]["selective_ack"]["arrived"], serde_json::json!([9, 11]));
}

#[test]
fn what_cannot_be_read_is_an_error_with_a_reason() {
    let text_file = written("notes.txt", b"no capture at all");
    let empty = written("empty.pcap", b"");
    let whole = fs::read(golden("rc_cas_match.pcap")).unwrap();
    let cut = written("cut.pcap", &whole[..500]);
    let directory = env!("CARGO_TARGET_TMPDIR");
    let cases = [
        (text_file.as_str(), "not a pcap or pcapng capture"),
        (empty.as_str(), "the file is empty"),
        (cut.as_str(), "cut off at byte 500"),
        (directory, "is a directory"),
        ("/no/such/file.pcap", "cannot read /no/such/file.pcap: there is no such file"),
    ];
    for (file, reason) in cases {
        let output = railnet(&["decode", file]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{file}: {message}");
        assert!(message.starts_with("error: ") && message.contains(reason), "{file}: {message}");
    }
    // The packets before the cut are still printed.
    assert_eq!(text(&railnet(&["decode", cut.as_str()]).stdout).lines().count(), 4);
}

#[test]
fn wrong_usage_exits_with_2_and_help_is_no_failure() {
    assert_eq!(railnet(&["decode"]).status.code(), Some(2));
    assert_eq!(railnet(&["no-such-command"]).status.code(), Some(2));
    let help = railnet(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("Usage: railnet"));
    assert!(text(&railnet(&["decode", "--help"]).stdout).contains("Examples:"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::io::Read;
    use std::process::Stdio;
    let mut child = harness::command::<&str>(&[])
        .args(["decode", &golden("user_udp_socket_vs_rxe.pcap"), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// The captures of a job of three ranks over RoCE.
fn captured(name: &str, port: Option<&str>) -> [String; 3] {
    let stem = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("live-{name}.pcapng"));
    let mut command = harness::command::<&str>(&[]);
    for variable in ["RANK", "WORLD_SIZE", "RAILNET_LAUNCHER", "RAILNET_ROCE_PORT"] {
        command.env_remove(variable);
    }
    if let Some(port) = port {
        command.env("RAILNET_ROCE_PORT", port);
    }
    let words = ["perf", "all_reduce", "-n", "3", "--conduit", "roce", "-b", "8", "-e", "64K", "-f", "8192"];
    let output = command.args(words).args(["--iterations", "2"]).env("RAILNET_PCAP", &stem).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    [0, 1, 2].map(|rank| format!("{}.rank{rank}", stem.display()))
}

#[test]
fn every_packet_of_a_live_job_is_roce() {
    // At RoCEv2's port, and at ports of their own, where the ICRC tells.
    for (name, port) in [("own", None), ("ports", Some("42791"))] {
        for file in captured(name, port) {
            let output = railnet(&["decode", "--check", &file]);
            let verdict = text(&output.stderr);
            assert!(output.status.success(), "{file}: {verdict}");
            let packets = text(&output.stdout).lines().count();
            let expected = format!("good: {packets} packets, {packets} RoCE, 0 with a bad ICRC, 0 malformed");
            assert!(packets > 50 && verdict.contains(&expected), "{file}: {verdict}");
        }
    }
}

#[test]
fn tshark_finds_every_packet_of_a_live_job_without_options() {
    if !is_installed("tshark") {
        return;
    }
    // Where another program has RoCEv2's port at all addresses, ranks have others.
    if std::net::UdpSocket::bind(("127.77.0.1", 4791)).is_err() {
        left_out("port 4791 is taken on this machine");
        return;
    }
    for file in captured("tshark", None) {
        let lines = |filter: &[&str]| {
            let output = Command::new("tshark").args(["-r", &file]).args(filter).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout).lines().count()
        };
        let all = lines(&[]);
        assert!(all > 50);
        assert_eq!(lines(&["-Y", "infiniband.bth"]), all, "{file}");
    }
}
