//! Rounds downward, ranks across: who sends which chunk to whom.

use std::fmt::Write as _;
use std::io::Write;

use railnet_coll::Peer;

use super::moves::{Move, short};
use super::summary::Shown;
use crate::words::{count, grouped};

/// A terminal's width that most people have.
const WIDTH: usize = 118;
/// Rounds that are shown unless all are asked for.
const ROUNDS: u32 = 20;
/// A cell is cut off where it is longer.
const CELL: usize = 13;

pub(super) fn print(shown: &Shown<'_>, all: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let moves = shown.moves;
    if moves.all.is_empty() {
        writeln!(out, "  Nobody sends anything.\n")?;
        return Ok(());
    }
    let rounds = if all { moves.rounds } else { moves.rounds.min(ROUNDS) };
    let ranks = shown.schedule.ranks;
    let rows: Vec<Vec<String>> = (0..rounds)
        .map(|round| (0..ranks).map(|rank| cell(moves.of(round), rank, shown, all)).collect())
        .collect();
    let widths: Vec<usize> = (0..ranks as usize)
        .map(|rank| {
            let longest = rows.iter().map(|row| row[rank].chars().count()).max().unwrap_or(0);
            longest.max(format!("rank {rank}").len()) + 2
        })
        .collect();
    if !all && widths.iter().sum::<usize>() + 9 > WIDTH {
        return too_wide(shown, out);
    }
    let mut line = format!("  {:<7}", "round");
    for (rank, width) in widths.iter().enumerate() {
        let _ = write!(line, "{:<width$}", format!("rank {rank}"));
    }
    writeln!(out, "{}", line.trim_end())?;
    for (round, row) in rows.iter().enumerate() {
        let mut line = format!("  {:<7}", round + 1);
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    if rounds < moves.rounds {
        let more = u64::from(moves.rounds - rounds);
        writeln!(out, "  …      {} (--all shows them)", count(more, "more round", "more rounds"))?;
    }
    writeln!(out, "\n  {}\n", legend(shown))?;
    Ok(())
}

fn legend(shown: &Shown<'_>) -> String {
    let mut text = "2→3 sends chunk 2 to rank 3".to_owned();
    if shown.reduces() {
        let _ = write!(text, "; 2=→3 when all {} contributions are in it", shown.schedule.ranks);
    }
    if !shown.schedule.groups.is_empty() {
        text += "; s0 is a switch";
    }
    text + ".\n  What is sent in one round can be used in the next."
}

/// What a rank sends in a round: `2→3`, `2=→3,5-7`.
fn cell(moves: &[Move], rank: u32, shown: &Shown<'_>, all: bool) -> String {
    let sent: Vec<&Move> = moves.iter().filter(|one| one.from == Peer::Rank(rank)).collect();
    let parts = sent.chunk_by(|one, next| (one.channel, one.chunk) == (next.channel, next.chunk));
    let parts = parts.map(|part| {
        let is_complete = shown.reduces() && part[0].contributions == shown.schedule.ranks;
        format!("{}{}→{}", part[0].chunk, if is_complete { "=" } else { "" }, targets(part))
    });
    let text = parts.collect::<Vec<_>>().join(" ");
    if all || text.chars().count() <= CELL {
        return text;
    }
    text.chars().take(CELL - 1).collect::<String>() + "…"
}

/// `3,5-7,s0`: neighbours are drawn together.
fn targets(part: &[&Move]) -> String {
    let follows = |one: &&Move, next: &&Move| match (one.to, next.to) {
        (Peer::Rank(one), Peer::Rank(next)) => one + 1 == next,
        _ => false,
    };
    let runs = part.chunk_by(follows).map(|run| match run {
        [only] => short(only.to),
        [first, second] => format!("{},{}", short(first.to), short(second.to)),
        [first, .., last] => format!("{}-{}", short(first.to), short(last.to)),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Where ranks do not fit side by side: what a round amounts to.
fn too_wide(shown: &Shown<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
    let moves = shown.moves;
    writeln!(out, "  {:<7}{:<11}{:<15}for example", "round", "sends", "chunks")?;
    let rounds = moves.rounds.min(ROUNDS);
    for round in 0..rounds {
        let here = moves.of(round);
        let mut chunks: Vec<u32> = here.iter().map(|one| one.chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let range = match (chunks.first(), chunks.last()) {
            (Some(first), Some(last)) if first != last => format!("{first} … {last}"),
            (Some(first), _) => first.to_string(),
            _ => String::new(),
        };
        let example = here.first().map(|one| {
            let (from, to) = (super::moves::name(one.from), super::moves::name(one.to));
            format!("{from} sends chunk {} to {to}", one.chunk)
        });
        let many = grouped(here.len() as u64);
        writeln!(out, "  {:<7}{many:<11}{range:<15}{}", round + 1, example.unwrap_or_default())?;
    }
    if rounds < moves.rounds {
        let more = u64::from(moves.rounds - rounds);
        writeln!(out, "  …      {}", count(more, "more round", "more rounds"))?;
    }
    writeln!(
        out,
        "\n  Too many ranks to stand side by side: --all shows them anyway, --svg FILE draws it.\n"
    )?;
    Ok(())
}
