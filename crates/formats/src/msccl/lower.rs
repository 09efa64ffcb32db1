//! From steps that may do anything to steps that a thread block can do: at most one peer to send to and one to receive
//! from, one source, one target.
//!
//! A worker with one connection each way becomes a thread block. One with more becomes several: one for each connection,
//! which receives into scratch memory or sends from it, and one in the middle that reduces and copies; dependencies hold
//! them together. Chunks for a switch go to all who would get its result, and they reduce for themselves.

use std::collections::BTreeMap;

use railnet_coll::{Buffer, Connection, Peer, Piece, Schedule};

use super::refusal::WriteError;
use super::{BLOCKS_MAX, CHANNELS_MAX, COUNT_LIMIT, PEERS_MAX, STEPS_MAX};

/// What to write for a GPU.
#[derive(Default)]
pub(super) struct PlannedGpu {
    /// Cells of scratch memory.
    pub(super) scratch: u64,
    pub(super) blocks: Vec<PlannedBlock>,
}

#[derive(Default)]
pub(super) struct PlannedBlock {
    pub(super) send: Option<u32>,
    pub(super) receive: Option<u32>,
    pub(super) channel: u32,
    pub(super) steps: Vec<PlannedStep>,
}

pub(super) struct PlannedStep {
    pub(super) kind: &'static str,
    pub(super) source: Option<Cell>,
    pub(super) target: Option<Cell>,
    pub(super) count: u32,
    /// Thread block and step.
    pub(super) after: Option<Token>,
    pub(super) is_awaited: bool,
}

/// A thread block and one of its steps.
type Token = (usize, usize);

/// Where something lies, in cells: the chunks of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    pub(super) buffer: Buffer,
    pub(super) index: u64,
}

/// A connection between two ranks: channel, lane, and one more than the group of the switch whose work it does.
type Wire = (u16, u8, u32);

/// A step without switches.
#[derive(Clone, Default)]
struct Plain {
    count: u64,
    receives: Vec<(Wire, u32)>,
    sources: Vec<Piece>,
    stores: Vec<Piece>,
    sends: Vec<(Wire, u32)>,
    after: Vec<(u32, u64)>,
    /// Steps of which only the stores have to be over.
    after_stores: Vec<(u32, u64)>,
}

/// The steps of each worker of a rank.
type PlainRank = Vec<Vec<Plain>>;

/// What to write for all GPUs, with elements of a cell and the number of channels.
pub(super) fn lower(schedule: &Schedule) -> Result<(Vec<PlannedGpu>, u64, u32), WriteError> {
    let mut scratch = schedule.scratch;
    let ranks: Vec<PlainRank> =
        (0..schedule.ranks).map(|rank| plain(schedule, rank, &mut scratch)).collect::<Result<_, _>>()?;
    let cell = cell(schedule, &ranks);
    let channels = channels(&ranks);
    let many = channels.values().max().map_or(1, |most| most + 1);
    if many > CHANNELS_MAX {
        return Err(WriteError::TooMany {
            rank: 0,
            many: many as usize,
            what: "channels",
            most: CHANNELS_MAX as usize,
            advice: "use fewer channels",
        });
    }
    let gpus = ranks.iter().enumerate().map(|(rank, workers)| {
        let mut gpu = Builder {
            cell,
            channels: &channels,
            gpu: PlannedGpu { scratch: scratch.div_ceil(cell), ..PlannedGpu::default() },
            is_input_stable: !schedule.call.in_place,
            over: vec![Vec::new(); workers.len()],
            stored: vec![Vec::new(); workers.len()],
        };
        gpu.add(workers);
        limits(rank as u32, &gpu.gpu)?;
        Ok(gpu.gpu)
    });
    Ok((gpus.collect::<Result<_, _>>()?, cell, many))
}

