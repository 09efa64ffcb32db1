//! Why a file is not read, or not written.

use std::fmt::Write as _;

use railnet_coll::check::{Awaited, CheckError, StepId};
use thiserror::Error;

use super::File;

/// Why a file is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is no XML.
    #[error("line {line}, column {column}: {reason}")]
    Xml {
        /// The line, from 1.
        line: u32,
        /// Where in the line.
        column: u32,
        /// What the XML reader says.
        reason: String,
    },
    /// It is XML, but no algorithm.
    #[error("line {line}: {place}{reason}")]
    Wrong {
        /// The line, from 1.
        line: u32,
        /// The GPU, thread block and step, as far as there are.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// It is an algorithm, and does not do what it should.
    #[error("{0}")]
    Unproved(String),
    /// It is asked for something else than it does.
    #[error("the file is for {file}, and the call for {call}")]
    Unlike {
        /// What the file is for.
        file: String,
        /// What the call asks for.
        call: String,
    },
}

/// Why a schedule cannot be written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// MSCCL has no word for it.
    #[error("MSCCL has no way to say this: {0}")]
    NoWord(String),
    /// It has more of something than MSCCL allows.
    #[error("rank {rank} needs {many} {what}, and MSCCL allows {most}: {advice}")]
    TooMany {
        /// The rank.
        rank: u32,
        /// The number that is too large.
        many: usize,
        /// What there are too many of.
        what: &'static str,
        /// How many are allowed.
        most: usize,
        /// What to try.
        advice: &'static str,
    },
}

/// What the checker said, in terms of the file. The checker saw chunks of one element.
pub(super) fn in_file(file: &File, error: &CheckError) -> ReadError {
    let name = |place: &StepId| named(file, place.rank, place.worker, place.step);
    let text = match error {
        CheckError::Step { place, fault } => format!("{}: {fault}", name(place)),
        CheckError::Output { element, place: Some(place), wrong, .. } => {
            format!("{}: output element {element} {wrong}", name(place))
        }
        CheckError::LeftOver { place, to, chunks } => {
            format!("{}: {chunks} chunk(s) to {to} are never received", name(place))
        }
        CheckError::Never { place, what, why } => {
            format!("{}: waits for {}, which never comes: {why}", name(place), awaited(file, place, what))
        }
        CheckError::Deadlock { cycle } => {
            let mut text = format!("deadlock: {} steps wait for each other", cycle.len());
            for one in cycle {
                let what = awaited(file, &one.place, &one.what);
                let _ = write!(text, "\n  {} waits for {what}", name(&one.place));
            }
            text
        }
        CheckError::Race { first, first_writes, second, second_writes, element, .. } => format!(
            "{}: {} element {element} of a buffer while {} may still {} it: a dependency is missing",
            name(second),
            if *second_writes { "writes" } else { "reads" },
            name(first),
            if *first_writes { "write" } else { "read" },
        ),
        other => other.to_string(),
    };
    ReadError::Unproved(
        text.replace("elements", "chunks").replace("element", "chunk").replace("worker", "thread block"),
    )
}

fn awaited(file: &File, place: &StepId, what: &Awaited) -> String {
    match what {
        Awaited::Step { worker, step } => named(file, place.rank, *worker, *step),
        other => other.to_string(),
    }
}

/// An operation as the file calls it.
fn named(file: &File, rank: u32, worker: u32, number: u64) -> String {
    let block = &file.gpus[rank as usize].blocks[worker as usize];
    let operation = &block.operations[number as usize];
    format!("line {}: gpu {rank}, thread block {}, step {}", operation.line, block.number, operation.step)
}
