//! A connection over several paths: early packets are kept, not asked for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_nic::recovery::RecoveryKind;
use railnet_nic::testing::{Fate, Faults, Pair, PairOptions};
use railnet_nic::{Mtu, NicConfig, Operation, ReceiveRequest, SendRequest, Status};

fn keep_early(_: usize, config: &mut NicConfig) {
    config.recovery = RecoveryKind::Reorder { window: 256 };
}

fn shuffled(nic: fn(usize, &mut NicConfig)) -> Pair {
    let mut pair = Pair::new(&PairOptions { nic, mtu: Mtu::Mtu256, ..PairOptions::default() }).unwrap();
    pair.lab.faults = Faults { reorder: 400_000, ..Faults::default() };
    for work in 0..4 {
        pair.receive(1, ReceiveRequest::new(10 + work).with(pair.sge(1, 600_000 + work * 20_000, 20_000)))
            .unwrap();
        pair.send(
            0,
            SendRequest::new(work, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 50_000)),
        )
        .unwrap();
        pair.send(0, SendRequest::new(work, Operation::Send).with(pair.sge(0, 1000 * work, 20_000))).unwrap();
    }
    pair
}

#[test]
fn shuffled_packets_are_put_in_order_without_a_word() {
    let mut pair = shuffled(keep_early);
    let [sent, received] = pair.finish();
    assert!(sent.len() == 8 && sent.iter().all(|done| done.status == Status::Success));
    assert_eq!(received.iter().map(|done| done.work).collect::<Vec<_>>(), [10, 11, 12, 13]);
    for work in 0..4usize {
        assert_eq!(
            pair.bytes(1)[600_000 + work * 20_000..][..20_000],
            pair.bytes(0)[1000 * work..][..20_000]
        );
    }
    assert_eq!(pair.lab.nics[0].counters().resent, 0);
    assert_eq!(pair.lab.nics[1].counters().sequence_naks, 0);
    // The same wire costs go-back-N dearly.
    let mut plain = shuffled(|_, _| {});
    plain.finish();
    assert!(plain.lab.nics[0].counters().resent > 100);
}

#[test]
fn a_loss_shows_when_packets_come_from_too_far_ahead() {
    let keep_8 = |_: usize, config: &mut NicConfig| config.recovery = RecoveryKind::Reorder { window: 8 };
    let mut pair =
        Pair::new(&PairOptions { nic: keep_8, mtu: Mtu::Mtu256, ..PairOptions::default() }).unwrap();
    let mut lost = false;
    pair.lab.set_judge(move |_, from, transmit| {
        let hit = from == 0 && transmit.headers.bth.psn.value() == 120 && !std::mem::replace(&mut lost, true);
        if hit { Fate::Lose } else { Fate::Deliver }
    });
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 50_000)))
        .unwrap();
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::Success);
    assert_eq!(pair.bytes(1)[..50_000], pair.bytes(0)[..50_000]);
    assert_eq!(pair.lab.nics[1].counters().sequence_naks, 1);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}
