//! Payload through shared memory: the same results, and nothing for those who may not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "memory that an application unmaps")]

mod common;

use std::net::UdpSocket;

use common::{Pair, Side, config, pattern};
use railnet_live::memory::ProcessMemory;
use railnet_live::memory::application::ApplicationMemory;
use railnet_live::roce::{Config, Driver, Faults};
use railnet_nic::memory::{Memory, SpaceId};
use railnet_nic::{
    Access, Completion, Connection, Operation, QueuePairConfig, Remote, SendRequest, Service, Sge, Status,
};

const HALF: usize = 1 << 20;

/// At a port of its own, which others could share.
fn shared() -> Config {
    let mut config = config("127.0.0.1");
    config.address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    config.shared = true;
    config
}

/// Fills bytes from where a buffer is.
fn copy(memory: &ProcessMemory, space: SpaceId, address: u64, out: &mut [u8]) -> bool {
    let mut bytes = Vec::new();
    memory.read(space, address, out.len(), &mut bytes);
    out.copy_from_slice(&bytes);
    true
}

fn pair(enabled: [bool; 2]) -> Pair {
    let mut sides = [shared(), shared()].map(|config| Side::new(&config, 3 * HALF));
    for (side, enabled) in sides.iter_mut().zip(enabled) {
        if enabled {
            side.driver.enable_shared_memory(copy).unwrap();
        }
    }
    Pair::of(sides, |_| {})
}

