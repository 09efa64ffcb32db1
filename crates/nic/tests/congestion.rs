//! Congestion: notifications, the rate limiter, credits, pauses, fairness, fences and READ depth.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::Event;
use railnet_core::{Component, Rate, Span, Time};
use railnet_nic::control::{
    ControlConfig, DcqcnParameters, DctcpParameters, HpccParameters, SwiftParameters, TimelyParameters,
};
use railnet_nic::testing::{Faults, Pair, PairOptions};
use railnet_nic::{Mtu, Operation, ReceiveRequest, SendRequest, Status};
use railnet_wire::{Extension, Frame, Opcode, Telemetry, TelemetryBlock};

type Events = Vec<(Time, Component, Event)>;
type ChangeNic = fn(usize, &mut railnet_nic::NicConfig);

fn dcqcn(_: usize, config: &mut railnet_nic::NicConfig) {
    config.control = ControlConfig::Dcqcn(DcqcnParameters::paper(Rate::gbps(100)));
}

#[test]
fn marks_bring_notifications_and_notifications_bring_the_rate_down() {
    let options =
        PairOptions { nic: dcqcn, mtu: Mtu::Mtu4096, ghost: true, memory: 1 << 30, ..PairOptions::default() };
    let mut pair = Pair::watched(&options, Events::new()).unwrap();
    pair.lab.faults = Faults { mark: 1_000_000, ..Faults::default() };
    let write = Operation::Write(pair.remote(1, 0));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 64 << 20))).unwrap();
    pair.lab.run_until(Time::ZERO + Span::from_ms(1));
    let sent = pair.lab.nics[1].counters().notifications_sent;
    // 1 ms holds at most 20 intervals of 50 µs, and the first notification goes at once. Some intervals stay empty: at
    // 100 Mb/s a packet takes 334 µs.
    assert!((10..=21).contains(&sent), "{sent} notifications");
    assert_eq!(pair.lab.nics[0].counters().notifications_received, sent);
    let rates: Vec<u64> = pair
        .lab
        .sink
        .iter()
        .filter_map(|(_, source, event)| match event {
            Event::RateChanged { rate, .. } if source.0 == 0 => Some(rate.as_bps()),
            _ => None,
        })
        .collect();
    assert_eq!(rates[0], 50_000_000_000, "the first cut halves");
    assert!(rates.iter().copied().min().unwrap() < 5_000_000_000, "and more of them follow");

    // With the marks gone the rate comes back and the message completes.
    pair.lab.faults.mark = 0;
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::Success);
    assert_eq!(pair.lab.nics[0].counters().resent, 0);
}

#[test]
fn the_rate_limiter_keeps_the_rate() {
    let options = PairOptions {
        nic: |_, config| {
            let mut parameters = DcqcnParameters::paper(Rate::gbps(100));
            // No recovery within the measurement: one cut to half, then constant.
            parameters.increase_interval = Span::from_secs(10);
            parameters.increase_bytes = None;
            config.control = ControlConfig::Dcqcn(parameters);
        },
        mtu: Mtu::Mtu4096,
        ghost: true,
        memory: 1 << 30,
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.faults.mark = 1_000_000;
    let write = Operation::Write(pair.remote(1, 0));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 64 << 20))).unwrap();
    pair.lab.run_until(Time::ZERO + Span::from_us(20));
    pair.lab.faults.mark = 0;
    let (before, began) = (pair.lab.nics[0].counters().sent, pair.lab.now);
    pair.lab.run_until(began + Span::from_us(1000));
    let packets = pair.lab.nics[0].counters().sent - before;
    // 50 Gb/s of packets of 4096 + 12 + 70 bytes for 1 ms are 1495.
    assert!((1480..=1500).contains(&packets), "{packets} packets");
}

