//! Dragonflies: detours, and priorities that keep pauses from holding each other up.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use crate::common::{Log, World, WorldOptions};
use railnet_core::event::{Event, NoSink};
use railnet_core::{Bytes, Component, Rate, Span, Time};
use railnet_fabric::{Fault, FlowControl, Routing, SwitchConfig};
use railnet_topology::fabric::{Dragonfly, FabricKind, LinkSpec};
use railnet_topology::{FabricGraph, LinkKind, Vertex};

fn graph(groups: u32, routers: u32, hosts: u32, globals: u32) -> FabricGraph {
    let shape = Dragonfly {
        groups,
        routers_per_group: routers,
        hosts_per_router: hosts,
        global_links_per_router: globals,
    };
    FabricKind::Dragonfly(shape).build(&LinkSpec::new(Rate::gbps(100), Span::from_us(1))).unwrap()
}

/// Every host sends 2 MiB to the one half of all hosts further on, through little memory. Whether all arrived, and the
/// circle in which pauses hold each other up.
fn crowd(switch: &SwitchConfig) -> (bool, usize) {
    let graph = graph(3, 2, 2, 1);
    let mut world = World::new(&graph, SwitchConfig { buffer: Bytes(1_000_000), ..switch.clone() });
    let hosts = graph.hosts.len() as u32;
    for host in 0..hosts {
        world.send(host, (host + hosts / 2) % hosts, 2 << 20, u64::from(host));
    }
    let mut log = Log::default();
    let is_over = world.network.run(&mut log, Time::ZERO + Span::from_ms(5));
    (is_over && log.entries.len() as u32 == hosts, world.network.stall().cycle.len())
}

#[test]
fn raised_priorities_keep_pauses_and_credits_from_a_circle() {
    for routing in [Routing::Ecmp, Routing::Valiant] {
        for flow_control in [FlowControl::Pfc, FlowControl::Credits] {
            let switch = SwitchConfig { routing, flow_control, ..SwitchConfig::default() };
            let (arrived, circle) = crowd(&SwitchConfig { raises_priority: false, ..switch.clone() });
            assert!(!arrived && circle >= 3, "{routing:?}, {flow_control:?}: a circle of {circle}");
            assert_eq!(crowd(&switch), (true, 0), "{routing:?}, {flow_control:?}");
        }
    }
}

type Record = Vec<(Time, Component, Event)>;

/// The switches that packets of each host went over, in order, all packets of a host alike.
fn ways(record: &Record, hosts: u32) -> BTreeMap<u32, Vec<u32>> {
    let mut ways: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for (_, source, event) in record {
        if let Event::PacketStarted { packet: Some(packet), .. } = event
            && packet.packet.opcode < 0x10
            && source.0 >= hosts
        {
            let key = (packet.sender.0, packet.packet.psn.value());
            ways.entry(key).or_default().push(source.0 - hosts);
        }
    }
    let mut by_host: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for ((host, _), way) in ways {
        assert_eq!(by_host.entry(host).or_insert_with(|| way.clone()), &way, "a connection keeps its way");
    }
    by_host
}

fn globals_of(graph: &FabricGraph, way: &[u32]) -> usize {
    let is_global = |pair: &&[u32]| {
        let links = graph.links_between(Vertex::Switch(pair[0]), Vertex::Switch(pair[1]));
        graph.links[links[0] as usize].kind == LinkKind::Global
    };
    way.windows(2).filter(is_global).count()
}

#[test]
fn a_detour_goes_over_one_more_group() {
    let graph = graph(5, 2, 2, 2);
    let switch = SwitchConfig { routing: Routing::Valiant, ..SwitchConfig::default() };
    let mut world = World::watched(&graph, WorldOptions::new(switch), Record::new());
    let hosts = graph.hosts.len() as u32;
    for host in 0..hosts {
        world.send(host, (host + 7) % hosts, 40_000, u64::from(host));
    }
    assert!(world.network.run(&mut Log::default(), Time::ZERO + Span::from_secs(1)));
    let group = |switch: u32| graph.switches[switch as usize].pod;
    let mut seen = BTreeMap::new();
    for (host, way) in ways(&world.network.sink, hosts) {
        let mut groups: Vec<u32> = way.iter().map(|switch| group(*switch)).collect();
        groups.dedup();
        assert_eq!(groups.len(), 3, "host {host} goes over {way:?}");
        assert_eq!(globals_of(&graph, &way), 2);
        assert!(way.len() <= 6, "{way:?}");
        *seen.entry(groups[1]).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 5, "all groups are used: {seen:?}");
}

/// When everybody of a group sends to the next group, and when all of it has arrived.
fn neighbours(routing: Routing, faults: &[(Span, Fault)]) -> (f64, usize) {
    let graph = graph(9, 4, 2, 2);
    let switch = SwitchConfig { routing, ..SwitchConfig::default() };
    let mut world = World::watched(&graph, WorldOptions::new(switch), NoSink);
    for &(after, fault) in faults {
        world.network.fault_at(Time::ZERO + after, fault);
    }
    let hosts = graph.hosts.len() as u32;
    for host in 0..hosts {
        world.send(host, (host + 8) % hosts, 1 << 20, u64::from(host));
    }
    let mut log = Log::default();
    world.network.run(&mut log, Time::ZERO + Span::from_ms(50));
    let last = log.entries.iter().map(|entry| entry.0).max().unwrap();
    (last.since(Time::ZERO).as_us_f64(), log.entries.len())
}

#[test]
fn detours_relieve_the_one_link_between_two_groups() {
    // Eight hosts share a link of 100 Gb/s: 8 × 1 MiB take 685 µs. Over seven other groups they share seven, though
    // not evenly: by chance, several of the eight take the same.
    let (minimal, count) = neighbours(Routing::Ecmp, &[]);
    assert_eq!(count, 72);
    assert!((680.0..700.0).contains(&minimal), "{minimal} us");
    let (detoured, count) = neighbours(Routing::Valiant, &[]);
    assert_eq!(count, 72);
    assert!(detoured < minimal * 0.8, "{detoured} us instead of {minimal} us");
}

#[test]
fn detours_go_around_dead_links() {
    let graph = graph(9, 4, 2, 2);
    let globals =
        (0..graph.links.len() as u32).filter(|link| graph.links[*link as usize].kind == LinkKind::Global);
    let detection = Span::from_us(20);
    let faults: Vec<_> =
        globals.step_by(5).map(|link| (Span::from_us(10), Fault::LinkDown { link, detection })).collect();
    assert_eq!(neighbours(Routing::Valiant, &faults).1, 72, "all arrive");
}
