//! `railnet plan`: the bandwidth a job needs, the bandwidth available, and the best layouts, without a packet.

mod json;
mod layouts;
mod question;
mod screen;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use clap::Parser as _;
use railnet_core::Span;
use railnet_job::plan::{Ground, Plan, Sweep, compute, paced};

use serde_json::Value;

use crate::{Outcome, Usage, catalogue};
use question::Subject;

pub(crate) use question::{cluster_of, ground_of};

const EXAMPLES: &str = "\
Examples:
  railnet plan --params 70B --gpus 64 --compute 200ms      can gradients be hidden behind 200 ms? What is available, what would it take?
  railnet plan scenarios/llama-70b.toml                    the same for a job, and the best layouts of its GPUs
  railnet plan --model llama-3-70b --gpus 256 --tp 8 --sp --zero 1 --batch 512
  railnet plan --model mixtral-8x7b --gpus 64 --cluster hgx-h200 --best 10
  NCCL_ALGO=ring railnet plan scenarios/llama-70b.toml --json

What the lines mean is in docs/planning.md. NCCL's variables count as in railnet tune.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The job, a scenario with a [model]: a TOML file, the name of one that ships, or - for standard input; or say it with options
    #[arg(conflicts_with_all = ["model", "params", "gpus", "cluster", "tp", "pp", "cp", "ep", "zero", "sp", "batch", "micro_batch",
        "sequence", "recompute", "bucket", "files"], value_name = "FILE|NAME")]
    file: Option<PathBuf>,
    #[command(flatten)]
    flags: question::Flags,
    #[command(flatten)]
    catalogue: catalogue::Files,
    /// How long a GPU computes in a step, such as 200ms, instead of what its FLOPs and bytes take
    #[arg(long, value_name = "SPAN")]
    compute: Option<Span>,
    /// How many of the best layouts to show
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=200))]
    best: u16,
    /// A file of NCCL's variables, lines of NAME=VALUE; it goes before [env] of the file, the environment goes before both
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// Print all there is to say, not one screen of it
    #[arg(long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A job that was asked about, and the answer.
struct Answer {
    subject: Subject,
    plan: Plan,
    sweep: Sweep,
    /// What the GPUs would take for their computing, where somebody said something else.
    by_itself: Option<Span>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if arguments.compute == Some(Span::ZERO) {
        return Err(
            crate::Usage("--compute is a time, such as 200ms: nothing is hidden behind none".into()).into()
        );
    }
    let subjects = question::subjects(arguments)?;
    let is_one = subjects.len() == 1;
    let mut values = Vec::new();
    for (number, subject) in subjects.into_iter().enumerate() {
        let answer = answer(subject, arguments)?;
        if arguments.json {
            values.push(json::object(&answer));
            continue;
        }
        if number > 0 {
            writeln!(out)?;
        }
        screen::print(&answer, arguments.verbose, usize::from(arguments.best), out)?;
    }
    if arguments.json {
        let value = if is_one { values.remove(0) } else { serde_json::json!({ "jobs": values }) };
        writeln!(out, "{value:#}")?;
    }
    Ok(Outcome::Done)
}

/// Prints what each parallel dimension says in a step, and nothing else of the plan.
pub(crate) fn print_dimensions(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut values = Vec::new();
    for mut subject in question::subjects(arguments)? {
        if let Some(told) = arguments.compute {
            subject.resolved.job = paced(&subject.resolved.job, told);
        }
        let plan = plan_of(&subject)?;
        match arguments.json {
            true => values.push(json::dimensions(&subject, &plan)),
            false => screen::dimensions(&subject, &plan, arguments.verbose, out)?,
        }
    }
    if arguments.json {
        writeln!(out, "{:#}", serde_json::json!({ "jobs": values }))?;
    }
    Ok(())
}

/// Options that the page asks with, and no others: it is no way to read files.
const ASKED_BY_PAGE: [&str; 8] = ["params", "model", "gpus", "cluster", "compute", "tp", "pp", "zero"];

/// The options of the command line, by themselves.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// What the command would answer to these options, for the page.
pub(crate) fn answer_to(options: &[(String, String)]) -> anyhow::Result<Value> {
    let mut words = vec!["plan".to_owned()];
    for (name, value) in options {
        ensure!(ASKED_BY_PAGE.contains(&name.as_str()), "the page does not ask for \"{name}\"");
        words.push(format!("--{name}={value}"));
    }
    // The first line of clap's says what is wrong; the rest is for terminals.
    let line = Line::try_parse_from(words)
        .map_err(|error| anyhow!(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
    let subject = question::subjects(&line.arguments)?.into_iter().next();
    let subject = subject.context("there is nothing to plan")?;
    Ok(json::object(&answer(subject, &line.arguments)?))
}

fn answer(mut subject: Subject, arguments: &Arguments) -> anyhow::Result<Answer> {
    let by_itself = arguments.compute.map(|_| compute(&subject.resolved.job));
    if let Some(told) = arguments.compute {
        subject.resolved.job = paced(&subject.resolved.job, told);
    }
    let plan = plan_of(&subject)?;
    let sweep = Sweep::new(&subject.resolved.job, &ground(&subject), usize::from(arguments.best));
    let sweep = sweep.map_err(|error| refused(&subject, &error))?;
    Ok(Answer { subject, plan, sweep, by_itself })
}

fn ground(subject: &Subject) -> Ground<'_> {
    Ground {
        cluster: &subject.cluster,
        settings: subject.variables.settings(),
        options: subject.variables.topology(),
        rates: subject.resolved.rates,
        gpudirect: subject.gpudirect,
        interconnect: subject.interconnect.clone(),
    }
}

fn plan_of(subject: &Subject) -> Result<Plan, Usage> {
    Plan::new(&subject.resolved.job, &ground(subject)).map_err(|error| refused(subject, &error))
}

fn refused(subject: &Subject, error: &dyn std::fmt::Display) -> Usage {
    Usage(format!("{}: {error}", subject.title))
}
