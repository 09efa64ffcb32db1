//! `railnet bench schedule`: how fast schedules are built and proved.

use std::io::Write;
use std::time::Instant;

use railnet_coll::check::check;
use railnet_coll::{Algorithm, Call, Choice, Collective, Protocol, Wiring, build};
use serde_json::{Value, json};

use crate::Outcome;
use crate::words::grouped;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  railnet bench schedule --repeat 5")]
pub(crate) struct Arguments {
    /// How often each row is repeated; the table shows the median
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 3)]
    repeat: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is built and proved: the collective, how, on how many nodes of how many ranks, and elements of its buffer or block.
const ROWS: [(Collective, Algorithm, u32, u32, u64); 8] = [
    (Collective::AllReduce, Algorithm::Ring, 1, 8, 1 << 28),
    (Collective::AllReduce, Algorithm::Ring, 16, 8, 1 << 24),
    (Collective::AllReduce, Algorithm::Ring, 128, 8, 1 << 20),
    (Collective::AllReduce, Algorithm::Tree, 128, 8, 1 << 28),
    (Collective::AllReduce, Algorithm::NvlsTree, 128, 8, 1 << 24),
    (Collective::AllGather, Algorithm::Ring, 128, 8, 1 << 10),
    (Collective::AllGather, Algorithm::Pat, 1024, 1, 1 << 6),
    (Collective::AllToAll, Algorithm::PointToPoint, 32, 8, 1 << 10),
];

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if !arguments.json {
        writeln!(out, "Build and prove a schedule, one core, median of {} runs\n", arguments.repeat)?;
        writeln!(
            out,
            "  {:<24}{:>8}{:>14}{:>12}{:>12}{:>14}",
            "what", "ranks", "steps", "build, ms", "check, ms", "M steps/s"
        )?;
    }
    let mut rows = Vec::new();
    for (collective, algorithm, nodes, per_node, count) in ROWS {
        let call = Call::new(collective, count);
        let wiring = Wiring::uniform(nodes, per_node);
        let (mut builds, mut checks, mut steps) = (Vec::new(), Vec::new(), 0);
        for _ in 0..arguments.repeat {
            let start = Instant::now();
            let schedule = build(&call, &Choice::new(algorithm, Protocol::Simple), &wiring)?;
            let built = Instant::now();
            steps = check(&schedule)?.steps;
            builds.push((built - start).as_secs_f64() * 1e3);
            checks.push(built.elapsed().as_secs_f64() * 1e3);
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (build, check) = (median(&mut builds), median(&mut checks));
        let ranks = nodes * per_node;
        if arguments.json {
            rows.push(json!({
                "collective": collective.name(), "algorithm": algorithm.name(), "ranks": ranks, "steps": steps,
                "build_ms": build, "check_ms": check,
            }));
            continue;
        }
        let what = format!("{collective} {algorithm}");
        let rate = steps as f64 / check / 1e3;
        writeln!(
            out,
            "  {what:<24}{:>8}{:>14}{build:>12.2}{check:>12.1}{rate:>14.1}",
            grouped(u64::from(ranks)),
            grouped(steps)
        )?;
    }
    if arguments.json {
        writeln!(out, "{}", Value::Array(rows))?;
    }
    Ok(Outcome::Done)
}
