//! What a router does to a frame on its way. The ICRC leaves all of it out, so it stays right from end to end.

use crate::ethernet::{Ethernet, Mac};
use crate::frame::Frame;
use crate::malformed::Malformed;
use crate::network::Ip;
use crate::transport::{Bth, Extension, Hop, TelemetryBlock};
use crate::udp::Udp;

/// Both ECN bits: congestion was met.
const CONGESTION: u8 = 3;

/// Passes a frame on to the next hop: new MAC addresses, and one less of its hop limit, which stays 0 once it is.
/// Whether a packet whose hop limit runs out is thrown away is up to the caller.
pub fn forward(frame: &mut [u8], source: Mac, target: Mac) -> Result<(), Malformed> {
    let ethernet = Ethernet::parse(frame)?;
    change(frame, &ethernet, |ip| {
        let hop_limit = match ip {
            Ip::V4(header) => &mut header.hop_limit,
            Ip::V6(header) => &mut header.hop_limit,
        };
        *hop_limit = hop_limit.saturating_sub(1);
    })?;
    Ethernet { target, source, ..ethernet }.emit(frame);
    Ok(())
}

/// Marks a frame as having met congestion, if its sender understands marks. Returns whether it does.
pub fn mark(frame: &mut [u8]) -> Result<bool, Malformed> {
    let ethernet = Ethernet::parse(frame)?;
    let mut is_capable = false;
    change(frame, &ethernet, |ip| {
        let traffic_class = match ip {
            Ip::V4(header) => &mut header.traffic_class,
            Ip::V6(header) => &mut header.traffic_class,
        };
        is_capable = *traffic_class & CONGESTION != 0;
        if is_capable {
            *traffic_class |= CONGESTION;
        }
    })?;
    Ok(is_capable)
}

/// Writes what a link of a switch is up to into a frame that has room for it. Returns whether it has.
pub fn stamp(frame: &mut [u8], hop: Hop) -> Result<bool, Malformed> {
    let Frame::Roce(packet) = Frame::parse(frame)? else { return Ok(false) };
    let (opcode, mut extension) = (packet.headers.bth.opcode, packet.extension);
    let start = packet.ethernet.map_or(0, |ethernet| ethernet.length())
        + packet.ip.length()
        + Udp::LENGTH
        + Bth::LENGTH;
    let TelemetryBlock::Gathered(telemetry) = &mut extension.telemetry else { return Ok(false) };
    telemetry.push(hop);
    let mut written = [0; Extension::MAX_LENGTH];
    let written = &mut written[..extension.length()];
    extension.emit(opcode, written);
    // Only what the ICRC leaves out: whoever wrote all of it anew would mend a bit that was damaged before.
    for (at, (old, new)) in frame[start..].iter_mut().zip(written).enumerate() {
        if extension.varies(Bth::LENGTH + at) {
            *old = *new;
        }
    }
    Ok(true)
}

/// Changes the IP header of a frame; its checksum follows.
fn change(frame: &mut [u8], ethernet: &Ethernet, how: impl FnOnce(&mut Ip)) -> Result<(), Malformed> {
    let packet = &mut frame[ethernet.length()..];
    let mut ip = Ip::parse(packet)?;
    how(&mut ip);
    ip.emit(packet);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::EtherType;
    use crate::{Frame, Headers, Network, RocePacket, Telemetry};
    use railnet_core::{Bytes, Psn, QueuePairNumber, Rate, Span, Time};
    use std::net::IpAddr;

    fn frame(source: &str, target: &str, traffic_class: u8) -> Vec<u8> {
        extended(source, target, traffic_class, Extension::NONE)
    }

    fn extended(source: &str, target: &str, traffic_class: u8, extension: Extension) -> Vec<u8> {
        let gid = |text: &str| crate::Gid::from_ip(text.parse::<IpAddr>().unwrap());
        let network = Network {
            source: gid(source),
            target: gid(target),
            source_port: 0xc000,
            target_port: crate::udp::ROCE_PORT,
            traffic_class,
            hop_limit: 2,
            identification: 0,
            flow_label: 0,
        };
        let bth = crate::Bth {
            opcode: crate::Opcode::RcSendOnly,
            solicited: false,
            migrated: true,
            fecn: false,
            becn: false,
            ack_request: true,
            partition: 0xffff,
            destination: QueuePairNumber::new(0x11),
            psn: Psn::new(7),
        };
        let ether_type = if network.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = Ethernet { target: Mac([2; 6]), source: Mac([4; 6]), vlan: None, ether_type };
        let headers = Headers { bth, extended: crate::Extended::None };
        RocePacket::with_extension(Some(ethernet), &network, headers, extension, b"payload").to_bytes()
    }

    fn parsed(frame: &[u8]) -> RocePacket<'_> {
        match Frame::parse(frame) {
            Ok(Frame::Roce(packet)) => packet,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hop_changes_addresses_and_hop_limit_and_leaves_the_icrc_right() {
        for (source, target) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let mut frame = frame(source, target, 2);
            let icrc = parsed(&frame).icrc;
            for hop_limit in [1, 0, 0] {
                forward(&mut frame, Mac([6; 6]), Mac([8; 6])).unwrap();
                let packet = parsed(&frame);
                assert_eq!(packet.network().hop_limit, hop_limit);
                let ethernet = packet.ethernet.unwrap();
                assert_eq!((ethernet.source, ethernet.target), (Mac([6; 6]), Mac([8; 6])));
                assert!(packet.icrc == icrc && icrc.is_good());
            }
        }
    }

    #[test]
    fn only_senders_that_understand_marks_are_marked() {
        for (before, after, is_capable) in [(0x68, 0x68, false), (0x69, 0x6b, true), (0x6a, 0x6b, true)] {
            for (source, target) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
                let mut frame = frame(source, target, before);
                assert_eq!(mark(&mut frame), Ok(is_capable));
                assert_eq!(parsed(&frame).network().traffic_class, after);
                assert!(parsed(&frame).icrc.is_good());
            }
        }
    }

    #[test]
    fn a_stamp_mends_no_damage() {
        let extension =
            Extension { telemetry: TelemetryBlock::Gathered(Telemetry::EMPTY), ..Extension::NONE };
        let frame = extended("10.0.0.1", "10.0.0.2", 2, extension);
        let hop = Hop::new(Rate::gbps(100), Time::ZERO + Span::from_us(7), Bytes(512_000), Bytes(5_120));
        let mut stamped = frame.clone();
        assert_eq!(stamp(&mut stamped, hop), Ok(true));
        assert!(parsed(&stamped).icrc.is_good() && stamped != frame);

        let start = Ethernet::LENGTH + crate::Ipv4::LENGTH + Udp::LENGTH;
        for bit in 0..(frame.len() - start) * 8 {
            if extension.varies(bit / 8) {
                continue;
            }
            let mut damaged = frame.clone();
            damaged[start + bit / 8] ^= 1 << (bit % 8);
            // It may still be read, as something else.
            let _ = stamp(&mut damaged, hop);
            let is_good = matches!(Frame::parse(&damaged), Ok(Frame::Roce(packet)) if packet.icrc.is_good());
            assert!(!is_good, "bit {} of byte {} behind UDP is mended", bit % 8, bit / 8);
        }
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        assert!(forward(&mut [0; 5], Mac::default(), Mac::default()).is_err());
        assert!(mark(&mut [0; 14]).is_err());
        assert!(mark(&mut [0; 60]).is_err());
    }
}
