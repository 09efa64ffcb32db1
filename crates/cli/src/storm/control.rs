//! `railnet storm control`: agreements on failed ranks against a simulated adversary.

use std::io::Write;

use railnet_core::RunDigest;
use railnet_live::agreement::storm::{self, Story};

use super::Extent;
use crate::Outcome;

const EXAMPLES: &str = "\
Examples:
  railnet storm control --seeds 100000             2 to 16 ranks, 1 to n-1 deaths, stops, partitions, delays
  railnet storm control --seeds 1 --seed 0x5eed    one seed again

Every generation has one membership, which is a quorum of the one before; no rank waits past its timeout; no rank that
answered within the timeout is excluded; ranks to which nothing happens continue together where they are a quorum.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    extent: Extent,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let one = |seed| storm::run(seed).map_err(|violation| violation.to_string());
    super::storm::<Totals>(&arguments.extent, "railnet storm control", one, out)
}

impl super::Summary for Story {
    fn digest(&self) -> RunDigest {
        self.digest
    }

    fn line(&self) -> String {
        let Self { ranks, deaths, stops, generations, members, digest, .. } = self;
        let partitioned = if self.is_partitioned { ", partitioned" } else { "" };
        format!(
            "{ranks} ranks, {deaths} died, {stops} stopped{partitioned}; {generations} decisions, {members} continue, digest {digest}"
        )
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    ranks: u64,
    deaths: u64,
    stops: u64,
    partitions: u64,
    generations: u64,
    restarts: u64,
    continued: u64,
    messages: u64,
}

impl super::Totals for Totals {
    type One = Story;

    fn add(&mut self, story: &Story) {
        self.seeds += 1;
        self.ranks += u64::from(story.ranks);
        self.deaths += u64::from(story.deaths);
        self.stops += u64::from(story.stops);
        self.partitions += u64::from(story.is_partitioned);
        self.generations += u64::from(story.generations);
        self.restarts += u64::from(story.generations.saturating_sub(1));
        self.continued += u64::from(story.members > 0);
        self.messages += story.messages;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let Self { seeds, ranks, deaths, stops, partitions, generations, restarts, continued, messages } =
            self;
        writeln!(out, "seeds           {seeds} passed, {failed} failed")?;
        writeln!(out, "ranks           {ranks}: {deaths} died, {stops} were stopped")?;
        writeln!(out, "partitions      {partitions}")?;
        writeln!(out, "decisions       {generations}, {restarts} of them because more ranks died meanwhile")?;
        writeln!(out, "memberships     {continued} runs continue, in the others no quorum was left")?;
        writeln!(out, "messages        {messages}")
    }
}
