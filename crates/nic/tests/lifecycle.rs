//! Making, changing and destroying: states, shared queues, draining, overflow, what may not be destroyed yet.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::needless_range_loop, reason = "a side is a number for several lists at once")]

use proptest::prelude::*;
use railnet_core::Psn;
use railnet_core::event::NoSink;
use railnet_nic::memory::Segments;
use railnet_nic::testing::{Lab, Pair, PairOptions, Peer, connect};
use railnet_nic::{
    Access, AsyncEvent, Attributes, Completion, Context, Mtu, Nic, Operation, PostError, QueuePairConfig,
    ReceiveRequest, SendRequest, Service, State, Status, VerbsError,
};

fn events(pair: &mut Pair, side: usize) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| pair.lab.nics[side].poll_event()).collect()
}

fn go(state: State) -> Attributes {
    Attributes { state: Some(state), ..Attributes::default() }
}

#[test]
fn nothing_that_is_in_use_can_be_destroyed() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let (domain, queue, queue_pair, key) =
        (pair.domains[0], pair.queues[0], pair.queue_pairs[0], pair.keys[0]);
    let nic = &mut pair.lab.nics[0];
    assert!(matches!(nic.dealloc_pd(domain), Err(VerbsError::Busy { .. })));
    assert!(matches!(nic.destroy_cq(queue), Err(VerbsError::Busy { count: 2, .. })));
    let shared = nic.create_srq(domain, 10, 1).unwrap();
    let user = nic
        .create_qp(
            domain,
            &QueuePairConfig {
                shared: Some(shared),
                ..QueuePairConfig::new(Service::ReliableConnection, queue)
            },
        )
        .unwrap();
    let error = nic.destroy_srq(shared).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the shared receive queue is still in use by 1 queue pairs: destroy those first"
    );
    nic.destroy_qp(user).unwrap();
    nic.destroy_srq(shared).unwrap();
    nic.destroy_qp(queue_pair).unwrap();
    assert_eq!(nic.destroy_qp(queue_pair), Err(VerbsError::Unknown("queue pair")));
    nic.destroy_cq(queue).unwrap();
    assert!(matches!(nic.dealloc_pd(domain), Err(VerbsError::Busy { by: "memory regions", .. })));
    nic.dereg_mr(key).unwrap();
    nic.dealloc_pd(domain).unwrap();
    assert_eq!(nic.dealloc_pd(domain), Err(VerbsError::Unknown("protection domain")));
}

#[test]
fn a_queue_pair_destroyed_in_mid_flight_leaves_no_trace() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    for work in 0..20 {
        let write = Operation::Write(pair.remote(1, 0));
        pair.send(0, SendRequest::new(work, write).with(pair.sge(0, 0, 10_000))).unwrap();
    }
    for _ in 0..30 {
        pair.lab.step();
    }
    let (nic, queue_pair) = (&mut pair.lab.nics[0], pair.queue_pairs[0]);
    nic.destroy_qp(queue_pair).unwrap();
    pair.lab.run();
    assert!(pair.done(0).is_empty());
    assert!(matches!(pair.send(0, SendRequest::new(1, Operation::Send)), Err(PostError::Unknown(_))));
}

