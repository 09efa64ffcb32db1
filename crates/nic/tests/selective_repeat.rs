//! Selective repeat: early packets are kept and told of, and only what is missing is sent again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::{Psn, Span};
use railnet_nic::recovery::RecoveryKind;
use railnet_nic::testing::{Fate, Faults, Pair, PairOptions};
use railnet_nic::{
    Behaviour, CompletionKind, Mtu, NicConfig, Operation, ReceiveRequest, SendRequest, State, Status,
};
use railnet_wire::{Extended, Frame, Opcode, RocePacket, Syndrome};

const MTU: u32 = 256;
const FAR: u64 = 1 << 19;

type Make = fn(usize, &mut NicConfig);

const SELECTIVE: Make = |_, config| {
    config.recovery = RecoveryKind::SelectiveRepeat { window: 1000, reordering: Span::ZERO };
};
const PATIENT: Make = |_, config| {
    let reordering = Span::from_us(20);
    config.recovery = RecoveryKind::SelectiveRepeat { window: 1000, reordering };
};

fn pair_from(nic: Make, psn: u32) -> Pair {
    let options = PairOptions { nic, mtu: Mtu::Mtu256, psn: [psn, 200], ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.tap = Some(Vec::new());
    pair
}

fn pair(nic: Make) -> Pair {
    pair_from(nic, 100)
}

/// Loses the packets of a side with these sequence numbers, each as often as it is named.
fn lose(pair: &mut Pair, side: usize, numbers: &[u32]) {
    let mut left = numbers.to_vec();
    pair.lab.set_judge(move |_, from, transmit| {
        let psn = transmit.headers.bth.psn.value();
        match left.iter().position(|&number| from == side && number == psn) {
            Some(place) => {
                left.remove(place);
                Fate::Lose
            }
            None => Fate::Deliver,
        }
    });
}

/// A packet on the wire: sequence number, opcode, syndrome, and which packets it tells to have come early.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    psn: u32,
    opcode: Opcode,
    syndrome: Option<Syndrome>,
    early: Option<Vec<u32>>,
}

fn seen(packet: &RocePacket<'_>) -> Seen {
    let headers = &packet.headers;
    let syndrome = match headers.extended {
        Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) => Some(aeth.syndrome),
        _ => None,
    };
    let early = packet.extension.selective.map(|told| {
        let all = (0..128).map(|index| told.first.plus(index));
        all.filter(|&psn| told.contains(psn)).map(Psn::value).collect()
    });
    Seen { psn: headers.bth.psn.value(), opcode: headers.bth.opcode, syndrome, early }
}

