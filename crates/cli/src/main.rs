//! The `railnet` command: reads the command line, runs one command, and turns its outcome into an exit code.
//!
//! 0: done. 1: it failed, or a check found something. 2: wrong usage.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "files, clocks and threads are at home here"
)]

mod bench;
mod decode;
mod files;
mod replay;
mod schedule;
mod sim;
mod storm;
mod topo;
mod verbs;
mod wire;
mod words;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The AI training network in software: one RDMA stack, live and simulated.
#[derive(Parser)]
#[command(name = "railnet", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how fast a layer is on this machine
    Bench(bench::Arguments),
    /// Print the packets of a capture, and check them
    Decode(decode::Arguments),
    /// Hold recorded conversations again with this NIC, and compare its answers
    Replay(replay::Arguments),
    /// Show who sends what to whom in a collective, and prove it
    Schedule(schedule::Arguments),
    /// Run random work on bad wires and networks, seed after seed, and check all of it
    Storm(storm::Arguments),
    /// Run a scenario in a simulated fabric
    Sim(sim::Arguments),
    /// Print a fabric or a server: sizes, bandwidths, paths, and a picture
    Topo(topo::Arguments),
    /// Run one RDMA operation between two NICs and explain each step
    Verbs(verbs::Arguments),
}

/// What a command has to say about itself when it did not fail.
enum Outcome {
    /// All is well.
    Done,
    /// It ran, and what it checked is not in order.
    CheckFailed,
}

fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match command {
        Command::Bench(arguments) => bench::run(&arguments, out),
        Command::Decode(arguments) => decode::run(&arguments, out),
        Command::Replay(arguments) => replay::run(&arguments, out),
        Command::Schedule(arguments) => schedule::run(&arguments, out),
        Command::Storm(arguments) => storm::run(&arguments, out),
        Command::Sim(arguments) => sim::run(&arguments, out),
        Command::Topo(arguments) => topo::run(&arguments, out),
        Command::Verbs(arguments) => verbs::run(&arguments, out),
    }
}

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        let _ = Arguments::command().print_help();
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = run(arguments.command, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // What was printed before the failure is worth having, and comes first.
            let _ = out.flush();
            report(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether the one who reads our output has gone, as `head` does: no failure of ours.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// A line for people, on standard error. Nobody may be there to read it.
fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
