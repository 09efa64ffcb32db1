//! How much of what a collective must leave in an output is not there.

use railnet_core::{DataType, GhostTag};
use railnet_nic::memory::GhostMemory;
use smallvec::SmallVec;

use crate::outputs::Source;

/// Bytes of an output that do not hold what they should. `words` are those of the ranks: a rank's input holds its word
/// from origin 0 on. `start` is the first byte of the output in the memory.
pub fn wrong_bytes(
    expected: &[Source],
    dtype: DataType,
    words: &[u128],
    memory: &GhostMemory,
    start: u64,
) -> u64 {
    let everybody = words.iter().fold(0u128, |sum, word| sum.wrapping_add(*word));
    let mut wrong = 0;
    for source in expected {
        let sum = source.from.map_or(everybody, |rank| words[rank.0 as usize]);
        let tag = GhostTag { sum, origin: dtype.bytes(source.origin).0 };
        let (mut offset, length) = (0, dtype.bytes(source.count).0);
        while offset < length {
            let part = (length - offset).min(1 << 30) as u32;
            let mut runs = SmallVec::new();
            memory.read(start + dtype.bytes(source.start).0 + offset, part, &mut runs);
            for run in runs {
                wrong += if run.tag == tag.advanced(offset) { 0 } else { u64::from(run.length) };
                offset += u64::from(run.length);
            }
        }
    }
    wrong
}
