//! `railnet compare`: runs side by side: what differs in the files, and what that does to the outcome.

mod differs;
mod figures;
mod json;
mod screen;
mod sets;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use railnet_coll::variables::Place;
use railnet_sim::{Inert, RunError};

use crate::careful;
use crate::cores::{self, Work};
use crate::interrupt::Interrupt;
use crate::sim::job;
use crate::sim::problem::{self, File};
use crate::{Outcome, Usage, environment, input, shipped, words};
use differs::Difference;
use figures::Figures;
use sets::Set;

const EXAMPLES: &str = "\
Ready-made, built in:
  railnet compare transports         TCP, RDMA through host memory, RDMA with GPUDirect: copies, CPU time, latency, a training step
  railnet compare rails              a job under top-of-rack switches and on rails, with all of the spines and with a quarter of them
  railnet compare infiniband-roce    credits and adaptive routing against pause frames, ECN and DCQCN
  railnet compare routing            ECMP, adaptive routing and spraying

Your own:
  railnet compare before.toml after.toml
  railnet compare scenarios/life-of-a-job-racks.toml scenarios/life-of-a-job-rails.toml --json

What the rows mean is in docs/planning.md.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Scenarios, two or more: TOML files, names of those that ship (railnet list), or - for standard input; or the name of a ready-made
    /// set
    #[arg(required = true, value_name = "FILE|SET")]
    what: Vec<String>,
    /// The seed of all runs, instead of their own
    #[arg(long)]
    seed: Option<u64>,
    /// NCCL's variables for all runs, NAME=VALUE in each line; they go before [env] of scenarios, the environment goes before both
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// Print also what is the same
    #[arg(long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A scenario that a contestant runs, and what it is about where there are several.
struct Part {
    title: &'static str,
    file: File,
}

/// One of those that are compared.
struct Contestant {
    name: String,
    parts: Vec<Part>,
}

/// A contestant that has run: what came of each of its parts, nothing of those that were stopped before their end.
struct Ran {
    name: String,
    parts: Vec<Option<Figures>>,
}

impl Ran {
    /// A number, zero where there is none.
    fn number(&self, part: usize, key: &str) -> f64 {
        self.parts.get(part).and_then(|figures| figures.as_ref()?.number(key)).unwrap_or(0.0)
    }

