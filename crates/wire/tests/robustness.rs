//! No bytes whatever bring a parser down, damage is found, and what is emitted is read back as it was.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use std::panic::catch_unwind;

use common::{ethernet, extension, headers, headers_of, network, representative};
use proptest::prelude::*;
use railnet_wire::capture::{LinkType, PcapWriter, PcapngWriter, Precision, Reader, Timestamp};
use railnet_wire::mad::{CmaHeader, ConnectionMad};
use railnet_wire::{
    EtherType, Ethernet, Frame, HEADROOM, Headers, Identification, Malformed, Network, Opcode, Pause,
    RocePacket, emit_around, icrc, parse_datagram, parse_packet,
};

/// What a socket knows of a datagram.
fn blind() -> Network {
    Network {
        source: railnet_wire::Gid::from_ip([10, 0, 0, 1].into()),
        target: railnet_wire::Gid::from_ip([10, 0, 0, 2].into()),
        source_port: 0xc000,
        target_port: railnet_wire::ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        flow_label: 0,
    }
}

/// Feeds bytes to everything that parses. Errors must say something; panics fail the test by themselves.
fn parse_everything(bytes: &[u8]) {
    fn reason<T>(result: &Result<T, Malformed>) {
        if let Err(error) = result {
            assert!(!error.to_string().is_empty());
        }
    }
    reason(&Frame::parse(bytes));
    reason(&Frame::parse_ip(bytes));
    reason(&parse_packet(bytes));
    reason(&parse_datagram(&blind(), bytes, Identification::Any));
    reason(&icrc::of_packet(bytes));
    reason(&Headers::parse(bytes));
    reason(&Pause::parse(bytes));
    reason(&ConnectionMad::parse(bytes));
    reason(&CmaHeader::parse(bytes));
}

#[test]
fn lengths_beyond_what_ip_can_hold_are_refused() {
    /// What is left of 65,535 bytes behind the headers of IPv4 and UDP.
    const MOST: usize = 65_507;
    for length in [64, MOST - 3, MOST - 1, MOST, MOST + 1, 65_527, 65_536, 200_000] {
        let mut bytes = vec![0; length];
        // A SEND of one packet.
        bytes[0] = 0x04;
        parse_everything(&bytes);
        let parsed = parse_datagram(&blind(), &bytes, Identification::Any);
        let is_too_long =
            matches!(parsed, Err(Malformed::Length { stated, most: MOST, .. }) if stated == length);
        assert_eq!(is_too_long, length > MOST, "{length}: {parsed:?}");
        // IPv4 and IPv6, which say that they are of another length.
        for first in [0x45, 0x60] {
            bytes[0] = first;
            parse_everything(&bytes);
            assert!(parse_packet(&bytes).is_err(), "{length} bytes from {first:#x} on");
        }
    }
}

#[test]
fn every_truncation_of_real_packets_is_refused_with_a_reason() {
    for frame in representative() {
        for length in 0..frame.len() {
            let cut = &frame[..length];
            parse_everything(cut);
            if let Ok(Frame::Roce(packet)) = Frame::parse(cut) {
                panic!("{length} of {} bytes passed as {packet:?}", frame.len());
            }
            parse_everything(&frame[length..]);
        }
    }
}

#[test]
fn every_flipped_bit_is_found_unless_routers_may_change_it() {
    let mut flips = 0;
    for frame in representative() {
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            parse_everything(&damaged);
            let (ip, at) = (&damaged[14..], (bit / 8).wrapping_sub(14));
            let covered = ip.len() - 4;
            let stored = u32::from_le_bytes(ip[covered..].try_into().unwrap());
            let is_ethernet = bit / 8 < 14;
            let is_masked = is_ethernet || may_change(ip, at, bit % 8);
            // A flip of the IP version makes it another header: parsing finds that before the ICRC does.
            if at != 0 {
                let is_good = icrc::of_packet(&ip[..covered]) == Ok(stored);
                assert_eq!(is_good, is_masked, "byte {at} bit {} of {ip:02x?}", bit % 8);
            }
            let passes = matches!(Frame::parse(&damaged), Ok(Frame::Roce(packet)) if packet.icrc.is_good());
            assert!(!passes || is_masked, "byte {at} bit {} of {ip:02x?}", bit % 8);
            flips += 1;
        }
    }
    assert!(flips > 10_000, "{flips}");
}

/// Whether routers may change this bit of an IP packet: the fields that the ICRC leaves out.
fn may_change(ip: &[u8], at: usize, bit: usize) -> bool {
    let (is_masked, udp) = match frame_version(ip) {
        6 => (at == 0 && bit < 4 || (1..4).contains(&at) || at == 7, 40),
        _ => (matches!(at, 1 | 8 | 10 | 11), 20),
    };
    is_masked || at == udp + 6 || at == udp + 7 || at == udp + 8 + 4
}

fn frame_version(ip: &[u8]) -> u8 {
    ip[0] >> 4
}

