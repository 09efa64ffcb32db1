//! `railnet storm`: random work on a wire that does its worst, seed after seed, with a model that checks all of it.

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use railnet_core::{Fold, RunDigest, Span};
use railnet_nic::testing::storm::{self, Scenario, Summary};
use railnet_nic::testing::{Injected, WireForm};

use crate::Outcome;
use crate::wire::Wire;

const EXAMPLES: &str = "\
Examples:
  railnet storm nic --seeds 10000               ten thousand seeds
  railnet storm nic --seeds 10000 --wire bytes  the same with every packet as bytes: the digest must be the same
  railnet storm nic --seeds 1 --seed 0x5eed     one seed again";

/// Threads that run seeds.
const THREADS: usize = 2;
/// Seeds that a thread takes at a time.
const BATCH: u64 = 16;
/// The least time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Failures that are printed.
const FAILURES_MAX: usize = 10;

/// The command line of `storm`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    layer: Layer,
}

#[derive(Subcommand)]
enum Layer {
    /// NICs with random work, against a reference model
    #[command(after_help = EXAMPLES)]
    Nic(NicArguments),
}

#[derive(Args)]
struct NicArguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed, decimal or 0x hexadecimal
    #[arg(long, default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// How packets travel
    #[arg(long, value_enum, default_value_t = Wire::Values)]
    wire: Wire,
    /// Print a line for each seed
    #[arg(long)]
    verbose: bool,
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}; give a number such as 7 or 0x5eed"))
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match &arguments.layer {
        Layer::Nic(arguments) => run_nic(arguments, out),
    }
}

/// What came of one seed: the summary, or what was violated.
type Verdict = Result<Summary, String>;

fn run_nic(arguments: &NicArguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let mut totals = Totals::default();
    let mut failures = Vec::new();
    let mut digest = Fold::new();
    let mut broken = Ok(());
    run_seeds(arguments, |seed, verdict| {
        match &verdict {
            Ok(summary) => {
                push_digest(&mut digest, summary.digest);
                totals.add(summary);
                if arguments.verbose {
                    broken = writeln!(out, "{}", seed_line(seed, summary));
                }
            }
            Err(what) => failures.push((seed, what.clone())),
        }
        broken.is_ok()
    });
    broken?;
    let wall = start.elapsed();
    for (seed, what) in failures.iter().take(FAILURES_MAX) {
        writeln!(out, "VIOLATED {what}")?;
        writeln!(
            out,
            "  replay: railnet storm nic --seeds 1 --seed {seed:#x} --wire {}",
            arguments.wire.name()
        )?;
    }
    if failures.len() > FAILURES_MAX {
        writeln!(out, "and {} more", failures.len() - FAILURES_MAX)?;
    }
    totals.print(out, failures.len())?;
    let rate = arguments.seeds as f64 / wall.as_secs_f64().max(1e-9);
    writeln!(out, "wall time       {:.2} s, {rate:.0} seeds/s", wall.as_secs_f64())?;
    if failures.is_empty() {
        writeln!(out, "digest {}", RunDigest::from_u128(digest.finish_wide()))?;
        Ok(Outcome::Done)
    } else {
        Ok(Outcome::CheckFailed)
    }
}

fn push_digest(fold: &mut Fold, digest: RunDigest) {
    let value = digest.as_u128();
    fold.push((value >> 64) as u64);
    fold.push(value as u64);
}

/// Runs all seeds on some threads and hands the verdicts over in the order of seeds, until told to stop.
fn run_seeds(arguments: &NicArguments, mut take: impl FnMut(u64, Verdict) -> bool) {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let results = Mutex::new(std::collections::BTreeMap::new());
    let batches = arguments.seeds.div_ceil(BATCH);
    // A panic is a finding like any other: it is reported with its seed, not as it happens.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..THREADS {
            workers.push(scope.spawn(|| {
                loop {
                    let batch = next.fetch_add(1, Ordering::Relaxed);
                    if batch >= batches || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let offsets = batch * BATCH..arguments.seeds.min((batch + 1) * BATCH);
                    let verdicts: Vec<(u64, Verdict)> = offsets
                        .map(|offset| {
                            let seed = arguments.seed.wrapping_add(offset);
                            let verdict = run_seed(seed, arguments.wire.form());
                            done.fetch_add(1, Ordering::Relaxed);
                            (seed, verdict)
                        })
                        .collect();
                    if let Ok(mut results) = results.lock() {
                        results.insert(batch, verdicts);
                    }
                }
            }));
        }
        let mut progress = Progress::new(arguments.seeds);
        let mut wanted = 0;
        while wanted < batches && !stop.load(Ordering::Relaxed) {
            let ready = results.lock().ok().and_then(|mut results| results.remove(&wanted));
            let Some(verdicts) = ready else {
                progress.show(done.load(Ordering::Relaxed));
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            for (seed, verdict) in verdicts {
                if !take(seed, verdict) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            wanted += 1;
        }
        progress.clear();
    });
    std::panic::set_hook(hook);
}

