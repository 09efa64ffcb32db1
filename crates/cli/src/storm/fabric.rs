//! `railnet storm fabric`: random networks with random traffic and faults, and everything about them checked.

use std::collections::BTreeMap;
use std::io::Write;

use railnet_core::{RunDigest, Span};
use railnet_fabric::testing::storm::{self, Summary};

use super::Extent;
use crate::Outcome;
use crate::wire::Wire;

const EXAMPLES: &str = "\
Examples:
  railnet storm fabric --seeds 1000                 a thousand seeds, each as values and as bytes
  railnet storm fabric --seeds 1000 --wire values   the same in half the time
  railnet storm fabric --seeds 1 --seed 0x5eed      one seed again
  railnet storm fabric --seeds 1 --seed 0x5eed --describe   what it stands for";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    extent: Extent,
    /// How packets travel; without it both ways, which must come to the same
    #[arg(long, value_enum)]
    wire: Option<Wire>,
    /// Print the scenario of each seed in words, and run none
    #[arg(long, conflicts_with_all = ["wire", "verbose"])]
    describe: bool,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let Extent { seeds, seed, .. } = arguments.extent;
    if arguments.describe {
        for seed in (0..seeds).map(|offset| seed.wrapping_add(offset)) {
            writeln!(out, "seed {seed:#x}: {}", storm::describe(seed))?;
        }
        return Ok(Outcome::Done);
    }
    let wire = arguments.wire;
    let option = wire.map(|wire| format!(" --wire {}", wire.name())).unwrap_or_default();
    let one = |seed| {
        let result = match wire {
            Some(wire) => storm::run_form(seed, wire.form()),
            None => storm::run(seed),
        };
        result.map_err(|violation| violation.to_string())
    };
    super::storm::<Totals>(&arguments.extent, &format!("railnet storm fabric{option}"), one, out)
}

impl super::Summary for Summary {
    fn digest(&self) -> RunDigest {
        self.digest
    }

    fn line(&self) -> String {
        let Self { kind, hosts, switches, messages, failed, packets, resent, .. } = self;
        let locked = if self.is_locked { ", deadlock" } else { "" };
        format!(
            "{kind}, {hosts} hosts, {switches} switches, {messages} messages, {failed} failed{locked}, {packets} packets, \
             {resent} sent again, {}, digest {}",
            self.virtual_time, self.digest
        )
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    kinds: BTreeMap<&'static str, u64>,
    messages: u64,
    failed: u64,
    locked: u64,
    packets: u64,
    resent: u64,
    timeouts: u64,
    sequence_naks: u64,
    notifications: u64,
    marked: u64,
    dropped: u64,
    unroutable: u64,
    lost: u64,
    corrupted: u64,
    pauses: u64,
    rerouted: u64,
    virtual_time: Span,
    events: u64,
}

impl super::Totals for Totals {
    type One = Summary;

    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        *self.kinds.entry(summary.kind).or_default() += 1;
        self.messages += summary.messages;
        self.failed += summary.failed;
        self.locked += u64::from(summary.is_locked);
        self.packets += summary.packets;
        self.resent += summary.resent;
        self.timeouts += summary.timeouts;
        self.sequence_naks += summary.sequence_naks;
        self.notifications += summary.notifications;
        self.marked += summary.marked;
        self.dropped += summary.dropped;
        self.unroutable += summary.unroutable;
        self.lost += summary.lost;
        self.corrupted += summary.corrupted;
        self.pauses += summary.pauses;
        self.rerouted += summary.rerouted;
        self.virtual_time += summary.virtual_time;
        self.events += summary.events;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(out, "seeds           {} passed, {failed} failed", self.seeds)?;
        writeln!(out, "fabrics         {}", kinds.join(", "))?;
        writeln!(
            out,
            "messages        {}, {} failed as faults allow, {} runs ended in a deadlock that was found",
            self.messages, self.failed, self.locked
        )?;
        writeln!(out, "packets         {} sent, {} of them again", self.packets, self.resent)?;
        writeln!(
            out,
            "faults          {} lost, {} corrupted, {} without a route, routes changed {} times",
            self.lost, self.corrupted, self.unroutable, self.rerouted
        )?;
        writeln!(
            out,
            "switches        {} marked, {} dropped, ports paused {} times",
            self.marked, self.dropped, self.pauses
        )?;
        writeln!(
            out,
            "recovery        {} timeouts, {} sequence NAKs, {} congestion notifications",
            self.timeouts, self.sequence_naks, self.notifications
        )?;
        writeln!(out, "virtual time    {}, {} events", self.virtual_time, self.events)
    }
}
