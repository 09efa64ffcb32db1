use std::sync::Arc;

use railnet_core::{Bytes, DataType, Rank, ReduceOp, Scalar};
use smallvec::smallvec;

use super::{CheckError, check, trace};
use crate::schedule::{
    After, Buffer, Connection, Peer, Piece, Program, Schedule, Step, SwitchGroup, SwitchKind,
};
use crate::{Algorithm, Call, Choice, Collective, Fifo, Protocol, Wiring, build};

/// Steps as lists: of each rank, of each worker.
#[derive(Clone, Debug)]
struct Listed(Vec<Vec<Vec<Step>>>);

impl Program for Listed {
    fn workers(&self, rank: u32) -> u32 {
        self.0[rank as usize].len() as u32
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        self.0[rank as usize][worker as usize].len() as u64
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        self.0[rank as usize][worker as usize][number as usize].clone()
    }
}

fn to(rank: u32) -> Connection {
    Connection { channel: 0, lane: 0, peer: Peer::Rank(rank) }
}

fn at(buffer: Buffer, offset: u64) -> Piece {
    Piece { buffer, offset }
}

fn schedule(collective: Collective, steps: Vec<Vec<Vec<Step>>>) -> Schedule {
    Schedule {
        call: Call::new(collective, 4),
        ranks: steps.len() as u32,
        algorithm: Algorithm::Custom,
        protocol: Protocol::Simple,
        channels: 1,
        fifo: Fifo { slot: Bytes(64), depth: 2, slots_per_slice: 1, slices_per_chunk: 1 },
        groups: Vec::new(),
        scratch: 8,
        program: Arc::new(Listed(steps)),
    }
}

fn send(to_rank: u32) -> Step {
    Step {
        count: 4,
        sources: smallvec![at(Buffer::Input, 0)],
        sends: smallvec![to(to_rank)],
        ..Step::default()
    }
}

fn reduce(from: u32) -> Step {
    Step {
        count: 4,
        receives: smallvec![to(from)],
        sources: smallvec![at(Buffer::Input, 0)],
        stores: smallvec![at(Buffer::Output, 0)],
        is_final: true,
        ..Step::default()
    }
}

/// Both ranks send what they have and add what comes.
fn exchange() -> Vec<Vec<Vec<Step>>> {
    vec![vec![vec![send(1), reduce(1)]], vec![vec![send(0), reduce(0)]]]
}

fn refusal(schedule: &Schedule) -> String {
    check(schedule).unwrap_err().to_string()
}

#[test]
fn a_ring_is_proved_in_and_out_of_place_for_all_operations() {
    let scalar = Scalar::from_f32(DataType::F32, 2.0);
    for ranks in [1, 2, 3, 8, 17] {
        for count in [0, 1, 7, 1000, 100_003] {
            for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::PreMulSum(scalar)] {
                for in_place in [false, true] {
                    let call = Call { op, in_place, ..Call::new(Collective::AllReduce, count) };
                    let choice = Choice {
                        buffer: Some(Bytes(4096)),
                        ..Choice::new(Algorithm::Ring, Protocol::Simple).on(3)
                    };
                    let built = build(&call, &choice, &Wiring::flat(ranks)).unwrap();
                    let report = check(&built).unwrap();
                    assert!(report.is_free_of_races);
                    let all = u64::from(ranks - 1) * 2 * count;
                    assert_eq!(report.sent.iter().sum::<u64>(), all, "{ranks} ranks, {count} elements");
                }
            }
        }
    }
}

#[test]
fn rounds_of_a_ring_are_those_of_the_theory() {
    let call = Call::new(Collective::AllReduce, 800);
    let built = build(&call, &Choice::new(Algorithm::Ring, Protocol::Ll), &Wiring::flat(8)).unwrap();
    let (_, done) = trace(&built).unwrap();
    let sending = done.iter().filter(|one| one.step < 14);
    assert!(sending.clone().all(|one| u64::from(one.round) == one.step));
    assert_eq!(sending.clone().map(|one| one.round).max(), Some(13));
    // A chunk gathers one contribution on each hop until it is whole.
    assert!(sending.into_iter().all(|one| u64::from(one.contributions) == (one.step + 1).min(8)));
}

