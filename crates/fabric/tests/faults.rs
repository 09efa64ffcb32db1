//! What breaks, what it costs, and how the network gets over it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Log, World};
use railnet_core::{Bytes, Psn, Rate, Span, Time};
use railnet_fabric::{Chance, Fault, FlowControl, Ports, SwitchConfig, WhichPacket};
use railnet_nic::Status;
use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec, SingleSwitch};
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
    let fault = Fault::LosePacket { host: 0, target: None, which: WhichPacket::Psn(Psn::new(100)) };
    let (clean, _) = send(FlowControl::Pfc, 1 << 20, &[]);
    let (finished, resent) = send(FlowControl::Pfc, 1 << 20, &[(Span::ZERO, fault)]);
    let (at, status) = finished.unwrap();
    assert_eq!(status, Status::Success);
    // What was under way when the NAK came back goes again: a round trip of 8 µs is about 24 packets of 0.33 µs.
    assert!((15..40).contains(&resent), "{resent} packets again");
    let cost = (at - clean.unwrap().0).as_us_f64();
    assert!((5.0..15.0).contains(&cost), "{cost} us");
    // The same packet by its place: sequence numbers begin with 0, places with 1.
    let nth = |target| Fault::LosePacket { host: 0, target, which: WhichPacket::Nth(101) };
    assert_eq!(send(FlowControl::Pfc, 1 << 20, &[(Span::ZERO, nth(None))]), (finished, resent));
    assert_eq!(send(FlowControl::Pfc, 1 << 20, &[(Span::ZERO, nth(Some(3)))]), (finished, resent));
    assert_eq!(send(FlowControl::Pfc, 1 << 20, &[(Span::ZERO, nth(Some(2)))]), (clean, 0));
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

/// A fault of a link that strikes with some chance.
type MakeFault = fn(u32, Chance) -> Fault;

#[test]
fn lost_and_damaged_packets_are_sent_again() {
    for link in uplinks() {
        let chance = Chance::parts_per_million(10_000);
        let bit = Chance::of(3e-7).unwrap();
        for fault in [
            Fault::Loss { link, chance },
            Fault::Corruption { link, chance },
            Fault::BitErrors { link, chance: bit },
        ] {
            let (finished, _) = send(FlowControl::Pfc, 4 << 20, &[(Span::ZERO, fault)]);
            assert_eq!(finished.unwrap().1, Status::Success, "{fault:?}");
        }
    }
    let packet = Chance::parts_per_million(10_000);
    // As likely for a packet of 4178 bytes: 33,424 bits.
    let bit = Chance::of(3e-7).unwrap();
    let faults: [(MakeFault, Chance); 3] = [
        (|link, chance| Fault::Loss { link, chance }, packet),
        (|link, chance| Fault::Corruption { link, chance }, packet),
        (|link, chance| Fault::BitErrors { link, chance }, bit),
    ];
    for (fault, chance) in faults {
        let on_both = |chance| uplinks().into_iter().map(move |link| (Span::ZERO, fault(link, chance)));
        let bad: Vec<_> = on_both(chance).collect();
        assert!(send(FlowControl::Pfc, 4 << 20, &bad).1 > 0, "{:?}", bad[0]);
        let healed: Vec<_> = on_both(chance).chain(on_both(Chance::NEVER)).collect();
        assert_eq!(send(FlowControl::Pfc, 4 << 20, &healed).1, 0, "{:?}", bad[0]);
    }
}

#[test]
fn what_is_lost_gives_its_credit_back() {
    // A tenth of 1024 packets is more than all credit there is.
    let chance = Chance::parts_per_million(100_000);
    let lossy: Vec<_> =
        uplinks().into_iter().map(|link| (Span::ZERO, Fault::Loss { link, chance })).collect();
    let (finished, resent) = send(FlowControl::Credits, 4 << 20, &lossy);
    assert_eq!(finished.unwrap().1, Status::Success);
    assert!(resent > 100, "{resent}");
}

#[test]
fn a_slow_host_takes_as_much_longer() {
    let (clean, _) = send(FlowControl::Pfc, 8 << 20, &[]);
    let slow = Fault::SlowHost { host: 0, rate: 250_000 };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::ZERO, slow)]);
    let ratio = finished.unwrap().0.as_ps() as f64 / clean.unwrap().0.as_ps() as f64;
    assert!((3.9..4.01).contains(&ratio), "{ratio}");
    // A slow receiver is as bad, and so is a slow link.
    for slow in [Fault::SlowHost { host: 3, rate: 250_000 }, Fault::SlowLink { link: 3, rate: 250_000 }] {
        let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::ZERO, slow)]);
        let ratio = finished.unwrap().0.as_ps() as f64 / clean.unwrap().0.as_ps() as f64;
        assert!((3.9..4.01).contains(&ratio), "{slow:?}: {ratio}");
    }
    let healed = Fault::SlowHost { host: 0, rate: 1_000_000 };
    assert_eq!(send(FlowControl::Pfc, 8 << 20, &[(Span::ZERO, slow), (Span::ZERO, healed)]).0, clean);
}

#[test]
fn a_host_that_pauses_for_ever_stops_what_comes_to_it() {
    let storm = Fault::PauseStorm { host: 3 };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), storm)]);
    assert_eq!(finished.unwrap().1, Status::RetryExceeded);
    // One that lets go after 500 µs costs 500 µs.
    let (clean, _) = send(FlowControl::Pfc, 8 << 20, &[]);
    let end = Fault::PauseStormEnd { host: 3 };
    let (finished, _) =
        send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), storm), (Span::from_us(550), end)]);
    let (at, status) = finished.unwrap();
    assert_eq!(status, Status::Success);
    let cost = (at - clean.unwrap().0).as_us_f64();
    assert!((490.0..510.0).contains(&cost), "{cost} us");
}

/// Four senders to one receiver through a small switch, with this about its ports: packets dropped, by the switch.
fn incast(fault: Option<Fault>) -> u64 {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    let graph = FabricKind::SingleSwitch(SingleSwitch { hosts: 5 }).build(&links).unwrap();
    let mut world = World::new(&graph, SwitchConfig { buffer: Bytes(4_000_000), ..SwitchConfig::default() });
    if let Some(fault) = fault {
        world.network.fault_at(Time::ZERO, fault);
    }
    for host in 0..4 {
        world.send(host, 4, 1 << 20, u64::from(host));
    }
    world.network.run(&mut Log::default(), Time::ZERO + Span::from_ms(1));
    world.network.channels().map(|(_, _, _, counters)| counters.drops).sum()
}

#[test]
fn pauses_for_the_wrong_class_do_not_keep_packets_from_being_dropped() {
    // What the tests send travels in priority 0.
    let lossless = |ports, priorities| Some(Fault::Lossless { ports, priorities });
    assert_eq!(incast(None), 0);
    assert_eq!(incast(lossless(Ports::All, 0b1)), 0);
    assert!(incast(lossless(Ports::All, 0b1000)) > 0);
    assert!(incast(lossless(Ports::Switch(0), 0b1000)) > 0);
    let one = incast(lossless(Ports::Link { switch: 0, link: 2 }, 0b1000));
    assert!(one > 0 && one < incast(lossless(Ports::All, 0b1000)), "{one}: one port of four drops");
}
