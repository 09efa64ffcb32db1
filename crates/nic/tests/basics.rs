//! Every operation between two NICs on a good wire.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::{GhostRun, GhostTag, QueuePairNumber};
use railnet_nic::memory::Memory;
use railnet_nic::testing::{PAIR_BASE, Pair, PairOptions, loopback_gid};
use railnet_nic::{
    Access, AsyncEvent, Bind, CompletionKind, DatagramTarget, Key, Mtu, Notify, Operation, Path, PostError,
    ReceiveRequest, SendRequest, Service, Status,
};

const FAR: u64 = 1 << 19;

#[test]
fn write_read_and_send_of_every_size_and_mtu() {
    for mtu in Mtu::ALL {
        for length in [0u32, 1, 3, 255, 256, 257, 4096, 5000, 100_000] {
            let mut pair =
                Pair::new(&PairOptions { mtu, psn: [0xff_fff0, 7], ..PairOptions::default() }).unwrap();
            let far = FAR as usize;
            let size = length as usize;
            pair.send(
                0,
                SendRequest::new(1, Operation::Write(pair.remote(1, FAR))).with(pair.sge(0, 8, length)),
            )
            .unwrap();
            let [done, _] = pair.finish();
            assert_eq!(done.len(), 1, "{mtu:?} {length}");
            assert_eq!((done[0].status, done[0].kind), (Status::Success, CompletionKind::Write));
            assert_eq!(pair.bytes(1)[far..][..size], pair.bytes(0)[8..][..size], "{mtu:?} {length}");

            pair.send(
                0,
                SendRequest::new(2, Operation::Read(pair.remote(1, 3))).with(pair.sge(0, FAR, length)),
            )
            .unwrap();
            let [done, _] = pair.finish();
            assert_eq!((done[0].status, done[0].kind), (Status::Success, CompletionKind::Read));
            assert_eq!(pair.bytes(0)[far..][..size], pair.bytes(1)[3..][..size]);

            pair.receive(1, ReceiveRequest::new(9).with(pair.sge(1, FAR + 200_000, 100_000))).unwrap();
            pair.send(0, SendRequest::new(3, Operation::SendImmediate(0xabcd)).with(pair.sge(0, 1, length)))
                .unwrap();
            let [sent, received] = pair.finish();
            assert_eq!((sent.len(), received.len()), (1, 1));
            assert_eq!(
                (received[0].work, received[0].length, received[0].immediate),
                (9, length, Some(0xabcd))
            );
            assert_eq!(pair.bytes(1)[far + 200_000..][..size], pair.bytes(0)[1..][..size]);
        }
    }
}

#[test]
fn atomics_return_the_old_value_and_change_it() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let old = u64::from_le_bytes(pair.bytes(1)[64..72].try_into().unwrap());
    let remote = pair.remote(1, 64);
    let compare = old.wrapping_add(5);
    for (work, operation) in [
        Operation::FetchAdd { remote, add: 5 },
        Operation::CompareSwap { remote, compare, swap: 42 },
        Operation::CompareSwap { remote, compare, swap: 43 },
    ]
    .into_iter()
    .enumerate()
    {
        pair.send(0, SendRequest::new(work as u64, operation).with(pair.sge(0, work as u64 * 8, 8))).unwrap();
    }
    let [done, _] = pair.finish();
    assert_eq!(done.iter().map(|done| done.status).collect::<Vec<_>>(), [Status::Success; 3]);
    let got = |at: usize| u64::from_le_bytes(pair.bytes(0)[at..at + 8].try_into().unwrap());
    assert_eq!([got(0), got(8), got(16)], [old, compare, 42]);
    assert_eq!(pair.bytes(1)[64..72], 42u64.to_le_bytes());
}

#[test]
fn several_pieces_of_memory_make_one_message() {
    let mut pair = Pair::new(&PairOptions { mtu: Mtu::Mtu256, ..PairOptions::default() }).unwrap();
    let pieces = [(0, 100), (1000, 0), (2000, 399), (5000, 1)];
    let mut request = SendRequest::new(1, Operation::Send);
    let mut expected = Vec::new();
    for (offset, length) in pieces {
        request = request.with(pair.sge(0, offset, length));
        expected.extend_from_slice(&pair.bytes(0)[offset as usize..][..length as usize]);
    }
    let receive = ReceiveRequest::new(2).with(pair.sge(1, FAR, 300)).with(pair.sge(1, FAR + 1000, 300));
    pair.receive(1, receive).unwrap();
    pair.send(0, request).unwrap();
    let [_, received] = pair.finish();
    assert_eq!(received[0].length, 500);
    let far = FAR as usize;
    let landed = [&pair.bytes(1)[far..far + 300], &pair.bytes(1)[far + 1000..far + 1200]].concat();
    assert_eq!(landed, expected);
}

