//! A dissector written by others reads what Railnet writes: real `tshark`, where it is installed.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests write their files and start tools themselves")]

mod common;

use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use railnet_wire::capture::{LinkType, PcapWriter, PcapngWriter, Precision, Timestamp, infiniband_record};
use railnet_wire::{
    Authentication, EtherType, Ethernet, Extension, HEADROOM, Headers, Link, Opcode, RocePacket, Route,
    emit_route_around,
};

/// Whether `tshark` can be started. Says so where it cannot, and fails where it must.
fn has_tshark() -> bool {
    let is_there =
        Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        assert!(
            std::env::var("RAILNET_REQUIRE_TOOLS").as_deref() != Ok("1"),
            "tshark is required and not on PATH"
        );
        #[allow(clippy::print_stderr, reason = "a test that is left out must say so")]
        {
            eprintln!("SKIPPED: tshark is not on PATH");
        }
    }
    is_there
}

/// Frames of every opcode over IPv4 and IPv6, with and without VLAN tag, padding and authentication.
fn frames() -> Vec<(Headers, Vec<u8>)> {
    let mut runner = TestRunner::deterministic();
    let mut frames = Vec::new();
    for &opcode in Opcode::ALL {
        let mut versions = [false; 2];
        while versions != [true; 2] {
            let strategy = (common::ethernet(), common::network(), common::headers_of(opcode), 0..40usize);
            let (ethernet, network, headers, length) = strategy.new_tree(&mut runner).unwrap().current();
            let ether_type = if network.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
            versions[usize::from(network.is_ipv4())] = true;
            let ethernet = Ethernet { ether_type, ..ethernet };
            let payload: Vec<u8> = (0..payload_length(opcode, length)).map(|byte| byte as u8).collect();
            let packet = RocePacket::new(Some(ethernet), &network, headers, &payload);
            frames.push((headers, packet.to_bytes()));
            // What authenticates it is the end of its payload to others.
            let authentication = Authentication { counter: frames.len() as u64, tag: [0x5a; 16] };
            frames.push((headers, packet.with_authentication(authentication).to_bytes()));
        }
    }
    frames
}

/// Bytes of payload that fit the opcode.
fn payload_length(opcode: Opcode, wish: usize) -> usize {
    match opcode {
        Opcode::RcAtomicWrite => 8,
        Opcode::RcReadRequest
        | Opcode::RcAcknowledge
        | Opcode::RcAtomicAcknowledge
        | Opcode::RcCompareSwap
        | Opcode::RcFetchAdd
        | Opcode::RcFlush
        | Opcode::Cnp => 0,
        _ => wish,
    }
}

/// What tshark finds in a file: opcode, queue pair and sequence number by packet, and whether it is malformed.
fn dissect(file: &std::path::Path) -> Vec<(u32, u32, u32, String)> {
    let fields = ["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "_ws.malformed"];
    let arguments = fields.into_iter().flat_map(|field| ["-e", field]);
    // It guesses at payloads: some of ours look like the beginning of RPC over RDMA.
    let output = Command::new("tshark")
        .args(["--disable-protocol", "rpcordma"])
        .arg("-r")
        .arg(file)
        .args(["-T", "fields"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap_or(u32::MAX),
    };
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let mut columns = line.split('\t').chain(std::iter::repeat(""));
            let mut next = || columns.next().unwrap();
            (number(next()), number(next()), number(next()), next().to_owned())
        })
        .collect()
}

#[test]
fn tshark_reads_every_opcode_from_both_capture_formats() {
    if !has_tshark() {
        return;
    }
    let frames = frames();
    let mut pcapng = PcapngWriter::new(Vec::new()).unwrap();
    let port = pcapng.interface("railnet0", LinkType::ETHERNET, 12).unwrap();
    let mut pcap = PcapWriter::new(Vec::new(), Precision::Nanoseconds, LinkType::ETHERNET).unwrap();
    for (index, (headers, frame)) in frames.iter().enumerate() {
        let time = Timestamp::new(0, index as u64 * 80_000);
        pcapng.write(port, time, frame, &[headers.bth.opcode.name()]).unwrap();
        pcap.write(time, frame).unwrap();
    }
    for (name, file) in [("all.pcapng", pcapng.finish().unwrap()), ("all.pcap", pcap.finish().unwrap())] {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, file).unwrap();
        let found = dissect(&path);
        assert_eq!(found.len(), frames.len(), "{name}");
        for ((headers, _), (opcode, destination, psn, malformed)) in frames.iter().zip(found) {
            let bth = headers.bth;
            let expected = (bth.opcode as u32, bth.destination.value(), bth.psn.value());
            assert_eq!((opcode, destination, psn), expected, "{name}: {headers:?}");
            assert_eq!(malformed, "", "{name}: {headers:?}");
        }
    }
}

