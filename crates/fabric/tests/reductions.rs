//! Reduction inside the network: right results, the bytes that theory says, and what happens when something is wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{World, WorldOptions};
use railnet_core::event::{NoSink, Sink};
use railnet_core::{Bytes, Digest, GhostRun, GhostTag, Label, QueuePairNumber, Rate, Span, Time};
use railnet_fabric::{
    AggregationConfig, Application, Chance, Contribution, Fault, FlowControl, Group, Member, Network,
    ReductionFailure, Refused, Role, SwitchConfig,
};
use railnet_nic::frame::WireForm;
use railnet_nic::memory::Memory;
use railnet_nic::recovery::RecoveryKind;
use railnet_nic::{Completion, Connection};
use railnet_topology::fabric::{FabricKind, FatTree, LeafSpine, LinkSpec, SingleSwitch};
use railnet_topology::{FabricGraph, Vertex};
use railnet_wire::Gid;

const RESULT: u64 = 1 << 28;

fn links() -> LinkSpec {
    LinkSpec::new(Rate::gbps(400), Span::from_ns(500))
}

fn single(hosts: u32) -> FabricGraph {
    FabricKind::SingleSwitch(SingleSwitch { hosts }).build(&links()).unwrap()
}

fn leaf_spine(leaves: u32, hosts_per_leaf: u32, spines: u32) -> FabricGraph {
    FabricKind::LeafSpine(LeafSpine::new(leaves, hosts_per_leaf, spines)).build(&links()).unwrap()
}

fn fat_tree(k: u32) -> FabricGraph {
    FabricKind::FatTree(FatTree::new(k)).build(&links()).unwrap()
}

fn switches(aggregation: AggregationConfig) -> SwitchConfig {
    // 64 ports of 400 Gb/s need this much for headroom and some more.
    SwitchConfig { aggregation: Some(aggregation), buffer: Bytes(128_000_000), ..SwitchConfig::default() }
}

fn world<S: Sink>(graph: &FabricGraph, switch: SwitchConfig, sink: S) -> World<S> {
    World::watched(graph, WorldOptions::new(switch), sink)
}

