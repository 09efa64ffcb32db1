//! The load of links in wider bins, for windows that have more rows than a picture can show. Rows cannot be left out here: what
//! links carried is a sum.

use super::schema;
use super::table::Table;

/// These rows of the loads, with neighbouring bins joined until there are at most so many, or one bin for each link and direction.
/// Column `bins` says how many bins a row stands for, `bin` which is the first of them.
#[must_use]
pub fn coarser(loads: &Table, rows: &[u32], most: usize) -> Table {
    let places = schema::LOAD.iter().map(|(name, _)| loads.column(name).unwrap_or(0)).collect::<Vec<_>>();
    let cell = |row: u32, column: usize| loads.get(row as usize, places[column]);
    let last = rows.last().map_or(0, |row| cell(*row, 0));
    // By index among those that occur: a damaged file may name channel 4,294,967,295.
    let mut channels: Vec<u64> = rows.iter().map(|row| cell(*row, 1)).collect();
    channels.sort_unstable();
    channels.dedup();
    let index = |row: u32| channels.partition_point(|channel| *channel < cell(row, 1));
    let indices: Vec<usize> = rows.iter().map(|row| index(*row)).collect();
    let groups = |joined: u64| rows.iter().map(move |row| cell(*row, 0) / joined).zip(&indices);
    let mut joined = rows.len().div_ceil(most.max(1)).next_power_of_two() as u64;
    while joined <= last && wide(groups(joined), channels.len()) > most && joined.leading_zeros() > 0 {
        joined *= 2;
    }
    let mut table = Table::new(&loads.name, schema::COARSE_LOAD);
    let mut sums = vec![[0_u64; 5]; channels.len()];
    let numbered: Vec<(u32, usize)> = rows.iter().copied().zip(indices.iter().copied()).collect();
    for group in numbered.chunk_by(|one, two| cell(one.0, 0) / joined == cell(two.0, 0) / joined) {
        for &(row, index) in group {
            let [bytes, queue, marks, paused, drops] = &mut sums[index];
            *bytes = bytes.saturating_add(cell(row, 2));
            *queue = (*queue).max(cell(row, 3));
            *marks = marks.saturating_add(cell(row, 4));
            *paused = paused.saturating_add(cell(row, 5));
            *drops = drops.saturating_add(cell(row, 6));
        }
        let first = cell(group[0].0, 0) / joined * joined;
        for (channel, sum) in channels.iter().zip(&mut sums).filter(|(_, sum)| **sum != [0; 5]) {
            let [bytes, queue, marks, paused, drops] = std::mem::take(sum);
            table.push([first, *channel, bytes, queue, marks, paused, drops, joined]);
        }
    }
    table
}

/// How many rows are left, of rows given as their group of bins and the index of their channel, in the order of time.
fn wide<'a>(rows: impl Iterator<Item = (u64, &'a usize)>, channels: usize) -> usize {
    let mut seen = vec![u64::MAX; channels];
    rows.filter(|(group, channel)| std::mem::replace(&mut seen[**channel], *group) != *group).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_bins_carry_what_they_carried_apart() {
        let mut loads = Table::new("load", schema::LOAD);
        for bin in 0..100 {
            for channel in 0..3 {
                loads.push([bin, channel, 10 + channel, bin, 1, 2, 0]);
            }
        }
        let rows: Vec<u32> = (0..300).collect();
        let coarse = coarser(&loads, &rows, 50);
        assert!(coarse.rows <= 50, "{}", coarse.rows);
        let sum = |table: &Table, column| (0..table.rows).map(|row| table.get(row, column)).sum::<u64>();
        for column in [2, 4, 5] {
            assert_eq!(sum(&coarse, column), sum(&loads, column), "{}", coarse.columns[column].name);
        }
        let longest = (0..coarse.rows).map(|row| coarse.get(row, 3)).max();
        assert_eq!(longest, Some(99));
        assert_eq!(coarser(&loads, &rows, 1).rows, 3, "one for each channel, however few are asked for");
    }

    #[test]
    fn a_damaged_channel_number_costs_no_memory() {
        let mut loads = Table::new("load", schema::LOAD);
        for bin in 0..10 {
            loads.push([bin, 7, u64::MAX, 0, 1, 2, 0]);
            loads.push([bin, u64::from(u32::MAX), 1, 0, 1, 2, 0]);
        }
        let rows: Vec<u32> = (0..20).collect();
        let coarse = coarser(&loads, &rows, 2);
        assert_eq!(coarse.rows, 2);
        assert_eq!((coarse.get(0, 1), coarse.get(1, 1)), (7, u64::from(u32::MAX)));
        assert_eq!((coarse.get(0, 2), coarse.get(1, 2)), (u64::MAX, 10));
    }
}