/// The steps of a rank, with exchanges in place of switches. Their results of a rank for itself lie in scratch memory
/// behind what is used already.
fn plain(schedule: &Schedule, rank: u32, scratch: &mut u64) -> Result<PlainRank, WriteError> {
    let program = &*schedule.program;
    let mut workers: PlainRank = Vec::new();
    // What a rank gives to a switch and gets back itself: the step and the place of each, in order.
    let mut kept: BTreeMap<(Wire, usize), (u32, u64, Piece)> = BTreeMap::new();
    let mut sent: BTreeMap<Wire, usize> = BTreeMap::new();
    let wire = |on: &Connection| match on.peer {
        Peer::Rank(_) => (on.channel, on.lane, 0),
        Peer::Switch(group) => (on.channel, on.lane, group + 1),
    };
    let group = |on: &Connection| match on.peer {
        Peer::Rank(peer) => (vec![rank], vec![peer]),
        Peer::Switch(group) => {
            let group = &schedule.groups[group as usize];
            (group.senders.clone(), group.receivers.clone())
        }
    };
    let mut pieces = *scratch;
    for worker in 0..program.workers(rank) {
        let steps = program.steps(rank, worker);
        let most = (STEPS_MAX * BLOCKS_MAX) as u64;
        if steps > most {
            return Err(too_many_steps(rank, steps as usize));
        }
        let mut list = Vec::new();
        for number in 0..steps {
            let step = program.step(rank, worker, number);
            let mut plain = Plain {
                count: step.count,
                sources: step.sources.to_vec(),
                stores: step.stores.to_vec(),
                after: step.after.iter().map(|after| (after.worker, after.step)).collect(),
                ..Plain::default()
            };
            for on in step.sends.iter().filter(|_| step.count > 0) {
                for to in group(on).1 {
                    if to != rank {
                        plain.sends.push((wire(on), to));
                        continue;
                    }
                    let piece = Piece { buffer: Buffer::Scratch, offset: pieces };
                    pieces += step.count;
                    plain.stores.push(piece);
                    let turn = sent.entry(wire(on)).or_default();
                    kept.insert((wire(on), *turn), (worker, number, piece));
                    *turn += 1;
                }
            }
            list.push(plain);
        }
        workers.push(list);
    }
    let mut received: BTreeMap<Wire, usize> = BTreeMap::new();
    for (worker, list) in (0..).zip(&mut workers) {
        for (number, plain) in (0..).zip(list.iter_mut()) {
            let step = program.step(rank, worker, number);
            for on in step.receives.iter().filter(|_| step.count > 0) {
                let from = if matches!(on.peer, Peer::Rank(_)) { group(on).1 } else { group(on).0 };
                for from in from {
                    if from != rank {
                        plain.receives.push((wire(on), from));
                        continue;
                    }
                    let turn = received.entry(wire(on)).or_default();
                    let own = kept.get(&(wire(on), *turn));
                    *turn += 1;
                    let Some((giver, given, piece)) = own else {
                        return Err(WriteError::NoWord(format!(
                            "rank {rank} receives from itself what it never sends"
                        )));
                    };
                    plain.sources.push(*piece);
                    if *giver != worker {
                        plain.after_stores.push((*giver, *given));
                    }
                }
            }
        }
    }
    *scratch = pieces.max(*scratch);
    Ok(workers)
}

/// The longest cell of which everything is a whole number.
fn cell(schedule: &Schedule, ranks: &[PlainRank]) -> u64 {
    let railnet_coll::Counts::Each(count) = schedule.call.counts else { return 1 };
    let mut cell = count.max(1);
    for step in ranks.iter().flatten().flatten().filter(|step| step.count > 0) {
        cell = divisor(cell, step.count);
        for piece in step.sources.iter().chain(&step.stores) {
            cell = divisor(cell, piece.offset);
        }
    }
    cell
}

