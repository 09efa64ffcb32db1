//! Which packets are kept: some of every part of a run, and of those what matters first.
//!
//! A run is divided into windows of time that grow with it. All windows start with everything; when there is too much, the window
//! that has most keeps half of what it has, again and again. What is halved are runs of sequence numbers of a connection
//! ([`PacketSample`]), so that neighbours and their acknowledgements stay together; a packet to which something happened outlasts
//! some more halvings. The first packet of each connection stays, as long as those are not more than half of all. One connection is
//! left whole ([`Followed`]).

use std::collections::{BTreeMap, BTreeSet};

use railnet_core::{PacketSample, Psn, QueuePairNumber};

use super::follow::Followed;
use super::table::{MISSING, Table};

/// The most windows; while there are fewer than half of them the run is short.
const WINDOWS: usize = 64;
/// Picoseconds of the first windows.
const WIDTH_MIN: u64 = 1_000_000;

/// A window is halved in so many steps, in which connections between other hosts go one after the other: many have the same queue
/// pair numbers.
const STEPS: u32 = 8;
/// Halvings that packets outlast to which something happened: what was sent again, refused or lost, and what was marked.
const TROUBLE: u32 = 6;
const MARK: u32 = 2;

/// Columns of packets that are looked at.
pub(super) const HOST: usize = 1;
pub(super) const QUEUE_PAIR: usize = 2;
pub(super) const TARGET: usize = 3;
pub(super) const TO: usize = 4;
pub(super) const PSN: usize = 5;
pub(super) const SENT: usize = 0;
pub(super) const TRANSMISSION: usize = 7;
pub(super) const LENGTH: usize = 8;
const RECEIVED: usize = 9;
const MARKED: usize = 10;
pub(super) const SYNDROME: usize = 14;

/// After how many steps a packet goes, by what is known of it.
pub(super) fn depth(packets: &Table, row: usize) -> u32 {
    let cell = |column| packets.get(row, column);
    let number = |column| QueuePairNumber::new(cell(column) as u32);
    let plain = PacketSample::depth(Psn::new(cell(PSN) as u32), [QUEUE_PAIR, TARGET].map(number));
    let is_trouble = cell(RECEIVED) == MISSING || is_urgent(cell(TRANSMISSION), cell(SYNDROME));
    let halvings = plain + if is_trouble { TROUBLE } else { 0 } + if cell(MARKED) > 0 { MARK } else { 0 };
    // The same in both directions.
    let ends = (cell(HOST) + cell(TO)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    STEPS * halvings + (ends as u32 + cell(PSN) as u32 / PacketSample::RUN) % STEPS
}

/// Whether something has happened already when a packet is sent: it is sent again, or refuses another one.
pub(super) fn is_urgent(transmission: u64, syndrome: u64) -> bool {
    // The first bits of a syndrome: 0 an acknowledgement, 1 receiver not ready, 3 a refusal. All ones: there is none.
    transmission > 0 || syndrome != super::schema::NO_SYNDROME && syndrome >> 5 & 3 != 0
}

/// How often a sample can be halved until a packet goes, before it is a row.
pub(super) fn halvings_of(psn: Psn, pair: [QueuePairNumber; 2], transmission: u16, syndrome: u8) -> u32 {
    let trouble = if is_urgent(transmission.into(), syndrome.into()) { TROUBLE } else { 0 };
    PacketSample::depth(psn, pair) + trouble
}

/// A window: in how many steps it was made smaller, and how many packets are left.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    steps: u32,
    kept: usize,
}

/// Windows of time that share the packets which may be kept.
#[derive(Debug)]
pub(super) struct Windows {
    most: usize,
    /// Nothing was left out yet.
    pub(super) has_all: bool,
    width: u64,
    list: Vec<Window>,
}

impl Windows {
    pub(super) fn new(most: usize) -> Self {
        Self { most, has_all: true, width: WIDTH_MIN, list: Vec::new() }
    }

    /// The window of a moment; they grow until there is one.
    fn at(&mut self, time: u64) -> usize {
        while (time / self.width) as usize >= WINDOWS {
            self.width *= 2;
            let joined = |two: &[Window]| Window {
                steps: two.iter().map(|one| one.steps).min().unwrap_or(0),
                kept: two.iter().map(|one| one.kept).sum(),
            };
            self.list = self.list.chunks(2).map(joined).collect();
        }
        let window = (time / self.width) as usize;
        while self.list.len() <= window {
            self.list.push(self.next());
        }
        window
    }

    /// One more window: likely it will be as full as the one before, and it is soon known whether it is.
    fn next(&self) -> Window {
        if self.has_all {
            return Window::default();
        }
        let before = self.list.last().copied().unwrap_or_default();
        let fair = (self.most / (self.list.len() + 1)).max(1);
        let kept = before.kept.max(1);
        let (more, fewer) = ((kept / fair).max(1).ilog2(), (fair / kept).max(1).ilog2() + 1);
        Window { steps: (before.steps + STEPS * more).saturating_sub(STEPS * fewer), kept: 0 }
    }

