//! The NIC on real sockets: every operation, both versions of IP, faults, unauthenticated peers, captures.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it leaves out"
)]

mod common;

use std::fs;
use std::net::UdpSocket;
use std::process::Command;

use common::{Pair, Side, config, pattern};
use railnet_core::{QueuePairNumber, Span};
use railnet_live::roce::{Arrival, Config, Driver, Endpoint, Error, Faults};
use railnet_nic::control::{ControlConfig, DcqcnParameters};
use railnet_nic::recovery::RecoveryKind;
use railnet_nic::{
    Connection, DropReason, Mtu, Operation, QueuePairConfig, Remote, SendRequest, Service, Status,
};
use railnet_wire::capture::Reader;
use railnet_wire::{Frame, Gid, ICRC_LENGTH, Identification, Network, Opcode, SEGMENTS_MAX};

const HALF: usize = 1 << 20;

/// Whether this host can have a socket at this address.
fn has(address: &str) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn one_of_each(pair: &mut Pair, length: usize) {
    let [a, b] = &mut pair.0;
    let (sent, there) = (pattern(length, 1), pattern(length, 2));
    a.buffer.write(0, &sent);
    b.buffer.write(0, &there);
    b.buffer.store(2 * HALF, 5);
    b.receive(10, HALF, length);
    a.send(SendRequest::new(1, Operation::Send).with(a.sge(0, length)));
    a.send(SendRequest::new(2, Operation::Read(b.remote(0))).with(a.sge(HALF, length)));
    let add = Operation::FetchAdd { remote: b.remote(2 * HALF), add: 7 };
    a.send(SendRequest::new(3, add).with(a.sge(2 * HALF, 8)));
    let [done, received] = pair.completions([3, 1]);
    assert_eq!(
        done.iter().map(|one| (one.work, one.status)).collect::<Vec<_>>(),
        [(1, Status::Success), (2, Status::Success), (3, Status::Success)]
    );
    assert_eq!((received[0].work, received[0].length as usize), (10, length));
    let [a, b] = &mut pair.0;
    assert!(b.bytes(HALF, length) == sent, "SEND of {length} bytes");
    assert!(a.bytes(HALF, length) == there, "READ of {length} bytes");
    assert_eq!((a.buffer.load(2 * HALF), b.buffer.load(2 * HALF)), (5, 12));
    a.send(SendRequest::new(4, Operation::Write(b.remote(HALF))).with(a.sge(HALF, length)));
    pair.completions([1, 0]);
    assert!(pair.0[1].bytes(HALF, length) == there, "WRITE of {length} bytes");
}

#[test]
fn every_operation_moves_every_size_over_both_versions_of_ip() {
    for address in ["127.0.0.1", "::1"].into_iter().filter(|address| has(address)) {
        for mtu in [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096] {
            let configs = [config(address), config(address)];
            let mut pair = Pair::new(configs, 3 * HALF, |connection| connection.mtu = mtu);
            for length in [0, 1, 3, 256, 1000, 4096, 4097, 100_001, HALF] {
                one_of_each(&mut pair, length);
            }
            for side in &pair.0 {
                let dropped = |reason| side.driver.nic().counters().dropped(reason);
                assert_eq!(side.driver.counters().malformed, 0);
                assert_eq!((dropped(DropReason::BadIcrc), dropped(DropReason::Address)), (0, 0));
                assert_eq!(side.driver.counters().refused, 0, "{:?}", side.driver.last_refusal());
            }
        }
    }
}

