//! What switches do to queues that grow: marks by chance, and pauses that spread upstream.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Log, World, WorldOptions};
use railnet_core::event::{Event, Sink};
use railnet_core::{Bytes, Component, Rate, Span, Time};
use railnet_fabric::{Fault, Marking, MarksAt, SwitchConfig};
use railnet_topology::fabric::{FabricKind, FatTree, LinkSpec, SingleSwitch};

/// Keeps marks and pauses, and nothing else.
#[derive(Default)]
struct Kept {
    marks: Vec<u64>,
    paused: Vec<(Time, Component)>,
}

impl Sink for Kept {
    const DETAIL: bool = false;

    fn record(&mut self, at: Time, source: Component, event: &Event) {
        match *event {
            Event::Marked { depth, .. } => self.marks.push(depth),
            Event::Paused { .. } => self.paused.push((at, source)),
            _ => {}
        }
    }
}

fn links() -> LinkSpec {
    LinkSpec::new(Rate::gbps(100), Span::from_us(1))
}

#[test]
fn the_chance_of_a_mark_grows_evenly_from_one_threshold_to_the_other() {
    for marks_at in [MarksAt::Arrival, MarksAt::Departure] {
        check_chances(marks_at);
    }
}

fn check_chances(marks_at: MarksAt) {
    const PACKET: u64 = 4096 + 82;
    const BIN: u64 = 1_000_000;
    let graph = FabricKind::SingleSwitch(SingleSwitch { hosts: 3 }).build(&links()).unwrap();
    let marking = Marking { low: Bytes(2 * BIN), high: Bytes(10 * BIN), most: 1_000_000 };
    let config = SwitchConfig {
        buffer: Bytes(400_000_000),
        marking: Some(marking),
        marks_at,
        ..SwitchConfig::default()
    };
    let mut world = World::watched(&graph, WorldOptions::new(config), Kept::default());
    for from in 0..2 {
        world.send(from, 2, 12_000_000, u64::from(from));
    }
    world.network.run(&mut Log::default(), Time::ZERO + Span::from_secs(1));
    // Two come while one leaves: while the queue grows, two arrive for each packet that it grows by. One leaves, and one
    // more when the queue shrinks again. So each bin sees two for each packet that it holds, either way.
    let packets = 2.0 * BIN as f64 / PACKET as f64;
    let mut count = [0u64; 16];
    for depth in &world.network.sink.marks {
        count[(depth / BIN) as usize] += 1;
    }
    assert_eq!(count[..2], [0, 0], "below the first threshold nothing is marked");
    for (bin, &count) in count.iter().enumerate().take(10).skip(2) {
        let chance = (bin as f64 - 2.0 + 0.5) / 8.0;
        let deviation = (packets * chance * (1.0 - chance)).sqrt();
        let (found, expected) = (count as f64, packets * chance);
        assert!(
            (found - expected).abs() < 4.0 * deviation,
            "{bin} MB: {found} marks, {expected:.0} expected"
        );
    }
    // The queue ends at 12 MB less what left: above the second threshold every packet is marked.
    assert!((count[10] as f64 / packets - 1.0).abs() < 0.02, "{} of {packets:.0}", count[10]);
}

#[test]
fn a_pause_spreads_upstream_through_three_tiers_one_buffer_at_a_time() {
    let graph = FabricKind::FatTree(FatTree::new(4)).build(&links()).unwrap();
    let hosts = graph.hosts.len() as u32;
    let config =
        SwitchConfig { buffer: Bytes(10_000_000), headroom: Some(Bytes(60_000)), ..SwitchConfig::default() };
    // What a port may hold of memory that it has to itself: x = reserve + (shared − x) / 8, no more than a packet over.
    let shared = 10_000_000.0 - 4.0 * 8.0 * (60_000.0 + 4_000.0);
    let threshold = shared / 9.0 + 4_000.0;
    let mut world = World::watched(&graph, WorldOptions::new(config), Kept::default());
    world.network.fault_at(Time::ZERO, Fault::PauseStorm { host: 0 });
    world.send(hosts - 1, 0, 16_000_000, 1);
    world.network.run(&mut Log::default(), Time::ZERO + Span::from_us(900));
    let drops: u64 = world.network.channels().map(|(_, _, _, counters)| counters.drops).sum();
    assert_eq!(drops, 0);
    let name = |component: Component| match component.0.checked_sub(hosts) {
        None => graph.hosts[component.0 as usize].name.clone(),
        Some(switch) => graph.switches[switch as usize].name.clone(),
    };
    let mut first: Vec<(Time, String)> = Vec::new();
    for &(at, component) in &world.network.sink.paused {
        if first.iter().all(|(_, seen)| *seen != name(component)) {
            first.push((at, name(component)));
        }
    }
    // The switch of the silent host, then down the way to the sender, each told by the one before it.
    let tier = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned();
    let tiers: Vec<String> = first.iter().map(|(_, name)| tier(name)).collect();
    assert_eq!(tiers, ["edge", "agg", "core", "agg", "edge", "host"], "{first:?}");
    // Between two of them a buffer fills at 100 Gb/s, and the next packet and the pause travel. The first one took a
    // packet's time longer at each switch on the way.
    let fill = threshold * 80.0 / 1e6;
    for pair in first.windows(2).skip(1) {
        let apart = (pair[1].0 - pair[0].0).as_us_f64();
        assert!((apart / (fill + 1.0) - 1.0).abs() < 0.05, "{pair:?}: {apart:.1} us, {fill:.1} us to fill");
    }
}
