//! `railnet bench`: how fast each layer is on this machine.

mod calendar;
pub(crate) mod live;
mod nic;
mod roce;
mod schedule;
mod sim;

use std::io::Write;

use clap::Subcommand;

use crate::Outcome;

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
    /// Railnet's collectives between real processes against MPI and Gloo, by turns
    Live(live::Arguments),
    /// The simulator's calendar against a binary heap
    Calendar(calendar::Arguments),
    /// Building and proving schedules of collectives, on one core
    Schedule(schedule::Arguments),
    /// Whole simulated runs, on one core
    Sim(sim::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match &arguments.layer {
        Layer::Nic(arguments) => nic::run(arguments, out),
        Layer::Roce(arguments) => roce::run(arguments, out),
        Layer::Live(arguments) => live::run(arguments, out),
        Layer::Calendar(arguments) => calendar::run(arguments, out),
        Layer::Schedule(arguments) => schedule::run(arguments, out),
        Layer::Sim(arguments) => sim::run(arguments, out),
    }
}
