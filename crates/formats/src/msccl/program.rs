//! A file as a program of a size.

use railnet_coll::check::Inferred;
use railnet_coll::{After, Buffer, Call, Connection, Overlap, Peer, Piece, Program, Step};
use railnet_core::Rank;
use smallvec::SmallVec;

use super::{File, Gpu, Location, has_blocks_in, has_blocks_out};

/// What was found out about each operation of each thread block of each GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts(Vec<Vec<Vec<Fact>>>);

/// What was found out about an operation.
#[derive(Clone, Copy, Debug, Default)]
struct Fact {
    /// The chunk of the inputs that it is about.
    chunk: Option<u32>,
    is_final: bool,
    /// A bit for each source that is the rank's own input.
    own: u64,
}

impl Facts {
    pub(super) fn new(file: &File, found: &[Inferred]) -> Self {
        let blank = |gpu: &Gpu| {
            gpu.blocks.iter().map(|block| vec![Fact::default(); block.operations.len()]).collect()
        };
        let mut facts: Vec<Vec<Vec<Fact>>> = file.gpus.iter().map(blank).collect();
        // Only what is reduced can be multiplied beforehand.
        let mask = if file.collective.reduces() { u64::MAX } else { 0 };
        for one in found {
            facts[one.rank as usize][one.worker as usize][one.step as usize] =
                Fact { chunk: one.origin.map(|at| at as u32), is_final: one.is_final, own: one.own & mask };
        }
        Self(facts)
    }

    fn of(&self, rank: u32, block: u32, operation: usize) -> Fact {
        let found = self.0.get(rank as usize).map(|gpu| gpu[block as usize][operation]);
        found.unwrap_or_default()
    }
}

/// How long things are, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Of a block.
    pub(super) count: u64,
    /// Of a chunk; the last ones of a block may be shorter.
    pub(super) size: u64,
    /// What goes into a connection at once.
    pub(super) slice: u64,
}

/// The program of a file for one call: all operations on the first slice of every chunk, then on the second, and so on.
#[derive(Debug)]
pub(super) struct Interpreted {
    gpus: Vec<Gpu>,
    facts: Facts,
    sizes: Sizes,
    chunks: u64,
    has_blocks: [bool; 2],
    overlaps: Vec<Option<Overlap>>,
    /// Elements of the output of each rank.
    outputs: Vec<u64>,
    /// Whether the chunks of operations are known; if not, each has one element.
    is_exact: bool,
}

impl Interpreted {
    pub(super) fn new(file: &File, call: &Call, sizes: Sizes, facts: Facts) -> Self {
        let ranks = file.ranks;
        Self {
            gpus: file.gpus.clone(),
            is_exact: !facts.0.is_empty(),
            facts,
            sizes,
            chunks: u64::from(file.chunks),
            has_blocks: [has_blocks_in(call.collective), has_blocks_out(call.collective)],
            overlaps: (0..ranks).map(|rank| call.overlap(Rank(rank), ranks)).collect(),
            outputs: (0..ranks).map(|rank| call.output_count(Rank(rank), ranks)).collect(),
        }
    }

    /// Where a slice of a chunk begins.
    fn offset(&self, at: Location, slice: u64) -> u64 {
        let Sizes { count, size, .. } = self.sizes;
        let index = u64::from(at.index);
        let has_blocks = match at.buffer {
            Buffer::Input => self.has_blocks[0],
            Buffer::Output => self.has_blocks[1],
            Buffer::Scratch => return index * size + slice,
        };
        if has_blocks {
            let (block, chunk) = (index / self.chunks, index % self.chunks);
            block * count + (chunk * size).min(count) + slice
        } else if index < self.chunks {
            (index * size).min(count) + slice
        } else {
            // Past the end, as the file has it.
            index * size.max(1) + slice
        }
    }

