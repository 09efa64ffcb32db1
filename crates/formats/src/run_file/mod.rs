//! The run file: everything that happened in a run, in columns, for whoever looks at it later.
//!
//! ```text
//! "RAILRUN1" · length of what follows as JSON, eight bytes · the JSON · tables, one block after the other · "RAILEND1"
//! ```
//!
//! Runs that are shown beside it follow in the same form, with "RAILNEXT" for the end of the one before.
//!
//! All numbers are little endian, and every part begins at a multiple of eight. The JSON says what the run was and what came
//! of it; [`Recorder`] fills the tables while it runs; [`schema`] has their columns.

mod coarse;
mod fewer;
mod follow;
mod latency;
mod live;
mod live_packets;
mod load;
mod meta;
mod operations;
mod packets;
mod pauses;
mod recorder;
mod sample;
pub mod schema;
mod select;
mod shares;
mod strings;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use serde_json::Value;

pub use coarse::coarser;
pub use latency::packet_latency;
pub use live::{LiveCall, LiveRank, live};
pub use live_packets::{LivePacket, add_packets};
pub use meta::{About, meta};
pub use operations::{add_flows, add_jobs, add_queues};
pub use packets::kept_of;
pub use recorder::{Budget, Recorded, Recorder};
pub use select::{Query, select};
pub use shares::{RankShares, WHOLE};
pub use table::{BlockError, Column, Kind, MISSING, Schema, Table};

const BEGIN: &[u8; 8] = b"RAILRUN1";
const END: &[u8; 8] = b"RAILEND1";
/// In its place where another run follows.
const NEXT: &[u8; 8] = b"RAILNEXT";

/// A run: what it was, and what happened in it.
#[derive(Clone, PartialEq, Debug)]
pub struct RunFile {
    /// What it was, and what came of it.
    pub meta: Value,
    /// What happened.
    pub tables: Vec<Table>,
    /// Runs that are shown beside it; those have none.
    pub others: Vec<RunFile>,
}

impl RunFile {
    /// A table by its name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Writes it.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_one(out)?;
        for other in &self.others {
            out.write_all(NEXT)?;
            other.write_one(out)?;
        }
        out.write_all(END)
    }

    fn write_one(&self, out: &mut impl Write) -> io::Result<()> {
        let mut meta = self.meta.to_string().into_bytes();
        // Blanks after a value are nothing in JSON.
        meta.resize(meta.len().next_multiple_of(8), b' ');
        out.write_all(BEGIN)?;
        out.write_all(&(meta.len() as u64).to_le_bytes())?;
        out.write_all(&meta)?;
        for table in &self.tables {
            out.write_all(&table.block(table.rows))?;
        }
        Ok(())
    }

    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, RunFileError> {
        let (mut run, mut rest) = Self::parse_one(bytes)?;
        while let Some(next) = rest.strip_prefix(NEXT) {
            let (other, after) = Self::parse_one(next).map_err(|error| match error {
                RunFileError::NotOne => RunFileError::Cut,
                error => error,
            })?;
            run.others.push(other);
            rest = after;
        }
        if rest == END { Ok(run) } else { Err(RunFileError::Cut) }
    }

    /// Reads the first of several; what is left begins with the mark behind it.
    fn parse_one(bytes: &[u8]) -> Result<(Self, &[u8]), RunFileError> {
        let rest = bytes.strip_prefix(BEGIN).ok_or(RunFileError::NotOne)?;
        let (length, rest) = rest.split_first_chunk::<8>().ok_or(RunFileError::Cut)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| RunFileError::Cut)?;
        let (meta, mut rest) = rest.split_at_checked(length).ok_or(RunFileError::Cut)?;
        let meta: Value =
            serde_json::from_slice(meta).map_err(|error| RunFileError::Meta(error.to_string()))?;
        if !meta.is_object() {
            return Err(RunFileError::Meta("it is no object".to_owned()));
        }
        let mut tables = Vec::new();
        // A table begins with the length of its header, which is never so long that it reads as this.
        while !rest.starts_with(END) && !rest.starts_with(NEXT) {
            let (table, taken) = Table::parse(rest)?;
            tables.push(table);
            rest = rest.get(taken..).filter(|rest| !rest.is_empty()).ok_or(RunFileError::Cut)?;
        }
        Ok((Self { meta, tables, others: Vec::new() }, rest))
    }
}

/// Why a file is no run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunFileError {
    /// It begins with something else.
    #[error("not a run file: `railnet sim SCENARIO --record FILE` writes one")]
    NotOne,
    /// It ends too early.
    #[error("the file was cut short: record the run again")]
    Cut,
    /// What it says about itself cannot be read.
    #[error("what the file says about the run cannot be read: {0}")]
    Meta(String),
    /// A table cannot be read.
    #[error(transparent)]
    Table(#[from] BlockError),
}
