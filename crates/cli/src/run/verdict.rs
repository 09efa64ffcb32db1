//! What came of a run, in plain words.

use std::fmt::Write as _;

use anyhow::bail;
use railnet_live::supervisor::{self, ExitKind, Plan, RankExit};

use crate::Outcome;

/// Ranks that are described one by one; more are only counted.
const SHOWN: usize = 8;

pub(crate) fn judge(outcome: &supervisor::Outcome, plan: &Plan) -> anyhow::Result<Outcome> {
    match outcome {
        supervisor::Outcome::Success => Ok(Outcome::Done),
        supervisor::Outcome::Failed { first, others } => {
            let place = &plan.slots[first.rank as usize];
            let node = if place.nodes > 1 { format!(", {}", place.group) } else { String::new() };
            bail!("rank {} (pid {}{node}) {}{}", first.rank, first.pid, first.how, ends(others))
        }
        supervisor::Outcome::TimedOut { running } => {
            let limit = plan.limit.unwrap_or_default();
            bail!("the run took longer than {limit:?}{}", ends(running))
        }
        supervisor::Outcome::Stopped { signal, running } => {
            bail!("stopped by {}{}", supervisor::signal_name(*signal), ends(running))
        }
        _ => Ok(Outcome::CheckFailed),
    }
}

/// What became of those that ran then, alike ones together.
fn ends(running: &[RankExit]) -> String {
    let mut groups: Vec<(ExitKind, Vec<u32>)> = Vec::new();
    for end in running {
        match groups.iter_mut().find(|(how, _)| *how == end.how) {
            Some((_, ranks)) => ranks.push(end.rank),
            None => groups.push((end.how, vec![end.rank])),
        }
    }
    let mut text = String::new();
    for (how, mut ranks) in groups {
        ranks.sort_unstable();
        let did = match how {
            ExitKind::Exit(status) => format!("then ended with exit status {status}"),
            ExitKind::Signal(signal) => format!("then ended by {}", supervisor::signal_name(signal)),
        };
        let _ = write!(text, "\n  {} {did}", named(&ranks));
    }
    text
}

/// `rank 3`, `ranks 0, 1, 2`, `100 ranks`.
fn named(ranks: &[u32]) -> String {
    match ranks {
        [only] => format!("rank {only}"),
        few if few.len() <= SHOWN => {
            let texts: Vec<String> = few.iter().map(u32::to_string).collect();
            format!("ranks {}", texts.join(", "))
        }
        many => format!("{} ranks", many.len()),
    }
}
