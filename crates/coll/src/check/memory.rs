//! The memory of a rank: input, output and scratch, which overlap where the call is in place.

use railnet_core::{GhostRun, GhostTag, Rank};
use railnet_nic::memory::{GhostMemory, GhostRuns};

use crate::call::Overlap;
use crate::schedule::{Buffer, Schedule};

/// The longest run that a tag is written or read for at once.
const RUN_MAX: u64 = u32::MAX as u64;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// Which of the rank's memories.
    pub(super) space: u8,
    /// Its first element there.
    pub(super) base: u64,
    /// How many elements it has.
    pub(super) length: u64,
}

/// What a rank's buffers hold, an element for each byte of ghost memory.
pub(super) struct RankMemory {
    spaces: [GhostMemory; 3],
    areas: [Area; 3],
    /// Whether steps may write to the input.
    pub(super) may_overwrite_input: bool,
}

impl RankMemory {
    /// The memory of a rank whose input holds `word`.
    pub(super) fn new(schedule: &Schedule, rank: u32, word: u128) -> Self {
        let (call, ranks) = (&schedule.call, schedule.ranks);
        let input = call.input_count(Rank(rank), ranks);
        let output = call.output_count(Rank(rank), ranks);
        let overlap = call.overlap(Rank(rank), ranks);
        let area = |space, base, length| Area { space, base, length };
        let (areas, lengths) = match overlap {
            None => ([area(0, 0, input), area(1, 0, output)], [input, output]),
            Some(Overlap::InputInOutput(base)) => {
                ([area(1, base, input), area(1, 0, output)], [0, output.max(base + input)])
            }
            Some(Overlap::OutputInInput(base)) => {
                ([area(0, 0, input), area(0, base, output)], [input.max(base + output), 0])
            }
        };
        let spaces = [lengths[0], lengths[1], schedule.scratch].map(GhostMemory::new);
        let [first, second] = areas;
        let mut memory = Self {
            spaces,
            areas: [first, second, area(2, 0, schedule.scratch)],
            may_overwrite_input: overlap.is_some(),
        };
        let mut at = 0;
        while at < input {
            let length = (input - at).min(RUN_MAX) as u32;
            let run = GhostRun { tag: GhostTag { sum: word, origin: at }, length };
            memory.write(Buffer::Input, at, run);
            at += u64::from(length);
        }
        memory
    }

    pub(super) fn area(&self, buffer: Buffer) -> Area {
        self.areas[buffer as usize]
    }

    /// Appends what a range holds.
    pub(super) fn read(&self, buffer: Buffer, offset: u64, count: u32, out: &mut GhostRuns) {
        let Area { space, base, .. } = self.area(buffer);
        self.spaces[space as usize].read(base + offset, count, out);
    }

    pub(super) fn write(&mut self, buffer: Buffer, offset: u64, run: GhostRun) {
        let Area { space, base, .. } = self.area(buffer);
        self.spaces[space as usize].write(base + offset, run);
    }

    /// What an element holds.
    pub(super) fn tag_at(&self, buffer: Buffer, element: u64) -> GhostTag {
        let Area { space, base, .. } = self.area(buffer);
        self.spaces[space as usize].tag_at(base + element)
    }

    /// The first element of a range of the output that does not hold what it should.
    pub(super) fn differs(&self, offset: u64, count: u64, tag: GhostTag) -> Option<u64> {
        let mut done = 0;
        let mut runs = GhostRuns::new();
        while done < count {
            let length = (count - done).min(RUN_MAX) as u32;
            runs.clear();
            self.read(Buffer::Output, offset + done, length, &mut runs);
            let mut at = done;
            for run in &runs {
                if run.tag != tag.advanced(at) {
                    return Some(offset + at);
                }
                at += u64::from(run.length);
            }
            done += u64::from(length);
        }
        None
    }
}