fn divisor(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// A channel of the file for each wire: wires that share no pair of ranks share a channel.
fn channels(ranks: &[PlainRank]) -> BTreeMap<Wire, u32> {
    let mut pairs: BTreeMap<Wire, Vec<(u32, u32)>> = BTreeMap::new();
    for (rank, workers) in (0..).zip(ranks) {
        for (wire, to) in workers.iter().flatten().flat_map(|step| &step.sends) {
            pairs.entry(*wire).or_default().push((rank, *to));
        }
    }
    let mut used: Vec<Vec<(u32, u32)>> = Vec::new();
    let mut channels = BTreeMap::new();
    for (wire, mut pairs) in pairs {
        pairs.sort_unstable();
        pairs.dedup();
        let is_free = |taken: &Vec<(u32, u32)>| pairs.iter().all(|pair| taken.binary_search(pair).is_err());
        let channel = used.iter().position(is_free).unwrap_or_else(|| {
            used.push(Vec::new());
            used.len() - 1
        });
        used[channel].extend(pairs);
        used[channel].sort_unstable();
        channels.insert(wire, channel as u32);
    }
    channels
}

fn too_many_steps(rank: u32, many: usize) -> WriteError {
    WriteError::TooMany {
        rank,
        many,
        what: "steps in a thread block",
        most: STEPS_MAX,
        advice: "a file is repeated for large sizes anyway, so write it for a size that takes one loop, \
                 and that the ranks divide",
    }
}

fn limits(rank: u32, gpu: &PlannedGpu) -> Result<(), WriteError> {
    if let Some(many) = gpu.blocks.iter().map(|block| block.steps.len()).find(|many| *many > STEPS_MAX) {
        return Err(too_many_steps(rank, many));
    }
    let refuse = |many, what, most| {
        Err(WriteError::TooMany { rank, many, what, most, advice: "use fewer ranks or channels" })
    };
    if gpu.blocks.len() > BLOCKS_MAX {
        return refuse(gpu.blocks.len(), "thread blocks", BLOCKS_MAX);
    }
    for channel in 0..CHANNELS_MAX {
        let on_it = || gpu.blocks.iter().filter(move |block| block.channel == channel);
        let most = on_it().filter(|one| one.send.is_some()).count();
        let most = most.max(on_it().filter(|one| one.receive.is_some()).count());
        if most > PEERS_MAX {
            return refuse(most, "peers on a channel", PEERS_MAX);
        }
    }
    Ok(())
}

/// The thread blocks of a GPU under construction.
struct Builder<'a> {
    cell: u64,
    channels: &'a BTreeMap<Wire, u32>,
    gpu: PlannedGpu,
    is_input_stable: bool,
    /// What has to be over for each step of each worker to be over.
    over: Vec<Vec<Vec<Token>>>,
    /// The last of what stores something for each step of each worker.
    stored: Vec<Vec<Option<Token>>>,
}

/// Where the steps of a worker go.
struct Homes {
    /// The thread block that has both connections, or none.
    middle: usize,
    is_alone: bool,
    receive: BTreeMap<(Wire, u32), usize>,
    send: BTreeMap<(Wire, u32), usize>,
}

