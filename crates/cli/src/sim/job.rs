//! A scenario with training jobs: runs them, and tells their life.

mod csv;
mod json;
mod recorded;
mod screen;
mod watch;

use std::io::Write;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use railnet_core::Digest;
use railnet_core::event::NoSink;
use railnet_formats::run_file::{Budget, Recorder};
use railnet_sim::{
    Fidelity, JobObserver, JobProgress, JobSettings, JobsOutcome, Run, RunError, Scenario,
    run_jobs_to_failure, run_jobs_with,
};
use railnet_topology::FabricGraph;
use serde_json::Value;

use super::beside::{self, Beside};
use super::outputs::Outputs;
use super::problem::File;
use super::{Arguments, failure, record, report, series};
use crate::careful::{self, Notice};
use crate::files::Output;
use crate::interrupt::Interrupt;
use crate::{Outcome, Usage};
use watch::JobMonitor;

/// The job that runs where nothing else is said.
pub(super) const BUILT_IN: &str = crate::shipped::text("life-of-a-job-small");

/// Runs a job and prints its screen.
pub(super) fn tell(file: &File, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let mut monitor = JobMonitor::new(None, None, crate::wire::Wire::Values, &file.scenario)?;
    let graph = railnet_sim::graph(&file.scenario)?;
    let recorder = Recorder::new(&graph, BUILT_IN_BUDGET).of_job();
    let beside = Beside::transport(file, BESIDE_BUDGET, |_| Ok(()));
    let run = || {
        let settings = JobSettings { observer: Some(&mut monitor), ..JobSettings::default() };
        run_jobs_with(&file.scenario, recorder, settings)
    };
    let (found, other) = beside::together(run, beside.as_ref());
    monitor.finish()?;
    let (outcome, recorder) = found?;
    let wall_s = began.elapsed().as_secs_f64();
    screen::print(file, &outcome, wall_s, false, out)?;
    if !outcome.is_partial {
        let run = record::jobs(file, &graph, (&outcome, None), wall_s, recorder)?;
        let mut run = beside::joined(run, beside.as_ref(), other)?;
        run.others.extend(beside::congested(&run, BESIDE_BUDGET));
        let written = own_report(&outcome.digest).and_then(|output| {
            let name = output.name().to_owned();
            output.write(|file| file.write_all(crate::view::report(&run).as_bytes()))?;
            Ok(name)
        });
        match written {
            Ok(name) => writeln!(out, "  {:<23}{}{}", "Report", name.display(), beside::line(&run))?,
            Err(error) => {
                out.flush()?;
                crate::report(&format!("error: no report: {error:#}"));
                return Ok(Outcome::CheckFailed);
            }
        }
    }
    Ok(verdict(&outcome))
}

/// Names that are tried for the report of the built-in job in one directory.
const REPORT_NAMES: u32 = 20;

/// Claims a file for the report of the built-in job. The same report under this user's name is replaced; where its name is
/// another user's or another run's, the next one is taken, and the current directory where none is left.
fn own_report(digest: &railnet_core::RunDigest) -> anyhow::Result<Output> {
    let user = rustix::process::geteuid().as_raw();
    let directories = [std::env::temp_dir(), PathBuf::from(".")];
    let mut refused = None;
    for (directory, number) in directories.iter().flat_map(|one| (1..=REPORT_NAMES).map(move |n| (one, n))) {
        let more = if number == 1 { String::new() } else { format!("-{number}") };
        let path = directory.join(format!("railnet-life-of-a-job-{user}-{digest:?}{more}.html"));
        let is_others =
            std::fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file() || there.uid() != user);
        if is_others {
            continue;
        }
        match Output::claim(&path, true) {
            Ok(output) => return Ok(output),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| anyhow::anyhow!("its names are all taken")))
}

/// Enough packets to look at, and soon written.
const BUILT_IN_BUDGET: Budget = Budget { packets: 4_000, rows: 100_000 };

/// Those beside it are looked at less closely.
const BESIDE_BUDGET: Budget = Budget { packets: 1_000, rows: 30_000 };

/// A run that was stopped is none that succeeded.
const fn verdict(outcome: &JobsOutcome) -> Outcome {
    if outcome.is_partial { Outcome::CheckFailed } else { Outcome::Done }
}