#[test]
fn a_contribution_that_is_missing_or_doubled_is_named() {
    assert!(check(&schedule(Collective::AllReduce, exchange())).is_ok());

    let mut steps = exchange();
    steps[1][0][1].sources.clear();
    assert_eq!(
        refusal(&schedule(Collective::AllReduce, steps.clone())),
        "rank 1, channel 0, step 1 (chunk 0): the result lacks rank 1's contribution"
    );
    // The same where no step claims to be final: the output tells.
    steps[1][0][1].is_final = false;
    assert_eq!(
        refusal(&schedule(Collective::AllReduce, steps)),
        "rank 1, channel 0, step 1 (chunk 0): output element 0 lacks rank 1's contribution"
    );

    let mut steps = exchange();
    let extra = steps[0][0][1].sources[0];
    steps[0][0][1].sources.push(extra);
    assert_eq!(
        refusal(&schedule(Collective::AllReduce, steps)),
        "rank 0, channel 0, step 1 (chunk 0): the result has rank 0's contribution twice"
    );
}

#[test]
fn averages_are_divided_once_and_factors_come_in_once() {
    let mut average = schedule(Collective::AllReduce, exchange());
    average.call.op = ReduceOp::Average;
    assert!(check(&average).is_ok());
    let mut steps = exchange();
    steps[0][0][1].is_final = false;
    let mut undivided = schedule(Collective::AllReduce, steps);
    undivided.call.op = ReduceOp::Average;
    assert!(refusal(&undivided).contains("is not divided exactly once"), "{}", refusal(&undivided));

    // In place, the output holds the input as it was: not multiplied.
    let mut steps = exchange();
    steps[0][0][1].sources[0].buffer = Buffer::Output;
    let mut raw = schedule(Collective::AllReduce, steps);
    raw.call.in_place = true;
    assert!(check(&raw).is_ok());
    raw.call.op = ReduceOp::PreMulSum(Scalar::from_f32(DataType::F32, 3.0));
    assert!(refusal(&raw).contains("was not multiplied beforehand"), "{}", refusal(&raw));
}

#[test]
fn what_is_wrong_with_a_step_is_said() {
    type Breaks = fn(&mut Step);
    let cases: [(Breaks, &str); 9] = [
        (
            |step| step.sources[0].buffer = Buffer::Scratch,
            "sends element 0 of its scratch memory before it is ready",
        ),
        (|step| step.sources[0].offset = 1, "goes past the end of its input: 4 elements from 1 on, of 4"),
        (|step| step.sources.clear(), "takes none from anywhere"),
        (|step| step.sends.push(to(1)), "uses the connection with rank 1 on channel 0 twice"),
        (|step| step.sends[0] = to(9), "talks to rank 9 on channel 0, which does not exist"),
        (
            |step| step.sends[0].peer = Peer::Switch(0),
            "the switch of group 0 on channel 0, which does not exist",
        ),
        (
            |step| step.after.push(After { worker: 0, step: 7 }),
            "waits for step 7 of worker 0, which does not exist",
        ),
        (|step| step.count = 3, "expects 4 elements, but rank 0, channel 0, step 0 (chunk 0) sent 3"),
        (|step| step.stores.push(at(Buffer::Input, 0)), "writes to the input of a call that is out of place"),
    ];
    for (breaks, words) in cases {
        let mut steps = exchange();
        breaks(&mut steps[0][0][0]);
        let text = refusal(&schedule(Collective::AllReduce, steps));
        assert!(text.contains(words), "{text:?} instead of {words:?}");
    }
    let mut long = schedule(Collective::AllReduce, exchange());
    long.fifo.slot = Bytes(15);
    assert!(refusal(&long).contains("of 16 bytes does not fit: the slots of a chunk hold 15"));
    long.fifo.slots_per_slice = 3;
    assert_eq!(refusal(&long), "a chunk takes 3 slots, and a connection has 2");
}

