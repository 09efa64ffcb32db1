//! NICs in a small world of their own: a clock, memory, and a wire that can be made bad.
//!
//! [`Lab`] is what tests, the storm, the ladder of `railnet verbs` and the benchmark run in. It is a driver like any
//! other: it owns time and memory, and moves packets.

mod lab;
mod pair;
pub mod replay;
pub mod storm;

pub use crate::frame::WireForm;
pub use lab::{Fate, Faults, Injected, Lab, Outage, Peer, Tapped, connect, loopback_gid};
pub use pair::{PAIR_BASE, Pair, PairOptions};
