//! The buffers of an operation on all ranks, and what must be in them at the end.

use railnet_core::{GhostRun, GhostTag, Random, Rank, ReduceOp, Scalar, reduce};
use railnet_nic::memory::{Memory, Segments, SpaceId};

use crate::call::{Call, Overlap};
use crate::machine::{expected_output, wrong_bytes};
use crate::schedule::{Buffer, Schedule};

/// What buffers are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// Real bytes.
    Bytes,
    /// Ghosts.
    Ghosts,
}

/// The buffers of an operation on all ranks.
#[derive(Debug)]
pub struct Buffers {
    call: Call,
    data: Data,
    /// Input, output and scratch of each rank.
    places: Vec<[(SpaceId, u64); 3]>,
    /// What the inputs held, as bytes, or the words of the ranks.
    inputs: Vec<Vec<u8>>,
    words: Vec<u128>,
}

impl Buffers {
    /// Makes them, the inputs filled.
    pub fn new(memory: &mut Segments, schedule: &Schedule, data: Data, random: &mut Random) -> Self {
        let Schedule { call, ranks, scratch, .. } = schedule;
        let mut all =
            Self { call: call.clone(), data, places: Vec::new(), inputs: Vec::new(), words: Vec::new() };
        for rank in (0..*ranks).map(Rank) {
            let size = |count: u64| call.dtype.bytes(count).0;
            let input = call.input_count(rank, *ranks);
            let output = call.output_count(rank, *ranks);
            let scratch = add(memory, data, size(*scratch));
            let (input_place, output_place) = match call.overlap(rank, *ranks) {
                None => (add(memory, data, size(input)), add(memory, data, size(output))),
                Some(Overlap::InputInOutput(start)) => {
                    let (space, address) = add(memory, data, size(output.max(start + input)));
                    ((space, address + size(start)), (space, address))
                }
                Some(Overlap::OutputInInput(start)) => {
                    let (space, address) = add(memory, data, size(input.max(start + output)));
                    ((space, address), (space, address + size(start)))
                }
            };
            all.places.push([input_place, output_place, scratch]);
            all.fill(memory, input, random);
        }
        all
    }

    /// Fills the input of the rank whose places were added last.
    fn fill(&mut self, memory: &mut Segments, count: u64, random: &mut Random) {
        let (space, address) = self.places[self.places.len() - 1][0];
        let word = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        self.words.push(word);
        let length = self.call.dtype.bytes(count).0 as u32;
        match self.data {
            Data::Ghosts => {
                let tag = GhostTag { sum: word, origin: 0 };
                memory.write_ghost(space, address, GhostRun { tag, length });
            }
            Data::Bytes => {
                let dtype = self.call.dtype;
                // Few and small numbers: whatever the order, the result is exact and the same.
                let values: &[f32] = match self.call.op {
                    _ if !self.call.collective.reduces() => &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
                    ReduceOp::Product => &[1.0, 1.0, 2.0, 0.5],
                    ReduceOp::Min | ReduceOp::Max => &[0.0, 1.0, 2.0, 3.0, 6.0, 12.0],
                    _ => &[0.0, 1.0],
                };
                let mut bytes = Vec::with_capacity(length as usize);
                for _ in 0..count {
                    let bits = Scalar::from_f32(dtype, *random.pick(values)).bits().to_le_bytes();
                    bytes.extend_from_slice(&bits[..dtype.size()]);
                }
                memory.write(space, address, &bytes);
                self.inputs.push(bytes);
            }
        }
    }

    /// Where a buffer of a rank begins, and how many bytes further an element lies.
    pub fn locate(&self, rank: u32, buffer: Buffer, element: u64) -> (SpaceId, u64) {
        let index = match buffer {
            Buffer::Input => 0,
            Buffer::Output => 1,
            Buffer::Scratch => 2,
        };
        let (space, address) = self.places[rank as usize][index];
        (space, address + self.call.dtype.bytes(element).0)
    }

    /// Bytes of all outputs that are not what they should be.
    pub fn wrong(&self, memory: &Segments) -> u64 {
        let ranks = self.places.len() as u32;
        (0..ranks).map(|rank| self.wrong_of(memory, Rank(rank), ranks)).sum()
    }

    fn wrong_of(&self, memory: &Segments, rank: Rank, ranks: u32) -> u64 {
        let (space, address) = self.places[rank.0 as usize][1];
        let sources = expected_output(&self.call, rank, ranks);
        if self.data == Data::Ghosts {
            return match memory.ghost(space) {
                Some(ghost) => wrong_bytes(&sources, self.call.dtype, &self.words, ghost, address - BASE),
                None => 0,
            };
        }
        let size = self.call.dtype.size();
        let mut wrong = 0;
        for source in sources {
            let range = source.origin as usize * size..(source.origin + source.count) as usize * size;
            let expected = match source.from {
                Some(from) => self.inputs[from.0 as usize][range].to_vec(),
                None => self.reduced(range, ranks),
            };
            let mut seen = Vec::new();
            memory.read(space, address + source.start * size as u64, expected.len(), &mut seen);
            wrong += seen.iter().zip(&expected).filter(|(seen, expected)| seen != expected).count() as u64;
        }
        wrong
    }

    /// The reduction of a range of all inputs, rank by rank.
    fn reduced(&self, range: std::ops::Range<usize>, ranks: u32) -> Vec<u8> {
        let Call { dtype, op, .. } = self.call;
        let prepared = |input: &Vec<u8>| {
            let mut own = input[range.clone()].to_vec();
            reduce::prepare(dtype, op, &mut own).expect("whole elements of the scalar's type");
            own
        };
        let mut inputs = self.inputs.iter().map(prepared);
        let mut sum = inputs.next().expect("there is a rank");
        for own in inputs {
            reduce::reduce(dtype, op, &mut sum, &own).expect("as long as each other");
        }
        reduce::finish(dtype, op, ranks, &mut sum).expect("there is a rank");
        sum
    }
}

/// Where spaces begin: not at zero, where a mistake would look right.
pub(super) const BASE: u64 = 0x1000;

pub(super) fn add(memory: &mut Segments, data: Data, length: u64) -> (SpaceId, u64) {
    let space = match data {
        Data::Bytes => memory.add_bytes(BASE, vec![0xee; length as usize]),
        Data::Ghosts => memory.add_ghost(BASE, length),
    };
    (space, BASE)
}
