//! Communication statistics of a step: calls of each kind, their bytes, and how long they took.

use std::collections::BTreeMap;

use railnet_core::{Bytes, Rank, Span};

use super::machine::{Machine, Ticket};
use crate::graph::{Communication, Program, What, Work};
use crate::parallel::Scope;

/// All communication of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// What: the stage of a message is that of the first.
    pub what: What,
    /// Among whom.
    pub scope: Scope,
    /// How often an average rank took part.
    pub count: u64,
    /// Bytes of the largest.
    pub largest: Bytes,
    /// Bytes of all in which an average rank took part.
    pub bytes: Bytes,
    /// How long half of them took at most, from the moment when all had come.
    pub median: Span,
    /// How long 99 of 100 took at most.
    pub late: Span,
    /// How long the longest took.
    pub longest: Span,
    /// The one that kept a rank longest.
    pub worst: Worst,
}

/// A communication that kept a rank longest, from its coming to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worst {
    /// From the rank's entry to the end.
    pub total: Span,
    /// Of that, until the last one had come.
    pub waited: Span,
    /// Which rank.
    pub rank: Rank,
    /// Who came last, where it was somebody else.
    pub last: Option<Rank>,
}

/// A kind: messages are alike whatever stage they come from or go to.
pub fn kind(scope: Scope, what: What) -> (Scope, u8, u8) {
    match what {
        What::Collective(collective) => (scope, 0, collective as u8),
        What::Send { .. } => (scope, 1, 0),
        What::Receive { .. } => (scope, 2, 0),
        What::Push => (scope, 3, 0),
        What::Pull => (scope, 4, 0),
        What::Write => (scope, 5, 0),
    }
}

/// What is known of a kind so far.
struct Tally {
    first: Communication,
    /// How long each took, and how many ranks it counts for.
    times: Vec<(Span, u64)>,
    bytes: u128,
    largest: Bytes,
    worst: Worst,
}

impl Tally {
    fn new(first: Communication) -> Self {
        let worst = Worst { total: Span::ZERO, waited: Span::ZERO, rank: Rank(0), last: None };
        Self { first, times: Vec::new(), bytes: 0, largest: Bytes::ZERO, worst }
    }

    /// The time in which so many of 1,000 were done; times are sorted.
    fn within(&self, permille: u64) -> Span {
        let all: u64 = self.times.iter().map(|(_, weight)| weight).sum();
        let wanted = (all * permille).div_ceil(1_000);
        let mut seen = 0;
        let found = self.times.iter().find(|(_, weight)| {
            seen += weight;
            seen >= wanted
        });
        found.map_or(Span::ZERO, |(time, _)| *time)
    }

    fn said(mut self, ranks: u64) -> Said {
        self.times.sort_unstable();
        Said {
            what: self.first.what,
            scope: self.first.scope,
            count: self.times.iter().map(|(_, weight)| weight).sum::<u64>() / ranks.max(1),
            largest: self.largest,
            bytes: Bytes((self.bytes / u128::from(ranks.max(1))) as u64),
            median: self.within(500),
            late: self.within(990),
            longest: self.within(1_000),
            worst: self.worst,
        }
    }
}

/// One of each kind of communication in a step that has been run, scope by scope. What is not over does not count.
pub fn said(machine: &Machine<'_>) -> Vec<Said> {
    let mut kinds: BTreeMap<(Scope, u8, u8), Tally> = BTreeMap::new();
    let mut ranks = 0;
    for (worker, of) in machine.workers().iter().enumerate() {
        let weight = u64::from(of.stands_for);
        ranks += weight;
        for (number, record) in machine.records(worker as u32).iter().enumerate() {
            let ticket = Ticket { worker: worker as u32, operation: number as u32 };
            let Work::Communicate(said) = &machine.operation(ticket).work else { continue };
            if !record.ended.is_set() {
                continue;
            }
            let tally = kinds.entry(kind(said.scope, said.what)).or_insert_with(|| Tally::new(*said));
            tally.times.push((record.ended.since(record.begun), weight));
            tally.bytes += u128::from(said.bytes.as_u64()) * u128::from(weight);
            tally.largest = tally.largest.max(said.bytes);
            let total = record.ended.since(record.entered);
            if total > tally.worst.total {
                let waited = record.begun.since(record.entered);
                // Nobody who did not keep others waiting came last.
                let last = record
                    .last
                    .filter(|_| waited > Span::ZERO)
                    .map(|last| machine.workers()[last.worker as usize].rank);
                tally.worst = Worst { total, waited, rank: of.rank, last };
            }
        }
    }
    kinds.into_values().map(|tally| tally.said(ranks)).collect()
}

impl Program {
    /// How often a rank takes part in communication of a scope in a step, and the bytes of all of it; what it sends and what it
    /// receives in a pipeline are counted apart.
    pub fn volume(&self, scope: Scope) -> (u64, Bytes) {
        let said = self.operations.iter().filter_map(|operation| match &operation.work {
            Work::Communicate(said) if said.scope == scope => Some(said.bytes),
            _ => None,
        });
        said.fold((0, Bytes::ZERO), |(count, sum), bytes| (count + 1, sum + bytes))
    }
}
