//! Everything that real Soft-RoCE sent is understood, checked, and built again byte for byte.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use railnet_wire::mad::{CmaHeader, ConnectionMad, MAD_LENGTH, MANAGEMENT_QUEUE_PAIR, Message};
use railnet_wire::{
    Frame, HEADROOM, Identification, Network, Opcode, RocePacket, emit_around, fill_udp_checksum, icrc,
    parse_datagram, parse_packet,
};

fn each_packet(mut check: impl FnMut(&str, &[u8], RocePacket<'_>)) -> usize {
    let mut count = 0;
    for (name, packets) in common::golden() {
        for (index, packet) in packets.iter().enumerate() {
            let place = format!("{name} packet {}", index + 1);
            match packet.frame() {
                Ok(Frame::Roce(roce)) => check(&place, &packet.bytes, roce),
                other => panic!("{place}: {other:?}"),
            }
            count += 1;
        }
    }
    count
}

/// The UDP payload of a frame without VLAN tag.
fn datagram<'a>(frame: &'a [u8], packet: &RocePacket<'_>) -> &'a [u8] {
    &frame[14 + packet.ip.length() + 8..]
}

#[test]
fn every_packet_has_a_good_icrc_by_every_method() {
    let count = each_packet(|place, frame, packet| {
        assert!(packet.icrc.is_good(), "{place}");
        let network = packet.network();
        let datagram = datagram(frame, &packet);
        let blind = Network { identification: 0, ..network };
        let recovered = icrc::verify(&blind, datagram, Identification::Any);
        assert_eq!(recovered, Some(network.identification), "{place}");
        assert_eq!(icrc::verify_unknown_id(&blind, datagram, u16::MAX), recovered, "{place}");
        let bounded = icrc::verify(&blind, datagram, Identification::SEGMENTS);
        assert_eq!(bounded, recovered.filter(|&id| id <= 63), "{place}");
        let transport = &datagram[..packet.headers.length()];
        assert_eq!(icrc::of_parts(&network, transport, &[packet.payload]), packet.icrc.found, "{place}");
    });
    assert_eq!(count, 1714);
}

#[test]
fn every_packet_is_built_again_byte_for_byte() {
    each_packet(|place, frame, packet| {
        assert_eq!(packet.to_bytes(), frame, "{place}");

        // The fast way writes no UDP checksum; the kernel filled that in for the sockets of `user_*`.
        let mut expected = frame.to_vec();
        let checksum = 14 + packet.ip.length() + 6;
        expected[checksum..checksum + 2].fill(0);
        let mut buffer = vec![0xee; HEADROOM];
        buffer.extend_from_slice(packet.payload);
        let start = emit_around(
            &mut buffer,
            packet.ethernet.as_ref(),
            &packet.network(),
            &packet.headers,
            &packet.extension,
        );
        assert_eq!(buffer[start..], expected, "{place}");
    });
}

#[test]
fn the_udp_checksum_is_the_one_that_the_kernel_filled_in() {
    let mut filled = 0;
    each_packet(|place, frame, packet| {
        let mut ours = frame.to_vec();
        fill_udp_checksum(&mut ours[14..]).unwrap();
        let Ok(Frame::Roce(again)) = Frame::parse(&ours) else { panic!("{place} is still RoCE") };
        assert!(again.icrc.is_good(), "{place}: the ICRC leaves the checksum out");
        assert_ne!(again.udp.checksum, 0, "{place}");
        if packet.udp.checksum != 0 {
            assert_eq!(ours, frame, "{place}");
            filled += 1;
        }
    });
    assert_eq!(filled, 410);
}

#[test]
fn the_drivers_parsers_agree_with_the_frame_parser() {
    each_packet(|place, frame, packet| {
        let ip = &frame[14..];
        let (network, parsed) = parse_packet(ip).unwrap();
        assert_eq!((network, parsed.headers), (packet.network(), packet.headers), "{place}");
        assert_eq!(&ip[parsed.payload.clone()], packet.payload, "{place}");
        assert!(parsed.icrc_is_good(), "{place}");

        let datagram = datagram(frame, &packet);
        let blind = Network { identification: 0, ..network };
        let parsed = parse_datagram(&blind, datagram, Identification::Any).unwrap();
        assert_eq!(parsed.identification, Some(network.identification), "{place}");
        assert_eq!(&datagram[parsed.payload], packet.payload, "{place}");
    });
}

#[test]
fn every_connection_message_is_built_again_byte_for_byte() {
    let mut names = Vec::new();
    each_packet(|place, _, packet| {
        let is_management = packet.headers.bth.destination.value() == MANAGEMENT_QUEUE_PAIR;
        if !is_management || packet.headers.bth.opcode != Opcode::UdSendOnly {
            return;
        }
        let mad = ConnectionMad::parse(packet.payload).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(packet.payload.len(), MAD_LENGTH, "{place}");
        assert_eq!(mad.to_bytes(), packet.payload, "{place}");
        if let Message::Request(request) = mad.message {
            let cma = CmaHeader::parse(&request.private).unwrap();
            assert_eq!(cma.source, request.primary.local_gid.to_ip(), "{place}");
            assert_eq!(cma.target, request.primary.remote_gid.to_ip(), "{place}");
            assert_eq!(request.service.as_ip().map(|(protocol, _)| protocol), Some(6), "{place}");
            let mut again = request.private;
            cma.emit(&mut again);
            assert_eq!(again, request.private, "{place}");
        }
        names.push(mad.message.name());
    });
    for (name, count) in [("REQ", 5), ("REP", 4), ("RTU", 4), ("REJ", 1), ("DREQ", 5), ("DREP", 5)] {
        assert_eq!(names.iter().filter(|&&found| found == name).count(), count, "{name}");
    }
}
