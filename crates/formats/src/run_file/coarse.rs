//! The load of links in wider bins, for windows that have more rows than a picture can show. Rows cannot be left out here: what
//! links carried is a sum.

use std::collections::BTreeMap;

use super::schema;
use super::table::Table;

/// These rows of the loads, with neighbouring bins joined until there are at most so many, or one bin for each link and direction.
/// Column `bins` says how many bins a row stands for, `bin` which is the first of them.
#[must_use]
pub fn coarser(loads: &Table, rows: &[u32], most: usize) -> Table {
    let places = schema::LOAD.iter().map(|(name, _)| loads.column(name).unwrap_or(0)).collect::<Vec<_>>();
    let cell = |row: u32, column: usize| loads.get(row as usize, places[column]);
    let last = rows.iter().map(|row| cell(*row, 0)).max().unwrap_or(0);
    let mut joined = rows.len().div_ceil(most.max(1)).next_power_of_two() as u64;
    loop {
        let mut cells: BTreeMap<(u64, u64), [u64; 5]> = BTreeMap::new();
        for &row in rows {
            let sums = cells.entry((cell(row, 0) / joined, cell(row, 1))).or_default();
            for (place, sum) in sums.iter_mut().enumerate() {
                let value = cell(row, place + 2);
                // The queue is the longest one, everything else adds up.
                *sum = if schema::LOAD[place + 2].0 == "queue" { (*sum).max(value) } else { *sum + value };
            }
        }
        if cells.len() <= most || joined > last {
            let mut table = Table::new(&loads.name, schema::COARSE_LOAD);
            for ((group, channel), [bytes, queue, marks, paused, drops]) in cells {
                table.push([group * joined, channel, bytes, queue, marks, paused, drops, joined]);
            }
            return table;
        }
        joined *= 2;
    }
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
}
