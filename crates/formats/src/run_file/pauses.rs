//! Pauses and waits for credit, and what each came from.
//!
//! A switch that may not send by one of its ports fills up, and soon tells others to stop. Which of its packets filled it nobody
//! notes; the port that had been held back for longest when it told them is taken for the cause. A host needs none: it does not
//! pass anything on. Nor does a switch of which no port was held back: more came in than could go out. If one is held back while
//! that lasts, it is the cause from then on, in a row of its own.

use std::collections::BTreeMap;

use railnet_topology::{FabricGraph, LinkKind};

use super::schema::{self, NOBODY};
use super::table::{MISSING, Table};

/// Waits for credit that are no further apart than this are one: a few packets at 100 Gb/s take as long.
const CREDIT_GAP: u64 = 2_000_000;

/// Columns that are looked at later.
const BEGUN: usize = 0;
const ENDED: usize = 1;
const CAUSE: usize = 4;

#[derive(Debug)]
pub(super) struct Pauses {
    most: usize,
    table: Table,
    /// How long it takes over each link until it is known at the other end that it shall stop, in picoseconds.
    delays: Vec<u64>,
    /// Links that lead far away: packets may have a higher priority behind them.
    is_global: Vec<bool>,
    /// Waits that are no further apart than this are one.
    gap: u64,
    /// The last pause of each channel and priority.
    last: BTreeMap<(u32, u8), u32>,
}

impl Pauses {
    pub(super) fn new(graph: &FabricGraph, most: usize) -> Self {
        let delays = graph.links.iter().map(|link| link.delay.as_ps()).collect();
        let is_global = graph.links.iter().map(|link| link.kind == LinkKind::Global).collect();
        let table = Table::new("pauses", schema::PAUSES);
        Self { most, table, delays, is_global, gap: 0, last: BTreeMap::new() }
    }

    /// A channel stops with a priority. `ahead` are the channels by which the one who told it so sends on what it gets: a host
    /// sends on nothing. `behind` are those that come to where this one begins.
    pub(super) fn begun(
        &mut self,
        at: u64,
        (channel, priority): (u32, u8),
        ahead: &[u32],
        behind: impl Iterator<Item = u32>,
    ) {
        if self.table.rows >= self.most {
            return;
        }
        let told = at.saturating_sub(self.delays[channel as usize / 2]);
        let cause = ahead
            .iter()
            // What came from there does not go back there.
            .filter(|other| **other != channel ^ 1)
            .flat_map(|other| self.behind(channel, priority).map(|priority| (*other, priority)))
            .filter_map(|(other, priority)| Some((other, *self.last.get(&(other, priority))?)))
            .filter(|(_, row)| {
                let cell = |column| self.table.get(*row as usize, column);
                cell(BEGUN) <= told && cell(ENDED).saturating_add(self.gap) >= told
            })
            .min_by_key(|(_, row)| *row);
        let cause = cause.map_or(NOBODY, |(other, _)| u64::from(other));
        let row = self.table.push([at, MISSING, u64::from(channel), u64::from(priority), cause]);
        self.last.insert((channel, priority), row);
        for other in behind.filter(|other| *other != channel ^ 1) {
            for before in 0..=priority {
                if self.behind(other, before).contains(&priority) {
                    self.blame(at, (other, before), channel);
                }
            }
        }
    }

    /// The priorities that packets of one priority may have behind a channel.
    fn behind(&self, channel: u32, priority: u8) -> std::ops::RangeInclusive<u8> {
        priority..=if self.is_global[channel as usize / 2] { (priority + 1).min(7) } else { priority }
    }

    /// A pause that had no cause and still holds has one from now on.
    fn blame(&mut self, at: u64, (channel, priority): (u32, u8), cause: u32) {
        let Some(row) = self.last.get(&(channel, priority)).map(|row| *row as usize) else { return };
        let is_open = self.table.get(row, ENDED) == MISSING && self.table.get(row, CAUSE) == NOBODY;
        if is_open && self.table.rows < self.most {
            self.table.set(row as u32, ENDED, at);
            let row = self.table.push([at, MISSING, channel.into(), priority.into(), cause.into()]);
            self.last.insert((channel, priority), row);
        }
    }

    /// Whether a channel that waits for credit has just done so: where credit comes packet by packet, it waits all the time.
    pub(super) fn lasts(&mut self, at: u64, channel: u32, priority: u8) -> bool {
        self.gap = CREDIT_GAP;
        let Some(&row) = self.last.get(&(channel, priority)) else { return false };
        let ended = self.table.get(row as usize, ENDED);
        let lasts = ended != MISSING && at <= ended + self.gap;
        if lasts {
            self.table.set(row, ENDED, MISSING);
        }
        lasts
    }

    /// A channel goes on with a priority.
    pub(super) fn ended(&mut self, at: u64, channel: u32, priority: u8) {
        if let Some(row) = self.last.get(&(channel, priority))
            && self.table.get(*row as usize, ENDED) == MISSING
        {
            self.table.set(*row, ENDED, at);
        }
    }

    /// All of them; those that still hold last until the end.
    pub(super) fn finish(mut self, end: u64) -> Table {
        for row in self.last.into_values() {
            if self.table.get(row as usize, ENDED) == MISSING {
                self.table.set(row, ENDED, end);
            }
        }
        self.table
    }
}