fn run_seed(seed: u64, form: WireForm) -> Verdict {
    match catch_unwind(AssertUnwindSafe(|| storm::run(seed, form))) {
        Ok(Ok(summary)) => Ok(summary),
        Ok(Err(violation)) => Err(violation.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            Err(format!("seed {seed:#x}: panic: {text}"))
        }
    }
}

fn seed_line(seed: u64, summary: &Summary) -> String {
    let Summary { nics, queue_pairs, operations, packets, resent, .. } = summary;
    format!(
        "seed {seed:#x}: {nics} NICs, {queue_pairs} queue pairs, {operations} operations, {packets} packets, {resent} \
         sent again, {}, {}, digest {}",
        summary.scenario.name(),
        summary.virtual_time,
        summary.digest
    )
}

/// A line that says how far it is, on a terminal only.
struct Progress {
    is_terminal: bool,
    seeds: u64,
    shown: Option<Instant>,
}

impl Progress {
    fn new(seeds: u64) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), seeds, shown: None }
    }

    fn show(&mut self, done: u64) {
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL) {
            self.shown = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r{done} of {} seeds", self.seeds);
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    queue_pairs: u64,
    operations: u64,
    packets: u64,
    resent: u64,
    timeouts: u64,
    sequence_naks: u64,
    rnr_naks: u64,
    notifications: u64,
    events: u64,
    virtual_time: Span,
    injected: Injected,
    scenarios: [u64; Scenario::ALL.len()],
}

impl Totals {
    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.queue_pairs += summary.queue_pairs;
        self.operations += summary.operations;
        self.packets += summary.packets;
        self.resent += summary.resent;
        self.timeouts += summary.timeouts;
        self.sequence_naks += summary.sequence_naks;
        self.rnr_naks += summary.rnr_naks;
        self.notifications += summary.notifications;
        self.events += summary.events;
        self.virtual_time += summary.virtual_time;
        let (sum, one) = (&mut self.injected, &summary.injected);
        sum.lost += one.lost;
        sum.cut += one.cut;
        sum.duplicated += one.duplicated;
        sum.reordered += one.reordered;
        sum.delayed += one.delayed;
        sum.corrupted += one.corrupted;
        sum.marked += one.marked;
        self.scenarios[summary.scenario as usize] += 1;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let Injected { lost, cut, duplicated, reordered, delayed, corrupted, marked } = self.injected;
        writeln!(out, "seeds           {} passed, {failed} failed", self.seeds)?;
        writeln!(out, "operations      {} on {} queue pairs", self.operations, self.queue_pairs)?;
        writeln!(out, "packets         {} sent, {} of them again", self.packets, self.resent)?;
        writeln!(
            out,
            "faults          {lost} lost, {cut} cut off, {corrupted} corrupted, {duplicated} duplicated, {reordered} \
             reordered, {delayed} delayed, {marked} marked"
        )?;
        writeln!(
            out,
            "recovery        {} timeouts, {} sequence NAKs, {} receiver-not-ready NAKs, {} congestion notifications",
            self.timeouts, self.sequence_naks, self.rnr_naks, self.notifications
        )?;
        writeln!(out, "provoked        {}", self.provoked())?;
        writeln!(out, "virtual time    {}, {} events", self.virtual_time, self.events)
    }

    fn provoked(&self) -> String {
        let provoked = Scenario::ALL
            .iter()
            .zip(self.scenarios)
            .filter(|(scenario, count)| **scenario != Scenario::None && *count > 0);
        let list: Vec<String> =
            provoked.map(|(scenario, count)| format!("{count} {}", scenario.name())).collect();
        if list.is_empty() { "nothing".into() } else { list.join(", ") }
    }
}