#[test]
fn queue_pairs_share_receives_and_the_limit_is_told_once() {
    let nics = (0..2).map(|side| Nic::new(Lab::<NoSink>::nic_config(side, 1))).collect();
    let mut lab = Lab::new(nics, 1, NoSink);
    let domains = [0, 1].map(|side: usize| lab.nics[side].alloc_pd());
    let queues = [0, 1].map(|side: usize| lab.nics[side].create_cq(100).unwrap());
    let shared = lab.nics[1].create_srq(domains[1], 100, 1).unwrap();
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..3 {
        let sender = QueuePairConfig::new(Service::ReliableConnection, queues[0]);
        let sender = lab.nics[0].create_qp(domains[0], &sender).unwrap();
        let receiver = QueuePairConfig {
            shared: Some(shared),
            ..QueuePairConfig::new(Service::ReliableConnection, queues[1])
        };
        let receiver = lab.nics[1].create_qp(domains[1], &receiver).unwrap();
        let ends =
            [(0, sender), (1, receiver)].map(|(nic, queue_pair)| Peer { nic, queue_pair, psn: Psn::new(3) });
        connect(&mut lab, ends, Mtu::Mtu1024, |_, _| {}).unwrap();
        senders.push(sender);
        receivers.push(receiver);
    }
    for work in 0..6 {
        lab.nics[1].post_srq_recv(shared, ReceiveRequest::new(work)).unwrap();
    }
    let (nic, mut cx) = lab.nic(1);
    let own = nic.post_recv(&mut cx, receivers[0], ReceiveRequest::new(0));
    assert_eq!(own, Err(PostError::HasSharedQueue(receivers[0])));
    lab.nics[1].modify_srq(shared, 3).unwrap();
    for round in 0..2 {
        for &sender in &senders {
            let (nic, mut cx) = lab.nic(0);
            nic.post_send(&mut cx, sender, SendRequest::new(round, Operation::Send)).unwrap();
        }
    }
    lab.run();
    let received = lab.completions(1, queues[1]);
    assert_eq!(received.iter().map(|done| done.work).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let told: Vec<_> = std::iter::from_fn(|| lab.nics[1].poll_event()).collect();
    assert_eq!(told, [AsyncEvent::SharedReceiveLimit(shared)]);

    // Receives of a shared queue outlive a queue pair that fails; it only tells that it is done with them.
    lab.nics[1].post_srq_recv(shared, ReceiveRequest::new(9)).unwrap();
    let (nic, mut cx) = lab.nic(1);
    nic.modify_qp(&mut cx, receivers[0], &go(State::Error)).unwrap();
    assert!(lab.completions(1, queues[1]).is_empty());
    assert_eq!(lab.nics[1].poll_event(), Some(AsyncEvent::LastReceiveTaken(receivers[0])));
    let (nic, mut cx) = lab.nic(0);
    nic.post_send(&mut cx, senders[1], SendRequest::new(7, Operation::Send)).unwrap();
    lab.run();
    assert_eq!(lab.completions(1, queues[1]).iter().map(|done| done.work).collect::<Vec<_>>(), [9]);
}

#[test]
fn a_drained_queue_finishes_what_it_began_and_goes_on_later() {
    let mut pair = Pair::new(&PairOptions { mtu: Mtu::Mtu256, ..PairOptions::default() }).unwrap();
    for work in 0..4 {
        let write = Operation::Write(pair.remote(1, 0));
        pair.send(0, SendRequest::new(work, write).with(pair.sge(0, 0, 50_000))).unwrap();
    }
    for _ in 0..50 {
        pair.lab.step();
    }
    pair.modify(0, &Attributes { notify_drained: Some(true), ..go(State::SendQueueDrain) }).unwrap();
    pair.lab.run();
    let done = pair.done(0);
    assert!(!done.is_empty() && done.len() < 4, "{} done", done.len());
    assert_eq!(events(&mut pair, 0), [AsyncEvent::SendQueueDrained(pair.queue_pairs[0])]);
    pair.modify(0, &go(State::ReadyToSend)).unwrap();
    let [rest, _] = pair.finish();
    assert_eq!(done.len() + rest.len(), 4);
}

#[test]
fn a_completion_queue_that_runs_over_says_so() {
    let mut pair = Pair::new(&PairOptions { completions: 3, ..PairOptions::default() }).unwrap();
    for work in 0..5 {
        let write = Operation::Write(pair.remote(1, 0));
        pair.send(0, SendRequest::new(work, write).with(pair.sge(0, 0, 8))).unwrap();
    }
    pair.lab.run();
    let (queue, queue_pair) = (pair.queues[0], pair.queue_pairs[0]);
    assert_eq!(
        events(&mut pair, 0),
        [AsyncEvent::CompletionQueueOverflow(queue), AsyncEvent::QueuePairFatal(queue_pair)]
    );
    assert_eq!(pair.done(0).iter().map(|done| done.work).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(pair.state(0), State::Error);
}

#[test]
fn a_wiped_queue_pair_can_be_connected_again() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    for round in 0..3 {
        pair.receive(1, ReceiveRequest::new(round).with(pair.sge(1, 0, 100))).unwrap();
        pair.send(0, SendRequest::new(round, Operation::Send).with(pair.sge(0, 0, 100))).unwrap();
        let [sent, received] = pair.finish();
        assert_eq!((sent.len(), received.len()), (1, 1));
        for side in 0..2 {
            pair.receive(side, ReceiveRequest::new(99)).unwrap();
            pair.modify(side, &go(State::Error)).unwrap();
            assert_eq!(pair.done(side)[0].status, Status::Flushed);
            pair.modify(side, &go(State::Reset)).unwrap();
        }
        let ends =
            [0, 1].map(|nic| Peer { nic, queue_pair: pair.queue_pairs[nic], psn: Psn::new(round as u32) });
        connect(&mut pair.lab, ends, Mtu::Mtu512, |_, _| {}).unwrap();
    }
}

#[test]
fn a_queue_is_as_deep_as_it_was_made() {
    let options = PairOptions {
        queue_pair: |_, config| {
            config.send_depth = 2;
            config.receive_depth = 3;
        },
        ..PairOptions::default()
    };
    let mut pair = Pair::new(&options).unwrap();
    for work in 0..2 {
        pair.send(0, SendRequest::new(work, Operation::Write(pair.remote(1, 0)))).unwrap();
    }
    assert_eq!(pair.send(0, SendRequest::new(3, Operation::Send)), Err(PostError::Full { depth: 2 }));
    for work in 0..3 {
        pair.receive(1, ReceiveRequest::new(work)).unwrap();
    }
    assert_eq!(pair.receive(1, ReceiveRequest::new(3)), Err(PostError::Full { depth: 3 }));
    let crowded = (0..5).fold(ReceiveRequest::new(4), |receive, _| receive.with(pair.sge(0, 0, 1)));
    pair.finish();
    assert_eq!(pair.receive(0, crowded), Err(PostError::TooManyEntries { asked: 5, limit: 4 }));
}

#[test]
fn bad_attributes_change_nothing() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.modify(0, &go(State::Reset)).unwrap();
    let init =
        Attributes { partition_index: Some(0), port: Some(2), access: Some(Access::ALL), ..go(State::Init) };
    let error = pair.modify(0, &init).unwrap_err();
    assert_eq!(error.to_string(), "2 is no value for the port: ports count from 1");
    assert_eq!(pair.state(0), State::Reset);
    assert!(pair.modify(0, &Attributes { port: Some(1), ..init }).is_ok());
    assert_eq!(
        pair.modify(0, &go(State::ReadyToSend)),
        Err(VerbsError::Transition { from: State::Init, to: State::ReadyToSend })
    );
}

