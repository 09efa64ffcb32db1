//! Slices over the buses of a host: the latency of one, and the throughput of many.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::World;
use proptest::prelude::*;
use railnet_core::event::NoSink;
use railnet_core::{Bytes, Rate, Span, Time};
use railnet_fabric::{Application, BusHop, BusPath, CUT_THROUGH_BYTES, Fault, Network, SwitchConfig};
use railnet_nic::Completion;
use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};

/// When each slice was there, by its token.
#[derive(Default)]
struct There {
    at: Vec<(u32, u64)>,
    /// Slices to set out at moments asked for: the token is the index.
    later: Vec<(BusPath, u64)>,
}

impl Application<NoSink> for There {
    fn completed(&mut self, _network: &mut Network<NoSink>, _host: u32, _completion: &Completion) {}

    fn called(&mut self, network: &mut Network<NoSink>, token: u32) {
        let (way, bytes) = self.later[token as usize];
        network.carry(way, Bytes(bytes), 1, token);
    }

    fn carried(&mut self, network: &mut Network<NoSink>, token: u32) {
        self.at.push((token, network.now.as_ps()));
    }
}

fn network() -> Network<NoSink> {
    let links = LinkSpec::new(Rate::gbps(400), Span::from_ns(500));
    let graph = FabricKind::SingleSwitch(SingleSwitch { hosts: 2 }).build(&links).unwrap();
    World::new(&graph, SwitchConfig::default()).network
}

/// Sends slices on their ways, (when in ps, way, bytes), and says when each was there.
fn carried(network: &mut Network<NoSink>, slices: &[(u64, BusPath, u64)]) -> Vec<u64> {
    let later = slices.iter().map(|(_, way, bytes)| (*way, *bytes)).collect();
    let mut there = There { later, ..There::default() };
    for (token, (at, ..)) in slices.iter().enumerate() {
        network.call_at(Time::from_ps(*at), token as u32);
    }
    assert!(network.run(&mut there, Time::ZERO + Span::from_secs(10)));
    there.at.sort_unstable();
    assert_eq!(there.at.len(), slices.len());
    there.at.into_iter().map(|(_, at)| at).collect()
}

/// A path over new resources, a hop each.
fn hops(network: &mut Network<NoSink>, rates: &[u64], delay: Span) -> Vec<BusHop> {
    rates.iter().map(|gbps| BusHop::moves(network.add_bus_resource(0), Rate::gbps(*gbps), delay)).collect()
}

/// Picoseconds that bytes take at so many Gb/s.
fn takes(bytes: u64, gbps: u64) -> u64 {
    Rate::gbps(gbps).serialize(Bytes(bytes)).as_ps()
}

proptest! {
    #[test]
    fn a_slice_alone_takes_its_slowest_resource_and_a_piece_on_each_other(
        rates in prop::collection::vec(1u64..4000, 1..6), bytes in 1u64..4_000_000, delay in 0u64..1000,
    ) {
        let mut network = network();
        let hops = hops(&mut network, &rates, Span::from_ns(delay));
        let way = network.add_bus_path(hops);
        let found = carried(&mut network, &[(0, way, bytes)])[0];
        let pieces: u64 = rates.iter().map(|gbps| takes(bytes.min(CUT_THROUGH_BYTES.0), *gbps)).sum();
        let slowest = *rates.iter().min().unwrap();
        let rest = takes(bytes, slowest) - takes(bytes.min(CUT_THROUGH_BYTES.0), slowest);
        let expected = pieces + rest + rates.len() as u64 * delay * 1000;
        // Each resource may round up by a picosecond.
        prop_assert!(found.abs_diff(expected) <= 2 * rates.len() as u64, "{found} ps, expected {expected}");
    }

    #[test]
    fn many_slices_go_as_fast_as_the_slowest_resource(
        rates in prop::collection::vec(1u64..4000, 1..6), bytes in 1u64..1_000_000, count in 1u64..50,
    ) {
        let mut network = network();
        let hops = hops(&mut network, &rates, Span::ZERO);
        let way = network.add_bus_path(hops);
        let all = vec![(0, way, bytes); count as usize];
        let found = *carried(&mut network, &all).iter().max().unwrap();
        let slowest = *rates.iter().min().unwrap();
        let pieces: u64 = rates.iter().map(|gbps| takes(bytes.min(CUT_THROUGH_BYTES.0), *gbps)).sum();
        let expected = count * takes(bytes, slowest) + pieces - takes(bytes.min(CUT_THROUGH_BYTES.0), slowest);
        prop_assert!(found.abs_diff(expected) <= 2 * rates.len() as u64, "{found} ps, expected {expected}");
    }
}

const MB: u64 = 1_000_000;

#[test]
fn a_fast_lane_serves_others_while_it_waits_for_a_slow_one() {
    let mut network = network();
    let shared = network.add_bus_resource(0);
    let ways = [0, 1].map(|_| {
        let mut hops = hops(&mut network, &[100], Span::ZERO);
        hops.push(BusHop::moves(shared, Rate::gbps(200), Span::ZERO));
        network.add_bus_path(hops)
    });
    let slices: Vec<_> = (0..20).map(|index| (0, ways[index % 2], MB)).collect();
    let found = *carried(&mut network, &slices).iter().max().unwrap();
    // Ten slices on each of the slow ones, which go on together over the fast one.
    assert_eq!(found, 10 * takes(MB, 100) + takes(CUT_THROUGH_BYTES.0, 100));
    assert_eq!(network.bus_counters(shared).busy.as_ps(), 20 * takes(MB, 200));
}

