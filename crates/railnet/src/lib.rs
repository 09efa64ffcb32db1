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
//! | how long to wait, and by which conduit | [`Options`], `RAILNET_TIMEOUT`, `RAILNET_CONDUIT` |
//! | what went wrong, and whose fault it is | [`Error`], [`Error::culprits`] |
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![deny(unnameable_types)]

pub use railnet_core::{DataType, Rank, ReduceOp, Scalar};
pub use railnet_live::communicator::{
    Bf16, Error, F8E4M3, F8E5M2, F16, RoceCounters, RoceOptions, SignalCount, WindowPath,
};
pub use railnet_live::{Communicator, Conduit, Element, Group, Options, Pending, Window};

/// What started this process, as its variables say.
pub fn launcher() -> Result<railnet_live::launch::Launcher, railnet_live::launch::LaunchError> {
    railnet_live::Launch::from_env().map(|launch| launch.launcher)
}

/// How ranks meet, where no launcher says it.
pub mod rendezvous {
    pub use railnet_live::launch::{Launcher, RendezvousAddress, free_port};
    pub use railnet_live::rendezvous::Config;
    pub use railnet_live::{Launch, Secret};
}

/// Calls whose types and memory are known only when a program runs: for the bindings of other languages.
pub mod raw {
    pub use railnet_coll::{Call, Collective, Counts};
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