/// All packets that a side sent.
fn sent(pair: &Pair, side: usize) -> Vec<Seen> {
    let tapped = pair.lab.tap.as_ref().unwrap().iter().filter(|tapped| tapped.from == side);
    tapped
        .map(|tapped| match Frame::parse(&tapped.frame) {
            Ok(Frame::Roce(packet)) => seen(&packet),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The sequence numbers that a side sent more than once.
fn again(pair: &Pair, side: usize) -> Vec<u32> {
    let mut before = Vec::new();
    let mut again = Vec::new();
    for Seen { psn, .. } in sent(pair, side) {
        if before.contains(&psn) {
            again.push(psn);
        }
        before.push(psn);
    }
    again
}

fn write(pair: &mut Pair, work: u64, packets: u32) {
    let length = packets * MTU;
    let request = Operation::Write(pair.remote(1, FAR));
    pair.send(0, SendRequest::new(work, request).with(pair.sge(0, 0, length))).unwrap();
}

fn arrived(pair: &Pair, packets: u32) {
    let length = (packets * MTU) as usize;
    assert_eq!(pair.bytes(1)[FAR as usize..][..length], pair.bytes(0)[..length]);
}

fn succeeded(pair: &mut Pair, works: std::ops::Range<u64>) {
    let [done, _] = pair.finish();
    let ends: Vec<_> = done.iter().map(|done| (done.work, done.status)).collect();
    assert_eq!(ends, works.map(|work| (work, Status::Success)).collect::<Vec<_>>());
}

#[test]
fn a_gap_is_told_at_once_and_the_missing_packet_is_sent_alone() {
    let mut pair = pair(SELECTIVE);
    lose(&mut pair, 0, &[103]);
    write(&mut pair, 1, 8);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 8);
    assert_eq!(again(&pair, 0), [103]);
    let answers = sent(&pair, 1);
    let told: Vec<_> = answers.iter().map(|seen| (seen.psn, seen.early.clone())).collect();
    assert_eq!(
        told,
        [
            // 104 came, and 103 did not.
            (102, Some(vec![104])),
            // The last one asks.
            (102, Some(vec![104, 105, 106, 107])),
            // 103 came, and with it all.
            (107, None),
        ]
    );
    assert!(answers.iter().all(|seen| seen.syndrome == Some(Syndrome::ACK)));
    let counters = pair.lab.nics[1].counters();
    assert_eq!((counters.sequence_naks, pair.lab.nics[0].counters().timeouts), (0, 0));
}

#[test]
fn several_losses_cost_one_packet_each_also_where_numbers_wrap() {
    for first in [100, Psn::MASK - 30] {
        let psn = |index: u32| Psn::new(first).plus(index).value();
        let mut pair = pair_from(SELECTIVE, first);
        let lost: Vec<u32> = [3, 4, 10, 25, 31, 32, 45, 90].map(psn).to_vec();
        lose(&mut pair, 0, &lost);
        write(&mut pair, 1, 100);
        succeeded(&mut pair, 1..2);
        arrived(&pair, 100);
        assert_eq!(again(&pair, 0), lost);
        assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
    }
}

#[test]
fn a_packet_lost_again_and_again_is_found_as_long_as_others_are_sent() {
    let mut pair = pair(SELECTIVE);
    lose(&mut pair, 0, &[150; 6]);
    write(&mut pair, 1, 2000);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 2000);
    assert_eq!(again(&pair, 0), [150; 6]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn a_packet_that_never_arrives_uses_up_the_retries() {
    let mut pair = pair(SELECTIVE);
    lose(&mut pair, 0, &[150; 100]);
    write(&mut pair, 1, 400);
    let [done, _] = pair.finish();
    assert_eq!(done[0].status, Status::RetryExceeded);
    assert_eq!(pair.state(0), State::Error);
    // Seven retries, as for go-back-N; whatever else was lost is not to blame.
    assert_eq!(again(&pair, 0), [150; 7]);
}

#[test]
fn a_lost_tail_is_found_by_the_clock_and_then_at_once() {
    let mut pair = pair(SELECTIVE);
    lose(&mut pair, 0, &(140..150).collect::<Vec<_>>());
    write(&mut pair, 1, 50);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 50);
    let counters = pair.lab.nics[0].counters();
    // The oldest that is not acknowledged is sent first: nobody had asked for 100 to 139.
    assert_eq!((counters.timeouts, counters.resent), (1, 11));
    let mut expected: Vec<u32> = vec![100];
    expected.extend(140..150);
    assert_eq!(again(&pair, 0), expected);
}

/// As processes have it: a timeout may be the fault of a peer that is not on its core.
const LIVE: Make = |_, config| {
    config.recovery = RecoveryKind::SelectiveRepeat { window: 1000, reordering: Span::ZERO };
    config.behaviour.spurious_timeout_wait = Span::from_us(500);
};

#[test]
fn a_lost_tail_is_sent_again_when_nothing_shows_that_the_timeout_was_spurious() {
    let mut pair = pair(LIVE);
    lose(&mut pair, 0, &(140..150).collect::<Vec<_>>());
    write(&mut pair, 1, 50);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 50);
    let counters = pair.lab.nics[0].counters();
    assert_eq!((counters.timeouts, counters.resent), (1, 11));
}

#[test]
fn timeouts_in_a_row_double() {
    let mut pair = pair(LIVE);
    lose(&mut pair, 0, &[100; 5]);
    write(&mut pair, 1, 1);
    succeeded(&mut pair, 1..2);
    let tapped = pair.lab.tap.as_ref().unwrap().iter().filter(|tapped| tapped.from == 0);
    let times: Vec<_> = tapped.map(|tapped| tapped.at).collect();
    let spans: Vec<u64> = times.windows(2).map(|two| two[1].since(two[0]).as_ps()).collect();
    let ratios: Vec<f64> = spans.windows(2).map(|two| two[1] as f64 / two[0] as f64).collect();
    assert_eq!(ratios.len(), 4, "{spans:?}");
    assert!(ratios.iter().all(|ratio| (1.99..2.01).contains(ratio)), "{spans:?}");
}

#[test]
fn shuffled_packets_are_not_taken_for_lost_where_paths_differ() {
    let mut pair = pair(PATIENT);
    pair.lab.faults = Faults { reorder: 400_000, ..Faults::default() };
    write(&mut pair, 1, 1000);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 1000);
    assert_eq!(pair.lab.nics[0].counters().resent, 0);
    let answers = sent(&pair, 1);
    let telling = answers.iter().filter(|seen| seen.early.is_some()).count();
    assert!((10..100).contains(&telling), "{telling} answers tell of 1000 shuffled packets");
    // One that is lost among them is sent alone, after a while.
    let mut pair = self::pair(PATIENT);
    pair.lab.faults = Faults { reorder: 400_000, ..Faults::default() };
    lose(&mut pair, 0, &[500]);
    write(&mut pair, 1, 1000);
    succeeded(&mut pair, 1..2);
    assert_eq!(again(&pair, 0), [500]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn the_last_packets_need_no_clock_of_the_transport_where_paths_differ() {
    let mut pair = pair(PATIENT);
    lose(&mut pair, 0, &[148]);
    write(&mut pair, 1, 50);
    let begin = pair.lab.now;
    succeeded(&mut pair, 1..2);
    assert_eq!(again(&pair, 0), [148]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
    assert!(pair.lab.now.since(begin) > Span::from_us(20));
}

/// A WRITE (100 to 103), a READ of five packets (104 to 108), an atomic (109), a SEND (110 to 112).
fn mixture(nic: Make, side: usize, lost: &[u32]) -> Pair {
    let mut pair = pair(nic);
    lose(&mut pair, side, lost);
    pair.receive(1, ReceiveRequest::new(9).with(pair.sge(1, 700_000, 3 * MTU))).unwrap();
    write(&mut pair, 1, 4);
    pair.send(0, SendRequest::new(2, Operation::Read(pair.remote(1, 7))).with(pair.sge(0, FAR, 5 * MTU)))
        .unwrap();
    let add = Operation::FetchAdd { remote: pair.remote(1, 64), add: 5 };
    pair.send(0, SendRequest::new(3, add).with(pair.sge(0, 900_000, 8))).unwrap();
    pair.send(0, SendRequest::new(4, Operation::Send).with(pair.sge(0, 5, 3 * MTU))).unwrap();
    let old = u64::from_le_bytes(pair.bytes(1)[64..72].try_into().unwrap());
    let [done, received] = pair.finish();
    let ends: Vec<_> = done.iter().map(|done| (done.work, done.status)).collect();
    assert_eq!(ends, [1, 2, 3, 4].map(|work| (work, Status::Success)));
    assert_eq!((received[0].kind, received[0].length), (CompletionKind::Receive, 3 * MTU));
    arrived(&pair, 4);
    let length = 3 * MTU as usize;
    assert_eq!(pair.bytes(1)[700_000..][..length], pair.bytes(0)[5..][..length]);
    assert_eq!(pair.bytes(0)[900_000..][..8], old.to_le_bytes());
    assert_eq!(pair.bytes(1)[64..72], old.wrapping_add(5).to_le_bytes(), "carried out once");
    // The READ may have been before or after the atomic.
    let (read, source) = (&pair.bytes(0)[FAR as usize..], &pair.bytes(1)[7..]);
    assert_eq!(read[..57], source[..57]);
    assert_eq!(read[65..5 * MTU as usize], source[65..5 * MTU as usize]);
    pair
}

#[test]
fn any_lost_request_of_a_mixture_is_sent_alone() {
    for lost in [100, 102, 103, 104, 109, 110, 111] {
        let pair = mixture(SELECTIVE, 0, &[lost]);
        assert_eq!(again(&pair, 0), [lost]);
        assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
    }
}

#[test]
fn a_missing_answer_is_asked_for_again_with_those_after_it_and_nothing_else_is_sent() {
    // Of the READ: from its missing packet on, and the atomic, whose result came too early to be of use.
    for lost in [104, 106, 108] {
        let pair = mixture(SELECTIVE, 1, &[lost]);
        let asked: Vec<_> = sent(&pair, 0).into_iter().skip(9).map(|seen| (seen.psn, seen.opcode)).collect();
        assert_eq!(asked, [(lost, Opcode::RcReadRequest), (109, Opcode::RcFetchAdd)]);
        assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
    }
    // Of the atomic: that alone.
    let pair = mixture(SELECTIVE, 1, &[109]);
    assert_eq!(again(&pair, 0), [109]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn a_receiver_that_is_not_ready_keeps_what_comes_early() {
    let mut pair = pair(SELECTIVE);
    // Three SENDs; the receives come late, and what was kept behind the first must not get lost.
    for work in 0..3 {
        let request = SendRequest::new(work, Operation::Send).with(pair.sge(0, work * 1000, 4 * MTU));
        pair.send(0, request).unwrap();
    }
    for work in 0..3 {
        let until = pair.lab.now + Span::from_ms(1);
        pair.lab.run_until(until);
        pair.receive(1, ReceiveRequest::new(work).with(pair.sge(1, 500_000 + work * 2000, 4 * MTU))).unwrap();
    }
    let [done, received] = pair.finish();
    assert!(done.len() == 3 && done.iter().all(|done| done.status == Status::Success));
    assert_eq!(received.iter().map(|done| done.work).collect::<Vec<_>>(), [0, 1, 2]);
    for work in 0..3 {
        let length = 4 * MTU as usize;
        let (to, from) = (500_000 + work * 2000, work * 1000);
        assert_eq!(pair.bytes(1)[to..][..length], pair.bytes(0)[from..][..length]);
    }
    let counters = pair.lab.nics[0].counters();
    assert_eq!(counters.timeouts, 0);
    // Only the first packet of each message: it was dropped, once or more, and the rest was kept.
    assert!(again(&pair, 0).iter().all(|psn| [100, 104, 108].contains(psn)), "{:?}", again(&pair, 0));
    let naks =
        sent(&pair, 1).into_iter().filter(|seen| seen.syndrome == Some(Syndrome::RnrNak { timer: 12 }));
    assert_eq!(naks.count() as u64, pair.lab.nics[1].counters().rnr_naks);
}

#[test]
fn no_more_is_in_flight_than_the_peer_keeps() {
    let small: Make = |_, config| {
        config.recovery = RecoveryKind::SelectiveRepeat { window: 8, reordering: Span::ZERO };
    };
    let mut pair = pair(small);
    lose(&mut pair, 0, &[150, 153, 157]);
    write(&mut pair, 1, 200);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 200);
    assert_eq!(again(&pair, 0), [150, 153, 157]);
    let counters = pair.lab.nics[1].counters();
    assert_eq!(counters.sequence_naks, 0, "nothing came that could not be kept");
}

#[test]
fn more_early_packets_than_an_answer_can_tell_of_are_told_of_in_several() {
    let mut pair = pair(SELECTIVE);
    // The first one is lost again as soon as it is sent again; 600 packets come early meanwhile, but for a few.
    pair.lab.latency = Span::from_us(10);
    lose(&mut pair, 0, &[100, 100, 130, 300, 301, 420, 500]);
    write(&mut pair, 1, 900);
    succeeded(&mut pair, 1..2);
    arrived(&pair, 900);
    let mut resent = again(&pair, 0);
    resent.sort_unstable();
    assert_eq!(resent, [100, 100, 130, 300, 301, 420, 500]);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0);
}

#[test]
fn ends_that_differ_still_get_everything_across() {
    for selective in [0, 1] {
        let nics: [Make; 2] = [
            |side, config| {
                if side == 0 {
                    SELECTIVE(side, config);
                }
            },
            |side, config| {
                if side == 1 {
                    SELECTIVE(side, config);
                }
            },
        ];
        let mut pair = pair(nics[selective]);
        lose(&mut pair, 0, &[120, 125]);
        write(&mut pair, 1, 50);
        succeeded(&mut pair, 1..2);
        arrived(&pair, 50);
        // A peer that keeps nothing sends NAKs; one that only tells what it keeps leaves others to their clocks.
        let naks = pair.lab.nics[1].counters().sequence_naks;
        assert_eq!(naks > 0, selective == 0);
        assert_eq!(pair.lab.nics[0].counters().timeouts > 0, selective == 1);
    }
}

#[test]
fn nothing_is_told_where_it_was_not_asked_for() {
    let reorder: Make = |_, config| config.recovery = RecoveryKind::Reorder { window: 1000 };
    let rxe: Make = |_, config| config.behaviour = Behaviour::RXE;
    for nic in [reorder, rxe, |_, _| {}] {
        let mut pair = pair(nic);
        pair.lab.faults = Faults { loss: 20_000, reorder: 100_000, ..Faults::default() };
        write(&mut pair, 1, 500);
        succeeded(&mut pair, 1..2);
        assert!(sent(&pair, 1).iter().all(|seen| seen.early.is_none()));
    }
}