#[test]
fn damaged_captures_end_with_an_error_that_names_the_place() {
    let mut pcapng = PcapngWriter::new(Vec::new()).unwrap();
    let port = pcapng.interface("port0", LinkType::ETHERNET, 9).unwrap();
    let mut pcap = PcapWriter::new(Vec::new(), Precision::Microseconds, LinkType::ETHERNET).unwrap();
    for index in 0..3 {
        let time = Timestamp::new(index, 5_000_000);
        pcapng.write(port, time, &[index as u8; 61], &["a remark"]).unwrap();
        pcap.write(time, &[index as u8; 61]).unwrap();
    }
    for file in [pcapng.finish().unwrap(), pcap.finish().unwrap()] {
        let whole: Vec<_> = Reader::new(&file[..]).unwrap().map(Result::unwrap).collect();
        assert_eq!(whole.len(), 3);
        for length in 0..file.len() {
            match Reader::new(&file[..length]) {
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(reader) => {
                    for (index, packet) in reader.enumerate() {
                        match packet {
                            Ok(packet) => assert_eq!(packet, whole[index]),
                            Err(error) => assert!(error.to_string().contains(&format!("byte {length}"))),
                        }
                    }
                }
            }
        }
        for at in 0..file.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let _ = Reader::new(&damaged[..]).map(|reader| reader.for_each(drop));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_bring_a_parser_down(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        parse_everything(&bytes);
        let _ = Reader::new(&bytes[..]).map(|reader| reader.for_each(drop));
    }

    #[test]
    fn arbitrary_bytes_behind_a_good_start_never_bring_a_parser_down(
        which in 0..4usize, rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let starts: [&[u8]; 4] = [
            &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0],
            &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255,
              255, 255, 28, 0, 0, 0, 1, 0, 0, 0],
            &[1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x10],
            &[0xc0, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1],
        ];
        let bytes = [starts[which], &rest].concat();
        parse_everything(&bytes);
        let _ = Reader::new(&bytes[..]).map(|reader| reader.for_each(drop));
    }

    #[test]
    fn connection_messages_survive(attribute in 0x10..0x19u8, body in proptest::collection::vec(any::<u8>(), 240)) {
        let head = [1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0];
        let bytes: Vec<u8> = head.into_iter().chain([attribute]).chain(body).collect();
        let mad = ConnectionMad::parse(&bytes).unwrap();
        prop_assert_eq!(ConnectionMad::parse(&mad.to_bytes()).unwrap(), mad);
    }

    #[test]
    fn pause_frames_survive(quanta in any::<[Option<u16>; 8]>(), source: [u8; 6]) {
        let pause = Pause { quanta };
        let frame = pause.to_frame(railnet_wire::Mac(source));
        let ethernet = Pause::ethernet(railnet_wire::Mac(source));
        prop_assert_eq!(Frame::parse(&frame), Ok(Frame::Pause { ethernet, pause }));
    }

    #[test]
    fn packets_survive(
        ethernet in ethernet(), network in network(), headers in headers(), extension in extension(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let ether_type = if network.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = Ethernet { ether_type, ..ethernet };
        let packet = RocePacket::with_extension(Some(ethernet), &network, headers, extension, &payload);
        let bytes = packet.to_bytes();
        prop_assert_eq!(Frame::parse(&bytes), Ok(Frame::Roce(packet)));
        prop_assert_eq!(packet.network(), network);

        let mut buffer = vec![0xee; HEADROOM];
        buffer.extend_from_slice(&payload);
        let start = emit_around(&mut buffer, Some(&ethernet), &network, &headers, &extension);
        prop_assert_eq!(&buffer[start..], &bytes[..]);
    }
}

#[test]
fn headers_of_every_opcode_survive() {
    use proptest::test_runner::TestRunner;
    for &opcode in Opcode::ALL {
        assert_eq!(Opcode::from_byte(opcode as u8), Some(opcode));
        let config = ProptestConfig::with_cases(64);
        let outcome = TestRunner::new(config).run(&(headers_of(opcode), 0..4usize), |(headers, pad)| {
            let mut bytes = vec![0xee; headers.length() + 5];
            headers.emit(&mut bytes, pad);
            let parsed = Headers::parse(&bytes).unwrap();
            prop_assert_eq!((parsed.headers, parsed.length, parsed.pad), (headers, headers.length(), pad));
            Ok(())
        });
        outcome.unwrap();
    }
}

#[test]
fn opcodes_that_are_not_spoken_are_refused_by_number() {
    // 0xc0 announces an extension header, with its own file of tests.
    for byte in (0..=u8::MAX).filter(|&byte| byte != 0xc0) {
        let mut bytes = [0; 64];
        bytes[0] = byte;
        let refused = Headers::parse(&bytes) == Err(Malformed::UnknownOpcode(byte));
        assert_eq!(refused, Opcode::from_byte(byte).is_none());
    }
}

#[test]
fn headers_that_do_not_fit_their_opcode_are_a_programming_error() {
    let bytes = [0x04, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1];
    let mut headers = Headers::parse(&bytes).unwrap().headers;
    headers.bth.opcode = Opcode::RcReadRequest;
    assert!(!headers.are_consistent());
    if cfg!(debug_assertions) {
        assert!(catch_unwind(|| headers.emit(&mut [0; 64], 0)).is_err());
    }
}