    fn is_whole(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (set, mut contestants) = contestants(&arguments.what)?;
    prepare(arguments, &mut contestants)?;
    let differences = differs::differences(&contestants)?;
    for part in contestants.iter().flat_map(|one| &one.parts) {
        if part.file.scenario.has_jobs() {
            job::warn(&part.file, true, false)?;
        }
    }
    let ran = run_all(&contestants, &Interrupt::catch()?)?;
    let is_whole = ran.iter().all(Ran::is_whole);
    let headlines = headlines(&differences, &contestants, &ran);
    let titles: Vec<&str> = contestants[0].parts.iter().map(|part| part.title).collect();
    let lesson = set.filter(|_| is_whole).map(|set| (set.lesson)(&ran));
    if arguments.json {
        writeln!(out, "{:#}", json::object(&differences, &headlines, &titles, &ran, lesson.as_deref()))?;
    } else {
        let figures = ran.iter().flat_map(|one| one.parts.iter().flatten());
        let caveats = careful::caveats_of_all(figures.map(|figures| figures.caveats.as_slice()));
        for headline in headlines.iter().chain(&caveats) {
            writeln!(out, "  Careful: {headline}")?;
        }
        screen::print(&differences, &titles, &ran, arguments.verbose, out)?;
        if let Some(lesson) = lesson {
            writeln!(out)?;
            words::paragraph(&lesson, out)?;
        }
    }
    Ok(if is_whole { Outcome::Done } else { Outcome::CheckFailed })
}

/// Keys that differ and have no effect on any of the runs, and runs that are the same.
fn headlines(differences: &[Difference], contestants: &[Contestant], ran: &[Ran]) -> Vec<String> {
    let parts = || contestants.iter().flat_map(|one| &one.parts);
    let mut inert = Vec::new();
    for Difference { key, .. } in differences {
        let mut reasons = parts().map(|part| part.file.scenario.why_inert(key));
        if let Some(Some(why)) = reasons.next()
            && reasons.all(|other| other.is_some())
        {
            inert.push(Inert { key: key.clone(), why });
        }
    }
    let mut found = careful::lines(&inert);
    let digests =
        |one: &Ran| one.parts.iter().map(|part| Some(part.as_ref()?.digest.clone())).collect::<Vec<_>>();
    let is_whole = ran.iter().all(Ran::is_whole);
    if is_whole && !differences.is_empty() && ran.iter().all(|one| digests(one) == digests(&ran[0])) {
        found.push("the runs are the same: nothing that differs in the files makes a difference".to_owned());
    }
    found
}

/// Who is compared: a set, or files.
fn contestants(what: &[String]) -> anyhow::Result<(Option<Set>, Vec<Contestant>)> {
    let known = sets::all();
    if let [name] = what
        && let Some(set) = known.into_iter().find(|set| set.name == name)
    {
        let contestants = set.contestants()?;
        return Ok((Some(set), contestants));
    }
    let is_there = |name: &str| {
        name == input::STANDARD || Path::new(name).exists() || shipped::find(Path::new(name)).is_some()
    };
    let missing = what.iter().find(|name| !is_there(name));
    if let Some(name) = missing {
        return Err(unknown(name).into());
    }
    if let [name] = what {
        let message =
            format!("{name} is one scenario: name another to compare it with, or a set, {}", sets::names());
        return Err(Usage(message).into());
    }
    let read = what.iter().map(|name| {
        let file = File::read(Path::new(name))?;
        Ok(Contestant { name: name.clone(), parts: vec![Part { title: "", file }] })
    });
    let mut contestants = read.collect::<anyhow::Result<Vec<_>>>()?;
    shorten(&mut contestants);
    Ok((None, contestants))
}

fn unknown(name: &str) -> Usage {
    let sets = sets::all();
    let shipped = shipped::ALL.iter().map(|one| one.name);
    let known: Vec<&str> = sets.iter().map(|set| set.name).chain(shipped).collect();
    let meant = words::nearest(name, &known).map(|meant| format!("; did you mean \"{meant}\"?"));
    Usage(format!(
        "\"{name}\" is no file, no set and no scenario that ships: sets are {}; railnet list has the scenarios{}",
        sets::names(),
        meant.unwrap_or_default()
    ))
}

/// Files are called by their names without folders and endings, where that tells them apart.
fn shorten(contestants: &mut [Contestant]) {
    let stem = |name: &str| Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let short: Vec<String> = contestants.iter().map(|one| stem(&one.name)).collect();
    let is_clear = |place: usize| short.iter().filter(|other| **other == short[place]).count() == 1;
    let all_clear = (0..short.len()).all(is_clear);
    for (contestant, short) in contestants.iter_mut().zip(short) {
        if all_clear {
            contestant.name = short;
        }
    }
}

/// Seeds and NCCL's variables.
fn prepare(arguments: &Arguments, contestants: &mut [Contestant]) -> anyhow::Result<()> {
    let file = arguments.env_file.as_deref();
    for part in contestants.iter_mut().flat_map(|one| &mut one.parts) {
        let scenario = &mut part.file.scenario;
        if let Some(seed) = arguments.seed {
            scenario.seed = seed;
        }
        let variables = environment::variables(Place::Sim, scenario.variables(), file, Vec::new())?;
        if let Some(path) = variables.topology_file() {
            let server =
                problem::server(Path::new(path)).with_context(|| format!("NCCL_TOPO_FILE={path}"))?;
            scenario.set_server(server);
        }
        scenario.set_variables(variables);
        // Nobody would see them.
        scenario.sample = None;
    }
    Ok(())
}

/// Runs everything, on as many threads as there are cores, until it is asked to stop.
fn run_all(contestants: &[Contestant], interrupt: &Interrupt) -> anyhow::Result<Vec<Ran>> {
    let work: Vec<(usize, &File)> = contestants
        .iter()
        .enumerate()
        .flat_map(|(number, one)| one.parts.iter().map(move |part| (number, &part.file)))
        .collect();
    let pieces = work.iter().map(|(_, file)| -> Work<'_, Result<Option<Figures>, RunError>> {
        Box::new(move || figures::run(&file.scenario, interrupt))
    });
    let results = cores::all(pieces.collect());
    let mut ran: Vec<Ran> =
        contestants.iter().map(|one| Ran { name: one.name.clone(), parts: Vec::new() }).collect();
    for ((number, file), result) in work.into_iter().zip(results) {
        let failed = |error: RunError| match error {
            RunError::Scenario(error) => file.problem(error),
            error => anyhow!("{error}"),
        };
        let figures = result.map_err(failed).with_context(|| contestants[number].name.clone())?;
        ran[number].parts.push(figures);
    }
    Ok(ran)
}
