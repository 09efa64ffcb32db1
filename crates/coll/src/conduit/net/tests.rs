//! Both halves between two NICs, without machines.

use railnet_core::event::NoSink;
use railnet_core::{Label, Span};
use railnet_nic::testing::{Lab, loopback_gid};
use railnet_nic::{Completion, QueuePairInfo};

use super::*;
use crate::conduit::SlotMemory;
use crate::machine::{Expect, Layout, OperationId};
use crate::protocol::{Fifo, Protocol};

const BASE: u64 = 1 << 16;

struct Pair {
    lab: Lab<NoSink>,
    queues: [CompletionQueue; 2],
    sender: Sender,
    receiver: Receiver,
    /// The sender's slots.
    slots: SlotMemory,
}

fn memory(lab: &mut Lab<NoSink>, nic: usize, domain: ProtectionDomain, length: u64) -> SlotMemory {
    let space = lab.memory.add_bytes(BASE, vec![0; length as usize]);
    let key = lab.nics[nic].reg_mr(&lab.memory, domain, space, BASE, length, Access::ALL, None);
    SlotMemory { space, address: BASE, key: key.unwrap() }
}

fn pair(config: NetConfig) -> Pair {
    let config = NetConfig { timeout: 8, ..config };
    let nics = (0..2).map(|index| Nic::new(Lab::<NoSink>::nic_config(index, 3))).collect();
    let mut lab = Lab::new(nics, 3, NoSink);
    let domains = [0, 1].map(|index| lab.nics[index].alloc_pd());
    let queues = [0, 1].map(|index| lab.nics[index].create_cq(256).unwrap());
    let ring = memory(&mut lab, 0, domains[0], Sender::RING_BYTES);
    let slots = memory(&mut lab, 0, domains[0], 1 << 16);
    let into = memory(&mut lab, 1, domains[1], 1 << 16);
    let mut sender = Sender::new(&mut lab.nics[0], domains[0], queues[0], config, 4, ring).unwrap();
    let mut receiver = Receiver::new(&mut lab.nics[1], domains[1], queues[1], config, 5, into).unwrap();
    let (nic, mut cx) = lab.nic(0);
    sender.connect(nic, &mut cx, Path::to(loopback_gid(1)), &receiver.handle()).unwrap();
    let (nic, mut cx) = lab.nic(1);
    receiver.connect(nic, &mut cx, Path::to(loopback_gid(0)), &sender.handle()).unwrap();
    Pair { lab, queues, sender, receiver, slots }
}

impl Pair {
    fn expect(&mut self, operation: u64, slices: u64, slot: u64, slots_per_slice: u32) {
        let fifo = Fifo { slot: Bytes(slot), depth: 8, slots_per_slice, slices_per_chunk: 1 };
        let layout = Layout { protocol: Protocol::Simple, fifo };
        let (connection, mark) = (crate::machine::ConnectionId(0), Mark(operation << 40));
        let operation = OperationId(operation);
        let expect = Expect { connection, slices, slot: 0, layout, mark, operation };
        let (nic, mut cx) = self.lab.nic(1);
        self.receiver.expect(nic, &mut cx, expect).unwrap();
    }

    fn fill(&mut self, operation: u64, length: u32) -> Option<Mark> {
        let (mark, label) = (Mark(operation << 40), Label(0));
        let fill = Fill { address: self.slots.address, length, key: self.slots.key, mark, label };
        let (nic, mut cx) = self.lab.nic(0);
        self.sender.fill(nic, &mut cx, fill).unwrap()
    }

    fn poll(&mut self) -> Option<Mark> {
        let (nic, mut cx) = self.lab.nic(0);
        self.sender.poll(nic, &mut cx).unwrap()
    }

    fn emptied(&mut self) {
        let (nic, mut cx) = self.lab.nic(1);
        self.receiver.emptied(nic, &mut cx).unwrap();
    }

    fn run(&mut self) -> [Vec<Completion>; 2] {
        self.lab.run_until(self.lab.now + Span::from_ms(1));
        [0, 1].map(|index| self.lab.completions(index, self.queues[index]))
    }

    /// Slices that were asked for and have not arrived.
    fn asked(&self) -> u32 {
        self.info(1).receives
    }

    fn info(&self, nic: usize) -> QueuePairInfo {
        let numbers = if nic == 0 { self.sender.queue_pairs() } else { self.receiver.queue_pairs() };
        self.lab.nics[nic].query_qp(numbers[0]).unwrap()
    }
}

#[test]
fn a_receiver_asks_for_what_will_come_and_has_room() {
    let mut pair = pair(NetConfig::default());
    pair.expect(0, 3, 100, 2);
    assert_eq!(pair.asked(), 3, "no more than will come");
    pair.expect(1, 9, 100, 2);
    assert_eq!(pair.asked(), 4, "eight slots are four slices");
    pair.emptied();
    assert_eq!(pair.asked(), 5);
}

#[test]
fn slots_of_another_layout_are_asked_for_when_all_are_empty() {
    let mut pair = pair(NetConfig::default());
    pair.expect(0, 2, 100, 1);
    pair.expect(1, 5, 200, 1);
    assert_eq!(pair.asked(), 2);
    pair.emptied();
    assert_eq!(pair.asked(), 2);
    pair.emptied();
    assert_eq!(pair.asked(), 7);
}

#[test]
fn data_goes_only_where_its_operation_is_expected() {
    let mut pair = pair(NetConfig::default());
    pair.expect(7, 1, 4096, 1);
    assert_eq!(pair.fill(6, 50), None, "the clear-to-send is on its way");
    pair.run();
    assert_eq!(pair.poll(), Some(Mark(7 << 40)), "the other's operation is told");
    assert_eq!(pair.poll(), None, "once");
    assert_eq!((pair.sender.waiting(), pair.info(0).sends), (1, 0), "nothing was sent");
}

