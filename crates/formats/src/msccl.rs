//! MSCCL's algorithm files: what each thread block of each GPU does, in XML.
//!
//! A file speaks of chunks, not bytes: buffers are cut into as many chunks as it says, and the whole program is repeated
//! until chunks of any size have gone through. [`read`] proves what it read, for all sizes at once: with chunks of one
//! element. [`File::schedule`] makes it a [`Schedule`] of a size, which runs and is checked like any other. [`write()`]
//! writes any schedule in this way; what MSCCL has no word for (several receives in a step, switches that reduce) becomes
//! several thread blocks, scratch memory and dependencies.
//!
//! The format and its limits are those of microsoft/msccl (src/graph/topo.cc, src/include/msccl.h).

mod lower;
mod parse;
mod program;
mod refusal;
mod write;

use railnet_coll::check::{self, Inferred};
use railnet_coll::{Algorithm, Call, Collective, CustomAlgorithm, Fifo, Protocol, Schedule};
use railnet_core::{Bytes, Rank};

pub use refusal::{ReadError, WriteError};
pub use write::write;

use program::{Facts, Interpreted, Sizes};

/// Steps of a thread block at most.
const STEPS_MAX: usize = 256;
/// Thread blocks of a GPU at most: two on each multiprocessor of an A100.
const BLOCKS_MAX: usize = 216;
/// Thread blocks of a GPU that send on one channel at most, and those that receive.
const PEERS_MAX: usize = 32;
/// Channels at most.
const CHANNELS_MAX: u32 = 32;
/// Chunks of a step: fewer than this.
const COUNT_LIMIT: u32 = 72;

/// An algorithm that was read and proved.
#[derive(Clone, Debug)]
pub struct File {
    /// What it calls itself.
    pub name: String,
    /// What it does.
    pub collective: Collective,
    /// The protocol it wants.
    pub protocol: Protocol,
    /// Among how many ranks.
    pub ranks: u32,
    /// On how many channels.
    pub channels: u32,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// The special rank, where there is one.
    pub root: Rank,
    /// The least and the most bytes it is meant for. It works for all.
    pub meant_for: (Bytes, Option<Bytes>),
    /// Chunks of a block: of the buffer, or of what belongs to one rank where a buffer has a block for each.
    pub chunks: u32,
    gpus: Vec<Gpu>,
    facts: Facts,
}

#[derive(Clone, Debug, Default)]
struct Gpu {
    scratch: u32,
    /// In ascending order of their numbers.
    blocks: Vec<ThreadBlock>,
}

#[derive(Clone, Debug)]
struct ThreadBlock {
    number: u32,
    line: u32,
    send: Option<u32>,
    receive: Option<u32>,
    channel: u16,
    /// One for each chunk of each step.
    operations: Vec<Operation>,
}

/// What is done with one chunk.
#[derive(Clone, Debug)]
struct Operation {
    /// The step it comes from, and its line.
    step: u32,
    line: u32,
    receives: bool,
    sends: bool,
    sources: Vec<Location>,
    stores: Vec<Location>,
    /// An operation of another thread block, by its place in the list, that has to be over first.
    after: Option<(usize, usize)>,
}

/// A chunk of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Location {
    buffer: railnet_coll::Buffer,
    index: u32,
}

/// Reads an algorithm and proves it.
pub fn read(text: &str) -> Result<File, ReadError> {
    let mut file = parse::parse(text)?;
    file.facts = file.prove(file.in_place)?;
    Ok(file)
}

impl CustomAlgorithm for File {
    fn schedule(&self, call: &Call, ranks: u32) -> Result<Schedule, String> {
        let own = self.gpus.len();
        if own != ranks as usize {
            return Err(format!("the algorithm is for {own} GPUs, and there are {ranks} ranks"));
        }
        File::schedule(self, call, None).map_err(|error| error.to_string())
    }
}

impl File {
    /// How many steps the file has, of all thread blocks of all GPUs.
    pub fn steps(&self) -> usize {
        let blocks = self.gpus.iter().flat_map(|gpu| &gpu.blocks);
        blocks.filter_map(|block| block.operations.last()).map(|last| last.step as usize + 1).sum()
    }

    /// The schedule of a call. Without a `fifo`, connections are as MSCCL has them.
    pub fn schedule(&self, call: &Call, fifo: Option<Fifo>) -> Result<Schedule, ReadError> {
        if call.collective != self.collective {
            return Err(ReadError::Unlike {
                file: self.collective.to_string(),
                call: call.collective.to_string(),
            });
        }
        if call.collective.has_root() && call.root != self.root {
            return Err(ReadError::Unlike {
                file: format!("root {}", self.root.0),
                call: format!("root {}", call.root.0),
            });
        }
        let railnet_coll::Counts::Each(count) = call.counts else {
            return Err(ReadError::Unlike {
                file: "blocks of one size".into(),
                call: "blocks of several sizes".into(),
            });
        };
        let facts =
            if call.in_place == self.in_place { self.facts.clone() } else { self.prove(call.in_place)? };
        let fifo = fifo.unwrap_or_else(|| Fifo::new(self.protocol, self.protocol.buffer(), true));
        let slice = (fifo.chunk().0 / call.dtype.size() as u64).max(1);
        let size = count.div_ceil(u64::from(self.chunks));
        Ok(self.instantiate(call.clone(), fifo, Sizes { count, size, slice }, facts))
    }

    fn instantiate(&self, call: Call, fifo: Fifo, sizes: Sizes, facts: Facts) -> Schedule {
        let most = self.gpus.iter().map(|gpu| gpu.scratch).max().unwrap_or(0);
        Schedule {
            ranks: self.ranks,
            algorithm: Algorithm::Custom,
            protocol: self.protocol,
            channels: self.channels,
            fifo,
            groups: Vec::new(),
            scratch: u64::from(most) * sizes.size,
            program: std::sync::Arc::new(Interpreted::new(self, &call, sizes, facts)),
            call,
        }
    }

    /// Proves the file with chunks of one element, which stands for all sizes: chunks are independent of each other, and
    /// so are the rounds in which long ones are moved.
    fn prove(&self, in_place: bool) -> Result<Facts, ReadError> {
        let count = u64::from(self.chunks);
        let call = Call { root: self.root, in_place, ..Call::new(self.collective, count) };
        let fifo = Fifo::new(self.protocol, self.protocol.buffer(), true);
        let schedule = self.instantiate(call, fifo, Sizes { count, size: 1, slice: 1 }, Facts::default());
        let found: Vec<Inferred> = check::infer(&schedule).map_err(|error| refusal::in_file(self, &error))?;
        Ok(Facts::new(self, &found))
    }
}

/// Whether the input of a collective has a block for each rank.
const fn has_blocks_in(collective: Collective) -> bool {
    matches!(collective, Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter)
}

/// Whether its output has.
const fn has_blocks_out(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::AllToAll | Collective::Gather)
}

/// The names of collectives in files. MSCCL knows all but the last two, which RCCL's reader adds.
const COLLECTIVES: [(&str, Collective); 8] = [
    ("allreduce", Collective::AllReduce),
    ("allgather", Collective::AllGather),
    ("reduce", Collective::Reduce),
    ("broadcast", Collective::Broadcast),
    ("alltoall", Collective::AllToAll),
    ("reduce_scatter", Collective::ReduceScatter),
    ("gather", Collective::Gather),
    ("scatter", Collective::Scatter),
];
