//! Which contributions are missing, foreign or there too often: the run again, with words that can be counted.

use super::error::{CheckError, Fault, StepId, Wrong};
use super::meaning::Words;
use super::run::{Run, Suspect};
use crate::outputs::Source;
use crate::schedule::Schedule;
use railnet_core::{GhostTag, ReduceOp};

/// Among more ranks contributions are not counted one by one.
const RANKS_MAX: u32 = 256;

/// The error with what is wrong in it.
pub(super) fn explain(
    schedule: &Schedule,
    suspect: Suspect,
    wanted: Option<Source>,
    error: CheckError,
) -> CheckError {
    let found = count(schedule, suspect, wanted);
    match error {
        CheckError::Step { place, fault: Fault::NotFinal { .. } } => {
            CheckError::Step { place, fault: Fault::NotFinal { wrong: found.wrong } }
        }
        CheckError::Output { rank, element, .. } => {
            let place = found.writer;
            CheckError::Output { rank, element, place, wrong: found.wrong }
        }
        other => other,
    }
}

struct Found {
    wrong: Wrong,
    writer: Option<StepId>,
}

fn count(schedule: &Schedule, suspect: Suspect, wanted: Option<Source>) -> Found {
    let ranks = schedule.ranks;
    let (mut missing, mut foreign, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    let mut writer = None;
    for first in Words::passes(ranks) {
        let Some((tag, by)) = look(schedule, suspect, first) else {
            return Found { wrong: Wrong::Unknown, writer };
        };
        writer = by;
        if tag == GhostTag::BLANK {
            return Found { wrong: Wrong::Blank, writer };
        }
        if let (Some(wanted), Suspect::Output { element, .. }) = (&wanted, suspect) {
            let origin = wanted.origin + (element - wanted.start);
            if tag.origin != origin && is_alike(tag, wanted, ranks, first) {
                return Found { wrong: Wrong::Elsewhere { found: tag.origin, wanted: origin }, writer };
            }
        }
        if ranks > RANKS_MAX {
            return Found { wrong: Wrong::Unknown, writer };
        }
        for (rank, times) in Words::counted(ranks, first, tag.sum) {
            let is_wanted = wanted.is_none_or(|wanted| wanted.from.is_none_or(|from| from.0 == rank));
            match (is_wanted, times) {
                (true, 0) => missing.push(rank),
                (true, 1) | (false, 0) => {}
                (true, _) => repeated.push((rank, times)),
                (false, _) => foreign.push(rank),
            }
        }
    }
    let wrong = if missing.is_empty() && foreign.is_empty() && repeated.is_empty() {
        // Counting words know neither multiplication nor division.
        match schedule.call.op {
            ReduceOp::PreMulSum(_) => Wrong::Multiplication,
            ReduceOp::Average => Wrong::Division,
            _ => Wrong::Unknown,
        }
    } else {
        Wrong::Contributions { missing, foreign, repeated }
    };
    Found { wrong, writer }
}

/// Whether the contributions that this pass can count are those that should be there.
fn is_alike(tag: GhostTag, wanted: &Source, ranks: u32, first: u32) -> bool {
    Words::counted(ranks, first, tag.sum)
        .all(|(rank, times)| times == u32::from(wanted.from.is_none_or(|from| from.0 == rank)))
}

/// What the suspect holds in a run with words that can be counted, and who wrote it. `None` where the run does not get
/// that far.
fn look(schedule: &Schedule, suspect: Suspect, first: u32) -> Option<(GhostTag, Option<StepId>)> {
    let mut run = Run::new(schedule, Words::counting(schedule.ranks, first)).ok()?;
    run.suspect = Some(suspect);
    // A final step that is not final stops the run at the place that is suspected.
    let ended = run.go();
    let writer = run.writer.map(|(worker, step)| run.place(worker, step));
    match suspect {
        Suspect::Result { .. } => run.seen.map(|tag| (tag, writer)),
        Suspect::Output { .. } => ended.ok().and_then(|()| Some((run.contents(suspect)?, writer))),
    }
}
