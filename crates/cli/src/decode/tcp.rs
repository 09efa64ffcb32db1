//! What a TCP segment is.

use std::net::SocketAddr;

use railnet_wire::{Ip, Tcp, TcpFlags, TcpPacket};
use serde_json::json;

use super::describe::{self, Fields};

pub(super) fn describe(fields: &mut Fields, packet: &TcpPacket<'_>) {
    if let Some(ethernet) = &packet.ethernet {
        describe::ethernet(fields, ethernet);
    }
    let Tcp { source_port, target_port, sequence, acknowledgement, flags, window, urgent, options } =
        packet.tcp;
    let (source, target, traffic_class, hop_limit) = match packet.ip {
        Ip::V4(ip) => (ip.source.into(), ip.target.into(), ip.traffic_class, ip.hop_limit),
        Ip::V6(ip) => (ip.source.into(), ip.target.into(), ip.traffic_class, ip.hop_limit),
    };
    let [from, to] =
        [(source, source_port), (target, target_port)].map(|(ip, port)| SocketAddr::new(ip, port));
    fields.bare("source", source.to_string(), format_args!("{from} → {to}"));
    fields.hidden("target", target.to_string());
    fields.hidden("source_port", source_port);
    fields.hidden("target_port", target_port);
    fields.hidden("hop_limit", hop_limit);
    fields.hidden("ecn", traffic_class & 3);
    fields.flag("congestion_experienced", traffic_class & 3 == 3);
    fields.bare("kind", "tcp", "TCP");
    fields.bare("flags", flags.names(), format_args!("[{}]", flags.names()));
    fields.decimal("seq", sequence);
    if flags.has(TcpFlags::ACK) {
        fields.decimal("ack", acknowledgement);
    }
    fields.decimal("window", window);
    if flags.has(TcpFlags::URG) {
        fields.decimal("urgent", urgent);
    }
    if let Some(size) = options.segment_size {
        fields.decimal("mss", size);
    }
    if let Some(scale) = options.window_scale {
        fields.decimal("window_scale", scale);
    }
    fields.flag("sack_permitted", options.sack_permitted);
    if let Some((value, echo)) = options.timestamps {
        fields.bare(
            "timestamps",
            json!({ "value": value, "echo": echo }),
            format_args!("timestamps {value}, {echo}"),
        );
    }
    let blocks = options.sack.as_slice();
    if !blocks.is_empty() {
        let words: Vec<String> = blocks.iter().map(|(first, behind)| format!("{first}..{behind}")).collect();
        fields.bare("sack", json!(blocks), format_args!("SACK {}", words.join(", ")));
    }
    let length = packet.payload.len();
    fields.bare("payload_bytes", length, format_args!("{length} B"));
    // Hosts leave the checksum of what they send to the NIC: captures on the sender often have none.
    let verdict =
        if packet.checksum_is_good { "checksum good" } else { "checksum not right (left to the NIC?)" };
    fields.bare("checksum_is_good", packet.checksum_is_good, verdict);
}
