//! What was said in a step, and how long it took.

use std::collections::BTreeMap;

use railnet_core::{Bytes, Span};

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
}

/// A kind: messages are alike whatever stage they come from or go to.
fn kind(said: &Communication) -> (Scope, u8, u8) {
    match said.what {
        What::Collective(collective) => (said.scope, 0, collective as u8),
        What::Send { .. } => (said.scope, 1, 0),
        What::Receive { .. } => (said.scope, 2, 0),
        What::Push => (said.scope, 3, 0),
        What::Pull => (said.scope, 4, 0),
        What::Write => (said.scope, 5, 0),
    }
}

/// One of each kind of communication in a step that has been run, scope by scope.
pub fn said(machine: &Machine<'_>) -> Vec<Said> {
    let mut kinds: BTreeMap<(Scope, u8, u8), (Communication, Vec<(Span, u64)>, u128, Bytes)> =
        BTreeMap::new();
    let mut ranks = 0;
    for (worker, of) in machine.workers().iter().enumerate() {
        let weight = u64::from(of.stands_for);
        ranks += weight;
        for (number, record) in machine.records(worker as u32).iter().enumerate() {
            let ticket = Ticket { worker: worker as u32, operation: number as u32 };
            let Work::Communicate(said) = &machine.operation(ticket).work else { continue };
            let entry = kinds.entry(kind(said)).or_insert_with(|| (*said, Vec::new(), 0, Bytes::ZERO));
            entry.1.push((record.ended.since(record.begun), weight));
            entry.2 += u128::from(said.bytes.as_u64()) * u128::from(weight);
            entry.3 = entry.3.max(said.bytes);
        }
    }
    let of_kind = |(said, mut times, bytes, largest): (Communication, Vec<(Span, u64)>, u128, Bytes)| {
        times.sort_unstable();
        let all: u64 = times.iter().map(|(_, weight)| weight).sum();
        let within = |permille: u64| {
            let wanted = (all * permille).div_ceil(1_000);
            let mut seen = 0;
            let found = times.iter().find(|(_, weight)| {
                seen += weight;
                seen >= wanted
            });
            found.map_or(Span::ZERO, |(time, _)| *time)
        };
        Said {
            what: said.what,
            scope: said.scope,
            count: all / u64::max(ranks, 1),
            largest,
            bytes: Bytes((bytes / u128::from(ranks.max(1))) as u64),
            median: within(500),
            late: within(990),
            longest: within(1_000),
        }
    };
    kinds.into_values().map(of_kind).collect()
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