#[test]
fn numbers_and_keys_come_from_the_nics_ranges() {
    let mut config = Lab::<NoSink>::nic_config(0, 1);
    config.queue_pairs = 0x100..0x103;
    config.keys = 0x40..0x42;
    let mut nic = Nic::new(config);
    let mut memory = Segments::new();
    let space = memory.add_bytes(0, vec![0; 64]);
    let (domain, queue) = (nic.alloc_pd(), nic.create_cq(1).unwrap());
    let config = QueuePairConfig::new(Service::ReliableConnection, queue);
    let numbers: Vec<u32> = (0..3).map(|_| nic.create_qp(domain, &config).unwrap().value()).collect();
    assert_eq!(numbers, [0x100, 0x101, 0x102]);
    assert_eq!(nic.create_qp(domain, &config), Err(VerbsError::Exhausted("queue pair number")));
    let keys: Vec<u32> = (0..2)
        .map(|_| nic.reg_mr(&memory, domain, space, 0, 64, Access::NONE, None).unwrap().0 >> 8)
        .collect();
    assert_eq!(keys, [0x40, 0x41]);
    assert!(matches!(
        nic.reg_mr(&memory, domain, space, 60, 8, Access::NONE, None),
        Err(VerbsError::Fault { address: 60, length: 8 })
    ));
    assert_eq!(
        nic.reg_mr(&memory, domain, space, 0, 8, Access::REMOTE_WRITE, None),
        Err(VerbsError::RemoteWriteNeedsLocalWrite)
    );
}

