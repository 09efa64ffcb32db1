//! PAT, parallel aggregated trees: AllGather and ReduceScatter in logarithmically many messages where they are small
//! (NCCL 2.30 include/collectives.h; arXiv 2506.20252). One rank in each node.
//!
//! The block of a rank goes along a binomial tree, and the trees of all ranks are rotations of each other: so all ranks
//! do the same at the same time, and a program is one list for all of them. A block has an *offset*, how far ahead its
//! owner is; in ReduceScatter a rank passes what it has at offset s to the rank 2^d ahead, d being the lowest bit of s, and
//! in AllGather it comes from there.
//!
//! Offsets are a·D + b, with A values of a. Those with the same b travel together, in messages of as many blocks as
//! fit into a slot: they are packed into scratch memory and unpacked from it, as NCCL packs them into slots. Multiples of
//! D are a tree of their own, the top. A rank has two workers for each channel, one that sends and one that receives.
//!
//! NCCL's order of the rows b in AllGather comes from a generator; here far rows come before near ones, which also
//! makes sure that what a message forwards has come long before.

use smallvec::SmallVec;

use super::split::{Blocks, chunk};
use super::{
    Arc, BuildError, Call, Choice, Collective, Counts, Program, Schedule, Wiring, input, output, with,
};
use crate::protocol::Fifo;
use crate::schedule::{After, Buffer, Piece, Step};

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    if wiring.nodes.iter().any(|node| node.len() > 1) {
        let reason = "it needs one rank in each node".to_owned();
        return Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    }
    let (ranks, fifo) = (wiring.ranks(), choice.fifo(false));
    let blocks = Blocks::new(call, choice, ranks);
    let shape = Shape::new(call, &fifo, &blocks, ranks);
    let longest = (0..blocks.channels()).map(|channel| blocks.loops(channel, 1)).max().unwrap_or(0);
    let chunk = chunk(call, choice, &fifo).min(longest.max(1));
    let list = match call.collective {
        Collective::AllGather => all_gather(shape, call.in_place),
        _ => reduce_scatter(shape),
    };
    let scratch = u64::from(blocks.channels()) * u64::from(list.scratch) * chunk;
    let channels = blocks.channels();
    let program = Pat { ranks, chunk, blocks, list };
    let schedule = choice.schedule(call, ranks, fifo, channels, Arc::new(program));
    Ok(Schedule { scratch, ..schedule })
}

/// How offsets are put into rows and messages.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: u32,
    /// Offsets of a row: A, a power of two.
    width: u32,
    /// Rows: D, a power of two.
    rows: u32,
    /// Blocks of a message at most.
    pack: u32,
}

impl Shape {
    fn new(call: &Call, fifo: &Fifo, blocks: &Blocks, ranks: u32) -> Self {
        let mut width = 1;
        // Blocks of different lengths are not packed.
        if matches!(call.counts, Counts::Each(_)) {
            let bytes = call.dtype.bytes(blocks.share(0, 0).count).0.max(1);
            while fifo.chunk().0 / (bytes * u64::from(width)) >= 2 && width < ranks / 2 {
                width *= 2;
            }
        }
        let pack = width;
        // As many messages at once as a connection takes.
        let mut at_once = fifo.depth / fifo.slots_per_chunk();
        while at_once > 1 && width < ranks / 2 {
            (at_once, width) = (at_once / 2, width * 2);
        }
        Self { ranks, width, rows: ranks.next_power_of_two() / width, pack }
    }

    /// The offsets of a row that exist.
    fn row(self, row: u32) -> Vec<u32> {
        (0..self.width).map(|a| a * self.rows + row).filter(|offset| *offset < self.ranks).collect()
    }

    /// The offsets of the top tree that are `scale` rows of D from their parents.
    fn top(self, scale: u32) -> Vec<u32> {
        let odd = (scale..self.width).step_by(2 * scale as usize);
        odd.map(|a| a * self.rows).filter(|offset| *offset < self.ranks).collect()
    }

    /// The scales of the top tree, near to far.
    fn scales(self) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.width.ilog2()).map(|bit| 1 << bit)
    }
}

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spot {
    /// The block at an offset, in the input of all.
    Input(u32),
    /// The input of the rank itself.
    OwnInput,
    /// The block at an offset, in the output of all.
    Output(u32),
    /// The output of the rank itself.
    OwnOutput,
    /// A block of scratch memory: the `index`th of those packed together from chunk `first` on.
    Scratch { first: u32, index: u32 },
}

