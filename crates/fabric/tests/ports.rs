//! When a port is free, and what waits for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Log, World, WorldOptions};
use railnet_core::event::{Event, NoSink};
use railnet_core::{Bytes, Component, Rate, Span, Time};
use railnet_fabric::{Chance, Fault, Framing, SwitchConfig};
use railnet_nic::{Operation, ReceiveRequest, SendRequest, Status};
use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};
use railnet_topology::{FabricGraph, Vertex};

fn graph(hosts: u32) -> FabricGraph {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    FabricKind::SingleSwitch(SingleSwitch { hosts }).build(&links).unwrap()
}

#[test]
fn a_packet_that_comes_in_the_moment_a_port_falls_free_stops_nobody() {
    // With headers not counted, an acknowledgement takes as long as the READ request behind the message it is for:
    // the request comes when the acknowledgement has just left, and is answered in many packets.
    let options = WorldOptions { framing: Framing::fixed(64), ..WorldOptions::new(SwitchConfig::default()) };
    let mut world = World::watched(&graph(2), options, NoSink);
    let (near, far) = world.connect(0, 1);
    let write =
        SendRequest::new(1, Operation::WriteImmediate(world.remote(1, 0), 7)).with(world.sge(0, 0, 100));
    let read = SendRequest::new(2, Operation::Read(world.remote(1, 0))).with(world.sge(0, 4096, 1 << 20));
    let (nic, mut cx) = world.network.nic(1);
    nic.post_recv(&mut cx, far, ReceiveRequest::new(3)).unwrap();
    let (nic, mut cx) = world.network.nic(0);
    nic.post_send(&mut cx, near, write).unwrap();
    nic.post_send(&mut cx, near, read).unwrap();
    world.network.kick(0);
    let mut log = Log::default();
    assert!(world.network.run(&mut log, Time::ZERO + Span::from_secs(1)));
    assert_eq!(world.network.nic(0).0.counters().timeouts, 0, "nobody had to wait for a timer");
    let (at, ..) =
        log.entries.iter().find(|(_, _, work, status)| (*work, *status) == (2, Status::Success)).unwrap();
    // 1 MiB in packets of 4160 bytes, and two round trips.
    assert!((84.0..100.0).contains(&at.since(Time::ZERO).as_us_f64()), "{at:?}");
}

#[test]
fn a_damaged_pause_frame_stops_nobody() {
    // An incast that needs pauses; those to host 0 are all damaged on their way.
    let pauses_of = |rate: u32| {
        let switch = SwitchConfig { buffer: Bytes(1_000_000), ..SwitchConfig::default() };
        let graph = graph(4);
        let mut world =
            World::watched(&graph, WorldOptions::new(switch), Vec::<(Time, Component, Event)>::new());
        let link = graph.links_between(Vertex::Host(0), Vertex::Switch(0))[0];
        world
            .network
            .fault_at(Time::ZERO, Fault::Corruption { link, chance: Chance::parts_per_million(rate) });
        for host in 0..3 {
            world.send(host, 3, 2 << 20, u64::from(host));
        }
        world.network.run(&mut Log::default(), Time::ZERO + Span::from_us(300));
        let of_host = |(_, source, event): &&(Time, Component, Event)| {
            *source == Component(0) && matches!(event, Event::Paused { .. })
        };
        world.network.sink.iter().filter(of_host).count()
    };
    assert!(pauses_of(0) > 0);
    assert_eq!(pauses_of(1_000_000), 0);
}
