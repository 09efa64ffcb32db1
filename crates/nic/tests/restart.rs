//! What is asked for again: READs from their middle, WRITEs that found no receive, answers given twice.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use railnet_core::{Psn, Span};
use railnet_nic::testing::{Fate, Pair, PairOptions, Tapped};
use railnet_nic::{
    Attributes, Behaviour, CompletionKind, Context, DropReason, Inbound, Mtu, NicConfig, Operation, Payload,
    Priorities, ReceiveRequest, SendRequest, Status,
};
use railnet_wire::{Aeth, Extended, Frame, Opcode, Reth, Syndrome};

const MTU: u32 = 256;
const FAR: u64 = 1 << 16;

/// Which behaviour the requester (side 0) and the responder (side 1) have.
type Make = fn(usize, &mut NicConfig);

const SPECIFICATION: Make = |_, config| config.behaviour = Behaviour::SPECIFICATION;
const RXE: Make = |_, config| config.behaviour = Behaviour::RXE;
const RXE_ANSWERS: Make = |side, config| {
    config.behaviour = if side == 1 { Behaviour::RXE } else { Behaviour::SPECIFICATION };
};
const RXE_ASKS: Make = |side, config| {
    config.behaviour = if side == 0 { Behaviour::RXE } else { Behaviour::SPECIFICATION };
};

/// A packet that was on the wire, without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    from: usize,
    opcode: Opcode,
    psn: u32,
    extended: Extended,
}

