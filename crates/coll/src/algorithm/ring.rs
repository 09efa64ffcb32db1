//! Ring: every rank sends to the next (NCCL 2.30 device/all_reduce.h and its neighbours).

use super::split::{Share, cell, chunk, shares};
use super::{Algorithm, Arc, BuildError, Call, Choice, Collective, Program, Schedule, Wiring};
use crate::schedule::{Buffer, Connection, Peer, Piece, Step};

/// The steps of a ring, one worker for each channel.
#[derive(Debug)]
struct Ring {
    ranks: u64,
    /// Elements that 16 bytes hold: chunks of the last loop are whole multiples of it.
    grain: u64,
    chunk: u64,
    channels: Vec<Channel>,
}

#[derive(Debug)]
struct Channel {
    share: Share,
    order: Vec<u32>,
    /// The place of each rank in the order.
    place: Vec<u32>,
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    if call.collective != Collective::AllReduce {
        return Err(BuildError::Unsupported { algorithm: Algorithm::Ring, collective: call.collective });
    }
    let ranks = wiring.ranks();
    let fifo = choice.fifo(true);
    let count = call.block_of(0, ranks);
    let channels: Vec<_> = shares(count, choice.channels, cell(call, choice.protocol, 2))
        .into_iter()
        .zip(wiring.rings.iter().cycle())
        .map(|(share, order)| {
            let mut place = vec![0; ranks as usize];
            for (index, rank) in order.iter().enumerate() {
                place[*rank as usize] = index as u32;
            }
            Channel { share, order: order.clone(), place }
        })
        .collect();
    let program = Ring {
        ranks: u64::from(ranks),
        grain: (16 / call.dtype.size() as u64).max(1),
        chunk: chunk(call, choice.protocol, &fifo, choice.chunk),
        channels,
    };
    Ok(Schedule {
        call: call.clone(),
        ranks,
        algorithm: Algorithm::Ring,
        protocol: choice.protocol,
        channels: program.channels.len() as u32,
        fifo,
        groups: Vec::new(),
        scratch: 0,
        program: Arc::new(program),
    })
}

impl Ring {
    /// The first element of chunk `index` of a loop, and how many it has.
    fn range(&self, share: Share, looped: u64, index: u64) -> (u64, u64) {
        let first = looped * self.ranks * self.chunk;
        let left = share.count - first;
        let size = left.div_ceil(self.ranks).next_multiple_of(self.grain).min(self.chunk);
        let start = (first + index * size).min(share.count);
        (share.start + start, size.min(share.count - start))
    }
}

impl Program for Ring {
    fn workers(&self, _rank: u32) -> u32 {
        self.channels.len() as u32
    }

    fn steps(&self, _rank: u32, worker: u32) -> u64 {
        let loops = self.channels[worker as usize].share.count.div_ceil(self.ranks * self.chunk);
        loops * if self.ranks == 1 { 1 } else { 2 * self.ranks - 1 }
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let Channel { share, order, place } = &self.channels[worker as usize];
        let n = self.ranks;
        let here = u64::from(place[rank as usize]);
        let peer = |place: u64| Connection {
            channel: worker as u16,
            lane: 0,
            peer: Peer::Rank(order[(place % n) as usize]),
        };
        let (previous, next) = (peer(here + n - 1), peer(here + 1));
        let (looped, turn) = (number / (2 * n - 1), number % (2 * n - 1));
        // Round and round: first the chunk before this rank's, then the ones before that.
        let index = (here + 2 * n - 1 - turn) % n;
        let (offset, count) = self.range(*share, looped, index);
        let mut step = Step { chunk: (looped * n + index) as u32, count, ..Step::default() };
        let (is_reduction, is_last) = (turn < n, turn == 2 * n - 2);
        if is_reduction {
            step.sources.push(Piece { buffer: Buffer::Input, offset });
        }
        if turn > 0 {
            step.receives.push(previous);
        }
        if turn + 1 >= n {
            step.stores.push(Piece { buffer: Buffer::Output, offset });
        }
        if !is_last {
            step.sends.push(next);
        }
        step.is_final = turn + 1 == n;
        step
    }
}
