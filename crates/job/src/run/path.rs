//! The critical path: what would have to be faster for the step to be.

use railnet_core::{Rank, Time};

use super::machine::{Machine, Ticket};
use crate::graph::Stream;

/// A part of the critical path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathStep {
    /// Which operation.
    pub ticket: Ticket,
    /// Of which rank.
    pub rank: Rank,
    /// When it began to count.
    pub from: Time,
    /// When it was done.
    pub to: Time,
}

/// The operations that decide how long the step takes, from the first to the last: each begins when the one before it ends.
pub fn critical_path(machine: &Machine<'_>) -> Vec<PathStep> {
    let mut path = Vec::new();
    let mut next = last(machine);
    while let Some(ticket) = next {
        let record = machine.records(ticket.worker)[ticket.operation as usize];
        let rank = machine.workers()[ticket.worker as usize].rank;
        path.push(PathStep { ticket, rank, from: record.begun, to: record.ended });
        // A communication began when the last one came: what kept that one counts.
        let decider = record.last.unwrap_or(ticket);
        next = cause(machine, decider);
    }
    path.reverse();
    path
}

fn last(machine: &Machine<'_>) -> Option<Ticket> {
    let tickets = (0..machine.workers().len() as u32).flat_map(|worker| {
        let operations = 0..machine.records(worker).len() as u32;
        operations.map(move |operation| Ticket { worker, operation })
    });
    let end = |ticket: &Ticket| machine.records(ticket.worker)[ticket.operation as usize].ended;
    // Of several the first, so that the path does not depend on how many there are.
    tickets.max_by_key(|ticket| (end(ticket), std::cmp::Reverse(*ticket)))
}

/// What an operation waited for last: one that it names, or the one before it on its stream.
pub(super) fn cause(machine: &Machine<'_>, ticket: Ticket) -> Option<Ticket> {
    let operation = machine.operation(ticket);
    let queue = &machine.program(ticket.worker).streams[operation.stream as usize];
    let place = queue.binary_search(&ticket.operation).ok()?;
    let before = place.checked_sub(1).map(|place| queue[place]);
    let records = machine.records(ticket.worker);
    let candidates = operation.after.iter().copied().chain(before);
    // Where both end at the same time, what was computed counts.
    let rank = |number: &u32| {
        let stream = machine.operation(Ticket { worker: ticket.worker, operation: *number }).stream;
        (records[*number as usize].ended, stream == Stream::Compute, std::cmp::Reverse(*number))
    };
    let number = candidates.max_by_key(rank)?;
    Some(Ticket { worker: ticket.worker, operation: number })
}
