//! `--record`, `--report`, `--trace` and `--view`: what happened in a run, for whoever looks at it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use railnet_core::event::Sink;
use railnet_core::{Digest, QueuePairNumber, RunDigest, Time};
use railnet_fabric::host_gid;
use railnet_formats::run_file::{
    About, Budget, Recorder, RunFile, add_flows, add_jobs, add_queues, kept_of, meta,
};
use railnet_sim::{JobObserver, JobProgress, JobSettings, JobsOutcome, Run, RunError, run_jobs_to_failure};
use railnet_topology::{FabricGraph, Vertex};
use railnet_wire::{Extended, Framing, Headers, Reth, VCRC_LENGTH};
use serde_json::{Value, json};

use super::beside::Beside;
use super::problem::File;
use super::{Arguments, Finished, asked, job, prepare, report, sweep};
use crate::Usage;

/// Links that are all listened to, for the bytes of packets; of more, those of the first hosts.
const LINKS_TAPPED: usize = 2_000;

#[derive(clap::Args)]
#[group(id = "recording")]
pub(super) struct Options {
    /// Write all that happened to a run file, for `railnet view`
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    record: Option<PathBuf>,
    /// Write the page with this run in it: one file that opens from disk, without a network
    #[arg(long, value_name = "FILE.html", conflicts_with = "sweep")]
    report: Option<PathBuf>,
    /// Write a trace for ui.perfetto.dev: ranks, NICs, links and arrows
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    trace: Option<PathBuf>,
    /// Show the run in a browser when it is over
    #[arg(long, conflicts_with = "sweep")]
    view: bool,
    /// Run it with another value of a key too, such as nic.control=swift, and have the two beside each other on the page. A job
    /// that takes seconds runs over TCP and over RDMA unless something else is asked for; "none" leaves that out
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "sweep")]
    beside: Option<String>,
    /// Packets that are kept for the run file: of more than that, a sample
    #[arg(long, value_name = "NUMBER", default_value_t = Budget::default().packets)]
    record_packets: usize,
}

impl Options {
    /// Whether anybody wants to see what happened.
    pub(super) fn is_on(&self) -> bool {
        self.record.is_some() || self.report.is_some() || self.trace.is_some() || self.view
    }

    pub(super) fn budget(&self) -> Budget {
        Budget { packets: self.record_packets, ..Budget::default() }
    }

    /// Where the run file, the page and the trace go.
    pub(super) fn paths(&self) -> [Option<&Path>; 3] {
        [&self.record, &self.report, &self.trace].map(Option::as_deref)
    }

    /// Whether a browser shows the run when it is over.
    pub(super) const fn is_viewed(&self) -> bool {
        self.view
    }

    /// Whether there will be a page of it.
    fn makes_page(&self) -> bool {
        self.record.is_some() || self.report.is_some() || self.view
    }

    /// What is run beside it: what is asked for, and without that a job over the other transport, where that takes seconds.
    pub(super) fn beside(&self, arguments: &Arguments, file: &File) -> anyhow::Result<Option<Beside>> {
        let Some(change) = &self.beside else {
            let is_soon = self.makes_page() && job::is_soon_over(file)?;
            return Ok(if is_soon {
                Beside::transport(file, self.budget(), |other| prepared(arguments, other))
            } else {
                None
            });
        };
        if !self.makes_page() {
            return Err(Usage("--beside is for the page: add --record, --report or --view".to_owned()).into());
        }
        if change == "none" {
            return Ok(None);
        }
        let (key, value) = change
            .split_once('=')
            .ok_or_else(|| Usage(format!("--beside {change}: write a key and its value, KEY=VALUE")))?;
        let beside = Beside::new(file, (key, value), self.budget(), |other| prepared(arguments, other));
        let beside = beside.with_context(|| format!("--beside {change}"));
        beside.map(Some).map_err(Usage::of)
    }
}

/// What is said on the command line holds for the one beside it, too.
fn prepared(arguments: &Arguments, other: &mut File) -> anyhow::Result<()> {
    other.scenario.sample = None;
    prepare(arguments, &mut other.scenario).map(|_| ())
}

/// Opens the taps that show what packets look like.
pub(super) fn tap<S: Sink>(graph: &FabricGraph, run: &mut Run<S>) {
    for link in 0..graph.links.len().min(LINKS_TAPPED) {
        run.tap(link as u32);
    }
}

