//! Connection management between two managers over a network that loses, repeats and reorders datagrams.

use railnet_core::{Psn, QueuePairNumber, Span, Time};
use railnet_nic::cm::{Call, CmError, ConnectionId, Event, Manager, Offer};
use railnet_nic::{Mtu, State};
use railnet_wire::Gid;
use railnet_wire::mad::{RejectReason, ServiceId};

const SERVICE: ServiceId = ServiceId::ip(6, 7174);

/// Two managers, the datagrams between them, and the events that both had.
struct Network {
    managers: [Manager; 2],
    in_flight: Vec<(Time, usize, Gid, [u8; 256])>,
    events: [Vec<Event>; 2],
    now: Time,
    random: u64,
    loss_percent: u64,
}

fn gid(host: usize) -> Gid {
    Gid::from_ip(format!("10.0.0.{}", host + 1).parse().expect("an address"))
}

impl Network {
    fn new(seed: u64, loss_percent: u64) -> Self {
        let manager = |host: usize| {
            let first = (host as u32) << 22;
            Manager::new(gid(host), host as u64, first..first + 1000, seed)
        };
        Self {
            managers: [manager(0), manager(1)],
            in_flight: Vec::new(),
            events: [Vec::new(), Vec::new()],
            now: Time::from_ps(1),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            loss_percent,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Moves datagrams and time on until nothing is left to do, or `until` is true.
    fn run(&mut self, until: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            for host in 0..2 {
                while let Some(datagram) = self.managers[host].poll_transmit() {
                    let copies = if self.draw(100) < self.loss_percent { 0 } else { 1 + self.draw(20) / 19 };
                    for _ in 0..copies {
                        let at = self.now + Span::from_us(10 + self.draw(500));
                        let target = usize::from(datagram.target == gid(1));
                        self.in_flight.push((at, target, gid(host), datagram.bytes));
                    }
                }
                while let Some(event) = self.managers[host].poll_event() {
                    self.events[host].push(event);
                }
            }
            if until(self) {
                return;
            }
            let arrival = (0..self.in_flight.len()).min_by_key(|index| self.in_flight[*index].0);
            let timeouts = self.managers.iter().filter_map(Manager::poll_timeout).min();
            match (arrival.map(|index| self.in_flight[index].0), timeouts) {
                (None, None) => return,
                (Some(arrives), due) if due.is_none_or(|due| arrives <= due) => {
                    let (at, target, from, bytes) = self.in_flight.swap_remove(arrival.expect("one arrives"));
                    self.now = at;
                    self.managers[target].receive(at, from, &bytes);
                }
                (_, Some(due)) => {
                    self.now = due;
                    self.managers.iter_mut().for_each(|manager| manager.handle_timeout(due));
                }
                (Some(_), None) => unreachable!("an arrival without a timeout is taken above"),
            }
        }
        panic!("the managers never come to rest");
    }

    fn has(&self, host: usize, matches: impl Fn(&Event) -> bool) -> bool {
        self.events[host].iter().any(matches)
    }

    fn requested(&self) -> Option<ConnectionId> {
        self.events[1].iter().find_map(|event| match event {
            Event::Requested { connection, .. } => Some(*connection),
            _ => None,
        })
    }
}

fn offer(number: u32) -> Offer {
    Offer {
        queue_pair: QueuePairNumber::new(number),
        psn: Psn::new(number * 3),
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry: 5,
        private: b"hello".to_vec(),
        ..Offer::default()
    }
}

fn call() -> Call {
    Call {
        target: gid(1),
        service: SERVICE,
        is_unreliable: false,
        mtu: Mtu::Mtu2048,
        ack_timeout: 14,
        traffic_class: 0,
        offer: offer(100),
    }
}

/// Connects, and tells the ids of both sides.
fn connect(network: &mut Network) -> (ConnectionId, ConnectionId) {
    network.managers[1].listen(network.now, SERVICE).expect("the service is free");
    let active = network.managers[0].connect(network.now, &call()).expect("it may connect");
    network.run(|network| network.requested().is_some());
    let passive = network.requested().expect("the request arrived");
    network.managers[1].accept(network.now, passive, offer(200)).expect("it was requested");
    network.run(|network| network.has(0, |event| matches!(event, Event::Replied { .. })));
    network.managers[0].establish(active).expect("it was answered");
    network.run(|network| network.has(1, |event| matches!(event, Event::Established(_))));
    (active, passive)
}

#[test]
fn a_connection_is_made_and_ended_whatever_is_lost() {
    for seed in 0..500 {
        let mut network = Network::new(seed, seed % 40);
        let (active, passive) = connect(&mut network);
        let [first, second] = &network.events;
        assert_eq!(
            second.iter().filter(|event| matches!(event, Event::Requested { .. })).count(),
            1,
            "{seed}"
        );
        assert_eq!(first.len(), 1, "seed {seed}: {first:?}");
        let closer = usize::from(seed % 2 == 1);
        let id = [active, passive][closer];
        network.managers[closer].disconnect(network.now, id).expect("it is up");
        network.run(|_| false);
        for host in 0..2 {
            let ends = network.events[host].iter().filter(|event| matches!(event, Event::Disconnected(_)));
            // The one who asks learns it in any case; the other may be told five times in vain.
            let told = ends.count();
            assert!(told == 1 || host != closer && told == 0, "seed {seed}, host {host}");
        }
    }
}

#[test]
fn both_sides_agree_on_the_queue_pairs() {
    let mut network = Network::new(7, 0);
    let (active, passive) = connect(&mut network);
    let at = |host: usize, id, to| network.managers[host].attributes(id, to).expect("it is connected");
    let receive = [at(0, active, State::ReadyToReceive), at(1, passive, State::ReadyToReceive)];
    let send = [at(0, active, State::ReadyToSend), at(1, passive, State::ReadyToSend)];
    for host in 0..2 {
        assert_eq!(receive[host].receive_psn, send[1 - host].send_psn);
        assert_eq!(receive[host].path_mtu, Some(Mtu::Mtu2048));
        // What one has in flight the other serves.
        assert_eq!(send[host].initiator_reads, receive[1 - host].destination_reads.map(|_| [4, 2][host]));
    }
    assert_eq!(receive[0].destination, Some(QueuePairNumber::new(200)));
    assert_eq!(receive[1].destination, Some(QueuePairNumber::new(100)));
    assert_eq!(send[1].rnr_retry, Some(5));
}

#[test]
fn a_service_that_nobody_listens_on_is_refused() {
    let mut network = Network::new(1, 20);
    network.managers[0].connect(network.now, &call()).expect("it may connect");
    network.run(|network| !network.events[0].is_empty());
    let [Event::Rejected { reason, .. }] = &network.events[0][..] else { panic!("{:?}", network.events[0]) };
    assert_eq!(*reason, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn the_applications_refusal_carries_its_words() {
    let mut network = Network::new(2, 30);
    network.managers[1].listen(network.now, SERVICE).expect("the service is free");
    network.managers[0].connect(network.now, &call()).expect("it may connect");
    network.run(|network| network.requested().is_some());
    let passive = network.requested().expect("the request arrived");
    network.managers[1]
        .reject(network.now, passive, RejectReason::CONSUMER_DEFINED, b"full")
        .expect("it was requested");
    network.run(|network| !network.events[0].is_empty());
    let Event::Rejected { reason, private, .. } = &network.events[0][0] else { panic!("not refused") };
    assert_eq!((*reason, &private[..4]), (RejectReason::CONSUMER_DEFINED, &b"full"[..]));
}

#[test]
fn a_peer_that_is_gone_is_reported_and_nothing_stays() {
    let mut network = Network::new(3, 100);
    let id = network.managers[0].connect(network.now, &call()).expect("it may connect");
    network.run(|_| false);
    assert_eq!(network.events[0], [Event::Unreachable(id), Event::TimeWaitOver(id)]);
    let waited = network.now.as_ps() / 1_000_000_000_000;
    assert!((40..70).contains(&waited), "{waited} s");
    assert_eq!(network.managers[0].disconnect(network.now, id), Err(CmError::Unknown));
}

#[test]
fn a_slow_application_is_waited_for() {
    let mut network = Network::new(4, 0);
    network.managers[1].listen(network.now, SERVICE).expect("the service is free");
    let active = network.managers[0].connect(network.now, &call()).expect("it may connect");
    // Two retries come, and are asked for patience.
    network.run(|network| network.now >= Time::from_ps(0) + Span::from_secs(20));
    assert!(network.events[0].is_empty(), "{:?}", network.events[0]);
    let passive = network.requested().expect("the request arrived");
    network.managers[1].accept(network.now, passive, offer(200)).expect("it was requested");
    network.run(|network| !network.events[0].is_empty());
    network.managers[0].establish(active).expect("it was answered");
}

#[test]
fn a_forgotten_connection_is_ended_without_a_word() {
    let mut network = Network::new(5, 10);
    let (active, passive) = connect(&mut network);
    network.managers[1].forget(network.now, passive);
    let before = network.events[1].len();
    network.run(|_| false);
    assert_eq!(network.events[1].len(), before);
    assert!(network.has(0, |event| *event == Event::Disconnected(active)));
}

#[test]
fn a_request_between_two_listeners_waits_for_the_second() {
    let mut network = Network::new(8, 0);
    let refused = |network: &Network| network.has(0, |event| matches!(event, Event::Rejected { .. }));
    network.managers[1].listen(network.now, SERVICE).expect("the service is free");
    network.managers[1].unlisten(network.now, SERVICE);
    network.managers[0].connect(network.now, &call()).expect("it may ask");
    let began = network.now;
    network.run(|network| network.now >= began + Span::from_ms(100) || !network.in_flight.is_empty());
    network.managers[1].listen(network.now, SERVICE).expect("the service is free again");
    network.run(|network| network.requested().is_some());
    assert!(network.requested().is_some() && !refused(&network));

    // Without a second listener it is refused in the end.
    network.managers[1].unlisten(network.now, SERVICE);
    network.managers[0].connect(network.now, &call()).expect("it may ask");
    network.run(refused);
    assert!(refused(&network));
}

#[test]
fn a_connection_whose_peer_is_gone_is_over() {
    let mut network = Network::new(9, 0);
    let (active, _) = connect(&mut network);
    network.managers[0].lost(network.now, active);
    assert_eq!(network.managers[0].poll_event(), Some(Event::Disconnected(active)));
    assert_eq!(network.managers[0].established().count(), 0);
}

#[test]
fn the_queue_pair_of_a_datagram_service_is_found() {
    for seed in 0..100 {
        let mut network = Network::new(seed, 30);
        network.managers[1].listen(network.now, SERVICE).expect("the service is free");
        network.managers[0].resolve(network.now, gid(1), SERVICE, b"who").expect("it may ask");
        let asked = |network: &Network| network.has(1, |event| matches!(event, Event::Resolving { .. }));
        network.run(asked);
        let question = network.events[1][0].connection();
        let answered =
            network.managers[1].answer(network.now, question, QueuePairNumber::new(9), 0x11, b"me");
        answered.expect("it was asked");
        network.run(|network| !network.events[0].is_empty());
        let Event::Resolved { status, queue_pair, queue_key, .. } = &network.events[0][0] else {
            panic!("seed {seed}: {:?}", network.events[0])
        };
        assert_eq!((*status, queue_pair.value(), *queue_key), (0, 9, 0x11));
    }
}

#[test]
fn garbage_and_private_data_that_is_too_long_do_nothing() {
    let mut network = Network::new(6, 0);
    for length in [0, 3, 24, 255, 256, 300] {
        network.managers[0].receive(network.now, gid(1), &vec![0xa5; length]);
    }
    assert!(network.managers[0].poll_transmit().is_none());
    let long = Call { offer: Offer { private: vec![0; 93], ..offer(1) }, ..call() };
    assert_eq!(network.managers[0].connect(network.now, &long), Err(CmError::PrivateData(92)));
}
