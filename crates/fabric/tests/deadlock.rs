//! Pauses that wait for each other in a circle.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Log, World};
use railnet_core::{Bytes, Rate, Span, Time};
use railnet_fabric::{FlowControl, SwitchConfig};
use railnet_topology::Vertex;
use railnet_topology::fabric::{Explicit, ExplicitLink, FabricKind, LinkSpec};

/// Five switches in a ring with two hosts each. Everybody sends to the second switch clockwise, which is the only
/// shortest way: around the ring each link's traffic waits for the next one's.
fn ring(flow_control: FlowControl) -> (World, Log) {
    let mut links = Vec::new();
    for switch in 0..5 {
        for host in 0..2 {
            links.push(ExplicitLink::new(format!("h{} - s{switch}", switch * 2 + host)));
        }
        links.push(ExplicitLink::new(format!("s{switch} - s{}", (switch + 1) % 5)));
    }
    let switches = (0..5).map(|switch| format!("s{switch}")).collect();
    let graph = FabricKind::Explicit(Explicit { hosts: Vec::new(), switches, links })
        .build(&LinkSpec::new(Rate::gbps(100), Span::from_us(1)))
        .unwrap();
    let config = SwitchConfig { flow_control, buffer: Bytes(4_000_000), ..SwitchConfig::default() };
    let mut world = World::new(&graph, config);
    for host in 0..10u32 {
        let (from, to) = (format!("h{host}"), format!("h{}", (host + 4) % 10));
        let (from, to) = (graph.find_host(&from).unwrap(), graph.find_host(&to).unwrap());
        world.send(from, to, 16 << 20, u64::from(host));
    }
    let mut log = Log::default();
    world.network.run(&mut log, Time::ZERO + Span::from_us(900));
    (world, log)
}

#[test]
fn a_circle_of_pauses_is_found_and_named() {
    is_stuck_in_a_circle(FlowControl::Pfc);
}

#[test]
fn a_circle_of_channels_without_credit_is_found_and_named() {
    is_stuck_in_a_circle(FlowControl::Credits);
}

fn is_stuck_in_a_circle(flow_control: FlowControl) {
    let (world, log) = ring(flow_control);
    assert!(log.entries.is_empty(), "it stands still before anything has arrived");
    let stall = world.network.stall();
    assert_eq!((stall.priority, stall.pausing_hosts.len()), (0, 0));
    assert_eq!(stall.cycle.len(), 5, "{stall:?}");
    for (index, (from, to)) in stall.cycle.iter().enumerate() {
        assert!(matches!((from, to), (Vertex::Switch(_), Vertex::Switch(_))));
        assert_eq!(*to, stall.cycle[(index + 1) % 5].0, "each waits for the next");
    }
    // The victims: hosts that may not send into the circle.
    assert!(stall.paused.iter().any(|(from, _)| matches!(from, Vertex::Host(_))));
}

#[test]
fn a_circle_of_wants_of_credit_is_found_and_named() {
    let (world, log) = ring(FlowControl::Credits);
    assert!(log.entries.is_empty(), "it stands still before anything has arrived");
    assert_eq!(world.network.stall().cycle.len(), 5);
}

#[test]
fn without_pauses_there_is_no_circle() {
    let (world, _) = ring(FlowControl::None);
    assert!(world.network.stall().cycle.is_empty());
}
