//! A scenario that a program asks about: no words on a command line, no terminal, no signals.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use railnet_core::event::{NoSink, Sink};
use railnet_core::{Digest, Span};
use railnet_formats::run_file::{Budget, Recorder, RunFile};
use railnet_sim::{
    Coupled, Fidelity, FlowLevelRun, JobObserver, JobProgress, JobSettings, JobsOutcome, Run, RunError,
    run_jobs_to_failure,
};
use railnet_topology::FabricGraph;
use serde_json::Value;

use super::problem::File;
use super::{
    Finished, failure, finish, flow_level, job, record, report, stop, summary, sweep, with_variables,
};
use crate::Usage;

/// Virtual time between two questions whether a run goes on.
const STEP: Span = Span::from_us(10);

/// Where a scenario is.
#[derive(Clone, Debug)]
pub enum Source {
    /// In a file, or the name of one that ships.
    Path(String),
    /// In this text, as a file would have it.
    Text(String),
    /// In a value that has the keys of the format.
    Value(Value),
}

/// What a program wants to know.
#[derive(Clone, Debug)]
pub struct Question {
    /// The scenario.
    pub source: Source,
    /// Keys with dots in them, and the values that they have instead.
    pub changes: Vec<(String, Value)>,
    /// The seed, instead of the scenario's.
    pub seed: Option<u64>,
    /// The fidelity, instead of the scenario's.
    pub fidelity: Option<String>,
    /// The interval between samples of queues, rates and pauses, such as `10us`.
    pub sample: Option<String>,
    /// Whether identical collectives of a job are carried out once.
    pub memo: bool,
    /// Threads that share the packets of a job; as many as are useful without one.
    pub threads: Option<u32>,
    /// Packets that are kept of the run for the page, if it is recorded.
    pub recorded: Option<usize>,
}

impl Question {
    /// Nothing but what the scenario says.
    pub const fn new(source: Source) -> Self {
        Self {
            source,
            changes: Vec::new(),
            seed: None,
            fidelity: None,
            sample: None,
            memo: true,
            threads: None,
            recorded: None,
        }
    }

    fn budget(&self) -> Option<Budget> {
        self.recorded.map(|packets| Budget { packets, ..Budget::default() })
    }
}

/// What came of a run.
pub struct Answer {
    /// All of it, as `railnet sim --json` has it.
    pub json: String,
    /// What the command would print.
    pub screen: String,
    /// Why the run failed, if it did; all else is what was known by then.
    pub failure: Option<String>,
    /// What was recorded.
    pub(crate) recording: Option<RunFile>,
}

/// The text of a scenario, where it is in no file.
pub(crate) fn text(source: &Source) -> anyhow::Result<Option<String>> {
    match source {
        Source::Path(_) => Ok(None),
        Source::Text(text) => Ok(Some(text.clone())),
        Source::Value(value) => written(value).map(Some),
    }
}

/// Reads the scenario of a question.
pub(crate) fn read(question: &Question) -> anyhow::Result<File> {
    let mut file = match &question.source {
        Source::Path(path) => File::read(Path::new(path))?,
        source => File::of_text("scenario", text(source)?.unwrap_or_default())?,
    };
    if !question.changes.is_empty() {
        file = changed(&file, &question.changes)?;
    }
    if let Some(seed) = question.seed {
        file.scenario.seed = seed;
    }
    if let Some(name) = &question.fidelity {
        let fidelity =
            super::fidelity(name).map_err(|advice| Usage(format!("fidelity \"{name}\": {advice}")))?;
        file.scenario.set_fidelity(fidelity).map_err(|error| file.problem(error))?;
    }
    if let Some(text) = &question.sample {
        let interval = text.parse().map_err(|error| Usage(format!("sample \"{text}\": {error}")))?;
        file.scenario.set_sample(interval).map_err(|error| file.problem(error))?;
        if file.scenario.has_jobs() && file.scenario.fidelity != Fidelity::Packet {
            let what = "sample looks at packets, and formulas send none: fidelity = \"packet\"";
            return Err(Usage(what.to_owned()).into());
        }
    }
    with_variables(&mut file.scenario, None)?;
    Ok(file)
}

