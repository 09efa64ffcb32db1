//! What every layer of Railnet shares: units, ids, seeded randomness, ghost tags and the one vocabulary of events.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod event;
mod ghost;
mod id;
mod psn;
mod random;
mod time;
mod units;

pub use ghost::{GhostRun, GhostTag};
pub use id::{Component, Label, QueuePairNumber, Rank};
pub use psn::Psn;
pub use random::Random;
pub use time::{Span, Time};
pub use units::{Bytes, Rate};
