//! `railnet storm`: random runs, seed after seed, with everything about them checked.

mod control;
mod fabric;
mod live;
mod nic;
mod tcp;
#[cfg(target_arch = "x86_64")]
mod verbs;

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use railnet_core::{Fold, RunDigest};

use crate::Outcome;

const EXAMPLES: &str = "\
Examples:
  railnet storm nic --seeds 10000      NICs on a bad wire
  railnet storm tcp --seeds 10000      TCP connections on a bad wire
  railnet storm fabric --seeds 1000    networks of switches with faults
  railnet storm control --seeds 10000  ranks that agree on who has failed
  railnet storm live --seeds 100       collectives between real ranks
  railnet storm verbs --seeds 100      programs of C calls on the verbs library

railnet storm nic --help and the like say more.";

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
    Nic(nic::Arguments),
    /// TCP connections on a bad wire, under every congestion control, with every byte checked
    Tcp(tcp::Arguments),
    /// Random networks with random traffic and faults, with everything about them checked
    Fabric(fabric::Arguments),
    /// Ranks that agree on who has failed, while an adversary kills, stops, delays and partitions them
    Control(control::Arguments),
    /// Random collectives between real ranks, over sockets that lose and damage packets
    Live(live::Arguments),
    /// Random programs of verbs in several threads and processes, with faults and all data checked
    #[cfg(target_arch = "x86_64")]
    Verbs(verbs::Arguments),
}

/// Which seeds, and how much is said of them.
#[derive(Args)]
struct Extent {
    /// How many seeds to run
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed, decimal or 0x hexadecimal
    #[arg(long, default_value = "1", value_parser = parse_seed)]
    seed: u64,
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
        Layer::Nic(arguments) => nic::run(arguments, out),
        Layer::Tcp(arguments) => tcp::run(arguments, out),
        Layer::Fabric(arguments) => fabric::run(arguments, out),
        Layer::Control(arguments) => control::run(arguments, out),
        Layer::Live(arguments) => live::run(arguments, out),
        #[cfg(target_arch = "x86_64")]
        Layer::Verbs(arguments) => verbs::run(arguments, out),
    }
}

/// What came of one seed.
trait Summary: Send {
    /// The digest of all its events.
    fn digest(&self) -> RunDigest;

    /// All of it in a line.
    fn line(&self) -> String;
}

/// The summaries of many seeds, added up.
trait Totals: Default {
    type One: Summary;

    fn add(&mut self, summary: &Self::One);

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()>;
}

/// Runs all seeds and prints what came of them. `one` runs a seed, or says what it violates; `replay` is the command
/// that runs a seed again, less its number.
fn storm<T: Totals>(
    extent: &Extent,
    replay: &str,
    one: impl Fn(u64) -> Result<T::One, String> + Sync,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let mut totals = T::default();
    let mut failures = Vec::new();
    let mut digest = Fold::new();
    let mut broken = Ok(());
    run_seeds(extent, &one, |seed, verdict| {
        match &verdict {
            Ok(summary) => {
                push_digest(&mut digest, summary.digest());
                totals.add(summary);
                if extent.verbose {
                    broken = writeln!(out, "seed {seed:#x}: {}", summary.line());
                }
            }
            Err(what) => failures.push((seed, what.clone())),
        }
        broken.is_ok()
    });
    broken?;
    let wall = start.elapsed();
    totals.print(out, failures.len())?;
    let rate = extent.seeds as f64 / wall.as_secs_f64().max(1e-9);
    writeln!(out, "wall time       {:.2} s, {rate:.0} seeds/s", wall.as_secs_f64())?;
    if failures.is_empty() {
        writeln!(out, "digest {}", RunDigest::from_u128(digest.finish_wide()))?;
        return Ok(Outcome::Done);
    }
    // At the end, where nobody overlooks it.
    for (seed, what) in failures.iter().take(FAILURES_MAX) {
        writeln!(out, "VIOLATED {what}")?;
        writeln!(out, "  replay: {replay} --seeds 1 --seed {seed:#x}")?;
    }
    if failures.len() > FAILURES_MAX {
        writeln!(out, "and {} more", failures.len() - FAILURES_MAX)?;
    }
    writeln!(out, "FAILED: {} of {} seeds", failures.len(), extent.seeds)?;
    Ok(Outcome::CheckFailed)
}

fn push_digest(fold: &mut Fold, digest: RunDigest) {
    let value = digest.as_u128();
    fold.push((value >> 64) as u64);
    fold.push(value as u64);
}

/// What came of one seed: the summary, or what was violated.
type Verdict<S> = Result<S, String>;

/// Runs all seeds on some threads and hands the verdicts over in the order of seeds, until `take` refuses one.
fn run_seeds<S: Summary>(
    extent: &Extent,
    one: &(impl Fn(u64) -> Verdict<S> + Sync),
    mut take: impl FnMut(u64, Verdict<S>) -> bool,
) {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let results = Mutex::new(std::collections::BTreeMap::new());
    let batches = extent.seeds.div_ceil(BATCH);
    // A panic is a finding like any other: it is reported with its seed, not as it happens.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let batch = next.fetch_add(1, Ordering::Relaxed);
                    if batch >= batches || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let offsets = batch * BATCH..extent.seeds.min((batch + 1) * BATCH);
                    let verdicts: Vec<(u64, Verdict<S>)> = offsets
                        .map(|offset| {
                            let seed = extent.seed.wrapping_add(offset);
                            let verdict = run_seed(seed, one);
                            done.fetch_add(1, Ordering::Relaxed);
                            (seed, verdict)
                        })
                        .collect();
                    if let Ok(mut results) = results.lock() {
                        results.insert(batch, verdicts);
                    }
                }
            });
        }
        let mut progress = Progress::new(extent.seeds);
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

fn run_seed<S: Summary>(seed: u64, one: &impl Fn(u64) -> Verdict<S>) -> Verdict<S> {
    catch_unwind(AssertUnwindSafe(|| one(seed))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
        Err(format!("seed {seed:#x}: panic: {text}"))
    })
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