#[test]
fn sending_begins_when_the_port_can_no_longer_run_dry() {
    // (PCIe, port): a faster PCIe is there with its first piece, a slower one has to be ahead by what it loses.
    for (resource, port) in [(800, 400), (400, 400), (384, 400), (100, 400)] {
        let mut network = network();
        let hops = hops(&mut network, &[resource], Span::ZERO);
        let way = network.add_bus_path_to_port(hops, Rate::gbps(port));
        let found = carried(&mut network, &[(0, way, MB), (0, way, MB)]);
        let first_piece = takes(CUT_THROUGH_BYTES.0, resource);
        for (number, at) in found.iter().enumerate() {
            let before = number as u64 * takes(MB, resource);
            let expected =
                (before + first_piece).max(before + takes(MB, resource).saturating_sub(takes(MB, port)));
            assert!(
                at.abs_diff(expected) <= 1,
                "{resource} to {port}, slice {number}: {at}, expected {expected}"
            );
        }
    }
}

#[test]
fn what_came_over_the_wire_is_in_place_one_piece_after_its_last_byte() {
    let arrives = 100_000_000;
    for (resource, port) in [(800, 400), (400, 400), (384, 400), (100, 400)] {
        let mut network = network();
        let hops = hops(&mut network, &[resource, resource], Span::ZERO);
        let way = network.add_bus_path_from_port(hops, Rate::gbps(port));
        let found = carried(&mut network, &[(arrives, way, MB)])[0];
        let piece = takes(CUT_THROUGH_BYTES.0, resource);
        let lags = arrives - takes(MB - CUT_THROUGH_BYTES.0, port) + takes(MB, resource);
        let expected = (arrives + piece).max(lags) + piece;
        assert!(found.abs_diff(expected) <= 2, "{port} to {resource}: {found}, expected {expected}");
        // Slices that come at the rate of the port leave at that of the slower of the two.
        let slices: Vec<_> = (1..=50).map(|number| (arrives + number * takes(MB, port), way, MB)).collect();
        let found = carried(&mut network, &slices);
        let apart = (found[49] - found[9]) / 40;
        assert!(apart.abs_diff(takes(MB, resource.min(port))) <= 2, "{apart} ps apart");
    }
}

#[test]
fn a_stop_that_waits_begins_with_the_last_byte_and_costs_come_before_the_first() {
    let mut network = network();
    let mut hops = hops(&mut network, &[100, 200, 100], Span::from_ns(10));
    hops[1].waits = true;
    hops[1].fixed = Span::from_ps(333_333);
    hops[2].per_packet = Span::from_ns(7);
    let way = network.add_bus_path(hops);
    let found = carried(&mut network, &[(0, way, MB), (0, way, MB)]);
    let wait = takes(MB, 100) + 10_000 + 333_333 + takes(CUT_THROUGH_BYTES.0, 200) + 10_000;
    // One packet, as `There` counts: its cost is spread over the bytes.
    let last = takes(MB, 100) + 7_000 + 10_000;
    assert_eq!(found, [wait + last, wait + last + takes(MB, 100) + 7_000]);
}

#[test]
fn a_lane_that_becomes_slow_and_fast_again_keeps_its_pace_for_what_it_had_taken() {
    let mut network = network();
    let hops = hops(&mut network, &[400, 400], Span::ZERO);
    let resource = hops[1].resource;
    let way = network.add_bus_path(hops);
    let slice = takes(MB, 400);
    for (at, rate) in [(2 * slice, 250_000), (3 * slice, 1_000_000)] {
        network.fault_at(Time::from_ps(at + 1000), Fault::SlowBus { resource, rate });
    }
    let found = carried(&mut network, &[(0, way, MB); 6]);
    let piece = takes(CUT_THROUGH_BYTES.0, 400);
    // The third sets out at full speed's moment but goes at a quarter; those after it wait for it.
    assert_eq!(found[..2], [slice + piece, 2 * slice + piece]);
    assert_eq!(found[2], 2 * slice + piece + 4 * slice);
    let after: Vec<_> = (1..=3).map(|number| found[2] + number * slice).collect();
    assert_eq!(found[3..], after);
}

#[test]
fn a_reduction_takes_the_memory_once_for_each_byte_read_and_written() {
    let mut network = network();
    let memory = network.add_bus_resource(0);
    let reduce = network.add_bus_path(vec![BusHop::computes(memory, Rate::gbps(24_000), 3)]);
    let found = carried(&mut network, &[(0, reduce, MB), (0, reduce, MB)]);
    assert_eq!(found, [takes(MB, 8_000), 2 * takes(MB, 8_000)]);
    assert_eq!(network.bus_counters(memory).bytes, 2 * MB);
}

#[test]
fn a_lane_of_a_stopped_run_was_taken_no_longer_than_the_run_lasted() {
    let mut network = network();
    let hops = hops(&mut network, &[100], Span::ZERO);
    let resource = hops[0].resource;
    let way = network.add_bus_path(hops);
    let later = vec![(way, 1 << 20); 4];
    let mut there = There { later, ..There::default() };
    for token in 0..4 {
        network.call_at(Time::ZERO, token);
    }
    // Four slices of 84 µs are in its queue.
    let until = Time::ZERO + Span::from_us(10);
    assert!(!network.run(&mut there, until));
    assert_eq!(network.bus_counters(resource).busy.as_ps(), 4 * takes(1 << 20, 100));
    assert_eq!(network.bus_counters_so_far(resource).busy, Span::from_us(10));
    assert!(network.run(&mut there, Time::ZERO + Span::from_secs(1)));
    assert_eq!(network.bus_counters_so_far(resource), network.bus_counters(resource));
}
