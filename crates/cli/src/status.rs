//! `railnet status`: what the ranks of running jobs do now.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use railnet_live::status::{CallStatus, Found, PeerStatus, RankState, RankStatus, ranks_here};
use serde_json::{Value, json};

use crate::{Outcome, Usage};

const EXAMPLES: &str = "\
Examples:
  railnet status               all jobs of this user with ranks on this host
  railnet status 4711          those of a job, by the process of a rank or of the launcher
  railnet status my-job --json

Ranks of other hosts are asked by those of this one. The exit status is 1 if a rank does not answer.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A job: its name, the process id of one of its ranks, or that of what started them
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Print JSON, with counters and queue pairs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let Found { ranks, silent } = find(arguments.job.as_deref())?;
    let mut jobs: BTreeMap<(&str, u32), Vec<&RankStatus>> = BTreeMap::new();
    for rank in &ranks {
        // Ranks that have met know the process of rank 0: it tells jobs of one name apart.
        jobs.entry((&rank.job, rank.first())).or_default().push(rank);
    }
    if arguments.json {
        let all: Vec<Value> = jobs.values().map(|ranks| object(ranks)).collect();
        writeln!(out, "{:#}", json!({ "jobs": all }))?;
    } else {
        for ranks in jobs.values() {
            print(ranks, out)?;
        }
    }
    let is_stuck = |rank: &&RankStatus| rank.state == RankState::DoesNotAnswer;
    let is_stuck = !silent.is_empty()
        || jobs.values().any(|ranks| !missing(ranks).is_empty() || ranks.iter().any(is_stuck));
    Ok(if is_stuck { Outcome::CheckFailed } else { Outcome::Done })
}

/// The ranks that are meant.
pub(crate) fn find(job: Option<&str>) -> anyhow::Result<Found> {
    let Found { ranks: all, silent } = ranks_here()?;
    let Some(job) = job else {
        return match all.is_empty() {
            false => Ok(Found { ranks: all, silent }),
            true => Err(anyhow::anyhow!(
                "no rank of this user runs on this host (ranks answer while their communicator lives)"
            )),
        };
    };
    let pid = job.parse::<u32>().ok();
    let is_meant =
        |rank: &RankStatus| rank.job == job || pid.is_some_and(|pid| rank.is_here && descends(rank.pid, pid));
    let jobs: BTreeSet<String> =
        all.iter().filter(|rank| is_meant(rank)).map(|rank| rank.job.clone()).collect();
    // One rank of a job means all of it, where it is named by process.
    let firsts: BTreeSet<u32> = all.iter().filter(|rank| is_meant(rank)).map(RankStatus::first).collect();
    let names: BTreeSet<&str> = all.iter().map(|rank| &*rank.job).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let found: Vec<RankStatus> = all
        .iter()
        .filter(|rank| jobs.contains(&rank.job) && firsts.contains(&rank.first()))
        .cloned()
        .collect();
    let is_peer = |pid: &u32| found.iter().any(|rank| rank.peers.iter().any(|peer| peer.pid == *pid));
    let silent = silent.into_iter().filter(is_peer).collect();
    match found.is_empty() {
        false => Ok(Found { ranks: found, silent }),
        true if names.is_empty() => Err(anyhow::anyhow!("no rank of this user runs on this host")),
        true => {
            Err(Usage(format!("no rank here belongs to \"{job}\"; there are the jobs {}", names.join(", ")))
                .into())
        }
    }
}

