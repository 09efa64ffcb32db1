//! The layers in front of the BTH where there is neither IP nor UDP: LRH on an InfiniBand link, GRH behind it and in RoCE v1.

use railnet_wire::{Grh, Lrh};
use serde_json::Value;

use super::layers::Layer;

/// Reads the headers of an InfiniBand link; gives where they end, or nothing where they cannot be read.
pub(super) fn link(head: &[u8], all: &mut Vec<Value>) -> Option<usize> {
    let (lrh, length) = Lrh::parse(head).ok()??;
    let mut layer = Layer::new("Local route header (LRH)", 0);
    layer.field(
        "virtual lane",
        lrh.virtual_lane,
        (0, 1),
        "The queue on this link, with credits of its own. Each port finds it from the service level.",
    );
    layer.field(
        "service level",
        lrh.service_level,
        (1, 2),
        "The class that the sender chose; it stays the same on the whole way.",
    );
    layer.field(
        "destination LID",
        lrh.target,
        (2, 4),
        "The port it is for: a switch looks up its forwarding table here and nowhere else.",
    );
    layer.field(
        "packet length",
        format!("{length} bytes"),
        (4, 6),
        "From this header to the ICRC, counted in words.",
    );
    layer.field("source LID", lrh.source, (6, 8), "The port that sent it.");
    let at = layer.end(Lrh::LENGTH, all);
    if lrh.is_global { global(head, at, all) } else { Some(at) }
}

/// Reads a global route header; gives where it ends.
pub(super) fn global(head: &[u8], at: usize, all: &mut Vec<Value>) -> Option<usize> {
    let (grh, length) = Grh::parse(head.get(at..)?).ok()?;
    let mut layer = Layer::new("Global route header (GRH)", at);
    layer.field("traffic class", format!("{:#04x}", grh.traffic_class), (0, 2), "The class between subnets.");
    layer.field(
        "flow label",
        format!("{:#07x}", grh.flow_label),
        (1, 4),
        "Packets with one label stay in order.",
    );
    layer.field(
        "payload length",
        format!("{length} bytes"),
        (4, 6),
        "Of all behind this header, to the ICRC.",
    );
    layer.field("next header", "0x1b", (6, 7), "A BTH follows.");
    layer.field(
        "hop limit",
        grh.hop_limit,
        (7, 8),
        "One less at every router between subnets; switches leave it.",
    );
    layer.field("source GID", grh.source, (8, 24), "The port that sent it.");
    layer.field("destination GID", grh.target, (24, 40), "The port that it is for.");
    Some(layer.end(Grh::LENGTH, all))
}
