//! What the fabric tells those who watch.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use crate::common::{Log, World, WorldOptions};
use railnet_core::event::{Event, SentPacket, SwitchDropReason};
use railnet_core::{Bytes, Component, Digest, Port, Psn, Rate, Span, Time};
use railnet_fabric::{Chance, ChannelCounters, Fault, FlowControl, Marking, SwitchConfig, WhichPacket};
use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec};
use railnet_topology::{FabricGraph, Vertex};

type Record = Vec<(Time, Component, Event)>;

/// Two leaves with three hosts each (components 0 to 5), then the leaves (6, 7) and two spines (8, 9).
fn graph() -> FabricGraph {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    FabricKind::LeafSpine(LeafSpine::new(2, 3, 2)).build(&links).unwrap()
}

const ENVIRONMENT: Component = Component(10);

fn is_switch(component: Component) -> bool {
    (6..10).contains(&component.0)
}

/// Everybody sends `bytes` to the last host; all that happened, and what the channels counted.
fn incast(switch: SwitchConfig, bytes: u32, faults: &[(Span, Fault)]) -> (Record, ChannelCounters) {
    let mut world = World::watched(&graph(), WorldOptions::new(switch), Record::new());
    for &(after, fault) in faults {
        world.network.fault_at(Time::ZERO + after, fault);
    }
    for host in 0..5 {
        world.send(host, 5, bytes, u64::from(host));
    }
    let mut log = Log::default();
    assert!(world.network.run(&mut log, Time::ZERO + Span::from_secs(1)), "it comes to an end");
    let mut sum = ChannelCounters::default();
    for (_, _, _, counters) in world.network.channels() {
        sum.packets += counters.packets;
        sum.marks += counters.marks;
        sum.drops += counters.drops;
        sum.losses += counters.losses;
    }
    (world.network.sink, sum)
}

