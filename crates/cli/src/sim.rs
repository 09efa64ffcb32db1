//! `railnet sim`: runs a scenario and says what came of it.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use railnet_core::Digest;
use railnet_sim::{Outcome as RunOutcome, Scenario, ScenarioError};

use crate::Outcome;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  railnet sim scenarios/incast.toml")]
pub(crate) struct Arguments {
    /// The scenario, a TOML file
    file: PathBuf,
    /// The seed, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let path = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file).with_context(|| format!("cannot read {path}"))?;
    let mut scenario = Scenario::parse(&text).map_err(|error| located(&error, &path.to_string(), &text))?;
    if let Some(seed) = arguments.seed {
        scenario.seed = seed;
    }
    let began = Instant::now();
    let (outcome, digest) = railnet_sim::run(&scenario, Digest::new())?;
    let wall = began.elapsed().as_secs_f64();
    summary(&outcome, wall, out)?;
    writeln!(out, "digest {}", digest.finish())?;
    Ok(Outcome::Done)
}

/// An error with the line it is about, as compilers show it.
fn located(error: &ScenarioError, path: &str, text: &str) -> anyhow::Error {
    let Some(span) = &error.span else { return anyhow::anyhow!("{path}: {error}") };
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    let shown = text.lines().nth(line - 1).unwrap_or("");
    let width = text[span.clone()].lines().next().unwrap_or("").chars().count().max(1);
    let gutter = " ".repeat(line.to_string().len());
    anyhow::anyhow!(
        "{error}\n {gutter}--> {path}:{line}:{column}\n {gutter} |\n {line} | {shown}\n {gutter} | {}{}",
        " ".repeat(column - 1),
        "^".repeat(width)
    )
}

fn summary(outcome: &RunOutcome, wall: f64, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut times: Vec<f64> =
        outcome.flows.iter().map(|flow| (flow.finished - flow.started).as_us_f64()).collect();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let bytes: u64 = outcome.flows.iter().map(|flow| flow.flow.bytes).sum();
    let (hosts, switches) = outcome.size;
    writeln!(
        out,
        "Ran        {} flows, {:.1} MB, on {hosts} hosts and {switches} switches",
        times.len(),
        bytes as f64 / 1e6
    )?;
    writeln!(out, "Completed  after {:.1} µs", (outcome.completion - railnet_core::Time::ZERO).as_us_f64())?;
    writeln!(
        out,
        "Flows      min {:.1}, median {:.1}, p99 {:.1}, max {:.1} µs",
        times[0],
        at(0.5),
        at(0.99),
        times[times.len() - 1]
    )?;
    let sum = |of: fn(&railnet_sim::LinkResult) -> u64| outcome.links.iter().map(of).sum::<u64>();
    writeln!(
        out,
        "Network    {} packet-hops, {} drops, {} marks, {} pauses, {} packets sent again, {} timeouts",
        outcome.packet_hops,
        sum(|link| link.counters.drops),
        sum(|link| link.counters.marks),
        sum(|link| link.counters.pauses),
        outcome.resent,
        outcome.timeouts
    )?;
    if let Some(busiest) = outcome.links.iter().max_by_key(|link| link.counters.queue_max) {
        writeln!(
            out,
            "Queues     longest {:.0} KB, {} to {}",
            busiest.counters.queue_max as f64 / 1e3,
            busiest.from,
            busiest.to
        )?;
    }
    writeln!(
        out,
        "Speed      {wall:.2} s, {:.2} M packet-hops/s, {:.2} M events/s",
        outcome.packet_hops as f64 / wall / 1e6,
        outcome.events as f64 / wall / 1e6
    )?;
    Ok(())
}