#[test]
fn a_rate_that_comes_back_ends_the_wait_for_the_old_one() {
    let options = PairOptions {
        nic: |_, config| {
            // A round trip that jumps takes the rate to 1 Mb/s, where a packet takes 33 ms; one that stays brings
            // 20 Gb/s back.
            let line = Rate::gbps(100);
            config.control = ControlConfig::Timely(TimelyParameters {
                low: Span::ZERO,
                weight: (1, 1),
                additive: Rate::gbps(20),
                minimum: Rate::mbps(1),
                ..TimelyParameters::paper(line)
            });
        },
        mtu: Mtu::Mtu4096,
        ghost: true,
        memory: 1 << 30,
        ..PairOptions::default()
    };
    let mut pair = Pair::watched(&options, Events::new()).unwrap();
    let write = Operation::Write(pair.remote(1, 0));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 8 << 20))).unwrap();
    pair.lab.run_until(Time::ZERO + Span::from_us(20));
    pair.lab.latency = Span::from_us(100);
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::Success);
    let slowest = pair.lab.sink.iter().filter_map(|(_, _, event)| match event {
        Event::RateChanged { rate, .. } => Some(*rate),
        _ => None,
    });
    assert_eq!(slowest.min(), Some(Rate::mbps(1)));
    let (end, _, _) = pair.lab.sink.last().unwrap();
    assert!(*end < Time::ZERO + Span::from_ms(5), "it took until {end:?}");
}

/// When each packet of a WRITE over a wire of this latency left, and whether it asked for an acknowledgement.
fn packets_of_a_write(nic: ChangeNic, bytes: u32, latency: Span) -> Vec<(Time, bool)> {
    let options = PairOptions { nic, mtu: Mtu::Mtu4096, memory: 1 << 20, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.latency = latency;
    pair.lab.tap = Some(Vec::new());
    let write = Operation::Write(pair.remote(1, 0));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, bytes))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!((done[0].status, pair.lab.nics[0].counters().resent), (Status::Success, 0));
    let frames = pair.lab.tap.take().unwrap();
    let request = |tapped: &railnet_nic::testing::Tapped| match Frame::parse(&tapped.frame) {
        Ok(Frame::Roce(packet)) if tapped.from == 0 => Some((tapped.at, packet.headers.bth.ack_request)),
        _ => None,
    };
    frames.iter().filter_map(request).collect()
}

#[test]
fn an_algorithm_is_answered_as_often_as_it_wants() {
    let controls: [(ChangeNic, usize); 4] = [
        (dcqcn, 64),
        (hpcc, 1),
        (|_, config| config.control = ControlConfig::Timely(TimelyParameters::paper(Rate::gbps(100))), 4),
        (|_, config| config.control = ControlConfig::Swift(SwiftParameters::htsim()), 1),
    ];
    for (nic, interval) in controls {
        let packets = packets_of_a_write(nic, 128 * 4096, Span::from_us(1));
        assert_eq!(packets.len(), 128);
        for (index, (_, asks)) in packets.iter().enumerate() {
            assert_eq!(*asks, (index + 1) % interval == 0, "packet {index} at every {interval}");
        }
    }
}

fn hpcc(_: usize, config: &mut railnet_nic::NicConfig) {
    config.control = ControlConfig::Hpcc(HpccParameters::paper(Rate::gbps(100), Span::from_us(5)));
}

/// The extensions on the wire during a WRITE of 8 packets and a READ of 2: those of requests, and of answers.
fn extensions(nic: ChangeNic) -> [Vec<(Opcode, Extension)>; 2] {
    let mut pair = Pair::new(&PairOptions { nic, ..PairOptions::default() }).unwrap();
    pair.lab.tap = Some(Vec::new());
    let (write, read) = (Operation::Write(pair.remote(1, 0)), Operation::Read(pair.remote(1, 0)));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 8192))).unwrap();
    pair.send(0, SendRequest::new(2, read).with(pair.sge(0, 0, 2048))).unwrap();
    let [done, _] = pair.finish();
    assert!(done.len() == 2 && done.iter().all(|done| done.status == Status::Success));
    let mut found = [Vec::new(), Vec::new()];
    for tapped in pair.lab.tap.take().unwrap() {
        let Ok(Frame::Roce(packet)) = Frame::parse(&tapped.frame) else { panic!("all of it is RoCE") };
        assert!(packet.icrc.is_good());
        found[tapped.from].push((packet.headers.bth.opcode, packet.extension));
    }
    found
}

