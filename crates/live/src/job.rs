//! Starting ranks on this machine and seeing them to their end.
//!
//! One loop in the calling thread: it reads what the ranks print, line by line, passes signals on, and ends all ranks
//! when one fails, when a time limit passes or when it is told to. Whatever happens to this process, its ranks do not
//! survive it: each is bound to it by the system, and a guard, which only waits for its end, takes whole process groups.
//! Call it from the thread that lives longest: the system binds a process to the thread that started it.

mod end;
mod guard;
mod leash;
mod lines;
mod place;
mod running;
mod signals;

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::Duration;

pub use end::{End, How, Outcome, signal_name};
pub use leash::bind;
pub use place::{Place, PlaceError, spread, spread_over};

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The place of each rank.
    pub places: Vec<Place>,
    /// Variables for every rank, over those of this process and those that say who it is.
    pub variables: Vec<(OsString, OsString)>,
    /// How long ranks have between being asked to end and being made to.
    pub grace: Duration,
    /// How long they may run in all.
    pub limit: Option<Duration>,
}

/// Which of a rank's outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// Takes what ranks print.
pub trait Output {
    /// A line of a rank, without its end.
    fn line(&mut self, rank: u32, stream: Stream, line: &[u8]) -> io::Result<()>;

    /// Nothing more is there for the moment.
    fn flush(&mut self) -> io::Result<()>;

    /// Where a rank writes to by itself, in the place of lines.
    fn file(&mut self, rank: u32, stream: Stream) -> io::Result<Option<Stdio>> {
        let _ = (rank, stream);
        Ok(None)
    }
}

/// Why ranks were not started, or not watched to their end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// There is no such program.
    #[error("cannot run {program}: {cause}")]
    NoProgram {
        /// Its name.
        program: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A rank could not be started.
    #[error("cannot start rank {rank}: {error}")]
    Start {
        /// Which.
        rank: u32,
        /// Why.
        error: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write what the ranks print")]
    Output(#[source] io::Error),
    /// The system refuses something.
    #[error("cannot run ranks")]
    System(#[from] io::Error),
}

/// Starts all ranks, waits for their end and says what came of it.
pub fn run(plan: &Plan, output: &mut dyn Output) -> Result<Outcome, JobError> {
    running::run(plan, output)
}