pub(super) fn run(
    arguments: &Arguments,
    file: &File,
    beside: Option<&Beside>,
    mut outputs: Outputs,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    refuse(arguments, &file.scenario)?;
    warn(file, !arguments.no_memo, arguments.record.is_on())?;
    let began = Instant::now();
    let mut monitor =
        JobMonitor::new(Some(&arguments.capture), outputs.pcap.take(), arguments.wire, &file.scenario)?;
    let (result, other) = beside::together(|| run_watched(arguments, file, &mut monitor), beside);
    let result = result?;
    let captured = monitor.finish()?;
    let (outcome, failure, recorder) = match result {
        Ok(found) => found,
        Err(RunError::Scenario(error)) => return Err(file.problem(error)),
        Err(error) => return Err(anyhow::anyhow!(failure::words(&error))),
    };
    let wall_s = began.elapsed().as_secs_f64();
    if let Some(target) = outputs.json.take() {
        target.write(out, &whole(file, &outcome, failure.as_ref(), wall_s))?;
    }
    if let Some(tables) = &mut outputs.tables {
        csv::write(tables, &outcome)?;
        if let Some(network) = &outcome.network {
            report::write_csv(tables, network, report::Window::whole(network))?;
            if let Some(sampled) = &network.series {
                series::write_csv(tables, network, sampled)?;
            }
        }
    }
    if let Some(error) = &failure {
        failure::tell(error, out);
    } else if !arguments.is_quiet() {
        screen::print(file, &outcome, wall_s, arguments.verbose, out)?;
        if let Some(written) = &captured {
            written.print(out)?;
        }
    }
    if let Some((graph, recorder)) = recorder {
        let run = record::jobs(file, &graph, (&outcome, failure.as_ref()), wall_s, recorder)?;
        outputs.deliver(beside::joined(run, beside, other)?, out, arguments.is_quiet())?;
    }
    Ok(verdict(&outcome))
}

/// Servers for each thread: with fewer, threads wait for each other longer than they work.
const SERVERS_EACH: u32 = 8;

/// Threads that are used where nobody asks for more.
pub(super) fn useful_threads(scenario: &Scenario) -> u32 {
    let servers = scenario.servers().map_or(1, |cluster| cluster.nodes);
    crate::cores::threads((servers / SERVERS_EACH).max(1) as usize) as u32
}

/// What came of jobs, why they failed where they did, and what was recorded of them where that is asked for.
type Watched = (JobsOutcome, Option<RunError>, Option<(FabricGraph, Recorder)>);

fn run_watched(
    arguments: &Arguments,
    file: &File,
    monitor: &mut JobMonitor<'_>,
) -> anyhow::Result<Result<Watched, RunError>> {
    let memo = !arguments.no_memo;
    let threads = arguments.threads.map_or_else(|| useful_threads(&file.scenario), NonZeroU32::get);
    if !arguments.record.is_on() {
        let settings = JobSettings { memo, threads, observer: Some(monitor) };
        let found = run_jobs_to_failure(&file.scenario, NoSink, settings);
        return Ok(found.map(|(outcome, _, failure)| (outcome, failure, None)));
    }
    let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
    let recorder = Recorder::new(&graph, arguments.record.budget()).of_job();
    // What is recorded has to come in order: one thread.
    let settings = JobSettings { memo, threads: 1, observer: Some(monitor) };
    let found = run_jobs_to_failure(&file.scenario, recorder, settings);
    Ok(found.map(|(outcome, recorder, failure)| (outcome, failure, Some((graph, recorder)))))
}

/// The screen of a job that has run.
pub(super) fn screen_of(file: &File, outcome: &JobsOutcome, wall_s: f64) -> anyhow::Result<String> {
    let mut text = Vec::new();
    screen::print(file, outcome, wall_s, false, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// All of it for programs.
pub(super) fn whole(file: &File, outcome: &JobsOutcome, failure: Option<&RunError>, wall_s: f64) -> Value {
    let mut value = json::whole(file, outcome, wall_s);
    if let Some(error) = failure {
        value["error"] = failure::object(error);
    }
    value
}

/// What came of a job in a line, for sweeps.
#[derive(serde::Serialize, serde::Deserialize, Clone)]
pub(super) struct Totals {
    /// The job that took longest, where there are several.
    name: String,
    pub(super) step_us: f64,
    pub(super) total_us: f64,
    pub(super) compute_us: f64,
    pub(super) exposed_us: f64,
    pub(super) busy: f64,
    pub(super) mfu: f64,
    pub(super) tokens_per_s: f64,
    /// Why packets may differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) caveats: Vec<Notice>,
}

/// Goes on until somebody stops it.
struct Until<'a>(&'a Interrupt);

impl JobObserver<NoSink> for Until<'_> {
    fn stop(&self) -> Option<Arc<AtomicBool>> {
        Some(self.0.flag())
    }

    fn observe(&mut self, _run: &mut Run<(Digest, NoSink)>, _progress: &JobProgress) -> bool {
        !self.0.is_set()
    }

    fn observe_baseline(&mut self, _progress: &JobProgress) -> bool {
        !self.0.is_set()
    }
}

/// Runs the jobs of a scenario on one thread; nothing where it is asked to stop before their end.
pub(crate) fn run_whole(
    scenario: &Scenario,
    memo: bool,
    interrupt: &Interrupt,
) -> Result<Option<JobsOutcome>, RunError> {
    let mut until = Until(interrupt);
    let settings = JobSettings { memo, threads: 1, observer: Some(&mut until) };
    let (outcome, _) = run_jobs_with(scenario, NoSink, settings)?;
    Ok((!outcome.is_partial).then_some(outcome))
}