/// A step of a worker that has to be over first: in the loop before, where `is_before`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wait {
    op: usize,
    is_before: bool,
}

/// What a worker of any rank does in a loop.
#[derive(Clone, Debug, Default)]
struct Op {
    /// The offset of the block that it is about, the first one where there are several.
    offset: u32,
    /// Blocks, one after the other in all places.
    many: u32,
    /// From the rank so many ahead.
    receives: Option<u32>,
    sources: SmallVec<[Spot; 2]>,
    store: Option<Spot>,
    /// To the rank so many ahead.
    sends: Option<u32>,
    /// For the other worker.
    wait: Option<Wait>,
    is_final: bool,
}

/// A loop of the two workers.
#[derive(Debug, Default)]
struct List {
    sender: Vec<Op>,
    receiver: Vec<Op>,
    /// Chunks of scratch memory for each channel.
    scratch: u32,
}

impl List {
    /// What a worker does, and what the other one does.
    fn of(&self, worker: u32) -> (&[Op], &[Op]) {
        if worker.is_multiple_of(2) { (&self.sender, &self.receiver) } else { (&self.receiver, &self.sender) }
    }
}

/// Makes the list of an AllGather: the top tree from far to near, then rows from far to near.
fn all_gather(shape: Shape, in_place: bool) -> List {
    let scratch = if shape.pack > 1 { 2 * shape.pack } else { 0 };
    let mut list = List { scratch, ..List::default() };
    // The step of the receiver that brings each offset.
    let mut brought = vec![None; shape.ranks as usize];
    let tops = shape.scales().rev().map(|scale| (shape.top(scale), scale * shape.rows));
    let levels = (0..shape.rows.ilog2()).rev().map(|bit| 1 << bit);
    let rows =
        levels.flat_map(|near| (near..shape.rows).step_by(2 * near as usize).map(move |row| (row, near)));
    let rows = rows.map(|(row, near)| (shape.row(row), near));
    for (offsets, distance) in tops.chain(rows) {
        for message in offsets.chunks(shape.pack as usize) {
            let many = message.len() as u32;
            let back = shape.ranks - distance;
            let (out, inn) = (0, shape.pack);
            for (index, offset) in message.iter().enumerate() {
                let parent = offset - distance;
                let source = if parent == 0 { Spot::OwnInput } else { Spot::Output(parent) };
                let wait = brought[parent as usize].map(|op| Wait { op, is_before: false });
                let sources = [source].into_iter().collect();
                let op = Op { offset: parent, many: 1, sources, wait, ..Op::default() };
                list.sender.push(if many == 1 {
                    Op { sends: Some(back), ..op }
                } else {
                    Op { store: Some(Spot::Scratch { first: out, index: index as u32 }), ..op }
                });
            }
            let packed = |first| Spot::Scratch { first, index: 0 };
            let whole = Op { offset: message[0], many, ..Op::default() };
            if many == 1 {
                brought[message[0] as usize] = Some(list.receiver.len());
                let store = Some(Spot::Output(message[0]));
                list.receiver.push(Op { receives: Some(distance), store, ..whole });
                continue;
            }
            let sources = [packed(out)].into_iter().collect();
            let offset = message[0] - distance;
            list.sender.push(Op { offset, sources, sends: Some(back), ..whole.clone() });
            list.receiver.push(Op { receives: Some(distance), store: Some(packed(inn)), ..whole });
            for (index, offset) in message.iter().enumerate() {
                brought[*offset as usize] = Some(list.receiver.len());
                let sources = [Spot::Scratch { first: inn, index: index as u32 }].into_iter().collect();
                let store = Some(Spot::Output(*offset));
                list.receiver.push(Op { offset: *offset, many: 1, sources, store, ..Op::default() });
            }
        }
    }
    // The first message is the own block, to the farthest: it is copied on the way.
    if let Some(first) = list.sender.first_mut().filter(|_| !in_place) {
        first.store = Some(Spot::Output(0));
    }
    list
}

/// Makes the list of a ReduceScatter: rows from the last to the first, then the top tree from near to far.
fn reduce_scatter(shape: Shape) -> List {
    let mut sums = Sums::new(shape);
    for row in (1..shape.rows).rev() {
        let near = row & row.wrapping_neg();
        for message in shape.row(row).chunks(shape.pack as usize) {
            sums.message(message, near, true);
        }
    }
    for scale in shape.scales() {
        for message in shape.top(scale).chunks(shape.pack as usize) {
            sums.message(message, scale * shape.rows, false);
        }
    }
    sums.finish()
}