#[test]
fn those_who_wait_for_each_other_are_named() {
    let mut steps = exchange();
    steps[0][0].reverse();
    steps[1][0].reverse();
    let error = check(&schedule(Collective::AllReduce, steps)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "deadlock: 2 steps wait for each other\n  \
         rank 0, channel 0, step 0 (chunk 0) waits for a chunk from rank 1 on channel 0\n  \
         rank 1, channel 0, step 0 (chunk 0) waits for a chunk from rank 0 on channel 0"
    );

    let mut steps = exchange();
    steps[1][0].remove(0);
    let text = refusal(&schedule(Collective::AllReduce, steps));
    assert!(text.ends_with("which never comes: rank 1 sends no chunk there"), "{text}");

    let mut steps = exchange();
    steps[0][0].push(send(1));
    assert_eq!(
        refusal(&schedule(Collective::AllReduce, steps.clone())),
        "rank 0, channel 0, step 2 (chunk 0): 1 chunk(s) to rank 1 on channel 0 are never received"
    );
    steps[0][0].extend([send(1), send(1)]);
    let text = refusal(&schedule(Collective::AllReduce, steps));
    assert!(text.contains("step 4 (chunk 0): waits for room in the connection to rank 1"), "{text}");
}

#[test]
fn a_full_queue_blocks_and_one_more_slot_does_not() {
    // Rank 0 sends three chunks before it takes one, and so does rank 1.
    let many = |peer| {
        let mut steps = vec![send(peer), send(peer), send(peer)];
        steps.extend([reduce(peer), reduce(peer), reduce(peer)]);
        vec![steps]
    };
    let mut tight = schedule(Collective::AllReduce, vec![many(1), many(0)]);
    assert!(matches!(check(&tight), Err(CheckError::Deadlock { cycle }) if cycle.len() == 2));
    tight.fifo.depth = 3;
    assert!(check(&tight).is_ok());
}

#[test]
fn workers_that_nothing_orders_race() {
    // One worker puts what comes into the output, the other sends it on to itself by way of scratch memory.
    let take = Step { receives: smallvec![to(0)], sources: smallvec![], ..reduce(0) };
    let take = Step { is_final: false, ..take };
    let copy = Step {
        count: 4,
        sources: smallvec![at(Buffer::Output, 0)],
        stores: smallvec![at(Buffer::Scratch, 0)],
        after: smallvec![After { worker: 0, step: 0 }],
        ..Step::default()
    };
    let own = Step { stores: smallvec![at(Buffer::Output, 0)], ..send(1) };
    let steps = |copy| vec![vec![vec![own.clone()]], vec![vec![take.clone()], vec![copy]]];
    let broadcast = schedule(Collective::Broadcast, steps(copy.clone()));
    assert!(check(&broadcast).unwrap().is_free_of_races);

    let late = Step { after: smallvec![], ..copy.clone() };
    let text = refusal(&schedule(Collective::Broadcast, steps(late)));
    assert!(text.contains("before it is ready") || text.contains("nothing orders the two"), "{text}");

    // Both write, one after the other by chance.
    let again = Step { receives: smallvec![Connection { lane: 1, ..to(0) }], ..take.clone() };
    let both = Step { sends: smallvec![to(1), Connection { lane: 1, ..to(1) }], ..own.clone() };
    let steps = vec![vec![vec![both]], vec![vec![take.clone()], vec![again.clone()]]];
    assert_eq!(
        refusal(&schedule(Collective::Broadcast, steps)),
        "rank 1, worker 1 (channel 0), step 0 (chunk 0): writes element 0 of its output while \
         rank 1, channel 0, step 0 (chunk 0) may still write it: nothing orders the two"
    );
    // The same, but the second chunk leaves rank 0 only after it has heard of the first.
    let note = Step { count: 0, receives: smallvec![to(0)], ..Step::default() };
    let steps = vec![
        vec![vec![
            own.clone(),
            Step { count: 0, receives: smallvec![to(1)], ..Step::default() },
            Step { sends: smallvec![Connection { lane: 1, ..to(1) }], ..send(1) },
        ]],
        vec![vec![take, Step { sends: note.receives, count: 0, ..Step::default() }], vec![again]],
    ];
    assert!(check(&schedule(Collective::Broadcast, steps)).unwrap().is_free_of_races);
}

