//! What a packet is that has neither IP nor UDP: on an InfiniBand link, or RoCE v1.

use railnet_wire::{Framing, Grh, InfinibandPacket, Link, Lrh, Vcrc};

use super::describe::{self, Fields};

pub(super) fn describe(fields: &mut Fields, packet: &InfinibandPacket<'_>) {
    match &packet.route.link {
        Link::Ethernet(ethernet) => describe::ethernet(fields, ethernet),
        Link::Infiniband(lrh) => local(fields, *lrh, packet.route.grh.is_none()),
    }
    if let Some(grh) = &packet.route.grh {
        global(fields, grh);
    }
    let kind = match packet.framing() {
        Framing::Infiniband => "infiniband",
        _ => "roce-v1",
    };
    fields.bare("kind", kind, packet.framing().name());
    describe::transport(fields, &packet.headers, &packet.extension, packet.payload, packet.authentication);
    describe::icrc(fields, packet.icrc);
    if let Some(vcrc) = packet.vcrc {
        let Vcrc { found, computed } = vcrc;
        let verdict = match vcrc.is_good() {
            true => "VCRC good".to_owned(),
            false => format!("VCRC BAD (found {found:#06x}, computed {computed:#06x})"),
        };
        fields.hidden("vcrc", found);
        fields.hidden("vcrc_computed", computed);
        fields.bare("vcrc_is_good", vcrc.is_good(), verdict);
    }
}

fn local(fields: &mut Fields, lrh: Lrh, is_all: bool) {
    let arrow = format!("LID {} → {}", lrh.source, lrh.target);
    fields.bare("source_lid", lrh.source.0, arrow);
    fields.hidden("target_lid", lrh.target.0);
    fields.decimal("sl", lrh.service_level);
    fields.decimal("vl", lrh.virtual_lane);
    fields.hidden("is_local", is_all);
}

fn global(fields: &mut Fields, grh: &Grh) {
    fields.bare("source", grh.source.to_string(), format_args!("{} → {}", grh.source, grh.target));
    fields.hidden("target", grh.target.to_string());
    fields.hidden("traffic_class", grh.traffic_class);
    fields.hidden("flow_label", grh.flow_label);
    fields.hidden("hop_limit", grh.hop_limit);
}
