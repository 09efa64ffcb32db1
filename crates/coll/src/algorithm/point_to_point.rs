//! Grouped sends and receives: AllToAll, Gather, Scatter and SendReceive, in the order of [`PairOrder`].
//!
//! What one rank sends to another is cut into parts on different channels. A channel works on at most 8 of them at once;
//! for each of these a rank has a worker that sends and one that receives. Workers go through rounds in ascending order
//! on all ranks, so the lowest round that is not over can always go on.
//!
//! Which NIC a message takes, its own or by NVLink that of a neighbour on the rail of its target (NCCL's PXN), is a
//! matter of the transport of the connection: the schedule is the same.

use railnet_core::Rank;

use super::pairs::PairOrder;
use super::split::{chunk, starts};
use super::{Arc, BuildError, Call, Choice, Collective, Program, Schedule, Wiring, input, output, with};
use crate::call::Counts;
use crate::schedule::Step;

/// Works of a channel at once (NCCL's `NCCL_MAX_DEV_WORK_P2P_PER_BATCH`).
const AT_ONCE: usize = 8;
/// Parts begin at multiples of this.
const PAGE: u64 = 4096;

#[derive(Debug)]
struct Points {
    call: Call,
    ranks: u32,
    order: PairOrder,
    cut: Cut,
    channels: u32,
    /// (round, part) that a worker goes through, for each channel, and for each of those at once.
    works: Vec<Vec<(u32, u32)>>,
    /// The steps of the first works of each list together, where they are the same for all ranks.
    ends: Option<Vec<Vec<u64>>>,
    starts: Starts,
}

/// Where blocks begin.
#[derive(Debug)]
enum Starts {
    Each(u64),
    PerRank(Arc<[u64]>),
    /// In the input of the sender, and in the output of the receiver, in rows of the sender.
    PerPair(Vec<u64>, Vec<u64>),
}

/// How a message is cut into parts and chunks. In elements.
#[derive(Debug)]
struct Cut {
    chunk: u64,
    page: u64,
    parts: u32,
}

impl Cut {
    fn new(call: &Call, choice: &Choice, ranks: u32, channels: u32) -> Self {
        // Without a word about it: as many as there are channels for each rank (NCCL's least).
        let parts = choice.parts.unwrap_or(channels / ranks).clamp(1, channels);
        let chunk = chunk(call, choice, &choice.fifo(false));
        Self { chunk, page: PAGE / call.dtype.size() as u64, parts }
    }

    /// Where a part begins, and how many elements it has.
    fn part(&self, count: u64, part: u32) -> (u64, u64) {
        let size = count.div_ceil(u64::from(self.parts)).next_multiple_of(self.page);
        let start = (size * u64::from(part)).min(count);
        (start, size.min(count - start))
    }

    /// Parts that are not empty, and one at least.
    fn parts(&self, count: u64) -> u32 {
        let size = count.div_ceil(u64::from(self.parts)).next_multiple_of(self.page);
        count.div_ceil(size.max(1)).max(1) as u32
    }
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    if call.collective == Collective::AllToAll && call.in_place {
        return Err(BuildError::NotInPlace { collective: call.collective });
    }
    let (ranks, order) = (wiring.ranks(), PairOrder::new(wiring));
    let channels = choice.channels.max(1).next_power_of_two();
    let mut program = Points {
        cut: Cut::new(call, choice, ranks, channels),
        call: call.clone(),
        ranks,
        channels,
        works: Vec::new(),
        ends: None,
        starts: Starts::new(call, ranks),
        order,
    };
    if call.collective != Collective::SendReceive {
        program.works = program.works();
    }
    if call.collective == Collective::AllToAll && matches!(call.counts, Counts::Each(_)) {
        let ends = |works: &Vec<(u32, u32)>| {
            let mut end = 0;
            let steps = works.iter().map(|(round, part)| {
                end += program.steps_of(0, program.order.target(0, *round), *part);
                end
            });
            steps.collect()
        };
        program.ends = Some(program.works.iter().map(ends).collect());
    }
    Ok(choice.schedule(call, ranks, choice.fifo(false), channels, Arc::new(program)))
}