/// The keys of a value as the text of a scenario.
fn written(value: &Value) -> anyhow::Result<String> {
    let wrong = |why: String| Usage(format!("a scenario is a table of keys: {why}"));
    let table: toml::Table =
        serde_json::from_value(value.clone()).map_err(|error| wrong(error.to_string()))?;
    toml::to_string(&table).map_err(|error| wrong(error.to_string()).into())
}

/// The scenario of a file with keys changed; its text says so at its end.
fn changed(file: &File, changes: &[(String, Value)]) -> anyhow::Result<File> {
    let mut table: toml::Table = file.text.parse().context("it was just read")?;
    let mut text = format!("{}\n# Run with:\n", file.text.trim_end());
    for (key, value) in changes {
        let change = || format!("{key} = {value}");
        let new = toml::Value::try_from(value).map_err(|error| Usage(format!("{}: {error}", change())))?;
        let place = sweep::place(&mut table, key).map_err(|error| Usage(format!("{}: {error}", change())))?;
        *place = new;
        text.extend(["#   ", &change(), "\n"]);
    }
    let read = file.variant(table);
    let scenario = read.map_err(|error| {
        let named: Vec<String> = changes.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        file.problem(error).context(format!("with {}", named.join(", ")))
    })?;
    Ok(File { path: file.path.clone(), text, scenario })
}

/// Answers it. `goes_on` hears how far the run is, from 0 to 1, and says whether it goes on; else the answer is what is known by
/// then.
pub(crate) fn answer(question: &Question, goes_on: &dyn Fn(f64) -> bool) -> anyhow::Result<Answer> {
    let file = read(question)?;
    if file.scenario.has_jobs() { jobs(question, &file, goes_on) } else { traffic(question, &file, goes_on) }
}

/// A network in which transfers of another simulator start.
pub(crate) fn coupled(question: &Question) -> anyhow::Result<Coupled> {
    let file = read(question)?;
    Coupled::new(&file.scenario).map_err(|error| file.problem(error))
}

fn traffic(question: &Question, file: &File, goes_on: &dyn Fn(f64) -> bool) -> anyhow::Result<Answer> {
    let (finished, recording) = match question.budget() {
        Some(_) if file.scenario.fidelity == Fidelity::Flow => {
            let what = "there are no packets to record at flow fidelity; use fidelity = \"packet\"";
            return Err(Usage(what.to_owned()).into());
        }
        None if file.scenario.fidelity == Fidelity::Flow => {
            let part = |run: &FlowLevelRun| {
                let (unfinished, all) = run.unfinished();
                (all - unfinished) as f64 / all.max(1) as f64
            };
            match flow_level::run(&file.scenario, |run| goes_on(part(run))) {
                Err(RunError::Scenario(error)) => return Err(file.problem(error)),
                finished => (finished?, None),
            }
        }
        Some(budget) => {
            let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
            let (finished, recorder) = recorded_traffic(file, &graph, budget, goes_on)?;
            let run = record::traffic(file, &graph, &finished, recorder)?;
            (finished, Some(run))
        }
        None => (run_traffic(file, NoSink, |_| {}, |_| {}, goes_on)?.0, None),
    };
    let json = serde_json::to_string(&report::whole(file, &finished))?;
    let failed = finished.failure.as_ref().map(failure::words);
    let mut screen = Vec::new();
    match &failed {
        Some(words) => screen.extend_from_slice(words.as_bytes()),
        None => summary::print(file, &finished, &mut screen)?,
    }
    let screen = String::from_utf8_lossy(&screen).into_owned();
    Ok(Answer { json, screen, failure: failed, recording })
}

