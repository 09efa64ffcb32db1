//! The headers of a packet, layer by layer and field by field, each with a sentence that says what it is for.

use std::fmt::Display;

use railnet_wire::{Aeth, Bth, EtherType, Ethernet, Extended, Headers, Ip, Layout, Reth, Syndrome, Udp};
use serde_json::{Value, json};

use super::infiniband;

/// Bytes of the check sequence at the end of a packet.
pub(super) const ICRC_BYTES: usize = 4;

/// The fields of a layer.
pub(super) struct Layer {
    name: &'static str,
    from: usize,
    fields: Vec<Value>,
}

impl Layer {
    pub(super) fn new(name: &'static str, from: usize) -> Self {
        Self { name, from, fields: Vec::new() }
    }

    /// A field by its place in the layer.
    pub(super) fn field(&mut self, name: &str, value: impl Display, place: (usize, usize), text: &str) {
        let (from, to) = (self.from + place.0, self.from + place.1);
        self.fields
            .push(json!({ "name": name, "value": format!("{value}"), "from": from, "to": to, "text": text }));
    }

    pub(super) fn end(self, length: usize, all: &mut Vec<Value>) -> usize {
        let to = self.from + length;
        all.push(json!({ "name": self.name, "from": self.from, "to": to, "fields": self.fields }));
        to
    }
}

/// What the bytes of a frame begin with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    /// IP: all that a socket sees of a real frame.
    Ip,
    Ethernet,
    /// A local route header.
    Infiniband,
}

/// The layers of a frame of which the first bytes and the last ones are there.
pub(super) fn layers(head: &[u8], length: usize, icrc: [u8; ICRC_BYTES], begins: Begins) -> Vec<Value> {
    let (mut all, is_real) = (Vec::new(), begins == Begins::Ip);
    let start = match begins {
        Begins::Ip => datagram(head, 0, &mut all),
        Begins::Ethernet => link(head, &mut all),
        Begins::Infiniband => infiniband::link(head, &mut all),
    };
    let after = start.and_then(|start| transport(head, start, &mut all));
    let Some(after) = after else { return all };
    let end = length - ICRC_BYTES;
    if end > after {
        let mut layer = Layer::new("Payload", after);
        let text = match is_real {
            true => "The bytes that the message carries.",
            false => {
                "The bytes that the message carries. Simulated memory holds tags of who contributed, not numbers."
            }
        };
        layer.field("data", format!("{} bytes", end - after), (0, end - after), text);
        layer.end(end - after, &mut all);
    }
    let mut layer = Layer::new("ICRC", end);
    let value = format!("{:#010x}", u32::from_le_bytes(icrc));
    let text = "A CRC-32 over everything that must not change on the way; what switches may change counts as ones. So it is the \
                same on every link.";
    layer.field("check sequence", value, (0, ICRC_BYTES), text);
    layer.end(ICRC_BYTES, &mut all);
    all
}

/// Reads the headers in front of the BTH, Ethernet's first; gives where they end, or nothing where they cannot be read.
fn link(head: &[u8], all: &mut Vec<Value>) -> Option<usize> {
    let ethernet = Ethernet::parse(head).ok()?;
    let is_routed = ethernet.ether_type != EtherType::ROCE_V1;
    let mut layer = Layer::new("Ethernet", 0);
    layer.field(
        "destination",
        ethernet.target,
        (0, 6),
        match is_routed {
            true => "The next hop: each router on the way writes its own neighbour here.",
            false => "The NIC that it is for: the switches on the way are bridges.",
        },
    );
    layer.field(
        "source",
        ethernet.source,
        (6, 12),
        match is_routed {
            true => "The port that sent it over this link.",
            false => "The NIC that sent it.",
        },
    );
    if let Some(tag) = ethernet.vlan {
        layer.field(
            "VLAN",
            format!("{}, priority {}", tag.id, tag.priority),
            (12, 16),
            "The virtual network, and the priority that PFC pauses.",
        );
    }
    let length = ethernet.length();
    layer.field("type", format!("{:?}", ethernet.ether_type), (length - 2, length), "What comes next.");
    let at = layer.end(length, all);
    if is_routed { datagram(head, at, all) } else { infiniband::global(head, at, all) }
}