impl Starts {
    fn new(call: &Call, ranks: u32) -> Self {
        match &call.counts {
            Counts::Each(count) => Self::Each(*count),
            Counts::PerRank(counts) => Self::PerRank(starts(counts)),
            Counts::PerPair(counts) => {
                let n = ranks as usize;
                let (mut inputs, mut outputs) = (vec![0; n * n], vec![0; n * n]);
                for one in 0..n {
                    let (mut input, mut output) = (0, 0);
                    for other in 0..n {
                        inputs[one * n + other] = input;
                        input += counts[one * n + other];
                        outputs[other * n + one] = output;
                        output += counts[other * n + one];
                    }
                }
                Self::PerPair(inputs, outputs)
            }
        }
    }

    fn of_rank(&self, rank: u32) -> u64 {
        match self {
            Self::Each(count) => count * u64::from(rank),
            Self::PerRank(starts) => starts[rank as usize],
            Self::PerPair(..) => 0,
        }
    }
}

/// What a rank has to do.
enum Role {
    /// Something with everybody.
    All,
    Send(u32),
    Receive(u32),
    Nothing,
}

impl Points {
    fn role(&self, rank: u32) -> Role {
        let (Rank(root), Rank(peer)) = (self.call.root, self.call.peer);
        match self.call.collective {
            Collective::Gather if rank != root => Role::Send(root),
            Collective::Scatter if rank != root => Role::Receive(root),
            Collective::SendReceive if rank == root => Role::Send(peer),
            Collective::SendReceive if rank == peer => Role::Receive(root),
            Collective::SendReceive => Role::Nothing,
            _ => Role::All,
        }
    }

    /// What a rank has for another, where anything at all.
    fn count(&self, from: u32, to: u32) -> Option<u64> {
        let Rank(root) = self.call.root;
        let moves = match self.call.collective {
            Collective::Gather => to == root,
            Collective::Scatter => from == root,
            _ => true,
        };
        let is_there = from == to && self.call.in_place;
        let owner = if self.call.collective == Collective::Scatter { to } else { from };
        (moves && !is_there).then(|| self.call.block(Rank(owner), Rank(to), self.ranks))
    }

    /// Its first element in the input and in the output.
    fn places(&self, from: u32, to: u32) -> (u64, u64) {
        match (self.call.collective, &self.starts) {
            (Collective::AllToAll, Starts::PerPair(inputs, outputs)) => {
                let at = (from * self.ranks + to) as usize;
                (inputs[at], outputs[at])
            }
            (Collective::AllToAll, starts) => (starts.of_rank(to), starts.of_rank(from)),
            (Collective::Gather, starts) => (0, starts.of_rank(from)),
            (Collective::Scatter, starts) => (starts.of_rank(to), 0),
            _ => (0, 0),
        }
    }

    /// What each worker goes through.
    fn works(&self) -> Vec<Vec<(u32, u32)>> {
        let longest = match &self.call.counts {
            Counts::Each(count) => *count,
            Counts::PerRank(counts) | Counts::PerPair(counts) => counts.iter().copied().max().unwrap_or(0),
        };
        let mut channels = vec![Vec::new(); self.channels as usize];
        for round in 0..self.ranks {
            for part in 0..self.cut.parts(longest) {
                channels[self.channel(round, part) as usize].push((round, part));
            }
        }
        let at_once = channels.iter().map(Vec::len).max().unwrap_or(0).clamp(1, AT_ONCE);
        let every =
            |works: &Vec<(u32, u32)>, first| works.iter().skip(first).step_by(at_once).copied().collect();
        channels.iter().flat_map(|works| (0..at_once).map(move |first| every(works, first))).collect()
    }

    fn channel(&self, round: u32, part: u32) -> u32 {
        (self.order.channel(round, self.channels) + part) % self.channels
    }

    /// Steps of a part of what a rank has for another, on either side.
    fn steps_of(&self, from: u32, to: u32, part: u32) -> u64 {
        let Some(count) = self.count(from, to) else { return 0 };
        let (_, length) = self.cut.part(count, part);
        if from == to {
            return u64::from(length > 0);
        }
        // NCCL matches a send of nothing with its receive; in a group both sides know that there is nothing.
        let least = u64::from(self.call.collective == Collective::SendReceive && part == 0);
        length.div_ceil(self.cut.chunk).max(least)
    }

