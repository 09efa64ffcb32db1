//! A scenario with training jobs: runs them, and tells their life.

mod json;
mod screen;

use std::io::Write;
use std::time::Instant;

use railnet_core::event::NoSink;
use railnet_formats::run_file::Recorder;
use railnet_sim::{Fidelity, JobSettings, JobsOutcome, RunError, run_jobs, run_jobs_with};
use railnet_topology::FabricGraph;
use serde_json::Value;

use super::problem::File;
use super::{Arguments, failed, record};
use crate::{Outcome, Usage};

/// The job that runs where nothing else is said.
pub(super) const BUILT_IN: &str = include_str!("../../../../scenarios/life-of-a-job-racks.toml");

/// Runs a job and prints its screen.
pub(super) fn tell(file: &File, out: &mut dyn Write) -> anyhow::Result<()> {
    let began = Instant::now();
    let outcome = run_jobs(&file.scenario)?;
    screen::print(file, &outcome, began.elapsed().as_secs_f64(), false, out)
}

pub(super) fn run(arguments: &Arguments, file: &File, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    refuse(arguments)?;
    warn(file)?;
    let began = Instant::now();
    let (outcome, recorder) = match run_watched(arguments, file)? {
        Ok(found) => found,
        Err(RunError::Scenario(error)) => return Err(file.problem(error)),
        Err(error) => return failed(arguments, file, error, out),
    };
    let wall_s = began.elapsed().as_secs_f64();
    if let Some(path) = &arguments.json {
        super::report::write_json(path, out, &json::whole(file, &outcome, wall_s))?;
    }
    if !arguments.is_quiet() {
        screen::print(file, &outcome, wall_s, arguments.verbose, out)?;
    }
    if let Some((graph, recorder)) = recorder {
        let run = record::jobs(file, &graph, &outcome, wall_s, recorder)?;
        arguments.record.deliver(file, run, out, arguments.is_quiet())?;
    }
    Ok(Outcome::Done)
}

/// What came of jobs, and what was recorded of them where that is asked for.
type Watched = (JobsOutcome, Option<(FabricGraph, Recorder)>);

fn run_watched(arguments: &Arguments, file: &File) -> anyhow::Result<Result<Watched, RunError>> {
    if !arguments.record.is_on() {
        let settings = JobSettings { memo: !arguments.no_memo, watch: None };
        let found = run_jobs_with(&file.scenario, NoSink, settings);
        return Ok(found.map(|(outcome, _)| (outcome, None)));
    }
    let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
    let recorder = Recorder::new(&graph, arguments.record.budget()).of_job();
    let found = record::record_jobs(file, &graph, recorder);
    Ok(found.map(|(outcome, recorder)| (outcome, Some((graph, recorder)))))
}

/// All of it for programs.
pub(super) fn report(file: &File, outcome: &JobsOutcome, wall_s: f64) -> Value {
    json::whole(file, outcome, wall_s)
}

/// Bytes of calls that a second of wall time is enough for: four to twelve gigabytes on the machines of docs/performance.md,
/// more where they stay inside servers.
const BYTES_PER_SECOND: f64 = 8e9;
/// What one waits for without being told.
const PATIENCE_S: f64 = 15.0;

/// Says how long a run with packets will take, where that is long.
pub(crate) fn warn(file: &File) -> anyhow::Result<()> {
    if file.scenario.fidelity == Fidelity::Analytic {
        return Ok(());
    }
    let bytes = file.scenario.job_bytes().map_err(|error| file.problem(error))?;
    let runs = if file.scenario.faults.is_empty() { 1.0 } else { 2.0 };
    let seconds = bytes as f64 * runs / BYTES_PER_SECOND;
    if seconds > PATIENCE_S {
        let about = if seconds < 90.0 {
            format!("{seconds:.0} s")
        } else if seconds < 5_400.0 {
            format!("{:.0} minutes", seconds / 60.0)
        } else {
            format!("{:.0} hours", seconds / 3_600.0)
        };
        crate::report(&format!(
            "packet by packet this takes about {about} of wall time; `fidelity = \"analytic\"` takes seconds"
        ));
    }
    Ok(())
}

/// What is for traffic and collectives only.
fn refuse(arguments: &Arguments) -> anyhow::Result<()> {
    let given = [
        ("--sweep", !arguments.sweep.is_empty()),
        ("--csv", arguments.csv.is_some()),
        ("--sample", arguments.sample.is_some()),
        ("--pcap", arguments.capture.is_on()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Usage(format!(
            "{option} is for traffic and collectives: a job has its screen, --verbose and --json"
        ))
        .into()),
        None => Ok(()),
    }
}
