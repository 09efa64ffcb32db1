//! `railnet doctor`: what was detected, what this machine can do, and what to change.

mod checks;
mod facts;
mod owner;

use std::io::Write;

use serde_json::{Value, json};

use crate::{Outcome, status};
use checks::{Check, State};
use facts::Facts;

const EXAMPLES: &str = "\
Examples:
  railnet doctor                          of this shell
  srun -N 2 -n 2 railnet doctor --json    of every rank, as it is started
  railnet run -n 2 -- railnet doctor
  railnet doctor --process 4711           counters of the NIC and queue pairs of a rank

The exit status is 1 if something is missing without which ranks cannot work, and 0 otherwise.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Read the counters of the port and of the queue pairs of this process, which is a rank
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if let Some(process) = arguments.process {
        return examine(process, arguments.json, out);
    }
    let facts = Facts::gather();
    let checks = checks::of(&facts);
    if arguments.json {
        writeln!(out, "{:#}", object(&facts, &checks))?;
    } else {
        print(&facts, &checks, out)?;
    }
    let is_broken = checks.iter().any(|check| check.state == State::Bad);
    Ok(if is_broken { Outcome::CheckFailed } else { Outcome::Done })
}

/// Counters of a rank that runs.
fn examine(process: u32, is_json: bool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let ranks = status::find(Some(&process.to_string()))?;
    let ranks: Vec<_> = ranks.ranks.iter().filter(|rank| rank.is_here && rank.pid == process).collect();
    if ranks.is_empty() {
        let text = format!(
            "process {process} is no rank, but has started some: `railnet status {process}` lists them"
        );
        return Err(crate::Usage(text).into());
    }
    if is_json {
        let all: Vec<Value> = ranks.iter().map(|rank| status::rank_object(rank)).collect();
        writeln!(out, "{:#}", json!({ "ranks": all }))?;
        return Ok(Outcome::Done);
    }
    for rank in ranks {
        status::print_counters(rank, out)?;
    }
    Ok(Outcome::Done)
}

fn print(facts: &Facts, checks: &[Check], out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "Railnet {} · {} · {}", env!("CARGO_PKG_VERSION"), facts.host, facts.system)?;
    let mut area = "";
    for check in checks {
        if check.area != area {
            area = check.area;
            writeln!(out, "\n{area}")?;
        }
        writeln!(out, "  {:<5} {:<15} {}", check.state.word(), check.name, check.finding)?;
        for advice in &check.advice {
            writeln!(out, "{:24}→ {advice}", "")?;
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (bad, warned) = (count(State::Bad), count(State::Warn));
    let verdict = match (bad, warned) {
        (0, 0) => "All is well.".to_owned(),
        (0, some) => format!("It will work; {some} could be better."),
        (bad, _) => format!("{bad} in the way."),
    };
    writeln!(out, "\n{verdict}")
}

fn object(facts: &Facts, checks: &[Check]) -> Value {
    let check = |check: &Check| {
        json!({
            "area": check.area,
            "name": check.name,
            "state": check.state.word(),
            "finding": check.finding,
            "advice": check.advice,
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": facts.host,
        "system": facts.system,
        "launch": facts.launch.as_ref().ok().map(|launch| json!({
            "launcher": launch.launcher.name(),
            "rank": launch.rank.0,
            "world_size": launch.world_size,
            "local_rank": launch.local_rank,
            "local_size": launch.local_size,
            "node": launch.node,
            "host_group": launch.host_group,
            "rendezvous": launch.rendezvous.as_ref().map(ToString::to_string),
            "job": launch.job,
        })),
        "interfaces": facts.interfaces.iter().map(|one| json!({
            "name": one.name,
            "addresses": one.addresses,
            "mtu": one.mtu,
            "rate_mbps": one.rate_mbps,
            "is_loopback": one.is_loopback,
        })).collect::<Vec<_>>(),
        "udp": {
            "segments_sent": facts.segments_sent,
            "segments_received": facts.segments_received,
            "roce_port_is_free": facts.roce_port.is_ok(),
        },
        "shared_memory": {
            "memfd": facts.memfd.is_ok(),
            "shm_free": facts.shm.map(|(free, _)| free),
            "shm_total": facts.shm.map(|(_, total)| total),
        },
        "limits": {
            "receive_buffer": facts.limits.receive_buffer,
            "send_buffer": facts.limits.send_buffer,
            "backlog": facts.limits.backlog,
            "locked_memory": facts.limits.locked_memory,
            "open_files": facts.limits.open_files,
            "open_files_hard": facts.limits.open_files_hard,
            "cores_online": facts.cores.online,
            "cores_usable": facts.cores.usable,
            "memory_total": facts.memory.total,
            "memory_limit": facts.memory.limit,
        },
        "checks": checks.iter().map(check).collect::<Vec<_>>(),
    })
}
