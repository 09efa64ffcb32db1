//! How often a requester asks for acknowledgements, and how a responder gives them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_nic::testing::{Fate, Pair, PairOptions};
use railnet_nic::{Behaviour, Mtu, NicConfig, Operation, SendRequest, Status};
use railnet_wire::{Frame, Opcode};

fn rxe(_: usize, config: &mut NicConfig) {
    config.behaviour = Behaviour::RXE;
}

/// (sequence number, answer, asks) of every frame that a side sent.
fn sent(pair: &mut Pair, side: usize) -> Vec<(u32, Opcode, bool)> {
    let frames = pair.lab.tap.take().unwrap();
    frames
        .iter()
        .filter(|tapped| tapped.from == side)
        .map(|tapped| match Frame::parse(&tapped.frame) {
            Ok(Frame::Roce(packet)) => {
                let bth = packet.headers.bth;
                (bth.psn.value(), bth.opcode, bth.ack_request)
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

fn forty_writes(options: &PairOptions) -> Pair {
    let mut pair = Pair::new(options).unwrap();
    pair.lab.tap = Some(Vec::new());
    for work in 0..40 {
        let write = Operation::Write(pair.remote(1, 0));
        let request = SendRequest::new(work, write).with(pair.sge(0, 0, 1024));
        pair.send(0, if work == 39 { request } else { request.unsignaled() }).unwrap();
    }
    pair.lab.run();
    assert_eq!(pair.done(0).len(), 1);
    pair
}

#[test]
fn soft_roce_asks_for_and_gives_one_for_each_message() {
    // As in the capture of 40 WRITEs posted at once.
    let mut pair = forty_writes(&PairOptions { nic: rxe, ..PairOptions::default() });
    let answers = sent(&mut pair, 1);
    assert_eq!(answers.len(), 40);
    assert!(answers.iter().enumerate().all(|(index, answer)| answer.0 == 100 + index as u32));
}

#[test]
fn the_specification_lets_one_stand_for_many() {
    let mut pair = forty_writes(&PairOptions::default());
    let answers = sent(&mut pair, 1);
    assert_eq!(answers, [(139, Opcode::RcAcknowledge, false)]);
}

#[test]
fn a_long_message_asks_now_and_then() {
    let mut pair = Pair::new(&PairOptions { mtu: Mtu::Mtu256, ..PairOptions::default() }).unwrap();
    pair.lab.tap = Some(Vec::new());
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 256 * 200)))
        .unwrap();
    pair.lab.run();
    let asked: Vec<u32> =
        sent(&mut pair, 0).iter().filter(|packet| packet.2).map(|packet| packet.0 - 100).collect();
    assert_eq!(asked, [63, 127, 191, 199]);
}

#[test]
fn answers_that_wait_for_the_port_become_one() {
    // The responder's port is busy with a long READ answer while WRITEs that ask come in.
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.lab.tap = Some(Vec::new());
    pair.send(0, SendRequest::new(0, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 0, 100_000)))
        .unwrap();
    for work in 1..=10 {
        let write = Operation::Write(pair.remote(1, 200_000));
        pair.send(0, SendRequest::new(work, write).with(pair.sge(0, 200_000, 64))).unwrap();
    }
    pair.lab.run();
    assert_eq!(pair.done(0).len(), 11);
    let answers = sent(&mut pair, 1);
    let verdicts: Vec<_> = answers.iter().filter(|answer| answer.1 == Opcode::RcAcknowledge).collect();
    assert_eq!(verdicts.len(), 1, "one acknowledgement for ten WRITEs: {verdicts:?}");
}

#[test]
fn one_nak_for_each_gap_and_everything_after_it_again() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    pair.lab.tap = Some(Vec::new());
    let mut lost = false;
    pair.lab.set_judge(move |_, from, transmit| {
        let hit = from == 0 && transmit.headers.bth.psn.value() == 103 && !std::mem::replace(&mut lost, true);
        if hit { Fate::Lose } else { Fate::Deliver }
    });
    pair.send(0, SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 0, 8192)))
        .unwrap();
    pair.lab.run();
    assert_eq!(pair.done(0)[0].status, Status::Success);
    let counters = pair.lab.nics[1].counters();
    assert_eq!(counters.sequence_naks, 1);
    assert_eq!(pair.lab.nics[0].counters().timeouts, 0, "the NAK healed it");
    // The lost one and all behind it went twice.
    let numbers: Vec<u32> = sent(&mut pair, 0).iter().map(|packet| packet.0).collect();
    assert_eq!(numbers.iter().filter(|&&psn| psn == 102).count(), 1);
    assert_eq!(numbers.iter().filter(|&&psn| psn == 103).count(), 2);
    assert_eq!(numbers.iter().filter(|&&psn| psn == 107).count(), 2);
}
