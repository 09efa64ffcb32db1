//! Direct: everybody exchanges with everybody at once, for small messages on few ranks that reach each other directly.
//!
//! AllReduce has two ways. In *one shot* everybody sends everything to everybody and reduces for itself: one hop, and
//! n - 1 times the data. In *two shots* everybody reduces a slice of its own and sends the result to everybody: two
//! hops, and 2 (n - 1) / n of the data. One shot is taken where all ranks together have at most 2 MiB: so do vLLM's kernels for 4
//! and 8 GPUs (csrc/custom_all_reduce.cuh). Between two ranks both send the same: there it is taken up to 512 KiB of each.
//!
//! In one shot every rank adds contributions up in the order of ranks, so that all get the same bits. Ranks 0 and 1 take
//! their own first: two things may be added in any order.

use super::split::{Blocks, chunk};
use super::{Arc, Call, Choice, Collective, Program, Schedule, Wiring, input, output, with};
use crate::schedule::{After, Buffer, Connection, Piece, Step};

/// Data of all ranks together up to which one shot is taken.
const ONE_SHOT_MOST: u64 = 2 << 20;
/// The same of two ranks.
const ONE_SHOT_PAIR: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    OneShot,
    TwoShot,
    AllGather,
    AllGatherByTurns,
    ReduceScatter,
    Broadcast,
}

#[derive(Debug)]
struct Direct {
    kind: Kind,
    ranks: u32,
    root: u32,
    in_place: bool,
    chunk: u64,
    blocks: Blocks,
    /// Chunks that are sent before the first is received, where sending and receiving alternate.
    lead: u64,
}

/// Whether an AllReduce of so many bytes goes in one shot.
pub(crate) fn is_one_shot(ranks: u32, bytes: u64) -> bool {
    let most = if ranks == 2 { ONE_SHOT_PAIR } else { ONE_SHOT_MOST };
    bytes.saturating_mul(u64::from(ranks)) <= most
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Schedule {
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let chunk = chunk(call, choice, &fifo);
    let blocks = Blocks::new(call, choice, ranks);
    let channels = blocks.channels();
    let is_long = (0..channels).any(|channel| blocks.loops(channel, chunk) > 1);
    let kind = match call.collective {
        Collective::AllGather if choice.by_turns && is_long => Kind::AllGatherByTurns,
        Collective::AllGather => Kind::AllGather,
        Collective::ReduceScatter => Kind::ReduceScatter,
        Collective::Broadcast => Kind::Broadcast,
        _ if is_one_shot(ranks, call.bytes(ranks).0) => Kind::OneShot,
        _ => Kind::TwoShot,
    };
    let lead = u64::from(fifo.depth / (fifo.slots_per_slice * fifo.slices_per_chunk)).min(2);
    let program = Direct { kind, ranks, root: call.root.0, in_place: call.in_place, chunk, blocks, lead };
    let scratch = if kind == Kind::OneShot && ranks > 2 { u64::from(channels) * program.chunk } else { 0 };
    let schedule = choice.schedule(call, ranks, fifo, channels, Arc::new(program));
    Schedule { scratch, ..schedule }
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Sends the same to all.
    Cast,
    /// Sends each its slice or block.
    Scatter,
    /// Adds up what all have sent.
    Reduce,
    /// Takes what each has for all.
    Gather,
    /// Sends the same to all, and receives what each has for all; sending and receiving alternate.
    CastAndGather,
}

/// What comes next of giving and taking: this chunk, or that of this step of taking.
enum Turn {
    Cast(u64),
    Gather(u64),
}

impl Direct {
    const fn roles(&self) -> &'static [Role] {
        match self.kind {
            Kind::OneShot => &[Role::Cast, Role::Reduce],
            Kind::TwoShot => &[Role::Scatter, Role::Reduce, Role::Gather],
            Kind::AllGather => &[Role::Cast, Role::Gather],
            Kind::AllGatherByTurns => &[Role::CastAndGather],
            Kind::ReduceScatter => &[Role::Scatter, Role::Reduce],
            Kind::Broadcast => &[Role::Cast],
        }
    }

    fn role(&self, worker: u32) -> (u32, Role) {
        let roles = self.roles();
        let many = roles.len() as u32;
        (worker / many, roles[(worker % many) as usize])
    }

    /// The rank so many after another.
    fn after(&self, rank: u32, distance: u64) -> u32 {
        ((u64::from(rank) + distance) % u64::from(self.ranks)) as u32
    }

    /// Connections with all others, the next one first.
    fn others(&self, rank: u32, channel: u32, lane: u8) -> impl Iterator<Item = Connection> + '_ {
        (1..u64::from(self.ranks)).map(move |distance| with(channel, lane, self.after(rank, distance)))
    }

    /// A step about what belongs to `owner`; its place in the buffer of all, and in that of the owner.
    fn part(&self, owner: u32, channel: u32, looped: u64) -> (Step, u64, u64) {
        let ranks = u64::from(self.ranks);
        let (offset, count, whole) = match self.kind {
            Kind::TwoShot => {
                let share = self.blocks.share(0, channel);
                let index = u64::from(owner);
                let (offset, count) = share.looped(self.chunk, self.blocks.grain(), ranks, looped, index);
                (offset, count, offset)
            }
            Kind::OneShot | Kind::Broadcast => {
                let share = self.blocks.share(0, channel);
                let (offset, count) = share.part(looped * self.chunk, self.chunk);
                (offset, count, offset)
            }
            Kind::AllGather | Kind::AllGatherByTurns | Kind::ReduceScatter => {
                let share = self.blocks.share(owner, channel);
                let (offset, count) = share.part(looped * self.chunk, self.chunk);
                (offset, count, self.blocks.start(owner) + offset)
            }
        };
        let chunk = (looped * ranks) as u32 + owner;
        (Step { chunk, count, ..Step::default() }, whole, offset)
    }

    fn cast(&self, rank: u32, channel: u32, number: u64) -> Step {
        let (mut step, whole, own) = self.part(rank, channel, number);
        if self.kind == Kind::Broadcast && rank != self.root {
            step.receives.push(with(channel, 0, self.root));
            step.stores.push(output(whole));
            return step;
        }
        step.sources.push(input(own));
        step.sends.extend(self.others(rank, channel, 0));
        if self.kind != Kind::OneShot && !self.in_place {
            step.stores.push(output(whole));
        }
        step
    }

    /// Where sending and receiving alternate, a rank has sent a chunk more than it has received, where slots have room for it: then nobody waits for who is
    /// a little late.
    fn turn(&self, channel: u32, number: u64) -> Turn {
        let (others, loops) = (u64::from(self.ranks) - 1, self.blocks.loops(channel, self.chunk));
        let lead = self.lead.min(loops);
        let Some(number) = number.checked_sub(lead) else { return Turn::Cast(number) };
        let (looped, turn) = (number / (others + 1), number % (others + 1));
        if looped >= loops - lead {
            // All is given, and the rest is to be taken.
            Turn::Gather(number - (loops - lead))
        } else if turn < others {
            Turn::Gather(looped * others + turn)
        } else {
            Turn::Cast(looped + lead)
        }
    }

    fn gather(&self, rank: u32, channel: u32, number: u64) -> Step {
        let others = u64::from(self.ranks) - 1;
        // Who begins with this rank comes first.
        let from = self.after(rank, others - number % others);
        let (mut step, whole, _) = self.part(from, channel, number / others);
        step.receives.push(with(channel, u8::from(self.kind == Kind::TwoShot), from));
        step.stores.push(output(whole));
        step
    }

    /// One shot: what comes from the ranks before this one, then its own, then what comes from those after it.
    fn reduce_in_order(&self, rank: u32, channel: u32, number: u64) -> Step {
        let looped = if rank <= 1 { number } else { number / 2 };
        let (mut step, offset, _) = self.part(0, channel, looped);
        let scratch = Piece { buffer: Buffer::Scratch, offset: u64::from(channel) * self.chunk };
        if rank > 1 && number.is_multiple_of(2) {
            step.receives.extend((0..rank).map(|other| with(channel, 0, other)));
            step.stores.push(scratch);
            return step;
        }
        step.sources.extend((rank > 1).then_some(scratch));
        step.sources.push(input(offset));
        let before = if rank == 1 { 0..1 } else { 0..0 };
        step.receives.extend(before.chain(rank + 1..self.ranks).map(|other| with(channel, 0, other)));
        step.stores.push(output(offset));
        step.is_final = true;
        if self.in_place {
            step.after.push(After { worker: 2 * channel, step: looped });
        }
        step
    }
}

