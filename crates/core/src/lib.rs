//! What every layer of Railnet shares: units, ids, seeded randomness, data types and their reductions, ghost tags, the
//! one vocabulary of events, and the digest of a run.
//!
//! Nothing here does input or output, reads a clock or draws unseeded randomness. Amounts are integers with a unit in
//! their type, so a run gives the same result on every machine.
//!
//! ```
//! use railnet_core::{Bytes, Rate, Span};
//!
//! // 4 KiB of payload and 70 bytes of headers, on the wire at 400 Gbps.
//! let rate: Rate = "400Gbps".parse()?;
//! let packet = Bytes::kib(4) + Bytes(70);
//! assert_eq!(rate.serialize(packet), Span::from_ps(83_320));
//! assert_eq!(rate.bytes_in("1us".parse()?), "50KB".parse()?);
//! # Ok::<(), railnet_core::parse::ParseError>(())
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod digest;
mod dtype;
pub mod event;
pub mod float;
mod ghost;
mod id;
pub mod limits;
mod nearest;
mod order;
pub mod parse;
pub mod prefetch;
mod psn;
mod random;
pub mod reduce;
mod time;
mod units;
mod wording;

pub use digest::{Digest, Fold, RunDigest};
pub use dtype::DataType;
pub use ghost::{GhostRun, GhostTag};
pub use id::{Component, Label, Port, QueuePairNumber, Rank};
pub use nearest::nearest;
pub use order::Order;
pub use psn::{PacketSample, Psn};
pub use random::Random;
pub use reduce::{ReduceOp, Scalar};
pub use time::{Span, Time};
pub use units::{Bytes, Rate, Ratio};
pub use wording::without_types;
