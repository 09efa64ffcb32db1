#![doc = include_str!("../README.md")]
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
    pub use railnet_live::launch::{Launcher, Meeting, free_port};
    pub use railnet_live::rendezvous::Config;
    pub use railnet_live::{Launch, Secret};
}

/// Calls whose types and memory are known only when a program runs: for the bindings of other languages.
pub mod raw {
    pub use railnet_coll::{Call, Collective, Counts};
    pub use railnet_live::communicator::{GoOn, Operation, Transfer, TransferDirection};
}

/// The simulator: scenarios, runs of them, and a network that another simulator drives.
pub mod sim {
    pub use railnet_core::{Span, Time};
    pub use railnet_sim::{
        Coupled, CouplingError, Finished, Outcome, Run, RunError, Scenario, ScenarioError, run,
    };
}
