//! The `railnet` command as a library: reads the command line, runs one command, and turns its outcome into an exit code.
//! The binary is [`main`]; Python asks the same questions through [`ask`].
//!
//! 0: done. 1: it failed, or a check found something. 2: wrong usage, or an input that is wrong. 127: a program to run is not there.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "files, clocks and threads are at home here"
)]

pub mod ask;
mod bench;
mod calc;
mod careful;
mod catalogue;
mod check;
mod compare;
mod cores;
mod decode;
mod doctor;
mod dryrun;
mod environment;
mod files;
mod huge_pages;
mod input;
mod interrupt;
mod knobs;
mod links;
mod list;
mod live_record;
mod new;
mod perf;
mod pingpong;
mod plan;
mod processor;
mod rdma;
mod replay;
mod run;
mod schedule;
mod shipped;
mod sim;
mod status;
mod storm;
mod submit;
mod terminal;
mod topo;
mod tune;
mod validate;
mod verbs;
mod view;
mod wire;
mod words;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use sim::problem::Problem;
use terminal::Screen;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

/// The AI training network in software: one RDMA stack, live and simulated.
///
/// Without a command, a training job runs from its submission to its last step, in seconds.
#[derive(Parser)]
#[command(name = "railnet", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how fast a layer is on this machine
    Bench(bench::Arguments),
    /// Calculate one thing: copies, rails, parallelism, AllReduce
    Calc(calc::Arguments),
    /// Read a scenario, and print it with every default filled in
    Check(check::Arguments),
    /// Run scenarios side by side: what differs in them, and what that does
    Compare(compare::Arguments),
    /// Print the packets of a capture, and check them
    Decode(decode::Arguments),
    /// Run a PyTorch training script without GPUs, and price its step on a cluster
    Dryrun(dryrun::Arguments),
    /// List NCCL's variables that mean something here
    Knobs(knobs::Arguments),
    /// List the scenarios that are built in, to run by name
    List(list::Arguments),
    /// Write a scenario to begin with, every line explained
    New(new::Arguments),
    /// Measure collectives between real processes, as nccl-tests does
    Perf(perf::Arguments),
    /// Send messages back and forth over RoCEv2, with another machine or process
    Pingpong(pingpong::Arguments),
    /// Say what bandwidth a job needs, what is available, and which layout is best
    Plan(plan::Arguments),
    /// Look at this machine: launcher, transports, limits, and what to change
    Doctor(doctor::Arguments),
    /// Run existing RDMA programs on the software NIC: no hardware, no kernel module, no root
    Rdma(rdma::Arguments),
    /// Hold recorded conversations again with this NIC, and compare its answers
    Replay(replay::Arguments),
    /// Show who sends what to whom in a collective, and prove it
    Schedule(schedule::Arguments),
    /// Start ranks on this machine
    Run(run::Arguments),
    /// Run random work on bad wires and networks, seed after seed, and check all of it
    Storm(storm::Arguments),
    /// Run a scenario in a simulated fabric
    Sim(sim::Arguments),
    /// Ask running ranks what they do, and whom they wait for
    Status(status::Arguments),
    /// Write the batch script of a job for Slurm, and submit it
    Submit(submit::Arguments),
    /// Print a fabric or a server: sizes, bandwidths, paths, and a picture
    Topo(topo::Arguments),
    /// Say which algorithm and protocol NCCL would choose for a collective, and why
    Tune(tune::Arguments),
    /// Compare simulated collectives with what others measured and published
    Validate(validate::Arguments),
    /// Run one RDMA operation between two NICs and explain each step
    Verbs(verbs::Arguments),
    /// Show a run that was recorded in a browser
    View(view::Arguments),
}

impl Command {
    /// Whether what it prints is a file, or has columns and colours of its own.
    const fn is_raw(&self) -> bool {
        if let Self::Rdma(arguments) = self {
            return arguments.is_raw();
        }
        matches!(
            self,
            Self::Bench(_)
                | Self::Check(_)
                | Self::Decode(_)
                | Self::List(_)
                | Self::Perf(_)
                | Self::Run(_)
                | Self::Status(_)
                | Self::Submit(_)
                | Self::Verbs(_)
        )
    }
}

/// What a command has to say about itself when it did not fail.
enum Outcome {
    /// All is well.
    Done,
    /// It ran, and what it checked is not in order.
    CheckFailed,
    /// It has said what is wrong itself, and ends with this status.
    Exit(u8),
}