/// Whether a process is another, or comes of it.
fn descends(pid: u32, ancestor: u32) -> bool {
    const GENERATIONS: usize = 16;
    let mut pid = pid;
    for _ in 0..GENERATIONS {
        if pid == ancestor {
            return true;
        }
        let Ok(line) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let parent = line.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        match parent {
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// The ranks that a rank waits for, in all of its calls.
fn waits_for(rank: &RankStatus) -> BTreeSet<u32> {
    rank.calls.iter().flat_map(|call| call.waits_for.iter().copied()).collect()
}

/// Ranks that others wait for and that wait for no other rank: the likely cause.
fn roots(ranks: &[&RankStatus]) -> Vec<u32> {
    let awaited: BTreeSet<u32> = ranks.iter().flat_map(|rank| waits_for(rank)).collect();
    let waiting: BTreeSet<u32> =
        ranks.iter().filter(|rank| !waits_for(rank).is_empty()).map(|rank| rank.rank).collect();
    awaited.difference(&waiting).copied().collect()
}

fn listed(ranks: &BTreeSet<u32>) -> String {
    const SHOWN: usize = 8;
    let mut texts: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    if ranks.len() > SHOWN {
        texts.push(format!("… ({} in all)", ranks.len()));
    }
    texts.join(", ")
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

fn gone(ranks: &[&RankStatus]) -> BTreeSet<u32> {
    ranks.iter().flat_map(|rank| rank.gone.iter().copied()).collect()
}

/// Where a rank of another host is, as the others know.
fn host_of(ranks: &[&RankStatus], rank: &RankStatus) -> String {
    let peer = ranks.iter().find_map(|one| one.peers.get(rank.rank as usize));
    peer.map_or_else(String::new, |peer| format!(", on {}", peer.host))
}

/// Ranks that are there and do not answer.
fn missing<'a>(ranks: &[&'a RankStatus]) -> Vec<(u32, &'a PeerStatus)> {
    let known: BTreeSet<u32> = ranks.iter().map(|rank| rank.rank).chain(gone(ranks)).collect();
    let peers = ranks.first().map_or(&[][..], |rank| &rank.peers);
    (0..).zip(peers).filter(|(rank, _)| !known.contains(rank)).collect()
}

fn print(ranks: &[&RankStatus], out: &mut dyn Write) -> std::io::Result<()> {
    let Some(first) = ranks.first() else { return Ok(()) };
    let name = if first.job.is_empty() { "(no name)" } else { &first.job };
    writeln!(out, "Job {name}: {} ranks, {} answered", first.world_size, ranks.len())?;
    writeln!(
        out,
        "  {:>5} {:>8}  {:<18} {:>9} {:>9}  {:<14} call",
        "rank", "process", "state", "in call", "still", "waits for"
    )?;
    for rank in ranks {
        let call: Option<&CallStatus> = rank.calls.first();
        let (age, still) = call
            .map_or(("-".to_owned(), "-".to_owned()), |call| (seconds(call.age), seconds(call.still_for)));
        let waits = listed(&waits_for(rank));
        let waits = if waits.is_empty() { "-".to_owned() } else { waits };
        let call = call.map_or_else(|| format!("{} done", rank.calls_done), |call| call.call.clone());
        let (number, pid, state) = (rank.rank, rank.pid, rank.state.name());
        let host = if rank.is_here { String::new() } else { host_of(ranks, rank) };
        writeln!(out, "  {number:>5} {pid:>8}  {state:<18} {age:>9} {still:>9}  {waits:<14} {call}{host}")?;
    }
    for (rank, peer) in missing(ranks).into_iter().take(8) {
        writeln!(out, "  rank {rank} does not answer: process {} on {}", peer.pid, peer.host)?;
    }
    let gone = gone(ranks);
    if !gone.is_empty() {
        writeln!(out, "  lost or finished: {}", listed(&gone))?;
    }
    let roots: BTreeSet<u32> = roots(ranks).into_iter().collect();
    if !roots.is_empty() {
        writeln!(out, "  others wait for rank {}, which waits for no other", listed(&roots))?;
    }
    Ok(())
}

fn object(ranks: &[&RankStatus]) -> Value {
    let silent = missing(ranks).into_iter().map(|(rank, _)| rank);
    let waits: Vec<Value> = ranks
        .iter()
        .flat_map(|rank| waits_for(rank).into_iter().map(|other| json!([rank.rank, other])))
        .collect();
    json!({
        "job": ranks.first().map(|rank| &rank.job),
        "world_size": ranks.first().map(|rank| rank.world_size),
        "ranks": ranks.iter().map(|rank| rank_object(rank)).collect::<Vec<_>>(),
        "do_not_answer": silent.collect::<Vec<_>>(),
        "waits": waits,
        "awaited_only": roots(ranks),
    })
}

/// A rank as JSON.
pub(crate) fn rank_object(rank: &RankStatus) -> Value {
    let call = |call: &CallStatus| {
        json!({
            "call": call.call,
            "ranks": call.ranks,
            "age_us": call.age.as_micros() as u64,
            "still_us": call.still_for.as_micros() as u64,
            "waits_for": call.waits_for,
        })
    };
    json!({
        "rank": rank.rank,
        "is_here": rank.is_here,
        "pid": rank.pid,
        "state": rank.state.name(),
        "calls": rank.calls.iter().map(call).collect::<Vec<_>>(),
        "calls_done": rank.calls_done,
        "gone": rank.gone,
        "peers": rank.peers.iter().map(|peer| json!({
            "pid": peer.pid,
            "host": peer.host,
            "transport": peer.transport,
        })).collect::<Vec<_>>(),
        "counters": rank.counters.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>(),
        "nic": rank.nic,
        "queue_pairs": rank.queue_pairs.iter().map(|one| json!({
            "number": one.number,
            "destination": one.destination,
            "state": one.state,
            "sends": one.sends,
            "receives": one.receives,
            "send_psn": one.send_psn,
            "receive_psn": one.receive_psn,
        })).collect::<Vec<_>>(),
    })
}

/// Counters and queue pairs of a rank, for `railnet doctor --process`.
pub(crate) fn print_counters(rank: &RankStatus, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "Rank {} of {}, process {}: {}", rank.rank, rank.world_size, rank.pid, rank.state.name())?;
    if let Some(nic) = &rank.nic {
        writeln!(out, "  its NIC receives at {nic}")?;
    }
    for (name, value) in &rank.counters {
        writeln!(out, "  {value:>14}  {name}")?;
    }
    if rank.queue_pairs.is_empty() {
        return writeln!(out, "  it has no queue pairs: its transports are shared memory or TCP");
    }
    writeln!(
        out,
        "  {:>10} {:>10} {:<6} {:>6} {:>9} {:>9} {:>12}",
        "queue pair", "peer's", "state", "sends", "receives", "next PSN", "expected PSN"
    )?;
    for one in &rank.queue_pairs {
        let (number, destination) = (format!("{:#08x}", one.number), format!("{:#08x}", one.destination));
        let (sends, receives, next, expected) = (one.sends, one.receives, one.send_psn, one.receive_psn);
        writeln!(
            out,
            "  {number:>10} {destination:>10} {:<6} {sends:>6} {receives:>9} {next:>9} {expected:>12}",
            one.state
        )?;
    }
    Ok(())
}