/// Hands frames that passed the taps to the recorder.
pub(super) fn take_frames(graph: &FabricGraph, run: &mut Run<(Digest, Recorder)>) {
    let (mut frames, mut regions, framing) = (Vec::new(), Vec::new(), run.framing());
    run.drain_taps(|tapped| {
        let is_back = graph.links[tapped.link as usize].ends[0].vertex != tapped.from;
        if matches!(tapped.from, Vertex::Host(_))
            && let Some((ends, (target, region))) = tapped.flow.zip(region_of(framing, tapped.frame))
        {
            regions.push((ends, target, region));
        }
        // The ICRC is what a frame ends with on the page; a VCRC is of one link alone.
        let behind = if framing == Framing::Infiniband { VCRC_LENGTH } else { 0 };
        let frame = &tapped.frame[..tapped.frame.len() - behind];
        frames.push((tapped.at, (tapped.link, is_back), kept_of(frame), frame.len()));
    });
    let recorder = &mut run.sink_mut().1;
    for (ends, target, region) in regions {
        recorder.writes_to(ends, target, region);
    }
    for (at, way, kept, length) in frames {
        recorder.frame(at, way, &kept, length);
    }
    recorder.frames_shown();
    let (sample, followed) = (recorder.sample(), recorder.followed());
    run.tap_sample(sample);
    run.tap_connection(followed);
}

/// The queue pair that a frame goes to, and address and key of the memory that it writes to.
fn region_of(framing: Framing, frame: &[u8]) -> Option<(QueuePairNumber, (u64, u32))> {
    let headers = Headers::parse(frame.get(framing.front()..)?).ok()?.headers;
    match headers.extended {
        Extended::Reth(Reth { address, key, .. }) | Extended::RethImmediate(Reth { address, key, .. }, _) => {
            Some((headers.bth.destination, (address, key)))
        }
        _ => None,
    }
}

/// The run file of traffic or collectives.
pub(super) fn traffic(
    file: &File,
    graph: &FabricGraph,
    finished: &Finished,
    mut recorder: Recorder,
) -> anyhow::Result<RunFile> {
    add_flows(&mut recorder, &finished.outcome);
    add_queues(&mut recorder, &finished.outcome);
    let end = finished.outcome.completion;
    let report = serde_json::to_value(report::whole(file, finished))?;
    assemble(file, graph, (report, &finished.digest, end), None, recorder)
}

/// The run file of jobs.
pub(super) fn jobs(
    file: &File,
    graph: &FabricGraph,
    (outcome, failure): (&JobsOutcome, Option<&RunError>),
    wall_s: f64,
    mut recorder: Recorder,
) -> anyhow::Result<RunFile> {
    add_jobs(&mut recorder, &outcome.jobs);
    if let Some(network) = &outcome.network {
        add_queues(&mut recorder, network);
    }
    let steps = outcome.jobs.iter().map(|job| Time::ZERO + job.total()).max().unwrap_or(Time::ZERO);
    // One that failed did so after its last step.
    let seen = outcome.network.as_ref().filter(|_| outcome.is_partial).map(|network| network.completion);
    let end = seen.map_or(steps, |seen| seen.max(steps));
    let report = job::whole(file, outcome, failure, wall_s);
    assemble(file, graph, (report, &outcome.digest, end), Some(outcome), recorder)
}

fn assemble(
    file: &File,
    graph: &FabricGraph,
    (report, digest, end): (Value, &RunDigest, Time),
    jobs: Option<&JobsOutcome>,
    recorder: Recorder,
) -> anyhow::Result<RunFile> {
    let recorded = recorder.finish(end);
    let about = About {
        name: &file.path,
        text: &file.text,
        scenario: &file.scenario,
        report,
        digest: format!("{digest:?}"),
        end,
        jobs,
    };
    let mut meta = meta(&about, graph, &recorded).map_err(|error| file.problem(error))?;
    let framing = file.scenario.wire_framing();
    for (number, host) in meta["fabric"]["hosts"].as_array_mut().into_iter().flatten().enumerate() {
        match file.scenario.lid(number as u32) {
            Some(lid) => host["lid"] = lid.0.into(),
            None => host["ip"] = host_gid(number as u32).to_ip().to_string().into(),
        }
    }
    match framing {
        Framing::RoceV2 => {}
        Framing::RoceV1 => meta["framing"] = "rocev1".into(),
        Framing::Infiniband => meta["framing"] = "infiniband".into(),
    }
    Ok(RunFile { meta, tables: recorded.tables, others: Vec::new() })
}

