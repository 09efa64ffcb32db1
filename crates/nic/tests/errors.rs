//! What goes wrong, and how each side hears of it: NAK, completion status, state, events.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::rc::Rc;

use railnet_core::event::{Check, Event};
use railnet_core::{Component, Time};
use railnet_nic::testing::{Fate, Pair, PairOptions};
use railnet_nic::{
    Access, AsyncEvent, Attributes, Behaviour, Completion, Key, Mtu, Operation, PostError, ReceiveRequest,
    SendRequest, State, Status,
};
use railnet_wire::Opcode;

fn statuses(done: &[Completion]) -> Vec<(u64, Status)> {
    done.iter().map(|done| (done.work, done.status)).collect()
}

fn events(pair: &mut Pair, side: usize) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| pair.lab.nics[side].poll_event()).collect()
}

/// The work at fault fails, all after it is flushed, in order, and the target's receives too.
fn expect_refusal(
    pair: &mut Pair,
    bad: SendRequest,
    status: Status,
    event: fn(railnet_core::QueuePairNumber) -> AsyncEvent,
) {
    for work in [500, 501] {
        pair.receive(1, ReceiveRequest::new(work).with(pair.sge(1, 0, 50))).unwrap();
    }
    let good = SendRequest::new(1, Operation::Write(pair.remote(1, 8192))).with(pair.sge(0, 0, 100));
    pair.send(0, good.clone()).unwrap();
    pair.send(0, bad).unwrap();
    pair.send(0, SendRequest { work: 3, ..good.clone().unsignaled() }).unwrap();
    let before = pair.bytes(1).to_vec();
    let [done, received] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::Success), (2, status), (3, Status::Flushed)]);
    assert_eq!(statuses(&received).len(), 2);
    assert_eq!(statuses(&received)[1], (501, Status::Flushed));
    assert_eq!([pair.state(0), pair.state(1)], [State::Error; 2]);
    let queue_pair = pair.queue_pairs[1];
    assert!(events(pair, 1).contains(&event(queue_pair)));
    let mut expected = before;
    expected[8192..8292].copy_from_slice(&pair.bytes(0)[..100]);
    assert_eq!(pair.bytes(1), expected, "nothing else was touched");
    // What is posted later is flushed at once.
    pair.send(0, SendRequest { work: 4, ..good }).unwrap();
    pair.receive(1, ReceiveRequest::new(502)).unwrap();
    let [done, received] = pair.finish();
    assert_eq!(statuses(&done), [(4, Status::Flushed)]);
    assert_eq!(statuses(&received), [(502, Status::Flushed)]);
}

#[test]
fn a_wrong_key_a_range_too_far_or_a_missing_right_is_a_remote_access_error() {
    let pair = || Pair::new(&PairOptions::default()).unwrap();
    for operation in ["write", "read", "atomic"] {
        let request = |pair: &Pair, key: Key, offset: u64| {
            let mut remote = pair.remote(1, offset);
            remote.key = key;
            let operation = match operation {
                "write" => Operation::Write(remote),
                "read" => Operation::Read(remote),
                _ => Operation::FetchAdd { remote, add: 1 },
            };
            SendRequest::new(2, operation).with(pair.sge(0, 4096, 8))
        };
        let mut wrong_key = pair();
        let bad = request(&wrong_key, Key(0x1234_5678), 0);
        expect_refusal(&mut wrong_key, bad, Status::RemoteAccess, AsyncEvent::QueuePairAccessError);
        let mut too_far = pair();
        let bad = request(&too_far, too_far.keys[1], (1 << 20) - 4 + 4 * u64::from(operation == "atomic"));
        expect_refusal(&mut too_far, bad, Status::RemoteAccess, AsyncEvent::QueuePairAccessError);
        // A region without the right, of the right protection domain.
        let mut weak = pair();
        let (domain, space) = (weak.domains[1], weak.spaces[1]);
        let base = railnet_nic::testing::PAIR_BASE;
        let key = weak.lab.nics[1]
            .reg_mr(&weak.lab.memory, domain, space, base, 4096, Access::LOCAL_WRITE, None)
            .unwrap();
        let bad = request(&weak, key, 0);
        expect_refusal(&mut weak, bad, Status::RemoteAccess, AsyncEvent::QueuePairAccessError);
        // A region of another protection domain.
        let mut foreign = pair();
        let (domain, space) = (foreign.lab.nics[1].alloc_pd(), foreign.spaces[1]);
        let key = foreign.lab.nics[1]
            .reg_mr(&foreign.lab.memory, domain, space, base, 4096, Access::ALL, None)
            .unwrap();
        let bad = request(&foreign, key, 0);
        expect_refusal(&mut foreign, bad, Status::RemoteAccess, AsyncEvent::QueuePairAccessError);
    }
}

