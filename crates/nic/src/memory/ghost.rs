//! Ghost memory: what each range holds, without bytes.

use std::cell::Cell;

use railnet_core::{GhostRun, GhostTag};

use super::GhostRuns;

/// A stretch of memory that remembers tags instead of bytes, as runs in ascending order.
///
/// Data arrives and leaves packet by packet in ascending order, so the place last written or read is where the next
/// access of its kind begins: two cursors make both constant time in that case.
#[derive(Clone, Debug)]
pub struct GhostMemory {
    /// (first offset, tag at that offset); a run ends where the next begins. Never empty, first offset 0.
    runs: Vec<(u64, GhostTag)>,
    length: u64,
    cursor: usize,
    /// Where the last read ended.
    reader: Cell<usize>,
}

impl GhostMemory {
    /// Blank memory of `length` bytes.
    pub fn new(length: u64) -> Self {
        Self { runs: vec![(0, GhostTag::BLANK)], length, cursor: 0, reader: Cell::new(0) }
    }

    /// How many bytes it stands for.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The index of the run that holds `offset`: probably this one, or the next.
    fn find(&self, offset: u64, probably: usize) -> usize {
        let starts_after = |index: usize| self.runs.get(index).is_none_or(|run| run.0 > offset);
        for guess in [probably, probably + 1] {
            if guess < self.runs.len() && self.runs[guess].0 <= offset && starts_after(guess + 1) {
                return guess;
            }
        }
        self.runs.partition_point(|run| run.0 <= offset) - 1
    }

    fn end_of(&self, index: usize) -> u64 {
        self.runs.get(index + 1).map_or(self.length, |run| run.0)
    }

    /// What `offset` holds.
    pub fn tag_at(&self, offset: u64) -> GhostTag {
        let (start, tag) = self.runs[self.find(offset, self.cursor)];
        tag.advanced(offset - start)
    }

    /// Appends what `length` bytes from `offset` on hold.
    pub fn read(&self, offset: u64, length: u32, out: &mut GhostRuns) {
        debug_assert!(offset + u64::from(length) <= self.length, "read past the end");
        let (mut offset, end) = (offset, offset + u64::from(length));
        let mut index = self.find(offset, self.reader.get());
        while offset < end {
            let stop = self.end_of(index).min(end);
            let (start, tag) = self.runs[index];
            let run = GhostRun { tag: tag.advanced(offset - start), length: (stop - offset) as u32 };
            match out.last_mut() {
                Some(last) if last.tag.advanced(u64::from(last.length)) == run.tag => {
                    last.length += run.length;
                }
                _ => out.push(run),
            }
            offset = stop;
            self.reader.set(index);
            index += 1;
        }
    }

    /// Makes the range from `offset` on hold `run`.
    pub fn write(&mut self, offset: u64, run: GhostRun) {
        let end = offset + u64::from(run.length);
        debug_assert!(end <= self.length, "write past the end");
        if run.length == 0 {
            return;
        }
        let index = self.find(offset, self.cursor);
        let (start, tag) = self.runs[index];
        let stop = self.end_of(index);
        if end <= stop && tag.advanced(offset - start) == run.tag {
            self.cursor = index;
            return;
        }
        // The next packet of the message before: the run to the left grows, this one shrinks.
        if offset == start && index > 0 && end < stop {
            let (left_start, left) = self.runs[index - 1];
            if left.advanced(offset - left_start) == run.tag {
                self.runs[index] = (end, tag.advanced(end - start));
                self.cursor = index - 1;
                return;
            }
        }
        self.splice(index, offset, end, run.tag);
    }

