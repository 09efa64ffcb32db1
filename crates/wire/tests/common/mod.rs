//! What several tests of this crate share.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests read their files themselves")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use railnet_core::{Psn, QueuePairNumber};
use railnet_wire::capture::{Packet, Reader};
use railnet_wire::{
    Aeth, AtomicEth, Bth, CongestionEcho, Deth, EtherType, Ethernet, Extended, Extension, Gid, Grh, Headers,
    Hop, Layout, Lid, Link, Lrh, Mac, Network, Opcode, Reth, Route, SelectiveAck, Syndrome, Telemetry,
    TelemetryBlock, VlanTag,
};

/// The captures of real Soft-RoCE: their names and packets.
pub(crate) fn golden() -> Vec<(String, Vec<Packet>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rxe");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .expect("testdata/rxe is part of the repository")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let packets = Reader::new(std::fs::File::open(&path).unwrap()).unwrap().map(Result::unwrap).collect();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), packets)
    };
    paths.into_iter().map(read).collect()
}

/// One golden frame of each opcode, length and IP version: a small set in which everything happens.
pub(crate) fn representative() -> Vec<Vec<u8>> {
    let mut seen = std::collections::BTreeSet::new();
    let mut frames = Vec::new();
    for (name, packets) in golden() {
        for packet in packets {
            let opcode_at = if packet.bytes[12] == 8 { 42 } else { 62 };
            let key =
                (name.starts_with("cm_"), opcode_at, packet.bytes[opcode_at], packet.bytes[opcode_at + 1]);
            if packet.bytes.len() < 400 && seen.insert(key) {
                frames.push(packet.bytes);
            }
        }
    }
    frames
}

prop_compose! {
    fn reth()(address: u64, key: u32, length: u32) -> Reth {
        Reth { address, key, length }
    }
}

prop_compose! {
    fn aeth()(syndrome: u8, msn in 0..1u32 << 24) -> Aeth {
        Aeth { syndrome: Syndrome::from_byte(syndrome), msn }
    }
}

prop_compose! {
    fn atomic()(address: u64, key: u32, swap_or_add: u64, compare: u64) -> AtomicEth {
        AtomicEth { address, key, swap_or_add, compare }
    }
}

prop_compose! {
    fn deth()(queue_key: u32, source: u32) -> Deth {
        Deth { queue_key, source: QueuePairNumber::new(source) }
    }
}

fn extended(layout: Layout) -> BoxedStrategy<Extended> {
    match layout {
        Layout::None => Just(Extended::None).boxed(),
        Layout::Immediate => any::<u32>().prop_map(Extended::Immediate).boxed(),
        Layout::Invalidate => any::<u32>().prop_map(Extended::Invalidate).boxed(),
        Layout::Reth => reth().prop_map(Extended::Reth).boxed(),
        Layout::RethImmediate => {
            (reth(), any::<u32>()).prop_map(|(reth, value)| Extended::RethImmediate(reth, value)).boxed()
        }
        Layout::Aeth => aeth().prop_map(Extended::Aeth).boxed(),
        Layout::AtomicAck => {
            (aeth(), any::<u64>()).prop_map(|(aeth, value)| Extended::AtomicAck(aeth, value)).boxed()
        }
        Layout::Atomic => atomic().prop_map(Extended::Atomic).boxed(),
        Layout::Deth => deth().prop_map(Extended::Deth).boxed(),
        Layout::DethImmediate => {
            (deth(), any::<u32>()).prop_map(|(deth, value)| Extended::DethImmediate(deth, value)).boxed()
        }
        Layout::Flush => (0..16u8, 0..4u8, reth())
            .prop_map(|(placement, selectivity, reth)| Extended::Flush { placement, selectivity, reth })
            .boxed(),
        Layout::Cnp => Just(Extended::Cnp).boxed(),
    }
}

prop_compose! {
    fn bth(opcode: Opcode)(
        flags in any::<[bool; 5]>(), partition: u16, destination: u32, psn: u32,
    ) -> Bth {
        let [solicited, migrated, fecn, becn, ack_request] = flags;
        Bth {
            opcode, solicited, migrated, fecn, becn, ack_request, partition,
            destination: QueuePairNumber::new(destination), psn: Psn::new(psn),
        }
    }
}

