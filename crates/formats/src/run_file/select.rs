//! Some rows of a table: those of a window of time, and of those as many as a picture can show.

use std::collections::BTreeMap;

use super::table::{MISSING, Table};

/// Which rows are wanted.
#[derive(Clone, Debug)]
pub struct Query {
    /// From this moment on.
    pub from: u64,
    /// Up to this one.
    pub to: u64,
    /// At most so many.
    pub most: usize,
    /// Only rows whose column has this value.
    pub equal: Vec<(String, u64)>,
    /// Only rows of these ranks.
    pub ranks: Option<Vec<u32>>,
}

impl Query {
    /// All rows.
    pub fn all() -> Self {
        Self { from: 0, to: MISSING, most: usize::MAX, equal: Vec::new(), ranks: None }
    }
}

/// How a table lies in time: the columns that say when a row begins and ends, which one tells tracks apart, and which
/// says how much it matters.
struct Shape {
    begins: &'static str,
    ends: &'static str,
    track: &'static str,
    weight: Option<&'static str>,
}

fn shape(table: &str) -> Option<Shape> {
    let shape = |begins, ends, track, weight| Some(Shape { begins, ends, track, weight });
    match table {
        "operations" => shape("entered", "ended", "rank", None),
        "calls" => shape("begun", "ended", "communicator", None),
        "slices" => shape("sent", "arrived", "from", None),
        "load" => shape("bin", "bin", "channel", Some("queue")),
        "packets" => shape("sent", "received", "queue_pair", None),
        "hops" => shape("time", "time", "channel", Some("waiting")),
        "messages" => shape("posted", "completed", "queue_pair", None),
        "states" | "rates" | "completions" => shape("time", "time", "queue_pair", None),
        "pauses" => shape("begun", "ended", "channel", None),
        "incidents" => shape("time", "time", "kind", None),
        _ => None,
    }
}

/// The numbers of the rows that a query is about, in their order, and how many there were before some were left out. Of
/// rows that fall together in time and on the same track the one that matters most is kept.
pub fn select(table: &Table, query: &Query, bin_width: u64) -> (Vec<u32>, usize) {
    let shape = shape(&table.name);
    let columns = shape.as_ref().and_then(|shape| {
        Some((table.column(shape.begins)?, table.column(shape.ends)?, table.column(shape.track)?))
    });
    let equal: Vec<(usize, u64)> =
        query.equal.iter().filter_map(|(name, value)| Some((table.column(name)?, *value))).collect();
    let ranks = query.ranks.as_ref().and_then(|ranks| Some((table.column("rank")?, ranks)));
    let scale = if table.name == "load" { bin_width.max(1) } else { 1 };
    let span = |row: usize| {
        let Some((begins, ends, _)) = columns else { return (0, MISSING) };
        let begins = table.get(row, begins).saturating_mul(scale);
        let ends = table.get(row, ends);
        // What never ended is as long as a moment.
        (begins, if ends == MISSING { begins } else { ends.saturating_mul(scale).saturating_add(scale - 1) })
    };
    let found: Vec<u32> = (0..table.rows)
        .filter(|row| {
            let (begins, ends) = span(*row);
            begins <= query.to
                && ends >= query.from
                && equal.iter().all(|(column, value)| table.get(*row, *column) == *value)
                && ranks.is_none_or(|(column, ranks)| ranks.contains(&(table.get(*row, column) as u32)))
        })
        .map(|row| row as u32)
        .collect();
    let total = found.len();
    let (Some((_, _, track)), true) = (columns, total > query.most) else { return (found, total) };
    let weight = shape.and_then(|shape| shape.weight).and_then(|name| table.column(name));
    let tracks = {
        let mut all: Vec<u64> = found.iter().map(|row| table.get(*row as usize, track)).collect();
        all.sort_unstable();
        all.dedup();
        all.len().max(1)
    };
    let last = found.iter().map(|row| span(*row as usize).1).max().unwrap_or(0);
    let first = found.iter().map(|row| span(*row as usize).0).min().unwrap_or(0);
    let (from, to) = (query.from.max(first), query.to.min(last));
    // At least one bucket for each track, so there may be more rows than asked for where there are more tracks than that.
    let buckets = (query.most / tracks).max(1) as u64;
    let width = (to.saturating_sub(from) / buckets).max(1);
    let mut kept: BTreeMap<(u64, u64), (u64, u32)> = BTreeMap::new();
    for row in found {
        let (begins, ends) = span(row as usize);
        let matters = weight.map_or(ends.saturating_sub(begins), |column| table.get(row as usize, column));
        let bucket = begins.saturating_sub(from) / width;
        let place = kept.entry((table.get(row as usize, track), bucket)).or_insert((matters, row));
        if matters > place.0 {
            *place = (matters, row);
        }
    }
    let mut rows: Vec<u32> = kept.into_values().map(|(_, row)| row).collect();
    rows.sort_unstable();
    if rows.len() > query.most {
        let every = rows.len().div_ceil(query.most);
        rows = rows.into_iter().step_by(every).collect();
    }
    (rows, total)
}
