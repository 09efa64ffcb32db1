//! What one rank does, in words.

use std::io::Write;

use railnet_coll::check::Done;
use railnet_coll::{Buffer, Connection, Peer, Step};

use super::moves::name;
use super::summary::Shown;
use crate::words::count;

/// Steps that are told unless all are asked for.
const STEPS: usize = 16;

pub(super) fn print(
    shown: &Shown<'_>,
    rank: u32,
    done: &[Done],
    all: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut steps: Vec<&Done> = done.iter().filter(|one| one.rank == rank).collect();
    if steps.is_empty() {
        writeln!(out, "  Rank {rank} has nothing to do.\n")?;
        return Ok(());
    }
    steps.sort_by_key(|one| (one.round, one.worker, one.step));
    let workers = shown.schedule.program.workers(rank);
    let several = if workers > 1 {
        format!(", by {}", count(u64::from(workers), "worker", "workers at once"))
    } else {
        String::new()
    };
    writeln!(out, "  What rank {rank} does{several}")?;
    let told = if all { steps.len() } else { steps.len().min(STEPS) };
    for one in &steps[..told] {
        let step = shown.schedule.program.step(one.rank, one.worker, one.step);
        let who = if workers > 1 { format!("w{:<3}", one.worker) } else { String::new() };
        writeln!(out, "  {:<7}{who}{}", one.round + 1, tell(&step, one.contributions, shown))?;
    }
    let left = (steps.len() - told) as u64;
    if left > 0 {
        writeln!(out, "  …      {} (--all tells them)", count(left, "more step", "more steps"))?;
    }
    writeln!(out)?;
    Ok(())
}

/// A step in words.
fn tell(step: &Step, contributions: u32, shown: &Shown<'_>) -> String {
    if step.receives.is_empty() && step.sources.is_empty() && step.sends.is_empty() {
        return "waits for another worker".into();
    }
    if step.count == 0 {
        return empty(step);
    }
    let chunk = format!("chunk {}", step.chunk);
    let mut parts: Vec<String> = Vec::new();
    let own = step.sources.iter().filter(|piece| piece.buffer == Buffer::Input).count();
    let kept = step.sources.len() - own;
    if step.receives.is_empty() {
        let verb = if step.sources.len() > 1 { "adds up" } else { "takes" };
        let whose = match (own, kept) {
            (0, _) => "what it has of ",
            (_, 0) => "its own ",
            _ => "its own and what it has of ",
        };
        parts.push(format!("{verb} {whose}{chunk}"));
    } else {
        parts.push(format!("receives {chunk} from {}", all_of(&step.receives)));
        if step.receives.len() > 1 && shown.reduces() {
            parts.push("adds it up".into());
        }
        if own > 0 {
            parts.push("adds its own".into());
        }
        if kept > 0 {
            parts.push("adds what it has".into());
        }
    }
    if step.stores.iter().any(|piece| piece.buffer != Buffer::Scratch) {
        parts.push("keeps it".into());
    } else if !step.stores.is_empty() {
        parts.push("puts it aside".into());
    }
    if !step.sends.is_empty() {
        parts.push(format!("sends it to {}", all_of(&step.sends)));
    }
    let ranks = shown.schedule.ranks;
    let state = match contributions {
        _ if !shown.reduces() => String::new(),
        all if all == ranks => "   complete".into(),
        some => format!("   {some} of {ranks}"),
    };
    parts.join(", ") + &state
}

fn empty(step: &Step) -> String {
    let mut parts = Vec::new();
    if !step.receives.is_empty() {
        parts.push(format!("hears from {}", all_of(&step.receives)));
    }
    if !step.sends.is_empty() {
        parts.push(format!("tells {}", all_of(&step.sends)));
    }
    if parts.is_empty() { "has nothing to do here".into() } else { parts.join(", ") + "   no data" }
}

/// `rank 1`, `ranks 1, 2 and 5`, `switch 0 and rank 2`.
fn all_of(ends: &[Connection]) -> String {
    const LISTED: usize = 6;
    let mut peers: Vec<Peer> = ends.iter().map(|end| end.peer).collect();
    peers.sort_unstable();
    let mut names: Vec<String> = peers.iter().take(LISTED).map(|peer| name(*peer)).collect();
    if names.len() > 1 && names.iter().all(|name| name.starts_with("rank ")) {
        for name in &mut names[1..] {
            *name = name.replacen("rank ", "", 1);
        }
        names[0] = names[0].replacen("rank", "ranks", 1);
    }
    let more = ends.len().saturating_sub(LISTED);
    if more > 0 {
        return format!("{} and {more} more", names.join(", "));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}
