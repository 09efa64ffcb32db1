//! One-sided windows: memory of all ranks that each may write, and signals that say so. Sans I/O, over a NIC, with the
//! meaning that NCCL 2.29 gives to PutSignal, Signal and WaitSignal.
//!
//! - A window is registered by all ranks, each with its own memory and length; each gets a [`WindowHandle`] from every
//!   other one before it can put there. It is deregistered by each rank for itself.
//! - PutSignal writes into a peer's window, then adds one to the peer's count of signals from this rank. What was put is
//!   there when its signal is seen, and so are the signals before it: to one peer everything goes in order.
//! - WaitSignal waits for so many more signals from each rank of a list, and uses them up.
//! - Operations of a group run at the same time, those to one peer in their order; groups run one after the other.
//!
//! ```text
//!   PutSignal ── WRITE ≤ 1 GiB · WRITE ≤ 1 GiB · … · fetch-and-add 1 ──▶ window, then signals[source] of the target
//! ```
//!
//! A signal is an atomic fetch-and-add and not a WRITE with immediate: the target posts no receives, so that a sender is
//! never held up by a target that computes; the count stands in the target's memory, where a wait finds it; and a
//! reliable connection executes it after the WRITEs that were posted before it. (NCCL's network plugin does the same.)

mod rma;

use railnet_core::{Bytes, Rank};
use railnet_nic::{Key, PostError, Status};
use thiserror::Error;

pub use rma::{GroupId, RmaOutput, Windows};

/// The longest WRITE that a put is cut into.
pub const PUT_MAX: u64 = 1 << 30;
/// What the address of a window is a multiple of: `NCCL_WIN_REQUIRED_ALIGNMENT`.
pub const ALIGNMENT: u64 = 4096;

/// A window of a communicator: ranks that register the same number of windows before it have the same name for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowId(pub u32);

/// What other ranks have to know of this rank's part of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowHandle {
    /// Its first byte.
    pub address: u64,
    /// Bytes of the window.
    pub length: Bytes,
    /// The key for writing to it, and for reading where that is allowed.
    pub key: Key,
}

/// A place in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Which window.
    pub window: WindowId,
    /// The first byte in it.
    pub offset: u64,
}

/// Things that NCCL has arguments for, and that have to be zero in this version of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// Which signal of the peer.
    pub signal: u32,
    /// Which context.
    pub context: u32,
    /// Flags.
    pub flags: u32,
}

/// A one-sided operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rma {
    /// Write to a peer's window and say nothing. NCCL has no such call; a later signal to the peer tells of it too.
    Put {
        /// The rank it is written to.
        peer: Rank,
        /// From this rank's part of a window.
        from: At,
        /// To the peer's part of a window.
        to: At,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Read from a peer's window. NCCL has no such call.
    Get {
        /// The rank it is read from.
        peer: Rank,
        /// From the peer's part of a window.
        from: At,
        /// To this rank's part of a window.
        to: At,
        /// Bytes to read.
        bytes: Bytes,
    },
    /// Write to a peer's window, then signal.
    PutSignal {
        /// The rank it is written to.
        peer: Rank,
        /// From this rank's part of a window.
        from: At,
        /// To the peer's part of a window.
        to: At,
        /// Bytes to write.
        bytes: Bytes,
        /// Zero.
        reserved: Reserved,
    },
    /// Signal only.
    Signal {
        /// Whom.
        peer: Rank,
        /// Zero.
        reserved: Reserved,
    },
    /// Wait for signals.
    WaitSignal(Vec<Awaited>),
}

/// Signals to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// The rank that signals.
    pub peer: Rank,
    /// How many more.
    pub count: u32,
    /// Zero.
    pub reserved: Reserved,
}

/// Why an operation was refused, or why windows stopped working.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// Something that has to be zero is not.
    #[error("{what} is {value}: it must be 0 in this version")]
    NotZero {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// There is no such rank.
    #[error("rank {} does not exist: there are {ranks}", peer.0)]
    NoSuchRank {
        /// The rank.
        peer: Rank,
        /// How many there are.
        ranks: u32,
    },
    /// A rank cannot put into its own window, signal itself or wait for itself.
    #[error("rank {} cannot signal itself: write to the memory instead", rank.0)]
    Oneself {
        /// The rank.
        rank: Rank,
    },
    /// No memory of a registered window.
    #[error("window {} is not registered on rank {}: every rank registers it, then it can be used", window.0, rank.0)]
    NotRegistered {
        /// Which window.
        window: WindowId,
        /// On which rank.
        rank: Rank,
    },
    /// Outside of a window.
    #[error("{bytes} at {} end outside of window {} on rank {}, which has {length}", at.offset, at.window.0, rank.0)]
    Outside {
        /// From where.
        at: At,
        /// How many bytes.
        bytes: Bytes,
        /// On which rank.
        rank: Rank,
        /// How long the window is there.
        length: Bytes,
    },
    /// The memory of a window does not begin where it has to.
    #[error("a window begins at a multiple of {ALIGNMENT}, not at {address:#x}")]
    Alignment {
        /// Where it begins.
        address: u64,
    },
    /// A wait for nothing.
    #[error("a wait for 0 signals from rank {}: it must be at least 1", peer.0)]
    NoSignals {
        /// The rank whose signals are awaited.
        peer: Rank,
    },
    /// A window that an operation uses cannot go.
    #[error("window {} is used by an operation that is not over: wait for it first", window.0)]
    Busy {
        /// Which window.
        window: WindowId,
    },
    /// There is no connection to the peer.
    #[error("rank {} is not connected", peer.0)]
    NotConnected {
        /// The peer.
        peer: Rank,
    },
    /// A work request was refused.
    #[error("rank {}: {error}", peer.0)]
    Post {
        /// The rank the work is for.
        peer: Rank,
        /// Why the NIC refused it.
        error: PostError,
    },
    /// A work request failed.
    #[error("rank {}: {status} ({})", peer.0, status.verbs_name())]
    Failed {
        /// The rank the work was for.
        peer: Rank,
        /// The status of its completion.
        status: Status,
    },
}
