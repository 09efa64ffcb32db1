//! The sizes at which the winner changes.

use railnet_core::Bytes;

use super::table::{NoChoice, Table};
use crate::algorithm::Algorithm;
use crate::protocol::Protocol;

/// From a size on, this wins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossover {
    /// The least size, to the byte.
    pub from: Bytes,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
}

impl Table {
    /// Who wins from which size on, up to `most` bytes; the first is from one byte.
    ///
    /// Between two sizes at which a formula changes, times are straight lines, so each cell wins in one stretch at most
    /// and halving finds its ends to the byte. Where two cells cost the same to the six or seven digits of NCCL's
    /// numbers, the winner may flicker over a few bytes; one change is told.
    pub fn crossovers(&self, most: Bytes) -> Result<Vec<Crossover>, NoChoice> {
        let mut found: Vec<Crossover> = Vec::new();
        let mut from = 1;
        let ends = self.breakpoints().into_iter().map(|size| size - 1).filter(|end| *end < most.0);
        for end in ends.chain([most.0]) {
            while from <= end {
                let winner = self.winner(from)?;
                let until = self.last(winner, from, end)?;
                let is_new = found.last().is_none_or(|last| (last.algorithm, last.protocol) != winner);
                if is_new {
                    let (algorithm, protocol) = winner;
                    found.push(Crossover { from: Bytes(from), algorithm, protocol });
                }
                from = until + 1;
            }
        }
        Ok(found)
    }

    fn winner(&self, bytes: u64) -> Result<(Algorithm, Protocol), NoChoice> {
        self.best(Bytes(bytes), 1).map(|(cell, _)| (cell.algorithm, cell.protocol))
    }

    /// The last size up to `end` at which `winner` of size `from` wins still.
    fn last(&self, winner: (Algorithm, Protocol), from: u64, end: u64) -> Result<u64, NoChoice> {
        if self.winner(end)? == winner {
            return Ok(end);
        }
        let (mut wins, mut loses) = (from, end);
        while loses - wins > 1 {
            let middle = wins + (loses - wins) / 2;
            if self.winner(middle)? == winner {
                wins = middle;
            } else {
                loses = middle;
            }
        }
        Ok(wins)
    }
}