    /// The steps of a worker of a rank that talks to everybody, for one of its works.
    fn steps_of_work(&self, rank: u32, is_send: bool, (round, part): (u32, u32)) -> u64 {
        match is_send {
            true => self.steps_of(rank, self.order.target(rank, round), part),
            false if round == 0 => 0,
            false => self.steps_of(self.order.source(rank, round), rank, part),
        }
    }

    /// A step of a part of what a rank has for another.
    fn part_step(&self, from: u32, to: u32, part: u32, number: u64, is_send: bool) -> Step {
        let count = self.count(from, to).unwrap_or(0);
        let (start, length) = self.cut.part(count, part);
        let chunk = if from == to { length } else { self.cut.chunk };
        let first = number * chunk;
        let (source, target) = self.places(from, to);
        let channel = self.channel(self.order.round(from, to), part);
        let mut step = Step {
            chunk: ((start + first) / chunk.max(1)) as u32,
            count: chunk.min(length - first),
            ..Step::default()
        };
        if is_send {
            step.sources.push(input(source + start + first));
        } else {
            step.receives.push(with(channel, 0, from));
        }
        if from == to || !is_send {
            step.stores.push(output(target + start + first));
        } else {
            step.sends.push(with(channel, 0, to));
        }
        step
    }
}

impl Program for Points {
    fn workers(&self, rank: u32) -> u32 {
        match self.role(rank) {
            Role::All => 2 * self.works.len() as u32,
            Role::Send(to) => self.count(rank, to).map_or(0, |count| self.cut.parts(count)),
            Role::Receive(from) => self.count(from, rank).map_or(0, |count| self.cut.parts(count)),
            Role::Nothing => 0,
        }
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        match self.role(rank) {
            Role::Send(to) => self.steps_of(rank, to, worker),
            Role::Receive(from) => self.steps_of(from, rank, worker),
            Role::Nothing => 0,
            Role::All => {
                let (list, is_send) = (worker as usize / 2, worker.is_multiple_of(2));
                let works = &self.works[list];
                match &self.ends {
                    Some(ends) => ends[list].last().map_or(0, |end| end - self.left_out(list, is_send)),
                    None => works.iter().map(|work| self.steps_of_work(rank, is_send, *work)).sum(),
                }
            }
        }
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let (list, is_send) = (worker as usize / 2, worker.is_multiple_of(2));
        let ((round, part), number) = match self.role(rank) {
            Role::Send(to) => return self.part_step(rank, to, worker, number, true),
            Role::Receive(from) => return self.part_step(from, rank, worker, number, false),
            Role::All | Role::Nothing => self.find(rank, list, is_send, number),
        };
        let (from, to) = match is_send {
            true => (rank, self.order.target(rank, round)),
            false => (self.order.source(rank, round), rank),
        };
        self.part_step(from, to, part, number, is_send)
    }
}

impl Points {
    /// Steps at the beginning of a list that only the sender has: what goes to itself.
    fn left_out(&self, list: usize, is_send: bool) -> u64 {
        match (&self.ends, self.works[list].first()) {
            (Some(ends), Some((0, _))) if !is_send => ends[list][0],
            _ => 0,
        }
    }

    /// The work to which a step of a worker belongs, and which of its steps it is.
    fn find(&self, rank: u32, list: usize, is_send: bool, number: u64) -> ((u32, u32), u64) {
        let works = &self.works[list];
        if let Some(ends) = &self.ends {
            let number = number + self.left_out(list, is_send);
            let at = ends[list].partition_point(|end| *end <= number);
            return (works[at], number - if at > 0 { ends[list][at - 1] } else { 0 });
        }
        let mut before = 0;
        for work in works {
            let steps = self.steps_of_work(rank, is_send, *work);
            if number < before + steps {
                return (*work, number - before);
            }
            before += steps;
        }
        panic!("worker of rank {rank} has {before} steps, and there is no step {number}");
    }
}
