//! Packets that no peer sent: what an attacker gets who knows queue pair, sequence number and keys, and sends from the peer's
//! own address. Each attack is first tried where nothing guards against it: there it succeeds.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::Write;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use common::{Pair, config, pattern};
use railnet_core::Span;
use railnet_live::roce::{Faults, Guard, SessionKeys};
use railnet_nic::{Operation, Path, SendRequest, Status};
use railnet_wire::capture::Reader;
use railnet_wire::{
    Authentication, Bth, Extended, Extension, Frame, Gid, Headers, Network, Opcode, Reth, RocePacket,
    datagram_length, seal_datagram_with,
};

const BYTES: usize = 1 << 20;

/// How the queue pairs of a pair are guarded.
fn guarded(exact_port: bool, keys: Option<[[u8; 16]; 2]>) -> Pair {
    guarded_with(exact_port, keys, Faults::NONE)
}

fn guarded_with(exact_port: bool, keys: Option<[[u8; 16]; 2]>, faults: Faults) -> Pair {
    let configs = [1, 2].map(|seed| {
        let mut config = config("127.0.0.1");
        config.faults = Faults { seed, ..faults };
        config.nic.behaviour.retry_seven_is_infinite = true;
        config
    });
    let mut pair = Pair::new(configs, BYTES, |connection| connection.timeout = 8);
    let addresses = pair.0.each_ref().map(|side| side.driver.local());
    for (index, side) in pair.0.iter_mut().enumerate() {
        let session = keys.map(|keys| {
            side.driver.add_session(&SessionKeys { send: keys[index], receive: keys[1 - index] })
        });
        let (peer, guard) = (addresses[1 - index], Guard { exact_port, session });
        let path = Path::to(Gid::from_ip(peer.ip()));
        side.driver.route_guarded(side.queue_pair, peer, &path, guard).unwrap();
    }
    pair
}

const KEYS: [[u8; 16]; 2] = [[1; 16], [2; 16]];

/// An attacker on the peer's own address.
struct Attacker(UdpSocket);

impl Attacker {
    fn new() -> Self {
        Self(UdpSocket::bind("127.0.0.1:0").unwrap())
    }

