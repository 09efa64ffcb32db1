//! `railnet storm nic`: NICs with random work on a wire that does its worst, against a reference model.

use std::io::Write;

use railnet_core::{RunDigest, Span};
use railnet_nic::testing::Injected;
use railnet_nic::testing::storm::{self, Scenario, Summary};

use super::Extent;
use crate::Outcome;
use crate::wire::Wire;

const EXAMPLES: &str = "\
Examples:
  railnet storm nic --seeds 10000               ten thousand seeds
  railnet storm nic --seeds 10000 --wire bytes  the same with every packet as bytes: the digest must be the same
  railnet storm nic --seeds 1 --seed 0x5eed     one seed again";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    extent: Extent,
    /// How packets travel
    #[arg(long, value_enum, default_value_t = Wire::Values)]
    wire: Wire,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let form = arguments.wire.form();
    let replay = format!("railnet storm nic --wire {}", arguments.wire.name());
    let one = |seed| storm::run(seed, form).map_err(|violation| violation.to_string());
    super::storm::<Totals>(&arguments.extent, &replay, one, out)
}

impl super::Summary for Summary {
    fn digest(&self) -> RunDigest {
        self.digest
    }

    fn line(&self) -> String {
        let Self { nics, queue_pairs, operations, packets, resent, .. } = self;
        format!(
            "{nics} NICs, {queue_pairs} queue pairs, {operations} operations, {packets} packets, {resent} sent again, \
             {}, {}, digest {}",
            self.scenario.name(),
            self.virtual_time,
            self.digest
        )
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    queue_pairs: u64,
    operations: u64,
    packets: u64,
    resent: u64,
    timeouts: u64,
    sequence_naks: u64,
    rnr_naks: u64,
    notifications: u64,
    events: u64,
    virtual_time: Span,
    injected: Injected,
    scenarios: [u64; Scenario::ALL.len()],
}

impl super::Totals for Totals {
    type One = Summary;

    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.queue_pairs += summary.queue_pairs;
        self.operations += summary.operations;
        self.packets += summary.packets;
        self.resent += summary.resent;
        self.timeouts += summary.timeouts;
        self.sequence_naks += summary.sequence_naks;
        self.rnr_naks += summary.rnr_naks;
        self.notifications += summary.notifications;
        self.events += summary.events;
        self.virtual_time += summary.virtual_time;
        let (sum, one) = (&mut self.injected, &summary.injected);
        sum.lost += one.lost;
        sum.cut += one.cut;
        sum.duplicated += one.duplicated;
        sum.reordered += one.reordered;
        sum.delayed += one.delayed;
        sum.corrupted += one.corrupted;
        sum.marked += one.marked;
        self.scenarios[summary.scenario as usize] += 1;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let Injected { lost, cut, duplicated, reordered, delayed, corrupted, marked } = self.injected;
        writeln!(out, "seeds           {} passed, {failed} failed", self.seeds)?;
        writeln!(out, "operations      {} on {} queue pairs", self.operations, self.queue_pairs)?;
        writeln!(out, "packets         {} sent, {} of them again", self.packets, self.resent)?;
        writeln!(
            out,
            "faults          {lost} lost, {cut} cut off, {corrupted} corrupted, {duplicated} duplicated, {reordered} \
             reordered, {delayed} delayed, {marked} marked"
        )?;
        writeln!(
            out,
            "recovery        {} timeouts, {} sequence NAKs, {} receiver-not-ready NAKs, {} congestion notifications",
            self.timeouts, self.sequence_naks, self.rnr_naks, self.notifications
        )?;
        writeln!(out, "provoked        {}", self.provoked())?;
        writeln!(out, "virtual time    {}, {} events", self.virtual_time, self.events)
    }
}

impl Totals {
    fn provoked(&self) -> String {
        let provoked = Scenario::ALL
            .iter()
            .zip(self.scenarios)
            .filter(|(scenario, count)| **scenario != Scenario::None && *count > 0);
        let list: Vec<String> =
            provoked.map(|(scenario, count)| format!("{count} {}", scenario.name())).collect();
        if list.is_empty() { "nothing".into() } else { list.join(", ") }
    }
}
