//! Collectives: what they mean, which algorithm and protocol runs them, their schedules, and the machine that executes
//! them.
//!
//! - [`Call`] says what ranks want. [`Choice`] says how it is done: algorithm, protocol, channels.
//! - [`Wiring`] says how channels run over the ranks: rings, chains and trees.
//! - An algorithm makes a [`Schedule`] of the three: a program of [`Step`]s for each worker of each rank, walked lazily.
//!   One file each, in `algorithm/`.
//! - [`check::check`] proves that a schedule does what its call asks for.
//! - A [`machine::RankMachine`] for each rank executes schedules, and [`conduit`]s carry what it sends; [`window`] has
//!   one-sided operations.
//!
//! Nothing here does input or output, and nothing here has seen a packet.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod algorithm;
mod call;
pub mod check;
pub mod conduit;
pub mod init_log;
pub mod machine;
mod options;
mod outputs;
mod protocol;
mod schedule;
pub mod search;
#[cfg(feature = "testing")]
pub mod testing;
mod traffic;
pub mod transport;
pub mod tuner;
pub mod variables;
pub mod window;
mod wiring;

pub use algorithm::{Algorithm, BuildError, Choice, CustomAlgorithm, build, check_call};
pub use call::{Call, Collective, Counts, Overlap};
pub use options::{CrossNic, NicFilter, TopologyOptions};
pub use protocol::{Fifo, Protocol};
pub use schedule::{
    After, Buffer, Connection, Peer, Piece, Program, Schedule, Step, SwitchGroup, SwitchKind, Usage,
};
pub use traffic::traffic;
pub use wiring::{ChannelNics, NicPair, TreePattern, TreePeers, Wiring};

/// The example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
