//! Railnet's extension header: its bytes, what is refused, and what the ICRC makes of what switches write.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{extension, headers, network};
use proptest::prelude::*;
use railnet_core::{Bytes, Psn, QueuePairNumber, Rate, Span, Time};
use railnet_wire::{
    Aeth, Bth, CongestionEcho, Extended, Extension, Gid, HEADROOM, Headers, Hop, Malformed, Network, Opcode,
    Reth, RocePacket, SelectiveAck, Syndrome, Telemetry, TelemetryBlock, emit_around, parse_packet,
};

fn bth(opcode: Opcode) -> Bth {
    Bth::new(opcode, QueuePairNumber::new(0x11), Psn::new(7))
}

fn addressing() -> Network {
    Network {
        source: Gid::from_ip([10, 0, 0, 1].into()),
        target: Gid::from_ip([10, 0, 0, 2].into()),
        source_port: 0xc000,
        target_port: railnet_wire::ROCE_PORT,
        traffic_class: 2,
        hop_limit: 64,
        identification: 0,
        flow_label: 0,
    }
}

fn hop(queued: u64) -> Hop {
    Hop::new(Rate::gbps(100), Time::ZERO + Span::from_ns(1), Bytes(512), Bytes(queued))
}

fn write_with_telemetry() -> (Headers, Extension) {
    let extended = Extended::Reth(Reth { address: 0x1000, key: 3, length: 4 });
    let telemetry = TelemetryBlock::Gathered(Telemetry::EMPTY);
    (Headers { bth: bth(Opcode::RcWriteOnly), extended }, Extension { telemetry, ..Extension::NONE })
}

fn acknowledgement() -> (Headers, Extension) {
    let extended = Extended::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    let extension = Extension {
        telemetry: TelemetryBlock::Echoed([hop(1024)].into_iter().collect()),
        congestion: Some(CongestionEcho { marked: 3, packets: 4 }),
        selective: Some(SelectiveAck::new(Psn::new(9), 0b101)),
    };
    (Headers { bth: bth(Opcode::RcAcknowledge), extended }, extension)
}

fn bytes_of((headers, extension): &(Headers, Extension)) -> Vec<u8> {
    let mut bytes = vec![0xee; headers.length() + extension.length()];
    headers.emit_with(extension, &mut bytes, 0);
    bytes
}

#[test]
fn every_byte_is_where_the_description_has_it() {
    let bytes = bytes_of(&write_with_telemetry());
    let base = [0xc0, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 7];
    assert_eq!(bytes[..12], base);
    assert_eq!(bytes[12..16], [Opcode::RcWriteOnly as u8, 0x80, 0, 0]);
    assert_eq!(bytes[16..56], [0; 40], "room for five switches");
    assert_eq!(bytes[56..64], 0x1000u64.to_be_bytes(), "then the RETH, as always");
    assert_eq!(bytes.len(), 12 + 4 + 40 + 16);

    let bytes = bytes_of(&acknowledgement());
    assert_eq!(bytes[12..16], [Opcode::RcAcknowledge as u8, 0x70, 1, 0]);
    // 100 Gb/s is 5 Gb/s / 256 × 2^12 × 1.25; 1 ns; one unit of 512 B sent, two wait.
    let hop = (12u64 << 59 | 8 << 54 | 1 << 32 | 1 << 14 | 2).to_be_bytes();
    assert_eq!(bytes[16..24], hop);
    assert_eq!(bytes[24..28], [0, 3, 0, 4]);
    assert_eq!(bytes[28..32], [0, 0, 0, 9]);
    assert_eq!(bytes[32..48], 0b101u128.to_be_bytes());
    assert_eq!(bytes[48..], [0x1f, 0, 0, 1], "then the AETH");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field() {
    let wrong = |at: usize, value: u8| {
        let mut bytes = bytes_of(&acknowledgement());
        bytes[at] = value;
        Headers::parse(&bytes).unwrap_err().to_string()
    };
    assert_eq!(wrong(12, 0x1f), "Railnet extension field opcode is 0x1f");
    assert_eq!(wrong(12, 0xc0), "Railnet extension field opcode is 0xc0");
    assert_eq!(wrong(13, 0x71), "Railnet extension field flags is 0x71");
    assert_eq!(wrong(13, 0xc0), "Railnet extension field flags is 0xc0");
    assert_eq!(wrong(13, 0), "Railnet extension field flags is 0x0");
    assert_eq!(wrong(14, 6), "Railnet extension field hops is 0x6");
    assert_eq!(wrong(14, 2), "Railnet extension needs 44 bytes, 40 are there");
}

#[test]
fn every_truncation_is_refused() {
    for packet in [write_with_telemetry(), acknowledgement()] {
        let bytes = bytes_of(&packet);
        for length in 0..bytes.len() {
            let refused = Headers::parse(&bytes[..length]);
            assert!(matches!(refused, Err(Malformed::Truncated { .. })), "{length}: {refused:?}");
        }
    }
}

#[test]
fn switches_may_write_and_the_icrc_stays_right() {
    let (headers, mut extension) = write_with_telemetry();
    let mut bytes = RocePacket::with_extension(None, &addressing(), headers, extension, b"data").to_bytes();
    let transport = 20 + 8;
    let mut told = Telemetry::EMPTY;
    for queued in [1024, 2048, 4096] {
        told.push(hop(queued));
        extension.telemetry = TelemetryBlock::Gathered(told);
        headers.emit_with(&extension, &mut bytes[transport..], 0);
        let (_, datagram) = parse_packet(&bytes).unwrap();
        assert!(datagram.icrc_is_good());
        assert_eq!(datagram.headers, headers);
        assert_eq!(Extension::parse(&bytes[datagram.extension]), Ok(extension));
    }
}

#[test]
fn a_flipped_bit_is_found_unless_switches_may_write_it() {
    for (headers, extension) in [write_with_telemetry(), acknowledgement()] {
        let packet = RocePacket::with_extension(None, &addressing(), headers, extension, b"data");
        let (bytes, transport) = (packet.to_bytes(), 20 + 8);
        let length = headers.length() + extension.length();
        assert_eq!((0..length).filter(|at| extension.varies(*at)).count(), extension.varying_bytes());
        for bit in transport * 8..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let passes = matches!(parse_packet(&damaged), Ok((_, datagram)) if datagram.icrc_is_good());
            let varies = extension.varies(bit / 8 - transport);
            // A number of hops that there is no room for is refused before the ICRC is looked at.
            let hops = extension.varying_bytes() > 1 && bit / 8 == transport + 14;
            assert!(passes == varies || hops && damaged[bit / 8] > 5, "bit {bit} of {packet:?}");
        }
    }
}

