//! `railnet storm verbs`: random programs of C calls in several threads and processes, over packets that are lost, doubled,
//! overtaken and damaged.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Context as _;
use railnet_core::{Fold, Random, RunDigest};
use railnet_live::roce::{Faults, Settings};
use railnet_verbs::storm::{Program, Report, play};

use super::Extent;
use crate::Outcome;
use crate::rdma::verbs_library;

const EXAMPLES: &str = "\
Examples:
  railnet storm verbs --seeds 100                    every other one over a bad wire
  railnet storm verbs --seeds 100 --faults drop=0.1  one packet in ten is lost there
  railnet storm verbs --seeds 1 --seed 0x5eed        one seed again

A seed is up to three processes of up to three threads on 127.0.0.1, which open
libibverbs.so.1 as any program does: RC, UC and UD, shared receive queues, both ways to post,
ibv_poll_cq, ibv_cq_ex and completion channels, several threads on one queue pair and on one
completion queue, objects that come and go, calls that must be refused, connections that end
in an error, processes that are killed. Every completion must come once, with its status, and
every byte is compared. A seed decides the calls, the data and the outcome; when threads run,
and which packets are lost, it does not.";

/// What happens to packets of every other seed unless told otherwise.
const FAULTS: &str = "drop=0.02,duplicate=0.02,reorder=0.03,corrupt=0.02";
/// How long a process may say nothing: longer than it waits for any completion.
const LIMIT: Duration = Duration::from_secs(90);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    extent: Extent,
    /// What happens to packets of odd seeds, by share of what is sent
    #[arg(long, value_name = "FAULTS", default_value = FAULTS)]
    faults: Faults,
    /// Be one process of the seed
    #[arg(long, hide = true)]
    process: Option<u32>,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let library = verbs_library()?;
    if let Some(process) = arguments.process {
        return be_process(&library, arguments.extent.seed, process);
    }
    let replay =
        format!("railnet storm verbs --faults {}", Faults { seed: Faults::NONE.seed, ..arguments.faults });
    let one = |seed| storm(seed, arguments.faults).map_err(|error| format!("seed {seed:#x}: {error:#}"));
    super::storm::<Totals>(&arguments.extent, &replay, one, out)
}

fn be_process(library: &Path, seed: u64, process: u32) -> anyhow::Result<Outcome> {
    // This command holds the lock of its standard output; threads write there.
    let output = || std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match play(library, seed, process, BufReader::new(std::io::stdin()), output()?) {
        Ok(()) => Ok(Outcome::Done),
        Err(why) => {
            writeln!(output()?, "failed {why}")?;
            Ok(Outcome::CheckFailed)
        }
    }
}

/// What a process of a seed did.
enum Event {
    Line(String),
    Ended,
}

/// A process of a seed. It is killed when it is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(seed: u64, number: u32, faults: Faults, events: Sender<(u32, Event)>) -> anyhow::Result<Self> {
        let command: PathBuf = std::env::current_exe().context("cannot tell where this command is")?;
        let mut child = Command::new(command)
            .args(["storm", "verbs", "--seed", &seed.to_string(), "--process", &number.to_string()])
            .env(Settings::ADDRESSES, "127.0.0.1")
            .env(Settings::FAULTS, faults.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process")?;
        let input = child.stdin.take().context("a process without standard input")?;
        let output = child.stdout.take().context("a process without standard output")?;
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = events.send((number, Event::Line(line)));
            }
            let _ = events.send((number, Event::Ended));
        });
        Ok(Self { child, input })
    }
}

/// The processes of a seed, and what they write.
struct Processes {
    running: Vec<Option<Process>>,
    events: Receiver<(u32, Event)>,
}

impl Processes {
    /// The next line of every process that runs.
    fn lines(&mut self) -> anyhow::Result<Vec<(usize, String)>> {
        let mut lines: Vec<(usize, String)> = Vec::new();
        while lines.len() < self.running.iter().flatten().count() {
            let Ok((number, event)) = self.events.recv_timeout(LIMIT) else {
                anyhow::bail!("processes wait for each other: {} of them said nothing for {LIMIT:?}", {
                    self.running.iter().flatten().count() - lines.len()
                })
            };
            let number = number as usize;
            if self.running[number].is_none() {
                // It was killed.
                continue;
            }
            match event {
                Event::Line(line) => match line.strip_prefix("failed ") {
                    Some(why) => anyhow::bail!("process {number}: {why}"),
                    None => lines.push((number, line)),
                },
                // After its report it ends.
                Event::Ended if lines.iter().any(|(one, _)| *one == number) => {}
                Event::Ended => anyhow::bail!("process {number} ended early"),
            }
        }
        lines.sort();
        Ok(lines)
    }

    fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        for process in self.running.iter_mut().flatten() {
            writeln!(process.input, "{line}").context("a process does not listen")?;
        }
        Ok(())
    }
}

/// Runs the processes of one seed.
fn storm(seed: u64, faults: Faults) -> anyhow::Result<Summary> {
    let program = Program::of(seed);
    let faults = if seed % 2 == 1 { Faults { seed, ..faults } } else { Faults::NONE };
    let (sender, events) = channel();
    let running = (0..program.processes)
        .map(|number| Process::start(seed, number, faults, sender.clone()).map(Some))
        .collect::<anyhow::Result<_>>()?;
    let mut processes = Processes { running, events };
    let ends = processes.lines()?;
    let ends: Vec<&str> = ends.iter().filter_map(|(_, line)| line.strip_prefix("ends ")).collect();
    processes.tell(&ends.join(" "))?;
    let mut random = Random::stream(seed, "verbs storm kill", 0);
    let mut fold = Fold::new();
    let mut summary = Summary::of(&program);
    loop {
        let lines = processes.lines()?;
        let Some(meeting) = lines.first().and_then(|(_, line)| line.strip_prefix("meet ")) else {
            for (number, line) in &lines {
                let report =
                    Report::read(line).with_context(|| format!("process {number} wrote {line:?}"))?;
                fold.push(*number as u64);
                fold.push((report.digest >> 64) as u64);
                fold.push(report.digest as u64);
                summary.calls += report.calls;
                summary.bytes += report.bytes;
                summary.unreliable += report.datagrams;
            }
            summary.digest = RunDigest::from_u128(fold.finish_wide());
            return Ok(summary);
        };
        if let Some((number, line)) = lines.iter().find(|(_, line)| line[5..] != *meeting) {
            anyhow::bail!("process {number} is at {line:?}, others are at {meeting:?}");
        }
        processes.tell("go")?;
        if let Some(victim) = program.kills_after(meeting) {
            std::thread::sleep(Duration::from_micros(random.below(3000)));
            processes.running[victim as usize] = None;
        }
    }
}

/// What came of one seed.
struct Summary {
    processes: u32,
    threads: u32,
    works: u64,
    failures: u64,
    kills: bool,
    calls: u64,
    bytes: u64,
    unreliable: u64,
    digest: RunDigest,
}

impl Summary {
    fn of(program: &Program) -> Self {
        Self {
            processes: program.processes,
            threads: program.threads,
            works: program.works(),
            failures: program.failures(),
            kills: program.kills(),
            calls: 0,
            bytes: 0,
            unreliable: 0,
            digest: RunDigest::from_u128(0),
        }
    }
}

impl super::Summary for Summary {
    fn digest(&self) -> RunDigest {
        self.digest
    }

    fn line(&self) -> String {
        let Self { processes, threads, works, calls, bytes, failures, digest, .. } = self;
        let killed = if self.kills { ", one process killed" } else { "" };
        format!(
            "{processes} processes of {threads} threads, {works} work requests, {calls} calls, {bytes} bytes, \
             {failures} connections ended in errors{killed}, digest {digest}"
        )
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    processes: u64,
    threads: u64,
    kills: u64,
    works: u64,
    calls: u64,
    bytes: u64,
    failures: u64,
    unreliable: u64,
}

impl super::Totals for Totals {
    type One = Summary;

    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.processes += u64::from(summary.processes);
        self.threads += u64::from(summary.processes * summary.threads);
        self.kills += u64::from(summary.kills);
        self.works += summary.works;
        self.calls += summary.calls;
        self.bytes += summary.bytes;
        self.failures += summary.failures;
        self.unreliable += summary.unreliable;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let Self { seeds, processes, threads, kills, works, calls, bytes, failures, unreliable } = self;
        writeln!(out, "seeds           {seeds} passed, {failed} failed")?;
        writeln!(out, "processes       {processes} of {threads} threads, {kills} killed")?;
        writeln!(out, "calls           {calls} of the library")?;
        writeln!(out, "work requests   {works}, {unreliable} of them arrived over UC and UD")?;
        writeln!(out, "data            {bytes} bytes, all compared")?;
        writeln!(out, "errors          {failures} connections ended in one, as they should")
    }
}
