//! Barrier by dissemination: in round k every rank tells the one 2^k after it that it has heard of the 2^k before.
//!
//! (NCCL has no barrier; its users reduce one element. This needs as few rounds, and no data.)

use super::{Arc, Call, Choice, Program, Schedule, Wiring, with};
use crate::schedule::Step;

#[derive(Debug)]
struct Barrier {
    ranks: u32,
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Schedule {
    let ranks = wiring.ranks();
    choice.schedule(call, ranks, choice.fifo(false), 1, Arc::new(Barrier { ranks }))
}

impl Program for Barrier {
    fn workers(&self, _rank: u32) -> u32 {
        1
    }

    fn steps(&self, _rank: u32, _worker: u32) -> u64 {
        2 * u64::from(self.ranks.next_power_of_two().ilog2())
    }

    fn step(&self, rank: u32, _worker: u32, number: u64) -> Step {
        let distance = 1 << (number / 2);
        let mut step = Step { chunk: (number / 2) as u32, ..Step::default() };
        if number.is_multiple_of(2) {
            step.sends.push(with(0, 0, (rank + distance) % self.ranks));
        } else {
            step.receives.push(with(0, 0, (rank + self.ranks - distance) % self.ranks));
        }
        step
    }
}
