//! Frames on links: what a tap sees, and that a run of bytes is the run of values.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Log, World, WorldOptions};
use railnet_core::event::Event;
use railnet_core::{Bytes, Component, Digest, Psn, Rate, RunDigest, Span, Time};
use railnet_fabric::{Chance, Fault, FlowControl, Marking, Routing, SwitchConfig, WhichPacket, port_mac};
use railnet_nic::frame::WireForm;
use railnet_nic::recovery::RecoveryKind;
use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec};
use railnet_topology::{End, FabricGraph, Vertex};
use railnet_wire::{Frame, Pause, RocePacket};

/// Two leaves with two hosts each, and two spines.
fn graph() -> FabricGraph {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    FabricKind::LeafSpine(LeafSpine::new(2, 2, 2)).build(&links).unwrap()
}

/// A frame as a tap had it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    at: Time,
    link: u32,
    from: Vertex,
    frame: Vec<u8>,
    is_lost: bool,
}

/// What a run came to: completions, digest, and everything that passed any link.
#[derive(PartialEq, Debug)]
struct Ran {
    log: Vec<(Time, u32, u64, railnet_nic::Status)>,
    digest: RunDigest,
    seen: Vec<Seen>,
}

struct Plan {
    options: WorldOptions,
    bytes: u32,
    faults: Vec<(Span, Fault)>,
}

impl Plan {
    fn new(switch: SwitchConfig) -> Self {
        Self { options: WorldOptions::new(switch), bytes: 300_000, faults: Vec::new() }
    }

    /// Hosts 0, 1 and 2 send to host 3, with every link tapped.
    fn run(&self, form: WireForm) -> Ran {
        let graph = graph();
        let mut world = World::watched(&graph, self.options.clone(), Digest::new());
        world.network.set_wire(form);
        for link in 0..graph.links.len() as u32 {
            world.network.tap(link);
        }
        for &(after, fault) in &self.faults {
            world.network.fault_at(Time::ZERO + after, fault);
        }
        for host in 0..3 {
            world.send(host, 3, self.bytes, u64::from(host));
        }
        let (mut log, mut seen) = (Log::default(), Vec::new());
        let mut is_over = false;
        while !is_over {
            let until = world.network.now + Span::from_us(50);
            is_over = world.network.run(&mut log, until) || until > Time::ZERO + Span::from_secs(1);
            world.network.drain_taps(|tapped| {
                let (at, link, from, is_lost) = (tapped.at, tapped.link, tapped.from, tapped.is_lost);
                seen.push(Seen { at, link, from, frame: tapped.frame.to_vec(), is_lost });
            });
        }
        Ran { log: log.entries, digest: world.network.sink.finish(), seen }
    }

    /// Runs it both ways: everything must be the same, to the last bit on every link.
    fn run_both(&self) -> Ran {
        let [values, bytes] = [WireForm::Values, WireForm::Bytes].map(|form| self.run(form));
        assert_eq!(values.digest, bytes.digest);
        assert_eq!(values.log, bytes.log);
        assert_eq!(values.seen.len(), bytes.seen.len());
        for (one, other) in values.seen.iter().zip(&bytes.seen) {
            assert_eq!(one, other);
        }
        values
    }
}

fn roce(frame: &[u8]) -> Option<RocePacket<'_>> {
    match Frame::parse(frame) {
        Ok(Frame::Roce(packet)) => Some(packet),
        _ => None,
    }
}

/// A marking that every queue of a few packets sets off.
fn eager() -> Marking {
    Marking { low: Bytes(20_000), high: Bytes(80_000), most: 500_000 }
}

