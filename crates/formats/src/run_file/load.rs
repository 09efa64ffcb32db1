//! What links carried over time, in bins that grow with the run.

use super::schema;
use super::table::Table;

/// The narrowest bin.
const WIDTH_MIN: u64 = 100_000;
/// Cells of all links together.
const CELLS_MAX: usize = 2_000_000;
/// The most bins: more than a screen has points.
const BINS_MAX: usize = 2_048;

#[derive(Clone, Copy, Default, Debug)]
struct Cell {
    bytes: u64,
    queue: u64,
    paused: u64,
    marks: u32,
    drops: u32,
}

impl Cell {
    fn join(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.queue = self.queue.max(other.queue);
        self.paused += other.paused;
        self.marks += other.marks;
        self.drops += other.drops;
    }
}

/// The load of every channel.
#[derive(Debug)]
pub(super) struct Load {
    /// Picoseconds of a bin.
    width: u64,
    /// Bins of each channel.
    bins: usize,
    cells: Vec<Cell>,
    used: usize,
    /// Since when each channel is held back, and by how many priorities.
    paused: Vec<(u64, u8)>,
    /// What waits in front of each channel in the end.
    left: Vec<u64>,
}

impl Load {
    pub(super) fn new(channels: usize) -> Self {
        let bins = (CELLS_MAX / channels.max(1)).clamp(16, BINS_MAX).next_power_of_two();
        Self {
            width: WIDTH_MIN,
            bins,
            cells: vec![Cell::default(); bins * channels],
            used: 0,
            paused: vec![(0, 0); channels],
            left: vec![0; channels],
        }
    }

    pub(super) fn sent(&mut self, at: u64, channel: usize, bytes: u32, waiting: u64) {
        let cell = self.cell(at, channel);
        cell.bytes += u64::from(bytes);
        cell.queue = cell.queue.max(waiting);
    }

    pub(super) fn marked(&mut self, at: u64, channel: usize, depth: u64) {
        let cell = self.cell(at, channel);
        cell.marks += 1;
        cell.queue = cell.queue.max(depth);
    }

    pub(super) fn dropped(&mut self, at: u64, channel: usize) {
        self.cell(at, channel).drops += 1;
    }

    /// A priority of a channel stops, or goes on.
    pub(super) fn pause(&mut self, at: u64, channel: usize, is_held: bool) {
        let (since, held) = self.paused[channel];
        self.paused[channel] = match (is_held, held) {
            (true, 0) => (at, 1),
            (true, held) => (since, held + 1),
            (false, 0 | 1) => {
                if held == 1 {
                    self.held_back(since, at, channel);
                }
                (at, 0)
            }
            (false, held) => (since, held - 1),
        };
    }

    fn held_back(&mut self, from: u64, to: u64, channel: usize) {
        let mut at = from;
        while at < to {
            // The width may grow on the way.
            self.cell(at, channel);
            let end = (at / self.width + 1) * self.width;
            let part = end.min(to) - at;
            self.cell(at, channel).paused += part;
            at += part;
        }
    }

    fn cell(&mut self, at: u64, channel: usize) -> &mut Cell {
        while (at / self.width) as usize >= self.bins {
            self.widen();
        }
        let bin = (at / self.width) as usize;
        self.used = self.used.max(bin + 1);
        &mut self.cells[channel * self.bins + bin]
    }

    /// Two bins become one.
    fn widen(&mut self) {
        for cells in self.cells.chunks_mut(self.bins) {
            for bin in 0..cells.len() / 2 {
                let mut joined = cells[2 * bin];
                joined.join(cells[2 * bin + 1]);
                cells[bin] = joined;
            }
            let half = cells.len() / 2;
            cells[half..].fill(Cell::default());
        }
        self.used = self.used.div_ceil(2);
        self.width *= 2;
    }

    /// So much waits in front of a channel when the run ends.
    pub(super) fn left(&mut self, channel: usize, bytes: u64) {
        if let Some(left) = self.left.get_mut(channel) {
            *left = bytes;
        }
    }

    /// What waits in the end has done so since the last packet left: of queues that stand still nobody tells anything.
    fn stand_still(&mut self) {
        for (cells, left) in self.cells.chunks_mut(self.bins).zip(&self.left).filter(|(_, left)| **left > 0) {
            let last = cells.iter().rposition(|cell| cell.bytes > 0).map_or(0, |last| last + 1);
            for cell in cells.iter_mut().take(self.used).skip(last) {
                cell.queue = cell.queue.max(*left);
            }
        }
    }

    /// Picoseconds of a bin, how many there are, and those with something in them.
    pub(super) fn finish(mut self, end: u64) -> (u64, usize, Table) {
        for channel in 0..self.paused.len() {
            if let (since, 1..) = self.paused[channel] {
                self.held_back(since, end, channel);
            }
        }
        self.stand_still();
        let mut table = Table::new("load", schema::LOAD);
        let channels = self.cells.len() / self.bins;
        for bin in 0..self.used {
            for channel in 0..channels {
                let cell = self.cells[channel * self.bins + bin];
                if cell.bytes + cell.queue + cell.paused + u64::from(cell.marks + cell.drops) > 0 {
                    table.push([
                        bin as u64,
                        channel as u64,
                        cell.bytes,
                        cell.queue,
                        u64::from(cell.marks),
                        cell.paused,
                        u64::from(cell.drops),
                    ]);
                }
            }
        }
        (self.width, self.used, table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_bins_grow() {
        let mut load = Load::new(2);
        for packet in 0..10_000_u64 {
            load.sent(packet * 1_000_000, 1, 1_000, packet);
        }
        load.pause(0, 0, true);
        load.pause(5_000_000_000, 0, false);
        load.left(0, 7);
        let (width, bins, table) = load.finish(10_000_000_000);
        let sum = |column: usize, channel: u64| -> u64 {
            (0..table.rows)
                .filter(|row| table.get(*row, 1) == channel)
                .map(|row| table.get(row, column))
                .sum()
        };
        assert_eq!(sum(2, 1), 10_000_000);
        assert_eq!(sum(5, 0), 5_000_000_000);
        assert_eq!(sum(3, 0), 7 * bins as u64, "it stood still all the time");
        assert!(bins <= BINS_MAX && width * bins as u64 >= 9_999_000_000, "{bins} of {width}");
    }
}
