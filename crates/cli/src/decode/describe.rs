//! What a packet is, as named fields: one description for the line and for the JSON object.

use std::fmt;

use railnet_wire::capture::{Packet, Undecodable};
use railnet_wire::mad::{CmaHeader, ConnectionMad, MANAGEMENT_QUEUE_PAIR, Message};
use railnet_wire::{
    Aeth, Authentication, CongestionEcho, Deth, Ethernet, Extended, Extension, Frame, Headers, Hop, Icrc, Ip,
    Malformed, Opcode, Pause, Reth, RocePacket, SelectiveAck, Syndrome, Telemetry, TelemetryBlock,
};
use serde_json::{Map, Value, json};

use super::{infiniband, tcp};

/// How a field stands in the line.
enum Style {
    /// As `name text`.
    Named(String),
    /// As text alone.
    Bare(String),
    /// Not at all: for JSON only.
    Hidden,
}

/// The fields of a packet, in order.
#[derive(Default)]
pub(super) struct Fields(Vec<(&'static str, Value, Style)>);

impl Fields {
    /// The fields as one line.
    pub(super) fn line(&self) -> String {
        let mut words = Vec::new();
        for (name, _, style) in &self.0 {
            match style {
                Style::Named(text) => words.push(format!("{} {text}", name.replace('_', " "))),
                Style::Bare(text) => words.push(text.clone()),
                Style::Hidden => {}
            }
        }
        words.join("  ")
    }

    /// The fields as members of an object.
    pub(super) fn into_json(self) -> Map<String, Value> {
        self.0.into_iter().map(|(name, value, _)| (name.to_owned(), value)).collect()
    }

    pub(super) fn bare(&mut self, name: &'static str, value: impl Into<Value>, text: impl fmt::Display) {
        self.0.push((name, value.into(), Style::Bare(text.to_string())));
    }

    pub(super) fn hidden(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into(), Style::Hidden));
    }

    /// A number that people read as one.
    pub(super) fn decimal(&mut self, name: &'static str, value: impl Into<u64>) {
        let value = value.into();
        self.0.push((name, value.into(), Style::Named(value.to_string())));
    }

    /// A number that people read in hexadecimal digits.
    fn hexadecimal(&mut self, name: &'static str, value: impl Into<u64>) {
        let value = value.into();
        self.0.push((name, value.into(), Style::Named(format!("{value:#x}"))));
    }

    /// A number that is only worth a word where it is not the usual one.
    fn unless(&mut self, name: &'static str, value: u16, usual: u16, text: String) {
        let style = if value == usual { Style::Hidden } else { Style::Named(text) };
        self.0.push((name, value.into(), style));
    }

    fn text(&mut self, name: &'static str, text: impl fmt::Display) {
        let text = text.to_string();
        self.0.push((name, text.clone().into(), Style::Named(text)));
    }

    /// Shown in the line only where it holds.
    pub(super) fn flag(&mut self, name: &'static str, is_set: bool) {
        let style = if is_set { Style::Bare(name.replace('_', " ")) } else { Style::Hidden };
        self.0.push((name, is_set.into(), style));
    }
}

/// All that can be said about a packet.
pub(super) fn packet(packet: &Packet, frame: &Result<Frame<'_>, Undecodable>) -> Fields {
    let mut fields = Fields::default();
    match frame {
        Ok(Frame::Roce(roce)) => describe_roce(&mut fields, roce),
        Ok(Frame::Infiniband(packet)) => infiniband::describe(&mut fields, packet),
        Ok(Frame::Tcp(packet)) => tcp::describe(&mut fields, packet),
        Ok(Frame::Pause { ethernet, pause }) => describe_pause(&mut fields, ethernet, pause),
        Ok(Frame::Other { ethernet, kind }) => {
            if let Some(ethernet) = ethernet {
                self::ethernet(&mut fields, ethernet);
            }
            fields.bare("kind", "other", "not RoCE:");
            fields.bare("what", kind.to_string(), kind);
        }
        Ok(_) => fields.bare("kind", "other", "not RoCE"),
        Err(Undecodable::Malformed(error)) => {
            fields.bare("kind", "malformed", "malformed:");
            fields.bare("reason", error.to_string(), error);
            if packet.is_cut() {
                let (kept, all) = (packet.bytes.len(), packet.original_length);
                fields.bare("is_cut", true, format_args!("(the capture kept {kept} of {all} bytes)"));
            }
        }
        Err(error) => {
            fields.bare("kind", "undecoded", "not decoded:");
            fields.bare("reason", error.to_string(), error);
        }
    }
    fields
}

