//! What a machine asks its driver to do.

use std::fmt;
use std::sync::Arc;

use railnet_core::{Bytes, Label, Rank, ReduceOp};
use smallvec::SmallVec;

use super::signature::Mark;
use super::trouble::{Failure, Notice};
use crate::protocol::{Fifo, Protocol};
use crate::schedule::{Buffer, Connection, Schedule};

/// An operation of a communicator: its sequence number, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OperationId(pub u64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// One end of a connection in its machine: dense, from 0 on, in the order in which schedules first used them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// This rank sends.
    Send,
    /// This rank receives.
    Receive,
}

/// A piece of work that was handed out. A worker has one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkId(pub u64);

impl WorkId {
    pub(super) const fn new(operation: OperationId, worker: u32) -> Self {
        Self(operation.0 << 32 | worker as u64)
    }

    /// The worker that does it: workers stand for thread blocks, and take turns at nothing.
    pub const fn worker(self) -> u32 {
        self.0 as u32
    }

    /// The lower half of the sequence number of its operation.
    pub(super) const fn sequence(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Where data of a piece of work lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// In a buffer of the call, from this element on.
    Buffer(Buffer, u64),
    /// At the beginning of a slot of a connection.
    Slot(ConnectionId, u32),
}

/// A slice-sized piece of work that can be done now: everything in `sources` is reduced to one result, which goes to all
/// of `targets`. All places hold `count` elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// Its name, for [`super::RankMachine::finished`].
    pub id: WorkId,
    /// The operation it belongs to.
    pub operation: OperationId,
    /// How many elements; never zero.
    pub count: u64,
    /// Local data first, then slots.
    pub sources: SmallVec<[Place; 2]>,
    /// Local memory first, then slots.
    pub targets: SmallVec<[Place; 2]>,
    /// Whether every contribution is in the result: an average is divided here.
    pub is_final: bool,
    /// How slots lie.
    pub layout: Layout,
    /// Which slice of the step.
    pub slice: u32,
    /// Which operation, chunk and step, for reports.
    pub tag: Tag,
}

impl Work {
    /// The place in the buffers of a call where all that this piece of work sends lies when it is done, and stays as it is until
    /// it has come. It can be sent from there instead of from slots.
    pub fn kept(&self, schedule: &Schedule) -> Option<Place> {
        if !schedule.keeps_sent() {
            return None;
        }
        let reduces = schedule.call.collective.reduces();
        // What is multiplied or divided on the way is not what lies there.
        let is_as_it_is = !reduces || !self.is_final && !matches!(schedule.call.op, ReduceOp::PreMulSum(_));
        match (&self.sources[..], &self.targets[..]) {
            // Sums stay in scratch memory; what only passes through it makes room for more.
            ([source @ Place::Buffer(buffer, _)], _)
                if is_as_it_is && (reduces || *buffer != Buffer::Scratch) =>
            {
                Some(*source)
            }
            (_, [target @ Place::Buffer(Buffer::Output, _), ..]) => Some(*target),
            _ => None,
        }
    }
}

impl Work {
    /// Whether two things or more are put together.
    pub fn reduces(&self) -> bool {
        self.sources.len() > 1
    }
}

/// A whole operation on this rank that only copies less than 2 KiB: small enough for the inline-copy fast path. Places are in bytes,
/// in buffers of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineCopy {
    /// Where the data is; `None` where it comes over the first of the connections.
    pub from: Option<(Buffer, Bytes)>,
    /// Where it goes in the memory of this rank, if it does. It goes over all other connections too.
    pub into: Option<(Buffer, Bytes)>,
    /// How long it is.
    pub length: Bytes,
}

/// A send slot that is filled: the conduit has to carry it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// On which connection.
    pub connection: ConnectionId,
    /// The first slot of the slice.
    pub slot: u32,
    /// Bytes of data; may be zero, and is carried all the same.
    pub data: Bytes,
    /// How slots lie.
    pub layout: Layout,
    /// Bytes on the way: with the flags of LL and LL128, which lie behind the data.
    pub bytes: Bytes,
    /// What the operation is, by which the receiver finds out whether it does the same.
    pub mark: Mark,
    /// Which operation, chunk and step.
    pub tag: Tag,
}