impl Seen {
    fn aeth(&self) -> Option<Aeth> {
        match self.extended {
            Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    fn syndrome(&self) -> Option<Syndrome> {
        self.aeth().map(|aeth| aeth.syndrome)
    }
}

fn pair(nic: Make) -> Pair {
    let options = PairOptions { mtu: Mtu::Mtu256, nic, ..PairOptions::default() };
    let mut pair = Pair::new(&options).unwrap();
    pair.lab.tap = Some(Vec::new());
    pair
}

/// Loses the first packet that `side` sends with this sequence number.
fn lose_once(pair: &mut Pair, side: usize, psn: u32) {
    let mut is_lost = false;
    pair.lab.set_judge(move |_, from, transmit| {
        if from == side && transmit.headers.bth.psn == Psn::new(psn) && !is_lost {
            is_lost = true;
            return Fate::Lose;
        }
        Fate::Deliver
    });
}

fn seen(tapped: &Tapped) -> Seen {
    let Ok(Frame::Roce(packet)) = Frame::parse(&tapped.frame) else {
        panic!("only RoCE packets are on this wire");
    };
    let bth = packet.headers.bth;
    Seen { from: tapped.from, opcode: bth.opcode, psn: bth.psn.value(), extended: packet.headers.extended }
}

fn wire(pair: &Pair) -> Vec<Seen> {
    pair.lab.tap.as_ref().unwrap().iter().map(seen).collect()
}

fn from(all: &[Seen], side: usize) -> Vec<Seen> {
    all.iter().copied().filter(|seen| seen.from == side).collect()
}

/// A READ of five packets (PSN 100 to 104) and a WRITE after it (PSN 105), with the response `lost` missing once.
fn read_with_a_loss(nic: Make, lost: u32) -> Vec<Seen> {
    let length = 4 * MTU + 176;
    let mut pair = pair(nic);
    lose_once(&mut pair, 1, lost);
    pair.send(0, SendRequest::new(1, Operation::Read(pair.remote(1, 3))).with(pair.sge(0, FAR, length)))
        .unwrap();
    pair.send(0, SendRequest::new(2, Operation::Write(pair.remote(1, FAR))).with(pair.sge(0, 0, 8))).unwrap();
    let [done, _] = pair.finish();
    let ends: Vec<_> = done.iter().map(|done| (done.work, done.status, done.kind)).collect();
    assert_eq!(
        ends,
        [(1, Status::Success, CompletionKind::Read), (2, Status::Success, CompletionKind::Write)]
    );
    assert_eq!(pair.bytes(0)[FAR as usize..][..length as usize], pair.bytes(1)[3..][..length as usize]);
    let all = wire(&pair);
    let asked: Vec<_> =
        from(&all, 0).into_iter().filter(|seen| seen.opcode == Opcode::RcReadRequest).collect();
    assert_eq!(asked.len(), 2, "asked once, and once again");
    let (Extended::Reth(first), Extended::Reth(again)) = (asked[0].extended, asked[1].extended) else {
        panic!("READ requests have a RETH");
    };
    let skipped = (lost - 100) * MTU;
    let expected =
        Reth { address: first.address + u64::from(skipped), key: first.key, length: length - skipped };
    assert_eq!((asked[1].psn, again), (lost, expected), "from the first missing packet on");
    let place = all.iter().position(|seen| *seen == asked[1]).unwrap();
    from(&all[place..], 1)
}

#[test]
fn a_read_is_asked_for_again_from_the_missing_packet_on() {
    use Opcode::{RcReadResponseFirst as First, RcReadResponseLast as Last, RcReadResponseMiddle as Middle};
    for (nic, kinds) in [
        (SPECIFICATION, [First, Middle, Last]),
        (RXE_ASKS, [First, Middle, Last]),
        (RXE, [Middle, Middle, Last]),
        (RXE_ANSWERS, [Middle, Middle, Last]),
    ] {
        let answers = read_with_a_loss(nic, 102);
        let replayed: Vec<_> = answers
            .iter()
            .filter(|seen| seen.opcode.is_read_response())
            .skip_while(|seen| seen.psn != 102)
            .collect();
        assert_eq!(
            replayed.iter().map(|seen| (seen.psn, seen.opcode)).collect::<Vec<_>>(),
            [(102, kinds[0]), (103, kinds[1]), (104, kinds[2])]
        );
        // The WRITE behind the READ counts by now: a replayed response has the message number of the moment.
        for seen in replayed.iter().filter(|seen| seen.opcode != Middle) {
            assert_eq!(seen.aeth(), Some(Aeth { syndrome: Syndrome::ACK, msn: 2 }), "{seen:?}");
        }
    }
}

#[test]
fn the_last_packet_of_a_read_comes_again_as_only_or_as_last() {
    for (nic, opcode) in [
        (SPECIFICATION, Opcode::RcReadResponseOnly),
        (RXE_ASKS, Opcode::RcReadResponseOnly),
        (RXE, Opcode::RcReadResponseLast),
        (RXE_ANSWERS, Opcode::RcReadResponseLast),
    ] {
        let answers = read_with_a_loss(nic, 104);
        let replayed = answers.iter().find(|seen| seen.psn == 104).unwrap();
        assert_eq!((replayed.opcode, replayed.aeth().unwrap().msn), (opcode, 2));
    }
}

/// A WRITE with immediate of four packets (PSN 100 to 103) that finds a receive only after `wait`.
fn write_without_a_receive(nic: Make, wait: Span) -> Vec<Seen> {
    let length = 3 * MTU + 9;
    let mut pair = pair(nic);
    let request = Operation::WriteImmediate(pair.remote(1, FAR), 0x1234_5678);
    pair.send(0, SendRequest::new(1, request).with(pair.sge(0, 5, length))).unwrap();
    let until = pair.lab.now + wait;
    pair.lab.run_until(until);
    assert!(pair.done(0).is_empty() && pair.done(1).is_empty());
    pair.receive(1, ReceiveRequest::new(7)).unwrap();
    let [done, received] = pair.finish();
    assert_eq!((done[0].work, done[0].status, done.len()), (1, Status::Success, 1));
    assert_eq!((received[0].work, received[0].status, received.len()), (7, Status::Success, 1));
    assert_eq!(
        (received[0].kind, received[0].length, received[0].immediate),
        (CompletionKind::ReceiveWriteImmediate, length, Some(0x1234_5678))
    );
    let far = FAR as usize;
    assert_eq!(pair.bytes(1)[far..][..length as usize], pair.bytes(0)[5..][..length as usize]);
    wire(&pair)
}

fn sent(all: &[Seen]) -> Vec<u32> {
    from(all, 0).iter().map(|seen| seen.psn).collect()
}

fn answered(all: &[Seen]) -> Vec<(u32, Syndrome)> {
    from(all, 1).iter().map(|seen| (seen.psn, seen.syndrome().unwrap())).collect()
}

#[test]
fn a_write_with_immediate_finds_no_receive_at_its_last_packet() {
    const RNR: Syndrome = Syndrome::RnrNak { timer: 12 };
    // The wait is 0.64 ms: at 1 ms the last packet was sent twice.
    let all = write_without_a_receive(SPECIFICATION, Span::from_ms(1));
    assert_eq!(sent(&all), [100, 101, 102, 103, 103, 103], "what came before the NAK has arrived");
    assert_eq!(answered(&all), [(103, RNR), (103, RNR), (103, Syndrome::ACK)]);
    assert_eq!(from(&all, 0)[4].opcode, Opcode::RcWriteLastImmediate);
}

#[test]
fn soft_roce_sends_all_again_once_and_then_only_the_last_packet() {
    const RNR: Syndrome = Syndrome::RnrNak { timer: 12 };
    // Its waits are whole ticks of 4 ms: at 10 ms there have been two.
    let all = write_without_a_receive(RXE, Span::from_ms(10));
    assert_eq!(sent(&all), [100, 101, 102, 103, 100, 101, 102, 103, 103, 103]);
    let duplicates = [(102, Syndrome::ACK); 3];
    let expected = [&[(103, RNR)], &duplicates[..], &[(103, RNR), (103, RNR), (103, Syndrome::ACK)]].concat();
    assert_eq!(answered(&all), expected, "each duplicate is acknowledged as far as all is good");
}

/// An answer and its payload.
type Answer = (Seen, Vec<u8>);

/// Hands a packet that was on the wire to the responder once more, and takes its answers.
fn again(pair: &mut Pair, tapped: &Tapped) -> (Result<(), DropReason>, Vec<Answer>) {
    let Ok(Frame::Roce(packet)) = Frame::parse(&tapped.frame) else {
        panic!("only RoCE packets are on this wire");
    };
    let network = packet.network();
    let inbound = Inbound {
        network: &network,
        headers: &packet.headers,
        extension: None,
        payload: Payload::Bytes(packet.payload),
        intact: true,
    };
    let lab = &mut pair.lab;
    let mut cx = Context::new(lab.now, &mut lab.memory, &mut lab.sink);
    let nic = &mut lab.nics[1];
    let result = nic.receive(&mut cx, &inbound);
    let mut answers = Vec::new();
    loop {
        let mut payload = Vec::new();
        let Some(transmit) = nic.poll_transmit(&mut cx, 0, Priorities::ALL, &mut payload) else {
            return (result, answers);
        };
        let bth = transmit.headers.bth;
        let extended = transmit.headers.extended;
        answers.push((Seen { from: 1, opcode: bth.opcode, psn: bth.psn.value(), extended }, payload));
    }
}

/// The packet that side 0 sent with this sequence number.
fn request(pair: &Pair, psn: u32) -> Tapped {
    let all = pair.lab.tap.as_ref().unwrap();
    all.iter().find(|tapped| tapped.from == 0 && seen(tapped).psn == psn).unwrap().clone()
}

#[test]
fn a_duplicate_atomic_gets_the_stored_result_and_a_duplicate_read_what_is_there_now() {
    for nic in [SPECIFICATION, RXE] {
        let mut pair = pair(nic);
        let old = u64::from_le_bytes(pair.bytes(1)[64..72].try_into().unwrap());
        let add = Operation::FetchAdd { remote: pair.remote(1, 64), add: 5 };
        pair.send(0, SendRequest::new(1, add).with(pair.sge(0, 0, 8))).unwrap();
        let read = Operation::Read(pair.remote(1, 64));
        pair.send(0, SendRequest::new(2, read).with(pair.sge(0, 8, 8))).unwrap();
        let [done, _] = pair.finish();
        assert_eq!(done.iter().map(|done| done.status).collect::<Vec<_>>(), [Status::Success; 2]);

        let (atomic, read) = (request(&pair, 100), request(&pair, 101));
        let space = pair.spaces[1];
        pair.lab.memory.bytes_mut(space)[64..72].copy_from_slice(&[9; 8]);
        let (result, answers) = again(&mut pair, &atomic);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 2 };
        assert_eq!(result, Ok(()));
        assert_eq!((answers.len(), answers[0].0.psn), (1, 100));
        assert_eq!(answers[0].0.extended, Extended::AtomicAck(aeth, old));
        assert_eq!(pair.bytes(1)[64..72], [9; 8], "it is not carried out again");

        let (result, answers) = again(&mut pair, &read);
        assert_eq!(result, Ok(()));
        assert_eq!(
            (answers.len(), answers[0].0.psn, answers[0].0.opcode),
            (1, 101, Opcode::RcReadResponseOnly)
        );
        assert_eq!((answers[0].0.aeth(), &answers[0].1[..]), (Some(aeth), &[9; 8][..]));
    }
}

#[test]
fn a_lost_atomic_result_comes_after_a_timeout_and_counts_once() {
    for nic in [SPECIFICATION, RXE] {
        let mut pair = pair(nic);
        let old = u64::from_le_bytes(pair.bytes(1)[64..72].try_into().unwrap());
        lose_once(&mut pair, 1, 100);
        let add = Operation::FetchAdd { remote: pair.remote(1, 64), add: 5 };
        pair.send(0, SendRequest::new(1, add).with(pair.sge(0, 0, 8))).unwrap();
        let [done, _] = pair.finish();
        assert_eq!((done[0].status, done.len()), (Status::Success, 1));
        assert_eq!(pair.bytes(0)[..8], old.to_le_bytes());
        assert_eq!(pair.bytes(1)[64..72], old.wrapping_add(5).to_le_bytes());
        let all = wire(&pair);
        let results: Vec<_> = from(&all, 1).iter().map(|seen| (seen.psn, seen.extended)).collect();
        assert_eq!(results.len(), 2);
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn what_is_forgotten_is_not_answered() {
    for nic in [SPECIFICATION, RXE] {
        let one_at_a_time = |_: usize, change: &mut Attributes| {
            change.destination_reads = change.destination_reads.map(|_| 1);
            change.initiator_reads = change.initiator_reads.map(|_| 1);
        };
        let options =
            PairOptions { mtu: Mtu::Mtu256, nic, attributes: one_at_a_time, ..PairOptions::default() };
        let mut pair = Pair::new(&options).unwrap();
        pair.lab.tap = Some(Vec::new());
        for (work, operation) in [
            Operation::FetchAdd { remote: pair.remote(1, 64), add: 5 },
            Operation::Read(pair.remote(1, 0)),
            Operation::Read(pair.remote(1, 8)),
        ]
        .into_iter()
        .enumerate()
        {
            pair.send(0, SendRequest::new(work as u64, operation).with(pair.sge(0, 0, 8))).unwrap();
        }
        let [done, _] = pair.finish();
        assert_eq!(done.iter().map(|done| done.status).collect::<Vec<_>>(), [Status::Success; 3]);
        let before = pair.bytes(1).to_vec();
        for psn in [100, 101] {
            let old = request(&pair, psn);
            let (result, answers) = again(&mut pair, &old);
            assert_eq!((result, answers), (Err(DropReason::Forgotten), Vec::new()), "PSN {psn}");
        }
        let newest = request(&pair, 102);
        let (result, answers) = again(&mut pair, &newest);
        assert_eq!((result, answers.len()), (Ok(()), 1));
        assert_eq!(pair.bytes(1), before);
    }
}

/// Takes all packets that a side wants to send now.
fn drain(pair: &mut Pair, side: usize) -> Vec<(railnet_nic::Transmit, Vec<u8>)> {
    std::iter::from_fn(|| next(pair, side)).collect()
}

fn next(pair: &mut Pair, side: usize) -> Option<(railnet_nic::Transmit, Vec<u8>)> {
    let mut bytes = Vec::new();
    let (nic, mut cx) = pair.lab.nic(side);
    let packet = nic.poll_transmit(&mut cx, 0, railnet_nic::Priorities::ALL, &mut bytes)?;
    Some((packet, bytes))
}

fn hand(pair: &mut Pair, side: usize, packet: &(railnet_nic::Transmit, Vec<u8>)) {
    let (nic, mut cx) = pair.lab.nic(side);
    let inbound = railnet_nic::Inbound {
        network: &packet.0.network,
        headers: &packet.0.headers,
        extension: packet.0.extension.as_deref(),
        payload: railnet_nic::Payload::Bytes(&packet.1),
        intact: true,
    };
    nic.receive(&mut cx, &inbound).unwrap();
}

#[test]
fn an_answer_given_again_goes_before_those_to_later_requests() {
    let mut pair = Pair::new(&PairOptions::default()).unwrap();
    let remote = pair.remote(1, 64);
    pair.send(0, SendRequest::new(1, Operation::FetchAdd { remote, add: 1 }).with(pair.sge(0, 0, 8)))
        .unwrap();
    pair.send(0, SendRequest::new(2, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, 100, 10_240)))
        .unwrap();
    let requests = drain(&mut pair, 0);
    for request in &requests {
        hand(&mut pair, 1, request);
    }
    let opcode = |packet: Option<(railnet_nic::Transmit, Vec<u8>)>| packet.unwrap().0.headers.bth.opcode;
    assert_eq!(opcode(next(&mut pair, 1)), Opcode::RcAtomicAcknowledge);
    assert_eq!(opcode(next(&mut pair, 1)), Opcode::RcReadResponseFirst);
    // The first answer got lost: both are asked for again while the READ is being answered.
    for request in &requests {
        hand(&mut pair, 1, request);
    }
    assert_eq!(opcode(next(&mut pair, 1)), Opcode::RcAtomicAcknowledge, "not behind the READ");
    // The READ starts again, and only once.
    let rest = drain(&mut pair, 1);
    assert_eq!(rest.len(), 10);
    assert_eq!(rest[0].0.headers.bth.opcode, Opcode::RcReadResponseFirst);
    let numbers: Vec<u32> = rest.iter().map(|answer| answer.0.headers.bth.psn.value()).collect();
    assert_eq!(numbers, (101..111).collect::<Vec<_>>());
}

/// A READ of 64 packets, and behind it, without a fence, a WRITE over the last bytes that it reads: what the READ saw there.
fn last_byte_read_before_a_write(nic: Make) -> u8 {
    let length = 64 * MTU;
    let mut pair = pair(nic);
    let before = pair.bytes(1)[length as usize - 1];
    let after = pair.bytes(0)[0];
    assert_ne!(before, after);
    pair.send(0, SendRequest::new(1, Operation::Read(pair.remote(1, 0))).with(pair.sge(0, FAR, length)))
        .unwrap();
    let last = pair.remote(1, u64::from(length) - 1);
    pair.send(0, SendRequest::new(2, Operation::Write(last)).with(pair.sge(0, 0, 1))).unwrap();
    let [done, _] = pair.finish();
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert_eq!(done.len(), 2);
    assert_eq!(pair.bytes(1)[length as usize - 1], after, "the WRITE is carried out in the end");
    let read = pair.bytes(0)[FAR as usize + length as usize - 1];
    if read == before { 0 } else { read }
}

#[test]
fn soft_roce_lets_requests_wait_while_it_answers_a_read_and_hardware_does_not() {
    assert_eq!(last_byte_read_before_a_write(RXE_ANSWERS), 0);
    assert_eq!(last_byte_read_before_a_write(SPECIFICATION), 1, "the new value");
}

#[test]
fn requests_that_waited_for_a_read_go_on_up_to_the_next_one() {
    let mut pair = pair(RXE);
    for work in 0..20 {
        let (operation, length) = match work % 4 {
            0 => (Operation::Read(pair.remote(1, 0)), 20 * MTU),
            1 => (Operation::Write(pair.remote(1, FAR)), 3 * MTU),
            2 => (Operation::Read(pair.remote(1, 7)), 1),
            _ => (Operation::FetchAdd { remote: pair.remote(1, 0), add: 1 }, 8),
        };
        pair.send(0, SendRequest::new(work, operation).with(pair.sge(0, FAR, length))).unwrap();
    }
    let [done, _] = pair.finish();
    let ends: Vec<_> = done.iter().map(|done| (done.work, done.status)).collect();
    assert_eq!(ends, (0..20).map(|work| (work, Status::Success)).collect::<Vec<_>>());
    let mut counter = [0; 8];
    counter.copy_from_slice(&pair.bytes(1)[..8]);
    let first: [u8; 8] = std::array::from_fn(|at| (at as u8).wrapping_mul(7).wrapping_add(101));
    assert_eq!(u64::from_ne_bytes(counter), u64::from_ne_bytes(first) + 5);
    let opcodes: Vec<_> = from(&wire(&pair), 0).iter().map(|seen| seen.psn).collect();
    let mut once = opcodes.clone();
    once.dedup();
    assert_eq!(opcodes, once, "nothing had to be asked for twice");
}