/// The scenario of a file with one key changed. No value takes the key away.
pub(crate) fn changed(name: &str, text: &str, key: &str, value: &str) -> anyhow::Result<File> {
    let mut table: toml::Table = text.parse()?;
    let how = if value.is_empty() {
        table.remove(key);
        format!("without {key}")
    } else {
        sweep::set(&mut table, key, value)?;
        format!("with {key} = {value}")
    };
    File::of_table(Path::new(name), format!("{text}\n# Run again {how}.\n"), table)
}

/// What a run with one key changed is called, and what the key was in the one that it was made from.
pub(crate) fn change(first: &RunFile, key: &str, value: &str) -> Value {
    let name = if value.is_empty() { format!("without {key}") } else { format!("{key} = {value}") };
    // What is not in the scenario has the value that the run says it had.
    let text = first.meta["scenario"].as_str().unwrap_or_default();
    let table = text.parse::<toml::Table>().unwrap_or_default();
    let mut parts = key.split('.');
    let top = parts.next().and_then(|part| table.get(part));
    let written = parts.fold(top, |at, part| at.and_then(|at| at.get(part)));
    let own = key.rsplit('.').next().and_then(|word| first.meta[word].as_str());
    let was = match (written, own) {
        (Some(toml::Value::String(word)), _) => format!("{key} = {word}"),
        (Some(toml::Value::Boolean(value)), _) => format!("{key} = {value}"),
        (Some(toml::Value::Integer(value)), _) => format!("{key} = {value}"),
        (Some(toml::Value::Float(value)), _) => format!("{key} = {value}"),
        (Some(_), _) => format!("with {key}"),
        (None, Some(word)) => format!("{key} = {word}"),
        (None, None) => format!("{key} as it is"),
    };
    json!({ "key": key, "value": value, "name": name, "was": was })
}

/// Runs a scenario, whatever is in it, and records it. `goes_on` is told how far it is, from 0 to 1, and says whether it shall go on;
/// nothing comes of a run that shall not.
pub(crate) fn run_again(
    file: &File,
    budget: Budget,
    goes_on: &dyn Fn(f64) -> bool,
) -> anyhow::Result<Option<RunFile>> {
    let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
    if file.scenario.has_jobs() {
        let began = Instant::now();
        let (outcome, recorder, failure) = run_jobs_again(file, &graph, budget, goes_on)?;
        let wall_s = began.elapsed().as_secs_f64();
        if outcome.is_partial && failure.is_none() {
            return Ok(None);
        }
        return jobs(file, &graph, (&outcome, failure.as_ref()), wall_s, recorder).map(Some);
    }
    let (finished, recorder) = asked::recorded_traffic(file, &graph, budget, goes_on)?;
    if finished.partial.is_some() {
        return Ok(None);
    }
    traffic(file, &graph, &finished, recorder).map(Some)
}

/// Runs jobs with all that the page shows of them.
pub(super) fn run_jobs_again(
    file: &File,
    graph: &FabricGraph,
    budget: Budget,
    goes_on: &dyn Fn(f64) -> bool,
) -> anyhow::Result<(JobsOutcome, Recorder, Option<RunError>)> {
    let recorder = Recorder::new(graph, budget).of_job();
    let mut frames = Frames { graph, goes_on };
    let settings = JobSettings { threads: 1, observer: Some(&mut frames), ..JobSettings::default() };
    run_jobs_to_failure(&file.scenario, recorder, settings).map_err(|error| words(file, error))
}

/// Brings the frames of jobs to their recorder.
struct Frames<'a> {
    graph: &'a FabricGraph,
    goes_on: &'a dyn Fn(f64) -> bool,
}

impl Frames<'_> {
    fn tell(&self, progress: &JobProgress) -> bool {
        let (over, all) = progress.calls;
        (self.goes_on)(over as f64 / all.max(1) as f64)
    }
}

impl JobObserver<Recorder> for Frames<'_> {
    fn begin(&mut self, run: &mut Run<(Digest, Recorder)>) {
        tap(self.graph, run);
    }

    fn observe(&mut self, run: &mut Run<(Digest, Recorder)>, progress: &JobProgress) -> bool {
        take_frames(self.graph, run);
        self.tell(progress)
    }

    fn observe_baseline(&mut self, progress: &JobProgress) -> bool {
        self.tell(progress)
    }
}

pub(super) fn words(file: &File, error: RunError) -> anyhow::Error {
    match error {
        RunError::Scenario(error) => file.problem(error),
        error => anyhow::anyhow!(super::failure::words(&error)),
    }
}
