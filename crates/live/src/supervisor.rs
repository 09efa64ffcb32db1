//! Supervising the ranks of a job on this host: starting them, and seeing them to their end.
//!
//! One loop in the calling thread: it reads what the ranks print, line by line, forwards signals, and ends all ranks when one
//! fails, at a timeout or on a signal. Ranks do not outlive this process, however it ends: each has a parent-death signal, and
//! a guard process kills whole process groups. Call it from the thread that lives longest: the parent of a process is the
//! thread that started it.

mod guard;
mod lines;
mod outcome;
mod parent_death;
mod running;
mod signals;
mod slots;

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::Duration;

pub use outcome::{ExitKind, Outcome, RankExit, signal_name};
pub use parent_death::bind;
pub use slots::{RankSlot, SlotError, place_on_hosts, place_on_nodes};

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The slot of each rank.
    pub slots: Vec<RankSlot>,
    /// Variables for every rank, over those of this process and those that identify the rank.
    pub variables: Vec<(OsString, OsString)>,
    /// The grace period between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The timeout of the whole job.
    pub limit: Option<Duration>,
}

/// An output stream of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// Receives what ranks print.
pub trait Output {
    /// A line of a rank, without its newline.
    fn line(&mut self, rank: u32, stream: Stream, line: &[u8]) -> io::Result<()>;

    /// No more lines are pending.
    fn flush(&mut self) -> io::Result<()>;

    /// A file that a rank writes to directly, in slot of lines.
    fn file(&mut self, rank: u32, stream: Stream) -> io::Result<Option<Stdio>> {
        let _ = (rank, stream);
        Ok(None)
    }
}

/// Why ranks were not started, or not supervised to their end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// There is no such program.
    #[error("cannot run {program}: {cause}")]
    NoProgram {
        /// The program.
        program: String,
        /// Why it cannot run.
        cause: String,
    },
    /// A rank could not be started.
    #[error("cannot start rank {rank}: {error}")]
    Start {
        /// The rank.
        rank: u32,
        /// The error.
        error: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write what the ranks print")]
    Output(#[source] io::Error),
    /// The kernel refuses something.
    #[error("cannot run ranks")]
    System(#[from] io::Error),
}

/// Starts all ranks, waits until all have ended, and returns how.
pub fn run(plan: &Plan, output: &mut dyn Output) -> Result<Outcome, SupervisorError> {
    running::run(plan, output)
}
