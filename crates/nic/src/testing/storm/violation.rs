//! What a storm found to be wrong.

use std::fmt;

use railnet_core::Time;

/// A rule that was broken: where, by what, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// When it was noticed.
    pub at: Time,
    /// Which NIC.
    pub nic: Option<usize>,
    /// Which queue pair, by its number on the NIC.
    pub queue_pair: Option<u32>,
    /// Which work.
    pub work: Option<u64>,
    /// What was violated.
    pub what: String,
    /// What should have been.
    pub expected: String,
    /// What was.
    pub found: String,
    /// The end, from which the runner makes NIC and queue pair.
    pub(super) end: Option<usize>,
}

impl Violation {
    pub(super) fn new(what: impl Into<String>) -> Box<Self> {
        Box::new(Self { what: what.into(), ..Self::default() })
    }

    pub(super) fn expected(mut self: Box<Self>, expected: impl fmt::Display) -> Box<Self> {
        self.expected = expected.to_string();
        self
    }

    pub(super) fn found(mut self: Box<Self>, found: impl fmt::Display) -> Box<Self> {
        self.found = found.to_string();
        self
    }

    pub(super) fn on(mut self: Box<Self>, end: usize) -> Box<Self> {
        self.end = Some(end);
        self
    }

    pub(super) fn of(mut self: Box<Self>, work: u64) -> Box<Self> {
        self.work = Some(work);
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {:#x}", self.seed)?;
        if let Some(nic) = self.nic {
            write!(f, ", NIC {nic}")?;
        }
        if let Some(queue_pair) = self.queue_pair {
            write!(f, ", queue pair {queue_pair:#x}")?;
        }
        if let Some(work) = self.work {
            write!(f, ", work {work:#x}")?;
        }
        write!(f, ", at {}: {}", self.at, self.what)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        if !self.found.is_empty() {
            write!(f, "; found {}", self.found)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}
