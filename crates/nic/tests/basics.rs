//! Every operation between two NICs on a good wire.

use railnet_core::event::NoSink;
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::memory::SpaceId;
use railnet_nic::testing::{Lab, Peer, connect};
use railnet_nic::{
    Access, Completion, CompletionKind, CompletionQueue, Key, Mtu, Nic, Operation, ProtectionDomain,
    QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge, Status,
};

const BASE: u64 = 0x10000;
const SIZE: u64 = 1 << 20;

/// Two NICs, a megabyte each, one reliable connection.
struct Pair {
    lab: Lab<NoSink>,
    queue_pairs: [QueuePairNumber; 2],
    queues: [CompletionQueue; 2],
    keys: [Key; 2],
    spaces: [SpaceId; 2],
    domains: [ProtectionDomain; 2],
}

fn pair(mtu: Mtu, psn: u32) -> Pair {
    let nics = (0..2)
        .map(|index| Nic::new(Lab::<NoSink>::nic_config(index, 1)))
        .collect();
    let mut lab = Lab::new(nics, 1, NoSink);
    let spaces = [0u8, 1].map(|side| {
        let bytes = (0..SIZE)
            .map(|at| (at as u8).wrapping_mul(7).wrapping_add(1 + 100 * side))
            .collect();
        lab.memory.add_bytes(BASE, bytes)
    });
    let mut made = Vec::new();
    for (index, &space) in spaces.iter().enumerate() {
        let nic = &mut lab.nics[index];
        let domain = nic.alloc_pd();
        let queue = nic.create_cq(1000).unwrap();
        let key = nic
            .reg_mr(&lab.memory, domain, space, BASE, SIZE, Access::ALL, None)
            .unwrap();
        let queue_pair = nic
            .create_qp(domain, &QueuePairConfig::new(Service::ReliableConnection, queue))
            .unwrap();
        made.push((domain, queue, key, queue_pair));
    }
    let ends = [0, 1].map(|nic| Peer {
        nic,
        queue_pair: made[nic].3,
        psn: Psn::new(psn + nic as u32 * 77),
    });
    connect(&mut lab, ends, mtu, |_, _| {}).unwrap();
    Pair {
        lab,
        queue_pairs: [made[0].3, made[1].3],
        queues: [made[0].1, made[1].1],
        keys: [made[0].2, made[1].2],
        spaces,
        domains: [made[0].0, made[1].0],
    }
}

impl Pair {
    fn sge(&self, side: usize, offset: u64, length: u32) -> Sge {
        Sge {
            address: BASE + offset,
            length,
            key: self.keys[side],
        }
    }

    fn remote(&self, side: usize, offset: u64) -> Remote {
        Remote {
            address: BASE + offset,
            key: self.keys[side],
        }
    }

    fn send(&mut self, side: usize, request: SendRequest) {
        let queue_pair = self.queue_pairs[side];
        let (nic, mut cx) = self.lab.nic(side);
        nic.post_send(&mut cx, queue_pair, request).unwrap();
    }

    fn receive(&mut self, side: usize, request: ReceiveRequest) {
        let queue_pair = self.queue_pairs[side];
        let (nic, mut cx) = self.lab.nic(side);
        nic.post_recv(&mut cx, queue_pair, request).unwrap();
    }

    fn done(&mut self, side: usize) -> Vec<Completion> {
        self.lab.completions(side, self.queues[side])
    }

    fn bytes(&self, side: usize) -> &[u8] {
        self.lab.memory.bytes(self.spaces[side])
    }
}

#[test]
fn write_read_send_and_atomics_of_every_size() {
    for mtu in Mtu::ALL {
        for length in [0u32, 1, 3, 255, 256, 257, 4096, 5000, 100_000] {
            let mut pair = pair(mtu, 0xff_fff0);
            let far = 1 << 19;
            pair.send(
                0,
                SendRequest::new(1, Operation::Write(pair.remote(1, far))).with(pair.sge(0, 8, length)),
            );
            pair.lab.run();
            let done = pair.done(0);
            assert_eq!(done.len(), 1, "{mtu:?} {length}");
            assert_eq!(
                (done[0].status, done[0].kind),
                (Status::Success, CompletionKind::Write)
            );
            assert_eq!(
                pair.bytes(1)[far as usize..][..length as usize],
                pair.bytes(0)[8..][..length as usize],
                "{mtu:?} {length}"
            );
            pair.send(
                0,
                SendRequest::new(2, Operation::Read(pair.remote(1, 3))).with(pair.sge(0, far, length)),
            );
            pair.lab.run();
            let done = pair.done(0);
            assert_eq!(
                (done[0].status, done[0].kind),
                (Status::Success, CompletionKind::Read)
            );
            assert_eq!(
                pair.bytes(0)[far as usize..][..length as usize],
                pair.bytes(1)[3..][..length as usize]
            );
            pair.receive(
                1,
                ReceiveRequest::new(9).with(pair.sge(1, far + 200_000, 100_000)),
            );
            pair.send(
                0,
                SendRequest::new(3, Operation::SendImmediate(0xabcd)).with(pair.sge(0, 1, length)),
            );
            pair.lab.run();
            let (sent, received) = (pair.done(0), pair.done(1));
            assert_eq!((sent.len(), received.len()), (1, 1));
            assert_eq!(
                (received[0].work, received[0].length, received[0].immediate),
                (9, length, Some(0xabcd))
            );
            assert_eq!(
                pair.bytes(1)[far as usize + 200_000..][..length as usize],
                pair.bytes(0)[1..][..length as usize]
            );
        }
    }
}

#[test]
fn atomics_return_the_old_value_and_change_it() {
    let mut pair = pair(Mtu::Mtu1024, 5);
    let old = u64::from_le_bytes(pair.bytes(1)[64..72].try_into().unwrap());
    let remote = pair.remote(1, 64);
    pair.send(
        0,
        SendRequest::new(1, Operation::FetchAdd { remote, add: 5 }).with(pair.sge(0, 0, 8)),
    );
    let compare = old.wrapping_add(5);
    pair.send(
        0,
        SendRequest::new(
            2,
            Operation::CompareSwap {
                remote,
                compare,
                swap: 42,
            },
        )
        .with(pair.sge(0, 8, 8)),
    );
    pair.send(
        0,
        SendRequest::new(
            3,
            Operation::CompareSwap {
                remote,
                compare,
                swap: 43,
            },
        )
        .with(pair.sge(0, 16, 8)),
    );
    pair.lab.run();
    assert_eq!(
        pair.done(0).iter().map(|done| done.status).collect::<Vec<_>>(),
        [Status::Success; 3]
    );
    let got = |at: usize| u64::from_le_bytes(pair.bytes(0)[at..at + 8].try_into().unwrap());
    assert_eq!([got(0), got(8), got(16)], [old, compare, 42]);
    assert_eq!(pair.bytes(1)[64..72], 42u64.to_le_bytes());
    let _ = pair.domains;
}
