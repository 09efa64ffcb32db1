//! `railnet sim`: runs a scenario and says what came of it.

pub(crate) mod asked;
mod beside;
mod capture;
mod collectives;
mod failure;
mod flow_level;
pub(crate) mod job;
mod outputs;
pub(crate) mod problem;
mod progress;
pub(crate) mod record;
pub(crate) mod report;
mod series;
mod setup;
mod summary;
pub(crate) mod sweep;
mod transfers;

use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use railnet_core::event::{NoSink, Sink};
use railnet_core::{Digest, RunDigest, Span};
use railnet_formats::run_file::{Recorder, RunFile};
use railnet_sim::{Fidelity, Outcome as RunOutcome, Run, RunError, Scenario};
use railnet_topology::FabricGraph;

use railnet_coll::variables::{Place, Variables};

use crate::files::Output;
use crate::interrupt::Interrupt;
use crate::wire::Wire;
use crate::{Outcome, Usage, environment, huge_pages, report as report_line, shipped, words};
use beside::Beside;
use capture::{Capture, Written};
use outputs::Outputs;
use problem::File;
use progress::Progress;
use setup::SetUp;

const EXAMPLES: &str = "\
Examples:
  railnet sim scenarios/incast.toml
  railnet sim scenarios/incast.toml --json - | jq .completion_us
  railnet sim scenarios/permutation.toml --csv out/
  railnet sim scenarios/incast.toml --csv out/ --sample 10us
  railnet sim scenarios/incast.toml --sweep nic.control=none,dcqcn --sweep seed=1,2,3
  railnet sim scenarios/incast.toml --sweep seed=1,2,3,4 --on slurm --sbatch=--partition=cpu
  railnet sim scenarios/leaf-spine.toml --pcap run.pcapng --tap host3 --tap leaf0:spine1
  railnet sim scenarios/incast.toml --wire bytes
  railnet sim scenarios/llama-70b.toml

The file's format is explained in docs/scenarios.md, that of jobs in docs/jobs.md.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The scenario: a TOML file, the name of one that ships (railnet list), or - for standard input
    #[arg(value_name = "FILE|NAME")]
    file: PathBuf,
    /// The seed, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// How the network is modelled, instead of the scenario's: packet, flow (rates of [[traffic]]), analytic (formulas of jobs)
    #[arg(long, value_name = "NAME", value_parser = fidelity)]
    fidelity: Option<Fidelity>,
    /// Write everything as JSON to a file, or to standard output (and nothing else there) with "-"
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables into a directory: flows.csv and links.csv, series over time with --sample, or sweep.csv of a sweep
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Look at queues, rates and pauses every so often, such as 10us, for series.csv and the JSON; instead of the
    /// scenario's `sample`
    #[arg(long, value_name = "SPAN")]
    sample: Option<Span>,
    /// Run once for each value of a key, such as nic.control=none,dcqcn; several make every combination
    #[arg(long, value_name = "KEY=A,B,…")]
    sweep: Vec<String>,
    /// Run the points of a sweep on a cluster: a task for each, the same table from what they leave. Begun again, only points that
    /// are not done are run
    #[arg(long, value_enum, requires = "sweep")]
    on: Option<sweep::Cluster>,
    /// The folder that all machines of the cluster see, for what points come to [default: railnet-sweep]
    #[arg(long, value_name = "DIR", requires = "sweep")]
    work: Option<PathBuf>,
    /// An option for sbatch, such as --sbatch=--partition=cpu
    #[arg(long, value_name = "OPTION", requires = "on", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Run one point of a sweep, and leave what came of it in --work: what tasks of a cluster do
    #[arg(long, value_name = "N", requires_all = ["sweep", "work"], hide = true)]
    point: Option<usize>,
    /// How packets travel: the digest is the same either way
    #[arg(long, value_enum, default_value_t = Wire::Values)]
    wire: Wire,
    /// NCCL's variables, NAME=VALUE in each line; they go before [env] of the scenario, the environment goes before both
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// Print all there is to say of a job, not one screen of it
    #[arg(long)]
    verbose: bool,
    /// Carry out every collective of a job, also where an identical one was carried out before: the result is the same
    #[arg(long)]
    no_memo: bool,
    /// Threads that share the packets of a job on 64 ports or more: the result is the same. One for each core unless said otherwise, but not
    /// more than one for eight servers
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroU32>,
    #[command(flatten)]
    capture: capture::Options,
    #[command(flatten)]
    record: record::Options,
    /// Replace regular files that are there
    #[arg(long)]
    force: bool,
}

impl Arguments {
    /// Whether standard output belongs to the JSON.
    fn is_quiet(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }
}