/// What a member's contributions stand for.
fn word(member: u32) -> u128 {
    (u128::from(member) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

fn like() -> Connection {
    // A timeout of 1 ms, for runs with loss.
    Connection { timeout: 8, ..Connection::to(Gid::default(), QueuePairNumber::new(0)) }
}

/// What came of the groups.
#[derive(Default)]
struct Seen {
    reduced: Vec<(Group, u32, u64, Time)>,
    failures: Vec<(Group, ReductionFailure)>,
}

impl<S: Sink> Application<S> for Seen {
    fn completed(&mut self, _network: &mut Network<S>, _host: u32, _completion: &Completion) {
        panic!("the hosts have no work of their own");
    }

    fn called(&mut self, _network: &mut Network<S>, _token: u32) {}

    fn reduced(&mut self, network: &mut Network<S>, group: Group, member: u32, token: u64) {
        self.reduced.push((group, member, token, network.now));
    }

    fn reduction_failed(&mut self, _network: &mut Network<S>, group: Group, failure: &ReductionFailure) {
        self.failures.push((group, failure.clone()));
    }
}

fn members<S: Sink>(world: &World<S>, hosts: &[u32]) -> Vec<Member> {
    hosts.iter().map(|&host| Member { host, domain: world.domain(host), role: Role::Both }).collect()
}

/// Every member gives contributions of these lengths, which lie one after the other in its memory.
fn contribute<S: Sink>(world: &mut World<S>, group: Group, members: &[Member], lengths: &[u32]) {
    let all: u32 = lengths.iter().sum();
    for (index, Member { host, role, .. }) in members.iter().enumerate() {
        let (space, at) = (world.space(*host), world.address(0));
        let tag = GhostTag { sum: word(index as u32), origin: 0 };
        world.network.memory.write_ghost(space, at, GhostRun { tag, length: all });
        let mut offset = 0;
        for (token, length) in lengths.iter().enumerate() {
            let source = (*role != Role::Receives).then(|| world.sge(*host, offset, *length));
            let target = (*role != Role::Contributes).then(|| world.sge(*host, RESULT + offset, *length));
            let contribution = Contribution { source, target, token: token as u64, label: Label::default() };
            world.network.contribute(group, index as u32, contribution).unwrap();
            offset += u64::from(*length);
        }
    }
}

/// Whether the results of all members that get any are the sum of all contributions.
fn check_results<S: Sink>(world: &World<S>, members: &[Member], length: u64) {
    let sum = (0..members.len() as u32)
        .filter(|index| members[*index as usize].role != Role::Receives)
        .fold(0_u128, |sum, index| sum.wrapping_add(word(index)));
    for Member { host, role, .. } in members {
        let memory = world.network.memory.ghost(world.space(*host)).unwrap();
        for offset in [0, 1, length / 3, length - 1] {
            let expected = match role {
                Role::Contributes => GhostTag::BLANK,
                _ => GhostTag { sum, origin: offset },
            };
            assert_eq!(memory.tag_at(RESULT + offset), expected, "host {host}, byte {offset}");
        }
        // One run before the result, the result, and what is behind it.
        assert!(memory.run_count() <= 4, "host {host} has a result in {} parts", memory.run_count());
    }
}

fn run<S: Sink>(world: &mut World<S>) -> Seen {
    let mut seen = Seen::default();
    assert!(world.network.run(&mut seen, Time::ZERO + Span::from_secs(10)));
    seen
}

/// Data packets from one to the other.
fn packets<S: Sink>(world: &World<S>, from: Vertex, to: Vertex) -> u64 {
    let channels = world.network.channels();
    channels.filter(|(a, b, ..)| (*a, *b) == (from, to)).map(|(.., counters)| counters.data_packets).sum()
}

#[test]
fn every_member_gets_the_sum_and_every_link_carries_it_once_each_way() {
    let size = 1_000_000;
    let segments = 245;
    let cases: [(&str, FabricGraph, Vec<u32>, usize); 9] = [
        ("one switch, two", single(2), (0..2).collect(), 1),
        ("one switch, some of many", single(64), (3..20).collect(), 1),
        ("one switch, 64", single(64), (0..64).collect(), 1),
        ("two leaves", leaf_spine(2, 8, 2), (0..16).collect(), 3),
        ("eight leaves", leaf_spine(8, 8, 4), (0..64).collect(), 9),
        ("two on each of three leaves", leaf_spine(8, 8, 4), vec![0, 1, 24, 25, 62, 63], 4),
        ("a pod of a fat-tree", fat_tree(4), (0..4).collect(), 3),
        ("a fat-tree of 16", fat_tree(4), (0..16).collect(), 8 + 4 + 1),
        // One edge switch in each pod: its aggregation switch has nothing to add up.
        ("one in each pod of a fat-tree", fat_tree(8), (0..128).step_by(16).collect(), 8 + 1),
    ];
    for (name, graph, hosts, contexts) in cases {
        let mut world = world(&graph, switches(AggregationConfig::default()), NoSink);
        let members = members(&world, &hosts);
        let group = world.network.aggregate(&members, &like()).unwrap();
        assert_eq!(world.network.contexts_in_use().iter().sum::<u32>() as usize, contexts, "{name}");
        contribute(&mut world, group, &members, &[size]);
        let seen = run(&mut world);
        assert_eq!(seen.failures, [], "{name}");
        let mut seen_results: Vec<_> =
            seen.reduced.iter().map(|(_, member, token, _)| (*member, *token)).collect();
        seen_results.sort_unstable();
        assert_eq!(
            seen_results,
            (0..hosts.len() as u32).map(|member| (member, 0)).collect::<Vec<_>>(),
            "{name}"
        );
        check_results(&world, &members, u64::from(size));
        // No link carries more than the data once in each direction, those of members exactly that.
        for host in &hosts {
            let leaf = graph.neighbours(Vertex::Host(*host))[0].peer.vertex;
            assert_eq!(packets(&world, Vertex::Host(*host), leaf), segments, "{name}: up from {host}");
            assert_eq!(packets(&world, leaf, Vertex::Host(*host)), segments, "{name}: down to {host}");
        }
        for (from, to, _, counters) in world.network.channels() {
            let is_inside =
                |end: Vertex| matches!(end, Vertex::Host(host) if host >= world.network.host_count());
            let is_idle = counters.data_packets == 0;
            let is_once = counters.data_packets == segments;
            assert!(is_inside(from) || is_inside(to) || is_idle || is_once, "{name}: {from:?} to {to:?}");
        }
        world.network.audit_at_rest().unwrap();
        // As fast as a link, and the way up and down: the ring would take nearly twice as long.
        let wire = f64::from(size) * 20e-6 * (4096.0 + 82.0) / 4096.0;
        let took = seen.reduced.iter().map(|reduced| reduced.3).max().unwrap();
        let took = took.since(Time::ZERO).as_us_f64();
        assert!((wire..wire + 10.0).contains(&took), "{name}: {took} µs, {wire} µs on the wire");
        world.network.release(group);
        assert!(world.network.contexts_in_use().iter().all(|used| *used == 0), "{name}");
    }
}

#[test]
fn contributions_of_any_length_follow_each_other() {
    let lengths = [1, 4096, 4097, 0, 100_000, 12, 0, 8192, 65_537];
    for slots in [1, 2, 7, 128] {
        for segment in [256, 4096, 10_000] {
            let config = AggregationConfig { slots, segment: Bytes(segment), ..AggregationConfig::default() };
            let mut world = world(&leaf_spine(3, 4, 2), switches(config), NoSink);
            let members = members(&world, &[0, 3, 4, 5, 9]);
            let group = world.network.aggregate(&members, &like()).unwrap();
            contribute(&mut world, group, &members, &lengths);
            let seen = run(&mut world);
            assert_eq!(seen.failures, []);
            for member in 0..5 {
                let own = seen.reduced.iter().filter(|reduced| reduced.1 == member);
                let tokens: Vec<_> = own.map(|reduced| reduced.2).collect();
                assert_eq!(tokens, (0..lengths.len() as u64).collect::<Vec<_>>(), "in order");
            }
            check_results(&world, &members, lengths.iter().map(|length| u64::from(*length)).sum());
        }
    }
}

#[test]
fn some_only_contribute_and_some_only_receive() {
    let roles = |role: fn(u32) -> Role| (0..8).map(role).collect::<Vec<_>>();
    let cases = [
        ("reduce to 5", roles(|member| if member == 5 { Role::Both } else { Role::Contributes })),
        ("broadcast from 2", roles(|member| if member == 2 { Role::Contributes } else { Role::Receives })),
        ("half and half", roles(|member| if member < 4 { Role::Contributes } else { Role::Receives })),
    ];
    for (name, roles) in cases {
        let graph = leaf_spine(2, 4, 1);
        let mut world = world(&graph, switches(AggregationConfig::default()), NoSink);
        let mut members = members(&world, &[0, 1, 2, 3, 4, 5, 6, 7]);
        for (member, role) in members.iter_mut().zip(&roles) {
            member.role = *role;
        }
        let group = world.network.aggregate(&members, &like()).unwrap();
        contribute(&mut world, group, &members, &[100_000, 50_000]);
        let seen = run(&mut world);
        assert_eq!((seen.failures.len(), seen.reduced.len()), (0, 16), "{name}");
        check_results(&world, &members, 150_000);
        for (host, role) in roles.iter().enumerate() {
            let leaf = graph.neighbours(Vertex::Host(host as u32))[0].peer.vertex;
            let up = packets(&world, Vertex::Host(host as u32), leaf);
            let down = packets(&world, leaf, Vertex::Host(host as u32));
            let data = |carries: bool| if carries { 25 + 13 } else { 0 };
            assert_eq!(
                (up, down),
                (data(*role != Role::Receives), data(*role != Role::Contributes)),
                "{name}"
            );
        }
    }
}

#[test]
fn loss_pauses_and_credits_change_no_result() {
    let recoveries =
        [RecoveryKind::GoBackN, RecoveryKind::SelectiveRepeat { window: 512, reordering: Span::ZERO }];
    for recovery in recoveries {
        for (flow_control, loss, buffer) in [
            (FlowControl::Pfc, 0, 1_200_000),
            (FlowControl::Pfc, 5_000, 32_000_000),
            (FlowControl::None, 2_000, 400_000),
            (FlowControl::Credits, 1_000, 32_000_000),
        ] {
            let graph = leaf_spine(4, 4, 2);
            // A slow reduction fills the switches' memory.
            let aggregation =
                AggregationConfig { rate: Some(Rate::gbps(200)), ..AggregationConfig::default() };
            let switch =
                SwitchConfig { flow_control, buffer: Bytes(buffer), lossless: 1, ..switches(aggregation) };
            let mut options = WorldOptions::new(switch);
            options.nic.recovery = recovery;
            let mut world = World::watched(&graph, options, NoSink);
            for link in 0..graph.links.len() as u32 {
                let chance = Chance::parts_per_million(loss);
                world.network.fault_at(Time::ZERO, Fault::Loss { link, chance });
                world.network.fault_at(Time::ZERO, Fault::Corruption { link, chance });
            }
            let members = members(&world, &(0..16).collect::<Vec<_>>());
            let group = world.network.aggregate(&members, &like()).unwrap();
            contribute(&mut world, group, &members, &[300_000, 300_000]);
            let seen = run(&mut world);
            let name = format!("{recovery:?}, {flow_control:?}, {loss} ppm, {buffer} B");
            assert_eq!(seen.failures, [], "{name}");
            assert_eq!(seen.reduced.len(), 32, "{name}");
            check_results(&world, &members, 600_000);
            world.network.audit_at_rest().unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            let pauses: u64 = world.network.channels().map(|(.., counters)| counters.pauses).sum();
            let losses: u64 =
                world.network.channels().map(|(.., counters)| counters.losses + counters.drops).sum();
            assert_eq!(
                (pauses > 0, losses > 0),
                (flow_control == FlowControl::Pfc && buffer < 2_000_000, loss > 0),
                "{name}"
            );
        }
    }
}

#[test]
fn groups_of_the_same_members_share_contexts_and_give_them_back_with_the_last() {
    let config = AggregationConfig { contexts: 1, ..AggregationConfig::default() };
    let mut world = world(&leaf_spine(4, 4, 3), switches(config), NoSink);
    let across = members(&world, &[0, 4, 8]);
    let first = world.network.aggregate(&across, &like()).unwrap();
    // One gives, the others get: a multicast.
    let mut multicast = across.clone();
    for (member, role) in multicast.iter_mut().zip([Role::Receives, Role::Contributes, Role::Receives]) {
        member.role = role;
    }
    let second = world.network.aggregate_beside(first, &multicast, &like()).unwrap();
    assert_eq!(world.network.contexts_in_use()[..], [1, 1, 1, 0, 1, 0, 0]);
    let others = members(&world, &[0, 4, 12]);
    assert_eq!(world.network.aggregate_beside(first, &others, &like()), Err(Refused::Others));
    for (group, members) in [(first, &across), (second, &multicast)] {
        contribute(&mut world, group, members, &[50_000]);
        let seen = run(&mut world);
        assert_eq!((seen.failures, seen.reduced.len()), (vec![], 3));
    }
    let memory = |host| world.network.memory.ghost(world.space(host)).unwrap();
    for (host, sum) in [(0, word(1)), (8, word(1)), (4, word(0).wrapping_add(word(1)).wrapping_add(word(2)))]
    {
        assert_eq!(memory(host).tag_at(RESULT + 777), GhostTag { sum, origin: 777 }, "host {host}");
    }
    world.network.release(first);
    assert_eq!(world.network.contexts_in_use()[..], [1, 1, 1, 0, 1, 0, 0]);
    assert_eq!(world.network.aggregate_beside(first, &across, &like()), Err(Refused::Others));
    world.network.release(second);
    assert!(world.network.contexts_in_use().iter().all(|used| *used == 0));
}

#[test]
fn a_switch_without_contexts_refuses_and_a_released_group_gives_them_back() {
    let config = AggregationConfig { contexts: 2, ..AggregationConfig::default() };
    let mut world = world(&leaf_spine(4, 4, 3), switches(config), NoSink);
    let across = members(&world, &[0, 4, 8]);
    let groups = [0, 1].map(|_| world.network.aggregate(&across, &like()).unwrap());
    // The roots are two different spines, though the first would do for both.
    assert_eq!(world.network.contexts_in_use()[..], [2, 2, 2, 0, 1, 1, 0]);
    let refused = world.network.aggregate(&members(&world, &[8, 12]), &like()).unwrap_err();
    let text = "leaf2 has no reduction context left: all 2 are in use. Release a group, or do without reduction in switches";
    assert_eq!(refused.to_string(), text);
    assert_eq!(refused, Refused::NoContext { switch: "leaf2".into(), contexts: 2 });
    let remote_owner = world.network.aggregate(&members(&world, &[12, 13]), &like()).unwrap();
    world.network.release(groups[0]);
    assert_eq!(world.network.contexts_in_use()[..], [1, 1, 1, 1, 0, 1, 0]);
    let again = world.network.aggregate(&members(&world, &[8, 12]), &like()).unwrap();
    // All of them work, also the one that took the place of another.
    for (group, hosts) in [(groups[1], vec![0, 4, 8]), (remote_owner, vec![12, 13])] {
        let members = members(&world, &hosts);
        contribute(&mut world, group, &members, &[50_000]);
        assert_eq!(run(&mut world).failures, []);
        check_results(&world, &members, 50_000);
    }
    let two = members(&world, &[8, 12]);
    contribute(&mut world, again, &two, &[70_000]);
    assert_eq!(run(&mut world).reduced.len(), 2);
    check_results(&world, &two, 50_000);
}

#[test]
fn groups_at_the_same_time_do_not_disturb_each_other() {
    let mut world = world(&leaf_spine(4, 8, 4), switches(AggregationConfig::default()), NoSink);
    let groups: Vec<_> = (0..8)
        .map(|rail| {
            let members = members(&world, &(0..4).map(|leaf| leaf * 8 + rail).collect::<Vec<_>>());
            (world.network.aggregate(&members, &like()).unwrap(), members)
        })
        .collect();
    for (group, members) in &groups {
        contribute(&mut world, *group, members, &[1_000_000]);
    }
    let seen = run(&mut world);
    assert_eq!((seen.failures.len(), seen.reduced.len()), (0, 32));
    for (_, members) in &groups {
        check_results(&world, members, 1_000_000);
    }
    // Eight groups over four spines: two share each uplink.
    let took = seen.reduced.iter().map(|reduced| reduced.3).max().unwrap().since(Time::ZERO).as_us_f64();
    assert!((40.0..52.0).contains(&took), "{took} µs");
}

#[test]
fn contributions_that_differ_in_length_fail_the_group_and_name_who_differs() {
    let mut world = world(&leaf_spine(2, 2, 1), switches(AggregationConfig::default()), NoSink);
    let four = members(&world, &[0, 1, 2, 3]);
    let cases = [
        (
            [10_000, 10_000, 10_000, 10_001],
            "segment 2, leaf1 got 1808 B, the last from host2 and 1809 B, the last from host3",
        ),
        (
            [8_192, 8_192, 4_096, 4_096],
            "segment 0, spine0 got 4096 B from leaf0.reduction and 4096 B, the last from leaf1.reduction",
        ),
    ];
    for (lengths, text) in cases {
        let group = world.network.aggregate(&four, &like()).unwrap();
        for (member, length) in lengths.into_iter().enumerate() {
            let host = member as u32;
            let (source, target) = (world.sge(host, 0, length), world.sge(host, RESULT, length));
            let contribution = Contribution {
                source: Some(source),
                target: Some(target),
                token: 0,
                label: Label::default(),
            };
            world.network.contribute(group, member as u32, contribution).unwrap();
        }
        let seen = run(&mut world);
        assert_eq!(seen.reduced, []);
        let [(failed, failure)] = &seen.failures[..] else { panic!("{:?}", seen.failures) };
        assert_eq!(*failed, group);
        assert!(failure.to_string().contains(text), "{failure}");
        let (source, target) = (Some(world.sge(0, 0, 1)), Some(world.sge(0, RESULT, 1)));
        let late = Contribution { source, target, token: 1, label: Label::default() };
        let refused = world.network.contribute(group, 0, late).unwrap_err();
        assert!(refused.to_string().starts_with("the group has failed: contributions differ"), "{refused}");
        world.network.release(group);
        assert!(world.network.contribute(group, 0, late).is_err());
    }
}

#[test]
fn those_who_have_not_contributed_are_known() {
    let mut world = world(&single(4), switches(AggregationConfig::default()), NoSink);
    let four = members(&world, &[0, 1, 2, 3]);
    let group = world.network.aggregate(&four, &like()).unwrap();
    for member in [0, 2] {
        let (source, target) = (world.sge(member, 0, 100), world.sge(member, RESULT, 100));
        let contribution =
            Contribution { source: Some(source), target: Some(target), token: 0, label: Label::default() };
        world.network.contribute(group, member, contribution).unwrap();
    }
    let seen = run(&mut world);
    assert_eq!((seen.reduced.len(), seen.failures.len()), (0, 0));
    assert_eq!(world.network.missing(group), [1, 3]);
    let wrong = Contribution { source: None, target: None, token: 0, label: Label::default() };
    let refused = world.network.contribute(group, 1, wrong).unwrap_err();
    assert_eq!(refused.to_string(), "member 1 contributes, but gave nothing");
}

#[test]
fn what_cannot_be_reached_is_named() {
    let graph = leaf_spine(2, 2, 1);
    let mut plain = world(&graph, SwitchConfig::default(), NoSink);
    let two = members(&plain, &[0, 2]);
    assert_eq!(plain.network.aggregate(&two, &like()), Err(Refused::Off));
    let mut world = world(&graph, switches(AggregationConfig::default()), NoSink);
    assert_eq!(world.network.aggregate(&[], &like()), Err(Refused::NoContributor));
    let link = |a, b| graph.links_between(a, b)[0];
    let [own, up] =
        [link(Vertex::Host(2), Vertex::Switch(1)), link(Vertex::Switch(1), graph.find("spine0").unwrap())];
    let group = world.network.aggregate(&two, &like()).unwrap();
    let down = |link| Fault::LinkDown { link, detection: Span::from_us(1) };
    world.network.fault_at(Time::ZERO, down(up));
    run(&mut world);
    assert_eq!(world.network.aggregate(&two, &like()), Err(Refused::Apart));
    // The group that was there finds out by its connections.
    contribute(&mut world, group, &two, &[10_000]);
    let seen = run(&mut world);
    let [(_, failure)] = &seen.failures[..] else { panic!("{:?}", seen.failures) };
    assert_eq!(failure.to_string(), "the connection of leaf1.reduction: transport retry count exceeded");
    world.network.fault_at(world.network.now, down(own));
    run(&mut world);
    let refused = world.network.aggregate(&two, &like()).unwrap_err();
    assert_eq!(refused.to_string(), "host2 cannot be reached: its link is down, or leads to no switch");
}

#[test]
fn a_run_gives_its_digest_again_also_as_bytes() {
    let digest = |form: WireForm, seed: u64| {
        let graph = fat_tree(4);
        let mut options = WorldOptions::new(switches(AggregationConfig::default()));
        options.seed = seed;
        let mut world = World::watched(&graph, options, Digest::new());
        world.network.set_wire(form);
        for link in 0..graph.links.len() as u32 {
            let chance = Chance::parts_per_million(3_000);
            world.network.fault_at(Time::ZERO, Fault::Corruption { link, chance });
        }
        let members = members(&world, &(0..16).collect::<Vec<_>>());
        let group = world.network.aggregate(&members, &like()).unwrap();
        contribute(&mut world, group, &members, &[200_000]);
        assert_eq!(run(&mut world).reduced.len(), 16);
        check_results(&world, &members, 200_000);
        (world.network.sink.finish(), world.network.now)
    };
    let first = digest(WireForm::Values, 1);
    assert_eq!(digest(WireForm::Values, 1), first);
    assert_eq!(digest(WireForm::Bytes, 1), first);
    assert_ne!(digest(WireForm::Values, 2), first);
}
