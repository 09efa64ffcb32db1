//! The tables of a run file, column by column. Times are picoseconds of virtual time.

use super::table::Kind::{U8, U16, U32, U64};
use super::table::Schema;

/// What ranks did.
pub const OPERATIONS: Schema = &[
    ("rank", U32),
    ("stream", U8),
    ("kind", U8),
    ("name", U32),
    ("entered", U64),
    ("begun", U64),
    ("ended", U64),
    ("bytes", U64),
    ("layer", U16),
    ("microbatch", U16),
    ("step", U16),
    ("critical", U8),
    ("late", U32),
    ("waited", U64),
];

/// What ranks did in bins of time: shares of each bin, of which [`super::WHOLE`] is all, and how long others waited for the rank.
pub const SHARES: Schema = &[
    ("rank", U32),
    ("bin", U32),
    ("forward", U16),
    ("recompute", U16),
    ("backward", U16),
    ("optimiser", U16),
    ("checkpoint", U16),
    ("communication", U16),
    ("waiting", U16),
    ("exposed", U16),
    ("late", U64),
];

/// Collectives.
pub const CALLS: Schema = &[
    ("communicator", U32),
    ("sequence", U32),
    ("name", U32),
    ("begun", U64),
    ("ended", U64),
    ("bytes", U64),
];

/// Pieces of collectives on their way.
pub const SLICES: Schema = &[
    ("communicator", U32),
    ("sequence", U32),
    ("chunk", U32),
    ("step", U32),
    ("channel", U16),
    ("via", U8),
    ("from", U32),
    ("to", U32),
    ("sent", U64),
    ("arrived", U64),
    ("bytes", U32),
];

/// What links carried, bin by bin.
pub const LOAD: Schema = &[
    ("bin", U32),
    ("channel", U32),
    ("bytes", U64),
    ("queue", U64),
    ("marks", U32),
    ("paused", U64),
    ("drops", U32),
];

/// The same with bins joined: how many of them a row stands for is in the last column.
pub const COARSE_LOAD: Schema = &[
    ("bin", U32),
    ("channel", U32),
    ("bytes", U64),
    ("queue", U64),
    ("marks", U32),
    ("paused", U64),
    ("drops", U32),
    ("bins", U32),
];

/// Packets, a sample of them.
pub const PACKETS: Schema = &[
    ("sent", U64),
    ("host", U32),
    ("queue_pair", U32),
    ("target", U32),
    ("to", U32),
    ("psn", U32),
    ("opcode", U8),
    ("transmission", U16),
    ("length", U32),
    ("received", U64),
    ("marked", U8),
    ("sequence", U32),
    ("chunk", U32),
    ("step", U32),
    ("syndrome", U8),
    ("messages", U32),
];

/// Their way through the fabric.
pub const HOPS: Schema =
    &[("time", U64), ("packet", U32), ("vertex", U32), ("channel", U32), ("bytes", U32), ("waiting", U64)];

/// Work requests.
pub const MESSAGES: Schema = &[
    ("posted", U64),
    ("started", U64),
    ("completed", U64),
    ("host", U32),
    ("queue_pair", U32),
    ("length", U32),
    ("first", U32),
    ("packets", U32),
    ("sequence", U32),
    ("chunk", U32),
    ("step", U32),
    ("status", U8),
];

/// Completions that applications found, of sends and of receives.
pub const COMPLETIONS: Schema =
    &[("time", U64), ("host", U32), ("queue_pair", U32), ("work", U64), ("status", U8)];

/// Queue pairs that changed their state.
pub const STATES: Schema = &[("time", U64), ("host", U32), ("queue_pair", U32), ("from", U8), ("to", U8)];

/// Rates that congestion control set, in bits per second.
pub const RATES: Schema = &[("time", U64), ("host", U32), ("queue_pair", U32), ("rate", U64)];

/// What went wrong, or nearly.
pub const INCIDENTS: Schema = &[
    ("time", U64),
    ("kind", U8),
    ("vertex", U32),
    ("channel", U32),
    ("queue_pair", U32),
    ("psn", U32),
    ("value", U64),
];

/// Links that received XOFF, and the link that was held back where it came from.
pub const PAUSES: Schema =
    &[("begun", U64), ("ended", U64), ("channel", U32), ("priority", U8), ("cause", U32)];

/// Queue pairs, whom they talk to, what they sent, their first sequence number, and the memory that they write to first.
pub const CONNECTIONS: Schema = &[
    ("host", U32),
    ("queue_pair", U32),
    ("to", U32),
    ("target", U32),
    ("packets", U64),
    ("bytes", U64),
    ("resent", U64),
    ("first", U32),
    ("address", U64),
    ("rkey", U32),
];

/// The first bytes of frames: which packet, on which link, and where its bytes are in the heap.
pub const FRAMES: Schema =
    &[("packet", U32), ("time", U64), ("channel", U32), ("offset", U32), ("kept", U16), ("length", U32)];

/// A packet that carries no verdict.
pub const NO_SYNDROME: u64 = 255;

/// A number that stands for nobody.
pub const NOBODY: u64 = u32::MAX as u64;
