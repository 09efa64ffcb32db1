//! What breaks, what it costs, and how the network gets over it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_core::{Component, Psn, QueuePairNumber, Rate, Span, Time};
use railnet_fabric::{Application, FIRST_PSN, Fault, FlowControl, Framing, Network, SwitchConfig, host_gid};
use railnet_nic::{
    Access, Attributes, Completion, CompletionQueue, Key, Mtu, Nic, NicConfig, Operation, Path, PortConfig,
    QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge, State, Status,
};
use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec};
use railnet_topology::{FabricGraph, Routes, Vertex};

const BASE: u64 = 0;
const SIZE: u64 = 1 << 30;

/// One WRITE between two hosts, and when it was done.
struct OneFlow {
    finished: Option<(Time, Status)>,
}

impl Application<NoSink> for OneFlow {
    fn completed(&mut self, network: &mut Network<NoSink>, _host: u32, completion: &Completion) {
        self.finished = Some((network.now, completion.status));
    }

    fn called(&mut self, _network: &mut Network<NoSink>, _token: u32) {}
}

fn leaf_spine() -> FabricGraph {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    FabricKind::LeafSpine(LeafSpine::new(2, 2, 2)).build(&links).unwrap()
}

fn network(graph: &FabricGraph, flow_control: FlowControl) -> Network<NoSink> {
    let config = SwitchConfig { flow_control, ..SwitchConfig::default() };
    Network::new(graph, Routes::shortest(graph), config, Framing::ETHERNET, 1, NoSink, |host| {
        let mut config = NicConfig::new(Component(host), 1, host_gid(host));
        config.ports =
            vec![PortConfig { gids: vec![host_gid(host)], rate: Rate::gbps(100), mtu: Mtu::Mtu4096 }];
        Nic::new(config)
    })
}

fn endpoint(network: &mut Network<NoSink>, host: u32) -> (CompletionQueue, Key, QueuePairNumber) {
    let space = network.memory.add_ghost(BASE, SIZE);
    let memory = std::mem::take(&mut network.memory);
    let (nic, _) = network.nic(host);
    let domain = nic.alloc_pd();
    let queue = nic.create_cq(16).unwrap();
    let key = nic.reg_mr(&memory, domain, space, BASE, SIZE, Access::ALL, None).unwrap();
    let number = nic.create_qp(domain, &QueuePairConfig::new(Service::ReliableConnection, queue)).unwrap();
    network.memory = memory;
    (queue, key, number)
}

fn connect(
    network: &mut Network<NoSink>,
    host: u32,
    own: QueuePairNumber,
    peer: u32,
    other: QueuePairNumber,
) {
    let changes = [
        Attributes {
            state: Some(State::Init),
            partition_index: Some(0),
            port: Some(1),
            access: Some(Access::ALL),
            ..Attributes::default()
        },
        Attributes {
            state: Some(State::ReadyToReceive),
            path: Some(Path::to(host_gid(peer))),
            path_mtu: Some(Mtu::Mtu4096),
            destination: Some(other),
            receive_psn: Some(FIRST_PSN),
            destination_reads: Some(1),
            min_rnr_timer: Some(12),
            ..Attributes::default()
        },
        Attributes {
            state: Some(State::ReadyToSend),
            send_psn: Some(FIRST_PSN),
            timeout: Some(8),
            retry_count: Some(7),
            rnr_retry: Some(7),
            initiator_reads: Some(1),
            ..Attributes::default()
        },
    ];
    let (nic, mut cx) = network.nic(host);
    for change in &changes {
        nic.modify_qp(&mut cx, own, change).unwrap();
    }
}

/// Sends `bytes` from host 0 to host 3, across the spines, with these faults. Returns when it arrived, the status, and
/// the packets sent again.
fn send(flow_control: FlowControl, bytes: u32, faults: &[(Span, Fault)]) -> (Option<(Time, Status)>, u64) {
    let graph = leaf_spine();
    let mut network = network(&graph, flow_control);
    let (queue, key, from) = endpoint(&mut network, 0);
    let (target_queue, target_key, to) = endpoint(&mut network, 3);
    connect(&mut network, 0, from, 3, to);
    connect(&mut network, 3, to, 0, from);
    network.watch(3, target_queue);
    network.watch(0, queue);
    for &(after, fault) in faults {
        network.fault_at(Time::ZERO + after, fault);
    }
    let (nic, mut cx) = network.nic(3);
    nic.post_recv(&mut cx, to, ReceiveRequest::new(1)).unwrap();
    let operation = Operation::WriteImmediate(Remote { address: BASE, key: target_key }, 7);
    let request = SendRequest::new(1, operation).with(Sge { address: BASE, length: bytes, key }).unsignaled();
    let (nic, mut cx) = network.nic(0);
    nic.post_send(&mut cx, from, request).unwrap();
    network.kick(0);
    let mut application = OneFlow { finished: None };
    network.run(&mut application, Time::ZERO + Span::from_secs(1));
    let (nic, _) = network.nic(0);
    (application.finished, nic.counters().resent)
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
    let fault = Fault::LosePacket { host: 0, psn: Psn::new(100) };
    let (clean, _) = send(FlowControl::Pfc, 1 << 20, &[]);
    let (finished, resent) = send(FlowControl::Pfc, 1 << 20, &[(Span::ZERO, fault)]);
    let (at, status) = finished.unwrap();
    assert_eq!(status, Status::Success);
    // What was under way when the NAK came back goes again: a round trip of 8 µs is about 24 packets of 0.33 µs.
    assert!((15..40).contains(&resent), "{resent} packets again");
    let cost = (at - clean.unwrap().0).as_us_f64();
    assert!((5.0..15.0).contains(&cost), "{cost} us");
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

#[test]
fn lost_and_damaged_packets_are_sent_again() {
    for link in uplinks() {
        for fault in [Fault::Loss { link, rate: 10_000 }, Fault::Corruption { link, rate: 10_000 }] {
            let (finished, _) = send(FlowControl::Pfc, 4 << 20, &[(Span::ZERO, fault)]);
            assert_eq!(finished.unwrap().1, Status::Success, "{fault:?}");
        }
    }
    let both: Vec<_> =
        uplinks().into_iter().map(|link| (Span::ZERO, Fault::Loss { link, rate: 10_000 })).collect();
    let (_, resent) = send(FlowControl::Pfc, 4 << 20, &both);
    assert!(resent > 0);
}

#[test]
fn a_slow_host_takes_as_much_longer() {
    let (clean, _) = send(FlowControl::Pfc, 8 << 20, &[]);
    let slow = Fault::SlowHost { host: 0, rate: 250_000 };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::ZERO, slow)]);
    let ratio = finished.unwrap().0.as_ps() as f64 / clean.unwrap().0.as_ps() as f64;
    assert!((3.9..4.01).contains(&ratio), "{ratio}");
}

#[test]
fn a_host_that_pauses_for_ever_stops_what_comes_to_it() {
    let storm = Fault::PauseStorm { host: 3 };
    let (finished, _) = send(FlowControl::Pfc, 8 << 20, &[(Span::from_us(50), storm)]);
    assert_eq!(finished.unwrap().1, Status::RetryExceeded);
}
