//! The rates of flows against the definition of max-min fairness, and a computation from scratch.

use proptest::prelude::*;
use railnet_core::{Rate, Span, Time};
use railnet_flow::{FlowId, FlowNetwork, Usage};

/// What a test does to a network.
#[derive(Clone, Debug)]
enum Change {
    Start(Vec<u32>, u64, u32),
    Stop(usize),
    Capacity(u32, u64),
    Wait(u64),
}

const RESOURCES: u32 = 8;

fn change() -> impl Strategy<Value = Change> {
    let path = proptest::collection::btree_set(0..RESOURCES, 1..4);
    prop_oneof![
        6 => (path, 1_u64..1 << 20, 1_u32..3).prop_map(|(path, bytes, count)| Change::Start(path.into_iter().collect(), bytes, count)),
        2 => (0_usize..64).prop_map(Change::Stop),
        1 => (0..RESOURCES, 1_u64..200).prop_map(|(resource, gbps)| Change::Capacity(resource, gbps)),
        3 => (0_u64..40_000_000).prop_map(Change::Wait),
    ]
}

/// A flow as the reference knows it.
#[derive(Clone, Debug)]
struct Known {
    id: FlowId,
    path: Vec<u32>,
    count: u32,
}

/// Rates by the textbook: raise all together, freeze those on the first resource that is full, again.
fn reference(capacities: &[f64], flows: &[Known]) -> Vec<f64> {
    let mut rates = vec![f64::NAN; flows.len()];
    loop {
        let mut lowest: Option<(f64, u32)> = None;
        for resource in 0..RESOURCES {
            let on = |flow: &Known| flow.path.contains(&resource);
            let known: f64 = flows
                .iter()
                .zip(&rates)
                .filter(|(flow, rate)| on(flow) && !rate.is_nan())
                .map(|(flow, rate)| rate * f64::from(flow.count))
                .sum();
            let open: f64 = flows
                .iter()
                .zip(&rates)
                .filter(|(flow, rate)| on(flow) && rate.is_nan())
                .map(|(flow, _)| f64::from(flow.count))
                .sum();
            if open > 0.0 {
                let level = (capacities[resource as usize] - known).max(0.0) / open;
                if lowest.is_none_or(|(least, _)| level < least) {
                    lowest = Some((level, resource));
                }
            }
        }
        let Some((level, resource)) = lowest else { return rates };
        for (flow, rate) in flows.iter().zip(&mut rates) {
            if rate.is_nan() && flow.path.contains(&resource) {
                *rate = level;
            }
        }
    }
}

fn compare(network: &mut FlowNetwork, capacities: &[f64], flows: &[Known]) {
    for (flow, expected) in flows.iter().zip(reference(capacities, flows)) {
        let found = network.rate(flow.id);
        assert!(
            (found - expected).abs() <= expected * 1e-6 + 1e-3,
            "{flow:?}: {found} instead of {expected}"
        );
    }
}

