//! What a storm found to be wrong.

use std::fmt;

use railnet_core::Time;

/// A rule that was broken: in which run, when, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// When it was noticed.
    pub at: Time,
    /// What was violated.
    pub what: String,
    /// What should have been.
    pub expected: String,
    /// What was.
    pub found: String,
    /// The scenario in words.
    pub scenario: String,
}

impl Violation {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    pub(super) fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.expected = expected.to_string();
        self
    }

    pub(super) fn found(mut self, found: impl fmt::Display) -> Self {
        self.found = found.to_string();
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {:#x}, at {}: {}", self.seed, self.at.since(Time::ZERO), self.what)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        if !self.found.is_empty() {
            write!(f, "; found {}", self.found)?;
        }
        write!(f, "\n  scenario: {}", self.scenario)
    }
}

impl std::error::Error for Violation {}