pub(super) fn ethernet(fields: &mut Fields, ethernet: &Ethernet) {
    fields.hidden("source_mac", ethernet.source.to_string());
    fields.hidden("target_mac", ethernet.target.to_string());
    if let Some(tag) = ethernet.vlan {
        fields.decimal("vlan", tag.id);
        fields.decimal("priority", tag.priority);
    }
}

fn describe_pause(fields: &mut Fields, ethernet: &Ethernet, pause: &Pause) {
    fields.bare("source_mac", ethernet.source.to_string(), ethernet.source);
    fields.hidden("target_mac", ethernet.target.to_string());
    fields.bare("kind", "pause", "PFC pause");
    let words: Vec<String> = (0..)
        .zip(pause.quanta)
        .filter_map(|(priority, quanta)| Some((priority, quanta?)))
        .map(|(priority, quanta): (usize, u16)| match quanta {
            0 => format!("priority {priority} resume"),
            quanta => format!("priority {priority} {quanta} quanta"),
        })
        .collect();
    fields.bare("quanta", json!(pause.quanta), words.join("  "));
}

fn describe_roce(fields: &mut Fields, packet: &RocePacket<'_>) {
    if let Some(ethernet) = &packet.ethernet {
        self::ethernet(fields, ethernet);
    }
    let network = packet.network();
    let (source_port, target_port) = (packet.udp.source_port, packet.udp.target_port);
    let (source, target) = (network.source.to_ip(), network.target.to_ip());
    let arrow = format!(
        "{} → {}",
        std::net::SocketAddr::new(source, source_port),
        std::net::SocketAddr::new(target, target_port)
    );
    fields.bare("source", source.to_string(), arrow);
    fields.hidden("target", target.to_string());
    fields.hidden("source_port", source_port);
    fields.hidden("target_port", target_port);
    fields.hidden("udp_checksum", packet.udp.checksum);
    match packet.ip {
        Ip::V4(header) => {
            fields.hidden("identification", header.identification);
            fields.hidden("dont_fragment", header.dont_fragment);
        }
        Ip::V6(header) => fields.hidden("flow_label", header.flow_label),
    }
    fields.hidden("hop_limit", network.hop_limit);
    fields.unless("dscp", network.dscp().into(), 0, network.dscp().to_string());
    fields.hidden("ecn", network.ecn());
    fields.flag("congestion_experienced", network.ecn() == 3);

    fields.hidden("kind", "roce");
    transport(fields, &packet.headers, &packet.extension, packet.payload, packet.authentication);
    self::icrc(fields, packet.icrc);
}

/// The transport headers of a packet, and what they carry.
pub(super) fn transport(
    fields: &mut Fields,
    headers: &Headers,
    extension: &Extension,
    payload: &[u8],
    authentication: Option<Authentication>,
) {
    let bth = headers.bth;
    fields.bare("opcode", bth.opcode.name(), bth.opcode);
    fields.hidden("opcode_number", bth.opcode as u8);
    fields.hexadecimal("qp", bth.destination.value());
    fields.decimal("psn", bth.psn.value());
    fields.flag("ack_request", bth.ack_request);
    fields.flag("solicited", bth.solicited);
    fields.hidden("migrated", bth.migrated);
    fields.flag("fecn", bth.fecn);
    fields.flag("becn", bth.becn);
    fields.unless("pkey", bth.partition, 0xffff, format!("{:#06x}", bth.partition));
    describe_extension(fields, extension);
    describe_extended(fields, &headers.extended);
    let length = payload.len();
    fields.bare("payload_bytes", length, format_args!("{length} B"));

    if let Some(authentication) = authentication {
        let counter = authentication.counter;
        fields.bare("authentication_counter", counter, format_args!("authenticated #{counter}"));
        fields.hidden("authentication_tag", format!("{:032x}", u128::from_be_bytes(authentication.tag)));
    }
    let is_management = bth.destination.value() == MANAGEMENT_QUEUE_PAIR;
    if is_management && bth.opcode == Opcode::UdSendOnly {
        describe_connection(fields, payload);
    }
}