/// A run that ended, and what it took.
pub(crate) struct Finished {
    seed: u64,
    pub(crate) outcome: RunOutcome,
    pub(crate) digest: RunDigest,
    wall_s: f64,
    captured: Option<Written>,
    /// It was stopped before its end: how far it had come in flows and calls, of all.
    partial: Option<(usize, usize)>,
    /// Why it failed, where it did: all else is what was known by then.
    failure: Option<RunError>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let mut file = File::read(&arguments.file)?;
    // What is wrong with a fabric is told below, when all is known that it is made of.
    if (arguments.file.is_file() || shipped::find(&arguments.file).is_some())
        && file.scenario.fidelity == Fidelity::Packet
        && let Ok(graph) = railnet_sim::graph(&file.scenario)
    {
        huge_pages::start_again_with(graph.hosts.len());
    }
    let variables = prepare(arguments, &mut file.scenario)?;
    if file.scenario.fidelity == Fidelity::Flow {
        flow_level::refuse(arguments)?;
    }
    let beside = arguments.record.beside(arguments, &file)?;
    if let Some(interval) = arguments.sample {
        if !arguments.sweep.is_empty() {
            return Err(Usage("--sample is for single runs: a sweep writes no series".to_owned()).into());
        }
        if arguments.csv.is_none() && arguments.json.is_none() {
            return Err(Usage("--sample needs --csv DIR or --json FILE".to_owned()).into());
        }
        file.scenario.set_sample(interval).map_err(|error| Usage::of(error.into()))?;
    }
    if arguments.csv.is_none() && arguments.json.is_none() {
        // Nobody would see them.
        file.scenario.sample = None;
    }
    if arguments.threads.is_some() && (!arguments.sweep.is_empty() || !file.scenario.has_jobs()) {
        let what = "--threads is for a single run of a job: other runs have a thread each, a sweep as many as there are cores";
        return Err(Usage(what.to_owned()).into());
    }
    let outputs = Outputs::claim(arguments, &file.scenario)?;
    if !arguments.sweep.is_empty() {
        return sweep::run(arguments, &file, outputs, out);
    }
    if file.scenario.has_jobs() {
        return job::run(arguments, &file, beside.as_ref(), outputs, out);
    }
    traffic(arguments, &file, &variables, beside.as_ref(), outputs, out)
}

/// Runs flows and collectives, and says what came of them.
fn traffic(
    arguments: &Arguments,
    file: &File,
    variables: &Variables,
    beside: Option<&Beside>,
    mut outputs: Outputs,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let pcap = outputs.pcap.take();
    let (watched, other) = beside::together(|| watch(arguments, file, variables, pcap), beside);
    let (finished, recorded) = watched?;
    if let Some(target) = outputs.json.take() {
        target.write(out, &report::whole(file, &finished))?;
    }
    if let Some(tables) = &mut outputs.tables {
        report::write_csv(tables, &finished.outcome, report::Window::of(&finished.outcome))?;
        if let Some(series) = &finished.outcome.series {
            series::write_csv(tables, &finished.outcome, series)?;
        }
    }
    if let Some(error) = &finished.failure {
        failure::tell(error, out);
    } else if !arguments.is_quiet() {
        summary::print(file, &finished, out)?;
        if let Some(written) = &finished.captured {
            written.print(out)?;
        }
    }
    if let Some(run) = recorded {
        outputs.deliver(beside::joined(run, beside, other)?, out, arguments.is_quiet())?;
    }
    let is_whole = finished.partial.is_none() && finished.failure.is_none();
    Ok(if is_whole { Outcome::Done } else { Outcome::CheckFailed })
}

/// Gives a scenario the seed of the command line, and NCCL's variables: those are what comes back.
fn prepare(arguments: &Arguments, scenario: &mut Scenario) -> anyhow::Result<Variables> {
    if let Some(seed) = arguments.seed {
        scenario.seed = seed;
    }
    if let Some(fidelity) = arguments.fidelity {
        scenario.set_fidelity(fidelity).map_err(|error| Usage(format!("--fidelity: {}", error.message)))?;
    }
    with_variables(scenario, arguments.env_file.as_deref())
}

/// Gives a scenario NCCL's variables, which are what comes back.
fn with_variables(scenario: &mut Scenario, file: Option<&Path>) -> anyhow::Result<Variables> {
    let variables = environment::variables(Place::Sim, scenario.variables(), file, Vec::new())?;
    scenario.set_variables(variables.clone());
    if let Some(path) = variables.topology_file() {
        let server = problem::server(Path::new(path)).with_context(|| format!("NCCL_TOPO_FILE={path}"))?;
        scenario.set_server(server);
    }
    Ok(variables)
}

fn fidelity(text: &str) -> Result<Fidelity, String> {
    let mut all = Fidelity::ALL.into_iter();
    all.find(|one| one.name() == text).ok_or_else(|| "write packet, flow or analytic".to_owned())
}

/// Runs the built-in job, and says what to try next.
pub(crate) fn built_in(out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let file = File::built_in("built-in job \"life-of-a-job\"", job::BUILT_IN)?;
    let outcome = job::tell(&file, out)?;
    writeln!(
        out,
        "\n  Try   railnet compare rails · railnet sim job-slow-gpu · railnet list · railnet plan --params 70B --gpus 64 --compute 200ms · \
         railnet --help"
    )?;
    Ok(outcome)
}