    /// Sends a packet to a driver, with the ICRC that belongs there, and with a trailer where one is given.
    fn send(&self, pair: &Pair, headers: &Headers, payload: &[u8], trailer: Option<Authentication>) {
        let target = pair.0[1].driver.local();
        let network = Network {
            source: Gid::from_ip(target.ip()),
            target: Gid::from_ip(target.ip()),
            source_port: self.0.local_addr().unwrap().port(),
            target_port: target.port(),
            traffic_class: 0,
            hop_limit: 64,
            identification: 0,
            flow_label: 0,
        };
        let none = Extension::NONE;
        let trailer_bytes = trailer.map_or(0, |_| Authentication::LENGTH);
        let mut bytes = vec![0; datagram_length(headers, &none, payload.len()) + trailer_bytes];
        bytes[headers.length()..][..payload.len()].copy_from_slice(payload);
        let mut make = trailer.map(|trailer| move |_: &[u8]| trailer);
        let make = make.as_mut().map(|make| make as railnet_wire::Authenticate<'_>);
        seal_datagram_with(&mut bytes, &network, headers, &none, payload.len(), None, make);
        self.0.send_to(&bytes, target).unwrap();
    }

    /// A WRITE of 64 bytes of 0xee to the beginning of the victim's memory, at the sequence number that is expected next.
    fn write(&self, pair: &Pair, trailer: Option<Authentication>) {
        let victim = &pair.0[1];
        let info = pair.0[0].driver.nic().query_qp(pair.0[0].queue_pair).unwrap();
        let bth = Bth::new(Opcode::RcWriteOnly, victim.queue_pair, info.send_psn);
        let bth = Bth { ack_request: true, ..bth };
        let remote = victim.remote(0);
        let reth = Reth { address: remote.address, key: remote.key.0, length: 64 };
        self.send(pair, &Headers { bth, extended: Extended::Reth(reth) }, &[0xee; 64], trailer);
    }
}

/// Drives the victim until it has taken in so many more datagrams.
fn take(pair: &mut Pair, datagrams: u64) {
    let before = pair.0[1].driver.counters().received;
    pair.drive("datagrams", |[_, victim]| victim.driver.counters().received >= before + datagrams);
}

/// A true WRITE still works, and nothing that was forged changed anything or was answered.
fn assert_unharmed(pair: &mut Pair) {
    let b = &pair.0[1];
    assert_eq!((b.driver.counters().sent, b.bytes(0, 64)), (0, vec![0; 64]), "a forged packet was answered");
    let [a, b] = &mut pair.0;
    a.buffer.write(0, &[7; 64]);
    a.send(SendRequest::new(1, Operation::Write(b.remote(128))).with(a.sge(0, 64)));
    let [done, _] = pair.completions([1, 0]);
    assert_eq!(done[0].status, Status::Success);
    let b = &pair.0[1];
    assert_eq!((b.bytes(128, 64), b.bytes(0, 64)), (vec![7; 64], vec![0; 64]));
}

#[test]
fn forged_packets_from_another_port_are_thrown_away_and_not_answered() {
    let mut open = Pair::plain("127.0.0.1", BYTES);
    let attacker = Attacker::new();
    attacker.write(&open, None);
    take(&mut open, 1);
    assert_eq!(open.0[1].bytes(0, 64), [0xee; 64], "the attack is a real one");

    let mut pair = guarded(true, None);
    pair.0[1].receive(1, 0, 64);
    attacker.write(&pair, None);
    // An empty SEND, which would use up a receive.
    let info = pair.0[0].driver.nic().query_qp(pair.0[0].queue_pair).unwrap();
    let bth = Bth::new(Opcode::RcSendOnly, pair.0[1].queue_pair, info.send_psn);
    attacker.send(&pair, &Headers { bth, extended: Extended::None }, &[], None);
    // One that a NAK would answer, if anything did.
    let bth = Bth { psn: railnet_core::Psn::new(info.send_psn.value().wrapping_add(5)), ..bth };
    attacker.send(&pair, &Headers { bth, extended: Extended::None }, &[], None);
    take(&mut pair, 3);
    assert_eq!(pair.0[1].driver.counters().forged_port, 3);
    assert_eq!(pair.0[1].driver.nic().counters().received, 0);
    assert!(pair.0[1].completions().is_empty(), "the receive is still there");
    assert_unharmed(&mut pair);
}

#[test]
fn packets_without_the_right_code_are_thrown_away_and_not_answered() {
    let mut pair = guarded(false, Some(KEYS));
    let attacker = Attacker::new();
    attacker.write(&pair, None);
    for counter in [0, 1, u64::MAX] {
        attacker.write(&pair, Some(Authentication { counter, tag: [3; 16] }));
    }
    take(&mut pair, 4);
    let counters = pair.0[1].driver.counters();
    assert_eq!((counters.forged_code, counters.replayed), (3, 1), "a counter of 0 never was: {counters:?}");
    assert_eq!(pair.0[1].driver.nic().counters().received, 0);
    assert_unharmed(&mut pair);
}

/// Every number of queue pairs and sequence numbers that a scan would try is answered by nothing.
#[test]
fn a_scan_is_an_oracle_of_nothing() {
    let mut pair = guarded(true, None);
    let attacker = Attacker::new();
    let victim = pair.0[1].queue_pair;
    let mut tried = 0;
    for step in 0..200_u32 {
        for psn in [0, 1 << 22, 1 << 23, 3 << 22] {
            let number = railnet_core::QueuePairNumber::new(
                victim.value().wrapping_add(step).wrapping_sub(100) & 0xff_ffff,
            );
            let bth = Bth {
                ack_request: true,
                ..Bth::new(Opcode::RcSendOnly, number, railnet_core::Psn::new(psn))
            };
            attacker.send(&pair, &Headers { bth, extended: Extended::None }, &[], None);
            tried += 1;
        }
        take(&mut pair, 4);
    }
    assert_eq!(tried, 800);
    assert_eq!(pair.0[1].driver.counters().forged_port, 4);
    assert_unharmed(&mut pair);
}

/// A capture that can be read while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn packets_that_were_overheard_do_nothing_when_they_are_sent_again_or_changed() {
    let mut pair = guarded(false, Some(KEYS));
    let overheard = Shared::default();
    pair.0[0].driver.capture(Box::new(overheard.clone())).unwrap();
    let [a, b] = &mut pair.0;
    a.buffer.write(0, &pattern(5000, 1));
    a.send(SendRequest::new(1, Operation::Write(b.remote(0))).with(a.sge(0, 5000)));
    pair.completions([1, 0]);
    pair.0[0].driver.finish_capture().unwrap();
    pair.0[1].buffer.write(0, &[0; 5000]);
    let before = pair.0[1].driver.counters();
    let taken = pair.0[1].driver.nic().counters().received;

