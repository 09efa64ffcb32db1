//! What each rank did over time, as shares of bins: computing by kind, communicating, waiting for late ranks, exposed. Any window can be
//! asked for in any number of bins; nothing is left out of a bin, however many operations are in it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::schema;
use super::table::{MISSING, Table};

/// A bin that is full.
pub const WHOLE: u64 = u16::MAX as u64;
/// Communication among the kinds of operations; those before it compute.
const COMMUNICATION: usize = 5;
/// Classes of time: the kinds of operations, waiting for late ranks, and communication with nothing computed meanwhile.
const WAITING: usize = 6;
const EXPOSED: usize = 7;
const CLASSES: usize = 8;

type Span = (u64, u64);

/// Stretches of time that do not overlap, in order, and how long those before each are together.
#[derive(Clone, Default, Debug)]
struct Stretches {
    list: Vec<Span>,
    before: Vec<u64>,
}

impl Stretches {
    fn of(mut spans: Vec<Span>) -> Self {
        spans.sort_unstable();
        let mut list: Vec<Span> = Vec::with_capacity(spans.len());
        for (from, to) in spans.into_iter().filter(|(from, to)| to > from) {
            match list.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => list.push((from, to)),
            }
        }
        Self::merged(list)
    }

    fn merged(list: Vec<Span>) -> Self {
        let mut sum = 0;
        let mut before = Vec::with_capacity(list.len());
        for (from, to) in &list {
            before.push(sum);
            sum = u64::saturating_add(sum, to - from);
        }
        Self { list, before }
    }

    /// Those of these stretches in which none of the others is.
    fn without(&self, holes: &Self) -> Self {
        let (mut left, mut first) = (Vec::new(), 0);
        for &(from, to) in &self.list {
            let mut start = from;
            while holes.list.get(first).is_some_and(|hole| hole.1 <= start) {
                first += 1;
            }
            for hole in holes.list[first..].iter().take_while(|hole| hole.0 < to) {
                if hole.0 > start {
                    left.push((start, hole.0));
                }
                start = start.max(hole.1);
            }
            if start < to {
                left.push((start, to));
            }
        }
        Self::merged(left)
    }

    /// How much of the time up to a moment they take.
    fn until(&self, time: u64) -> u64 {
        let place = self.list.partition_point(|(from, _)| *from < time);
        place.checked_sub(1).map_or(0, |place| {
            let (from, to) = self.list[place];
            self.before[place].saturating_add(time.min(to) - from)
        })
    }
}

/// What a rank did.
#[derive(Clone, Default, Debug)]
struct Lanes {
    classes: [Stretches; CLASSES],
    /// When others had waited for it, and how long until then, all of them together.
    late: Vec<(u64, u64)>,
}

impl Lanes {
    fn late_until(&self, time: u64) -> u64 {
        let place = self.late.partition_point(|(at, _)| *at < time);
        place.checked_sub(1).map_or(0, |place| self.late[place].1)
    }
}

/// What all ranks did.
#[derive(Clone, Default, Debug)]
pub struct RankShares {
    ranks: BTreeMap<u32, Lanes>,
}

impl RankShares {
    /// What the operations of a run say. `alike` has ranks that stand for several, as the run's meta does.
    pub fn of(operations: &Table, alike: &Value) -> Self {
        let names = ["rank", "kind", "entered", "begun", "ended", "late", "waited"];
        let columns = names.map(|name| operations.column(name));
        let cell = |row: usize, place: usize| columns[place].map_or(0, |column| operations.get(row, column));
        let weights: BTreeMap<u64, u64> = (alike.as_array().into_iter().flatten())
            .filter_map(|pair| Some((pair[0].as_u64()?, pair[1].as_u64()?)))
            .collect();
        let mut spans: BTreeMap<u32, [Vec<Span>; WAITING + 1]> = BTreeMap::new();
        let mut late: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        let knows_late = columns[5].is_some();
        for row in 0..operations.rows {
            let (rank, kind) = (cell(row, 0), (cell(row, 1) as usize).min(COMMUNICATION));
            let (entered, begun, ended) = (cell(row, 2), cell(row, 3), cell(row, 4));
            let ended = if ended == MISSING { begun } else { ended };
            let own = spans.entry(rank as u32).or_default();
            own[kind].push((begun, ended));
            own[WAITING].push(if kind == COMMUNICATION { (entered, begun) } else { (0, 0) });
            if knows_late && cell(row, 5) != schema::NOBODY && cell(row, 6) > 0 {
                let ranks = weights.get(&rank).copied().unwrap_or(1);
                late.entry(cell(row, 5) as u32)
                    .or_default()
                    .push((begun, ranks.saturating_mul(cell(row, 6))));
            }
        }
        let mut ranks: BTreeMap<u32, Lanes> = BTreeMap::new();
        for (rank, spans) in spans {
            let computed = Stretches::of(spans[..COMMUNICATION].concat());
            let talked = Stretches::of([&spans[COMMUNICATION][..], &spans[WAITING][..]].concat());
            let lanes = ranks.entry(rank).or_default();
            lanes.classes[EXPOSED] = talked.without(&computed);
            for (place, list) in spans.into_iter().enumerate() {
                lanes.classes[place] = Stretches::of(list);
            }
        }
        for (rank, mut list) in late {
            list.sort_unstable();
            let mut sum = 0;
            for (_, wait) in &mut list {
                sum = u64::saturating_add(sum, *wait);
                *wait = sum;
            }
            ranks.entry(rank).or_default().late = list;
        }
        Self { ranks }
    }

