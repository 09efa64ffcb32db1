//! Hypercube: ranks whose numbers differ in one bit exchange what they have, one bit after the other. A power of two of
//! ranks sends as few messages each as that has bits, where a direct exchange sends one to everybody.
//!
//! - AllGather *doubles*: after bit k a rank has the blocks of the 2^(k+1) ranks around it, which lie next to each other.
//! - ReduceScatter *halves*, from the highest bit on: a rank gives away the half that is not its own, and adds what it gets
//!   to the other.
//! - AllReduce halves and then doubles (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
//!   Operations in MPICH", 2005). Of little data all is the first rank's part: sums go to it along a binomial tree, and the
//!   result comes back.
//! - AllToAll passes blocks on: what has to go to a rank that differs in several bits goes over as many others.
//!
//! One rank makes each result, so that all get the same bits. All is done by one worker on one channel:
//! where there is so much data that more would help, other algorithms are better.

use super::split::{chunk, starts};
use super::{
    Arc, BuildError, Call, Choice, Collective, Counts, Program, Schedule, Wiring, input, output, with,
};
use crate::schedule::{Buffer, Piece, Step};

/// Bytes up to which an AllReduce is added up by the first rank alone: to share it out takes more messages, which take longer
/// than more data.
const ALONE_MOST: u64 = 32 << 10;

/// Whether an AllReduce of so many bytes is added up by the first rank alone.
pub(crate) const fn is_alone(bytes: u64) -> bool {
    bytes <= ALONE_MOST
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    if !ranks.is_power_of_two() {
        let reason = format!("it needs a power of two of ranks, and there are {ranks}");
        return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    }
    let chunk = chunk(call, choice, &fifo);
    if call.collective == Collective::AllToAll {
        return Items::build(call, choice, ranks, chunk);
    }
    let program = Ranges::new(call, ranks, chunk);
    // What a rank has added up of others' blocks: half of all.
    let scratch = match call.collective {
        Collective::ReduceScatter if ranks > 2 => program.longest_half(),
        _ => 0,
    };
    let schedule = choice.schedule(call, ranks, fifo, 1, Arc::new(program));
    Ok(Schedule { scratch, ..schedule })
}

/// Parts of a buffer, one for each rank, that move in groups of 2^k.
#[derive(Debug)]
struct Ranges {
    collective: Collective,
    in_place: bool,
    bits: u32,
    chunk: u64,
    /// Where the part of each rank begins, and where the last ends.
    starts: Arc<[u64]>,
}

/// What is done at a bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Gives the other half away, and adds to this one.
    Halve(u32),
    /// Gives what it has, and takes as much.
    Double(u32),
}

/// Elements from one on.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    count: u64,
}

impl Ranges {
    fn new(call: &Call, ranks: u32, chunk: u64) -> Self {
        let counts = match (call.collective, &call.counts) {
            (Collective::AllReduce, Counts::Each(count)) => {
                // Parts begin at multiples of 16 bytes.
                let is_alone = is_alone(call.bytes(ranks).0);
                let grain = if is_alone { *count } else { 16 / call.dtype.size() as u64 };
                let grain = grain.max(1);
                let part = count.div_ceil(u64::from(ranks)).next_multiple_of(grain);
                let end = |parts: u32| (part * u64::from(parts)).min(*count);
                (0..ranks).map(|rank| end(rank + 1) - end(rank)).collect()
            }
            (_, Counts::Each(count)) => vec![*count; ranks as usize],
            (_, Counts::PerRank(counts) | Counts::PerPair(counts)) => counts.to_vec(),
        };
        let (collective, in_place, bits) = (call.collective, call.in_place, ranks.ilog2());
        Self { collective, in_place, bits, chunk, starts: starts(&counts) }
    }

    /// The parts of the group of 2^bit ranks that a rank is in.
    fn group(&self, rank: u32, bit: u32) -> Range {
        let first = (rank >> bit << bit) as usize;
        let start = self.starts[first];
        Range { start, count: self.starts[first + (1 << bit)] - start }
    }

    /// The longest of the two halves of all parts.
    fn longest_half(&self) -> u64 {
        let top = self.bits - 1;
        self.group(0, top).count.max(self.group(1 << top, top).count)
    }

    fn phases(&self) -> impl Iterator<Item = Phase> {
        let halves = if self.collective == Collective::AllGather { 0 } else { self.bits };
        let doubles = if self.collective == Collective::ReduceScatter { 0 } else { self.bits };
        (0..halves).rev().map(Phase::Halve).chain((0..doubles).map(Phase::Double))
    }

    /// What a rank gives and what it takes in a phase.
    fn moved(&self, rank: u32, phase: Phase) -> (Range, Range) {
        let (Phase::Halve(bit) | Phase::Double(bit)) = phase;
        let (own, other) = (self.group(rank, bit), self.group(rank ^ 1 << bit, bit));
        if matches!(phase, Phase::Halve(_)) { (other, own) } else { (own, other) }
    }

    /// Chunks of a range.
    const fn chunks(&self, range: Range) -> u64 {
        range.count.div_ceil(self.chunk)
    }

    /// Where a rank keeps what it has added up so far, from an element of the whole on.
    fn sum(&self, rank: u32, at: u64) -> Piece {
        if self.collective == Collective::AllReduce {
            return output(at);
        }
        let half = self.group(rank, self.bits - 1).start;
        Piece { buffer: Buffer::Scratch, offset: at - half }
    }

    fn give(&self, rank: u32, phase: Phase, at: u64) -> Step {
        let mut step = Step::default();
        let own = self.starts[rank as usize];
        match phase {
            Phase::Halve(bit) if bit + 1 == self.bits => step.sources.push(input(at)),
            Phase::Halve(_) => step.sources.push(self.sum(rank, at)),
            // The block of an AllGather is new in its first phase.
            Phase::Double(0) if self.collective == Collective::AllGather => {
                step.sources.push(input(at - own));
                if !self.in_place {
                    step.stores.push(output(at));
                }
            }
            Phase::Double(_) => step.sources.push(output(at)),
        }
        step
    }