    /// How often what is sent at this moment is halved.
    pub(super) fn halved(&mut self, time: u64) -> u32 {
        let window = self.at(time);
        self.list[window].steps / STEPS
    }

    /// A packet that was sent at this moment is kept.
    pub(super) fn keep(&mut self, time: u64) {
        let window = self.at(time);
        self.list[window].kept += 1;
    }

    /// The rows that are left when there shall not be too many. `depth` says after how many steps each goes; those of the connection
    /// that is followed stay.
    pub(super) fn choose(
        &mut self,
        packets: &Table,
        followed: Option<Followed>,
        depth: impl Fn(usize) -> u32,
    ) -> Vec<u32> {
        let Some(last) = packets.rows.checked_sub(1) else { return Vec::new() };
        // They come in the order of time: from here on windows do not grow.
        self.at(packets.get(last, SENT));
        // The first packet of each connection is in no window, but in a share of its own; so are those of the one that is followed.
        let (mut met, first) = (BTreeSet::new(), self.list.len());
        let whole = first + 1;
        let places: Vec<(usize, u32)> = (0..packets.rows)
            .map(|row| {
                let is_first = met.insert((packets.get(row, HOST), packets.get(row, QUEUE_PAIR)));
                let place = match (followed.is_some_and(|one| one.has(packets, row)), is_first) {
                    (true, _) => whole,
                    (_, true) => first,
                    _ => self.at(packets.get(row, SENT)),
                };
                (place, depth(row))
            })
            .collect();
        let mut by_depth = vec![BTreeMap::<u32, usize>::new(); whole + 1];
        let mut shares = self.list.clone();
        shares.resize(whole + 1, Window::default());
        for share in &mut shares {
            share.kept = 0;
        }
        for &(place, depth) in &places {
            shares[place].kept += 1;
            *by_depth[place].entry(depth).or_default() += 1;
        }
        let mut left = packets.rows - shares[whole].kept;
        let most = self.most.saturating_sub(shares[whole].kept);
        while left > most {
            // Those of the least depth go, of the fullest window; of several the first. None is emptied while others have more than
            // one run.
            let fullness = |place: &usize| (by_depth[*place].len() > 1, shares[*place].kept);
            let fullest = (0..first).rev().max_by_key(fullness).unwrap_or(0);
            let place = if shares[first].kept > most / 2 { first } else { fullest };
            let Some((depth, gone)) = by_depth[place].pop_first() else { break };
            if depth == PINNED {
                // Nothing else is left in there, nor, as it is the fullest, to speak of elsewhere.
                break;
            }
            left -= gone;
            let share = &mut shares[place];
            (share.kept, share.steps) = (share.kept - gone, share.steps.max(depth + 1));
        }
        let is_left = |row: &u32| {
            let (place, depth) = places[*row as usize];
            place == whole || depth >= shares[place].steps
        };
        let rows: Vec<u32> = (0..packets.rows as u32).filter(is_left).collect();
        self.has_all &= rows.len() == packets.rows;
        // What came by another rule than depth, and is not pinned any more, may have gone, too.
        for share in &mut shares {
            share.kept = 0;
        }
        for row in &rows {
            shares[places[*row as usize].0].kept += 1;
        }
        shares.truncate(first);
        self.list = shares;
        rows
    }
}

/// A packet that may not go yet.
pub(super) const PINNED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;

    /// Many at the beginning, few later: some of each window are left, and all to which something happened.
    #[test]
    fn every_part_of_a_run_keeps_some_of_its_packets() {
        let mut table = Table::new("packets", schema::PACKETS);
        let mut lost = 0;
        for number in 0..200_000_u64 {
            let (sent, psn) =
                if number < 100_000 { (number * 1_000, number) } else { (number * 100_000, number) };
            let is_lost = number % 10_000 == 77;
            lost += usize::from(is_lost);
            let received = if is_lost { MISSING } else { sent + 5_000_000 };
            let pair = (7 + number % 5, 300 + number % 5);
            table.push([sent, 0, pair.0, pair.1, 1, psn / 5, 4, 0, 4_096, received, 0, 0, 0, 0, 255, 0]);
        }
        let mut windows = Windows::new(4_000);
        let rows = windows.choose(&table, None, |row| depth(&table, row));
        assert!(rows.len() <= 4_000 && rows.len() > 2_000, "{}", rows.len());
        let mut each = [0; 20];
        for &row in &rows {
            each[(table.get(row as usize, SENT) / 1_000_000_000) as usize % 20] += 1;
        }
        assert!(each[11..].iter().all(|count| *count > 50), "{each:?}");
        let left = rows.iter().filter(|row| table.get(**row as usize, RECEIVED) == MISSING).count();
        assert!(left > lost / 2, "{left} of {lost}");
        // The same again leaves them as they are.
        let chosen = table.take(&rows);
        assert_eq!(windows.choose(&chosen, None, |row| depth(&chosen, row)).len(), rows.len());
    }
}
