//! `railnet run`: starts ranks on this machine.

mod output;
mod verdict;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use railnet_core::Span;
use railnet_live::Conduit;
use railnet_live::supervisor::{self, Plan, RankSlot, SupervisorError};

use crate::live_record::{self, Folder, Outputs};
use crate::{Outcome, report};
pub(crate) use verdict::judge;

const EXAMPLES: &str = "\
Examples:
  railnet run -n 4 -- ./train --epochs 3            four ranks
  railnet run -n 8 --nodes 2 -- python train.py     as if on two hosts: no shared memory between them
  railnet run -n 4 --conduit tcp -- ./train         over TCP, also where memory could be shared
  railnet run --hostfile hosts -- ./train           a host group for each host of the file, its slots as ranks
  railnet run -n 4 --output logs -- ./train         what each rank prints, in logs/rank-0.out and so on
  railnet run -n 4 --record run.rail -- ./train     who called what when, for railnet view

Each rank finds its place in RAILNET_RANK, RAILNET_WORLD_SIZE and so on, and in what torchrun sets: RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Rank 0 gets standard input, unless that is a terminal.
When a rank fails, the others get SIGTERM and, after the grace, SIGKILL. SIGINT and SIGTERM are passed on; a second
SIGINT kills. The exit status is 0 if every rank's was, 2 for wrong usage, 127 if the program is not there, else 1.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "railnet run -n N [OPTIONS] -- PROGRAM [ARGUMENTS]...")]
#[command(group = clap::ArgGroup::new("kept").args(["output", "record", "trace"]).multiple(true))]
pub(crate) struct Arguments {
    /// How many ranks; with a host file, all of its slots unless this says fewer
    #[arg(short = 'n', long, value_name = "N", required_unless_present = "hostfile")]
    ranks: Option<u32>,
    /// Spread the ranks over so many host groups
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "hostfile")]
    nodes: u32,
    /// Take host groups from this file (`name`, `name slots=4` or `name:4` in each line); all ranks still run here
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// The conduit between all ranks: shm, tcp or roce; without it, the best for each pair
    #[arg(long, value_name = "NAME")]
    conduit: Option<Conduit>,
    /// Write what each rank prints into files in this folder instead
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace regular files that are there
    #[arg(long, requires = "kept")]
    force: bool,
    /// End the run after this time, such as 90s
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// Set a variable for all ranks; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(OsString, OsString)>,
    #[command(flatten)]
    record: live_record::Options,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// A length of time with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}; write 90s or 500ms"))?;
    match Duration::from_nanos(span.as_ps() / 1000) {
        Duration::ZERO => Err("it has to be longer than nothing".to_owned()),
        time => Ok(time),
    }
}

fn variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let slots = match places(arguments) {
        Ok(places) => places,
        Err(error) => {
            report(&format!("error: {error:#}"));
            return Ok(Outcome::Exit(2));
        }
    };
    let Some((program, rest)) = arguments.program.split_first() else {
        return Ok(Outcome::Exit(2));
    };
    if program.as_encoded_bytes().starts_with(b"-") {
        let option = program.display();
        report(&format!(
            "error: railnet run has no option {option}\n  railnet run --help lists those that it has; the program comes after --"
        ));
        return Ok(Outcome::Exit(2));
    }
    let outputs = arguments.record.claim(arguments.force)?;
    let folder = arguments.record.is_on().then(Folder::new).transpose()?;
    let mut variables = arguments.variables.clone();
    if let Some(conduit) = arguments.conduit {
        variables.push(("RAILNET_CONDUIT".into(), conduit.name().into()));
    }
    if let Some(folder) = &folder {
        variables.extend(folder.call_variables());
        if arguments.record.has_packets() {
            variables.extend(folder.packet_variables());
        }
    }
    let plan = Plan {
        program: program.clone(),
        arguments: rest.to_vec(),
        slots,
        variables,
        grace: arguments.grace,
        limit: arguments.timeout,
    };
    let ranks = plan.slots.len() as u32;
    let outcome = match &arguments.output {
        Some(folder) => supervisor::run(&plan, &mut output::Files::new(folder, ranks, arguments.force)?),
        None => {
            let is_coloured = crate::terminal::has_colour(&std::io::stdout());
            supervisor::run(&plan, &mut output::Prefixed::new(out, ranks, is_coloured))
        }
    };
    if let (Some(folder), Ok(_)) = (&folder, &outcome) {
        deliver(arguments, folder, ranks, outputs)?;
    }
    match outcome {
        Ok(outcome) => judge(&outcome, &plan),
        Err(SupervisorError::NoProgram { program, cause }) => {
            report(&format!("error: cannot run {program}: {cause}"));
            Ok(Outcome::Exit(127))
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes what ranks noted. Programs that use something else than Railnet to talk to each other note nothing.
fn deliver(arguments: &Arguments, folder: &Folder, ranks: u32, outputs: Outputs) -> anyhow::Result<()> {
    let calls = folder.calls(ranks);
    if calls.iter().all(|rank| rank.calls.is_empty()) {
        report("nothing is recorded: no rank made a call of Railnet's");
        return Ok(());
    }
    let words: Vec<_> = arguments.program.iter().map(|word| word.to_string_lossy()).collect();
    let mut run = live_record::assemble(&format!("railnet run -n {ranks} -- {}", words.join(" ")), &calls);
    folder.add_packets(&mut run)?;
    outputs.write(&run)
}

fn places(arguments: &Arguments) -> anyhow::Result<Vec<RankSlot>> {
    let Some(file) = &arguments.hostfile else {
        return Ok(supervisor::place_on_nodes(arguments.ranks.unwrap_or(1), arguments.nodes)?);
    };
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let hosts = railnet_live::hostfile::parse(&text).with_context(|| name.to_string())?;
    supervisor::place_on_hosts(&hosts, arguments.ranks).with_context(|| name.to_string())
}