#[test]
fn a_bitmap_tells_what_was_put_in_and_nothing_else() {
    let first = Psn::new(Psn::MASK - 3);
    let mut selective = SelectiveAck::new(first, 0);
    let told = [0, 4, 5, 127];
    for step in told.into_iter().chain([128, Psn::MASK]) {
        selective.insert(first.plus(step));
    }
    for step in (0..130).chain([Psn::MASK]) {
        assert_eq!(selective.contains(first.plus(step)), told.contains(&step), "{step}");
    }
    assert_eq!(selective.bits(), 1 | 1 << 4 | 1 << 5 | 1 << 127);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn headers_with_extensions_survive(headers in headers(), extension in extension(), pad in 0..4usize) {
        let length = headers.length() + extension.length();
        let mut bytes = vec![0xee; length + 5];
        headers.emit_with(&extension, &mut bytes, pad);
        let parsed = Headers::parse(&bytes).unwrap();
        prop_assert_eq!((parsed.headers, parsed.length, parsed.pad), (headers, length, pad));
        prop_assert_eq!(Extension::parse(&bytes[Bth::LENGTH..][..parsed.extension]), Ok(extension));
        prop_assert!(length <= Headers::MAX_LENGTH);
        prop_assert_eq!(bytes[0] == 0xc0, !extension.is_none());
    }

    #[test]
    fn arbitrary_blocks_are_read_or_refused_and_written_back_alike(
        opcode in 0..0x20u8, flags in 0..16u8, hops in 0..7u8,
        body in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let front = [0xc0, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, opcode, flags << 4, hops, 0];
        let bytes = [&front[..], &body].concat();
        if let Ok(parsed) = Headers::parse(&bytes) {
            let extension = Extension::parse(&bytes[Bth::LENGTH..][..parsed.extension]).unwrap();
            let again = bytes_of(&(parsed.headers, extension));
            prop_assert_eq!(again.len(), parsed.length);
            prop_assert_eq!(Headers::parse(&again).unwrap().headers, parsed.headers);
            prop_assert_eq!(Extension::parse(&again[Bth::LENGTH..][..parsed.extension]), Ok(extension));
        }
    }

    #[test]
    fn packets_with_extensions_fit_the_headroom(
        network in network(), headers in headers(), extension in extension(),
    ) {
        let mut buffer = vec![0xee; HEADROOM];
        buffer.extend_from_slice(b"payload");
        let start = emit_around(&mut buffer, None, &network, &headers, &extension);
        let (_, datagram) = parse_packet(&buffer[start..]).unwrap();
        prop_assert_eq!(datagram.headers, headers);
        prop_assert_eq!(Extension::parse(&buffer[start..][datagram.extension.clone()]), Ok(extension));
        prop_assert!(datagram.icrc_is_good());
        prop_assert_eq!(&buffer[start..][datagram.payload], b"payload");
    }
}