#[test]
fn many_queue_pairs_complete_on_one_queue() {
    let nics = (0..2).map(|side| Nic::new(Lab::<NoSink>::nic_config(side, 1))).collect();
    let mut lab = Lab::new(nics, 1, NoSink);
    let domains = [0, 1].map(|side: usize| lab.nics[side].alloc_pd());
    let queues = [0, 1].map(|side: usize| lab.nics[side].create_cq(1000).unwrap());
    let mut numbers = Vec::new();
    for _ in 0..50 {
        let made = [0, 1].map(|side: usize| {
            let config = QueuePairConfig::new(Service::ReliableConnection, queues[side]);
            lab.nics[side].create_qp(domains[side], &config).unwrap()
        });
        let ends = [0, 1].map(|nic| Peer { nic, queue_pair: made[nic], psn: Psn::new(1) });
        connect(&mut lab, ends, Mtu::Mtu1024, |_, _| {}).unwrap();
        numbers.push(made);
    }
    for (index, made) in numbers.iter().enumerate() {
        let (nic, mut cx) = lab.nic(1);
        nic.post_recv(&mut cx, made[1], ReceiveRequest::new(index as u64)).unwrap();
        let (nic, mut cx) = lab.nic(0);
        nic.post_send(&mut cx, made[0], SendRequest::new(index as u64, Operation::Send)).unwrap();
    }
    lab.run();
    for (side, queue) in queues.into_iter().enumerate() {
        let done = lab.completions(side, queue);
        assert_eq!(done.len(), 50);
        assert!(done.iter().all(|done| numbers[done.work as usize][side] == done.queue_pair));
    }
}

