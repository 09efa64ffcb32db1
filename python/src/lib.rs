//! `railnet._railnet`: what the Python package has of Rust. `python/railnet` is the package around it.

use pyo3::prelude::*;

/// The module, as Python imports it.
#[pymodule]
mod _railnet {
    use super::*;

    /// The version of the package and of all crates in it.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        Ok(())
    }
}
