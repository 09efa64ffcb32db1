//! One-sided windows between NICs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use railnet_coll::conduit::SlotMemory;
use railnet_coll::window::{
    At, Awaited, GroupId, PUT_MAX, Reserved, Rma, RmaOutput, WindowError, WindowHandle, WindowId, Windows,
};
use railnet_core::event::NoSink;
use railnet_core::{Bytes, GhostRun, GhostTag, Psn, Rank};
use railnet_nic::memory::{Memory, SpaceId};
use railnet_nic::testing::{Faults, Lab, Peer, connect};
use railnet_nic::{Access, Mtu, Nic, QueuePairConfig, Service};

const WINDOW: WindowId = WindowId(0);
const BASE: u64 = 1 << 20;

/// Ranks with a window each and queue pairs to each other.
struct World {
    lab: Lab<NoSink>,
    ranks: Vec<Windows>,
    spaces: Vec<SpaceId>,
    queues: Vec<railnet_nic::CompletionQueue>,
    done: Vec<Vec<RmaOutput>>,
}

fn world(ranks: u32, length: u64, faults: Faults) -> World {
    let nics = (0..ranks as usize).map(|index| Nic::new(Lab::<NoSink>::nic_config(index, 3))).collect();
    let mut lab = Lab::new(nics, 3, NoSink);
    lab.faults = faults;
    let mut world =
        World { lab, ranks: Vec::new(), spaces: Vec::new(), queues: Vec::new(), done: Vec::new() };
    let lab = &mut world.lab;
    let (mut domains, mut handles) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let control = lab.memory.add_bytes(BASE, vec![0; Windows::signal_bytes(ranks) as usize]);
        let space = lab.memory.add_ghost(BASE, length);
        let nic = &mut lab.nics[rank as usize];
        let domain = nic.alloc_pd();
        let mut register =
            |space, length| nic.reg_mr(&lab.memory, domain, space, BASE, length, Access::ALL, None).unwrap();
        let key = register(control, Windows::signal_bytes(ranks));
        handles.push(WindowHandle { address: BASE, length: Bytes(length), key: register(space, length) });
        let signals = SlotMemory { space: control, address: BASE, key };
        world.ranks.push(Windows::new(Rank(rank), ranks, 9, signals));
        world.spaces.push(space);
        world.queues.push(nic.create_cq(1 << 12).unwrap());
        world.done.push(Vec::new());
        domains.push(domain);
    }
    for one in 0..ranks {
        for other in 0..one {
            let ends = [one, other].map(|rank| {
                let config = QueuePairConfig::new(Service::ReliableConnection, world.queues[rank as usize]);
                let nic = &mut world.lab.nics[rank as usize];
                let queue_pair = nic.create_qp(domains[rank as usize], &config).unwrap();
                Peer { nic: rank as usize, queue_pair, psn: Psn::new(rank) }
            });
            connect(&mut world.lab, ends, Mtu::Mtu4096, |_, _| ()).unwrap();
            for [own, far] in [[0, 1], [1, 0]] {
                let (rank, peer) = (ends[own].nic, ends[far].nic);
                let signal = world.ranks[peer].signal_from(Rank(rank as u32));
                world.ranks[rank].connect(Rank(peer as u32), ends[own].queue_pair, signal);
            }
        }
    }
    for rank in 0..ranks as usize {
        world.ranks[rank].register(handles[rank]).unwrap();
        for (other, handle) in handles.iter().enumerate() {
            world.ranks[rank].registered(WINDOW, Rank(other as u32), *handle).unwrap();
        }
    }
    world
}

impl World {
    fn submit(&mut self, rank: usize, operations: Vec<Rma>) -> Result<GroupId, WindowError> {
        let (nic, mut cx) = self.lab.nic(rank);
        let id = self.ranks[rank].submit(nic, &mut cx, operations);
        self.settle();
        id
    }

    fn settle(&mut self) {
        for rank in 0..self.ranks.len() {
            for completion in self.lab.completions(rank, self.queues[rank]) {
                assert_eq!(completion.work >> 32, 9);
                let (nic, mut cx) = self.lab.nic(rank);
                self.ranks[rank].completed(nic, &mut cx, &completion);
            }
            let (nic, mut cx) = self.lab.nic(rank);
            self.ranks[rank].poll(nic, &mut cx);
            while let Some(output) = self.ranks[rank].poll_output() {
                self.done[rank].push(output);
            }
        }
    }