#[test]
fn one_packet_has_other_addresses_and_hop_limits_on_each_link_and_one_icrc() {
    let ran = Plan::new(SwitchConfig { marking: Some(eager()), ..SwitchConfig::default() }).run_both();
    let mut marked_on_the_way = 0;
    for psn in 0..70 {
        // Requests of host 0: up to its leaf, to a spine, to the other leaf, to host 3.
        let hops: Vec<_> = ran.seen.iter().filter_map(|seen| Some((seen, roce(&seen.frame)?))).collect();
        let hops: Vec<_> = hops
            .iter()
            .filter(|(_, packet)| {
                packet.network().source == railnet_fabric::host_gid(0)
                    && packet.headers.bth.psn == Psn::new(psn)
            })
            .collect();
        let [first, second, third, fourth] = hops[..] else { panic!("four links: {}", hops.len()) };
        let limits = [first, second, third, fourth].map(|(_, packet)| packet.network().hop_limit);
        assert_eq!(limits, [64, 63, 62, 61]);
        for (seen, packet) in [first, second, third, fourth] {
            assert!(packet.icrc.is_good());
            assert_eq!(packet.icrc, first.1.icrc, "the ICRC is that of the sender");
            assert_eq!(packet.payload, first.1.payload);
            let ends = graph().links[seen.link as usize].ends;
            let near = usize::from(ends[1].vertex == seen.from);
            let ethernet = packet.ethernet.unwrap();
            assert_eq!(ethernet.source, port_mac(ends[near]));
            assert_eq!(ethernet.target, port_mac(ends[1 - near]));
        }
        let marks = [first, second, third, fourth].map(|(_, packet)| packet.network().ecn());
        assert!(
            marks.is_sorted() && marks[0] == 2 && marks.iter().all(|ecn| [2, 3].contains(ecn)),
            "{marks:?}"
        );
        marked_on_the_way += u32::from(marks[3] == 3);
    }
    assert!(marked_on_the_way > 0, "some meet congestion");
}

#[test]
fn a_mark_shows_from_the_switch_that_made_it_on() {
    let plan = Plan::new(SwitchConfig { marking: Some(eager()), ..SwitchConfig::default() });
    let mut world = World::watched(&graph(), plan.options, Vec::<(Time, Component, Event)>::new());
    let graph = graph();
    (0..graph.links.len() as u32).for_each(|link| world.network.tap(link));
    for host in 0..3 {
        world.send(host, 3, plan.bytes, u64::from(host));
    }
    assert!(world.network.run(&mut Log::default(), Time::ZERO + Span::from_secs(1)));
    let mut seen = Vec::new();
    world.network.drain_taps(|tapped| {
        if let Some(packet) = roce(tapped.frame) {
            let Vertex::Host(_) = tapped.from else {
                let (network, bth) = (packet.network(), packet.headers.bth);
                seen.push((world_component(&graph, tapped.from), network.source, bth.psn, network.ecn()));
                return;
            };
        }
    });
    let mut checked = 0;
    for (_, source, event) in &world.network.sink {
        let Event::Marked { packet, .. } = event else { continue };
        let sender = railnet_fabric::host_gid(packet.sender.0);
        let left =
            seen.iter().find(|(at, from, psn, _)| (*at, *from, *psn) == (*source, sender, packet.packet.psn));
        assert_eq!(left.unwrap().3, 3, "{event:?}");
        checked += 1;
    }
    assert!(checked > 10);
}

fn world_component(graph: &FabricGraph, vertex: Vertex) -> Component {
    match vertex {
        Vertex::Host(host) => Component(host),
        Vertex::Switch(switch) => Component(graph.hosts.len() as u32 + switch),
    }
}

#[test]
fn pauses_are_frames_of_their_standard() {
    let mut plan = Plan::new(SwitchConfig { buffer: Bytes(1_500_000), ..SwitchConfig::default() });
    plan.bytes = 2 << 20;
    let ran = plan.run_both();
    let pauses: Vec<_> = ran
        .seen
        .iter()
        .filter_map(|seen| match Frame::parse(&seen.frame) {
            Ok(Frame::Pause { ethernet, pause }) => Some((seen, ethernet, pause)),
            _ => None,
        })
        .collect();
    let quanta =
        |value: u16| pauses.iter().filter(|(_, _, pause)| pause.quanta.contains(&Some(value))).count();
    assert!(quanta(u16::MAX) > 0 && quanta(0) > 0, "stops and goes");
    for (seen, ethernet, _) in &pauses {
        assert_eq!(ethernet.target, Pause::TARGET);
        let ends = graph().links[seen.link as usize].ends;
        let near = ends.iter().find(|end| end.vertex == seen.from).unwrap();
        assert_eq!(ethernet.source, port_mac(*near));
        assert_eq!(seen.frame.len(), 60);
    }
}

