//! A recorded packet and one that the NIC made, side by side.

use std::fmt;

use railnet_wire::{
    Aeth, Extended, Extension, Frame, HEADROOM, Headers, Network, Syndrome, emit_around, fill_udp_checksum,
};

use super::freedom::Freedom;
use super::recording::Recorded;
use crate::config::Behaviour;

/// An answer of the NIC.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) network: Network,
    pub(super) headers: Headers,
    pub(super) payload: Vec<u8>,
}

/// A field that is not the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The name of the field.
    pub field: &'static str,
    /// As it was recorded.
    pub recorded: String,
    /// As the NIC has it.
    pub ours: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, recorded, ours } = self;
        write!(f, "{field}: recorded {recorded}, ours {ours}")
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    pub(super) differences: Vec<Difference>,
    pub(super) freedoms: Vec<Freedom>,
}

/// Compares field by field, then the whole frame.
pub(super) fn compare(recorded: &Recorded, ours: &Answer, behaviour: &Behaviour) -> Compared {
    let mut compared = Compared::default();
    let mut field = |name, recorded: String, ours: String| {
        if recorded != ours {
            compared.differences.push(Difference { field: name, recorded, ours });
        }
    };
    let (then, now) = (&recorded.headers.bth, &ours.headers.bth);
    field("opcode", then.opcode.to_string(), now.opcode.to_string());
    field("PSN", then.psn.to_string(), now.psn.to_string());
    let parts = |headers: &Headers| match headers.extended {
        Extended::Aeth(aeth) => (Some(aeth), None),
        Extended::AtomicAck(aeth, original) => (Some(aeth), Some(original)),
        _ => (None, None),
    };
    let ((then_aeth, then_value), (now_aeth, now_value)) = (parts(&recorded.headers), parts(&ours.headers));
    field("syndrome", verdict(then_aeth), verdict(now_aeth));
    let msn = |aeth: Option<Aeth>| aeth.map_or("none".into(), |aeth| aeth.msn.to_string());
    field("MSN", msn(then_aeth), msn(now_aeth));
    let hex = |value: Option<u64>| value.map_or("none".into(), |value| format!("{value:#x}"));
    field("original value", hex(then_value), hex(now_value));
    field("P_Key", format!("{:#06x}", then.partition), format!("{:#06x}", now.partition));
    field("destination queue pair", then.destination.to_string(), now.destination.to_string());
    field("migration bit", u8::from(then.migrated).to_string(), u8::from(now.migrated).to_string());
    let flags = |bth: &railnet_wire::Bth| {
        format!(
            "solicited {} ack request {} FECN {} BECN {}",
            bth.solicited, bth.ack_request, bth.fecn, bth.becn
        )
    };
    field("flags", flags(then), flags(now));
    compare_payload(&mut field, &recorded.payload, &ours.payload);
    let (then, now) = (&recorded.network, &ours.network);
    field("source address", then.source.to_string(), now.source.to_string());
    field("target address", then.target.to_string(), now.target.to_string());
    field("UDP source port", then.source_port.to_string(), now.source_port.to_string());
    field("traffic class", then.traffic_class.to_string(), now.traffic_class.to_string());
    field("hop limit", then.hop_limit.to_string(), now.hop_limit.to_string());
    field("flow label", format!("{:#x}", then.flow_label), format!("{:#x}", now.flow_label));
    compare_frame(&mut compared, recorded, ours, behaviour);
    compared
}

