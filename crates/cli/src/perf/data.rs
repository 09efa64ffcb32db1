//! What ranks have before a measured call, and what they should have after it.
//!
//! Values are small whole numbers, so that sums are exact in every type and in every order. They repeat after a period
//! that is no power of two: an element that ends up in the wrong place is seen.

use railnet_coll::{Call, Collective};
use railnet_core::{DataType, Rank, ReduceOp, Scalar, reduce};

/// Elements after which values repeat.
const PERIOD: u64 = 4093;

/// The data of a call.
pub(crate) struct Data {
    ranks: u32,
    rank: u32,
    /// What each rank has, one period of it.
    values: Vec<Vec<u8>>,
    /// What all of them are reduced to.
    reduced: Vec<u8>,
}

fn element(call: &Call, rank: u32, index: u64, salt: u64) -> f32 {
    let mixed = (index * 7 + u64::from(rank) * 3 + salt) % 11;
    match call.op {
        // Few ranks multiply by anything but one, so that nothing overflows.
        ReduceOp::Product => {
            if (index + salt) % 64 == u64::from(rank) {
                2.0
            } else {
                1.0
            }
        }
        _ => (mixed % 4) as f32,
    }
}

impl Data {
    /// The data that a salt stands for.
    pub(crate) fn new(call: &Call, rank: u32, ranks: u32, salt: u64) -> anyhow::Result<Self> {
        let size = call.dtype.size();
        let period = |rank: u32| -> Vec<u8> {
            let elements =
                (0..PERIOD).map(|index| Scalar::from_f32(call.dtype, element(call, rank, index, salt)));
            elements.flat_map(|scalar| scalar.bits().to_le_bytes()[..size].to_vec()).collect()
        };
        let values: Vec<Vec<u8>> = (0..ranks).map(period).collect();
        let mut reduced = Vec::new();
        if call.collective.reduces() {
            for value in &values {
                let mut value = value.clone();
                reduce::prepare(call.dtype, call.op, &mut value)?;
                if reduced.is_empty() {
                    reduced = value;
                } else {
                    reduce::reduce(call.dtype, call.op, &mut reduced, &value)?;
                }
            }
            reduce::finish(call.dtype, call.op, ranks, &mut reduced)?;
        }
        Ok(Self { ranks, rank, values, reduced })
    }

    /// Fills the input of this rank.
    pub(crate) fn fill(&self, dtype: DataType, input: &mut [u8]) {
        pour(&self.values[self.rank as usize], dtype, 0, input);
    }

    /// Elements of the output that are not what they should be.
    pub(crate) fn wrong(&self, call: &Call, output: &[u8]) -> u64 {
        let (rank, ranks) = (self.rank, self.ranks);
        let count = call.block_of(0, ranks);
        let Rank(root) = call.root;
        let blocks: Vec<(&[u8], u64)> = match call.collective {
            Collective::Barrier => Vec::new(),
            Collective::AllReduce | Collective::Reduce => vec![(&self.reduced, 0)],
            Collective::ReduceScatter => vec![(&self.reduced, u64::from(rank) * count)],
            Collective::Broadcast | Collective::SendReceive => vec![(&self.values[root as usize], 0)],
            Collective::Scatter => vec![(&self.values[root as usize], u64::from(rank) * count)],
            Collective::AllGather | Collective::Gather => {
                self.values.iter().map(|value| (&value[..], 0)).collect()
            }
            Collective::AllToAll => {
                self.values.iter().map(|value| (&value[..], u64::from(rank) * count)).collect()
            }
        };
        let block = call.dtype.bytes(count).0 as usize;
        if block == 0 || output.is_empty() {
            return 0;
        }
        let mut expected = vec![0; block];
        let parts = blocks.iter().zip(output.chunks(block));
        let count = parts.map(|((pattern, first), part)| {
            pour(pattern, call.dtype, *first, &mut expected);
            let size = call.dtype.size();
            let pairs = part.chunks_exact(size).zip(expected.chunks_exact(size));
            if part == &expected[..part.len()] {
                0
            } else {
                pairs.filter(|(is, should)| is != should).count() as u64
            }
        });
        count.sum()
    }
}

/// Repeats a pattern over a buffer, from this element of it on.
fn pour(pattern: &[u8], dtype: DataType, first: u64, buffer: &mut [u8]) {
    let skip = dtype.bytes(first % PERIOD).0 as usize;
    let head = (pattern.len() - skip).min(buffer.len());
    let (front, rest) = buffer.split_at_mut(head);
    front.copy_from_slice(&pattern[skip..][..head]);
    for part in rest.chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_counted_and_right_ones_are_not() {
        let call = Call::new(Collective::AllGather, 10_000);
        let data = Data::new(&call, 1, 2, 5).unwrap();
        let mut output = vec![0; 80_000];
        for rank in 0..2 {
            Data::new(&call, rank, 2, 5)
                .unwrap()
                .fill(call.dtype, &mut output[rank as usize * 40_000..][..40_000]);
        }
        assert_eq!(data.wrong(&call, &output), 0);
        output[0] ^= 1;
        output[79_999] ^= 1;
        assert_eq!(data.wrong(&call, &output), 2);
        assert!(
            Data::new(&call, 1, 2, 6).unwrap().wrong(&call, &output) > 1000,
            "another salt is other data"
        );
    }
}
