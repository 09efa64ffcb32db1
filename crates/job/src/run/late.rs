//! Late ranks: for whom the others wait, and for how long.
//!
//! A rank that enters a collective last may itself have waited before, for a third one. The wait then counts for that one: of a slow
//! GPU in a tensor-parallel group, all data-parallel peers of the group wait for the slow GPU, not for its neighbours.

use std::collections::BTreeMap;

use railnet_core::{Span, Time};

use super::machine::{Machine, Ticket};

/// A GPU had nothing to compute because another rank was late.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Wait {
    /// When it was over.
    pub(super) until: Time,
    /// The operation in which it waited, or behind which.
    pub(super) ticket: Ticket,
    /// The worker that came last.
    pub(super) last: u32,
    /// The length of the wait.
    pub(super) span: Span,
}

/// A wait with the worker that caused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LateWait {
    pub(super) ticket: Ticket,
    pub(super) span: Span,
    pub(super) cause: u32,
}

/// Finds the worker that caused each wait: the one that came last, unless that one is late because it waited for a third one. It is
/// when it has waited longer for that one than the rank that now waits for it, by at least half of this wait.
pub(super) fn causes(machine: &Machine<'_>, mut waits: Vec<Wait>) -> Vec<LateWait> {
    waits.sort_unstable();
    // What each worker has waited so far, by cause.
    let mut waited: Vec<BTreeMap<u32, Span>> = vec![BTreeMap::new(); machine.workers().len()];
    let mut found = Vec::with_capacity(waits.len());
    for Wait { ticket, last, span: wait, .. } in waits {
        let own = &waited[ticket.worker as usize];
        let longer = |(third, span): (&u32, &Span)| {
            (span.as_ps().saturating_sub(own.get(third).map_or(0, |own| own.as_ps())), u32::MAX - third)
        };
        let third = waited[last as usize].iter().map(longer).max();
        let cause = match third {
            Some((longer, third)) if longer.saturating_mul(2) >= wait.as_ps() => u32::MAX - third,
            _ => last,
        };
        if cause != ticket.worker {
            *waited[ticket.worker as usize].entry(cause).or_default() += wait;
            found.push(LateWait { ticket, span: wait, cause });
        }
    }
    found
}

/// How long others wait for the ranks that each worker stands for, all of them together.
pub(super) fn delays(machine: &Machine<'_>, waits: &[LateWait]) -> Vec<Span> {
    let workers = machine.workers();
    let mut sums = vec![0_u128; workers.len()];
    for LateWait { ticket, span, cause } in waits {
        let ranks = u128::from(workers[ticket.worker as usize].stands_for);
        sums[*cause as usize] += ranks * u128::from(span.as_ps());
    }
    sums.into_iter().map(|sum| Span::from_ps(u64::try_from(sum).unwrap_or(u64::MAX))).collect()
}