#[test]
fn a_queue_pair_without_the_right_refuses_as_the_profile_says() {
    for (behaviour, status) in
        [(Behaviour::SPECIFICATION, Status::RemoteAccess), (Behaviour::RXE, Status::RemoteInvalidRequest)]
    {
        let mut options = PairOptions {
            attributes: |side, change| {
                if side == 1 && change.access.is_some() {
                    change.access = Some(Access::LOCAL_WRITE);
                }
            },
            ..PairOptions::default()
        };
        if behaviour == Behaviour::RXE {
            options.nic = |_, config| config.behaviour = Behaviour::RXE;
        }
        let mut pair = Pair::new(&options).unwrap();
        pair.send(0, SendRequest::new(1, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 0, 8)))
            .unwrap();
        assert_eq!(statuses(&pair.finish()[0]), [(1, status)]);
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let bad = SendRequest::new(2, Operation::FetchAdd { remote: pair.remote(1, 4), add: 1 })
        .with(pair.sge(0, 0, 8));
    expect_refusal(&mut pair, bad, Status::RemoteInvalidRequest, AsyncEvent::QueuePairRequestError);
}

#[test]
fn a_send_longer_than_the_buffer_ends_as_the_profile_says() {
    for (rxe, sender, receiver) in [
        (false, Status::RemoteInvalidRequest, Status::LocalLength),
        (true, Status::RemoteOperation, Status::LocalOperation),
    ] {
        let mut options = PairOptions { mtu: Mtu::Mtu256, ..PairOptions::default() };
        if rxe {
            options.nic = |_, config| config.behaviour = Behaviour::RXE;
        }
        let mut pair = Pair::new(&options).unwrap();
        pair.receive(1, ReceiveRequest::new(7).with(pair.sge(1, 0, 600))).unwrap();
        pair.receive(1, ReceiveRequest::new(8).with(pair.sge(1, 0, 600))).unwrap();
        pair.send(0, SendRequest::new(1, Operation::Send).with(pair.sge(0, 0, 601))).unwrap();
        let [sent, received] = pair.finish();
        assert_eq!(statuses(&sent), [(1, sender)]);
        assert_eq!(statuses(&received), [(7, receiver), (8, Status::Flushed)]);
    }
}

#[test]
fn a_receive_buffer_that_may_not_be_written_is_the_receivers_fault() {
    let options = PairOptions { access: [Access::ALL, Access::REMOTE_READ], ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    pair.receive(1, ReceiveRequest::new(7).with(pair.sge(1, 0, 64))).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Send).with(pair.sge(0, 0, 64))).unwrap();
    let [sent, received] = pair.finish();
    assert_eq!(statuses(&sent), [(1, Status::RemoteOperation)]);
    assert_eq!(statuses(&received), [(7, Status::LocalProtection)]);
}

