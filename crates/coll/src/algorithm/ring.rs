//! Ring: every rank sends to the next (NCCL 2.30 device/all_reduce.h and its neighbours). One worker for each channel.
//!
//! In AllReduce, AllGather and ReduceScatter every rank begins with a chunk of its own, and all connections are busy all
//! the time. Broadcast and Reduce are pipelines along the ring, from the root or to it.

use super::split::{Blocks, chunk};
use super::{Arc, BuildError, Call, Choice, Collective, Program, Schedule, Wiring, input, output, with};
use crate::machine::Direction;
use crate::schedule::{Step, Usage, uses_of};

#[derive(Debug)]
struct Ring {
    collective: Collective,
    ranks: u64,
    root: u32,
    in_place: bool,
    chunk: u64,
    blocks: Blocks,
    orders: Vec<Order>,
}

/// Who comes after whom.
#[derive(Debug)]
struct Order {
    ranks: Vec<u32>,
    /// The place of each rank in it.
    place: Vec<u32>,
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    let ranks = wiring.ranks();
    let is_pipeline = matches!(call.collective, Collective::Broadcast | Collective::Reduce);
    let fifo = choice.fifo(!is_pipeline);
    // Everybody takes a chunk and passes one on in the same step: with less room they would all wait for the next.
    if !is_pipeline && fifo.depth < 2 * fifo.slots_per_chunk() {
        let reason = "a ring stands still unless connections have room for two chunks".to_owned();
        return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    }
    let blocks = Blocks::new(call, choice, ranks);
    let program = Ring {
        collective: call.collective,
        ranks: u64::from(ranks),
        root: call.root.0,
        in_place: call.in_place,
        chunk: chunk(call, choice, &fifo),
        blocks,
        orders: orders(choice, wiring)?,
    };
    let channels = program.blocks.channels();
    Ok(choice.schedule(call, ranks, fifo, channels, Arc::new(program)))
}

fn orders(choice: &Choice, wiring: &Wiring) -> Result<Vec<Order>, BuildError> {
    let impossible = |reason| BuildError::Impossible { algorithm: choice.algorithm, reason };
    if wiring.rings.is_empty() {
        return Err(impossible("the wiring has no ring".to_owned()));
    }
    let mut orders = Vec::new();
    for (index, ring) in wiring.rings.iter().enumerate() {
        let mut place = vec![u32::MAX; wiring.ranks() as usize];
        for (at, rank) in ring.iter().enumerate() {
            match place.get_mut(*rank as usize) {
                Some(place) if *place == u32::MAX => *place = at as u32,
                _ => return Err(impossible(format!("ring {index} has rank {rank} once too often"))),
            }
        }
        if let Some(rank) = place.iter().position(|place| *place == u32::MAX) {
            return Err(impossible(format!("ring {index} leaves out rank {rank}")));
        }
        orders.push(Order { ranks: ring.clone(), place });
    }
    Ok(orders)
}

impl Ring {
    /// Steps of a loop.
    fn turns(&self) -> u64 {
        match self.collective {
            Collective::AllReduce => 2 * self.ranks - 1,
            Collective::AllGather | Collective::ReduceScatter => self.ranks,
            _ => 1,
        }
    }

    fn all_reduce(&self, here: u64, channel: u32, looped: u64, turn: u64) -> Turn {
        let n = self.ranks;
        // Round and round: first the chunk before this rank's, then the ones before that.
        let index = (here + 2 * n - 1 - turn) % n;
        let share = self.blocks.share(0, channel);
        let (offset, count) = share.looped(self.chunk, self.blocks.grain(), n, looped, index);
        Turn {
            chunk: looped * n + index,
            count,
            receives: turn > 0,
            source: (turn < n).then_some(offset),
            store: (turn + 1 >= n).then_some(offset),
            sends: turn < 2 * n - 2,
            is_final: turn + 1 == n,
        }
    }

    fn all_gather(&self, here: u64, order: &Order, channel: u32, looped: u64, turn: u64) -> Turn {
        let n = self.ranks;
        let block = order.ranks[((here + n - turn) % n) as usize];
        let (offset, count) = self.blocks.share(block, channel).part(looped * self.chunk, self.chunk);
        let is_own = turn == 0;
        Turn {
            chunk: looped * n + u64::from(block),
            count,
            receives: !is_own,
            source: is_own.then_some(offset),
            store: (!is_own || !self.in_place).then_some(self.blocks.start(block) + offset),
            sends: turn + 1 < n,
            is_final: false,
        }
    }