/// Runs traffic or collectives, with the frames of its links for the page.
pub(super) fn recorded_traffic(
    file: &File,
    graph: &FabricGraph,
    budget: Budget,
    goes_on: &dyn Fn(f64) -> bool,
) -> anyhow::Result<(Finished, Recorder)> {
    let recorder = Recorder::new(graph, budget);
    let begin = |run: &mut Run<(Digest, Recorder)>| record::tap(graph, run);
    let look = |run: &mut Run<(Digest, Recorder)>| record::take_frames(graph, run);
    run_traffic(file, recorder, begin, look, goes_on)
}

fn run_traffic<S: Sink>(
    file: &File,
    sink: S,
    begin: impl FnOnce(&mut Run<(Digest, S)>),
    look: impl Fn(&mut Run<(Digest, S)>),
    goes_on: &dyn Fn(f64) -> bool,
) -> anyhow::Result<(Finished, S)> {
    let (began, seed) = (Instant::now(), file.scenario.seed);
    let run = Run::new(&file.scenario, (Digest::new(), sink));
    let mut run = run.map_err(|error| file.problem(error))?;
    begin(&mut run);
    while !run.advance(STEP) {
        look(&mut run);
        let all = run.flows() + run.calls();
        let done = all - run.unfinished();
        if !goes_on(done as f64 / all.max(1) as f64) {
            let (finished, sink) = stop(run, seed, began);
            return Ok((Finished { partial: Some((done, all)), ..finished }, sink));
        }
    }
    look(&mut run);
    Ok(finish(run, Run::end, seed, began))
}

fn jobs(question: &Question, file: &File, goes_on: &dyn Fn(f64) -> bool) -> anyhow::Result<Answer> {
    let began = Instant::now();
    let (outcome, failure, recording) = match question.budget() {
        Some(budget) => {
            let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
            let (outcome, recorder, failure) = record::run_jobs_again(file, &graph, budget, goes_on)?;
            let wall_s = began.elapsed().as_secs_f64();
            let run = record::jobs(file, &graph, (&outcome, failure.as_ref()), wall_s, recorder)?;
            (outcome, failure, Some(run))
        }
        None => {
            let (outcome, failure) = run_jobs(question, file, goes_on)?;
            (outcome, failure, None)
        }
    };
    let wall_s = began.elapsed().as_secs_f64();
    let json = job::whole(file, &outcome, failure.as_ref(), wall_s).to_string();
    let failed = failure.as_ref().map(failure::words);
    let screen = match &failed {
        Some(words) => words.clone(),
        None => job::screen_of(file, &outcome, wall_s)?,
    };
    Ok(Answer { json, screen, failure: failed, recording })
}

fn run_jobs(
    question: &Question,
    file: &File,
    goes_on: &dyn Fn(f64) -> bool,
) -> anyhow::Result<(JobsOutcome, Option<RunError>)> {
    let threads = question.threads.unwrap_or_else(|| job::useful_threads(&file.scenario));
    let mut watch = While(goes_on);
    let settings = JobSettings { memo: question.memo, threads, observer: Some(&mut watch) };
    match run_jobs_to_failure(&file.scenario, NoSink, settings) {
        Ok((outcome, _, failure)) => Ok((outcome, failure)),
        Err(RunError::Scenario(error)) => Err(file.problem(error)),
        Err(error) => Err(anyhow!(failure::words(&error))),
    }
}

/// Goes on as long as the one who asked wants.
struct While<'a>(&'a dyn Fn(f64) -> bool);

impl JobObserver<NoSink> for While<'_> {
    fn observe(&mut self, _run: &mut Run<(Digest, NoSink)>, progress: &JobProgress) -> bool {
        self.observe_baseline(progress)
    }

    fn observe_baseline(&mut self, progress: &JobProgress) -> bool {
        let (over, all) = progress.calls;
        self.0(over as f64 / all.max(1) as f64)
    }
}