    fn run(&mut self) {
        while self.ranks.iter().any(|rank| rank.unfinished() > 0) && self.lab.step() {
            self.settle();
        }
    }

    /// Marks part of a rank's window.
    fn mark(&mut self, rank: usize, offset: u64, length: u64, sum: u128) {
        let mut at = 0;
        while at < length {
            let part = (length - at).min(1 << 30);
            let run = GhostRun { tag: GhostTag { sum, origin: at }, length: part as u32 };
            self.lab.memory.write_ghost(self.spaces[rank], BASE + offset + at, run);
            at += part;
        }
    }

    fn tag(&self, rank: usize, offset: u64) -> GhostTag {
        self.lab.memory.ghost(self.spaces[rank]).unwrap().tag_at(offset)
    }
}

const fn at(offset: u64) -> At {
    At { window: WINDOW, offset }
}

fn put(peer: u32, from: u64, to: u64, bytes: u64) -> Rma {
    let (from, to, bytes) = (at(from), at(to), Bytes(bytes));
    Rma::PutSignal { peer: Rank(peer), from, to, bytes, reserved: Reserved::default() }
}

fn wait(peer: u32, count: u32) -> Rma {
    Rma::WaitSignal(vec![Awaited { peer: Rank(peer), count, reserved: Reserved::default() }])
}

const BAD: Faults =
    Faults { loss: 20_000, reorder: 20_000, duplicate: 20_000, corrupt: 0, delay: 0, mark: 0 };

#[test]
fn what_was_put_is_there_when_its_signal_is_seen() {
    const PART: u64 = 20_000;
    let mut world = world(2, 64 * PART, BAD);
    for index in 0..20 {
        world.mark(0, index * PART, PART, 100 + u128::from(index));
    }
    // Waits for one put each; puts in groups of two.
    for index in 0..20 {
        assert_eq!(world.submit(1, vec![wait(0, 1)]), Ok(GroupId(index)));
    }
    for index in (0..20).step_by(2) {
        let pair = [index, index + 1].map(|index| put(1, index * PART, (index + 20) * PART, PART));
        world.submit(0, pair.into()).unwrap();
    }
    let mut seen = 0;
    while world.ranks.iter().any(|rank| rank.unfinished() > 0) && world.lab.step() {
        world.settle();
        for index in seen..world.done[1].len() as u64 {
            for offset in [0, PART - 1] {
                let tag = GhostTag { sum: 100 + u128::from(index), origin: offset };
                assert_eq!(world.tag(1, (index + 20) * PART + offset), tag);
            }
        }
        seen = world.done[1].len() as u64;
    }
    assert_eq!(seen, 20);
    assert_eq!(world.done[0].len(), 10);
    assert!(world.lab.injected.lost > 0);
}

#[test]
fn a_wait_uses_signals_up_and_groups_go_in_order() {
    let mut world = world(3, 1 << 20, BAD);
    // Rank 2 answers rank 0 only when it has two signals from 1 and one from 0; its next wait needs one more from 1.
    world.submit(0, vec![Rma::Signal { peer: Rank(2), reserved: Reserved::default() }]).unwrap();
    let both = [(1, 2), (0, 1)].map(|(peer, count)| Awaited {
        peer: Rank(peer),
        count,
        reserved: Reserved::default(),
    });
    world.submit(2, vec![Rma::WaitSignal(both.into())]).unwrap();
    world.submit(2, vec![put(0, 0, 0, 100)]).unwrap();
    world.submit(2, vec![wait(1, 1)]).unwrap();
    world.submit(0, vec![wait(2, 1)]).unwrap();
    world.submit(1, vec![put(2, 0, 0, 5000)]).unwrap();
    world.run();
    assert_eq!(world.done.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0], "one signal is missing");
    world.submit(1, vec![put(2, 0, 0, 5000)]).unwrap();
    world.run();
    assert_eq!(
        world.done.iter().map(Vec::len).collect::<Vec<_>>(),
        [2, 2, 2],
        "the third wait needs another"
    );
    world.submit(1, vec![put(2, 0, 0, 0)]).unwrap();
    world.run();
    assert_eq!(world.done[2].len(), 3);
}

