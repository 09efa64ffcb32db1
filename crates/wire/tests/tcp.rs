//! TCP segments: what is emitted is read again, with a good checksum, and tshark reads it as TCP.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests write their files and start tools themselves")]

use std::net::IpAddr;
use std::process::Command;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use railnet_wire::capture::{LinkType, PcapngWriter, Timestamp};
use railnet_wire::{Frame, SackBlocks, Tcp, TcpFlags, TcpOptions, TcpRoute, tcp_packet};

prop_compose! {
    fn options()(
        segment_size: Option<u16>, window_scale in proptest::option::of(0..15u8), sack_permitted: bool,
        timestamps: Option<(u32, u32)>, blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..4), is_first: bool,
    ) -> TcpOptions {
        // A SYN has some, all other segments the rest: no more fit.
        let data = TcpOptions { timestamps, sack: blocks.into_iter().collect(), ..TcpOptions::default() };
        let first = TcpOptions { segment_size, window_scale, sack_permitted, timestamps, sack: SackBlocks::default() };
        if is_first { first } else { data }
    }
}

prop_compose! {
    fn tcp()(
        ports: (u16, u16), numbers: (u32, u32), flags: u8, window: u16, urgent: u16, options in options(),
    ) -> Tcp {
        Tcp {
            source_port: ports.0, target_port: ports.1, sequence: numbers.0, acknowledgement: numbers.1,
            flags: TcpFlags(flags), window, urgent, options,
        }
    }
}

prop_compose! {
    fn route()(is_ipv4: bool, ends: ([u8; 16], [u8; 16]), traffic_class: u8, hop_limit: u8, identification: u16) -> TcpRoute {
        let address = |bytes: [u8; 16]| match is_ipv4 {
            true => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
            false => IpAddr::from([&[0xfd], &bytes[1..]].concat().first_chunk::<16>().copied().unwrap()),
        };
        let (source, target) = (address(ends.0), address(ends.1));
        TcpRoute { source, target, traffic_class, hop_limit, identification }
    }
}

proptest! {
    #[test]
    fn what_is_emitted_is_read_again(
        route in route(), tcp in tcp(), payload in proptest::collection::vec(any::<u8>(), 0..200), place: usize,
    ) {
        let bytes = tcp_packet(None, &route, &tcp, &payload);
        let Ok(Frame::Tcp(packet)) = Frame::parse_ip(&bytes) else { panic!("{:?}", Frame::parse_ip(&bytes)) };
        prop_assert_eq!((packet.tcp, packet.payload), (tcp, &payload[..]));
        prop_assert!(packet.checksum_is_good);
        // A flipped bit of the segment shows in the checksum, or the segment is none any more.
        let front = bytes.len() - tcp.length() - payload.len();
        let bit = place % ((bytes.len() - front) * 8);
        let mut damaged = bytes.clone();
        damaged[front + bit / 8] ^= 1 << (bit % 8);
        if let Ok(Frame::Tcp(packet)) = Frame::parse_ip(&damaged) {
            prop_assert!(!packet.checksum_is_good);
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), words in 5..16u8) {
        let _ = Tcp::parse(&bytes);
        let mut header = [&[0; 12][..], &[words << 4, 0x10, 0, 0, 0, 0, 0, 0], &bytes].concat();
        header.resize(80, 1);
        let _ = Tcp::parse(&header);
    }
}

#[test]
fn options_lie_where_linux_puts_them() {
    let timestamps = Some((1, 2));
    let first = TcpOptions {
        segment_size: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps,
        ..TcpOptions::default()
    };
    let sack = [(3, 4)].into_iter().collect();
    let data = TcpOptions { timestamps, sack, ..TcpOptions::default() };
    let written = |options: TcpOptions| {
        let tcp = Tcp {
            source_port: 1,
            target_port: 2,
            sequence: 0,
            acknowledgement: 0,
            flags: TcpFlags::ACK,
            window: 0,
            urgent: 0,
            options,
        };
        let mut out = vec![0; tcp.length()];
        tcp.emit(&mut out);
        out.split_off(Tcp::LENGTH)
    };
    assert_eq!(written(first), [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
    assert_eq!(written(data), [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 0, 3, 0, 0, 0, 4]);
}

#[test]
fn tshark_reads_them_as_tcp() {
    let is_there =
        Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        assert!(
            std::env::var("RAILNET_REQUIRE_TOOLS").as_deref() != Ok("1"),
            "tshark is required and not on PATH"
        );
        return;
    }
    let (mut runner, mut segments) = (TestRunner::deterministic(), Vec::new());
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let port = writer.interface("host0", LinkType::RAW, 12).unwrap();
    for index in 0..100u64 {
        let (route, tcp) = (route(), tcp()).new_tree(&mut runner).unwrap().current();
        // Well-known ports would have their own dissectors look at the data.
        let tcp = Tcp { source_port: 60_001, target_port: 60_000 + index as u16, ..tcp };
        let bytes = tcp_packet(None, &route, &tcp, &vec![7; index as usize]);
        writer.write(port, Timestamp::new(0, index * 1_000_000), &bytes, &[]).unwrap();
        segments.push(tcp);
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tcp.pcapng");
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    let fields = ["tcp.seq_raw", "tcp.ack_raw", "tcp.checksum.status", "tcp.len", "_ws.malformed"];
    let output = Command::new("tshark")
        .args(["-o", "tcp.check_checksum:TRUE", "-r"])
        .arg(&path)
        .args(["-T", "fields"])
        .args(fields.into_iter().flat_map(|field| ["-e", field]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), segments.len());
    for (line, (index, tcp)) in text.lines().zip((0..).zip(&segments)) {
        let found: Vec<&str> = line.split('\t').collect();
        let (sequence, acknowledgement) = (tcp.sequence.to_string(), tcp.acknowledgement.to_string());
        assert_eq!(found, [&sequence, &acknowledgement, "1", &format!("{index}"), ""], "{tcp:?}");
    }
}