proptest! {
    #[test]
    fn rates_are_max_min_fair_after_every_change(changes in proptest::collection::vec(change(), 1..60)) {
        let start = [10_u64, 20, 40, 100, 100, 50, 25, 80];
        let mut capacities: Vec<f64> = start.iter().map(|gbps| *gbps as f64 * 1e9 / 8.0).collect();
        let mut network = FlowNetwork::new(&start.map(Rate::gbps));
        let mut flows: Vec<Known> = Vec::new();
        let mut ended = Vec::new();
        for change in changes {
            match change {
                Change::Start(path, bytes, count) => {
                    let usage: Vec<Usage> = path.iter().map(|resource| Usage::whole(*resource)).collect();
                    let id = network.start(&usage, bytes, count);
                    flows.push(Known { id, path, count });
                }
                Change::Stop(which) => {
                    if !flows.is_empty() {
                        let flow = flows.remove(which % flows.len());
                        prop_assert!(network.stop(flow.id).is_some());
                    }
                }
                Change::Capacity(resource, gbps) => {
                    capacities[resource as usize] = gbps as f64 * 1e9 / 8.0;
                    network.set_capacity(resource, Rate::gbps(gbps));
                }
                Change::Wait(ps) => {
                    let mut until = network.now() + Span::from_ps(ps);
                    if let Some(next) = network.next_end() {
                        until = until.min(next);
                    }
                    ended.clear();
                    network.advance(until, &mut ended);
                    flows.retain(|flow| !ended.contains(&flow.id));
                }
            }
            prop_assert_eq!(network.active(), flows.len());
            compare(&mut network, &capacities, &flows);
        }
    }

    #[test]
    fn every_byte_crosses_every_resource_of_its_path(sizes in proptest::collection::vec((0..RESOURCES, 0..RESOURCES, 1_u64..1 << 24), 1..30)) {
        let mut network = FlowNetwork::new(&[Rate::gbps(100); RESOURCES as usize]);
        let mut expected = [0.0; RESOURCES as usize];
        for (from, to, bytes) in &sizes {
            let mut path = vec![Usage::whole(*from)];
            if to != from {
                path.push(Usage { resource: *to, fraction: 0.5 });
            }
            for usage in &path {
                expected[usage.resource as usize] += *bytes as f64 * f64::from(usage.fraction);
            }
            network.start(&path, *bytes, 1);
        }
        let mut ended = Vec::new();
        while let Some(next) = network.next_end() {
            network.advance(next, &mut ended);
        }
        prop_assert_eq!(ended.len(), sizes.len());
        for (resource, expected) in (0..).zip(expected) {
            prop_assert!((network.carried(resource) - expected).abs() < 1.0);
        }
    }
}

#[test]
fn flows_that_share_nothing_are_left_alone() {
    let mut network = FlowNetwork::new(&[Rate::gbps(80), Rate::gbps(80)]);
    let slow = network.start(&[Usage::whole(0)], 1 << 30, 1);
    let quick = network.start(&[Usage::whole(1)], 1 << 20, 1);
    let before = network.rate(slow);
    let end = network.next_end().unwrap();
    let mut ended = Vec::new();
    network.advance(end, &mut ended);
    assert_eq!(ended, [quick]);
    assert!((network.rate(slow) - before).abs() < 1e-9);
}

#[test]
fn equal_flows_end_together_and_count_as_one_change() {
    let mut network = FlowNetwork::new(&[Rate::gbps(80)]);
    for _ in 0..10 {
        network.start(&[Usage::whole(0)], 1_000_000, 1);
    }
    let mut ended = Vec::new();
    let end = network.next_end().unwrap();
    assert_eq!(end, Time::ZERO + Span::from_ms(1));
    network.advance(end, &mut ended);
    assert_eq!((ended.len(), network.active(), network.recomputations()), (10, 0, 1));
}

#[test]
fn a_flow_without_capacity_waits_until_there_is_some() {
    let mut network = FlowNetwork::new(&[Rate::gbps(80)]);
    network.set_capacity(0, Rate::ZERO);
    let flow = network.start(&[Usage::whole(0)], 10_000_000, 1);
    assert_eq!(network.next_end(), None);
    network.advance(Time::ZERO + Span::from_ms(5), &mut Vec::new());
    network.set_capacity(0, Rate::gbps(80));
    assert_eq!(network.next_end(), Some(Time::ZERO + Span::from_ms(6)));
    assert_eq!(network.stop(flow), Some(10_000_000.0));
}

#[test]
fn what_has_no_path_or_no_bytes_ends_at_once() {
    let mut network = FlowNetwork::new(&[Rate::gbps(80)]);
    let (nowhere, nothing) = (network.start(&[], 5, 1), network.start(&[Usage::whole(0)], 0, 1));
    let mut ended = Vec::new();
    assert_eq!(network.next_end(), Some(Time::ZERO));
    network.advance(Time::ZERO, &mut ended);
    assert_eq!(ended, [nowhere, nothing]);
}
