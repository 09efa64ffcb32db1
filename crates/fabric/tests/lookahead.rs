//! Extended lookahead: until when no host group can reach another.

use crate::common::{Log, World};
use railnet_core::{Rate, Span, Time};
use railnet_fabric::SwitchConfig;
use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};

#[test]
fn the_lookahead_extends_to_the_earliest_interaction() {
    let hosts = 64;
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    let graph = FabricKind::SingleSwitch(SingleSwitch { hosts }).build(&links).expect("one switch");
    let mut world = World::new(&graph, SwitchConfig::default());
    let network = &mut world.network;
    let us = |us: u64| Time::ZERO + Span::from_us(us);
    network.partition_by_host((0..hosts).collect(), Span::from_us(5));
    assert_eq!(network.extended_lookahead(us(10), us(20)), None, "traffic phases are not announced");

    network.enable_extended_lookahead();
    assert_eq!(network.extended_lookahead(us(10), us(20)), Some(us(25)));
    assert_eq!(network.extended_lookahead(us(10), us(3)), Some(us(15)), "what was heard is over");
    network.call_at(us(12), 0);
    assert_eq!(network.extended_lookahead(us(10), us(20)), Some(us(17)), "a call comes first");
    let [alone, all] = [None, Some(us(17))].map(|horizon| network.epoch_end(us(10), horizon));
    let before = |us: u64| Time::from_ps(us * 1_000_000 - 1);
    assert_eq!((alone, all), (before(11), before(17)), "whole epochs");

    network.begin_traffic_phase();
    assert_eq!(network.extended_lookahead(us(10), us(20)), None);
    network.end_traffic_phase();
    world.send(0, 1, 100_000, 7);
    let network = &mut world.network;
    assert_eq!(network.extended_lookahead(us(10), us(20)), None, "packets are under way");
    let mut log = Log::default();
    network.run(&mut log, us(300));
    assert_eq!(log.entries.len(), 1);
    let timer = network.extended_lookahead(us(300), Time::NEVER).expect("all is quiet again");
    assert!(timer > us(305), "{timer:?}: as long as no timer goes off");
}