#[test]
fn one_send_carries_many_packets_and_an_acknowledgement_rides_behind_data() {
    let mut pair = Pair::plain("127.0.0.1", 3 * HALF);
    let [a, b] = &mut pair.0;
    a.send(SendRequest::new(1, Operation::Write(b.remote(0))).with(a.sge(0, HALF)));
    pair.completions([1, 0]);
    let counters = pair.0[0].driver.counters();
    assert!(counters.sent >= 256, "{counters:?}");
    if counters.sends < counters.sent {
        assert!(counters.sends < 40, "{counters:?}");
    }
    // Both write at once: each acknowledgement finds data to go with.
    let before = pair.0.each_ref().map(|side| side.driver.counters());
    for round in 0..100 {
        let [a, b] = &mut pair.0;
        a.buffer.store(8, round + 1);
        a.send(SendRequest::new(1, Operation::Write(b.remote(16))).with(a.sge(8, 8)).unsignaled());
        pair.drive("a ping", |[_, b]| b.buffer.load(16) == round + 1);
        let [a, b] = &mut pair.0;
        b.send(SendRequest::new(1, Operation::Write(a.remote(16))).with(b.sge(16, 8)).unsignaled());
        pair.drive("a pong", |[a, _]| a.buffer.load(16) == round + 1);
    }
    for (side, before) in pair.0.iter().zip(&before) {
        let counters = side.driver.counters();
        assert!(counters.sends - before.sends <= 102, "{counters:?}");
        assert!(counters.sent - before.sent >= 199, "{counters:?}");
    }
}

#[test]
fn acknowledgements_that_came_while_a_thread_was_not_on_its_core_count_before_timeouts() {
    let configs = [config("127.0.0.1"), config("127.0.0.1")];
    // 8 µs.
    let mut pair = Pair::new(configs, 3 * HALF, |connection| connection.timeout = 1);
    let [a, b] = &mut pair.0;
    let length = 16 << 10;
    a.send(SendRequest::new(1, Operation::Write(b.remote(0))).with(a.sge(0, length)));
    a.driver.progress().unwrap();
    let sent = a.driver.nic().counters().sent;
    while b.driver.nic().counters().sent == 0 {
        b.driver.progress().unwrap();
    }
    // The acknowledgement is in the socket, and the retransmission timer is due.
    while a.driver.next_timeout() != Some(std::time::Duration::ZERO) {
        std::hint::spin_loop();
    }
    assert!(a.driver.progress().unwrap(), "there is a completion to be taken");
    let counters = a.driver.nic().counters();
    assert_eq!((counters.timeouts, counters.resent, counters.sent), (0, 0, sent));
    assert_eq!(a.completions().len(), 1);
}

#[test]
fn a_bad_wire_loses_nothing() {
    let five_percent = 50_000;
    let faults = |seed| Faults {
        drop: five_percent,
        duplicate: five_percent,
        reorder: five_percent,
        delay: five_percent,
        corrupt: five_percent,
        hold: Span::from_us(300),
        seed,
    };
    let selective = RecoveryKind::SelectiveRepeat { window: 64, reordering: Span::from_us(100) };
    for recovery in [RecoveryKind::GoBackN, RecoveryKind::Reorder { window: 64 }, selective] {
        let configs = [1, 2].map(|seed| {
            let mut config = Config { faults: faults(seed), ..config("127.0.0.1") };
            config.nic.recovery = recovery;
            // A wire this bad uses up seven retries now and then: what is tested is that the data is right.
            config.nic.behaviour.retry_seven_is_infinite = true;
            config
        });
        let mut pair = Pair::new(configs, 3 * HALF, |connection| connection.timeout = 8);
        for length in [0, 5, 1000, 20_000, 100_000, 300_000] {
            one_of_each(&mut pair, length);
        }
        for side in &pair.0 {
            let faults = side.driver.counters().faults;
            let all = [faults.dropped, faults.duplicated, faults.reordered, faults.delayed, faults.corrupted];
            assert!(all.iter().all(|&count| count > 0), "{recovery:?}: {faults:?}");
            assert!(side.driver.nic().counters().dropped(DropReason::BadIcrc) > 0, "{recovery:?}");
        }
    }
}