/// Slots of a slice that is done, for the other side: those that were filled go to the receiver, those that were emptied back to
/// the sender.
#[derive(Clone, Copy, Debug)]
pub struct Handed<'a> {
    /// On which connection.
    pub connection: ConnectionId,
    /// Which end of it.
    pub direction: Direction,
    /// The first slot of the slice.
    pub slot: u32,
    /// Bytes of data.
    pub data: Bytes,
    /// How slots lie.
    pub layout: &'a Layout,
    /// What the operation is.
    pub mark: Mark,
    /// Which operation, chunk and step.
    pub tag: Tag,
}

impl Handed<'_> {
    /// The same of a send slot, for a conduit.
    pub fn filled(&self) -> Filled {
        let Self { connection, slot, data, layout, mark, tag, .. } = *self;
        let bytes = Bytes(layout.protocol.on_the_way(data.0));
        Filled { connection, slot, data, layout: *layout, bytes, mark, tag }
    }
}

/// How slices of an operation lie in the slots of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The protocol.
    pub protocol: Protocol,
    /// The slots.
    pub fifo: Fifo,
}

impl Layout {
    /// Bytes from the beginning of one slot to that of the next: the data that fits, with its flags.
    pub const fn stride(&self) -> u64 {
        self.protocol.on_the_way(self.fifo.slot.0)
    }

    /// Bytes of all slots of a connection.
    pub const fn bytes(&self) -> u64 {
        self.stride() * self.fifo.depth as u64
    }

    /// Bytes of the slots that a slice takes.
    pub const fn slice(&self) -> u64 {
        self.stride() * self.fifo.slots_per_slice as u64
    }
}

/// What an operation will receive on a connection, told when it is submitted: a conduit whose receiver has to ask for
/// data asks for this much, in the order in which it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expect {
    /// On which connection.
    pub connection: ConnectionId,
    /// How many slices; at least one.
    pub slices: u64,
    /// The slot of the first slice; each following one begins `slots_per_slice` slots further on, and after the last
    /// slot with the first.
    pub slot: u32,
    /// How they lie. Where it is another layout than before, the slots of the operation before must be empty first.
    pub layout: Layout,
    /// What the operation is.
    pub mark: Mark,
    /// Which operation.
    pub operation: OperationId,
}

/// What a driver has to do for its machine.
#[derive(Clone, Debug)]
pub enum Output {
    /// A connection that was not used before: make its conduit, or be glad to have made it.
    Connect {
        /// Its name from now on.
        connection: ConnectionId,
        /// What it is.
        to: Connection,
        /// Which end of it.
        direction: Direction,
    },
    /// An operation will receive this.
    Expect(Expect),
    /// Do this work, which [`super::RankMachine::work`] describes, then call [`super::RankMachine::finished`].
    Work(WorkId),
    /// Carry a slot.
    Filled(Filled),
    /// Tell the sender that the next slice of this connection was taken out of its slots.
    Emptied {
        /// Which connection.
        connection: ConnectionId,
        /// The first slot of the slice.
        slot: u32,
    },
    /// Bring this to [`super::RankMachine::notice`] of a rank, or of all others.
    Notice {
        /// To whom; `None` is everybody else.
        to: Option<Rank>,
        /// The message.
        notice: Box<Notice>,
    },
    /// An operation is over on this rank.
    Finished(OperationId),
    /// The communicator is broken: nothing that was submitted and is not finished will finish.
    Failed(Arc<Failure>),
}

/// Which operation, chunk and step a piece of work, a slot or a packet is about. Packed into the label of a work
/// request: 20 bits of sequence, 24 of chunk and 20 of step, each modulo its size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag {
    /// The sequence number of the operation.
    pub sequence: u64,
    /// The chunk, in the schedule's words.
    pub chunk: u32,
    /// The step of the worker.
    pub step: u64,
}

impl From<Tag> for Label {
    fn from(tag: Tag) -> Self {
        Self((tag.sequence & 0xf_ffff) << 44 | u64::from(tag.chunk & 0xff_ffff) << 20 | tag.step & 0xf_ffff)
    }
}

impl From<Label> for Tag {
    fn from(label: Label) -> Self {
        Self { sequence: label.0 >> 44, chunk: (label.0 >> 20) as u32 & 0xff_ffff, step: label.0 & 0xf_ffff }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_survives_as_a_label() {
        let tag = Tag { sequence: 0xf_fffe, chunk: 0xab_cdef, step: 0x1_2345 };
        assert_eq!(Tag::from(Label::from(tag)), tag);
    }

    #[test]
    fn what_is_asked_for_stays_small() {
        assert!(size_of::<Output>() <= 96, "{}", size_of::<Output>());
    }
}
