//! What the storm found, each as the smallest case that shows it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::{Psn, Span, Time};
use railnet_nic::control::{ControlConfig, SwiftParameters};
use railnet_nic::testing::{Fate, Pair, PairOptions, loopback_gid};
use railnet_nic::{
    Access, Bind, Completion, Inbound, Key, NicConfig, Operation, Payload, ReceiveRequest, SendRequest,
    Service, Status,
};
use railnet_wire::{Aeth, Bth, Extended, Headers, Network, Opcode, Reth, Syndrome};

fn statuses(done: &[Completion]) -> Vec<(u64, Status)> {
    done.iter().map(|done| (done.work, done.status)).collect()
}

fn after_us(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

/// Hands a packet to a side as if its peer had sent it.
fn inject(pair: &mut Pair, side: usize, opcode: Opcode, psn: u32, extended: Extended) {
    let network = Network {
        source: loopback_gid(1 - side),
        target: loopback_gid(side),
        source_port: 0xc000,
        target_port: railnet_wire::ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        flow_label: 0,
    };
    let bth = Bth { ack_request: true, ..Bth::new(opcode, pair.queue_pairs[side], Psn::new(psn)) };
    let headers = Headers { bth, extended };
    let (nic, mut cx) = pair.lab.nic(side);
    let (network, headers, payload) = (&network, &headers, Payload::Bytes(&[]));
    let packet = Inbound { network, headers, extension: None, payload, intact: true };
    nic.receive(&mut cx, &packet).expect("the packet fits the connection");
}

fn inject_not_ready(pair: &mut Pair, psn: u32, timer: u8) {
    let aeth = Aeth { syndrome: Syndrome::RnrNak { timer }, msn: 0 };
    inject(pair, 0, Opcode::RcAcknowledge, psn, Extended::Aeth(aeth));
}

fn bind(pair: &mut Pair, work: u64) -> SendRequest {
    let window = pair.lab.nics[0].alloc_mw(pair.domains[0]).expect("keys are left");
    let bind = Bind {
        window,
        variant: 1,
        region: pair.keys[0],
        address: pair.remote(0, 0).address,
        length: 100,
        access: Access::REMOTE_READ,
    };
    SendRequest::new(work, Operation::BindWindow(bind))
}

fn write(pair: &Pair, work: u64, offset: u64) -> SendRequest {
    SendRequest::new(work, Operation::Write(pair.remote(1, offset))).with(pair.sge(0, 0, 100))
}

#[test]
fn unsignalled_work_in_front_of_a_local_operation_asks_for_its_acknowledgement() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let bind = bind(&mut pair, 2);
    pair.send(0, write(&pair, 1, 0).unsignaled()).unwrap();
    pair.send(0, bind).unwrap();
    pair.send(0, write(&pair, 3, 200)).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn unsignalled_work_in_front_of_a_send_without_credit_asks_for_its_acknowledgement() {
    let options = PairOptions { nic: |_, config| config.behaviour.credits = true, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    for work in 10..13 {
        pair.receive(1, ReceiveRequest::new(work).with(pair.sge(1, 4096, 100))).unwrap();
    }
    pair.send(0, write(&pair, 1, 0).unsignaled()).unwrap();
    pair.send(0, write(&pair, 2, 200).unsignaled()).unwrap();
    pair.send(0, SendRequest::new(3, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    pair.send(0, SendRequest::new(4, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    let [done, received] = pair.finish();
    assert_eq!(statuses(&done), [(3, Status::Success), (4, Status::Success)]);
    assert_eq!(statuses(&received), [(10, Status::Success), (11, Status::Success)]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn the_acknowledgement_clock_stands_still_while_waiting_for_the_receiver() {
    let options = PairOptions {
        nic: |_, config| config.behaviour.rnr_nak_acknowledges = false,
        attributes: |_, change| {
            // Ten milliseconds for the receiver, a tenth of that for an acknowledgement.
            change.min_rnr_timer = change.min_rnr_timer.map(|_| 20);
            change.retry_count = change.retry_count.map(|_| 3);
        },
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 0, 100))).unwrap();
    pair.send(0, SendRequest::new(2, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    pair.lab.run_until(Time::ZERO + Span::from_ns(100));
    // The NAK overtakes the READ's answer, which is progress in the middle of the wait.
    inject_not_ready(&mut pair, 101, 20);
    pair.lab.run_until(after_us(5_000));
    assert_eq!(statuses(&pair.done(0)), [(1, Status::Success)]);
    pair.receive(1, ReceiveRequest::new(10).with(pair.sge(1, 0, 10))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(2, Status::Success)]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn a_late_receiver_not_ready_nak_does_not_jump_over_local_work() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    for work in [10, 11] {
        pair.receive(1, ReceiveRequest::new(work).with(pair.sge(1, 0, 10))).unwrap();
    }
    let bind = bind(&mut pair, 2);
    pair.send(0, SendRequest::new(1, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    pair.send(0, bind).unwrap();
    pair.send(0, SendRequest::new(3, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    pair.lab.run_until(Time::ZERO + Span::from_ns(100));
    // A copy of an old NAK; the acknowledgement comes while it is obeyed.
    inject_not_ready(&mut pair, 100, 1);
    let [done, received] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert_eq!(received.len(), 2);
}

#[test]
fn the_work_that_the_receiver_was_not_ready_for_is_the_one_that_fails() {
    let options = PairOptions {
        nic: |_, config| config.behaviour.rnr_nak_acknowledges = false,
        attributes: |_, change| change.rnr_retry = change.rnr_retry.map(|_| 1),
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    // The answer to the WRITE is lost: only the NAK tells that it arrived.
    pair.lab.set_judge(|_, from, _| if from == 1 { Fate::Lose } else { Fate::Deliver });
    pair.send(0, write(&pair, 1, 0)).unwrap();
    pair.send(0, SendRequest::new(2, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    pair.lab.run_until(after_us(1));
    inject_not_ready(&mut pair, 101, 1);
    pair.lab.run_until(after_us(20));
    assert!(pair.done(0).is_empty(), "one retry is allowed");
    // It names the same work again. What it says about the WRITE is progress, so the count begins anew, once.
    inject_not_ready(&mut pair, 101, 1);
    pair.lab.run_until(after_us(40));
    assert_eq!(statuses(&pair.done(0)), [(1, Status::Success)]);
    inject_not_ready(&mut pair, 101, 1);
    assert_eq!(statuses(&pair.done(0)), [(2, Status::RnrRetryExceeded)]);
}

#[test]
fn a_read_answered_twice_leaves_room_for_the_next_one() {
    let options = PairOptions {
        attributes: |_, change| {
            change.initiator_reads = change.initiator_reads.map(|_| 1);
            change.destination_reads = change.destination_reads.map(|_| 1);
        },
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    let length = 200 << 10;
    for work in [1, 2] {
        let remote = pair.remote(1, 0);
        pair.send(0, SendRequest::new(work, Operation::Read(remote)).with(pair.sge(0, 0, length))).unwrap();
    }
    pair.lab.run_until(after_us(2));
    let remote = pair.remote(1, 0);
    let reth = Reth { address: remote.address, key: remote.key.0, length };
    inject(&mut pair, 1, Opcode::RcReadRequest, 100, Extended::Reth(reth));
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_receive_left_by_a_broken_message_outlives_a_refused_write() {
    let options = PairOptions { service: Service::UnreliableConnection, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.set_judge(|_, _, transmit| match transmit.headers.bth.opcode {
        Opcode::UcSendLast => Fate::Lose,
        _ => Fate::Deliver,
    });
    pair.receive(1, ReceiveRequest::new(10).with(pair.sge(1, 0, 4096))).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Send).with(pair.sge(0, 0, 2000))).unwrap();
    let mut remote = pair.remote(1, 8192);
    remote.key = Key(0xdead_0000);
    pair.send(0, SendRequest::new(2, Operation::Write(remote)).with(pair.sge(0, 0, 10))).unwrap();
    pair.send(0, SendRequest::new(3, Operation::Send).with(pair.sge(0, 0, 10))).unwrap();
    let [_, received] = pair.finish();
    assert_eq!(statuses(&received), [(10, Status::Success)]);
    assert_eq!(received[0].length, 10);
}

#[test]
fn answers_to_a_read_do_not_wait_for_a_window_that_nothing_opens() {
    // Every round trip is too long, so that the window falls to a hundredth of a packet.
    let swift: fn(usize, &mut NicConfig) = |_, config| {
        let (base, hop, scaling_range) = (Span::from_ps(1), Span::ZERO, Span::ZERO);
        let parameters = SwiftParameters { base, hop, scaling_range, ..SwiftParameters::htsim() };
        config.control = ControlConfig::Swift(parameters);
    };
    let mut pair = Pair::new(&PairOptions { nic: swift, ..PairOptions::default() }).unwrap();
    for work in 0..20 {
        let write = Operation::Write(pair.remote(0, 0));
        pair.send(1, SendRequest::new(work, write).with(pair.sge(1, 0, 64))).unwrap();
        pair.lab.run();
    }
    assert_eq!(pair.done(1).len(), 20);
    // From here on it only answers, and no acknowledgement will ever open the window again.
    let began = pair.lab.now;
    pair.send(0, SendRequest::new(20, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 0, 50 << 10)))
        .unwrap();
    let mut done = Vec::new();
    while done.is_empty() && pair.lab.step() {
        done = pair.done(0);
    }
    assert_eq!(statuses(&done), [(20, Status::Success)]);
    let took = pair.lab.now.since(began);
    assert!(took < Span::from_us(10), "{took} for 50 packets");
}