/// Transport headers of any opcode.
pub(crate) fn headers() -> impl Strategy<Value = Headers> {
    proptest::sample::select(Opcode::ALL).prop_flat_map(headers_of)
}

/// Transport headers of this opcode.
pub(crate) fn headers_of(opcode: Opcode) -> impl Strategy<Value = Headers> {
    (bth(opcode), extended(opcode.layout())).prop_map(|(bth, extended)| Headers { bth, extended })
}

fn telemetry() -> impl Strategy<Value = Telemetry> {
    proptest::collection::vec(any::<[u8; 8]>(), 0..=Telemetry::HOPS_MAX)
        .prop_map(|hops| hops.into_iter().map(Hop::from_bytes).collect())
}

prop_compose! {
    /// An extension with anything in it, or nothing.
    pub(crate) fn extension()(
        telemetry in prop_oneof![
            Just(TelemetryBlock::None),
            telemetry().prop_map(TelemetryBlock::Gathered),
            telemetry().prop_map(TelemetryBlock::Echoed),
        ],
        congestion in proptest::option::of(any::<(u16, u16)>()),
        selective in proptest::option::of(any::<(u32, u128)>()),
    ) -> Extension {
        Extension {
            telemetry,
            congestion: congestion.map(|(marked, packets)| CongestionEcho { marked, packets }),
            selective: selective.map(|(first, bits)| SelectiveAck::new(Psn::new(first), bits)),
        }
    }
}

prop_compose! {
    /// Addressing over IPv4 or IPv6; what has no meaning in the version is 0.
    pub(crate) fn network()(
        is_ipv4: bool, source: [u8; 16], target: [u8; 16], source_port: u16, traffic_class: u8, hop_limit: u8,
        identification: u16, flow_label in 0..1u32 << 20,
    ) -> Network {
        let gid = |bytes: [u8; 16]| if is_ipv4 {
            Gid::from_ipv4([bytes[0], bytes[1], bytes[2], bytes[3]].into())
        } else {
            Gid([&[0xfd], &bytes[1..]].concat().try_into().unwrap())
        };
        Network {
            source: gid(source),
            target: gid(target),
            source_port,
            target_port: railnet_wire::ROCE_PORT,
            traffic_class,
            hop_limit,
            identification: if is_ipv4 { identification } else { 0 },
            flow_label: if is_ipv4 { 0 } else { flow_label },
        }
    }
}

prop_compose! {
    /// An Ethernet header, half of them tagged.
    pub(crate) fn ethernet()(
        target: [u8; 6], source: [u8; 6], is_tagged: bool, priority in 0..8u8, is_drop_eligible: bool,
        id in 0..4096u16,
    ) -> Ethernet {
        let vlan = is_tagged.then_some(VlanTag { priority, is_drop_eligible, id });
        Ethernet { target: Mac(target), source: Mac(source), vlan, ether_type: EtherType::IPV4 }
    }
}

prop_compose! {
    fn grh()(
        traffic_class: u8, flow_label in 0..1u32 << 20, hop_limit: u8, source: [u8; 16], target: [u8; 16],
    ) -> Grh {
        Grh { traffic_class, flow_label, hop_limit, source: Gid(source), target: Gid(target) }
    }
}

prop_compose! {
    /// The headers in front of the transport headers on an InfiniBand link, half of them with a GRH.
    pub(crate) fn infiniband_route()(
        virtual_lane in 0..16u8, service_level in 0..16u8, source: u16, target: u16, is_global: bool, grh in grh(),
    ) -> Route {
        let (source, target) = (Lid(source), Lid(target));
        let link = Link::Infiniband(Lrh { virtual_lane, service_level, source, target, is_global });
        Route { link, grh: is_global.then_some(grh) }
    }
}

prop_compose! {
    /// The headers in front of the transport headers in RoCE v1.
    pub(crate) fn roce_v1_route()(ethernet in ethernet(), grh in grh()) -> Route {
        let link = Link::Ethernet(Ethernet { ether_type: EtherType::ROCE_V1, ..ethernet });
        Route { link, grh: Some(grh) }
    }
}
