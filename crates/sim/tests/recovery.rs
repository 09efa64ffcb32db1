//! What a lost packet costs, under go-back-N and under selective repeat.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_core::{Bytes, Psn, Rate, Span, Time};
use railnet_fabric::testing::{Log, World, WorldOptions};
use railnet_fabric::{Chance, Fault, FlowControl, Routing, SwitchConfig, WhichPacket};
use railnet_nic::Status;
use railnet_nic::recovery::RecoveryKind;
use railnet_sim::Scenario;
use railnet_topology::fabric::{FabricKind, FatTree, LinkSpec, SingleSwitch};
use railnet_topology::{FabricGraph, Vertex};

/// A full packet in the middle of a message on an Ethernet: payload, framing and BTH.
const PACKET: u64 = 4096 + 70 + 12;
/// An answer: framing, BTH and AETH.
const ANSWER: u64 = 70 + 12 + 4;

const GO_BACK_N: RecoveryKind = RecoveryKind::GoBackN;
const SELECTIVE: RecoveryKind = RecoveryKind::SelectiveRepeat { window: 1 << 14, reordering: Span::ZERO };

/// Two hosts on a switch.
fn one_switch(rate: Rate, delay: Span) -> FabricGraph {
    FabricKind::SingleSwitch(SingleSwitch { hosts: 2 }).build(&LinkSpec::new(rate, delay)).unwrap()
}

/// What came of a flow.
struct Flow {
    finished: Time,
    /// Packets that its sender sent again.
    resent: u64,
    timeouts: u64,
    /// Packets that got lost on their way from the sender.
    lost: u64,
}

/// Sends `bytes` from host 0 to the last one.
fn send(graph: &FabricGraph, routing: Routing, recovery: RecoveryKind, bytes: u32, faults: &[Fault]) -> Flow {
    let switch = SwitchConfig { flow_control: FlowControl::Pfc, routing, ..SwitchConfig::default() };
    let mut options = WorldOptions::new(switch);
    options.nic.recovery = recovery;
    let mut world = World::watched(graph, options, NoSink);
    for &fault in faults {
        world.network.fault_at(Time::ZERO, fault);
    }
    let to = graph.hosts.len() as u32 - 1;
    world.send(0, to, bytes, 1);
    let mut log = Log::default();
    world.network.run(&mut log, Time::ZERO + Span::from_secs(1));
    let &(finished, host, work, status) = log.entries.first().unwrap();
    assert_eq!((host, work, status), (to, 1, Status::Success));
    let lost = world
        .network
        .channels()
        .filter(|(from, to, ..)| *from == Vertex::Host(0) || matches!(to, Vertex::Host(host) if *host != 0))
        .map(|(.., counters)| counters.losses)
        .sum();
    let (nic, _) = world.network.nic(0);
    let counters = nic.counters();
    Flow { finished, resent: counters.resent, timeouts: counters.timeouts, lost }
}

fn lose(psn: u32) -> Fault {
    Fault::LosePacket { host: 0, target: None, which: WhichPacket::Psn(Psn::new(psn)) }
}

/// A flow took so much longer, to a nanosecond: the first packet of a message is longer than the others, by its RETH, and
/// those behind it wait for it in the switch until a gap comes.
fn costs(clean: &Flow, flow: &Flow, expected: Span) {
    let cost = flow.finished - clean.finished;
    assert!(cost <= expected && expected <= cost + Span::from_ns(1), "{cost}, not {expected}");
}

#[test]
fn one_lost_packet_costs_a_round_trip_under_go_back_n_and_one_packet_under_selective_repeat() {
    let (rate, delay, bytes) = (Rate::gbps(100), Span::from_us(1), 8 << 20);
    let graph = one_switch(rate, delay);
    let packet = rate.serialize(Bytes(PACKET));
    let answer = rate.serialize(Bytes(ANSWER));
    for psn in [100, 1000, 1900] {
        let clean = send(&graph, Routing::Ecmp, GO_BACK_N, bytes, &[]);
        assert_eq!(clean.resent, 0);
        // The one after the lost one is sent, held by the switch until it is whole, and answered; the answer takes the
        // same way back. All that the sender had begun to send by then, the lost one first, is sent again.
        let notice = packet * 3 + delay * 4 + answer * 2;
        let expected = notice.as_ps().div_ceil(packet.as_ps());
        let back = send(&graph, Routing::Ecmp, GO_BACK_N, bytes, &[lose(psn)]);
        assert_eq!((back.lost, back.resent, back.timeouts), (1, expected, 0), "PSN {psn}");
        costs(&clean, &back, packet * expected);
        // The link never idles: the whole cost is the time of the packet that was sent again.
        let selective = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[lose(psn)]);
        assert_eq!((selective.lost, selective.resent, selective.timeouts), (1, 1, 0), "PSN {psn}");
        costs(&clean, &selective, packet);
    }
}