impl Program for Direct {
    fn workers(&self, _rank: u32) -> u32 {
        self.blocks.channels() * self.roles().len() as u32
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        let (channel, role) = self.role(worker);
        let parts = if self.kind == Kind::TwoShot { u64::from(self.ranks) } else { 1 };
        let each = match role {
            Role::Scatter | Role::Gather => u64::from(self.ranks) - 1,
            Role::CastAndGather => u64::from(self.ranks),
            Role::Reduce if self.kind == Kind::OneShot && rank > 1 => 2,
            Role::Cast | Role::Reduce => 1,
        };
        self.blocks.loops(channel, parts * self.chunk) * each
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let (channel, role) = self.role(worker);
        let others = u64::from(self.ranks) - 1;
        match role {
            Role::Cast => self.cast(rank, channel, number),
            Role::Reduce if self.kind == Kind::OneShot => self.reduce_in_order(rank, channel, number),
            Role::Scatter => {
                let to = self.after(rank, number % others + 1);
                let (mut step, whole, _) = self.part(to, channel, number / others);
                step.sources.push(input(whole));
                step.sends.push(with(channel, 0, to));
                step
            }
            Role::Reduce => {
                let (mut step, whole, own) = self.part(rank, channel, number);
                step.receives.extend(self.others(rank, channel, 0));
                step.sources.push(input(whole));
                step.is_final = true;
                step.stores.push(output(own));
                if self.kind == Kind::TwoShot {
                    step.sends.extend(self.others(rank, channel, 1));
                }
                step
            }
            Role::Gather => self.gather(rank, channel, number),
            Role::CastAndGather => match self.turn(channel, number) {
                Turn::Cast(looped) => self.cast(rank, channel, looped),
                Turn::Gather(number) => self.gather(rank, channel, number),
            },
        }
    }
}
