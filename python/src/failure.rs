//! Failures as the exceptions of `railnet.errors`, which carry what is known of the place and of what would be right.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use railnet_cli::ask::{Failure, Problem};

/// An exception of `railnet.errors`, by its name.
pub(crate) fn exception(py: Python<'_>, class: &str, arguments: impl for<'py> PyCallArgs<'py>) -> PyErr {
    let made = py
        .import("railnet.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The exception that says the same.
pub(crate) fn raised(py: Python<'_>, failure: Failure) -> PyErr {
    let Failure { message, problem, is_usage } = failure;
    match problem {
        Some(problem) => {
            let Problem { file, line, column, key, advice, .. } = *problem;
            exception(py, "ScenarioError", (message, file, line, column, key, advice))
        }
        None if is_usage => exception(py, "UsageError", (message,)),
        None => exception(py, "RunError", (message,)),
    }
}
