//! Credit that is spent comes back, whatever becomes of the packet.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Log, World};
use railnet_core::{Psn, Rate, Span, Time};
use railnet_fabric::{Chance, Fault, FlowControl, SwitchConfig, WhichPacket};
use railnet_nic::Status;
use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec};
use railnet_topology::{FabricGraph, Vertex};

fn graph() -> FabricGraph {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    FabricKind::LeafSpine(LeafSpine::new(2, 2, 1)).build(&links).unwrap()
}

/// Sends 4 MiB from host 0 to host 3 over lossless links with these faults, and looks whether all credit is back.
fn send(faults: &[(Span, Fault)]) -> Vec<Status> {
    let switch = SwitchConfig { flow_control: FlowControl::Credits, ..SwitchConfig::default() };
    let mut world = World::new(&graph(), switch);
    for &(after, fault) in faults {
        world.network.fault_at(Time::ZERO + after, fault);
    }
    world.send(0, 3, 4 << 20, 1);
    let mut log = Log::default();
    assert!(world.network.run(&mut log, Time::ZERO + Span::from_secs(10)), "it comes to an end");
    world.network.audit_at_rest().unwrap();
    log.entries.iter().map(|entry| entry.3).collect()
}

#[test]
fn a_lost_packet_costs_no_credit() {
    let named = (0..100).map(|psn| {
        (Span::ZERO, Fault::LosePacket { host: 0, target: None, which: WhichPacket::Psn(Psn::new(psn * 5)) })
    });
    assert_eq!(send(&named.collect::<Vec<_>>()), [Status::Success]);
    let link = graph().links_between(Vertex::Switch(0), Vertex::Switch(2))[0];
    assert_eq!(
        send(&[(Span::ZERO, Fault::Loss { link, chance: Chance::parts_per_million(20_000) })]),
        [Status::Success]
    );
}

#[test]
fn a_link_that_fails_costs_no_credit() {
    let link = graph().links_between(Vertex::Switch(0), Vertex::Switch(2))[0];
    let detection = Span::from_us(50);
    let (down, up) = (Fault::LinkDown { link, detection }, Fault::LinkUp { link, detection });
    // Packets are lost on the link, and then dropped for want of a route.
    let faults = [(Span::from_us(20), down), (Span::from_us(500), up)];
    assert_eq!(send(&faults), [Status::Success]);
}