#[test]
fn bad_local_memory_fails_in_its_turn_and_sends_nothing() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let write = Operation::Write(pair.remote(1, 0));
    let mut bad = pair.sge(0, 0, 100);
    bad.key = Key(0x00de_ad00);
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 5000))).unwrap();
    pair.send(0, SendRequest::new(2, write).with(bad)).unwrap();
    pair.send(0, SendRequest::new(3, write).with(pair.sge(0, 0, 8))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)]);
    assert_eq!(pair.state(1), State::ReadyToSend, "the peer never saw it");
}

#[test]
fn a_region_that_goes_away_in_mid_flight_stops_its_user() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let space = pair.spaces[1];
    let domain = pair.domains[1];
    let base = railnet_nic::testing::PAIR_BASE;
    let key =
        pair.lab.nics[1].reg_mr(&pair.lab.memory, domain, space, base, 1 << 20, Access::ALL, None).unwrap();
    let remote = railnet_nic::Remote { address: base, key };
    pair.send(0, SendRequest::new(1, Operation::Read(remote)).with(pair.sge(0, 0, 1 << 20))).unwrap();
    for _ in 0..100 {
        pair.lab.step();
    }
    pair.lab.nics[1].dereg_mr(key).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::RemoteAccess)]);
}

#[test]
fn without_an_answer_the_requester_gives_up_after_its_retries() {
    let options = PairOptions {
        attributes: |_, change| {
            change.retry_count = change.retry_count.map(|_| 2);
            change.timeout = change.timeout.map(|_| 14);
        },
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.tap = Some(Vec::new());
    pair.lab.set_judge(|_, _, _| Fate::Lose);
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 64))).unwrap();
    pair.send(0, SendRequest::new(2, Operation::Send)).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    let sent: Vec<Time> = pair.lab.tap.take().unwrap().iter().map(|tapped| tapped.at).collect();
    assert_eq!(sent.len(), 6, "two packets, three times");
    // 4.096 µs × 2^14, as the captures show it.
    assert_eq!((sent[2] - sent[0]).as_ps() / 1_000_000, 67_108);
}

#[test]
fn a_retry_count_of_seven_is_seven_or_for_ever() {
    for rxe in [false, true] {
        let mut options = PairOptions::default();
        if rxe {
            options.nic = |_, config| config.behaviour = Behaviour::RXE;
        }
        let mut pair = Pair::new(&options).unwrap();
        let began = pair.lab.now;
        // The timeout of code 8 is 1.05 ms: eight transmissions take less than ten.
        pair.lab.set_judge(move |now, _, _| match (now - began).as_ps() < 20_000_000_000 {
            true => Fate::Lose,
            false => Fate::Deliver,
        });
        pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 64)))
            .unwrap();
        let [done, _] = pair.finish();
        assert_eq!(done[0].status, if rxe { Status::Success } else { Status::RetryExceeded });
    }
}

#[test]
fn a_receiver_that_is_never_ready_is_given_up_on() {
    let options = PairOptions {
        attributes: |_, change| change.rnr_retry = change.rnr_retry.map(|_| 3),
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.tap = Some(Vec::new());
    pair.send(0, SendRequest::new(1, Operation::Send).with(pair.sge(0, 0, 64))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::RnrRetryExceeded)]);
    let sent = pair.lab.tap.take().unwrap().iter().filter(|tapped| tapped.from == 0).count();
    assert_eq!(sent, 4, "rnr_retry 3 means four transmissions");
}

