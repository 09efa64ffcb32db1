//! One rank: nothing to talk about, but the input has to get into the output (NCCL 2.30 `ncclLaunchOneRank`).

use super::{Arc, Call, Choice, Collective, Program, Schedule, input, output};
use crate::schedule::Step;

#[derive(Debug)]
struct Copy {
    count: u64,
    is_final: bool,
}

pub(super) fn build(call: &Call, choice: &Choice) -> Schedule {
    let count = match call.collective {
        Collective::Barrier => 0,
        // What is only moved is there already.
        collective if call.in_place && !collective.reduces() => 0,
        _ => call.block_of(0, 1),
    };
    let program = Copy { count, is_final: call.collective.reduces() };
    choice.schedule(call, 1, choice.fifo(false), 1, Arc::new(program))
}

impl Program for Copy {
    fn workers(&self, _rank: u32) -> u32 {
        1
    }

    fn steps(&self, _rank: u32, _worker: u32) -> u64 {
        u64::from(self.count > 0)
    }

    fn step(&self, _rank: u32, _worker: u32, _number: u64) -> Step {
        let mut step = Step { count: self.count, is_final: self.is_final, ..Step::default() };
        step.sources.push(input(0));
        step.stores.push(output(0));
        step
    }
}