#[test]
fn inline_data_is_copied_when_posted() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let mut data = *b"inline at once";
    let write = Operation::Write(pair.remote(1, FAR));
    pair.send(0, SendRequest::new(1, write).with_inline(&data)).unwrap();
    data.fill(0);
    pair.finish();
    assert_eq!(&pair.bytes(1)[FAR as usize..][..14], b"inline at once");
    let error = pair.send(0, SendRequest::new(1, write).with_inline(&[0; 129])).unwrap_err();
    assert_eq!(error, PostError::InlineTooLong { length: 129, limit: 128 });
    let read = Operation::Read(pair.remote(1, 0));
    assert!(matches!(
        pair.send(0, SendRequest::new(1, read).with_inline(&data)),
        Err(PostError::NotPossible { .. })
    ));
}

#[test]
fn unsignalled_work_completes_silently_and_in_order_with_the_rest() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    for work in 0..20 {
        let write =
            SendRequest::new(work, Operation::Write(pair.remote(1, FAR + work * 8))).with(pair.sge(0, 0, 8));
        pair.send(0, if work % 5 == 4 { write } else { write.unsignaled() }).unwrap();
    }
    let [done, _] = pair.finish();
    assert_eq!(done.iter().map(|done| done.work).collect::<Vec<_>>(), [4, 9, 14, 19]);
    // A queue that holds only unsignalled work still empties.
    pair.send(0, SendRequest::new(99, Operation::Send).unsignaled()).unwrap();
    pair.receive(1, ReceiveRequest::new(0)).unwrap();
    pair.finish();
    assert_eq!(pair.lab.nics[0].query_qp(pair.queue_pairs[0]).unwrap().sends, 0);
}

#[test]
fn a_write_with_immediate_uses_up_a_receive() {
    let mut pair = Pair::new(&PairOptions { mtu: Mtu::Mtu512, ..PairOptions::default() }).unwrap();
    pair.receive(1, ReceiveRequest::new(70)).unwrap();
    let write = Operation::WriteImmediate(pair.remote(1, FAR), 0x1234_5678);
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, 1500))).unwrap();
    let [sent, received] = pair.finish();
    assert_eq!(sent[0].kind, CompletionKind::Write);
    assert_eq!(received[0].kind, CompletionKind::ReceiveWriteImmediate);
    assert_eq!((received[0].length, received[0].immediate), (1500, Some(0x1234_5678)));
    assert_eq!(pair.bytes(1)[FAR as usize..][..1500], pair.bytes(0)[..1500]);
}

#[test]
fn a_completion_queue_tells_once_for_each_time_it_is_asked() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let queue = pair.queues[1];
    for work in 0..4 {
        pair.receive(1, ReceiveRequest::new(work)).unwrap();
    }
    pair.lab.nics[1].req_notify(queue, Notify::Solicited).unwrap();
    pair.send(0, SendRequest::new(1, Operation::Send)).unwrap();
    pair.lab.run();
    assert_eq!(pair.lab.nics[1].poll_event(), None, "the first message was not solicited");
    pair.send(0, SendRequest { solicited: true, ..SendRequest::new(2, Operation::Send) }).unwrap();
    pair.send(0, SendRequest { solicited: true, ..SendRequest::new(3, Operation::Send) }).unwrap();
    pair.lab.run();
    assert_eq!(pair.lab.nics[1].poll_event(), Some(AsyncEvent::CompletionReady(queue)));
    assert_eq!(pair.lab.nics[1].poll_event(), None, "one event for each request");
    pair.lab.nics[1].req_notify(queue, Notify::Next).unwrap();
    pair.send(0, SendRequest::new(4, Operation::Send)).unwrap();
    pair.lab.run();
    assert_eq!(pair.lab.nics[1].poll_event(), Some(AsyncEvent::CompletionReady(queue)));
}

