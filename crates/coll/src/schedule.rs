//! Schedules: who does what with which data, and in which order.
//!
//! A rank has *workers*, each of which does its steps one after the other, as the thread blocks of a GPU do. A step takes
//! data from connections and from local memory, reduces it where it is more than one thing, and puts it into local
//! memory and connections: all of NCCL's primitives are such steps. Connections are queues with a few slots; a step waits
//! until what it takes is there and what it sends has room.
//!
//! A schedule is not a list. [`Program::step`] computes any step from its number, so that a program for thousands of
//! ranks takes no memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, direct};
use crate::call::{Call, Collective};
use crate::machine::Direction;
use crate::protocol::{Fifo, Protocol};

/// Which of a rank's buffers. In place, input and output overlap as [`Call::overlap`] says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Buffer {
    /// What the rank gives. Pre-multiplication happens when data is read from here.
    Input,
    /// What the rank gets.
    Output,
    /// Memory that lasts as long as the call.
    Scratch,
}

/// Where data of a step lies: its length is the step's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Which buffer.
    pub buffer: Buffer,
    /// The first element in it.
    pub offset: u64,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// Another rank.
    Rank(u32),
    /// A switch that reduces or multicasts: the number of its group in [`Schedule::groups`].
    Switch(u32),
}

/// One end of a connection, seen from a rank. A connection is (channel, lane, sender, receiver): a queue in one
/// direction. On each side exactly one worker uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Connection {
    /// The channel it belongs to.
    pub channel: u16,
    /// Tells apart connections of one channel between the same two.
    pub lane: u8,
    /// Who is at the other end.
    pub peer: Peer,
}

/// A step of a worker of the same rank that has to be over first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct After {
    /// The worker of the same rank.
    pub worker: u32,
    /// Its number.
    pub step: u64,
}

/// What a worker does at once. All data that comes in (`sources`, then `receives`, in their order) is reduced to one
/// result, which goes to all of `stores` and `sends`. Nothing in is allowed too: a step that only waits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The chunk it is about, for reports and labels: any number that the ranks agree on.
    pub chunk: u32,
    /// How many elements.
    pub count: u64,
    /// Connections from which one chunk each is taken.
    pub receives: SmallVec<[Connection; 2]>,
    /// Local data.
    pub sources: SmallVec<[Piece; 1]>,
    /// Where the result is put.
    pub stores: SmallVec<[Piece; 1]>,
    /// Connections on which the result is sent.
    pub sends: SmallVec<[Connection; 2]>,
    /// What has to be over first.
    pub after: SmallVec<[After; 1]>,
    /// Whether every contribution is in the result: an average is divided here.
    pub is_final: bool,
}

/// What a switch does with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SwitchKind {
    /// An NVLink switch, inside one NVLink domain.
    NvLink,
    /// The switches of the network: SHARP.
    Network,
}

/// A group of ranks around a switch: the n-th chunks of all senders are reduced to one, and all receivers get it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchGroup {
    /// Which switch.
    pub kind: SwitchKind,
    /// Who contributes, in ascending order.
    pub senders: Vec<u32>,
    /// Who gets the result, in ascending order.
    pub receivers: Vec<u32>,
}

/// How often a worker uses a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Which end of it.
    pub direction: Direction,
    /// Which connection.
    pub connection: Connection,
    /// How many chunks it sends or receives there.
    pub chunks: u64,
}

/// A program for all ranks.
pub trait Program: fmt::Debug + Send + Sync {
    /// How many workers a rank has.
    fn workers(&self, rank: u32) -> u32;

    /// How many steps a worker has.
    fn steps(&self, rank: u32, worker: u32) -> u64;

    /// A step of a worker; its number is less than [`Program::steps`].
    fn step(&self, rank: u32, worker: u32, number: u64) -> Step;

    /// What a worker uses in all of its steps, in the order in which it first does, what is received before what is sent.
    /// The answer given here looks at every step: a program that knows it otherwise says so much faster.
    fn uses(&self, rank: u32, worker: u32) -> Vec<Usage> {
        uses_of(self, rank, worker, self.steps(rank, worker), 1)
    }
}

/// What the first so many steps of a worker use, if they are done so many times.
pub(crate) fn uses_of<P: Program + ?Sized>(
    program: &P,
    rank: u32,
    worker: u32,
    steps: u64,
    times: u64,
) -> Vec<Usage> {
    let mut uses: Vec<Usage> = Vec::new();
    // Where each of them is, in the order of their names: there may be thousands.
    let mut places: BTreeMap<(Direction, Connection), usize> = BTreeMap::new();
    for number in 0..if times == 0 { 0 } else { steps } {
        let step = program.step(rank, worker, number);
        let receives = step.receives.iter().map(|one| (Direction::Receive, *one));
        let sends = step.sends.iter().map(|one| (Direction::Send, *one));
        for (direction, connection) in receives.chain(sends) {
            let place = *places.entry((direction, connection)).or_insert_with(|| {
                uses.push(Usage { direction, connection, chunks: 0 });
                uses.len() - 1
            });
            uses[place].chunks += times;
        }
    }
    uses
}

/// Who does what, to carry out one call.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// What is carried out.
    pub call: Call,
    /// Among how many ranks.
    pub ranks: u32,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// By which protocol.
    pub protocol: Protocol,
    /// How many channels it uses.
    pub channels: u32,
    /// How chunks lie in the slots of connections.
    pub fifo: Fifo,
    /// The switches that take part.
    pub groups: Vec<SwitchGroup>,
    /// Elements of scratch memory of each rank.
    pub scratch: u64,
    /// The steps.
    pub program: Arc<dyn Program>,
}

impl Schedule {
    /// Whether nothing is written to where something was sent from, or nothing that could be had before it has come. On a ring,
    /// what comes back of a chunk has been to everybody; so has what comes back in two shots, or of the half that a rank gave away
    /// in a hypercube. In one shot in place, a rank adds to what it sends before anybody has to have taken it; of others it is not
    /// known.
    pub(crate) fn keeps_sent(&self) -> bool {
        let Call { collective, in_place, .. } = self.call;
        let is_one_shot = || {
            collective == Collective::AllReduce
                && direct::is_one_shot(self.ranks, self.call.bytes(self.ranks).0)
        };
        match self.algorithm {
            Algorithm::Custom => false,
            _ if !collective.reduces() => true,
            Algorithm::Ring | Algorithm::Hypercube => true,
            Algorithm::Direct => !in_place || !is_one_shot(),
            _ => false,
        }
    }
}