/// The sums of a ReduceScatter while its list is made. There are two rows of them for each distance but the
/// nearest, whose rows are leaves, and one for the top, since rows are worked on from the leaves up.
struct Sums {
    shape: Shape,
    list: List,
    /// The step of the receiver that made the sum of each offset what it is.
    made: Vec<Option<usize>>,
    /// For each place of a sum: the first step of the receiver that puts something there, where nothing came before it in
    /// this loop, and the last step of the sender that takes something from there.
    uses: Vec<(Option<usize>, Option<usize>)>,
}

impl Sums {
    fn new(shape: Shape) -> Self {
        let sums = (2 * shape.rows.ilog2() - 1) * shape.width;
        let list = List { scratch: sums + 2 * shape.pack, ..List::default() };
        let uses = vec![(None, None); sums as usize];
        Self { shape, list, made: vec![None; shape.ranks as usize], uses }
    }

    /// The place of the sum of an offset.
    fn place(&self, offset: u32) -> u32 {
        let (a, row) = (offset / self.shape.rows, offset % self.shape.rows);
        let which = match row {
            0 => 0,
            _ => 2 * row.trailing_zeros() - 1 + (row >> (row.trailing_zeros() + 1)) % 2,
        };
        which * self.shape.width + a
    }

    fn spot(&self, offset: u32) -> Spot {
        let place = self.place(offset);
        if self.shape.pack == 1 {
            return Spot::Scratch { first: place, index: 0 };
        }
        // Sums of a row have to be one after the other.
        let (first, index) = (place / self.shape.width * self.shape.width, place % self.shape.width);
        Spot::Scratch { first, index }
    }

    /// What a rank has at an offset: its own part alone where nothing has come.
    fn value(&self, offset: u32) -> Spot {
        if self.made[offset as usize].is_some() { self.spot(offset) } else { Spot::Input(offset) }
    }

    /// Adds a step of the receiver that makes sums at these offsets.
    fn make(&mut self, offsets: &[u32], mut op: Op) {
        let at = self.list.receiver.len();
        for offset in offsets {
            let place = self.place(*offset) as usize;
            if self.made[*offset as usize].replace(at).is_none() {
                // What was there before must have been sent.
                match self.uses[place].1 {
                    Some(sent) => {
                        let sent = op.wait.map_or(sent, |wait| wait.op.max(sent));
                        op.wait = Some(Wait { op: sent, is_before: false });
                    }
                    None => self.uses[place].0 = self.uses[place].0.or(Some(at)),
                }
            }
        }
        self.list.receiver.push(op);
    }

    /// Adds a step of the sender that takes what is at these offsets.
    fn take(&mut self, offsets: &[u32], op: Op) {
        let at = self.list.sender.len();
        let made = offsets.iter().filter_map(|offset| self.made[*offset as usize]).max();
        for offset in offsets.iter().filter(|offset| self.made[**offset as usize].is_some()) {
            let place = self.place(*offset) as usize;
            self.uses[place].1 = Some(at);
        }
        let wait = made.map(|op| Wait { op, is_before: false });
        self.list.sender.push(Op { wait, ..op });
    }

