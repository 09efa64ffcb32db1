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
    let channels = rows.iter().map(|row| cell(*row, 1) as usize + 1).max().unwrap_or(0);
    let mut joined = rows.len().div_ceil(most.max(1)).next_power_of_two() as u64;
    while joined <= last && wide(rows, channels, joined, &cell) > most {
        joined *= 2;
    }
    let mut table = Table::new(&loads.name, schema::COARSE_LOAD);
    let mut sums = vec![[0; 5]; channels];
    for group in rows.chunk_by(|one, two| cell(*one, 0) / joined == cell(*two, 0) / joined) {
        for &row in group {
            let [bytes, queue, marks, paused, drops] = &mut sums[cell(row, 1) as usize];
            *bytes += cell(row, 2);
            *queue = (*queue).max(cell(row, 3));
            *marks += cell(row, 4);
            *paused += cell(row, 5);
            *drops += cell(row, 6);
        }
        let first = cell(group[0], 0) / joined * joined;
        for (channel, sum) in sums.iter_mut().enumerate().filter(|(_, sum)| **sum != [0; 5]) {
            let [bytes, queue, marks, paused, drops] = std::mem::take(sum);
            table.push([first, channel as u64, bytes, queue, marks, paused, drops, joined]);
        }
    }
    table
}

/// How many rows are left when so many bins are joined; rows come in order of time.
fn wide(rows: &[u32], channels: usize, joined: u64, cell: &impl Fn(u32, usize) -> u64) -> usize {
    let mut seen = vec![u64::MAX; channels];
    let mut found = 0;
    for &row in rows {
        let group = cell(row, 0) / joined;
        let before = std::mem::replace(&mut seen[cell(row, 1) as usize], group);
        found += usize::from(before != group);
    }
    found
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
