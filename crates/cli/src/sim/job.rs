//! A scenario with training jobs: runs them, and tells their life.

mod json;
mod screen;

use std::io::Write;
use std::time::Instant;

use railnet_sim::{RunError, run_jobs};

use super::problem::File;
use super::{Arguments, failed, report};
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
    let began = Instant::now();
    let outcome = match run_jobs(&file.scenario) {
        Ok(outcome) => outcome,
        Err(RunError::Scenario(error)) => return Err(file.problem(error)),
        Err(error) => return failed(arguments, file, error, out),
    };
    let wall_s = began.elapsed().as_secs_f64();
    if let Some(path) = &arguments.json {
        report::write_json(path, out, &json::whole(file, &outcome, wall_s))?;
    }
    if !arguments.is_quiet() {
        screen::print(file, &outcome, wall_s, arguments.verbose, out)?;
    }
    Ok(Outcome::Done)
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
