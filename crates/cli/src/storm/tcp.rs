//! `railnet storm tcp`: TCP connections on a wire that does its worst, with every byte checked.

use std::io::Write;

use railnet_core::{RunDigest, Span};
use railnet_nic::frame::WireForm;
use railnet_tcp::Counters;
use railnet_tcp::control::ControlKind;
use railnet_tcp::testing::storm::{self, Summary};

use super::Extent;
use crate::Outcome;
use crate::wire::Wire;

const EXAMPLES: &str = "\
Examples:
  railnet storm tcp --seeds 10000               ten thousand seeds
  railnet storm tcp --seeds 10000 --wire bytes  the same with every segment as bytes: the digest must be the same
  railnet storm tcp --seeds 1 --seed 0x5eed     one seed again";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    extent: Extent,
    /// How segments travel
    #[arg(long, value_enum, default_value_t = Wire::Values)]
    wire: Wire,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let as_bytes = arguments.wire.form() == WireForm::Bytes;
    let replay = format!("railnet storm tcp --wire {}", arguments.wire.name());
    super::storm::<Totals>(&arguments.extent, &replay, |seed| storm::run(seed, as_bytes), out)
}

impl super::Summary for Summary {
    fn digest(&self) -> RunDigest {
        self.digest
    }

    fn line(&self) -> String {
        let [a, b] = self.controls.map(ControlKind::name);
        let Counters { segments, resent, recoveries, timeouts, .. } = self.counters;
        format!(
            "{a} and {b}, {} B, {segments} segments, {resent} sent again, {recoveries} recoveries, {timeouts} timeouts, {}, digest {}",
            self.bytes, self.virtual_time, self.digest
        )
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    bytes: u64,
    counters: Counters,
    lost: u64,
    virtual_time: Span,
}

impl super::Totals for Totals {
    type One = Summary;

    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.bytes += summary.bytes;
        self.lost += summary.lost;
        self.virtual_time += summary.virtual_time;
        let (sum, one) = (&mut self.counters, &summary.counters);
        sum.segments += one.segments;
        sum.resent += one.resent;
        sum.acks += one.acks;
        sum.recoveries += one.recoveries;
        sum.timeouts += one.timeouts;
        sum.marked += one.marked;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let Counters { segments, resent, acks, recoveries, timeouts, marked } = self.counters;
        writeln!(out, "seeds           {} passed, {failed} failed", self.seeds)?;
        writeln!(out, "data            {} B, every one compared", self.bytes)?;
        writeln!(
            out,
            "segments        {segments} sent, {resent} of them again; {acks} acknowledgements alone"
        )?;
        writeln!(out, "faults          {} lost or dropped, {marked} marked", self.lost)?;
        writeln!(out, "recovery        {recoveries} from acknowledgements, {timeouts} timeouts")?;
        writeln!(out, "virtual time    {}", self.virtual_time)
    }
}