#[test]
fn a_switch_reduces_and_multicasts() {
    let switch = Connection { channel: 0, lane: 0, peer: Peer::Switch(0) };
    let give = Step { sends: smallvec![switch], ..send(0) };
    let get = Step { receives: smallvec![switch], sources: smallvec![], ..reduce(0) };
    let groups =
        |senders: Vec<u32>| vec![SwitchGroup { kind: SwitchKind::NvLink, senders, receivers: vec![0, 1, 2] }];
    let steps = vec![vec![vec![give.clone(), get.clone()]]; 3];
    let mut good = schedule(Collective::AllReduce, steps.clone());
    good.groups = groups(vec![0, 1, 2]);
    assert_eq!(check(&good).unwrap().chunks, 3);

    good.groups = groups(vec![1, 2]);
    assert!(refusal(&good).contains("rank 0, channel 0, step 0 (chunk 0): sends to the switch of group 0"));

    let mut late = schedule(Collective::AllReduce, steps.clone());
    late.groups = groups(vec![0, 1, 2]);
    let mut fewer = steps.clone();
    fewer[1][0].remove(0);
    late.program = Arc::new(Listed(fewer));
    assert!(refusal(&late).contains("which never comes: rank 1 sends no chunk there"), "{}", refusal(&late));

    let mut unequal = steps;
    unequal[2][0][0].count = 2;
    late.program = Arc::new(Listed(unequal));
    assert!(refusal(&late).contains("gives 2 elements to the switch, but rank 0"), "{}", refusal(&late));
}

#[test]
fn a_barrier_waits_for_everybody() {
    let give = |peer| Step { sends: smallvec![to(peer)], ..Step::default() };
    let take = |peer| Step { receives: smallvec![to(peer)], ..Step::default() };
    let star = vec![
        vec![vec![take(1), take(2), give(1), give(2)]],
        vec![vec![give(0), take(0)]],
        vec![vec![give(0), take(0)]],
    ];
    assert!(check(&schedule(Collective::Barrier, star.clone())).is_ok());
    let mut hasty = star;
    hasty[0][0].swap(1, 2);
    assert_eq!(
        refusal(&schedule(Collective::Barrier, hasty)),
        "rank 1 goes on although it cannot know that rank 2 has come"
    );
}

#[test]
fn data_must_come_from_the_right_element_of_the_right_rank() {
    let copy = |from, to| Step {
        count: 4,
        sources: smallvec![at(Buffer::Input, from)],
        stores: smallvec![at(Buffer::Output, to)],
        ..Step::default()
    };
    let swap = vec![
        vec![vec![copy(0, 0), Step { sources: smallvec![at(Buffer::Input, 4)], ..send(1) }, store(1, 4)]],
        vec![vec![copy(4, 4), send(0), store(0, 0)]],
    ];
    assert!(check(&schedule(Collective::AllToAll, swap.clone())).is_ok());
    let mut wrong = swap.clone();
    wrong[0][0][1].sources[0].offset = 0;
    assert_eq!(
        refusal(&schedule(Collective::AllToAll, wrong)),
        "rank 1, channel 0, step 2 (chunk 0): output element 0 is made of element 0 of the inputs instead of 4"
    );
    let mut lost = swap;
    lost[1][0].remove(0);
    assert_eq!(refusal(&schedule(Collective::AllToAll, lost)), "rank 1: output element 4 was never written");
    let mut root = schedule(Collective::Broadcast, vec![vec![vec![]]]);
    root.call.root = Rank(1);
    assert_eq!(refusal(&root), "the call makes no sense: rank 1 does not exist: there are 1");
}

fn store(from: u32, offset: u64) -> Step {
    Step {
        count: 4,
        receives: smallvec![to(from)],
        stores: smallvec![at(Buffer::Output, offset)],
        ..Step::default()
    }
}