#[test]
fn extensions_are_sent_where_the_algorithm_wants_them_and_nowhere_else() {
    for plain in [|_: usize, _: &mut railnet_nic::NicConfig| {}, dcqcn as ChangeNic] {
        assert!(extensions(plain).iter().flatten().all(|(_, extension)| extension.is_none()));
    }
    // Only the sender asks for telemetry: the receiver, with whatever control of its own, answers in kind.
    let only_sender = |side: usize, config: &mut railnet_nic::NicConfig| {
        if side == 0 {
            hpcc(side, config);
        }
    };
    for nic in [hpcc as ChangeNic, only_sender] {
        let [requests, answers] = extensions(nic);
        let room = TelemetryBlock::Gathered(Telemetry::EMPTY);
        let expected = |wanted: bool, telemetry| {
            if wanted { Extension { telemetry, ..Extension::NONE } } else { Extension::NONE }
        };
        assert_eq!(requests.len(), 9);
        for (opcode, extension) in requests {
            assert_eq!(extension, expected(opcode.is_write(), room), "{opcode}");
        }
        // One answer for each packet of the WRITE, which tells that no switch was on the way.
        let echo = TelemetryBlock::Echoed(Telemetry::EMPTY);
        assert_eq!(answers.iter().filter(|(opcode, _)| *opcode == Opcode::RcAcknowledge).count(), 8);
        for (opcode, extension) in answers {
            assert_eq!(extension, expected(opcode == Opcode::RcAcknowledge, echo), "{opcode}");
        }
    }
}

#[test]
fn acknowledgements_tell_how_many_packets_came_marked() {
    let dctcp = |_: usize, config: &mut railnet_nic::NicConfig| {
        config.control = ControlConfig::Dctcp(DctcpParameters::hardware(Rate::gbps(100), Span::from_us(5)));
    };
    let mut pair = Pair::new(&PairOptions { nic: dctcp, ..PairOptions::default() }).unwrap();
    pair.lab.faults = Faults { mark: 300_000, ..Faults::default() };
    pair.lab.tap = Some(Vec::new());
    let write = Operation::Write(pair.remote(1, 0));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 500 * 1024))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::Success);
    let (mut marked, mut packets) = (0, 0);
    for tapped in pair.lab.tap.take().unwrap() {
        let Ok(Frame::Roce(packet)) = Frame::parse(&tapped.frame) else { panic!("all of it is RoCE") };
        assert_ne!(packet.headers.bth.opcode, Opcode::Cnp, "the echo says it already");
        assert_eq!(packet.extension.telemetry, TelemetryBlock::None);
        if let Some(echo) = packet.extension.congestion {
            assert_eq!(tapped.from, 1);
            marked += u64::from(echo.marked);
            packets += u64::from(echo.packets);
        }
    }
    assert_eq!(packets, 500);
    // Acknowledgements are marked as well; nobody counts that.
    assert!((100..200).contains(&marked) && marked < pair.lab.injected.marked, "{marked}");
}

#[test]
fn a_window_bounds_what_is_in_flight() {
    let small = |_: usize, config: &mut railnet_nic::NicConfig| {
        // 5 µs at 100 Gb/s are 62,500 bytes: 15 whole packets.
        let window_first = Span::from_us(5);
        config.control = ControlConfig::Swift(SwiftParameters { window_first, ..SwiftParameters::htsim() });
    };
    let packets = packets_of_a_write(small, 100 * 4096, Span::from_us(50));
    let first_answer = Time::ZERO + Span::from_us(100);
    assert_eq!(packets.iter().filter(|(at, _)| *at < first_answer).count(), 15);
}

#[test]
fn a_window_below_one_packet_is_kept_by_waiting() {
    let tight = |_: usize, config: &mut railnet_nic::NicConfig| {
        // The wire alone takes longer than the target: the window can only go to its floor.
        config.control = ControlConfig::Swift(SwiftParameters {
            base: Span::from_us(1),
            scaling_range: Span::ZERO,
            window_least: (1, 4),
            ..SwiftParameters::htsim()
        });
    };
    let packets = packets_of_a_write(tight, 200 * 4096, Span::from_us(5));
    let [.., (before, _), (last, _)] = packets[..] else { panic!("there are packets") };
    // 5 µs each way, a packet of 4178 bytes there and an answer of 86 back: four times that between two packets.
    let expected = 4.0 * (10.0 + 4264.0 * 80e-6);
    let found = (last - before).as_us_f64();
    assert!((found / expected - 1.0).abs() < 0.01, "{found} µs apart, not {expected}");
}