/// Runs the jobs of a point of a sweep; nothing where it is asked to stop.
pub(super) fn totals(
    scenario: &Scenario,
    memo: bool,
    interrupt: &Interrupt,
) -> Result<Option<(Totals, railnet_core::RunDigest)>, RunError> {
    let Some(outcome) = run_whole(scenario, memo, interrupt)? else { return Ok(None) };
    let longest = outcome.jobs.iter().max_by_key(|job| job.total());
    let job = longest.ok_or_else(|| RunError::Collective("there is no job".to_owned()))?;
    let first = &job.first.outcome;
    let totals = Totals {
        name: job.placed.resolved.name.clone(),
        step_us: first.step.as_us_f64(),
        total_us: job.total().as_us_f64(),
        compute_us: first.average.compute().as_us_f64(),
        exposed_us: first.average.exposed_total().as_us_f64(),
        busy: first.utilisation,
        mfu: first.mfu,
        tokens_per_s: first.tokens,
        caveats: careful::notices_of_job(&outcome, job),
    };
    Ok(Some((totals, outcome.digest)))
}

/// Bytes of calls across servers that a second of wall time is enough for: four to twelve gigabytes on the machines of
/// docs/performance.md.
const ACROSS_PER_SECOND: f64 = 8e9;
/// Those inside servers, where they are carried out.
const INSIDE_PER_SECOND: f64 = 4e11;
/// And where most of them are memoised.
const REMEMBERED_PER_SECOND: f64 = 5e12;
/// What one waits for without being told.
const PATIENCE_S: f64 = 15.0;

/// How many times as long a run takes that is recorded: 2 to 3.5 on the machines of docs/performance.md, with every collective
/// carried out and one thread in both.
const RECORDED: f64 = 3.5;

/// Says how long a run with packets will take, where that is long.
pub(crate) fn warn(file: &File, memo: bool, is_recorded: bool) -> anyhow::Result<()> {
    if let Some(text) = estimate(file, memo, is_recorded)? {
        crate::report(&text);
    }
    Ok(())
}

fn estimate(file: &File, memo: bool, is_recorded: bool) -> anyhow::Result<Option<String>> {
    let seconds = expected_s(file, memo, is_recorded)?;
    if seconds <= PATIENCE_S {
        return Ok(None);
    }
    let recording = match is_recorded {
        true if memo => format!(
            " (recording needs the packets of every collective, so none is memoised: without it, about {})",
            about(expected_s(file, memo, false)?)
        ),
        true => " with recording".to_owned(),
        false => String::new(),
    };
    Ok(Some(format!(
        "packet by packet this takes about {} of wall time{recording}; Ctrl-C prints what is known by then, \
         `fidelity = \"analytic\"` takes seconds",
        about(seconds)
    )))
}

/// Whether a job that is recorded takes no longer than one likes to wait.
pub(super) fn is_soon_over(file: &File) -> anyhow::Result<bool> {
    Ok(file.scenario.has_jobs() && expected_s(file, false, true)? <= PATIENCE_S)
}

/// How long a run will take, from the bytes that it moves.
fn expected_s(file: &File, memo: bool, is_recorded: bool) -> anyhow::Result<f64> {
    if file.scenario.fidelity != Fidelity::Packet {
        return Ok(0.0);
    }
    let (inside, across) = file.scenario.job_bytes().map_err(|error| file.problem(error))?;
    let runs = if file.scenario.faults.is_empty() { 1.0 } else { 2.0 };
    let rate = if memo && !is_recorded { REMEMBERED_PER_SECOND } else { INSIDE_PER_SECOND };
    let recorded = if is_recorded { RECORDED } else { 1.0 };
    Ok(recorded * runs * (across as f64 / ACROSS_PER_SECOND + inside as f64 / rate))
}

/// How long, roughly.
fn about(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{:.0} s", seconds.max(1.0)),
        seconds if seconds < 5_400.0 => format!("{:.0} minutes", seconds / 60.0),
        seconds => format!("{:.0} hours", seconds / 3_600.0),
    }
}

/// What needs packets, where there are none.
fn refuse(arguments: &Arguments, scenario: &Scenario) -> anyhow::Result<()> {
    if scenario.fidelity == Fidelity::Packet {
        return Ok(());
    }
    let given = [("--sample", arguments.sample.is_some()), ("--pcap", arguments.capture.is_on())];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            Err(Usage(format!("{option} looks at packets, and formulas send none: `fidelity = \"packet\"`"))
                .into())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_counts_recording_and_says_that_nothing_is_memoised() {
        let file = File::read(std::path::Path::new("llama-70b-256")).unwrap();
        let of = |memo, is_recorded| expected_s(&file, memo, is_recorded).unwrap();
        assert!(of(true, true) >= RECORDED * of(true, false));
        assert!((of(true, true) - of(false, true)).abs() < 1e-9, "recording carries out every collective");
        let told = estimate(&file, true, true).unwrap().unwrap();
        assert!(told.contains("none is memoised: without it, about"), "{told}");
        assert!(!estimate(&file, true, false).unwrap().unwrap().contains("memoised"));
    }
}