    /// Offsets whose sums go to their parents in one message. Those of a row lie one after the other.
    fn message(&mut self, offsets: &[u32], distance: u32, is_row: bool) {
        let parents: Vec<u32> = offsets.iter().map(|offset| offset - distance).collect();
        let many = offsets.len() as u32;
        let sends = Op { offset: offsets[0], many, sends: Some(distance), ..Op::default() };
        let behind = Some(self.shape.ranks - distance);
        let receives = Op { offset: parents[0], many, receives: behind, ..Op::default() };
        if many == 1 {
            let sources = [self.value(offsets[0])].into_iter().collect();
            self.take(offsets, Op { sources, ..sends });
            let sources = [self.value(parents[0])].into_iter().collect();
            let store = Some(self.spot(parents[0]));
            self.make(&parents, Op { sources, store, ..receives });
            return;
        }
        let is_sum = is_row && offsets.iter().all(|offset| self.made[*offset as usize].is_some());
        if is_sum {
            let sources = [self.spot(offsets[0])].into_iter().collect();
            self.take(offsets, Op { sources, ..sends });
        } else {
            let out = self.list.scratch - 2 * self.shape.pack;
            for (index, offset) in offsets.iter().enumerate() {
                let store = Some(Spot::Scratch { first: out, index: index as u32 });
                let sources = [self.value(*offset)].into_iter().collect();
                self.take(&[*offset], Op { offset: *offset, many: 1, sources, store, ..Op::default() });
            }
            let sources = [Spot::Scratch { first: out, index: 0 }].into_iter().collect();
            self.list.sender.push(Op { sources, ..sends });
        }
        // Sums begin with what the rank has itself.
        for parent in &parents {
            if self.made[*parent as usize].is_none() {
                let op = Op { offset: *parent, many: 1, ..Op::default() };
                let sources = [Spot::Input(*parent)].into_iter().collect();
                self.make(&[*parent], Op { sources, store: Some(self.spot(*parent)), ..op });
            }
        }
        if is_row {
            let sum = self.spot(parents[0]);
            self.make(&parents, Op { sources: [sum].into_iter().collect(), store: Some(sum), ..receives });
            return;
        }
        let inn = self.list.scratch - self.shape.pack;
        let store = Some(Spot::Scratch { first: inn, index: 0 });
        self.list.receiver.push(Op { store, ..receives });
        for (index, parent) in parents.iter().enumerate() {
            let came = Spot::Scratch { first: inn, index: index as u32 };
            let sum = self.spot(*parent);
            let op = Op { offset: *parent, many: 1, store: Some(sum), ..Op::default() };
            self.make(&[*parent], Op { sources: [sum, came].into_iter().collect(), ..op });
        }
    }

    fn finish(mut self) -> List {
        // The last message is for the own block, and nothing else.
        if let Some(last) = self.list.receiver.last_mut() {
            (last.store, last.is_final) = (Some(Spot::OwnOutput), true);
        }
        // The first sum in a place waits for the last one that was there in the loop before.
        for (first, last) in self.uses {
            if let (Some(first), Some(op)) = (first, last) {
                let wait = &mut self.list.receiver[first].wait;
                let op = wait.filter(|wait| wait.is_before).map_or(op, |wait| wait.op.max(op));
                // A wait within the loop is for a later step already.
                if wait.is_none_or(|wait| wait.is_before) {
                    *wait = Some(Wait { op, is_before: true });
                }
            }
        }
        self.list
    }
}

#[derive(Debug)]
struct Pat {
    ranks: u32,
    chunk: u64,
    blocks: Blocks,
    list: List,
}

impl Program for Pat {
    fn workers(&self, _rank: u32) -> u32 {
        2 * self.blocks.channels()
    }

    fn steps(&self, _rank: u32, worker: u32) -> u64 {
        let (ops, _) = self.list.of(worker);
        self.blocks.loops(worker / 2, self.chunk) * ops.len() as u64
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let (ops, others) = self.list.of(worker);
        let channel = worker / 2;
        let (looped, op) = (number / ops.len() as u64, &ops[(number % ops.len() as u64) as usize]);
        let at = |offset: u32| (rank + offset) % self.ranks;
        let share = self.blocks.share(at(op.offset), channel);
        let (start, count) = share.part(looped * self.chunk, self.chunk);
        let base = u64::from(channel) * u64::from(self.list.scratch) * self.chunk;
        let piece = |spot: &Spot| match *spot {
            Spot::Input(offset) => input(self.blocks.start(at(offset)) + start),
            Spot::OwnInput => input(start),
            Spot::Output(offset) => output(self.blocks.start(at(offset)) + start),
            Spot::OwnOutput => output(start),
            Spot::Scratch { first, index } => Piece {
                buffer: Buffer::Scratch,
                offset: base + u64::from(first) * self.chunk + u64::from(index) * count,
            },
        };
        let mut step = Step {
            chunk: (looped * u64::from(self.ranks)) as u32 + at(op.offset),
            count: count * u64::from(op.many),
            is_final: op.is_final,
            ..Step::default()
        };
        step.receives.extend(op.receives.map(|ahead| with(channel, 0, at(ahead))));
        step.sources.extend(op.sources.iter().map(piece));
        step.stores.extend(op.store.iter().map(piece));
        step.sends.extend(op.sends.map(|ahead| with(channel, 0, at(ahead))));
        let in_loop =
            op.wait.and_then(|wait| Some((wait.op, looped.checked_sub(u64::from(wait.is_before))?)));
        step.after.extend(in_loop.map(|(op, looped)| After {
            worker: worker ^ 1,
            step: looped * others.len() as u64 + op as u64,
        }));
        step
    }
}