#[test]
fn a_notification_is_exact_on_the_wire() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.lab.faults.mark = 1_000_000;
    pair.lab.tap = Some(Vec::new());
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 10_000)))
        .unwrap();
    pair.lab.run();
    let frames = pair.lab.tap.take().unwrap();
    let notifications: Vec<_> = frames
        .iter()
        .filter_map(|tapped| match Frame::parse(&tapped.frame) {
            Ok(Frame::Roce(packet)) if packet.headers.bth.opcode == Opcode::Cnp => Some((tapped, packet)),
            _ => None,
        })
        .collect();
    assert_eq!(notifications.len(), 1);
    let (tapped, packet) = notifications[0];
    assert_eq!(tapped.from, 1);
    assert!(packet.headers.bth.becn && packet.icrc.is_good());
    assert_eq!(packet.headers.bth.destination, pair.queue_pairs[0]);
    assert_eq!(packet.network().dscp(), 48);
    let udp_payload = &tapped.frame[14 + 20 + 8..];
    assert_eq!(udp_payload.len(), 32);
    assert_eq!((udp_payload[0], udp_payload[4]), (0x81, 0x40));
}

#[test]
fn credits_hold_a_sender_back_instead_of_naks() {
    let with_credits = |_: usize, config: &mut railnet_nic::NicConfig| config.behaviour.credits = true;
    let mut pair = Pair::new(&PairOptions { nic: with_credits, ..PairOptions::default() }).unwrap();
    for work in 0..4 {
        pair.receive(1, ReceiveRequest::new(work).with(pair.sge(1, work * 100, 100))).unwrap();
    }
    for work in 0..8 {
        pair.send(0, SendRequest::new(work, Operation::Send).with(pair.sge(0, 0, 100))).unwrap();
    }
    pair.lab.run_until(Time::ZERO + Span::from_us(500));
    assert_eq!(pair.done(1).len(), 4);
    let naks = pair.lab.nics[1].counters().rnr_naks;
    assert!(naks <= 1, "only the packet that finds out may be refused, not {naks}");
    for work in 4..8 {
        pair.receive(1, ReceiveRequest::new(work).with(pair.sge(1, work * 100, 100))).unwrap();
    }
    let [sent, received] = pair.finish();
    assert_eq!((sent.len(), received.len()), (8, 4));
}

#[test]
fn reads_keep_to_the_agreed_depth() {
    let options = PairOptions {
        attributes: |_, change| {
            change.initiator_reads = change.initiator_reads.map(|_| 1);
            change.destination_reads = change.destination_reads.map(|_| 1);
        },
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.tap = Some(Vec::new());
    for work in 0..4 {
        let read = Operation::Read(pair.remote(1, 0));
        pair.send(0, SendRequest::new(work, read).with(pair.sge(0, work * 2048, 2048))).unwrap();
    }
    let [done, _] = pair.finish();
    assert_eq!(done.len(), 4);
    // As in the capture of Soft-RoCE: request, first, last, request, first, last, …
    let order: Vec<usize> = pair.lab.tap.take().unwrap().iter().map(|tapped| tapped.from).collect();
    assert_eq!(order, [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]);
}

#[test]
fn a_fence_waits_for_reads_before_it() {
    for fence in [false, true] {
        let mut pair = Pair::new(&PairOptions::default()).unwrap();
        pair.lab.tap = Some(Vec::new());
        let (read, write) = (Operation::Read(pair.remote(1, 0)), Operation::Write(pair.remote(1, 0)));
        pair.send(0, SendRequest::new(1, read).with(pair.sge(0, 100_000, 3000))).unwrap();
        let request = SendRequest::new(2, write).with(pair.sge(0, 0, 3000));
        pair.send(0, SendRequest { fence, ..request }).unwrap();
        let old = pair.bytes(1)[..3000].to_vec();
        let [done, _] = pair.finish();
        assert_eq!(done.iter().map(|done| done.work).collect::<Vec<_>>(), [1, 2]);
        let order: Vec<usize> = pair.lab.tap.take().unwrap().iter().map(|tapped| tapped.from).collect();
        let first_answer = order.iter().position(|&from| from == 1).unwrap();
        let sent_before = order[..first_answer].len();
        assert_eq!(sent_before, if fence { 1 } else { 4 }, "fence {fence}");
        if fence {
            assert_eq!(pair.bytes(0)[100_000..103_000], old, "the READ saw what was there before the WRITE");
        }
    }
}

#[test]
fn a_paused_priority_waits_while_others_go() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 100))).unwrap();
    let mut out = Vec::new();
    let (nic, mut cx) = pair.lab.nic(0);
    // The path's traffic class is 2, so its DSCP is 0 and its priority too.
    assert!(nic.poll_transmit(&mut cx, 0, railnet_nic::Priorities(0xfe), &mut out).is_none());
    assert!(nic.poll_transmit(&mut cx, 0, railnet_nic::Priorities(0x01), &mut out).is_some());
}
