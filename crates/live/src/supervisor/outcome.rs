//! ExitKind ranks end, in words.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// ExitKind a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// By itself, with a status.
    Exit(i32),
    /// Killed by a signal.
    Signal(i32),
}

impl ExitKind {
    pub(super) fn of(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Exit(status.code().unwrap_or(0)),
        }
    }

    /// Whether it succeeded.
    pub fn is_success(self) -> bool {
        self == Self::Exit(0)
    }
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "ended with exit status {status}"),
            Self::Signal(signal) => {
                write!(f, "was killed by {}", signal_name(*signal))?;
                match meaning(*signal) {
                    Some(meaning) => write!(f, " ({meaning})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The name of a signal.
pub fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// What a signal usually means for a program that it kills.
fn meaning(signal: i32) -> Option<&'static str> {
    use signal_hook::consts::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGXCPU};
    Some(match signal {
        SIGSEGV => "it touched memory that is not its own",
        SIGBUS => "it touched memory that is not there, such as shared memory without room",
        SIGABRT => "it gave up by itself: a failed assertion or a panic",
        SIGFPE => "it divided by zero",
        SIGILL => "it ran an instruction that this processor does not have",
        SIGKILL => "by somebody, or by the system for want of memory",
        SIGXCPU => "it used up its processor time",
        _ => return None,
    })
}

/// The end of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankExit {
    /// The rank.
    pub rank: u32,
    /// Its pid.
    pub pid: u32,
    /// ExitKind it ended.
    pub how: ExitKind,
}

/// The outcome of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank succeeded.
    Success,
    /// A rank failed, and the others were ended.
    Failed {
        /// The first that failed.
        first: RankExit,
        /// The ranks that ran at that time, and how they ended.
        others: Vec<RankExit>,
    },
    /// The job timed out.
    TimedOut {
        /// The ranks that ran at that time, and how they ended.
        running: Vec<RankExit>,
    },
    /// A signal ended this process.
    Stopped {
        /// The signal.
        signal: i32,
        /// The ranks that ran at that time, and how they ended.
        running: Vec<RankExit>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_words() {
        assert_eq!(ExitKind::Exit(3).to_string(), "ended with exit status 3");
        assert_eq!(
            ExitKind::Signal(11).to_string(),
            "was killed by SIGSEGV (it touched memory that is not its own)"
        );
        assert_eq!(ExitKind::Signal(15).to_string(), "was killed by SIGTERM");
        assert_eq!(ExitKind::Signal(64).to_string(), "was killed by signal 64");
        assert!(ExitKind::Exit(0).is_success() && !ExitKind::Signal(0).is_success());
    }
}