/// Writes until payloads go through shared memory, as they do when both have heard of each other.
fn agree(pair: &mut Pair) {
    for round in 0..1000 {
        let [a, b] = &mut pair.0;
        a.send(SendRequest::new(round, Operation::Write(b.remote(0))).with(a.sge(0, 8192)));
        b.send(SendRequest::new(round, Operation::Write(a.remote(0))).with(b.sge(0, 8192)));
        pair.completions([1, 1]);
        if pair.0.iter().all(|side| side.driver.counters().shared > 0) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("nothing was shared: {:?}", pair.0[1].driver.counters());
}

#[test]
fn every_operation_moves_every_size_and_large_payloads_are_shared() {
    let mut pair = pair([true, true]);
    agree(&mut pair);
    for (seed, length) in [0, 1, 1023, 1024, 4096, 4097, 100_001, 300_000, HALF].into_iter().enumerate() {
        let [a, b] = &mut pair.0;
        let (sent, there) = (pattern(length, 2 * seed as u64), pattern(length, 2 * seed as u64 + 1));
        // Not where words begin.
        a.buffer.write(3, &sent);
        b.buffer.write(0, &there);
        b.receive(10, HALF, length);
        let before = [a.driver.counters().shared, b.driver.counters().shared];
        a.send(SendRequest::new(1, Operation::Send).with(a.sge(3, length)));
        a.send(SendRequest::new(2, Operation::Read(b.remote(0))).with(a.sge(2 * HALF, length)));
        let two = [a.sge(3, length / 2), a.sge(3 + length / 2, length - length / 2)];
        let write = SendRequest::new(3, Operation::Write(b.remote(2 * HALF)));
        a.send(two.into_iter().fold(write, SendRequest::with));
        let [done, received] = pair.completions([3, 1]);
        assert!(done.iter().all(|one| one.status == Status::Success), "{done:?}");
        assert_eq!(received[0].length as usize, length);
        let [a, b] = &pair.0;
        assert!(b.bytes(HALF, length) == sent, "SEND of {length} bytes");
        assert!(b.bytes(2 * HALF, length) == sent, "WRITE of {length} bytes in two parts");
        assert!(a.bytes(2 * HALF, length) == there, "READ of {length} bytes");
        // As many as there are slots for.
        let packets = (length as u64 / 4096).min(64);
        for (side, before) in pair.0.iter().zip(before) {
            let counters = side.driver.counters();
            assert!(counters.shared - before >= packets, "{length} bytes: {counters:?}");
            assert_eq!(counters.unshared, 0, "{counters:?}");
        }
    }
}

#[test]
fn packets_carry_their_bytes_to_those_who_share_no_memory() {
    for enabled in [[true, false], [false, true]] {
        let mut pair = pair(enabled);
        for round in 0..20 {
            let [a, b] = &mut pair.0;
            a.buffer.write(0, &pattern(HALF, round));
            a.send(SendRequest::new(round, Operation::Write(b.remote(0))).with(a.sge(0, HALF)));
            pair.completions([1, 0]);
            assert!(pair.0[1].bytes(0, HALF) == pattern(HALF, round));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(pair.0.iter().all(|side| side.driver.counters().shared == 0));
    }
    // Faults are of packets as they go over a wire.
    let mut config = shared();
    config.faults = Faults { drop: 10_000, ..Faults::NONE };
    assert!(Side::new(&config, 4096).driver.enable_shared_memory(copy).is_err());
    // Nobody else has the address of a driver that does not share it.
    assert!(Side::new(&common::config("127.0.0.1"), 4096).driver.enable_shared_memory(copy).is_err());
}

#[test]
fn a_capture_that_begins_later_ends_it_and_loses_nothing() {
    let mut pair = pair([true, true]);
    agree(&mut pair);
    pair.0[1].driver.capture(Box::new(std::io::sink())).unwrap();
    let before = pair.0.each_ref().map(|side| side.driver.counters().shared);
    for round in 0..20 {
        let [a, b] = &mut pair.0;
        a.buffer.write(0, &pattern(HALF, round));
        a.send(SendRequest::new(round, Operation::Write(b.remote(0))).with(a.sge(0, HALF)));
        b.send(SendRequest::new(round, Operation::Write(a.remote(HALF))).with(b.sge(HALF, HALF)));
        let done = pair.completions([1, 1]);
        assert!(done.iter().flatten().all(|one| one.status == Status::Success), "{done:?}");
        assert!(pair.0[1].bytes(0, HALF) == pattern(HALF, round));
    }
    assert_eq!(pair.0.each_ref().map(|side| side.driver.counters().shared), before);
}

/// Who does not know the token of a ring takes nothing from it.
#[test]
fn a_packet_that_names_a_slot_without_its_token_is_thrown_away() {
    let mut pair = pair([true, true]);
    agree(&mut pair);
    let [a, b] = &mut pair.0;
    let unauthenticated = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before = b.driver.counters();
    for token in [0_u64, 1, u64::MAX] {
        let mut datagram = vec![0xff, b'R', b'N', b'S'];
        datagram.extend(b.queue_pair.value().to_be_bytes());
        datagram.extend(token.to_be_bytes());
        datagram.extend(a.buffer.address().to_be_bytes());
        datagram.extend(4096_u16.to_be_bytes());
        // A packet whose parts are as they should be, but for the checksum.
        datagram.extend(16_u16.to_be_bytes());
        datagram.extend([0x07, 0, 0xff, 0xff]);
        datagram.extend(b.queue_pair.value().to_be_bytes());
        datagram.extend([0; 8]);
        datagram.resize(64, 0);
        unauthenticated.send_to(&datagram, b.driver.local()).unwrap();
        // And one that says that it is longer than it is.
        datagram[26..28].copy_from_slice(&60_000_u16.to_be_bytes());
        unauthenticated.send_to(&datagram, b.driver.local()).unwrap();
    }
    pair.drive("what came", |[_, b]| b.driver.counters().received >= before.received + 6);
    let after = pair.0[1].driver.counters();
    assert_eq!(after.shared, before.shared, "{after:?}");
    assert_eq!(after.unshared + after.malformed - before.unshared - before.malformed, 6, "{after:?}");
}

/// Pages that a program unmaps before they are sent: the same error as without this, and no crash.
#[test]
fn memory_that_is_gone_is_an_error_of_its_sender() {
    let length = 16 * 4096;
    // SAFETY: a fresh mapping.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let mut ends = Vec::new();
    for config in [shared(), shared()] {
        let mut driver = Driver::open(&config, ApplicationMemory::new().unwrap()).unwrap();
        driver.enable_shared_memory(ApplicationMemory::copy_to).unwrap();
        let domain = driver.nic_mut().alloc_pd();
        let space = driver.memory_mut().space(at as u64, at as u64);
        let key = driver.register(domain, space, at as u64, length as u64, Access::ALL).unwrap();
        let queue = driver.nic_mut().create_cq(64).unwrap();
        let config = QueuePairConfig::new(Service::ReliableConnection, queue);
        let queue_pair = driver.nic_mut().create_qp(domain, &config).unwrap();
        ends.push((driver, key, queue, queue_pair));
    }
    for (mine, theirs) in [(0, 1), (1, 0)] {
        let (address, gid, number) = (ends[theirs].0.local(), ends[theirs].0.gid(), ends[theirs].3);
        let own = ends[mine].3;
        ends[mine].0.connect(own, address, &Connection::to(gid, number)).unwrap();
    }
    let target = Remote { address: at as u64 + length as u64 / 2, key: ends[1].1 };
    let write = |length| {
        let sge = Sge { address: at as u64, length, key: ends[0].1 };
        SendRequest::new(1, Operation::Write(target)).with(sge)
    };
    let (small, large) = (write(4096), write(8192));
    let [(a, _, queue, number), (b, ..)] = &mut ends[..] else { unreachable!("two were made") };
    let outcome = |a: &mut Driver<ApplicationMemory>, b: &mut Driver<ApplicationMemory>| {
        let (limit, mut out) = (std::time::Instant::now() + common::LIMIT, [Completion::EMPTY; 4]);
        while a.poll_cq(*queue, &mut out) == 0 {
            a.progress().unwrap();
            b.progress().unwrap();
            assert!(std::time::Instant::now() < limit);
        }
        out[0].status
    };
    while b.counters().shared == 0 {
        a.post_send(*number, small.clone()).unwrap();
        assert_eq!(outcome(a, b), Status::Success);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // SAFETY: it was mapped above, and only guarded copies go there.
    unsafe { libc::munmap(at, length) };
    a.post_send(*number, large).unwrap();
    assert_eq!(outcome(a, b), Status::LocalProtection);
}

/// Slots of packets that were lost are used again after a while, and nothing is lost for good meanwhile.
#[test]
fn slots_of_packets_that_were_lost_come_back() {
    let mut pair = pair([true, true]);
    agree(&mut pair);
    // More than the receiver's socket keeps, and nobody reads it.
    for round in 0..40 {
        let [a, b] = &mut pair.0;
        a.send(SendRequest::new(round, Operation::Write(b.remote(0))).with(a.sge(0, HALF)));
        a.driver.flush_sends();
    }
    let [done, _] = pair.completions([40, 0]);
    assert!(done.iter().all(|one| one.status == Status::Success), "{done:?}");
    std::thread::sleep(std::time::Duration::from_millis(600));
    let before = pair.0[1].driver.counters().shared;
    for round in 0..8 {
        let [a, b] = &mut pair.0;
        a.buffer.write(0, &pattern(HALF, round));
        a.send(SendRequest::new(round, Operation::Write(b.remote(0))).with(a.sge(0, HALF)));
        pair.completions([1, 0]);
        assert!(pair.0[1].bytes(0, HALF) == pattern(HALF, round));
    }
    let shared = pair.0[1].driver.counters().shared - before;
    assert!(shared > 256, "{shared} of 2,048 packets: all slots but a few should be free");
}