#[test]
fn a_packet_lost_near_the_end_costs_a_round_trip_and_one_packet_at_most() {
    let (rate, delay, bytes) = (Rate::gbps(100), Span::from_us(1), 8 << 20);
    let graph = one_switch(rate, delay);
    let packet = rate.serialize(Bytes(PACKET));
    let round_trip = delay * 4 + packet * 2 + Span::from_ns(20);
    let clean = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[]);
    for before_last in 1..15 {
        let flow = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[lose(2047 - before_last)]);
        assert_eq!((flow.resent, flow.timeouts), (1, 0));
        let cost = flow.finished - clean.finished;
        assert!(cost <= round_trip + packet, "{cost} for the last but {before_last}");
    }
    // Nothing was sent after the very last one: only the clock tells. The oldest that is not acknowledged goes first, and
    // the answer to it shows that the last one is missing.
    let flow = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[lose(2047)]);
    assert_eq!((flow.resent, flow.timeouts), (2, 1));
}

#[test]
fn a_packet_that_is_lost_again_is_found_without_the_clock() {
    let (rate, delay, bytes) = (Rate::gbps(100), Span::from_us(1), 8 << 20);
    let graph = one_switch(rate, delay);
    let packet = rate.serialize(Bytes(PACKET));
    let clean = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[]);
    for times in [2, 3, 5] {
        let faults = vec![lose(1000); times];
        let flow = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &faults);
        assert_eq!((flow.lost, flow.resent, flow.timeouts), (times as u64, times as u64, 0));
        costs(&clean, &flow, packet * times as u64);
    }
    // Go-back-N asks once for each gap, and waits for the clock when that is in vain.
    let back = send(&graph, Routing::Ecmp, GO_BACK_N, bytes, &[lose(1000), lose(1000)]);
    assert_eq!(back.timeouts, 1);
}

#[test]
fn under_random_loss_selective_repeat_sends_again_what_was_lost_and_go_back_n_a_window_each_time() {
    let (rate, delay, bytes) = (Rate::gbps(400), Span::from_us(10), 256 << 20);
    let graph = one_switch(rate, delay);
    let packet = rate.serialize(Bytes(PACKET));
    let loss = Fault::Loss { link: 0, chance: Chance::parts_per_million(1000) };
    let clean = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[]);
    let goodput = |flow: &Flow| clean.finished.as_ps() as f64 / flow.finished.as_ps() as f64;

    let selective = send(&graph, Routing::Ecmp, SELECTIVE, bytes, &[loss]);
    assert!((40..100).contains(&selective.lost), "{} of 65,536 are a thousandth", selective.lost);
    assert!(goodput(&selective) > 0.97, "{}", goodput(&selective));
    let spare = selective.resent as f64 / selective.lost as f64;
    assert!((1.0..1.1).contains(&spare), "{} for {}", selective.resent, selective.lost);

    let back = send(&graph, Routing::Ecmp, GO_BACK_N, bytes, &[loss]);
    let window = (delay * 4).as_ps() / packet.as_ps();
    assert!(back.resent > back.lost * window / 2, "{} for {}", back.resent, back.lost);
    assert!(goodput(&back) < 0.75, "{}", goodput(&back));
}

#[test]
fn spraying_without_loss_sends_nothing_again() {
    for routing in ["spray", "adaptive"] {
        let text = format!(
            "[fabric]\ntopology = {{ kind = \"fat-tree\", k = 4 }}\nrouting = \"{routing}\"\n\
             [nic]\ncontrol = \"none\"\nrecovery = \"selective-repeat\"\n\
             [[traffic]]\nkind = \"permutation\"\nbytes = \"4MB\"\n"
        );
        let scenario = Scenario::parse(&text).unwrap();
        let (outcome, _) = railnet_sim::run(&scenario, NoSink).unwrap();
        assert_eq!((outcome.resent, outcome.timeouts), (0, 0), "{routing}");
        // The same NIC on the same network, told that order is kept, takes every late packet for a lost one.
        let hasty = text.replace("repeat\"\n", "repeat\"\nreordering = \"0s\"\n");
        let (outcome, _) = railnet_sim::run(&Scenario::parse(&hasty).unwrap(), NoSink).unwrap();
        assert!(outcome.resent > 1000, "{routing}: {}", outcome.resent);
    }
}

#[test]
fn a_packet_lost_among_shuffled_ones_is_sent_alone() {
    let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
    let graph = FabricKind::FatTree(FatTree::new(4)).build(&links).unwrap();
    let reordering = Span::from_us(50);
    let recovery = RecoveryKind::SelectiveRepeat { window: 1 << 14, reordering };
    let clean = send(&graph, Routing::Spray, recovery, 8 << 20, &[]);
    assert_eq!((clean.resent, clean.timeouts), (0, 0));
    for psn in [5, 1000, 2040] {
        let flow = send(&graph, Routing::Spray, recovery, 8 << 20, &[lose(psn)]);
        assert_eq!((flow.lost, flow.resent, flow.timeouts), (1, 1, 0), "PSN {psn}");
        let cost = flow.finished - clean.finished;
        assert!(cost < reordering + Span::from_us(20), "PSN {psn}: {cost}");
    }
}