#[test]
fn a_window_opens_part_of_a_region_and_a_send_closes_it() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let window = pair.lab.nics[1].alloc_mw(pair.domains[1]).unwrap();
    let bind = Bind {
        window,
        variant: 0x77,
        region: pair.keys[1],
        address: PAIR_BASE + 4096,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    pair.send(1, SendRequest::new(1, Operation::BindWindow(bind))).unwrap();
    let [_, done] = pair.finish();
    assert_eq!((done[0].status, done[0].kind), (Status::Success, CompletionKind::BindWindow));
    let mut remote = pair.remote(1, 4096);
    remote.key = Key(window.0 & !0xff | 0x77);
    pair.send(0, SendRequest::new(2, Operation::Write(remote)).with(pair.sge(0, 0, 64))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::Success);
    assert_eq!(pair.bytes(1)[4096..4160], pair.bytes(0)[..64]);

    // The peer gives the right back, and has it no more.
    pair.receive(1, ReceiveRequest::new(5)).unwrap();
    pair.send(0, SendRequest::new(3, Operation::SendInvalidate(remote.key))).unwrap();
    let [done, received] = pair.finish();
    assert_eq!((done[0].status, received[0].invalidated), (Status::Success, Some(remote.key.0)));
    pair.send(0, SendRequest::new(4, Operation::Write(remote)).with(pair.sge(0, 0, 64))).unwrap();
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::RemoteAccess);
}

#[test]
fn local_invalidate_takes_a_windows_rights_in_order() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let window = pair.lab.nics[1].alloc_mw(pair.domains[1]).unwrap();
    let bind = Bind {
        window,
        variant: 1,
        region: pair.keys[1],
        address: PAIR_BASE,
        length: 64,
        access: Access::REMOTE_READ,
    };
    let key = Key(window.0 & !0xff | 1);
    pair.send(1, SendRequest::new(1, Operation::BindWindow(bind))).unwrap();
    pair.send(1, SendRequest::new(2, Operation::Write(pair.remote(0, 0))).with(pair.sge(1, 0, 100))).unwrap();
    pair.send(1, SendRequest::new(3, Operation::LocalInvalidate(key))).unwrap();
    let [_, done] = pair.finish();
    assert_eq!(
        done.iter().map(|done| (done.work, done.status)).collect::<Vec<_>>(),
        [(1, Status::Success), (2, Status::Success), (3, Status::Success)]
    );
    let remote = railnet_nic::Remote { address: PAIR_BASE, key };
    pair.send(0, SendRequest::new(4, Operation::Read(remote)).with(pair.sge(0, 0, 8))).unwrap();
    assert_eq!(pair.finish()[0][0].status, Status::RemoteAccess);
}