fn sent(record: &Record) -> Vec<SentPacket> {
    let sent = record.iter().filter_map(|(_, sender, event)| match event {
        Event::PacketSent { packet, .. } => Some(SentPacket { sender: *sender, packet: *packet }),
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_mark_names_the_packet_the_switch_and_the_queue() {
    let marking = Marking { low: Bytes(50_000), high: Bytes(200_000), most: 200_000 };
    let switch = SwitchConfig { marking: Some(marking), ..SwitchConfig::default() };
    let (record, counted) = incast(switch, 1 << 20, &[]);
    let sent = sent(&record);
    let mut marks = 0;
    for (_, source, event) in &record {
        if let Event::Marked { packet, depth, .. } = event {
            assert!(is_switch(*source) && sent.contains(packet), "{source}: {event:?}");
            assert!(*depth > 50_000);
            marks += 1;
        }
    }
    assert!(marks > 0);
    assert_eq!(marks, counted.marks);
}

#[test]
fn a_pause_is_told_by_the_port_that_stops_and_ends_with_a_resume() {
    let switch = SwitchConfig { buffer: Bytes(2_000_000), ..SwitchConfig::default() };
    let (record, counted) = incast(switch, 4 << 20, &[]);
    let mut xoff_count: BTreeMap<(Component, Port, u8), bool> = BTreeMap::new();
    let mut pauses = 0;
    for (_, source, event) in &record {
        match *event {
            Event::Paused { port, priority } => {
                assert!(!xoff_count.insert((*source, port, priority), true).unwrap_or(false));
                pauses += 1;
            }
            Event::Resumed { port, priority } => {
                assert_eq!(xoff_count.insert((*source, port, priority), false), Some(true));
            }
            _ => {}
        }
    }
    assert!(pauses > 0);
    assert!(xoff_count.values().all(|is_stopped| !is_stopped), "all go on in the end");
    assert!(xoff_count.keys().any(|(source, ..)| !is_switch(*source)), "pauses reach the hosts");
    assert_eq!(counted.drops, 0);
}

#[test]
fn a_drop_names_the_packet_and_the_reason() {
    let buffer = Bytes(1_500_000);
    let switch = SwitchConfig { buffer, flow_control: FlowControl::None, ..SwitchConfig::default() };
    let (record, counted) = incast(switch, 1 << 20, &[]);
    let sent = sent(&record);
    let drops = record.iter().filter(|(_, source, event)| match event {
        Event::DroppedBySwitch { packet, reason, .. } => {
            assert!(is_switch(*source) && sent.contains(packet));
            assert_eq!(*reason, SwitchDropReason::NoMemory);
            true
        }
        _ => false,
    });
    assert_eq!(drops.count() as u64, counted.drops);
    assert!(counted.drops > 0);
}

#[test]
fn a_link_that_fails_is_told_with_what_it_loses_and_when_routes_change() {
    let graph = graph();
    let (leaf, host) = (graph.find("leaf1").unwrap(), Vertex::Host(5));
    let link = graph.links_between(leaf, host)[0];
    let detection = Span::from_us(100);
    let (down, up) = (Fault::LinkDown { link, detection }, Fault::LinkUp { link, detection });
    let times = [Span::from_us(20), Span::from_us(300)];
    let (record, counted) = incast(SwitchConfig::default(), 1 << 20, &[(times[0], down), (times[1], up)]);
    let of_environment: Vec<_> = record.iter().filter(|(_, source, _)| *source == ENVIRONMENT).collect();
    let at = |after: Span| Time::ZERO + after;
    let expected = [
        (at(times[0]), ENVIRONMENT, Event::LinkDown { link }),
        (at(times[0] + detection), ENVIRONMENT, Event::Rerouted { dead: 1 }),
        (at(times[1]), ENVIRONMENT, Event::LinkUp { link }),
        (at(times[1] + detection), ENVIRONMENT, Event::Rerouted { dead: 0 }),
    ];
    assert!(of_environment.into_iter().eq(&expected));
    let lost = record.iter().filter(|(_, _, event)| matches!(event, Event::PacketLost { .. })).count();
    assert_eq!(lost as u64, counted.losses);
    assert!(lost > 0);
    // Between the two changes of routes there is no way to the host.
    let unroutable = |(at, _, event): &&(Time, Component, Event)| {
        matches!(event, Event::DroppedBySwitch { reason: SwitchDropReason::NoRoute, .. })
            && (Time::ZERO + times[0] + detection..=Time::ZERO + times[1] + detection).contains(at)
    };
    assert!(record.iter().any(|entry| unroutable(&entry)));
}

#[test]
fn a_lost_and_a_corrupted_packet_are_named() {
    let named = Fault::LosePacket { host: 2, target: None, which: WhichPacket::Psn(Psn::new(7)) };
    let (record, _) = incast(SwitchConfig::default(), 1 << 20, &[(Span::ZERO, named)]);
    let lost: Vec<_> =
        record.iter().filter(|(_, _, event)| matches!(event, Event::PacketLost { .. })).collect();
    let [(_, source, Event::PacketLost { packet: Some(packet), port, .. })] = lost[..] else {
        panic!("one is lost: {lost:?}")
    };
    assert_eq!((source.0, port.0, packet.sender.0, packet.packet.psn.value()), (2, 0, 2, 7));
    assert_eq!(packet.packet.transmission, 0);
    let link = graph().links_between(Vertex::Host(0), Vertex::Switch(0))[0];
    let fault = Fault::Corruption { link, chance: Chance::parts_per_million(20_000) };
    let (record, _) = incast(SwitchConfig::default(), 1 << 20, &[(Span::ZERO, fault)]);
    let ends = [Component(0), Component(6)];
    let corrupted = record.iter().filter(|(_, source, event)| match event {
        Event::PacketCorrupted { packet, .. } => ends.contains(source) && packet.is_some(),
        _ => false,
    });
    assert!(corrupted.count() > 0);
}

#[test]
fn a_packet_is_told_at_each_port_it_leaves_by() {
    let (record, counted) = incast(SwitchConfig::default(), 1 << 20, &[]);
    let started = record.iter().filter(|(_, _, event)| matches!(event, Event::PacketStarted { .. })).count();
    assert_eq!(started as u64, counted.packets);
    let first = |event: &Event| match event {
        Event::PacketStarted { packet: Some(packet), .. } => {
            packet.sender == Component(0) && packet.packet.psn == Psn::new(3) && packet.packet.opcode == 7
        }
        _ => false,
    };
    let way: Vec<u32> =
        record.iter().filter(|(_, _, event)| first(event)).map(|(_, source, _)| source.0).collect();
    assert_eq!((way[0], way[1], way[3]), (0, 6, 7), "host, its leaf, a spine, the other leaf: {way:?}");
    assert!(way.len() == 4 && (8..10).contains(&way[2]), "{way:?}");
}

#[test]
fn a_difference_inside_the_fabric_shows_at_its_switch() {
    // NICs that do not react to marks: what differs is what the switches do.
    let run = |low: u64| {
        let marking = Marking { low: Bytes(low), high: Bytes(low * 4), most: 200_000 };
        let switch = SwitchConfig { marking: Some(marking), ..SwitchConfig::default() };
        let mut options = WorldOptions::new(switch);
        options.nic.behaviour.notify_congestion = false;
        let mut world = World::watched(&graph(), options, Digest::new());
        world.send(3, 5, 1 << 20, 1);
        world.send(4, 5, 1 << 20, 2);
        assert!(world.network.run(&mut Log::default(), Time::ZERO + Span::from_secs(1)));
        world.network.sink
    };
    let (one, other) = (run(50_000), run(60_000));
    assert_eq!(one.first_difference(&other), Some(Component(7)), "the leaf in front of host 5");
    assert_eq!(one.first_difference(&run(50_000)), None);
}