#[test]
fn a_receiver_that_becomes_ready_takes_the_message_then() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Send).with(pair.sge(0, 0, 64))).unwrap();
    pair.lab.run_until(Time::from_ps(5_000_000_000));
    assert!(pair.lab.nics[1].counters().rnr_naks > 3);
    pair.receive(1, ReceiveRequest::new(7).with(pair.sge(1, 0, 64))).unwrap();
    let [done, received] = pair.finish();
    assert_eq!(statuses(&done), [(1, Status::Success)]);
    assert_eq!(statuses(&received), [(7, Status::Success)]);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let options = PairOptions {
        attributes: |side, change| {
            if side == 1 {
                change.destination_reads = change.destination_reads.map(|_| 0);
            }
        },
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 0, 8))).unwrap();
    assert_eq!(statuses(&pair.finish()[0]), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn the_checks_of_a_write_are_made_in_order() {
    let mut pair = Pair::watched(&PairOptions::default(), Vec::<(Time, Component, Event)>::new()).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 8))).unwrap();
    pair.lab.run();
    let checks: Vec<Check> = pair
        .lab
        .sink
        .iter()
        .filter_map(|(_, source, event)| match event {
            Event::Checked { check, passed: true, .. } if source.0 == 1 => Some(*check),
            _ => None,
        })
        .collect();
    let in_order = [
        Check::QueuePair,
        Check::Sequence,
        Check::OpcodeOrder,
        Check::QueuePairAccess,
        Check::Length,
        Check::Key,
        Check::Permission,
        Check::Range,
    ];
    assert_eq!(checks, in_order);
}

#[test]
fn a_message_out_of_order_is_an_invalid_request() {
    let mut pair = Pair::new(&PairOptions { mtu: Mtu::Mtu256, ..PairOptions::default() }).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 1000)))
        .unwrap();
    // Packets with the right sequence numbers, but the middle is a middle of something else.
    let mut out = Vec::new();
    let (nic, mut cx) = pair.lab.nic(0);
    let mut packets = Vec::new();
    while let Some(packet) = nic.poll_transmit(&mut cx, 0, railnet_nic::Priorities::ALL, &mut out) {
        packets.push((packet, std::mem::take(&mut out)));
    }
    packets[1].0.headers.bth.opcode = Opcode::RcSendMiddle;
    for (packet, bytes) in &packets {
        let (nic, mut cx) = pair.lab.nic(1);
        let inbound = railnet_nic::Inbound {
            network: &packet.network,
            headers: &packet.headers,
            extension: None,
            payload: railnet_nic::Payload::Bytes(bytes),
            intact: true,
        };
        let _ = nic.receive(&mut cx, &inbound);
    }
    assert_eq!(pair.state(1), State::Error);
    assert_eq!(statuses(&pair.finish()[0]), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn posting_in_the_wrong_state_is_refused_with_the_state() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.modify(0, &Attributes { state: Some(State::Reset), ..Attributes::default() }).unwrap();
    let error = pair.send(0, SendRequest::new(1, Operation::Send)).unwrap_err();
    assert!(matches!(error, PostError::State { state: State::Reset, queue: "send", .. }));
    assert!(matches!(pair.receive(0, ReceiveRequest::new(1)), Err(PostError::State { .. })));
}

/// Answers that wait go with the error state, also where they and the request are due at the same moment.
#[test]
fn a_request_that_fails_ends_the_answer_to_a_read() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let answers = Rc::new(Cell::new(0));
    let count = Rc::clone(&answers);
    pair.lab.set_judge(move |_, from, packet| {
        if from == 0 && packet.headers.bth.opcode.is_response() {
            count.set(count.get() + 1);
        }
        Fate::Deliver
    });
    let read = SendRequest::new(1, Operation::Read(pair.remote(0, 0))).with(pair.sge(1, 0, 100_000));
    pair.send(1, read).unwrap();
    while answers.get() < 3 {
        assert!(pair.lab.step(), "the READ is answered");
    }
    let bad = SendRequest::new(2, Operation::Write(pair.remote(1, 0)));
    let bad = bad.with(railnet_nic::Sge { key: Key(0x1234_5678), ..pair.sge(0, 0, 100) });
    pair.send(0, bad).unwrap();
    let before = answers.get();
    let [done, _] = pair.finish();
    assert_eq!(statuses(&done), [(2, Status::LocalProtection)]);
    assert_eq!(answers.get(), before);
}