/// An ICRC, and whether it is right.
pub(super) fn icrc(fields: &mut Fields, icrc: Icrc) {
    fields.hidden("icrc", icrc.found);
    fields.hidden("icrc_computed", icrc.computed);
    let Icrc { found, computed } = icrc;
    let verdict = if icrc.is_good() {
        "ICRC good".to_owned()
    } else {
        format!("ICRC BAD (found {found:#010x}, computed {computed:#010x})")
    };
    fields.bare("icrc_is_good", icrc.is_good(), verdict);
}

/// What Railnet adds to RoCEv2.
fn describe_extension(fields: &mut Fields, extension: &Extension) {
    fields.hidden("is_extended", !extension.is_none());
    match &extension.telemetry {
        TelemetryBlock::None => {}
        TelemetryBlock::Gathered(telemetry) => describe_telemetry(fields, "telemetry", telemetry),
        TelemetryBlock::Echoed(telemetry) => describe_telemetry(fields, "telemetry_echo", telemetry),
    }
    if let Some(CongestionEcho { marked, packets }) = extension.congestion {
        let text = format!("{marked} of {packets} packets marked");
        fields.bare("congestion_echo", json!({ "marked": marked, "packets": packets }), text);
    }
    if let Some(selective) = extension.selective {
        let bits = selective.bits();
        let psns: Vec<u32> = (0..SelectiveAck::PACKETS)
            .filter(|place| bits >> place & 1 != 0)
            .map(|place| selective.first.plus(place).value())
            .collect();
        let text = format!("arrived early {} from psn {}", psns.len(), selective.first);
        fields.bare("selective_ack", json!({ "first": selective.first.value(), "arrived": psns }), text);
    }
}

fn describe_telemetry(fields: &mut Fields, name: &'static str, telemetry: &Telemetry) {
    let each = |hop: &Hop| {
        json!({
            "rate_bps": hop.rate().as_bps(),
            "time_ns": hop.nanoseconds(),
            "sent_bytes": hop.sent().as_u64(),
            "queued_bytes": hop.queued().as_u64(),
        })
    };
    let hops: Vec<_> = telemetry.hops().iter().map(each).collect();
    let queues: Vec<String> =
        telemetry.hops().iter().map(|hop| format!("{} at {}", hop.queued(), hop.rate())).collect();
    let text = if queues.is_empty() { "no hops".to_owned() } else { queues.join(", ") };
    fields.0.push((name, hops.into(), Style::Named(text)));
}

fn describe_extended(fields: &mut Fields, extended: &Extended) {
    match *extended {
        Extended::None | Extended::Cnp => {}
        Extended::Immediate(value) => fields.hexadecimal("immediate", value),
        Extended::Invalidate(key) => fields.hexadecimal("invalidate_rkey", key),
        Extended::Reth(reth) => describe_reth(fields, &reth),
        Extended::RethImmediate(reth, value) => {
            describe_reth(fields, &reth);
            fields.hexadecimal("immediate", value);
        }
        Extended::Aeth(aeth) => describe_aeth(fields, aeth),
        Extended::AtomicAck(aeth, value) => {
            describe_aeth(fields, aeth);
            fields.hexadecimal("original", value);
        }
        Extended::Atomic(atomic) => {
            fields.hexadecimal("address", atomic.address);
            fields.hexadecimal("rkey", atomic.key);
            fields.hexadecimal("swap_or_add", atomic.swap_or_add);
            fields.hexadecimal("compare", atomic.compare);
        }
        Extended::Deth(deth) => describe_deth(fields, deth),
        Extended::DethImmediate(deth, value) => {
            describe_deth(fields, deth);
            fields.hexadecimal("immediate", value);
        }
        Extended::Flush { placement, selectivity, reth } => {
            fields.decimal("placement", placement);
            fields.decimal("selectivity", selectivity);
            describe_reth(fields, &reth);
        }
    }
}