    let bytes = overheard.0.lock().unwrap().clone();
    let attacker = Attacker::new();
    let (mut packets, mut tampered) = (0, 0);
    for record in Reader::new(&bytes[..]).unwrap() {
        let record = record.unwrap();
        let Ok(Frame::Roce(RocePacket { headers, payload, authentication: Some(trailer), .. })) =
            Frame::parse_ip(&record.bytes)
        else {
            panic!("all that went over the wire was authenticated");
        };
        if headers.bth.destination != pair.0[1].queue_pair {
            continue;
        }
        packets += 1;
        attacker.send(&pair, &headers, payload, Some(trailer));
        // With a counter that never was the code is wrong.
        attacker.send(
            &pair,
            &headers,
            payload,
            Some(Authentication { counter: trailer.counter + 100, ..trailer }),
        );
        let mut other = payload.to_vec();
        if let Some(byte) = other.first_mut() {
            *byte ^= 1;
            tampered += 1;
            attacker.send(
                &pair,
                &headers,
                &other,
                Some(Authentication { counter: trailer.counter + 100, ..trailer }),
            );
        }
    }
    assert!(packets >= 2 && tampered >= 2, "{packets} and {tampered}");
    take(&mut pair, 2 * packets + tampered);
    let (counters, nic) = (pair.0[1].driver.counters(), pair.0[1].driver.nic().counters());
    assert_eq!(counters.replayed - before.replayed, packets);
    assert_eq!(counters.forged_code - before.forged_code, packets + tampered);
    assert_eq!((nic.received, pair.0[1].bytes(0, 5000)), (taken, vec![0; 5000]));
}

#[test]
fn authenticated_peers_carry_all_over_a_bad_wire() {
    let share = 50_000;
    let faults = Faults {
        drop: share,
        duplicate: share,
        reorder: share,
        delay: share,
        corrupt: share,
        hold: Span::from_us(300),
        seed: 1,
    };
    for faults in [Faults::NONE, faults] {
        let mut pair = guarded_with(false, Some(KEYS), faults);
        for length in [0, 1, 4097, 300_001] {
            let [a, b] = &mut pair.0;
            let (there, back) = (pattern(length, 3), pattern(length, 4));
            a.buffer.write(0, &there);
            b.buffer.write(0, &back);
            a.send(SendRequest::new(1, Operation::Write(b.remote(BYTES / 2))).with(a.sge(0, length)));
            a.send(SendRequest::new(2, Operation::Read(b.remote(0))).with(a.sge(BYTES / 2, length)));
            let [done, _] = pair.completions([2, 0]);
            assert!(done.iter().all(|one| one.status == Status::Success), "{done:?}");
            let [a, b] = &pair.0;
            assert!(
                b.bytes(BYTES / 2, length) == there && a.bytes(BYTES / 2, length) == back,
                "{length} bytes"
            );
        }
        let counters = pair.0[1].driver.counters();
        assert_eq!((counters.forged_code, counters.forged_port), (0, 0));
        assert_eq!(counters.replayed > 0, !faults.is_none(), "what the wire doubled came once: {counters:?}");
    }
}