#[test]
fn a_corrupted_packet_has_one_flipped_bit_and_its_icrc_tells() {
    let mut plan = Plan::new(SwitchConfig::default());
    let uplinks = graph().links_between(Vertex::Host(0), Vertex::Switch(0));
    plan.faults = vec![(
        Span::ZERO,
        Fault::Corruption { link: uplinks[0], chance: Chance::parts_per_million(100_000) },
    )];
    let ran = plan.run_both();
    // On the link where it happens a frame still is what was sent; behind it, it is not.
    let bad = |from: Vertex| {
        let is_bad =
            |seen: &&Seen| seen.from == from && roce(&seen.frame).is_none_or(|packet| !packet.icrc.is_good());
        ran.seen.iter().filter(is_bad).count()
    };
    assert_eq!(bad(Vertex::Host(0)), 0);
    assert!(bad(Vertex::Switch(0)) > 0);
    for seen in ran.seen.iter().filter(|seen| roce(&seen.frame).is_some_and(|packet| !packet.icrc.is_good()))
    {
        let Some(packet) = roce(&seen.frame) else { continue };
        assert_eq!(packet.network().target.0[12..], [10, 0, 0, 4], "its addressing is as it was");
    }
}

#[test]
fn a_lost_packet_is_seen_where_it_was_sent_and_said_to_be_lost() {
    let mut plan = Plan::new(SwitchConfig::default());
    plan.faults =
        vec![(Span::ZERO, Fault::LosePacket { host: 1, target: None, which: WhichPacket::Psn(Psn::new(5)) })];
    let ran = plan.run_both();
    let lost: Vec<&Seen> = ran.seen.iter().filter(|seen| seen.is_lost).collect();
    let [seen] = lost[..] else { panic!("one is lost: {lost:?}") };
    assert_eq!(seen.from, Vertex::Host(1));
    assert_eq!(roce(&seen.frame).unwrap().headers.bth.psn, Psn::new(5));
}

#[test]
fn values_and_bytes_are_one_run_whatever_befalls_them() {
    let spray = SwitchConfig { routing: Routing::Spray, marking: Some(eager()), ..SwitchConfig::default() };
    let mut plans = vec![
        Plan::new(SwitchConfig { marking: Some(eager()), ..SwitchConfig::default() }),
        Plan::new(SwitchConfig { flow_control: FlowControl::Credits, ..SwitchConfig::default() }),
        Plan::new(SwitchConfig {
            flow_control: FlowControl::None,
            buffer: Bytes(1_100_000),
            ..SwitchConfig::default()
        }),
        Plan::new(SwitchConfig { cut_through: true, routing: Routing::Adaptive, ..SwitchConfig::default() }),
        Plan::new(spray),
    ];
    plans[4].options.nic.recovery = RecoveryKind::Reorder { window: 1 << 10 };
    for mut plan in plans {
        let clean = plan.run_both();
        assert_eq!(clean.log.len(), 3);
        let links = graph().links.len() as u32;
        for link in 0..links {
            plan.faults.push((
                Span::from_us(u64::from(link)),
                Fault::Loss { link, chance: Chance::parts_per_million(3_000) },
            ));
            plan.faults.push((
                Span::from_us(u64::from(link)),
                Fault::Corruption { link, chance: Chance::parts_per_million(3_000) },
            ));
        }
        let rough = plan.run_both();
        assert_ne!(rough.digest, clean.digest);
        plan.options.is_ghost = false;
        plan.options.memory = 1 << 20;
        plan.run_both();
    }
}

#[test]
fn every_port_has_an_address_of_its_own() {
    let graph = graph();
    let mut all: Vec<_> = graph.links.iter().flat_map(|link| link.ends).map(port_mac).collect();
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count);
    let end = End { vertex: Vertex::Switch(0x0102), port: 3 };
    assert_eq!(port_mac(end).to_string(), "06:00:01:02:00:03");
}