    /// The general case: cut the old runs at both ends, put the new one between, join equals.
    fn splice(&mut self, first: usize, offset: u64, end: u64, tag: GhostTag) {
        let mut last = first;
        while self.end_of(last) < end {
            last += 1;
        }
        let mut fresh: smallvec::SmallVec<[(u64, GhostTag); 3]> = smallvec::SmallVec::new();
        let (start, before) = self.runs[first];
        let left = if offset > start {
            fresh.push((start, before));
            Some((start, before))
        } else {
            first.checked_sub(1).map(|left| self.runs[left])
        };
        let joins_left = left.is_some_and(|(start, left)| left.advanced(offset - start) == tag);
        if !joins_left {
            fresh.push((offset, tag));
        }
        let grown = if joins_left { left.expect("it joins").0 } else { offset };
        let grown_tag = if joins_left { left.expect("it joins").1 } else { tag };
        let (last_start, last_tag) = self.runs[last];
        let mut remove_to = last + 1;
        if end < self.end_of(last) {
            let rest = last_tag.advanced(end - last_start);
            if grown_tag.advanced(end - grown) != rest {
                fresh.push((end, rest));
            }
        } else if let Some(&(next, next_tag)) = self.runs.get(last + 1)
            && grown_tag.advanced(next - grown) == next_tag
        {
            remove_to += 1;
        }
        self.cursor = first;
        self.runs.splice(first..remove_to, fresh);
        self.cursor = self.cursor.min(self.runs.len() - 1);
    }

    /// How many runs are kept: 1 for a buffer of one origin.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }
}

/// The element-wise reduction of two stretches of ghost data, as long as the shorter.
///
/// ```
/// use railnet_core::{GhostRun, GhostTag};
/// use railnet_nic::memory::reduce_ghosts;
///
/// let run = |sum, origin, length| GhostRun { tag: GhostTag { sum, origin }, length };
/// let sum = reduce_ghosts(&[run(1, 0, 64)], &[run(2, 0, 32), run(4, 32, 32)]);
/// assert_eq!(sum[..], [run(3, 0, 32), run(5, 32, 32)]);
/// ```
pub fn reduce_ghosts(a: &[GhostRun], b: &[GhostRun]) -> GhostRuns {
    let mut out = GhostRuns::new();
    let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
    let (mut left, mut right) = (a.next(), b.next());
    while let (Some(one), Some(other)) = (left, right) {
        let length = one.length.min(other.length);
        let tag = one.tag.reduced_with(other.tag);
        match out.last_mut() {
            Some(last) if last.tag.advanced(u64::from(last.length)) == tag => last.length += length,
            _ if length > 0 => out.push(GhostRun { tag, length }),
            _ => {}
        }
        let rest = |run: GhostRun| {
            let tag = run.tag.advanced(u64::from(length));
            (run.length > length).then_some(GhostRun { tag, length: run.length - length })
        };
        left = rest(one).or_else(|| a.next());
        right = rest(other).or_else(|| b.next());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tag(sum: u128, origin: u64) -> GhostTag {
        GhostTag { sum, origin }
    }

    #[test]
    fn packets_of_a_message_become_one_run() {
        let mut memory = GhostMemory::new(1 << 20);
        for round in 1..4u128 {
            for packet in 0..256u64 {
                let run = GhostRun { tag: tag(round, 77 + packet * 4096), length: 4096 };
                memory.write(packet * 4096, run);
            }
            assert_eq!(memory.run_count(), 1);
            assert_eq!(memory.tag_at(5000), tag(round, 77 + 5000));
        }
    }

    proptest! {
        /// Against a memory that keeps a tag for each byte.
        #[test]
        fn behaves_like_a_tag_per_byte(writes in prop::collection::vec((0u64..64, 1u32..32, 0u128..4, 0u64..3), 1..60)) {
            let mut memory = GhostMemory::new(96);
            let mut plain = vec![GhostTag::BLANK; 96];
            for (offset, length, sum, origin) in writes {
                let first = if sum == 3 { GhostTag::POISON } else { tag(sum, if sum == 0 { 0 } else { origin * 8 }) };
                memory.write(offset, GhostRun { tag: first, length });
                for index in 0..u64::from(length) {
                    plain[(offset + index) as usize] = first.advanced(index);
                }
                let mut runs = GhostRuns::new();
                memory.read(0, 96, &mut runs);
                let seen: Vec<_> = runs
                    .iter()
                    .flat_map(|run| (0..u64::from(run.length)).map(|index| run.tag.advanced(index)))
                    .collect();
                prop_assert_eq!(&seen, &plain);
                prop_assert!(memory.runs.windows(2).all(|pair| pair[0].0 < pair[1].0));
                prop_assert!(memory.runs.windows(2).all(|pair| pair[0].1.advanced(pair[1].0 - pair[0].0) != pair[1].1));
            }
        }
    }
}
