//! The log of a rank at `RAILNET_DEBUG=info`, or `NCCL_DEBUG=INFO`, in the manner of NCCL's.

use std::fmt;
use std::io::Write as _;

use crate::launch::Variables;

/// The log level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Level {
    /// Nothing.
    #[default]
    Off,
    /// What is unusual, and does no harm.
    Warn,
    /// The ranks, the conduits between them, and the choices for each size.
    Info,
}

impl Level {
    /// By the variables: `RAILNET_DEBUG` before `NCCL_DEBUG`. NCCL's finer levels are `Info`.
    pub fn from_variables(variables: Variables<'_>) -> Self {
        let named = |name: &str| variables(name).filter(|text| !text.is_empty());
        match named("RAILNET_DEBUG")
            .or_else(|| named("NCCL_DEBUG"))
            .map(|text| text.to_ascii_lowercase())
            .as_deref()
        {
            Some("warn") => Self::Warn,
            Some("info" | "abort" | "trace" | "debug") => Self::Info,
            _ => Self::Off,
        }
    }
}

/// Writes lines to standard error, each with its rank.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    level: Level,
    rank: u32,
}

impl Log {
    pub(crate) fn new(level: Level, rank: u32) -> Self {
        Self { level, rank }
    }

    /// Logs information. The closure runs only if it is wanted.
    pub(crate) fn info(&self, words: impl FnOnce() -> String) {
        self.say(Level::Info, words);
    }

    /// Logs a warning.
    pub(crate) fn warn(&self, words: impl FnOnce() -> String) {
        self.say(Level::Warn, words);
    }

    fn say(&self, level: Level, words: impl FnOnce() -> String) {
        if level > self.level {
            return;
        }
        let (host, process, rank) = (crate::host::host_name(), std::process::id(), self.rank);
        let text = words();
        let mut lines = String::new();
        for line in text.lines() {
            let _ = fmt::Write::write_fmt(
                &mut lines,
                format_args!("{host}:{process} [{rank}] RAILNET {} {line}\n", level.name()),
            );
        }
        // One write, so that lines of ranks do not mix. A closed standard error is ignored.
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Off | Self::Warn => "WARN",
            Self::Info => "INFO",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_variable_comes_first() {
        let level = |own: &'static str, nccl: &'static str| {
            Level::from_variables(&move |name: &str| match name {
                "RAILNET_DEBUG" => Some(own.to_owned()),
                _ => Some(nccl.to_owned()),
            })
        };
        assert_eq!(level("", "INFO"), Level::Info);
        assert_eq!(level("warn", "INFO"), Level::Warn);
        assert_eq!(level("version", ""), Level::Off);
    }
}