#[test]
fn parts_are_whole_lines_and_all_have_to_come() {
    let mut pair = pair(NetConfig { queue_pairs: 3, split: true, ..NetConfig::default() });
    pair.lab.memory.bytes_mut(pair.slots.space).fill(0xab);
    pair.expect(0, 2, 4096, 1);
    pair.run();
    assert_eq!(pair.fill(0, 300), Some(Mark(0)));
    let [sent, received] = pair.run();
    // 300 bytes: 128, 128 and 44, and each tells the whole length.
    let mut lengths: Vec<_> = received.iter().map(|one| (one.length, one.immediate)).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [(44, Some(300)), (128, Some(300)), (128, Some(300))]);
    assert_eq!(
        received.iter().map(|one| pair.receiver.completed(one).unwrap()).collect::<Vec<_>>(),
        [0, 0, 1]
    );
    assert_eq!(sent.iter().map(|one| pair.sender.completed(one).unwrap()).collect::<Vec<_>>(), [0, 0, 1]);
    let into = pair.receiver.slots().space;
    assert!(pair.lab.memory.bytes(into)[..300].iter().all(|byte| *byte == 0xab));
    assert_eq!(pair.lab.memory.bytes(into)[300], 0);
    // An empty slice is carried all the same.
    pair.fill(0, 0);
    let [_, received] = pair.run();
    assert_eq!(received.len(), 3);
    assert_eq!(received.iter().map(|one| pair.receiver.completed(one).unwrap()).sum::<u32>(), 1);
}

#[test]
fn turns_are_taken_and_told_in_order() {
    let mut pair = pair(NetConfig { queue_pairs: 2, ..NetConfig::default() });
    pair.expect(0, 3, 4096, 1);
    pair.run();
    for _ in 0..3 {
        pair.fill(0, 64);
    }
    let [_, mut received] = pair.run();
    let first = pair.receiver.queue_pairs()[0];
    assert_eq!(received.iter().filter(|one| one.queue_pair == first).count(), 2);
    // Whatever the order between queue pairs, slices are told from the oldest on.
    received.sort_by_key(|one| one.queue_pair == first);
    let told: Vec<_> = received.iter().map(|one| pair.receiver.completed(one).unwrap()).collect();
    assert_eq!(told, [0, 2, 1]);
}

#[test]
fn a_clear_to_send_is_one_packet_of_64_bytes() {
    let clear = ClearToSend {
        address: 0x7f80_0000,
        size: 24 << 20,
        key: 0x1234,
        mark: Mark(u64::MAX - 5),
        index: 17,
    };
    let bytes = clear.emit();
    assert_eq!(bytes.len(), 64);
    assert_eq!(bytes[56..], 17u64.to_le_bytes(), "what makes it valid comes last");
    assert_eq!(ClearToSend::parse(&bytes), clear);
}

#[test]
fn ends_that_were_made_differently_do_not_connect() {
    let mut pair = pair(NetConfig::default());
    let two = Handle {
        queue_pairs: [1, 2].map(QueuePairNumber::new).into_iter().collect(),
        ..pair.sender.handle()
    };
    let (nic, mut cx) = pair.lab.nic(1);
    let error = pair.receiver.connect(nic, &mut cx, Path::to(loopback_gid(0)), &two).unwrap_err();
    assert_eq!(error, NetError::QueuePairsDiffer { here: 1, there: 2 });
    let own = pair.receiver.handle();
    let error = pair.receiver.connect(nic, &mut cx, Path::to(loopback_gid(0)), &own).unwrap_err();
    assert_eq!(error, NetError::NoRing);
}

/// What an empty SEND or a WRITE of another length would complete with, sent by somebody who knows the queue pair.
#[test]
fn a_completion_of_what_was_not_asked_for_is_no_slice() {
    let config = NetConfig { queue_pairs: 3, split: true, ..NetConfig::default() };
    let mut pair = pair(config);
    pair.expect(0, 1, 4096, 1);
    pair.run();
    pair.fill(0, 300);
    let [_, received] = pair.run();
    let good = *received.iter().find(|one| one.length == 44).unwrap();
    let forged = [
        Completion { kind: railnet_nic::CompletionKind::Receive, ..good },
        Completion { immediate: None, ..good },
        Completion { immediate: Some(4097), ..good },
        Completion { immediate: Some(0), ..good },
        Completion { length: 0, ..good },
        Completion { length: 45, ..good },
        Completion { queue_pair: QueuePairNumber::new(0xabc), ..good },
    ];
    for completion in forged {
        let refused = pair.receiver.completed(&completion);
        assert!(matches!(refused, Err(NetError::Unexpected { .. })), "{completion:?}: {refused:?}");
    }
    let slices: u32 = received.iter().map(|one| pair.receiver.completed(one).unwrap()).sum();
    assert_eq!(slices, 1, "what was forged counts for nothing");
}

#[test]
fn a_clear_to_send_without_room_is_an_error() {
    let mut pair = pair(NetConfig::default());
    pair.expect(0, 1, 100, 1);
    pair.run();
    let fill = Fill {
        address: pair.slots.address,
        length: 101,
        key: pair.slots.key,
        mark: Mark(0),
        label: Label(0),
    };
    let (nic, mut cx) = pair.lab.nic(0);
    let refused = pair.sender.fill(nic, &mut cx, fill);
    assert_eq!(refused, Err(NetError::NoRoom { length: 101, room: 100 }));
}