    /// Elements of a slice of a chunk of the inputs.
    fn length(&self, chunk: Option<u32>, slice: u64) -> u64 {
        if !self.is_exact {
            return 1;
        }
        let Some(chunk) = chunk else { return 0 };
        let Sizes { count, size, slice: most } = self.sizes;
        let whole = count.saturating_sub(u64::from(chunk) % self.chunks * size).min(size);
        whole.saturating_sub(slice).min(most)
    }

    /// In place, what is no longer the input is called output, so that it is not multiplied beforehand again.
    fn renamed(&self, rank: u32, piece: Piece, length: u64) -> Piece {
        let output = |offset| Piece { buffer: Buffer::Output, offset };
        match (piece.buffer, self.overlaps[rank as usize]) {
            (Buffer::Input, Some(Overlap::InputInOutput(base))) => output(base + piece.offset),
            (Buffer::Input, Some(Overlap::OutputInInput(base)))
                if piece.offset >= base && piece.offset + length <= base + self.outputs[rank as usize] =>
            {
                output(piece.offset - base)
            }
            _ => piece,
        }
    }
}

impl Program for Interpreted {
    fn workers(&self, rank: u32) -> u32 {
        self.gpus[rank as usize].blocks.len() as u32
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        let operations = self.gpus[rank as usize].blocks[worker as usize].operations.len() as u64;
        operations * self.sizes.size.div_ceil(self.sizes.slice)
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let gpu = &self.gpus[rank as usize];
        let block = &gpu.blocks[worker as usize];
        let many = block.operations.len() as u64;
        let (looped, index) = (number / many, (number % many) as usize);
        let operation = &block.operations[index];
        let fact = self.facts.of(rank, worker, index);
        let slice = looped * self.sizes.slice;
        let is_moving = operation.receives || operation.sends || !operation.stores.is_empty();
        let count = if is_moving { self.length(fact.chunk, slice) } else { 0 };
        let piece = |at: Location| Piece { buffer: at.buffer, offset: self.offset(at, slice) };
        let with = |peer: Option<u32>, is_used: bool| -> SmallVec<[Connection; 2]> {
            let peer = peer.filter(|_| is_used).map(Peer::Rank);
            peer.into_iter().map(|peer| Connection { channel: block.channel, lane: 0, peer }).collect()
        };
        let source = |(index, at): (usize, &Location)| {
            // An empty slice lies nowhere.
            let piece = if count == 0 { Piece { buffer: at.buffer, offset: 0 } } else { piece(*at) };
            let is_own = fact.own >> index & 1 == 1;
            match (is_own, self.overlaps[rank as usize]) {
                (false, _) => self.renamed(rank, piece, count),
                // Its own input, by whatever name.
                (true, Some(_)) if piece.buffer != Buffer::Scratch => {
                    let index = fact.chunk.unwrap_or(at.index);
                    self.piece_of_input(index, slice, count)
                }
                (true, _) => piece,
            }
        };
        let store = |at: &Location| {
            if count == 0 {
                return Piece { buffer: Buffer::Output, offset: 0 };
            }
            self.renamed(rank, piece(*at), count)
        };
        let after = operation.after.map(|(target, index)| After {
            worker: target as u32,
            step: looped * gpu.blocks[target].operations.len() as u64 + index as u64,
        });
        Step {
            chunk: fact.chunk.unwrap_or(0) + (looped * self.chunks) as u32,
            count,
            receives: with(block.receive, operation.receives),
            sources: operation.sources.iter().enumerate().map(source).collect(),
            stores: operation.stores.iter().map(store).collect(),
            sends: with(block.send, operation.sends),
            after: after.into_iter().collect(),
            is_final: fact.is_final,
        }
    }
}

impl Interpreted {
    fn piece_of_input(&self, index: u32, slice: u64, count: u64) -> Piece {
        let offset =
            if count == 0 { 0 } else { self.offset(Location { buffer: Buffer::Input, index }, slice) };
        Piece { buffer: Buffer::Input, offset }
    }
}
