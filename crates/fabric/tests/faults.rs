//! What breaks, what it costs, and how the network gets over it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Log, World};
use railnet_core::{Psn, Rate, Span, Time};
use railnet_fabric::{Fault, FlowControl, SwitchConfig};
use railnet_nic::Status;
use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec};
use railnet_topology::{FabricGraph, Vertex};

fn leaf_spine() -> FabricGraph {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    FabricKind::LeafSpine(LeafSpine::new(2, 2, 2)).build(&links).unwrap()
}

/// Sends `bytes` from host 0 to host 3, across the spines, with these faults. Returns when it arrived or failed, and the
/// packets sent again.
fn send(flow_control: FlowControl, bytes: u32, faults: &[(Span, Fault)]) -> (Option<(Time, Status)>, u64) {
    let mut world = World::new(&leaf_spine(), SwitchConfig { flow_control, ..SwitchConfig::default() });
    for &(after, fault) in faults {
        world.network.fault_at(Time::ZERO + after, fault);
    }
    world.send(0, 3, bytes, 1);
    let mut log = Log::default();
    world.network.run(&mut log, Time::ZERO + Span::from_secs(1));
    let (nic, _) = world.network.nic(0);
    (log.entries.first().map(|&(at, _, _, status)| (at, status)), nic.counters().resent)
}

fn link_between(graph: &FabricGraph, a: &str, b: &str) -> u32 {
    let (a, b) = (graph.find(a).unwrap(), graph.find(b).unwrap());
    graph.links_between(a, b)[0]
}

/// The links from the first leaf to the spines.
fn uplinks() -> Vec<u32> {
    let graph = leaf_spine();
    let is_uplink = |link: &railnet_topology::Link| {
        let ends = [link.ends[0].vertex, link.ends[1].vertex];
        ends.contains(&Vertex::Switch(0)) && ends.iter().all(|end| matches!(end, Vertex::Switch(_)))
    };
    (0..graph.links.len() as u32).filter(|&index| is_uplink(&graph.links[index as usize])).collect()
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    let (finished, resent) = send(FlowControl::Pfc, 1 << 20, &[]);
    assert_eq!(finished.unwrap().1, Status::Success);
    assert_eq!(resent, 0);
}

#[test]
fn a_named_packet_is_lost_once_and_go_back_n_pays_for_all_behind_it() {
    let fault = Fault::LosePacket { host: 0, psn: Psn::new(100) };
    let (clean, _) = send(FlowControl::Pfc, 1 << 20, &[]);
    let (finished, resent) = send(FlowControl::Pfc, 1 << 20, &[(Span::ZERO, fault)]);
    let (at, status) = finished.unwrap();
    assert_eq!(status, Status::Success);
    // What was under way when the NAK came back goes again: a round trip of 8 µs is about 24 packets of 0.33 µs.
    assert!((15..40).contains(&resent), "{resent} packets again");
    let cost = (at - clean.unwrap().0).as_us_f64();
    assert!((5.0..15.0).contains(&cost), "{cost} us");
}

#[test]
fn a_dead_uplink_is_routed_around_after_its_detection() {
    let graph = leaf_spine();
    assert_eq!(graph.links.len(), 8);
    // Both in turn: whichever the connection uses, it is hit.
    for link in uplinks() {
        let down = Fault::LinkDown { link, detection: Span::from_us(100) };
        let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), down)]);
        assert_eq!(finished.unwrap().1, Status::Success);
    }
}

#[test]
fn a_host_that_is_cut_off_for_good_is_given_up() {
    let graph = leaf_spine();
    let edge = link_between(&graph, &graph.hosts[3].name, &graph.switches[1].name);
    let down = Fault::LinkDown { link: edge, detection: Span::from_us(10) };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), down)]);
    assert_eq!(finished.unwrap().1, Status::RetryExceeded);
    // Mended in time, it goes on.
    let up = Fault::LinkUp { link: edge, detection: Span::from_us(10) };
    let (finished, resent) =
        send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), down), (Span::from_us(2500), up)]);
    assert_eq!(finished.unwrap().1, Status::Success);
    assert!(resent > 0);
}

#[test]
fn lost_and_damaged_packets_are_sent_again() {
    for link in uplinks() {
        for fault in [Fault::Loss { link, rate: 10_000 }, Fault::Corruption { link, rate: 10_000 }] {
            let (finished, _) = send(FlowControl::Pfc, 4 << 20, &[(Span::ZERO, fault)]);
            assert_eq!(finished.unwrap().1, Status::Success, "{fault:?}");
        }
    }
    let both: Vec<_> =
        uplinks().into_iter().map(|link| (Span::ZERO, Fault::Loss { link, rate: 10_000 })).collect();
    let (_, resent) = send(FlowControl::Pfc, 4 << 20, &both);
    assert!(resent > 0);
}

#[test]
fn a_slow_host_takes_as_much_longer() {
    let (clean, _) = send(FlowControl::Pfc, 8 << 20, &[]);
    let slow = Fault::SlowHost { host: 0, rate: 250_000 };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::ZERO, slow)]);
    let ratio = finished.unwrap().0.as_ps() as f64 / clean.unwrap().0.as_ps() as f64;
    assert!((3.9..4.01).contains(&ratio), "{ratio}");
}

#[test]
fn a_host_that_pauses_for_ever_stops_what_comes_to_it() {
    let storm = Fault::PauseStorm { host: 3 };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), storm)]);
    assert_eq!(finished.unwrap().1, Status::RetryExceeded);
}