/// What tshark finds in a file, by packet: the fields of this name, and at the end whether the packet is malformed.
fn fields(file: &std::path::Path, names: &[&str]) -> Vec<Vec<String>> {
    let arguments = names.iter().chain(&["_ws.malformed"]).flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .args(["--disable-protocol", "rpcordma", "-r"])
        .arg(file)
        .args(["-T", "fields"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Packets of every opcode with routes of this kind, in a capture of this link type.
fn write_routed(name: &str, link_type: LinkType, route: impl Strategy<Value = Route>) -> Written {
    let mut runner = TestRunner::deterministic();
    let mut pcapng = PcapngWriter::new(Vec::new()).unwrap();
    let port = pcapng.interface("railnet0", link_type, 12).unwrap();
    let mut packets = Vec::new();
    for (index, opcode) in Opcode::ALL.iter().flat_map(|opcode| [*opcode; 4]).enumerate() {
        let time = Timestamp::new(0, index as u64 * 80_000);
        let headers = common::headers_of(opcode).new_tree(&mut runner).unwrap().current();
        let route = route.new_tree(&mut runner).unwrap().current();
        let mut buffer = vec![0; HEADROOM];
        buffer.extend((0..payload_length(opcode, index % 40)).map(|byte| byte as u8));
        let start = emit_route_around(&mut buffer, &route, &headers, &Extension::NONE);
        let record = match link_type {
            LinkType::ERF => infiniband_record(time, &buffer[start..]),
            _ => buffer.split_off(start),
        };
        pcapng.write(port, time, &record, &[]).unwrap();
        packets.push((route, headers));
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, pcapng.finish().unwrap()).unwrap();
    Written { path, packets }
}

struct Written {
    path: std::path::PathBuf,
    packets: Vec<(Route, Headers)>,
}

/// A number as tshark writes it.
fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

#[test]
fn tshark_reads_packets_of_infiniband_links() {
    if !has_tshark() {
        return;
    }
    let route = common::infiniband_route();
    let Written { path, packets } = write_routed("infiniband.pcapng", LinkType::ERF, route);
    let names = [
        "infiniband.lrh.vl",
        "infiniband.lrh.sl",
        "infiniband.lrh.slid",
        "infiniband.lrh.dlid",
        "infiniband.grh.hoplmt",
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
    ];
    let found = fields(&path, &names);
    assert_eq!(found.len(), packets.len());
    for ((route, headers), found) in packets.iter().zip(found) {
        let Link::Infiniband(lrh) = route.link else { panic!("{route:?}") };
        let local =
            [lrh.virtual_lane.into(), lrh.service_level.into(), lrh.source.0.into(), lrh.target.0.into()];
        assert_eq!(found[..4].iter().map(|text| number(text)).collect::<Vec<u64>>(), local, "{route:?}");
        let hop_limit = route.grh.map(|grh| u64::from(grh.hop_limit));
        assert_eq!((!found[4].is_empty()).then(|| number(&found[4])), hop_limit, "{route:?}");
        let bth = [headers.bth.opcode as u64, headers.bth.psn.value().into()];
        assert_eq!(found[5..7].iter().map(|text| number(text)).collect::<Vec<u64>>(), bth, "{headers:?}");
        assert_eq!(found[7], "", "{route:?} {headers:?}");
    }
}

#[test]
fn tshark_reads_roce_v1() {
    if !has_tshark() {
        return;
    }
    let Written { path, packets } =
        write_routed("roce-v1.pcapng", LinkType::ETHERNET, common::roce_v1_route());
    let names = ["frame.protocols", "infiniband.grh.paylen", "infiniband.bth.opcode", "infiniband.bth.psn"];
    let found = fields(&path, &names);
    assert_eq!(found.len(), packets.len());
    for ((_, headers), found) in packets.iter().zip(found) {
        assert!(found[0].contains("infiniband") && !found[0].contains("udp"), "{}", found[0]);
        let bth = [headers.bth.opcode as u64, headers.bth.psn.value().into()];
        assert_eq!(found[2..4].iter().map(|text| number(text)).collect::<Vec<u64>>(), bth, "{headers:?}");
        assert_eq!(found[4], "", "{headers:?}");
    }
}