    /// The ranks of which something is known.
    pub fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks.keys().copied()
    }

    /// A window in so many bins, of these ranks or of all of them: a row for each rank and bin in which something was.
    pub fn bins(&self, (from, to): (u64, u64), bins: u64, wanted: Option<&[u32]>) -> Table {
        let mut table = Table::new("shares", schema::SHARES);
        let (bins, span) = (bins.max(1), to.saturating_sub(from).max(1));
        let edge =
            |bin: u64| from.saturating_add((u128::from(span) * u128::from(bin) / u128::from(bins)) as u64);
        for (rank, lanes) in &self.ranks {
            if wanted.is_some_and(|wanted| !wanted.contains(rank)) {
                continue;
            }
            let mut before: Vec<u64> = lanes.classes.iter().map(|class| class.until(from)).collect();
            let mut late_before = lanes.late_until(from);
            for bin in 0..bins {
                let (start, end) = (edge(bin), edge(bin + 1).max(edge(bin).saturating_add(1)));
                let mut row = [0; CLASSES + 3];
                (row[0], row[1]) = (u64::from(*rank), bin);
                for (place, class) in lanes.classes.iter().enumerate() {
                    let until = class.until(end);
                    let busy = until - std::mem::replace(&mut before[place], until);
                    let share = u128::from(busy) * u128::from(WHOLE) / u128::from(end - start).max(1);
                    // What is there at all is not nothing.
                    row[2 + place] = (share as u64).clamp(u64::from(busy > 0), WHOLE);
                }
                let until = lanes.late_until(if bin + 1 == bins { end.saturating_add(1) } else { end });
                row[CLASSES + 2] = until - std::mem::replace(&mut late_before, until);
                if row[2..].iter().any(|value| *value > 0) {
                    table.push(row);
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 0 computes in the first and third quarter of each 1,000 and communicates in the second half; rank 1 waits for it.
    fn operations(rounds: u64) -> Table {
        let mut table = Table::new("operations", schema::OPERATIONS);
        for round in 0..rounds {
            let at = round * 1_000;
            let nobody = schema::NOBODY;
            table.push([0, 0, 0, 0, at, at, at + 250, 0, 0, 0, 0, 0, nobody, 0]);
            table.push([0, 0, 2, 0, at + 500, at + 500, at + 750, 0, 0, 0, 0, 0, nobody, 0]);
            table.push([0, 1, 5, 0, at + 500, at + 500, at + 1_000, 0, 0, 0, 0, 0, nobody, 0]);
            table.push([1, 1, 5, 0, at + 400, at + 500, at + 1_000, 0, 0, 0, 0, 0, 0, 100]);
        }
        table
    }

    fn sums(table: &Table, rank: u64, column: &str) -> u64 {
        let column = table.column(column).unwrap();
        (0..table.rows).filter(|row| table.get(*row, 0) == rank).map(|row| table.get(row, column)).sum()
    }

    #[test]
    fn bins_have_all_of_the_time_at_every_zoom() {
        let shares = RankShares::of(&operations(10_000), &serde_json::json!([[0, 1], [1, 7]]));
        for (window, bins) in
            [((0, 10_000_000), 1), ((0, 10_000_000), 777), ((4_000, 8_000), 4), ((4_000, 8_000), 400)]
        {
            let table = shares.bins(window, bins, None);
            let mean = |rank, column| sums(&table, rank, column) as f64 / (bins * WHOLE) as f64;
            for (rank, column, share) in [
                (0, "forward", 0.25),
                (0, "backward", 0.25),
                (0, "communication", 0.5),
                (0, "exposed", 0.25),
                (0, "waiting", 0.0),
                (1, "waiting", 0.1),
                (1, "exposed", 0.6),
            ] {
                let found = mean(rank, column);
                assert!(
                    (found - share).abs() < 0.002,
                    "{column} of rank {rank}: {found} in {bins} bins of {window:?}"
                );
            }
            let rounds = (window.1 - window.0) / 1_000;
            assert_eq!(
                sums(&table, 0, "late"),
                7 * 100 * rounds,
                "each of the seven that rank 1 stands for waits"
            );
        }
        assert_eq!(shares.bins((0, 10), 3, Some(&[1])).rows, 0, "nothing of rank 1 yet");
    }
}