/// Reads the headers of IP and UDP; gives where they end, or nothing where they cannot be read.
fn datagram(head: &[u8], at: usize, all: &mut Vec<Value>) -> Option<usize> {
    let ip = Ip::parse(head.get(at..)?).ok()?;
    let at = network(&ip, at, all);
    let udp = Udp::parse(head.get(at..)?).ok()?;
    let mut layer = Layer::new("UDP", at);
    layer.field(
        "source port",
        udp.source_port,
        (0, 2),
        "Made from the queue pair's number, so that switches spread connections over paths.",
    );
    let port = match udp.target_port {
        4791 => "4791: this is RoCEv2.",
        _ => "RoCEv2 has 4791; processes that share a host each have a port of their own.",
    };
    layer.field("destination port", udp.target_port, (2, 4), port);
    layer.field(
        "length",
        format!("{} bytes", usize::from(udp.payload_length) + Udp::LENGTH),
        (4, 6),
        "Of this header and all behind it.",
    );
    layer.field("checksum", format!("{:#06x}", udp.checksum), (6, 8), "Zero: the ICRC does this better.");
    Some(layer.end(Udp::LENGTH, all))
}

/// Reads the transport headers; gives where they end, or nothing where they cannot be read.
fn transport(head: &[u8], at: usize, all: &mut Vec<Value>) -> Option<usize> {
    let parsed = Headers::parse(head.get(at..)?).ok()?;
    base(&parsed.headers.bth, parsed.pad, at, all);
    let mut at = at + Bth::LENGTH;
    if parsed.extension > 0 {
        let mut layer = Layer::new("Railnet extension", at);
        let text = "Telemetry, marks or selective acknowledgements, which RoCEv2 has no place for.";
        layer.field("contents", format!("{} bytes", parsed.extension), (0, parsed.extension), text);
        at = layer.end(parsed.extension, all);
    }
    Some(extended(&parsed.headers.extended, at, all))
}

fn network(ip: &Ip, at: usize, all: &mut Vec<Value>) -> usize {
    let ecn = |class: u8| match class & 3 {
        0 => "00, not capable",
        3 => "11, congestion met",
        _ => "10, capable",
    };
    let mark = "Switches set both bits when the packet joins a long queue; the receiver then tells the sender with a CNP.";
    let ttl = "One less at every router, so that nothing circles for ever.";
    match ip {
        Ip::V4(header) => {
            let mut layer = Layer::new("IPv4", at);
            layer.field(
                "DSCP",
                header.traffic_class >> 2,
                (1, 2),
                "The class: which priority and queue it has at switches.",
            );
            layer.field("ECN", ecn(header.traffic_class), (1, 2), mark);
            let length = usize::from(header.payload_length) + railnet_wire::Ipv4::LENGTH;
            layer.field(
                "total length",
                format!("{length} bytes"),
                (2, 4),
                "Of this header and all behind it.",
            );
            layer.field(
                "identification",
                header.identification,
                (4, 6),
                "For fragments, of which there are none.",
            );
            layer.field("TTL", header.hop_limit, (8, 9), ttl);
            layer.field("protocol", format!("{} (UDP)", header.protocol), (9, 10), "What comes next.");
            layer.field("source", header.source, (12, 16), "The NIC that sent it.");
            layer.field("destination", header.target, (16, 20), "The NIC that it is for.");
            layer.end(railnet_wire::Ipv4::LENGTH, all)
        }
        Ip::V6(header) => {
            let mut layer = Layer::new("IPv6", at);
            layer.field(
                "DSCP",
                header.traffic_class >> 2,
                (0, 2),
                "The class: which priority and queue it has at switches.",
            );
            layer.field("ECN", ecn(header.traffic_class), (0, 2), mark);
            layer.field(
                "flow label",
                format!("{:#07x}", header.flow_label),
                (1, 4),
                "Another number by which paths may be chosen.",
            );
            layer.field(
                "payload length",
                format!("{} bytes", header.payload_length),
                (4, 6),
                "Of all behind this header.",
            );
            layer.field("hop limit", header.hop_limit, (7, 8), ttl);
            layer.field("source", header.source, (8, 24), "The NIC that sent it.");
            layer.field("destination", header.target, (24, 40), "The NIC that it is for.");
            layer.end(railnet_wire::Ipv6::LENGTH, all)
        }
    }
}