#[test]
fn datagrams_arrive_behind_their_address_area() {
    let options = PairOptions { service: Service::Datagram, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    let handle = pair.lab.nics[0].create_ah(pair.domains[0], Path::to(loopback_gid(1))).unwrap();
    let target = DatagramTarget { handle, queue_pair: pair.queue_pairs[1], queue_key: 0x1111_1111 };
    pair.receive(1, ReceiveRequest::new(1).with(pair.sge(1, FAR, 1000))).unwrap();
    let send = SendRequest::new(2, Operation::SendImmediate(5)).with(pair.sge(0, 0, 33));
    pair.send(0, SendRequest { target: Some(target), ..send.clone() }).unwrap();
    let [sent, received] = pair.finish();
    assert_eq!(sent[0].status, Status::Success);
    assert_eq!((received[0].length, received[0].immediate, received[0].has_grh), (73, Some(5), true));
    assert_eq!(received[0].source, pair.queue_pairs[0]);
    let landed = &pair.bytes(1)[FAR as usize..][..73];
    assert_eq!(landed[..20], [0; 20], "an IPv4 header stands in the second half");
    assert_eq!(landed[20], 0x45);
    assert_eq!(landed[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    assert_eq!(landed[40..], pair.bytes(0)[..33]);

    // A wrong queue key, a buffer that is too small and a missing receive each lose the datagram silently.
    pair.receive(1, ReceiveRequest::new(3).with(pair.sge(1, FAR, 72))).unwrap();
    pair.send(0, SendRequest { target: Some(target), ..send.clone() }).unwrap();
    let wrong = DatagramTarget { queue_key: 1, ..target };
    pair.send(0, SendRequest { target: Some(wrong), ..send.clone() }).unwrap();
    let nobody = DatagramTarget { queue_pair: QueuePairNumber::new(0x999), ..target };
    pair.send(0, SendRequest { target: Some(nobody), ..send.clone() }).unwrap();
    let [sent, received] = pair.finish();
    assert_eq!((sent.len(), received.len()), (3, 0));
    let long = SendRequest {
        target: Some(target),
        ..SendRequest::new(9, Operation::Send).with(pair.sge(0, 0, 4097))
    };
    assert!(matches!(pair.send(0, long), Err(PostError::TooLong { .. })));
    assert!(matches!(pair.send(0, send), Err(PostError::NotPossible { .. })));
}

#[test]
fn unreliable_connections_deliver_whole_messages_only() {
    let options =
        PairOptions { service: Service::UnreliableConnection, mtu: Mtu::Mtu256, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    // The third packet of the first message is lost.
    pair.lab.set_judge(|_, _, transmit| match transmit.headers.bth.psn.value() {
        102 => railnet_nic::testing::Fate::Lose,
        _ => railnet_nic::testing::Fate::Deliver,
    });
    for work in 0..2 {
        pair.receive(1, ReceiveRequest::new(10 + work).with(pair.sge(1, FAR + work * 4096, 2000))).unwrap();
    }
    for (work, length) in [(1, 1000), (2, 700)] {
        pair.send(0, SendRequest::new(work, Operation::Send).with(pair.sge(0, work * 10, length))).unwrap();
    }
    pair.send(0, SendRequest::new(3, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 500, 600)))
        .unwrap();
    let [sent, received] = pair.finish();
    assert_eq!(sent.iter().map(|done| done.status).collect::<Vec<_>>(), [Status::Success; 3]);
    // The receive of the broken message serves the next one.
    assert_eq!(received.iter().map(|done| (done.work, done.length)).collect::<Vec<_>>(), [(10, 700)]);
    assert_eq!(pair.bytes(1)[FAR as usize..][..700], pair.bytes(0)[20..720]);
    assert_eq!(pair.bytes(1)[..600], pair.bytes(0)[500..1100]);
}

#[test]
fn ghost_memory_carries_tags_instead_of_bytes() {
    let options = PairOptions { ghost: true, memory: 1 << 33, mtu: Mtu::Mtu4096, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    let tag = GhostTag { sum: 0x1234_5678_9abc, origin: 1 << 20 };
    let length = 1u32 << 20;
    pair.lab.memory.write_ghost(pair.spaces[0], PAIR_BASE, GhostRun { tag, length });
    let write = Operation::Write(pair.remote(1, 1 << 32));
    pair.send(0, SendRequest::new(1, write).with(pair.sge(0, 0, length))).unwrap();
    pair.send(
        0,
        SendRequest::new(2, Operation::Read(pair.remote(1, 1 << 32))).with(pair.sge(0, 1 << 31, length)),
    )
    .unwrap();
    let [done, _] = pair.finish();
    assert_eq!(done.len(), 2);
    for (side, at) in [(1, 1u64 << 32), (0, 1 << 31)] {
        let ghost = pair.lab.memory.ghost(pair.spaces[side]).unwrap();
        assert_eq!(ghost.tag_at(at), tag);
        assert_eq!(ghost.tag_at(at + u64::from(length) - 1), tag.advanced(u64::from(length) - 1));
        assert_eq!(ghost.tag_at(at + u64::from(length)), GhostTag::BLANK);
    }
}

#[test]
fn the_longest_message_is_two_gigabytes() {
    // At MTU 256 it takes all of the sequence numbers that a window can hold.
    let options = PairOptions { ghost: true, memory: 1 << 33, mtu: Mtu::Mtu256, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    let tag = GhostTag { sum: 7, origin: 0 };
    for half in 0..2 {
        let run = GhostRun { tag: tag.advanced(half << 30), length: 1 << 30 };
        pair.lab.memory.write_ghost(pair.spaces[1], PAIR_BASE + (half << 30), run);
    }
    let request = SendRequest::new(1, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 1 << 32, 1 << 31));
    pair.send(0, request).unwrap();
    pair.send(
        0,
        SendRequest::new(2, Operation::Write(pair.remote(1, 1 << 32))).with(pair.sge(0, 1 << 32, 512)),
    )
    .unwrap();
    let too_long = SendRequest::new(3, Operation::Send).with(pair.sge(0, 0, u32::MAX));
    assert!(matches!(pair.send(0, too_long), Err(PostError::TooLong { .. })));
    let [done, _] = pair.finish();
    assert_eq!(done.iter().map(|done| done.status).collect::<Vec<_>>(), [Status::Success; 2]);
    let ghost = pair.lab.memory.ghost(pair.spaces[0]).unwrap();
    assert_eq!(ghost.tag_at((1 << 32) + (1 << 31) - 1), tag.advanced((1 << 31) - 1));
    assert_eq!(pair.lab.nics[0].counters().resent, 0);
}
