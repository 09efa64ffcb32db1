//! InfiniBand packets and RoCE v1: what is emitted is read again, and what is damaged is found.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use proptest::prelude::*;
use railnet_core::{Psn, QueuePairNumber};
use railnet_wire::capture::{ERF_LENGTH, LinkType, PcapngWriter, Reader, Timestamp, infiniband_record};
use railnet_wire::{
    Bth, Extended, Extension, Frame, Framing, Grh, HEADROOM, Headers, InfinibandPacket, Lid, Link, Lrh,
    Malformed, Opcode, Route, VCRC_LENGTH, Vcrc, emit_route_around, forward_infiniband,
};

fn emit(route: &Route, headers: &Headers, extension: &Extension, payload: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; HEADROOM];
    buffer.extend_from_slice(payload);
    let start = emit_route_around(&mut buffer, route, headers, extension);
    buffer.split_off(start)
}

fn parse(framing: Framing, bytes: &[u8]) -> Result<Option<InfinibandPacket<'_>>, Malformed> {
    let frame = match framing {
        Framing::Infiniband => Frame::parse_infiniband(bytes),
        _ => Frame::parse(bytes),
    };
    frame.map(|frame| match frame {
        Frame::Infiniband(packet) => Some(packet),
        _ => None,
    })
}

fn routes() -> impl Strategy<Value = Route> {
    prop_oneof![common::infiniband_route(), common::roce_v1_route()]
}

fn framing(route: &Route) -> Framing {
    match route.link {
        Link::Infiniband(_) => Framing::Infiniband,
        Link::Ethernet(_) => Framing::RoceV1,
    }
}

#[test]
fn captures_of_either_link_type_are_read() {
    let lrh = Lrh { virtual_lane: 1, service_level: 2, source: Lid(3), target: Lid(4), is_global: false };
    let route = Route { link: Link::Infiniband(lrh), grh: None };
    let bth = Bth::new(Opcode::RcSendOnly, QueuePairNumber::new(5), Psn::new(6));
    let packet = emit(&route, &Headers { bth, extended: Extended::None }, &Extension::NONE, b"seven");
    let time = Timestamp::new(1, 500_000_000_000);
    let mut padded = infiniband_record(time, &packet);
    padded.extend([0; 6]);
    // One extension header, which says that none follows.
    let mut extended = infiniband_record(time, &packet);
    extended[8] |= 0x80;
    extended.splice(ERF_LENGTH..ERF_LENGTH, [0x05; 8]);
    let records =
        [(LinkType::INFINIBAND, packet.clone()), (LinkType::ERF, padded), (LinkType::ERF, extended)];
    for (link_type, bytes) in records {
        let mut writer = PcapngWriter::new(Vec::new()).unwrap();
        let port = writer.interface("host0", link_type, 12).unwrap();
        writer.write(port, time, &bytes, &[]).unwrap();
        let file = writer.finish().unwrap();
        let read = Reader::new(&file[..]).unwrap().next_packet().unwrap().unwrap();
        let Ok(Frame::Infiniband(found)) = read.frame() else { panic!("{:?}", read.frame()) };
        assert_eq!((found.route, found.payload), (route, &b"seven"[..]));
        assert!(found.vcrc.is_some_and(Vcrc::is_good));
    }
    assert_eq!(infiniband_record(time, &packet)[..8], [0, 0, 0, 0x80, 1, 0, 0, 0]);
}

proptest! {
    #[test]
    fn what_is_emitted_is_read_again(
        route in routes(), headers in common::headers(), extension in common::extension(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = emit(&route, &headers, &extension, &payload);
        let packet = parse(framing(&route), &bytes).unwrap().unwrap();
        prop_assert_eq!((packet.route, packet.headers, packet.extension), (route, headers, extension));
        prop_assert_eq!((packet.payload, packet.trailer), (&payload[..], &[][..]));
        prop_assert!(packet.icrc.is_good() && packet.authentication.is_none());
        prop_assert_eq!(packet.vcrc.map(Vcrc::is_good), (packet.framing() == Framing::Infiniband).then_some(true));
    }

    /// The ICRC covers what no switch and no router changes, and nothing else.
    #[test]
    fn what_changes_on_the_way_leaves_the_icrc_right(
        route in routes(), headers in common::headers(), lane in 0..16u8, class: u8, flow in 0..1u32 << 20, hops: u8,
        target: u16,
    ) {
        let bytes = emit(&route, &headers, &Extension::NONE, b"payload");
        let before = parse(framing(&route), &bytes).unwrap().unwrap().icrc.found;
        let changed = |grh: Grh| Grh { traffic_class: class, flow_label: flow, hop_limit: hops, ..grh };
        let mut other = Route { grh: route.grh.map(changed), ..route };
        if let Link::Infiniband(lrh) = &mut other.link {
            lrh.virtual_lane = lane;
        }
        let icrc = |route: &Route| {
            let bytes = emit(route, &headers, &Extension::NONE, b"payload");
            parse(framing(route), &bytes).unwrap().unwrap().icrc.found
        };
        prop_assert_eq!(icrc(&other), before);
        // A router gives a packet a new LRH; within its subnet it has one.
        if let Link::Infiniband(lrh) = route.link && lrh.target.0 != target {
            let link = Link::Infiniband(Lrh { target: Lid(target), ..lrh });
            prop_assert_eq!(icrc(&Route { link, ..route }) == before, lrh.is_global);
        }
    }

    #[test]
    fn a_damaged_packet_has_a_bad_check_sequence(
        route in common::infiniband_route(), headers in common::headers(), payload: [u8; 21], place: usize,
    ) {
        let mut bytes = emit(&route, &headers, &Extension::NONE, &payload);
        let bit = place % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(Some(packet)) = parse(Framing::Infiniband, &bytes) {
            prop_assert!(!packet.vcrc.is_some_and(Vcrc::is_good));
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), lane in 0..16u8) {
        let _ = Frame::parse_infiniband(&bytes);
        let _ = Frame::parse(&[&[2; 12][..], &[0x89, 0x15], &bytes].concat());
        let _ = forward_infiniband(&mut bytes.clone(), lane, true);
    }

    #[test]
    fn packets_that_are_cut_are_refused(route in routes(), headers in common::headers(), keep: usize) {
        let bytes = emit(&route, &headers, &Extension::NONE, b"a payload of some bytes");
        let end = bytes.len() - if framing(&route) == Framing::Infiniband { VCRC_LENGTH } else { 0 };
        prop_assert!(parse(framing(&route), &bytes[..keep % end]).is_err());
    }
}
