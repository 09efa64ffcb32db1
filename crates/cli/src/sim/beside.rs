//! A second run beside the one that is looked at: the same scenario with one key changed, at the same time on another core.

use std::time::Instant;

use railnet_core::event::NoSink;
use railnet_core::{Digest, Span};
use railnet_formats::run_file::RunFile;
use railnet_sim::{JobProgress, JobSettings, JobWatch, Run, run_jobs_to_failure};
use serde_json::{Value, json};

use super::problem::File;
use super::record::{changed, words};
use super::{finish, job, report};
use crate::cores::{self, Work};
use crate::interrupt::Interrupt;
use crate::words::time;

/// Virtual time between two looks at whether it shall go on.
const STEP: Span = Span::from_us(100);
const TRANSPORT: &str = "cluster.transport";

/// What is run beside: the key that differs, its value there, and all of it.
pub(super) struct Beside {
    key: String,
    value: String,
    file: File,
    /// Whether somebody asked for it: one that nobody asked for may be missing.
    is_asked: bool,
}

impl Beside {
    /// A scenario with one key changed; `prepare` gives it what the command line says besides.
    pub(super) fn new(
        file: &File,
        key: &str,
        value: &str,
        prepare: impl FnOnce(&mut File) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut other = changed(&file.path, &file.text, key, value)?;
        prepare(&mut other)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned(), file: other, is_asked: true })
    }

    /// The same over TCP, or over RDMA where it is over TCP; none where it cannot be.
    pub(super) fn transport(
        file: &File,
        prepare: impl FnOnce(&mut File) -> anyhow::Result<()>,
    ) -> Option<Self> {
        let value = if file.scenario.uses_tcp() { "rdma" } else { "tcp" };
        let found = Self::new(file, TRANSPORT, value, prepare);
        let found = found.inspect_err(|error| crate::report(&missing(value, error))).ok()?;
        Some(Self { is_asked: false, ..found })
    }

    /// What the command says of it, in full; nothing where somebody stopped it.
    fn run(&self) -> anyhow::Result<Option<Value>> {
        let (began, interrupt) = (Instant::now(), Interrupt::catch()?);
        let file = &self.file;
        if file.scenario.has_jobs() {
            let mut until = Until(&interrupt);
            let settings = JobSettings { memo: true, threads: 1, watch: Some(&mut until) };
            let (outcome, _, failure) =
                run_jobs_to_failure(&file.scenario, NoSink, settings).map_err(|error| words(file, error))?;
            let report = job::whole(file, &outcome, failure.as_ref(), began.elapsed().as_secs_f64());
            return Ok(Some(report).filter(|_| !interrupt.is_set()));
        }
        let mut run =
            Run::new(&file.scenario, (Digest::new(), NoSink)).map_err(|error| file.problem(error))?;
        while !run.advance(STEP) {
            if interrupt.is_set() {
                return Ok(None);
            }
        }
        let (finished, _) = finish(run, Run::end, file.scenario.seed, began);
        Ok(Some(serde_json::to_value(report::whole(file, &finished))?))
    }
}

fn missing(value: &str, error: &anyhow::Error) -> String {
    format!("nothing over {} beside it: {error:#}", value.to_uppercase())
}

/// Looks on until somebody stops it.
pub(super) struct Until<'a>(pub(super) &'a Interrupt);

impl JobWatch<NoSink> for Until<'_> {
    fn look(&mut self, _run: &mut Run<(Digest, NoSink)>, _progress: &JobProgress) -> bool {
        !self.0.is_set()
    }

    fn look_beside(&mut self, _progress: &JobProgress) -> bool {
        !self.0.is_set()
    }
}

/// What came of the one beside.
pub(super) type Came = Option<anyhow::Result<Option<Value>>>;

/// Runs one, and the other beside it.
pub(super) fn together<T: Send>(run: impl FnOnce() -> T + Send, beside: Option<&Beside>) -> (T, Came) {
    let Some(beside) = beside else { return (run(), None) };
    let (mut this, mut other) = (None, None);
    let work: Vec<Work<'_, ()>> =
        vec![Box::new(|| this = Some(run())), Box::new(|| other = Some(beside.run()))];
    cores::all(work);
    (this.expect("all work is done"), other)
}

/// A run with what came of the one beside it.
pub(super) fn joined(mut run: RunFile, beside: Option<&Beside>, other: Came) -> anyhow::Result<RunFile> {
    let (Some(Beside { key, value, is_asked, .. }), Some(other)) = (beside, other) else { return Ok(run) };
    match other {
        Ok(None) => {}
        Ok(Some(report)) => {
            let name = format!("with {key} = {value}");
            run.meta["other"] = json!({ "name": name, "key": key, "value": value, "report": report });
        }
        Err(error) if *is_asked => return Err(error),
        Err(error) => crate::report(&missing(value, &error)),
    }
    Ok(run)
}

/// In a line: a step of the job beside, and how many times as long it is.
pub(super) fn line(run: &RunFile) -> String {
    let step = |report: &Value| report["jobs"][0]["step_us"].as_f64().filter(|step| *step > 0.0);
    let other = &run.meta["other"];
    let (Some(this), Some(there)) = (step(&run.meta["report"]), step(&other["report"])) else {
        return String::new();
    };
    let value = other["value"].as_str().unwrap_or_default().to_uppercase();
    let took = time(Span::from_ps((there * 1e6) as u64));
    format!("   with the same over {value} beside it: {took} a step, {:.2} times as long", there / this)
}
