//! Good schedules with one step broken: the checker has to refuse every one of them.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;

use proptest::prelude::*;
use railnet_coll::check::check;
use railnet_coll::{
    Algorithm, Call, Choice, Collective, Connection, Peer, Program, Protocol, Schedule, Step, Wiring, build,
};
use railnet_core::{Bytes, Rank, ReduceOp};

/// What is done to a step. Each changes what the schedule does, whatever the step.
#[derive(Clone, Copy, Debug)]
enum Break {
    OtherPeer,
    OtherLane,
    NoSend,
    NoReceive,
    NoSource,
    SourceTwice,
    NoStore,
    Shifted,
    StoredElsewhere,
    Longer,
    Shorter,
    NotFinal,
    Skipped,
    Hasty,
}

const BREAKS: [Break; 14] = [
    Break::OtherPeer,
    Break::OtherLane,
    Break::NoSend,
    Break::NoReceive,
    Break::NoSource,
    Break::SourceTwice,
    Break::NoStore,
    Break::Shifted,
    Break::StoredElsewhere,
    Break::Longer,
    Break::Shorter,
    Break::NotFinal,
    Break::Skipped,
    Break::Hasty,
];

/// The broken step, where this can be broken.
fn broken(good: &Step, how: Break, ranks: u32, reduces: bool) -> Option<Step> {
    let mut step = good.clone();
    let has_data = step.count > 0;
    let other = |on: &mut Connection| {
        on.peer = match on.peer {
            Peer::Rank(rank) => Peer::Rank((rank + 1) % ranks),
            Peer::Switch(group) => Peer::Switch(group + 1000),
        };
    };
    match how {
        Break::OtherPeer => step.sends.first_mut().or(step.receives.first_mut()).map(other),
        Break::OtherLane => step.receives.first_mut().map(|on| on.lane += 100),
        Break::NoSend => step.sends.pop().map(drop),
        Break::NoReceive => step.receives.pop().map(drop),
        Break::NoSource => step.sources.pop().filter(|_| has_data).map(drop),
        Break::SourceTwice => {
            let source = step.sources.first().copied().filter(|_| has_data && reduces);
            source.map(|source| step.sources.push(source))
        }
        Break::NoStore => step.stores.pop().filter(|_| has_data).map(drop),
        Break::Shifted => step.sources.first_mut().filter(|_| has_data).map(|piece| piece.offset += 1),
        Break::StoredElsewhere => step.stores.first_mut().filter(|_| has_data).map(|piece| piece.offset += 1),
        Break::Longer => (has_data || !step.receives.is_empty()).then(|| step.count += 1),
        Break::Shorter => has_data.then(|| step.count -= 1),
        Break::NotFinal => (step.is_final && has_data).then(|| step.is_final = false),
        Break::Hasty => step.after.pop().map(drop),
        Break::Skipped => {
            let does_something = has_data || !step.receives.is_empty() || !step.sends.is_empty();
            does_something.then(|| step = Step::default())
        }
    }?;
    Some(step)
}

/// A program with one step replaced.
#[derive(Debug)]
struct Mutated {
    good: Arc<dyn Program>,
    at: (u32, u32, u64),
    step: Step,
}

impl Program for Mutated {
    fn workers(&self, rank: u32) -> u32 {
        self.good.workers(rank)
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        self.good.steps(rank, worker)
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        if (rank, worker, number) == self.at {
            self.step.clone()
        } else {
            self.good.step(rank, worker, number)
        }
    }
}

/// Small schedules of all kinds, out of place: in place, a copy onto itself may be left out. An average, so that it
/// matters where it is divided.
fn good() -> Vec<Schedule> {
    let mut schedules = Vec::new();
    for (nodes, per_node) in [(1, 3), (1, 8), (2, 3), (4, 1), (3, 2)] {
        let wiring = Wiring::uniform(nodes, per_node);
        for algorithm in Algorithm::BUILT {
            for collective in Collective::ALL {
                let root = Rank(nodes * per_node - 1);
                let call = Call { op: ReduceOp::Average, root, ..Call::new(collective, 1_003) };
                let choice =
                    Choice { buffer: Some(Bytes(4096)), ..Choice::new(algorithm, Protocol::Simple).on(2) };
                schedules.extend(build(&call, &choice, &wiring));
            }
        }
    }
    schedules
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5_000,
        max_global_rejects: 50_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_broken_step_is_refused(
        which in any::<prop::sample::Index>(),
        rank in any::<prop::sample::Index>(),
        worker in any::<prop::sample::Index>(),
        number in any::<prop::sample::Index>(),
        how in prop::sample::select(&BREAKS[..]),
    ) {
        thread_local! { static GOOD: Vec<Schedule> = good(); }
        let mut schedule = GOOD.with(|good| good[which.index(good.len())].clone());
        let rank = rank.index(schedule.ranks as usize) as u32;
        let workers = schedule.program.workers(rank);
        prop_assume!(workers > 0);
        let worker = worker.index(workers as usize) as u32;
        let steps = schedule.program.steps(rank, worker);
        prop_assume!(steps > 0);
        let number = number.index(steps as usize) as u64;
        let step = schedule.program.step(rank, worker, number);
        let reduces = schedule.call.collective.reduces();
        let changed = broken(&step, how, schedule.ranks, reduces);
        prop_assume!(changed.is_some());
        let changed = changed.unwrap();
        schedule.program = Arc::new(Mutated {
            good: schedule.program.clone(),
            at: (rank, worker, number),
            step: changed,
        });
        let outcome = check(&schedule);
        prop_assert!(
            outcome.is_err(),
            "{} {} on {} ranks is accepted with rank {rank}, worker {worker}, step {number} broken ({how:?}): {step:?}",
            schedule.algorithm, schedule.call.collective, schedule.ranks
        );
    }
}

#[test]
fn all_kinds_of_schedules_are_broken() {
    let good = good();
    assert!(good.len() > 80, "only {} schedules", good.len());
    for schedule in &good {
        check(schedule).unwrap();
    }
    assert!(good.iter().any(|schedule| !schedule.groups.is_empty()));
    // Somewhere every kind of breakage is possible.
    for how in BREAKS {
        let can = good.iter().any(|schedule| {
            (0..schedule.program.steps(0, 0)).any(|number| {
                let step = schedule.program.step(0, 0, number);
                broken(&step, how, schedule.ranks, schedule.call.collective.reduces()).is_some()
            })
        });
        assert!(can, "{how:?} never happens");
    }
}
