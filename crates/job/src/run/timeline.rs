//! Who did what when: a step as rows, for those who draw it.

use railnet_core::{Bytes, Rank, Span, Time};

use super::late::LateWait;
use super::machine::{Machine, Ticket};
use super::outcome::late_waits;
use super::path::critical_path;
use crate::graph::{Communication, Pass, Stream, Work};

/// An operation of a rank, and when it ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankSpan {
    /// The rank that ran it.
    pub rank: Rank,
    /// Which step of the job it belongs to.
    pub step: u32,
    /// On which stream.
    pub stream: Stream,
    /// What part of the step it belongs to.
    pub pass: Pass,
    /// What it says to others; `None` where it computes.
    pub said: Option<Communication>,
    /// Which microbatch.
    pub microbatch: u32,
    /// Which layer, where it belongs to one.
    pub layer: Option<u32>,
    /// When the rank came to it.
    pub entered: Time,
    /// When all had come, and it began.
    pub begun: Time,
    /// When it was done.
    pub ended: Time,
    /// Whether it is on the critical path of its step.
    pub is_critical: bool,
    /// The rank that the GPU waited for in it, and for how long it had nothing to do.
    pub late: Option<(Rank, Span)>,
    /// How many ranks its rank stands for.
    pub stands_for: u32,
}

impl RankSpan {
    /// Bytes that it is about.
    pub fn bytes(&self) -> Bytes {
        self.said.map_or(Bytes(0), |said| said.bytes)
    }
}

/// All that ranks did in a step that is over, and that began at `origin`; of each rank in the order of its program.
pub fn timeline(machine: &Machine<'_>, step: u32, origin: Time) -> Vec<RankSpan> {
    let mut critical: Vec<Ticket> = critical_path(machine).iter().map(|part| part.ticket).collect();
    critical.sort_unstable();
    let mut late: Vec<LateWait> = late_waits(machine);
    // Of several waits in one operation the longest tells for whom.
    late.sort_unstable_by_key(|one| (one.ticket, std::cmp::Reverse(one.span)));
    late.dedup_by(|next, kept| {
        let is_same = next.ticket == kept.ticket;
        kept.span += if is_same { next.span } else { Span::ZERO };
        is_same
    });
    rows(machine, step, origin, (&critical, &late), Time::NEVER)
}

/// The same of a step that is not over: what is under way lasts until `now`, and nobody knows what is critical.
pub fn timeline_until(machine: &Machine<'_>, step: u32, origin: Time, now: Time) -> Vec<RankSpan> {
    rows(machine, step, origin, (&[], &[]), Time::ZERO + now.since(origin))
}

fn rows(
    machine: &Machine<'_>,
    step: u32,
    origin: Time,
    (critical, late): (&[Ticket], &[LateWait]),
    until: Time,
) -> Vec<RankSpan> {
    let waited_for = |ticket: Ticket| {
        let found = late.binary_search_by_key(&ticket, |one| one.ticket).ok()?;
        let LateWait { cause, span, .. } = late[found];
        Some((machine.workers()[cause as usize].rank, span))
    };
    let later = |time: Time| origin + time.since(Time::ZERO);
    let mut spans = Vec::new();
    for (worker, who) in machine.workers().iter().enumerate() {
        for (operation, record) in machine.records(worker as u32).iter().enumerate() {
            let ticket = Ticket { worker: worker as u32, operation: operation as u32 };
            let about = machine.operation(ticket);
            let ended = record.ended.min(until);
            if !record.entered.is_set()
                || !ended.is_set()
                || ended <= record.entered
                || ended.since(record.entered) == Span::ZERO
            {
                continue;
            }
            spans.push(RankSpan {
                rank: who.rank,
                step,
                stream: about.stream,
                pass: about.pass,
                said: match about.work {
                    Work::Communicate(said) => Some(said),
                    Work::Compute { .. } => None,
                },
                microbatch: about.microbatch,
                layer: about.layer,
                entered: later(record.entered),
                begun: later(record.begun.min(ended)),
                ended: later(ended),
                is_critical: critical.binary_search(&ticket).is_ok(),
                late: waited_for(ticket),
                stands_for: who.stands_for,
            });
        }
    }
    spans
}