    fn take(&self, rank: u32, phase: Phase, at: u64) -> Step {
        let mut step = Step::default();
        match phase {
            Phase::Halve(bit) => {
                step.sources.push(if bit + 1 == self.bits { input(at) } else { self.sum(rank, at) });
                step.is_final = bit == 0;
                let is_over = step.is_final && self.collective == Collective::ReduceScatter;
                let own = self.starts[rank as usize];
                step.stores.push(if is_over { output(at - own) } else { self.sum(rank, at) });
            }
            Phase::Double(_) => step.stores.push(output(at)),
        }
        step
    }
}

impl Program for Ranges {
    fn workers(&self, _rank: u32) -> u32 {
        1
    }

    fn steps(&self, rank: u32, _worker: u32) -> u64 {
        let steps = self.phases().map(|phase| {
            let (given, taken) = self.moved(rank, phase);
            self.chunks(given) + self.chunks(taken)
        });
        steps.sum()
    }

    /// A chunk is given, a chunk is taken, and so on: two that wait for each other with all of it would wait for ever.
    fn step(&self, rank: u32, _worker: u32, number: u64) -> Step {
        let mut left = number;
        for phase in self.phases() {
            let (given, taken) = self.moved(rank, phase);
            let (gives, takes) = (self.chunks(given), self.chunks(taken));
            if left >= gives + takes {
                left -= gives + takes;
                continue;
            }
            let both = gives.min(takes);
            let (index, is_given) = if left < 2 * both {
                (left / 2, left.is_multiple_of(2))
            } else {
                (left - both, gives > takes)
            };
            let range = if is_given { given } else { taken };
            let at = range.start + index * self.chunk;
            let mut step = if is_given { self.give(rank, phase, at) } else { self.take(rank, phase, at) };
            let (Phase::Halve(bit) | Phase::Double(bit)) = phase;
            let connection = with(0, 0, rank ^ 1 << bit);
            if is_given {
                step.sends.push(connection);
            } else {
                step.receives.push(connection);
            }
            step.count = self.chunk.min(range.count - index * self.chunk);
            step.chunk = (at / self.chunk) as u32;
            return step;
        }
        unreachable!("there are fewer steps")
    }
}

/// An AllToAll. A rank has an item for each number of a rank, at first the block for the rank whose number differs from its
/// own in the bits of the item's. At each bit it exchanges the items that have it, and in the end has what is for itself.
#[derive(Debug)]
struct Items {
    bits: u32,
    chunk: u64,
    /// Elements of a block.
    count: u64,
    /// Items that are sent before one is received.
    batch: u32,
}

impl Items {
    fn build(call: &Call, choice: &Choice, ranks: u32, chunk: u64) -> Result<Schedule, BuildError> {
        if call.in_place {
            return Err(BuildError::NotInPlace { collective: call.collective });
        }
        let Counts::Each(count) = call.counts else {
            let reason = "it needs blocks of one length".to_owned();
            return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
        };
        let fifo = choice.fifo(false);
        // More would wait for room while the other rank does too. Half of the items have each bit.
        let room = (fifo.depth / fifo.slots_per_chunk()).max(1);
        let batch = (1 << room.ilog2()).min(ranks / 2);
        let chunk = chunk.min(count.max(1));
        let program = Arc::new(Self { bits: ranks.ilog2(), chunk, count, batch });
        let schedule = choice.schedule(call, ranks, fifo, 1, program);
        let scratch = if ranks > 2 { u64::from(ranks) * chunk } else { 0 };
        Ok(Schedule { scratch, ..schedule })
    }

    /// Sends and receives of a chunk of each block.
    const fn steps_each(&self) -> u64 {
        (self.bits as u64) << self.bits
    }
}

impl Program for Items {
    fn workers(&self, _rank: u32) -> u32 {
        1
    }

    /// What a rank has for itself comes last.
    fn steps(&self, _rank: u32, _worker: u32) -> u64 {
        self.count.div_ceil(self.chunk) * self.steps_each() + u64::from(self.count > 0)
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let block = |rank: u32| u64::from(rank) * self.count;
        if number + 1 == self.steps(rank, worker) {
            let mut step = Step { count: self.count, ..Step::default() };
            step.sources.push(input(block(rank)));
            step.stores.push(output(block(rank)));
            return step;
        }
        let (looped, at) = (number / self.steps_each(), (number % self.steps_each()) as u32);
        let first = looped * self.chunk;
        let count = self.chunk.min(self.count - first);
        let mut step = Step { chunk: looped as u32, count, ..Step::default() };
        let (bit, within) = (at >> self.bits, at & ((1 << self.bits) - 1));
        let (batch, place) = (within / (2 * self.batch), within % (2 * self.batch));
        // The n-th of those items that have the bit.
        let n = batch * self.batch + place % self.batch;
        let item = (n >> bit) << (bit + 1) | 1 << bit | n & ((1 << bit) - 1);
        let kept = Piece { buffer: Buffer::Scratch, offset: u64::from(item) * self.chunk };
        let other = with(0, 0, rank ^ 1 << bit);
        if place < self.batch {
            let is_first = item.trailing_zeros() == bit;
            step.sources.push(if is_first { input(block(rank ^ item) + first) } else { kept });
            step.sends.push(other);
        } else {
            let is_last = item.ilog2() == bit;
            step.receives.push(other);
            step.stores.push(if is_last { output(block(rank ^ item) + first) } else { kept });
        }
        step
    }
}