#[test]
fn packets_of_unauthenticated_peers_change_nothing_and_are_counted() {
    let mut pair = Pair::plain("127.0.0.1", 4096);
    let [a, b] = &mut pair.0;
    a.buffer.write(0, &[7; 64]);
    let target = b.driver.local();
    // A true packet, as it goes from a to b, to make false ones of.
    let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
    listener.set_read_timeout(Some(common::LIMIT)).unwrap();
    let mut twin = Side::new(&config("127.0.0.1"), 4096);
    let connection = railnet_nic::Connection::to(b.driver.gid(), b.queue_pair);
    twin.driver.connect(twin.queue_pair, listener.local_addr().unwrap(), &connection).unwrap();
    twin.send(SendRequest::new(1, Operation::Write(b.remote(1024))).with(twin.sge(0, 64)));
    twin.driver.progress().unwrap();
    let mut packet = [0; 512];
    let length = listener.recv(&mut packet).unwrap();
    let packet = &packet[..length];

    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut unlike = packet.to_vec();
    unlike[5..8].copy_from_slice(&0x00_0002_u32.to_be_bytes()[1..]);
    let garbage = pattern(100, 3);
    // The ICRC covers ports: the packet is not right on another way, however true it was.
    for bytes in [packet, &unlike, &garbage, &packet[..10], &packet[..40], &[]] {
        forger.send_to(bytes, target).unwrap();
    }
    a.send(SendRequest::new(2, Operation::Write(b.remote(0))).with(a.sge(0, 64)));
    pair.completions([1, 0]);
    let b = &pair.0[1];
    let (driver, counters) = (b.driver.counters(), b.driver.nic().counters());
    assert!(driver.malformed >= 2, "{driver:?}");
    assert_eq!(driver.malformed + counters.dropped(DropReason::BadIcrc), 6, "{driver:?}");
    assert_eq!(b.bytes(0, 64), [7; 64]);
    assert_eq!(b.bytes(1024, 64), [0; 64]);
}

#[test]
fn a_peer_at_another_address_is_no_peer() {
    let mut pair = Pair::plain("127.0.0.1", 4096);
    let b = &mut pair.0[1];
    let mut other = Side::new(&config("127.0.0.2"), 4096);
    let connection = railnet_nic::Connection::to(b.driver.gid(), b.queue_pair);
    other.driver.connect(other.queue_pair, b.driver.local(), &connection).unwrap();
    other.send(SendRequest::new(1, Operation::Write(b.remote(0))).with(other.sge(0, 64)));
    other.driver.progress().unwrap();
    pair.drive("the packet of another address", |[_, b]| {
        b.driver.nic().counters().dropped(DropReason::Address) == 1
    });
}

#[test]
fn a_wrong_key_is_refused_and_writes_nothing() {
    let mut pair = Pair::plain("127.0.0.1", 8192);
    let [a, b] = &mut pair.0;
    a.buffer.write(0, &[9; 8192]);
    let remote = Remote { key: railnet_nic::Key(b.key.0 ^ 0x0100), ..b.remote(0) };
    a.send(SendRequest::new(1, Operation::Write(remote)).with(a.sge(0, 8192)));
    let [done, _] = pair.completions([1, 0]);
    assert_eq!(done[0].status, Status::RemoteAccess);
    assert_eq!(pair.0[1].bytes(0, 8192), [0; 8192]);
}

#[test]
fn a_peer_that_is_gone_is_an_error_after_the_retries() {
    let mut pair = Pair::new([config("127.0.0.1"), config("127.0.0.1")], 4096, |connection| {
        (connection.timeout, connection.retry_count) = (5, 2);
    });
    let [a, b] = &mut pair.0;
    a.send(SendRequest::new(1, Operation::Write(b.remote(0))).with(a.sge(0, 64)));
    let [a, _] = &mut pair.0;
    let limit = std::time::Instant::now() + common::LIMIT;
    let done = loop {
        a.driver.wait(std::time::Duration::from_millis(1)).unwrap();
        if let Some(done) = a.completions().first() {
            break *done;
        }
        assert!(std::time::Instant::now() < limit);
    };
    assert_eq!(done.status, Status::RetryExceeded);
}

