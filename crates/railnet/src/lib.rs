#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! | you want to | module | example |
//! | --- | --- | --- |
//! | do collectives between real processes | here: [`Communicator`] | `examples/hello.rs`, `examples/train.rs` |
//! | use a NIC: queue pairs, memory regions, completions | [`verbs`] | `examples/pingpong.rs` |
//! | simulate a fabric, a collective or a training job | [`sim`] | `examples/incast.rs`, `examples/job.rs` |
//! | describe servers and fabrics, and measure them | [`topology`] | in its documentation |
//!
//! # Collectives
//!
//! | what | where |
//! | --- | --- |
//! | collectives, blocking | [`Communicator::all_reduce`] and its like |
//! | collectives that go on while the program computes | [`Communicator::start_all_reduce`] and its like, [`Pending`] |
//! | point to point | [`Communicator::send`], [`Communicator::receive`], [`Communicator::group`] |
//! | memory that others write while its owner computes | [`Communicator::window`], [`Window::put_signal`], [`Window::wait_signals`] |
//! | the same over memory that the program already has | [`Communicator::register`], [`Window::into_vec`], [`Window::path`] |
//! | parts of a communicator | [`Communicator::split`] |
//! | timeout, conduit, rendezvous and the like, in code | [`Communicator::builder`], [`CommunicatorBuilder`]; the variables of [`Options`] are its defaults |
//! | after a failure: who has failed, and going on without them | [`Error::culprits`], [`Communicator::agree`], [`Communicator::shrink`] |
//!
//! Ranks are `usize` from 0 on, as indices of slices are. [`Rank`] is the same number as an id, in the descriptions of [`raw`] and
//! [`rendezvous`].
//!
//! ```
//! use std::time::Duration;
//! use railnet::{Communicator, Conduit, ReduceOp};
//!
//! let world = Communicator::builder().timeout(Duration::from_secs(30)).conduit(Conduit::Tcp).connect()?;
//! let mut sum = [world.rank() as f64];
//! world.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
//! # Ok::<(), railnet::Error>(())
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![deny(unnameable_types)]

pub use railnet_core::{DataType, Rank, ReduceOp, Scalar};
pub use railnet_live::agreement::Quorum;
pub use railnet_live::communicator::{
    Agreed, Bf16, Error, F8E4M3, F8E5M2, F16, RoceCounters, RoceOptions, SignalCount, WindowPath,
};
pub use railnet_live::roce::Faults;
pub use railnet_live::{
    Authentication, Communicator, CommunicatorBuilder, Conduit, Element, Group, Level, Options, Pending,
    Window,
};

/// The launcher that started this process, by its variables.
///
/// ```
/// // Started by hand: there is none.
/// assert_eq!(railnet::launcher()?.to_string(), "none");
/// # Ok::<(), railnet::error::LaunchError>(())
/// ```
pub fn launcher() -> Result<railnet_live::launch::Launcher, railnet_live::launch::LaunchError> {
    railnet_live::Launch::from_env().map(|launch| launch.launcher)
}

/// What the variants of [`Error`] contain.
pub mod error {
    pub use railnet_coll::BuildError;
    pub use railnet_coll::machine::{Failure, MismatchError, MissingError, Signature, StuckError};
    pub use railnet_coll::tuner::NoChoice;
    pub use railnet_coll::window::WindowError;
    pub use railnet_live::ReachError;
    pub use railnet_live::control::ControlError;
    pub use railnet_live::launch::LaunchError;
    pub use railnet_live::rendezvous::{ConfigError, MeetError};
}

/// The trace of a rank's calls: [`CommunicatorBuilder::call_trace`] writes one, [`Communicator::traced_calls`] returns it.
pub mod call_trace {
    pub use railnet_live::calls::{Call, Calls};
}

/// The identity of a rank, and how ranks meet, for programs that do more than [`CommunicatorBuilder`] does.
pub mod rendezvous {
    pub use railnet_coll::variables::Variables;
    pub use railnet_live::launch::{Launcher, RendezvousAddress, free_port};
    pub use railnet_live::rendezvous::{Config, Reminders};
    pub use railnet_live::{Launch, Secret};
}

/// Calls whose types and memory are known only when a program runs: for the bindings of other languages.
pub mod raw {
    pub use railnet_coll::{Call, Collective, Counts, Overlap};
    pub use railnet_live::communicator::{GoOn, Operation, Transfer, TransferDirection};
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FirstPage;

/// Quantities and ids: what times, amounts and rates are in the signatures of this crate.
pub mod units {
    pub use railnet_core::{Bytes, Rate, Ratio, Span, Time};
}

pub mod sim;
pub mod topology;
pub mod verbs;
