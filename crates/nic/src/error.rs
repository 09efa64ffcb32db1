//! What can go wrong in a call, and why a packet is thrown away.

use std::fmt;

use railnet_core::QueuePairNumber;
use thiserror::Error;

use crate::queue_pair::{Attribute, State};

/// A verb refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The object does not exist, or no longer.
    #[error("there is no such {0}")]
    Unknown(&'static str),
    /// Something still uses the object; destroy that first.
    #[error("the {what} is still in use by {count} {by}: destroy those first")]
    Busy {
        /// What was to be destroyed.
        what: &'static str,
        /// What uses it.
        by: &'static str,
        /// How many of them.
        count: u32,
    },
    /// The number asked for is taken, or outside this NIC's range.
    #[error("{what} {number:#x} is taken or outside this NIC's range")]
    NotAvailable {
        /// What it was to be.
        what: &'static str,
        /// The number.
        number: u32,
    },
    /// All numbers of the range are in use.
    #[error("no {0} is left in this NIC's range")]
    Exhausted(&'static str),
    /// A limit of the NIC.
    #[error("{what} {asked} is more than this NIC's limit of {limit}")]
    Limit {
        /// What was asked for.
        what: &'static str,
        /// The number that was asked for.
        asked: u64,
        /// How much there may be.
        limit: u64,
    },
    /// Memory that is to be registered is not there.
    #[error("{length} bytes at {address:#x} are not all mapped")]
    Fault {
        /// Where the memory would begin.
        address: u64,
        /// How many bytes.
        length: u64,
    },
    /// Remote write and remote atomic access need local write access.
    #[error("remote write or atomic access needs local write access too")]
    RemoteWriteNeedsLocalWrite,
    /// Objects of different protection domains.
    #[error("the {0} belongs to another protection domain")]
    OtherDomain(&'static str),
    /// The queue pair cannot go from one state to the other.
    #[error("a queue pair cannot go from {from} to {to}")]
    Transition {
        /// The state it is in.
        from: State,
        /// The state it was to take.
        to: State,
    },
    /// The transition needs an attribute that was not given.
    #[error("the transition {from} to {to} needs {missing}")]
    MissingAttribute {
        /// The state it is in.
        from: State,
        /// The state it was to take.
        to: State,
        /// What is missing.
        missing: Attribute,
    },
    /// The transition does not take this attribute.
    #[error("the transition {from} to {to} does not take {extra}")]
    ExtraAttribute {
        /// The state it is in.
        from: State,
        /// The state it was to take.
        to: State,
        /// What was given.
        extra: Attribute,
    },
    /// An attribute has a value that cannot be.
    #[error("{value} is no value for {attribute}: {help}")]
    BadAttribute {
        /// The attribute.
        attribute: Attribute,
        /// The value.
        value: u64,
        /// What would do.
        help: &'static str,
    },
    /// The current state was given and is another.
    #[error("the queue pair is in {actual}, not in {assumed}")]
    WrongCurrentState {
        /// What the caller believed.
        assumed: State,
        /// What it is.
        actual: State,
    },
}

/// A work request refused at the door.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PostError {
    /// No such queue.
    #[error("there is no such {0}")]
    Unknown(&'static str),
    /// Not in this state.
    #[error("queue pair {queue_pair} is in {state}: nothing can be posted to its {queue} queue")]
    State {
        /// The queue pair.
        queue_pair: QueuePairNumber,
        /// Its state.
        state: State,
        /// Which queue.
        queue: &'static str,
    },
    /// The queue is full: poll completions first.
    #[error("the queue holds {depth} work requests already: poll completions first")]
    Full {
        /// Its depth.
        depth: u32,
    },
    /// Too many scatter or gather entries.
    #[error("{asked} scatter or gather entries are more than the queue's {limit}")]
    TooManyEntries {
        /// Entries of the request.
        asked: usize,
        /// How many there may be.
        limit: u32,
    },
    /// The message is too long: 2^31 bytes on connections, one packet on datagrams.
    #[error("a message of {length} bytes is longer than {limit}")]
    TooLong {
        /// Bytes of the message.
        length: u64,
        /// How long it may be.
        limit: u64,
    },
    /// More inline data than the queue pair was made for.
    #[error("{length} inline bytes are more than the queue pair's {limit}")]
    InlineTooLong {
        /// Inline bytes of the request.
        length: usize,
        /// How many there may be.
        limit: u32,
    },
    /// The operation does not exist on this kind of queue pair, or cannot be combined so.
    #[error("{operation} cannot be posted here: {reason}")]
    NotPossible {
        /// The operation.
        operation: &'static str,
        /// What rules it out.
        reason: &'static str,
    },
    /// The queue pair has a shared receive queue: receives go there.
    #[error("queue pair {0} takes its receives from a shared receive queue: post there")]
    HasSharedQueue(QueuePairNumber),
}

/// Why a packet was thrown away: loss, not an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// The invariant checksum is wrong.
    BadIcrc,
    /// No such queue pair here.
    NoQueuePair,
    /// The opcode belongs to another kind of queue pair.
    WrongTransport,
    /// The queue pair is in a state that takes no such packet.
    NotReady,
    /// The partition key does not match.
    Partition,
    /// It comes from, or goes to, another address than the connection's.
    Address,
    /// The queue key does not match.
    QueueKey,
    /// A packet before it is missing.
    OutOfSequence,
    /// An answer to something that was answered before.
    StaleResponse,
    /// An answer to something that was never sent.
    UnsentResponse,
    /// A duplicate of a READ or atomic that is no longer remembered.
    Forgotten,
    /// The rest of an unreliable message of which a part was lost.
    BrokenMessage,
    /// No receive is posted for an unreliable message.
    NoReceive,
    /// It does not fit the posted receive.
    TooLong,
    /// An unreliable request that may not be served.
    Access,
    /// An operation that this NIC does not serve.
    NotServed,
}

impl DropReason {
    /// All of them, in the order in which they are declared.
    pub const ALL: [Self; 16] = [
        Self::BadIcrc,
        Self::NoQueuePair,
        Self::WrongTransport,
        Self::NotReady,
        Self::Partition,
        Self::Address,
        Self::QueueKey,
        Self::OutOfSequence,
        Self::StaleResponse,
        Self::UnsentResponse,
        Self::Forgotten,
        Self::BrokenMessage,
        Self::NoReceive,
        Self::TooLong,
        Self::Access,
        Self::NotServed,
    ];
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// The reason in words that live as long as the program.
    pub const fn text(self) -> &'static str {
        match self {
            Self::BadIcrc => "bad ICRC",
            Self::NoQueuePair => "no such queue pair",
            Self::WrongTransport => "opcode of another transport service",
            Self::NotReady => "queue pair not ready",
            Self::Partition => "partition key mismatch",
            Self::Address => "address of another connection",
            Self::QueueKey => "queue key mismatch",
            Self::OutOfSequence => "out of sequence",
            Self::StaleResponse => "stale response",
            Self::UnsentResponse => "response to nothing that was sent",
            Self::Forgotten => "duplicate of a forgotten request",
            Self::BrokenMessage => "part of a broken unreliable message",
            Self::NoReceive => "no receive posted",
            Self::TooLong => "longer than the receive buffer",
            Self::Access => "access refused",
            Self::NotServed => "operation not served",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl std::error::Error for DropReason {}
