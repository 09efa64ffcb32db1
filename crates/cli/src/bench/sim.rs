//! `railnet bench sim`: how fast whole runs are, and how much memory they take.

use std::io::Write;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use railnet_core::{Digest, Time};
use railnet_sim::{Run, Scenario};
use serde_json::{Value, json};

use crate::words::tenths;
use crate::{Outcome, huge_pages};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often each run is repeated; the table shows median, min and max
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 3)]
    repeat: usize,
    /// Only the rows whose name contains this; those of 1,024 take minutes
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Run one row once in this process and print what it took
    #[arg(long, hide = true, value_name = "INDEX")]
    row: Option<usize>,
}

/// What a row runs on.
#[derive(Clone, Copy)]
enum On {
    /// A fat-tree of so many ports a switch.
    FatTree(u32),
    /// So many servers of eight GPUs, on rails.
    Rails(u32),
}

/// One measured scenario, and what is asked of it.
struct Row {
    name: &'static str,
    on: On,
    /// What moves: a table of the scenario.
    moves: &'static str,
    /// Packet-hops a second.
    goal_hops: f64,
    /// Bytes at the peak.
    goal_memory: u64,
    /// What other simulators did with the same traffic, in packet-hops a second of processor time.
    peers: &'static str,
}

const ROWS: [Row; 5] = [
    Row {
        name: "permutation of 8 MB, 128 hosts",
        on: On::FatTree(8),
        moves: "[[traffic]]\nkind = \"permutation\"\nbytes = \"8MB\"",
        goal_hops: 4e6,
        goal_memory: 100_000_000,
        peers: "htsim 0.31 M, ns-3 0.13 M",
    },
    Row {
        name: "ring of 64 MB, 128 hosts",
        on: On::FatTree(8),
        moves: "[[traffic]]\nkind = \"ring\"\nbytes = \"64MB\"",
        goal_hops: 5e6,
        goal_memory: 150_000_000,
        peers: "htsim 0.09 M",
    },
    Row {
        name: "AllReduce of 64 MB, 128 hosts",
        on: On::FatTree(8),
        moves: "[[collective]]\nkind = \"all_reduce\"\nsize = \"64MB\"\nalgorithm = \"ring\"\n\
                protocol = \"simple\"\nplacement = \"out\"\nchannels = 1",
        goal_hops: 5e6,
        goal_memory: 200_000_000,
        peers: "not measured",
    },
    Row {
        name: "AllReduce of 256 MB, 1,024 GPUs",
        on: On::Rails(128),
        moves: "[[collective]]\nkind = \"all_reduce\"\nsize = \"256MB\"\nplacement = \"out\"",
        goal_hops: 2e6,
        goal_memory: 4_000_000_000,
        peers: "not measured",
    },
    Row {
        name: "all-to-all of 64 KB, 1,024 hosts",
        on: On::FatTree(16),
        moves: "[[traffic]]\nkind = \"all-to-all\"\nbytes = \"64KB\"",
        goal_hops: 3e6,
        goal_memory: 2_000_000_000,
        peers: "not measured",
    },
];

impl Row {
    fn scenario(&self) -> String {
        let fabric = match self.on {
            On::FatTree(k) => format!(
                "topology = {{ kind = \"fat-tree\", k = {k} }}\nlink = {{ rate = \"100Gbps\", delay = \"1us\" }}"
            ),
            On::Rails(nodes) => format!(
                "topology = {{ kind = \"rail-optimised\", nodes = {nodes}, rails = 8, nodes_per_group = 16, spines = 8 }}\n\
                 link = {{ rate = \"400Gbps\", delay = \"500ns\" }}\n[cluster]\nserver = \"dgx-h100\""
            ),
        };
        format!("seed = 1\n[fabric]\n{fabric}\n[nic]\ncontrol = \"dcqcn\"\n{}\n", self.moves)
    }
}

/// What one run took.
struct Measured {
    hops: u64,
    wall_s: f64,
    /// Seconds of the processor, where the system tells: what others do on the machine leaves them alone.
    processor_s: Option<f64>,
    /// Bytes, where the system tells.
    peak: Option<u64>,
    completion_us: f64,
    digest: String,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if let Some(index) = arguments.row {
        let row = ROWS.get(index).context("there is no such row")?;
        writeln!(out, "{}", measure_here(row)?)?;
        return Ok(Outcome::Done);
    }
    let rows = super::chosen(&ROWS, arguments.only.as_deref(), |row| row.name)?;
    if !arguments.json {
        headline(arguments.repeat, out)?;
    }
    let mut objects = Vec::new();
    for (index, row) in rows {
        let runs: Vec<Measured> =
            (0..arguments.repeat).map(|_| measure_in_child(index)).collect::<anyhow::Result<_>>()?;
        let same = runs.windows(2).all(|pair| pair[0].digest == pair[1].digest);
        ensure!(same, "{}: runs of one scenario and seed have different digests", row.name);
        match arguments.json {
            true => objects.push(object(row, &runs)),
            false => line(row, &runs, out)?,
        }
    }
    if arguments.json {
        writeln!(out, "{}", Value::Array(objects))?;
    } else {
        writeln!(
            out,
            "\nOthers: packet-hops a second of processor time, measured on another day on a similar machine, not in this run. \
             Over\nseveral kinds of traffic htsim (UEC) reached 0.09 to 0.8 M, and HPCC's ns-3 (DCQCN) 0.1 to 0.25 M."
        )?;
    }
    Ok(Outcome::Done)
}