fn base(bth: &Bth, pad: usize, at: usize, all: &mut Vec<Value>) {
    let yes = |is_so: bool| if is_so { "yes" } else { "no" };
    let mut layer = Layer::new("Base transport header (BTH)", at);
    layer.field(
        "opcode",
        format!("{} ({:#04x})", bth.opcode, bth.opcode as u8),
        (0, 1),
        "What this packet is, and which part of its message.",
    );
    layer.field("solicited", yes(bth.solicited), (1, 2), "Whether the receiver asked to be woken for it.");
    layer.field(
        "pad",
        format!("{pad} bytes"),
        (1, 2),
        "What was added to bring the payload to a multiple of four.",
    );
    layer.field(
        "partition",
        format!("{:#06x}", bth.partition),
        (2, 4),
        "Both sides have to be in the same one.",
    );
    layer.field(
        "FECN, BECN",
        format!("{}, {}", yes(bth.fecn), yes(bth.becn)),
        (4, 5),
        "Congestion, forward and backward: a CNP sets BECN.",
    );
    layer.field(
        "destination queue pair",
        bth.destination,
        (5, 8),
        "Which connection of the receiver it belongs to: no operating system looks this up.",
    );
    layer.field(
        "acknowledge",
        yes(bth.ack_request),
        (8, 9),
        "Whether the sender wants to hear that it came.",
    );
    layer.field(
        "PSN",
        bth.psn.value(),
        (9, 12),
        "Its number. The receiver takes the next one only; a gap is answered with a NAK.",
    );
    layer.end(Bth::LENGTH, all);
}

fn extended(extended: &Extended, at: usize, all: &mut Vec<Value>) -> usize {
    let immediate = |value: u32, at: usize, all: &mut Vec<Value>| {
        let mut layer = Layer::new("Immediate", at);
        let text = "Four bytes that the receiver finds in its completion: with them it learns that a WRITE has come.";
        layer.field("value", format!("{value:#x}"), (0, 4), text);
        layer.end(4, all)
    };
    match extended {
        Extended::Reth(reth) => remote(reth, at, all),
        Extended::RethImmediate(reth, value) => {
            let at = remote(reth, at, all);
            immediate(*value, at, all)
        }
        Extended::Immediate(value) => immediate(*value, at, all),
        Extended::Aeth(aeth) => acknowledge(*aeth, at, all),
        Extended::AtomicAck(aeth, value) => {
            let at = acknowledge(*aeth, at, all);
            let mut layer = Layer::new("Atomic acknowledge", at);
            layer.field("original", format!("{value:#x}"), (0, 8), "What was in memory before.");
            layer.end(8, all)
        }
        other => {
            let length = other.layout().length();
            if length == 0 {
                return at;
            }
            let mut layer = Layer::new("Extended header", at);
            layer.field("contents", format!("{other:?}"), (0, length), "What this opcode needs besides.");
            layer.end(length, all)
        }
    }
}

fn remote(reth: &Reth, at: usize, all: &mut Vec<Value>) -> usize {
    let mut layer = Layer::new("RDMA header (RETH)", at);
    layer.field(
        "virtual address",
        format!("{:#x}", reth.address),
        (0, 8),
        "Where in the receiver's memory the bytes go: the NIC writes them there by itself.",
    );
    layer.field(
        "remote key",
        format!("{:#x}", reth.key),
        (8, 12),
        "The receiver gave it out for this memory; without it nothing is written.",
    );
    layer.field("length", format!("{} bytes", reth.length), (12, 16), "Of the whole message.");
    layer.end(Layout::Reth.length(), all)
}

fn acknowledge(aeth: Aeth, at: usize, all: &mut Vec<Value>) -> usize {
    let verdict = match aeth.syndrome {
        Syndrome::Ack { credits } => format!("ACK, credits {credits}"),
        Syndrome::RnrNak { timer } => format!("receiver not ready, timer {timer}"),
        Syndrome::Nak(code) => format!("NAK, {code:?}"),
        Syndrome::Reserved(byte) => format!("reserved {byte:#04x}"),
    };
    let mut layer = Layer::new("Acknowledge header (AETH)", at);
    layer.field("syndrome", verdict, (0, 1), "Whether all is well up to this number, or what is not.");
    layer.field("MSN", aeth.msn, (1, 4), "How many messages are complete.");
    layer.end(Layout::Aeth.length(), all)
}