    fn reduce_scatter(&self, here: u64, order: &Order, channel: u32, looped: u64, turn: u64) -> Turn {
        let n = self.ranks;
        let block = order.ranks[((here + 2 * n - 1 - turn) % n) as usize];
        let (offset, count) = self.blocks.share(block, channel).part(looped * self.chunk, self.chunk);
        let is_own = turn + 1 == n;
        Turn {
            chunk: looped * n + u64::from(block),
            count,
            receives: turn > 0,
            source: Some(self.blocks.start(block) + offset),
            store: is_own.then_some(offset),
            sends: !is_own,
            is_final: is_own,
        }
    }

    /// `distance`: how many places after the root.
    fn pipeline(&self, distance: u64, channel: u32, looped: u64) -> Turn {
        let (offset, count) = self.blocks.share(0, channel).part(looped * self.chunk, self.chunk);
        let (is_root, is_last) = (distance == 0, distance + 1 == self.ranks);
        if self.collective == Collective::Broadcast {
            return Turn {
                chunk: looped,
                count,
                receives: !is_root,
                source: is_root.then_some(offset),
                store: (!is_root || !self.in_place).then_some(offset),
                sends: !is_last,
                is_final: false,
            };
        }
        Turn {
            chunk: looped,
            count,
            receives: distance != 1,
            source: Some(offset),
            store: is_root.then_some(offset),
            sends: !is_root,
            is_final: is_root,
        }
    }
}

/// What a rank does at one time.
struct Turn {
    chunk: u64,
    count: u64,
    receives: bool,
    source: Option<u64>,
    store: Option<u64>,
    sends: bool,
    is_final: bool,
}

impl Program for Ring {
    fn workers(&self, _rank: u32) -> u32 {
        self.blocks.channels()
    }

    fn steps(&self, _rank: u32, worker: u32) -> u64 {
        let parts = if self.collective == Collective::AllReduce { self.ranks } else { 1 };
        self.blocks.loops(worker, parts * self.chunk) * self.turns()
    }

    fn uses(&self, rank: u32, worker: u32) -> Vec<Usage> {
        let loops = self.steps(rank, worker) / self.turns();
        let each = match self.collective {
            Collective::AllReduce => 2 * self.ranks - 2,
            Collective::AllGather | Collective::ReduceScatter => self.ranks - 1,
            _ => return uses_of(self, rank, worker, 1, loops),
        };
        let order = &self.orders[worker as usize % self.orders.len()];
        let here = u64::from(order.place[rank as usize]);
        let usage = |direction, place: u64| {
            let connection = with(worker, 0, order.ranks[(place % self.ranks) as usize]);
            Usage { direction, connection, chunks: loops * each }
        };
        // Everybody begins with a chunk of its own.
        let both = [usage(Direction::Send, here + 1), usage(Direction::Receive, here + self.ranks - 1)];
        both.into_iter().filter(|one| one.chunks > 0).collect()
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let order = &self.orders[worker as usize % self.orders.len()];
        let n = self.ranks;
        let here = u64::from(order.place[rank as usize]);
        let (looped, turn) = (number / self.turns(), number % self.turns());
        let turn = match self.collective {
            Collective::AllReduce => self.all_reduce(here, worker, looped, turn),
            Collective::AllGather => self.all_gather(here, order, worker, looped, turn),
            Collective::ReduceScatter => self.reduce_scatter(here, order, worker, looped, turn),
            _ => {
                let root = u64::from(order.place[self.root as usize]);
                self.pipeline((here + n - root) % n, worker, looped)
            }
        };
        let peer = |place: u64| with(worker, 0, order.ranks[(place % n) as usize]);
        let mut step =
            Step { chunk: turn.chunk as u32, count: turn.count, is_final: turn.is_final, ..Step::default() };
        step.receives.extend(turn.receives.then(|| peer(here + n - 1)));
        step.sources.extend(turn.source.map(input));
        step.stores.extend(turn.store.map(output));
        step.sends.extend(turn.sends.then(|| peer(here + 1)));
        step
    }
}