#[test]
fn a_long_put_goes_in_parts_and_signals_once() {
    let length = PUT_MAX + 5;
    let mut world = world(2, 2 * length, Faults::default());
    world.mark(0, 0, length, 7);
    world.submit(0, vec![put(1, 0, length, length)]).unwrap();
    world.submit(1, vec![wait(0, 1)]).unwrap();
    world.run();
    assert_eq!(world.done[1], [RmaOutput::Finished(GroupId(0))]);
    for offset in [0, PUT_MAX - 1, PUT_MAX, length - 1] {
        assert_eq!(world.tag(1, length + offset), GhostTag { sum: 7, origin: offset });
    }
    let mut signals = Vec::new();
    let word = world.ranks[1].signal_from(Rank(0)).address;
    world.lab.memory.read(SpaceId(2), word, 8, &mut signals);
    assert_eq!(signals, 1u64.to_le_bytes());
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    let mut world = world(2, 4096, Faults::default());
    let flags = Reserved { flags: 1, ..Reserved::default() };
    let cases = [
        (Rma::Signal { peer: Rank(1), reserved: flags }, "flags is 1: it must be 0 in this version"),
        (Rma::Signal { peer: Rank(2), reserved: Reserved::default() }, "rank 2 does not exist: there are 2"),
        (put(0, 0, 0, 1), "rank 0 cannot signal itself: write to the memory instead"),
        (put(1, 0, 4000, 97), "97 B at 4000 end outside of window 0 on rank 1, which has 4 KiB"),
        (put(1, u64::MAX, 0, 2), "outside of window 0 on rank 0"),
        (wait(1, 0), "a wait for 0 signals from rank 1: it must be at least 1"),
    ];
    for (operation, text) in cases {
        let error = world.submit(0, vec![put(1, 0, 0, 1), operation]).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let odd = WindowHandle { address: 5, length: Bytes(1), key: railnet_nic::Key(1) };
    assert_eq!(world.ranks[0].register(odd), Err(WindowError::Alignment { address: 5 }));
    assert_eq!(world.done[0], [], "nothing of a group with a mistake is done");

    world.submit(0, vec![put(1, 0, 0, 4096)]).unwrap();
    assert_eq!(world.ranks[0].deregister(WINDOW), Err(WindowError::Busy { window: WINDOW }));
    world.run();
    world.ranks[0].deregister(WINDOW).unwrap();
    let gone = WindowError::NotRegistered { window: WINDOW, rank: Rank(0) };
    assert_eq!(world.submit(0, vec![put(1, 0, 0, 1)]), Err(gone.clone()));
    assert_eq!(world.ranks[0].deregister(WINDOW), Err(gone));
}

#[test]
fn a_dead_peer_ends_it_with_its_name() {
    let mut world = world(2, 4096, Faults { loss: 1_000_000, ..Faults::default() });
    world.submit(0, vec![put(1, 0, 0, 4096)]).unwrap();
    world.run();
    let [RmaOutput::Failed(error)] = &world.done[0][..] else { panic!("{:?}", world.done[0]) };
    let text = "rank 1: transport retry count exceeded (IBV_WC_RETRY_EXC_ERR)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_put_without_a_signal_and_a_get_move_data_and_signal_nobody() {
    const PART: u64 = 20_000;
    let mut world = world(2, 4 * PART, BAD);
    world.mark(0, 0, PART, 7);
    let (peer, bytes) = (Rank(1), Bytes(PART));
    world.submit(0, vec![Rma::Put { peer, from: at(0), to: at(PART), bytes }]).unwrap();
    world.submit(0, vec![Rma::Get { peer, from: at(PART), to: at(2 * PART), bytes }]).unwrap();
    world.run();
    assert_eq!(world.done[0].len(), 2);
    for (rank, offset) in [(1, PART), (0, 2 * PART)] {
        for place in [0, PART - 1] {
            assert_eq!(world.tag(rank, offset + place), GhostTag { sum: 7, origin: place });
        }
    }
    let mut signals = Vec::new();
    let word = world.ranks[1].signal_from(Rank(0)).address;
    world.lab.memory.read(SpaceId(2), word, 8, &mut signals);
    assert_eq!(signals, 0u64.to_le_bytes());
    let outside = world.submit(0, vec![Rma::Get { peer, from: at(4 * PART - 1), to: at(0), bytes }]);
    assert!(outside.unwrap_err().to_string().contains("on rank 1"));
}