#[test]
fn marks_of_the_network_are_seen_and_answered() {
    for address in ["127.0.0.1", "::1"].into_iter().filter(|address| has(address)) {
        let configs = [config(address), config(address)].map(|mut config| {
            config.nic.control = ControlConfig::Dcqcn(DcqcnParameters::connectx());
            config
        });
        // What leaves marked arrives marked: the same as a switch that marks.
        let mut pair = Pair::new(configs, HALF, |connection| connection.path.traffic_class = 0b11);
        let [a, b] = &mut pair.0;
        let sent = pattern(HALF, 4);
        a.buffer.write(0, &sent);
        // A pace that every mark slows down still gets there.
        a.send(SendRequest::new(1, Operation::Write(b.remote(0))).with(a.sge(0, HALF)));
        pair.drive("a notification", |[a, _]| a.driver.nic().counters().notifications_received > 0);
        pair.completions([1, 0]);
        assert!(pair.0[1].driver.nic().counters().notifications_sent > 0);
        assert!(pair.0[1].bytes(0, HALF) == sent);
    }
}

#[test]
fn packets_carry_their_class_and_the_source_port_of_their_connection() {
    for address in ["127.0.0.1", "::1"].into_iter().filter(|address| has(address)) {
        let mut side = Side::new(&config(address), 4096);
        // What the network sees: a socket that is no NIC.
        let network = Endpoint::bind(std::net::SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        network.prepare_receive(1 << 16, false).unwrap();
        let domain = side.driver.nic_mut().alloc_pd();
        let mut ports = Vec::new();
        for number in 0..20_u32 {
            let settings = QueuePairConfig::new(Service::ReliableConnection, side.queue);
            let queue_pair = side.driver.nic_mut().create_qp(domain, &settings).unwrap();
            let (destination, class) = (QueuePairNumber::new(0x77 + number), (number as u8) << 2 | 0b10);
            let mut connection = Connection::to(side.driver.gid(), destination);
            connection.path.traffic_class = class;
            // As a conduit does it: through the NIC that it is lent.
            let (nic, mut cx) = side.driver.lend();
            for change in connection.transitions() {
                nic.modify_qp(&mut cx, queue_pair, &change).unwrap();
            }
            side.driver.route(queue_pair, network.local(), &connection.path).unwrap();
            side.driver.post_send(queue_pair, SendRequest::new(1, Operation::Send)).unwrap();
            side.driver.progress().unwrap();
            let arrival = arrival(&network);
            assert_eq!(arrival.traffic_class, class);
            let expected = railnet_wire::udp_source_port(0, queue_pair, destination);
            // Somebody else may have that port, and then it is another.
            ports.push((arrival.from.port(), arrival.from.port() == expected));
            side.driver.destroy(queue_pair).unwrap();
        }
        assert!(ports.iter().filter(|(_, is_expected)| *is_expected).count() >= 15, "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() >= 15, "{ports:?}");
    }
}

/// The next datagram.
fn arrival(socket: &Endpoint) -> Arrival {
    let limit = std::time::Instant::now() + common::LIMIT;
    loop {
        if let Some(arrival) = socket.receive(&mut [0; 1 << 12]).unwrap() {
            return arrival;
        }
        assert!(std::time::Instant::now() < limit, "nothing came");
    }
}

#[test]
fn a_loop_of_the_callers_own_is_woken_by_packets_and_timers() {
    let mut pair = Pair::new([config("127.0.0.1"), config("127.0.0.1")], 4096, |connection| {
        connection.timeout = 10;
    });
    let [a, b] = &mut pair.0;
    assert_eq!(a.driver.next_timeout(), None);
    a.buffer.store(0, 7);
    a.send(SendRequest::new(1, Operation::Write(b.remote(8))).with(a.sge(0, 8)));
    while a.driver.progress().unwrap() {}
    // The acknowledgement timeout runs, and the peer's descriptor can be read.
    let until = a.driver.next_timeout().unwrap();
    assert!(until > std::time::Duration::ZERO && until < common::LIMIT, "{until:?}");
    let readable = |side: &Side, limit: i64| {
        let limit = rustix::event::Timespec { tv_sec: limit, tv_nsec: 0 };
        let mut descriptors = [rustix::event::PollFd::new(&side.driver, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut descriptors, Some(&limit)).unwrap() > 0
    };
    assert!(readable(b, 30));
    assert!(!readable(a, 0));
    while b.driver.progress().unwrap() {}
    assert_eq!(b.buffer.load(8), 7);
    assert!(readable(a, 30), "the acknowledgement");
    while a.driver.progress().unwrap() {}
    assert_eq!(a.completions().len(), 1);
    // A timer that is no longer needed may ring once more, and then there is none.
    let limit = std::time::Instant::now() + common::LIMIT;
    while let Some(until) = a.driver.next_timeout() {
        a.driver.wait(until).unwrap();
        assert!(std::time::Instant::now() < limit);
    }
    assert_eq!(a.driver.nic().counters().resent, 0);
}

/// A buffer that a test can read while the driver writes it.
#[derive(Clone, Default)]
struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_holds_both_ways_with_right_checks() {
    // All of 127.0.0.0/8 is this host: an address of our own has port 4791 free.
    let number = std::process::id();
    let own = |last: u8| format!("127.{}.{}.{last}", 64 + (number >> 8 & 63), number & 0xff);
    let configs = [own(1), own(2)].map(|address| Config::new(format!("{address}:4791").parse().unwrap()));
    let mut pair = Pair::new(configs, 3 * HALF, |connection| connection.mtu = Mtu::Mtu1024);
    let file = Shared::default();
    pair.0[0].driver.capture(Box::new(file.clone())).unwrap();
    one_of_each(&mut pair, 20_000);
    pair.0[0].driver.finish_capture().unwrap();
    let (sent, received) = {
        let counters = pair.0[0].driver.counters();
        (counters.sent, counters.received)
    };
    let bytes = file.0.lock().unwrap().clone();
    let mut opcodes = Vec::new();
    for packet in Reader::new(&bytes[..]).unwrap() {
        let packet = packet.unwrap();
        let Ok(Frame::Roce(roce)) = packet.frame() else { panic!("{:?}", packet.frame()) };
        assert!(roce.icrc.is_good(), "{roce:?}");
        opcodes.push(roce.headers.bth.opcode);
    }
    assert_eq!(opcodes.len() as u64, sent + received);
    for expected in [Opcode::RcSendFirst, Opcode::RcReadResponseMiddle, Opcode::RcAtomicAcknowledge] {
        assert!(opcodes.contains(&expected), "{expected:?}");
    }
    tshark_agrees(&bytes, opcodes.len());
}

/// Where tshark is installed, it finds RoCEv2 in every packet and nothing wrong with any.
fn tshark_agrees(capture: &[u8], packets: usize) {
    let path = std::env::temp_dir().join(format!("railnet-live-{}.pcapng", std::process::id()));
    fs::write(&path, capture).unwrap();
    let output = Command::new("tshark")
        .args(["-r", path.to_str().unwrap(), "-T", "fields", "-e", "infiniband.bth.opcode"])
        .args(["-o", "udp.check_checksum:TRUE", "-e", "_ws.malformed", "-e", "udp.checksum.status"])
        .output();
    fs::remove_file(&path).unwrap();
    let Ok(output) = output else {
        // The packets were parsed above; tshark is a second opinion.
        eprintln!("left out: tshark is not installed");
        return;
    };
    let lines: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), packets);
    for line in lines {
        let fields: Vec<_> = line.split('\t').collect();
        assert!(!fields[0].is_empty() && fields[1].is_empty() && fields[2] == "1", "{line}");
    }
}

#[test]
fn addresses_that_cannot_be_are_refused_with_words() {
    let open = |address: &str| {
        Driver::open(&Config::new(address.parse().unwrap()), railnet_live::memory::ProcessMemory::default())
    };
    assert!(matches!(open("0.0.0.0:0"), Err(Error::Unspecified(_))));
    let error = open("192.0.2.1:4791").unwrap_err();
    assert!(error.to_string().starts_with("cannot receive at 192.0.2.1:4791"), "{error}");
    let mut pair = Pair::plain("127.0.0.1", 64);
    let (queue_pair, gid) = (pair.0[0].queue_pair, pair.0[1].driver.gid());
    let connection = railnet_nic::Connection::to(gid, queue_pair);
    let error = pair.0[0].driver.connect(queue_pair, "[::1]:1".parse().unwrap(), &connection).unwrap_err();
    assert_eq!(error.to_string().matches("IPv6").count(), 1, "{error}");
}

/// What a queue pair does with a WRITE of a peer that numbers its packets, as rdma_rxe of old kernels and hardware do: whether the data
/// arrived, and packets with a bad ICRC. Such a peer is a socket here, and its packet one of a NIC with another ICRC.
fn numbered(accepted: Identification, identification: u16) -> (bool, u64) {
    let mut side = Side::new(&Config { accepted, ..config("127.0.0.1") }, 4096);
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(common::LIMIT)).unwrap();
    let (own, address) = (side.driver.local(), peer.local_addr().unwrap());
    let mut template = Side::new(&config("127.0.0.1"), 4096);
    let connection = Connection::to(side.driver.gid(), template.queue_pair);
    side.driver.connect(side.queue_pair, address, &connection).unwrap();
    let connection = Connection::to(side.driver.gid(), side.queue_pair);
    template.driver.connect(template.queue_pair, address, &connection).unwrap();
    template.buffer.write(0, &[7; 64]);
    let write = Operation::Write(side.remote(1024));
    template.send(SendRequest::new(1, write).with(template.sge(0, 64)));
    template.driver.progress().unwrap();
    let mut packet = [0; 512];
    let length = peer.recv(&mut packet).unwrap() - ICRC_LENGTH;
    let network = Network {
        source: Gid::from_ip(address.ip()),
        target: Gid::from_ip(own.ip()),
        source_port: address.port(),
        target_port: own.port(),
        traffic_class: 0,
        hop_limit: 64,
        identification,
        flow_label: 0,
    };
    let icrc = railnet_wire::icrc::of_datagram(&network, &packet[..length]);
    packet[length..][..ICRC_LENGTH].copy_from_slice(&icrc.to_le_bytes());
    peer.send_to(&packet[..length + ICRC_LENGTH], own).unwrap();
    let limit = std::time::Instant::now() + common::LIMIT;
    while side.driver.counters().received == 0 {
        side.driver.wait(std::time::Duration::from_millis(1)).unwrap();
        side.driver.progress().unwrap();
        assert!(std::time::Instant::now() < limit, "the packet has not arrived");
    }
    (side.bytes(1024, 64) == [7; 64], side.driver.nic().counters().dropped(DropReason::BadIcrc))
}

#[test]
fn a_peer_that_numbers_its_packets_is_understood_where_that_is_asked_for() {
    for identification in [0, 1, 64, 4711, u16::MAX] {
        assert_eq!(numbered(Identification::Any, identification), (true, 0), "{identification}");
        let is_segment = u32::from(identification) < SEGMENTS_MAX as u32;
        let expected = (is_segment, u64::from(!is_segment));
        assert_eq!(numbered(Identification::SEGMENTS, identification), expected, "{identification}");
    }
}