fn compare_payload(field: &mut impl FnMut(&'static str, String, String), then: &[u8], now: &[u8]) {
    field("payload length", format!("{} B", then.len()), format!("{} B", now.len()));
    let at = then.iter().zip(now).position(|(then, now)| then != now);
    if let Some(at) = at {
        let some = |bytes: &[u8]| format!("{:02x?} from byte {at} on", &bytes[at..bytes.len().min(at + 8)]);
        field("payload", some(then), some(now));
    }
}

/// With the freedoms taken from the recording, the frames must be the same byte for byte.
fn compare_frame(compared: &mut Compared, recorded: &Recorded, ours: &Answer, behaviour: &Behaviour) {
    let mut network = ours.network;
    if network.is_ipv4() && network.identification != recorded.network.identification {
        network.identification = recorded.network.identification;
        compared.freedoms.push(Freedom::Identification);
    }
    if recorded.ethernet.is_some() {
        compared.freedoms.push(Freedom::EthernetAddresses);
    }
    let frame = frame(recorded, &network, ours, behaviour);
    let checksum = |bytes: &[u8]| match Frame::parse(bytes) {
        Ok(Frame::Roce(packet)) => format!("{:#06x}", packet.udp.checksum),
        _ => "none".to_owned(),
    };
    let (then, now) = (checksum(&recorded.bytes), checksum(&frame));
    if then != now {
        compared.differences.push(Difference { field: "UDP checksum", recorded: then, ours: now });
    }
    if compared.differences.is_empty() && frame != recorded.bytes {
        let at = frame.iter().zip(&recorded.bytes).position(|(now, then)| now != then);
        let at = at.unwrap_or(frame.len().min(recorded.bytes.len()));
        let some = |bytes: &[u8]| {
            let end = bytes.len().min(at + 8);
            format!("{:02x?} from byte {at} on, {} bytes in all", &bytes[at.min(end)..end], bytes.len())
        };
        compared.differences.push(Difference {
            field: "frame",
            recorded: some(&recorded.bytes),
            ours: some(&frame),
        });
    }
}

fn frame(recorded: &Recorded, network: &Network, ours: &Answer, behaviour: &Behaviour) -> Vec<u8> {
    let mut buffer = vec![0; HEADROOM];
    buffer.extend_from_slice(&ours.payload);
    let start =
        emit_around(&mut buffer, recorded.ethernet.as_ref(), network, &ours.headers, &Extension::NONE);
    buffer.drain(..start);
    if behaviour.udp_checksum_over_ipv6 && !network.is_ipv4() {
        let ip = recorded.ethernet.map_or(0, |ethernet| ethernet.length());
        fill_udp_checksum(&mut buffer[ip..]).expect("IP and UDP headers were just written");
    }
    buffer
}

fn verdict(aeth: Option<Aeth>) -> String {
    let Some(aeth) = aeth else {
        return "none".to_owned();
    };
    let byte = aeth.syndrome.to_byte();
    match aeth.syndrome {
        Syndrome::Ack { credits: 31 } => "ACK".to_owned(),
        Syndrome::Ack { credits } => format!("ACK with credit code {credits}"),
        Syndrome::RnrNak { timer } => format!("RNR NAK with timer code {timer}"),
        Syndrome::Nak(code) => format!("NAK {code:?} ({byte:#04x})"),
        Syndrome::Reserved(byte) => format!("reserved {byte:#04x}"),
    }
}

/// A packet in one line.
pub fn describe(network: &Network, headers: &Headers, payload_bytes: usize) -> String {
    let bth = &headers.bth;
    let mut line = format!(
        "{}:{} → {}  {}  qp {}  psn {}",
        network.source, network.source_port, network.target, bth.opcode, bth.destination, bth.psn
    );
    let mut add = |part: String| {
        line.push_str("  ");
        line.push_str(&part);
    };
    match headers.extended {
        Extended::Aeth(aeth) => add(format!("{}  msn {}", verdict(Some(aeth)), aeth.msn)),
        Extended::AtomicAck(aeth, original) => {
            add(format!("{}  msn {}", verdict(Some(aeth)), aeth.msn));
            add(format!("original {original:#x}"));
        }
        Extended::Reth(reth) | Extended::RethImmediate(reth, _) => {
            add(format!("address {:#x}  rkey {:#x}  length {} B", reth.address, reth.key, reth.length));
        }
        Extended::Atomic(atomic) => add(format!("address {:#x}  rkey {:#x}", atomic.address, atomic.key)),
        _ => {}
    }
    if bth.ack_request {
        add("ack request".to_owned());
    }
    if bth.migrated {
        add("migrated".to_owned());
    }
    add(format!("{payload_bytes} B"));
    line
}