fn describe_reth(fields: &mut Fields, reth: &Reth) {
    fields.hexadecimal("address", reth.address);
    fields.hexadecimal("rkey", reth.key);
    let length = reth.length;
    fields.bare("length", length, format_args!("length {length} B"));
}

fn describe_aeth(fields: &mut Fields, aeth: Aeth) {
    let text = match aeth.syndrome {
        Syndrome::Ack { credits: 31 } => "ACK".to_owned(),
        Syndrome::Ack { credits } => format!("ACK credits {credits}"),
        Syndrome::RnrNak { timer } => format!("RNR NAK timer {timer}"),
        Syndrome::Nak(code) => format!("NAK {code:?}"),
        Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}"),
    };
    fields.bare("verdict", text.clone(), text);
    fields.hidden("syndrome", aeth.syndrome.to_byte());
    fields.decimal("msn", aeth.msn);
}

fn describe_deth(fields: &mut Fields, deth: Deth) {
    fields.hexadecimal("source_qp", deth.source.value());
    fields.hexadecimal("qkey", deth.queue_key);
}

fn describe_connection(fields: &mut Fields, payload: &[u8]) {
    let mad = match ConnectionMad::parse(payload) {
        Ok(mad) => mad,
        Err(error) => return fields.bare("mad", error.to_string(), format_args!("MAD: {error}")),
    };
    fields.bare("mad", mad.message.name(), format_args!("CM {}", mad.message.name()));
    fields.hexadecimal("transaction", mad.transaction);
    match &mad.message {
        Message::Request(request) => {
            fields.hexadecimal("local_id", request.local_id);
            fields.hexadecimal("service", request.service.0);
            fields.hexadecimal("cm_qp", request.queue_pair.value());
            fields.decimal("starting_psn", request.psn.value());
            fields.decimal("mtu_code", request.mtu);
            fields.decimal("retries", request.retries);
            fields.decimal("rnr_retries", request.rnr_retries);
            describe_cma(fields, CmaHeader::parse(&request.private));
        }
        Message::Reply(reply) => {
            describe_ids(fields, reply.local_id, reply.remote_id);
            fields.hexadecimal("cm_qp", reply.queue_pair.value());
            fields.decimal("starting_psn", reply.psn.value());
        }
        Message::ReadyToUse(ready) => describe_ids(fields, ready.local_id, ready.remote_id),
        Message::Reject(reject) => {
            describe_ids(fields, reject.local_id, reject.remote_id);
            let reason = reject.reason;
            fields.bare("reason", reason.0, format_args!("reason {} ({})", reason.0, reason.name()));
        }
        Message::MessageReceived(received) => {
            describe_ids(fields, received.local_id, received.remote_id);
            fields.decimal("service_timeout", received.service_timeout);
        }
        Message::DisconnectRequest(request) => {
            describe_ids(fields, request.local_id, request.remote_id);
            fields.hexadecimal("cm_qp", request.remote_queue_pair.value());
        }
        Message::DisconnectReply(reply) => describe_ids(fields, reply.local_id, reply.remote_id),
        Message::SidrRequest(request) => {
            fields.hexadecimal("request_id", request.request_id);
            fields.hexadecimal("service", request.service.0);
            describe_cma(fields, CmaHeader::parse(&request.private));
        }
        Message::SidrReply(reply) => {
            fields.hexadecimal("request_id", reply.request_id);
            fields.decimal("status", reply.status);
            fields.hexadecimal("cm_qp", reply.queue_pair.value());
            fields.hexadecimal("cm_qkey", reply.queue_key);
        }
        _ => {}
    }
}

fn describe_ids(fields: &mut Fields, local: u32, remote: u32) {
    fields.hexadecimal("local_id", local);
    fields.hexadecimal("remote_id", remote);
}

/// The addresses in the private data, where the connection is one of RDMA CM.
fn describe_cma(fields: &mut Fields, header: Result<CmaHeader, Malformed>) {
    if let Ok(header) = header {
        fields.text("from", std::net::SocketAddr::new(header.source, header.source_port));
        fields.text("to", header.target);
    }
}