/// A verb, by numbers that are taken modulo what exists.
#[derive(Clone, Debug)]
enum Verb {
    CreateQueuePair(bool),
    Destroy(u8),
    Modify(u8, u8),
    Send(u8, u16, u8),
    Receive(u8, u16),
    Register(u16),
    Deregister(u8),
    Run(u8),
    Poll,
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let verb = prop_oneof![
        any::<bool>().prop_map(Verb::CreateQueuePair),
        any::<u8>().prop_map(Verb::Destroy),
        (any::<u8>(), any::<u8>()).prop_map(|(which, state)| Verb::Modify(which, state)),
        (any::<u8>(), 0u16..5000, any::<u8>())
            .prop_map(|(which, length, kind)| Verb::Send(which, length, kind)),
        (any::<u8>(), 0u16..5000).prop_map(|(which, length)| Verb::Receive(which, length)),
        (1u16..9000).prop_map(Verb::Register),
        any::<u8>().prop_map(Verb::Deregister),
        any::<u8>().prop_map(Verb::Run),
        Just(Verb::Poll),
    ];
    prop::collection::vec(verb, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is called in whatever order: no panic, posted work is answered once or vanishes with its queue pair,
    /// time ends, and at the end everything can be taken down.
    #[test]
    fn any_sequence_of_verbs_keeps_the_house_in_order(script in verbs()) {
        let nics = (0..2).map(|side| Nic::new(Lab::<NoSink>::nic_config(side, 1))).collect();
        let mut lab = Lab::new(nics, 1, NoSink);
        let spaces = [0, 1].map(|_| lab.memory.add_bytes(0, vec![1; 10_000]));
        let domains = [0, 1].map(|side: usize| lab.nics[side].alloc_pd());
        let queues = [0, 1].map(|side: usize| lab.nics[side].create_cq(100_000).unwrap());
        let mut keys: Vec<[railnet_nic::Key; 2]> = Vec::new();
        let mut queue_pairs = Vec::new();
        let mut posted = std::collections::BTreeSet::new();
        let mut work = 0;
        let check = |done: Vec<Completion>, posted: &mut std::collections::BTreeSet<u64>| {
            for done in done {
                prop_assert!(posted.remove(&done.work), "completion of {} that was not posted", done.work);
            }
            Ok(())
        };
        for verb in script {
            let pick = |which: u8, length: usize| (length > 0).then(|| usize::from(which) % length);
            match verb {
                Verb::CreateQueuePair(connected) => {
                    let made = [0, 1].map(|side: usize| {
                        let config = QueuePairConfig { signal_all: true, ..QueuePairConfig::new(Service::ReliableConnection, queues[side]) };
                        lab.nics[side].create_qp(domains[side], &config).unwrap()
                    });
                    if connected {
                        let ends = [0, 1].map(|nic| Peer { nic, queue_pair: made[nic], psn: Psn::new(9) });
                        connect(&mut lab, ends, Mtu::Mtu256, |_, change| change.rnr_retry = change.rnr_retry.map(|_| 1)).unwrap();
                    }
                    queue_pairs.push(made);
                }
                Verb::Destroy(which) => if let Some(index) = pick(which, queue_pairs.len()) {
                    let made = queue_pairs.swap_remove(index);
                    for side in 0..2 {
                        lab.nics[side].destroy_qp(made[side]).unwrap();
                    }
                },
                Verb::Modify(which, state) => if let Some(index) = pick(which, queue_pairs.len()) {
                    let states = [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::SendQueueDrain, State::SendQueueError, State::Error];
                    let (side, state) = (usize::from(which) % 2, states[usize::from(state) % states.len()]);
                    let (nic, mut cx) = lab.nic(side);
                    let _ = nic.modify_qp(&mut cx, queue_pairs[index][side], &go(state));
                },
                Verb::Send(which, length, kind) => if let (Some(index), Some(key)) = (pick(which, queue_pairs.len()), pick(kind, keys.len())) {
                    let remote = railnet_nic::Remote { address: 0, key: keys[key][1] };
                    let operation = match kind % 5 {
                        0 => Operation::Write(remote),
                        1 => Operation::Read(remote),
                        2 => Operation::WriteImmediate(remote, 1),
                        3 => Operation::FetchAdd { remote, add: 1 },
                        _ => Operation::Send,
                    };
                    let length = if kind % 5 == 3 { 8 } else { u32::from(length) };
                    let sge = railnet_nic::Sge { address: 0, length, key: keys[key][0] };
                    work += 1;
                    let (nic, mut cx) = lab.nic(0);
                    if nic.post_send(&mut cx, queue_pairs[index][0], SendRequest::new(work, operation).with(sge)).is_ok() {
                        posted.insert(work);
                    }
                },
                Verb::Receive(which, length) => if let (Some(index), Some(key)) = (pick(which, queue_pairs.len()), pick(which, keys.len())) {
                    let sge = railnet_nic::Sge { address: 0, length: u32::from(length), key: keys[key][1] };
                    work += 1;
                    let (nic, mut cx) = lab.nic(1);
                    if nic.post_recv(&mut cx, queue_pairs[index][1], ReceiveRequest::new(work).with(sge)).is_ok() {
                        posted.insert(work);
                    }
                },
                Verb::Register(length) => keys.push([0, 1].map(|side: usize| {
                    lab.nics[side].reg_mr(&lab.memory, domains[side], spaces[side], 0, u64::from(length), Access::ALL, None).unwrap()
                })),
                Verb::Deregister(which) => if let Some(index) = pick(which, keys.len()) {
                    let gone = keys.swap_remove(index);
                    for side in 0..2 {
                        lab.nics[side].dereg_mr(gone[side]).unwrap();
                    }
                },
                Verb::Run(steps) => for _ in 0..steps {
                    lab.step();
                },
                Verb::Poll => for side in 0..2 {
                    check(lab.completions(side, queues[side]), &mut posted)?;
                },
            }
        }
        lab.run();
        prop_assert!(lab.next_time().is_none_or(|next| next <= lab.now), "something never ends");
        for side in 0..2 {
            check(lab.completions(side, queues[side]), &mut posted)?;
        }
        let mut cx = Context::new(lab.now, &mut lab.memory, &mut lab.sink);
        for made in queue_pairs {
            for side in 0..2 {
                let info = lab.nics[side].query_qp(made[side]).unwrap();
                if !matches!(info.state, State::Reset | State::Error) {
                    lab.nics[side].modify_qp(&mut cx, made[side], &go(State::Error)).unwrap();
                }
                prop_assert_eq!(lab.nics[side].query_qp(made[side]).unwrap().sends, 0);
                lab.nics[side].destroy_qp(made[side]).unwrap();
            }
        }
        for side in 0..2 {
            for made in &keys {
                lab.nics[side].dereg_mr(made[side]).unwrap();
            }
            lab.nics[side].destroy_cq(queues[side]).unwrap();
            prop_assert!(lab.nics[side].dealloc_pd(domains[side]).is_ok());
        }
    }
}

#[test]
fn an_idle_queue_pair_is_small() {
    const { assert!(Nic::IDLE_QUEUE_PAIR_BYTES <= 512) };
}