fn run(command: Option<Command>, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let Some(command) = command else { return sim::built_in(out) };
    match command {
        Command::Bench(arguments) => bench::run(&arguments, out),
        Command::Calc(arguments) => calc::run(&arguments, out),
        Command::Check(arguments) => check::run(&arguments, out),
        Command::Compare(arguments) => compare::run(&arguments, out),
        Command::Decode(arguments) => decode::run(&arguments, out),
        Command::Dryrun(arguments) => dryrun::run(&arguments, out),
        Command::Knobs(arguments) => knobs::run(&arguments, out),
        Command::List(arguments) => list::run(&arguments, out),
        Command::New(arguments) => new::run(&arguments, out),
        Command::Perf(arguments) => perf::run(&arguments, out),
        Command::Pingpong(arguments) => pingpong::run(&arguments, out),
        Command::Plan(arguments) => plan::run(&arguments, out),
        Command::Doctor(arguments) => doctor::run(&arguments, out),
        Command::Rdma(arguments) => rdma::run(&arguments, out),
        Command::Status(arguments) => status::run(&arguments, out),
        Command::Replay(arguments) => replay::run(&arguments, out),
        Command::Schedule(arguments) => schedule::run(&arguments, out),
        Command::Run(arguments) => run::run(&arguments, out),
        Command::Storm(arguments) => storm::run(&arguments, out),
        Command::Sim(arguments) => sim::run(&arguments, out),
        Command::Submit(arguments) => submit::run(&arguments, out),
        Command::Topo(arguments) => topo::run(&arguments, out),
        Command::Tune(arguments) => tune::run(&arguments, out),
        Command::Validate(arguments) => validate::run(&arguments, out),
        Command::Verbs(arguments) => verbs::run(&arguments, out),
        Command::View(arguments) => view::run(&arguments, out),
    }
}

/// Runs the command that the words of this process's command line say.
pub fn main() -> ExitCode {
    let arguments = match parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            match whole_number(&error) {
                Some(text) => report(&text),
                None => _ = error.print(),
            }
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let is_raw = arguments.command.as_ref().is_some_and(Command::is_raw);
    let mut out = Screen::new(BufWriter::new(io::stdout().lock()), is_raw);
    let outcome = run(arguments.command, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::FAILURE,
        Ok(Outcome::Exit(status)) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // What was printed before the failure is worth having, and comes first.
            let _ = out.flush();
            report(&format!("error: {error:#}"));
            if is_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(words_with_negatives(words))
}

/// The words of the command line, where a negative amount belongs to the option before it: what that says about it is better than
/// that there is no such option.
fn words_with_negatives(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut is_plain = true;
    for (place, word) in words.enumerate() {
        // Behind these are the words of another program.
        is_plain &= word != "--" && !(place == 1 && (word == "run" || word == "rdma"));
        let is_negative = matches!(word.as_encoded_bytes(), [b'-', b'0'..=b'9' | b'.', ..]);
        let last = joined.last_mut().filter(|_| is_plain && is_negative && place > 1);
        let is_long = |last: &OsString| {
            last.as_encoded_bytes().starts_with(b"--") && !last.as_encoded_bytes().contains(&b'=')
        };
        let is_short = |last: &OsString| matches!(last.as_encoded_bytes(), [b'-', b'a'..=b'z' | b'A'..=b'Z']);
        match last {
            Some(last) if is_long(last) => {
                last.push("=");
                last.push(word);
            }
            Some(last) if is_short(last) => last.push(word),
            _ => joined.push(word),
        }
    }
    joined
}

/// What is wrong with an option that wants a whole number, without Rust's words for it.
fn whole_number(error: &clap::Error) -> Option<String> {
    let source = std::error::Error::source(error)?;
    let is_number = source.is::<std::num::ParseIntError>() || source.is::<std::num::ParseFloatError>();
    if !is_number && !source.to_string().contains(" is not in ") {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (option, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let wanted = match source.to_string().split_once(" is not in ") {
        Some((_, range)) => format!("{} belongs there", range_words(range)),
        None if source.is::<std::num::ParseFloatError>() => "a number belongs there".to_owned(),
        None if source.to_string().contains("non-zero") => {
            "a whole number, 1 or more, belongs there".to_owned()
        }
        None => "a whole number, 0 or more, belongs there".to_owned(),
    };
    Some(format!("error: {option}: \"{value}\" cannot be, {wanted}\n  = --help has all options"))
}

/// `1..=65536` in words.
fn range_words(range: &str) -> String {
    match range.split_once("..") {
        Some((least, most)) => {
            let most = most.trim_start_matches('=');
            let is_open =
                most.is_empty() || most.parse::<u64>().is_ok_and(|most| most >= u64::from(u32::MAX));
            let most = if is_open { " on".to_owned() } else { format!(" to {most}") };
            format!("a whole number from {least}{most}")
        }
        None => format!("one of {range}"),
    }
}

/// A mistake in how the command was called, or in a file that it reads: exit code 2.
#[derive(Debug)]
struct Usage(String);

/// Whether an error is a mistake in what was asked, not a failure of the answer.
fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>() || error.is::<Problem>()
}

impl Usage {
    /// A failure that is one.
    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    fn of(error: anyhow::Error) -> anyhow::Error {
        Self(format!("{error:#}")).into()
    }
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Whether the one who reads our output has gone, as `head` does: no failure of ours.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// A line for people, on standard error. Nobody may be there to read it.
fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{}", terminal::message(line));
}
