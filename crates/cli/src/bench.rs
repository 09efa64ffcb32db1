//! `railnet bench`: how fast each layer is on this machine.

mod calendar;
pub(crate) mod live;
mod nic;
mod rdma;
mod roce;
mod schedule;
mod sim;

use std::io::Write;

use clap::Subcommand;

use crate::{Outcome, Usage};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  railnet bench nic --seconds 0.5 --repeat 5\n  railnet bench sim --only ring"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    layer: Layer,
}

#[derive(Subcommand)]
enum Layer {
    /// Two NICs joined in memory, on one core
    Nic(nic::Arguments),
    /// RoCEv2 over this host's UDP against UDP alone, on two cores
    Roce(roce::Arguments),
    /// Unmodified RDMA programs on the software NIC against the NIC by itself, and UCX over it against UCX over TCP
    Rdma(rdma::Arguments),
    /// Railnet's collectives between real processes against MPI and Gloo, interleaved
    Live(live::Arguments),
    /// The simulator's calendar against a binary heap
    Calendar(calendar::Arguments),
    /// Building and proving schedules of collectives, on one core
    Schedule(schedule::Arguments),
    /// Whole simulated runs, on one core
    Sim(sim::Arguments),
}

/// How often something is measured: once at least.
fn times(text: &str) -> Result<usize, String> {
    let times: usize = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
    if times > 0 { Ok(times) } else { Err("0 measures nothing; 1 is the least".to_owned()) }
}

/// How long something is measured, in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let is_fine = seconds > 0.0 && seconds <= 60.0;
    if is_fine { Ok(seconds) } else { Err("it must be more than 0 and at most 60".to_owned()) }
}

/// Those with the words of `--only` in their names, or all; where there are none, the mistake names all.
fn chosen<'a, T>(
    all: &'a [T],
    only: Option<&str>,
    name: impl Fn(&T) -> &'static str,
) -> Result<Vec<(usize, &'a T)>, Usage> {
    let wanted = |one: &T| only.is_none_or(|only| name(one).contains(only));
    let rows: Vec<(usize, &T)> = all.iter().enumerate().filter(|(_, one)| wanted(one)).collect();
    if rows.is_empty() {
        let names: Vec<&str> = all.iter().map(name).collect();
        let only = only.unwrap_or_default();
        return Err(Usage(format!("no row has `{only}` in its name; there are: {}", names.join("; "))));
    }
    Ok(rows)
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match &arguments.layer {
        Layer::Nic(arguments) => nic::run(arguments, out),
        Layer::Roce(arguments) => roce::run(arguments, out),
        Layer::Rdma(arguments) => rdma::run(arguments, out),
        Layer::Live(arguments) => live::run(arguments, out),
        Layer::Calendar(arguments) => calendar::run(arguments, out),
        Layer::Schedule(arguments) => schedule::run(arguments, out),
        Layer::Sim(arguments) => sim::run(arguments, out),
    }
}