impl Builder<'_> {
    /// Adds all workers: in turns, so that a step comes after those it waits for.
    fn add(&mut self, workers: &[Vec<Plain>]) {
        let homes: Vec<Homes> = workers.iter().map(|steps| self.homes(steps)).collect();
        let mut next = vec![0usize; workers.len()];
        loop {
            let mut is_done = true;
            let mut moved = false;
            for (worker, steps) in workers.iter().enumerate() {
                while let Some(step) = steps.get(next[worker]) {
                    is_done = false;
                    let is_ready = |(other, number): &(u32, u64)| next[*other as usize] as u64 > *number;
                    if !step.after.iter().chain(&step.after_stores).all(is_ready) {
                        break;
                    }
                    let after = self.awaited(step);
                    let stored = if step.count > 0 { self.step(&homes[worker], step, after) } else { None };
                    self.stored[worker].push(stored);
                    let over = self.so_far(&homes[worker]);
                    self.over[worker].push(over);
                    next[worker] += 1;
                    moved = true;
                }
            }
            // A schedule whose steps wait for each other in a circle is refused when the file is read.
            if is_done || !moved {
                break;
            }
        }
        self.compact();
    }

    /// Leaves out thread blocks that have nothing to do.
    fn compact(&mut self) {
        let mut next = 0;
        let numbers: Vec<usize> = self
            .gpu
            .blocks
            .iter()
            .map(|block| {
                let number = next;
                next += usize::from(!block.steps.is_empty());
                number
            })
            .collect();
        self.gpu.blocks.retain(|block| !block.steps.is_empty());
        for step in self.gpu.blocks.iter_mut().flat_map(|block| &mut block.steps) {
            step.after = step.after.map(|(block, number)| (numbers[block], number));
        }
    }

    fn homes(&mut self, steps: &[Plain]) -> Homes {
        let mut receive: BTreeMap<(Wire, u32), usize> = BTreeMap::new();
        let mut send: BTreeMap<(Wire, u32), usize> = BTreeMap::new();
        for step in steps {
            receive.extend(step.receives.iter().map(|on| (*on, 0)));
            send.extend(step.sends.iter().map(|on| (*on, 0)));
        }
        let channel = |on: Option<&(Wire, u32)>| on.map(|on| self.channels[&on.0]);
        let (first, second) = (channel(receive.keys().next()), channel(send.keys().next()));
        let is_alone =
            receive.len() <= 1 && send.len() <= 1 && (first.is_none() || second.is_none() || first == second);
        let middle = self.gpu.blocks.len();
        if is_alone {
            self.gpu.blocks.push(PlannedBlock {
                send: send.keys().next().map(|on| on.1),
                receive: receive.keys().next().map(|on| on.1),
                channel: first.or(second).unwrap_or(0),
                steps: Vec::new(),
            });
        } else {
            self.gpu.blocks.push(PlannedBlock::default());
            for (on, home) in &mut receive {
                *home = self.gpu.blocks.len();
                let channel = self.channels[&on.0];
                self.gpu.blocks.push(PlannedBlock {
                    receive: Some(on.1),
                    channel,
                    ..PlannedBlock::default()
                });
            }
            for (on, home) in &mut send {
                *home = self.gpu.blocks.len();
                let channel = self.channels[&on.0];
                self.gpu.blocks.push(PlannedBlock { send: Some(on.1), channel, ..PlannedBlock::default() });
            }
        }
        Homes { middle, is_alone, receive, send }
    }

    /// The last steps so far of all thread blocks of a worker that touch memory others may touch. Those that receive
    /// for it write where nobody else does.
    fn so_far(&self, homes: &Homes) -> Vec<Token> {
        let sending = if homes.is_alone { Vec::new() } else { homes.send.values().copied().collect() };
        let last = |block: usize| self.gpu.blocks[block].steps.len().checked_sub(1).map(|step| (block, step));
        sending.into_iter().chain([homes.middle]).filter_map(last).collect()
    }

    fn awaited(&self, step: &Plain) -> Vec<Token> {
        let over = |(worker, number): &(u32, u64)| self.over[*worker as usize][*number as usize].clone();
        let stored = |(worker, number): &(u32, u64)| self.stored[*worker as usize][*number as usize];
        step.after.iter().flat_map(over).chain(step.after_stores.iter().filter_map(stored)).collect()
    }

    /// Adds a step, and says which step of the file has its result stored, where something is stored.
    fn step(&mut self, homes: &Homes, step: &Plain, after: Vec<Token>) -> Option<Token> {
        if homes.is_alone {
            self.alone(homes.middle, step, after);
            let last = self.gpu.blocks[homes.middle].steps.len().checked_sub(1);
            last.map(|last| (homes.middle, last))
        } else {
            self.spread(homes, step, &after)
        }
    }

    /// A step of a thread block that has all its connections.
    fn alone(&mut self, block: usize, step: &Plain, mut after: Vec<Token>) {
        let many = step.count / self.cell;
        let sources: Vec<Cell> = step.sources.iter().map(|piece| self.at(*piece)).collect();
        let stores: Vec<Cell> = step.stores.iter().map(|piece| self.at(*piece)).collect();
        let (receives, sends) = (!step.receives.is_empty(), !step.sends.is_empty());
        let target = stores.first().copied();
        let mut emit = |this: &mut Self, kind, source, target| {
            this.emit(block, kind, source, target, many, &std::mem::take(&mut after));
        };
        let result = match (receives, sources.as_slice()) {
            (false, []) => return,
            (false, [source]) => *source,
            (true, []) => {
                let target = target.unwrap_or_else(|| self.fresh(many));
                emit(self, if sends { "rcs" } else { "r" }, None, Some(target));
                target
            }
            (true, [source]) if sends => {
                let kind = if target.is_some() { "rrcs" } else { "rrs" };
                emit(self, kind, Some(*source), target);
                target.unwrap_or(*source)
            }
            (true, [source]) => {
                let target = target.unwrap_or_else(|| self.fresh(many));
                emit(self, "rrc", Some(*source), Some(target));
                target
            }
            (_, [first, rest @ ..]) => {
                let sum = self.fresh(many);
                emit(self, if receives { "rrc" } else { "cpy" }, Some(*first), Some(sum));
                for source in rest {
                    emit(self, "re", Some(*source), Some(sum));
                }
                sum
            }
        };
        for store in stores.into_iter().filter(|store| *store != result) {
            emit(self, "cpy", Some(result), Some(store));
        }
        let is_sent = receives && sources.len() < 2;
        if sends && !is_sent {
            emit(self, "s", Some(result), None);
        }
    }

    /// A step of several thread blocks.
    fn spread(&mut self, homes: &Homes, step: &Plain, after: &[Token]) -> Option<Token> {
        let many = step.count / self.cell;
        // What comes in, and what to wait for before it is there.
        let mut operands: Vec<(Cell, Option<Token>)> = Vec::new();
        for on in &step.receives {
            let cell = self.fresh(many);
            let received = self.emit(homes.receive[on], "r", None, Some(cell), many, &[]);
            operands.push((cell, Some(received)));
        }
        operands.extend(step.sources.iter().map(|piece| (self.at(*piece), None)));
        let (&(first, received), rest) = operands.split_first()?;
        let mut waits: Vec<Token> = after.iter().copied().chain(received).collect();
        let mut middle = |this: &mut Self, kind, (source, received): (Cell, Option<Token>), target| {
            waits.extend(received);
            let token = this.emit(homes.middle, kind, Some(source), Some(target), many, &waits);
            waits = vec![token];
        };
        let mut result = first;
        if !rest.is_empty() && step.receives.is_empty() {
            result = self.fresh(many);
            middle(self, "cpy", (first, None), result);
        }
        for operand in rest {
            middle(self, "re", *operand, result);
        }
        for piece in &step.stores {
            let store = self.at(*piece);
            if store != result {
                middle(self, "cpy", (result, None), store);
            }
        }
        // What may be overwritten before it is sent is kept elsewhere.
        let is_fresh = !step.receives.is_empty() || !rest.is_empty();
        let is_stable = result.buffer == Buffer::Input && self.is_input_stable;
        if !step.sends.is_empty() && !is_fresh && !is_stable {
            let kept = self.fresh(many);
            middle(self, "cpy", (result, None), kept);
            result = kept;
        }
        for on in &step.sends {
            self.emit(homes.send[on], "s", Some(result), None, many, &waits);
        }
        waits.last().copied()
    }

    /// Adds a step, in parts where it has too many chunks, and says what to wait for to know that it is over. Of several
    /// things to wait for, all but the last need a step of their own.
    fn emit(
        &mut self,
        block: usize,
        kind: &'static str,
        source: Option<Cell>,
        target: Option<Cell>,
        many: u64,
        waits: &[Token],
    ) -> Token {
        let mut waits: Vec<Token> = waits.iter().copied().filter(|token| token.0 != block).collect();
        waits.sort_unstable();
        waits.dedup();
        // Of the steps of one thread block, the last says it all.
        let last_of = |index: usize| waits.get(index + 1).is_none_or(|next| next.0 != waits[index].0);
        let waits: Vec<Token> =
            (0..waits.len()).filter(|index| last_of(*index)).map(|index| waits[index]).collect();
        for (other, step) in &waits {
            self.gpu.blocks[*other].steps[*step].is_awaited = true;
        }
        let steps = &mut self.gpu.blocks[block].steps;
        let (last, others) =
            waits.split_last().map_or((None, &[][..]), |(last, others)| (Some(*last), others));
        for wait in others {
            steps.push(PlannedStep {
                kind: "nop",
                source: None,
                target: None,
                count: 1,
                after: Some(*wait),
                is_awaited: false,
            });
        }
        let mut done = 0;
        while done < many {
            let count = (many - done).min(u64::from(COUNT_LIMIT) - 1);
            let at = |cell: Option<Cell>| cell.map(|cell| Cell { index: cell.index + done, ..cell });
            steps.push(PlannedStep {
                kind,
                source: at(source),
                target: at(target),
                count: count as u32,
                after: last.filter(|_| done == 0),
                is_awaited: false,
            });
            done += count;
        }
        (block, steps.len() - 1)
    }

    fn at(&self, piece: Piece) -> Cell {
        Cell { buffer: piece.buffer, index: piece.offset / self.cell }
    }

    /// Scratch memory that nothing else uses.
    fn fresh(&mut self, many: u64) -> Cell {
        let index = self.gpu.scratch;
        self.gpu.scratch += many;
        Cell { buffer: Buffer::Scratch, index }
    }
}