/// Runs a scenario where somebody watches: with a line of progress on a terminal, and with taps where they are asked for.
/// Errors are those of the files; a run that fails has come to an end like another.
fn watch(
    arguments: &Arguments,
    file: &File,
    variables: &Variables,
    pcap: Option<Output>,
) -> anyhow::Result<(Finished, Option<RunFile>)> {
    if file.scenario.fidelity == Fidelity::Flow {
        return match flow_level::watch(&file.scenario)? {
            Err(RunError::Scenario(error)) => Err(file.problem(error)),
            finished => Ok((finished?, None)),
        };
    }
    let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
    if !arguments.record.is_on() {
        let (finished, _) = watch_with((arguments, pcap), file, variables, NoSink, &graph, |_| {})?;
        return Ok((finished, None));
    }
    let recorder = Recorder::new(&graph, arguments.record.budget());
    let frames = |run: &mut Run<(Digest, Recorder)>| record::take_frames(&graph, run);
    let (finished, recorder) = watch_with((arguments, pcap), file, variables, recorder, &graph, frames)?;
    let run = record::traffic(file, &graph, &finished, recorder)?;
    Ok((finished, Some(run)))
}

/// The same with somebody beside the digest, who looks at the run on its way.
fn watch_with<S: Sink>(
    (arguments, pcap): (&Arguments, Option<Output>),
    file: &File,
    variables: &Variables,
    sink: S,
    graph: &FabricGraph,
    mut look: impl FnMut(&mut Run<(Digest, S)>),
) -> anyhow::Result<(Finished, S)> {
    let began = Instant::now();
    let interrupt = Interrupt::catch()?;
    let hosts = words::count(graph.hosts.len() as u64, "host", "hosts");
    let set_up = SetUp::begin(hosts, "network", interrupt.clone(), true);
    let run = Run::new(&file.scenario, (Digest::new(), sink));
    drop(set_up);
    let mut run = run.map_err(|error| file.problem(error))?;
    run.set_wire(arguments.wire.form());
    for line in run.start_lines(variables) {
        report_line(&line);
    }
    let mut capture = Capture::open(&arguments.capture, graph.clone(), pcap, &mut run)?;
    if arguments.record.is_on() && capture.is_none() {
        record::tap(graph, &mut run);
    }
    let progress = Progress::new();
    let each = |run: &mut Run<(Digest, S)>| match &mut capture {
        Some(capture) => capture.take(run),
        None => {
            look(run);
            Ok(())
        }
    };
    let is_over = progress.watch(&mut run, &interrupt, each)?;
    // What was seen of a run that fails is the more worth having.
    let captured = capture.map(Capture::finish).transpose()?;
    let seed = file.scenario.seed;
    let (finished, sink) = if is_over {
        finish(run, Run::end_at_exit, seed, began)
    } else {
        let all = run.flows() + run.calls();
        let partial = Some((all - run.unfinished(), all));
        let (finished, sink) = stop(run, seed, began);
        (Finished { partial, ..finished }, sink)
    };
    Ok((Finished { captured, ..finished }, sink))
}

/// Virtual time between two looks at whether a run shall go on that nobody watches.
pub(crate) const STEP: Span = Span::from_us(100);

/// Runs a scenario that nobody watches; nothing where it is asked to stop.
pub(crate) fn simulate(
    scenario: &Scenario,
    wire: Wire,
    interrupt: &Interrupt,
) -> Result<Option<Finished>, RunError> {
    if scenario.fidelity == Fidelity::Flow {
        let finished = flow_level::run(scenario, |_| !interrupt.is_set())?;
        return match finished.failure {
            Some(error) => Err(error),
            None => Ok(Some(finished).filter(|finished| finished.partial.is_none())),
        };
    }
    let began = Instant::now();
    let mut run = Run::new(scenario, (Digest::new(), NoSink))?;
    run.set_wire(wire.form());
    while !run.advance(STEP) {
        if interrupt.is_set() {
            return Ok(None);
        }
    }
    let (finished, _) = finish(run, Run::end, scenario.seed, began);
    match finished.failure {
        Some(error) => Err(error),
        None => Ok(Some(finished)),
    }
}

/// What came of a run, with what listened to it.
type Ended<S> = (RunOutcome, (Digest, S));

/// Runs what is left, and says what came of it, or had by the time it failed.
fn finish<S: Sink>(
    mut run: Run<(Digest, S)>,
    end_of: fn(Run<(Digest, S)>) -> Ended<S>,
    seed: u64,
    began: Instant,
) -> (Finished, S) {
    match run.complete() {
        Ok(()) => end(end_of(run), seed, began),
        Err(error) => {
            let (finished, sink) = stop(run, seed, began);
            (Finished { failure: Some(error), ..finished }, sink)
        }
    }
}

fn stop<S: Sink>(run: Run<(Digest, S)>, seed: u64, began: Instant) -> (Finished, S) {
    end(run.stop(), seed, began)
}

fn end<S>((outcome, (digest, sink)): Ended<S>, seed: u64, began: Instant) -> (Finished, S) {
    let (digest, wall_s) = (digest.finish(), began.elapsed().as_secs_f64());
    (Finished { seed, outcome, digest, wall_s, captured: None, partial: None, failure: None }, sink)
}