fn headline(repeat: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "Whole runs, set-up and digest included, with DCQCN: hosts are on k-ary fat-trees of 100 Gbps and 1 us, GPUs in DGX H100\n\
         on rails of 400 Gbps and 500 ns; one thread; {repeat} × each in a process of its own: median, min – max. \"processor\"\n\
         counts the seconds of the processor instead of the wall's.\n"
    )?;
    writeln!(
        out,
        "  {:<34}{:>10} {:^15}{:>11}{:>6}{:>10}{:>10}{:>9}{:>13}  {:<21}others",
        "", "M hops/s", "", "processor", "goal", "wall", "memory", "goal", "completion", "digest"
    )?;
    Ok(())
}

fn line(row: &Row, runs: &[Measured], out: &mut dyn Write) -> anyhow::Result<()> {
    let [median, min, max] = spread(runs, |run| run.hops as f64 / run.wall_s / 1e6);
    let [wall, ..] = spread(runs, |run| run.wall_s);
    let processor = by_processor(runs).map_or("unknown".to_owned(), |hops| format!("{:.2}", hops / 1e6));
    let memory = peak(runs).map_or("unknown".to_owned(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6));
    writeln!(
        out,
        "  {:<34}{median:>10.2} {:^15}{processor:>11}{:>6.0}{:>10}{memory:>10}{:>9}{:>13}  {:<21}{}",
        row.name,
        format!("{min:.2} – {max:.2}"),
        row.goal_hops / 1e6,
        format!("{wall:.2} s"),
        format!("{} MB", row.goal_memory / 1_000_000),
        format!("{} µs", tenths(runs[0].completion_us)),
        short(&runs[0].digest),
        row.peers,
    )?;
    out.flush()?;
    Ok(())
}

/// As `railnet sim` prints it: the first half, in groups of four.
fn short(digest: &str) -> String {
    let half: Vec<char> = digest.chars().take(16).collect();
    half.chunks(4).map(String::from_iter).collect::<Vec<_>>().join(" ")
}

fn object(row: &Row, runs: &[Measured]) -> Value {
    let [median, min, max] = spread(runs, |run| run.hops as f64 / run.wall_s);
    let [wall, ..] = spread(runs, |run| run.wall_s);
    json!({
        "name": row.name,
        "packet_hops": runs[0].hops,
        "hops_per_s": median,
        "hops_per_s_min": min,
        "hops_per_s_max": max,
        "hops_per_processor_s": by_processor(runs),
        "hops_per_s_goal": row.goal_hops,
        "wall_s": wall,
        "peak_memory_bytes": peak(runs),
        "peak_memory_bytes_goal": row.goal_memory,
        "completion_us": runs[0].completion_us,
        "digest": runs[0].digest,
        "runs": runs.len(),
    })
}

/// Packet-hops for each second of the processor, the median of all runs.
fn by_processor(runs: &[Measured]) -> Option<f64> {
    if runs.iter().any(|run| run.processor_s.is_none()) {
        return None;
    }
    let [median, ..] = spread(runs, |run| run.hops as f64 / run.processor_s.unwrap_or(f64::INFINITY));
    Some(median)
}

fn peak(runs: &[Measured]) -> Option<u64> {
    runs.iter().filter_map(|run| run.peak).max()
}

/// Median, min and max of a measured quantity.
fn spread(runs: &[Measured], of: impl Fn(&Measured) -> f64) -> [f64; 3] {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

/// Runs a row in a process of its own, so that the peak of its memory is its own too.
fn measure_in_child(index: usize) -> anyhow::Result<Measured> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let child = Command::new(program).args(["bench", "sim", "--row", &index.to_string()]).output();
    let child = child.context("cannot start this program again")?;
    ensure!(child.status.success(), "a run failed: {}", String::from_utf8_lossy(&child.stderr).trim_end());
    let value: Value = serde_json::from_slice(&child.stdout).context("cannot read what a run took")?;
    let number = |name: &str| value[name].as_f64().with_context(|| format!("a run does not say {name}"));
    Ok(Measured {
        hops: number("packet_hops")? as u64,
        wall_s: number("wall_s")?.max(1e-9),
        processor_s: value["processor_s"].as_f64().filter(|seconds| *seconds > 0.0),
        peak: value["peak_memory_bytes"].as_u64(),
        completion_us: number("completion_us")?,
        digest: value["digest"].as_str().unwrap_or_default().to_owned(),
    })
}

fn measure_here(row: &Row) -> anyhow::Result<Value> {
    let scenario = Scenario::parse(&row.scenario())?;
    huge_pages::start_again_with(railnet_sim::graph(&scenario)?.hosts.len());
    let began = Instant::now();
    let mut run = Run::new(&scenario, Digest::new())?;
    run.complete()?;
    let (outcome, digest) = run.end_at_exit();
    let wall_s = began.elapsed().as_secs_f64();
    Ok(json!({
        "packet_hops": outcome.packet_hops,
        "wall_s": wall_s,
        "processor_s": crate::processor::seconds(),
        "peak_memory_bytes": peak_memory(),
        "completion_us": outcome.completion.since(Time::ZERO).as_us_f64(),
        "digest": format!("{:?}", digest.finish()),
    }))
}

/// The most memory this process has had, in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_are_scenarios_that_parse() {
        for row in &ROWS {
            assert!(Scenario::parse(&row.scenario()).is_ok(), "{}", row.name);
        }
    }

    #[test]
    fn digests_are_shortened_as_the_summary_prints_them() {
        assert_eq!(short("8163095eced56a9e0123456789abcdef"), "8163 095e ced5 6a9e");
    }
}
