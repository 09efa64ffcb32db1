//! `railnet._railnet`: what the Python package has of Rust. `python/railnet` is the package around it.

mod communicator;
mod failure;
mod simulator;

use pyo3::prelude::*;

/// The module, as Python imports it.
#[pymodule]
mod _railnet {
    #[pymodule_export]
    use crate::communicator::{
        Communicator, Operation, collectives, data_types, launch_variables, meeting, reductions,
    };
    #[pymodule_export]
    use crate::simulator::{Answer, Network, check, command, simulate, text};

    /// The version of the package and of all crates in it.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
