//! A second run beside the one that is looked at: the same scenario with one key changed, at the same time on another core.

use std::path::Path;

use railnet_core::Span;
use railnet_formats::run_file::{Budget, RunFile};
use serde_json::{Value, json};

use super::problem::File;
use super::record::{change, changed, run_again};
use crate::cores::{self, Work};
use crate::interrupt::Interrupt;
use crate::words::time;

const TRANSPORT: &str = "cluster.transport";
/// Congestion that can be looked at where a job has none: many senders and one receiver.
const CONGESTED: (&str, &str) =
    ("scenarios/incast.toml", include_str!("../../embedded/scenarios/incast.toml"));
const CONGESTED_NAME: &str = "another scenario, with congestion: 16 senders, one receiver";

/// What is run beside: the key that differs, its value there, and all of it.
pub(super) struct Beside {
    key: String,
    value: String,
    file: File,
    budget: Budget,
    /// Whether somebody asked for it: one that nobody asked for may be missing.
    is_asked: bool,
}

impl Beside {
    /// A scenario with one key changed; `prepare` gives it what the command line says besides.
    pub(super) fn new(
        file: &File,
        (key, value): (&str, &str),
        budget: Budget,
        prepare: impl FnOnce(&mut File) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut other = changed(&file.path, &file.text, key, value)?;
        prepare(&mut other)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned(), file: other, budget, is_asked: true })
    }

    /// The same over TCP, or over RDMA where it is over TCP; none where it cannot be.
    pub(super) fn transport(
        file: &File,
        budget: Budget,
        prepare: impl FnOnce(&mut File) -> anyhow::Result<()>,
    ) -> Option<Self> {
        let value = if file.scenario.uses_tcp() { "rdma" } else { "tcp" };
        let found = Self::new(file, (TRANSPORT, value), budget, prepare);
        let found = found.inspect_err(|error| crate::report(&missing(value, error))).ok()?;
        Some(Self { is_asked: false, ..found })
    }

    /// All of it; nothing where somebody stopped it.
    fn run(&self) -> anyhow::Result<Option<RunFile>> {
        let interrupt = Interrupt::catch()?;
        run_again(&self.file, self.budget, &|_| !interrupt.is_set())
    }
}

/// A run with congestion, for a page of one that has none; nothing where it has some, or cannot be run.
pub(super) fn congested(run: &RunFile, budget: Budget) -> Option<RunFile> {
    let network = run.meta["report"].get("network")?;
    let count = |name: &str| network[name].as_u64().unwrap_or(0);
    if count("marks") + count("pauses") + count("drops") > 0 {
        return None;
    }
    let (name, text) = CONGESTED;
    let file = File::of_table(Path::new(name), text.to_owned(), text.parse().ok()?).ok()?;
    let mut other = run_again(&file, budget, &|_| true).ok()??;
    other.meta["example"] = CONGESTED_NAME.into();
    Some(other)
}

fn missing(value: &str, error: &anyhow::Error) -> String {
    format!("nothing over {} beside it: {error:#}", value.to_uppercase())
}

/// What came of the one beside.
pub(super) type Came = Option<anyhow::Result<Option<RunFile>>>;

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
        Ok(Some(mut other)) => {
            let mut change = change(&run, key, value);
            change["asked"] = (*is_asked).into();
            let report = other.meta["report"].clone();
            run.meta["other"] =
                json!({ "name": change["name"], "key": key, "value": value, "report": report });
            other.meta["change"] = change;
            run.others.push(other);
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
