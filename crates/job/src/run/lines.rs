//! Where the time of a recorded script went, line by line.

use std::collections::BTreeMap;

use railnet_core::{Bytes, Span};

use super::machine::{Machine, Ticket};
use super::outcome::exposures;
use crate::graph::Work;

/// What a line of the script costs an average rank in a step.
#[derive(Clone, PartialEq, Debug)]
pub struct LineTime {
    /// The line, such as `train.py:88`.
    pub line: String,
    /// Communications that it starts.
    pub calls: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// How long they took.
    pub communicates: Span,
    /// How long the GPU waited for them, and for ranks that came late to them.
    pub exposed: Span,
    /// What the GPU computes for it.
    pub computes: Span,
}

/// Sums of a line over all ranks.
#[derive(Debug, Default)]
struct Sums {
    calls: u128,
    bytes: u128,
    communicates: u128,
    exposed: u128,
    computes: u128,
}

/// What each line costs, the most expensive first; nothing where no script was recorded.
pub fn lines(machine: &Machine<'_>) -> Vec<LineTime> {
    let Some(recorded) = &machine.graph().lines else { return Vec::new() };
    let mut sums: BTreeMap<u32, Sums> = BTreeMap::new();
    let mut ranks = 0;
    let of = |ticket: Ticket| {
        let program = machine.workers()[ticket.worker as usize].program;
        recorded.programs[program as usize][ticket.operation as usize].as_slice()
    };
    for (number, worker) in machine.workers().iter().enumerate() {
        let weight = u128::from(worker.stands_for);
        ranks += weight;
        for (place, record) in machine.records(number as u32).iter().enumerate() {
            let ticket = Ticket { worker: number as u32, operation: place as u32 };
            for (line, computes) in of(ticket) {
                let sum = sums.entry(*line).or_default();
                sum.computes += weight * u128::from(computes.as_ps());
                if let Work::Communicate(said) = &machine.operation(ticket).work {
                    sum.calls += weight;
                    sum.bytes += weight * u128::from(said.bytes.as_u64());
                    if record.ended.is_set() && record.begun.is_set() {
                        sum.communicates += weight * u128::from(record.ended.since(record.begun).as_ps());
                    }
                }
            }
        }
    }
    for (ticket, span) in exposures(machine) {
        let weight = u128::from(machine.workers()[ticket.worker as usize].stands_for);
        if let Some((line, _)) = of(ticket).first() {
            sums.entry(*line).or_default().exposed += weight * u128::from(span.as_ps());
        }
    }
    let ranks = ranks.max(1);
    let span = |sum: u128| Span::from_ps((sum / ranks) as u64);
    let found = sums.into_iter().map(|(line, sum)| LineTime {
        line: recorded.lines[line as usize].clone(),
        calls: (sum.calls / ranks) as u64,
        bytes: Bytes((sum.bytes / ranks) as u64),
        communicates: span(sum.communicates),
        exposed: span(sum.exposed),
        computes: span(sum.computes),
    });
    let mut found: Vec<LineTime> = found.collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.exposed + one.computes));
    found
}
