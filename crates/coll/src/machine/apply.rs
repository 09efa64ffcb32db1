//! Doing a piece of work on memory: on real bytes with the reductions of `core`, on ghosts by adding up tags.

use railnet_core::GhostRun;
use railnet_core::reduce::{self, ReduceError};
use railnet_nic::memory::{Backing, GhostRuns, Memory, SpaceId};
use thiserror::Error;

use super::work::{Place, Work};
use crate::call::Call;
use crate::schedule::Buffer;

/// Bytes that are worked on at once: they stay in a cache.
const BLOCK: u64 = 128 << 10;
/// Ghost bytes that are worked on at once: what the length of a run can say.
const GHOST_BLOCK: u64 = 1 << 30;

/// Why work was not done.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// A place is not memory, or not all of it, or ghosts and bytes are mixed.
    #[error("{place:?} is not {length} bytes of memory of one kind at {address:#x}")]
    Memory {
        /// The buffer or slot.
        place: Place,
        /// Where it was said to be.
        address: u64,
        /// How many bytes.
        length: u64,
    },
    /// The operation does not fit the data.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
}

/// Does work. Keeps its buffers from one piece to the next.
#[derive(Debug, Default)]
pub struct Applier {
    result: Vec<u8>,
    input: Vec<u8>,
}

impl Applier {
    /// One with no buffers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does a piece of work of a call among so many ranks; `locate` says where places are.
    ///
    /// Data lies at the beginning of a slot, also with LL and LL128: their flags lie behind it.
    pub fn apply<M: Memory>(
        &mut self,
        memory: &mut M,
        work: &Work,
        call: &Call,
        ranks: u32,
        locate: impl Fn(Place) -> (SpaceId, u64),
    ) -> Result<(), ApplyError> {
        let length = call.dtype.bytes(work.count).0;
        let mut kind = None;
        for place in work.sources.iter().chain(&work.targets) {
            let (space, address) = locate(*place);
            let backing = memory.backing(space, address, length);
            if backing.is_none() || kind.is_some_and(|kind| Some(kind) != backing) {
                return Err(ApplyError::Memory { place: *place, address, length });
            }
            kind = backing;
        }
        let is_ghost = kind == Some(Backing::Ghost);
        let block = if is_ghost { GHOST_BLOCK } else { BLOCK };
        let mut offset = 0;
        while offset < length {
            let part = block.min(length - offset);
            let at = |place: &Place| {
                let (space, address) = locate(*place);
                (space, address + offset)
            };
            if is_ghost {
                apply_ghost(memory, work, part, at);
            } else {
                self.apply_bytes(memory, work, call, ranks, part, at)?;
            }
            offset += part;
        }
        Ok(())
    }

    fn apply_bytes<M: Memory>(
        &mut self,
        memory: &mut M,
        work: &Work,
        call: &Call,
        ranks: u32,
        length: u64,
        at: impl Fn(&Place) -> (SpaceId, u64),
    ) -> Result<(), ApplyError> {
        let Self { result, input } = self;
        let reduces = call.collective.reduces();
        for (index, place) in work.sources.iter().enumerate() {
            let (space, address) = at(place);
            let buffer = if index == 0 { &mut *result } else { &mut *input };
            buffer.clear();
            memory.read(space, address, length as usize, buffer);
            if reduces && matches!(place, Place::Buffer(Buffer::Input, _)) {
                reduce::prepare(call.dtype, call.op, buffer)?;
            }
            if index > 0 {
                reduce::reduce(call.dtype, call.op, result, input)?;
            }
        }
        if work.is_final && reduces {
            reduce::finish(call.dtype, call.op, ranks, result)?;
        }
        for place in &work.targets {
            let (space, address) = at(place);
            memory.write(space, address, result);
        }
        Ok(())
    }
}

fn apply_ghost<M: Memory>(memory: &mut M, work: &Work, length: u64, at: impl Fn(&Place) -> (SpaceId, u64)) {
    let mut result = GhostRuns::new();
    for (index, place) in work.sources.iter().enumerate() {
        let (space, address) = at(place);
        let mut runs = GhostRuns::new();
        memory.read_ghost(space, address, length as u32, &mut runs);
        result = if index == 0 { runs } else { add(&result, &runs) };
    }
    for place in &work.targets {
        let (space, mut address) = at(place);
        for run in &result {
            memory.write_ghost(space, address, *run);
            address += u64::from(run.length);
        }
    }
}

/// The reduction of two stretches of the same length.
fn add(left: &[GhostRun], right: &[GhostRun]) -> GhostRuns {
    let mut sum = GhostRuns::new();
    let (mut left, mut right) = (left.iter().copied(), right.iter().copied());
    let (mut a, mut b) = (left.next(), right.next());
    while let (Some(one), Some(other)) = (a, b) {
        let length = one.length.min(other.length);
        sum.push(GhostRun { tag: one.tag.reduced_with(other.tag), length });
        a = rest(one, length).or_else(|| left.next());
        b = rest(other, length).or_else(|| right.next());
    }
    sum
}

fn rest(run: GhostRun, length: u32) -> Option<GhostRun> {
    (run.length > length)
        .then(|| GhostRun { tag: run.tag.advanced(u64::from(length)), length: run.length - length })
}

#[cfg(test)]
mod tests {
    use railnet_core::{DataType, GhostTag, ReduceOp, Scalar};
    use railnet_nic::memory::Segments;
    use smallvec::smallvec;

    use super::*;
    use crate::call::Collective;
    use crate::machine::{Layout, OperationId, Tag, WorkId};
    use crate::protocol::{Fifo, Protocol};

    fn work(count: u64, is_final: bool) -> Work {
        Work {
            id: WorkId(0),
            operation: OperationId(0),
            count,
            sources: smallvec![
                Place::Buffer(Buffer::Input, 0),
                Place::Slot(crate::machine::ConnectionId(0), 0)
            ],
            targets: smallvec![Place::Buffer(Buffer::Output, 0)],
            is_final,
            layout: Layout {
                protocol: Protocol::Simple,
                fifo: Fifo::new(Protocol::Simple, Protocol::Simple.buffer(), false),
            },
            slice: 0,
            tag: Tag { sequence: 0, chunk: 0, step: 0 },
        }
    }

    const fn at(place: Place) -> (SpaceId, u64) {
        match place {
            Place::Buffer(Buffer::Input, _) => (SpaceId(0), 0),
            Place::Slot(..) => (SpaceId(1), 0),
            Place::Buffer(..) => (SpaceId(2), 0),
        }
    }

    #[test]
    fn own_data_is_multiplied_and_what_arrives_is_not() {
        let scalar = Scalar::from_f32(DataType::I32, 3.0);
        let call = Call {
            dtype: DataType::I32,
            op: ReduceOp::PreMulSum(scalar),
            ..Call::new(Collective::AllReduce, 2)
        };
        let ints = |values: [i32; 2]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let mut memory = Segments::new();
        for values in [[1, 2], [100, 200], [0, 0]] {
            memory.add_bytes(0, ints(values));
        }
        Applier::new().apply(&mut memory, &work(2, true), &call, 2, at).unwrap();
        assert_eq!(memory.bytes(SpaceId(2)), ints([103, 206]));
    }

    #[test]
    fn an_average_is_divided_where_it_is_final_only() {
        for (is_final, expected) in [(true, 5), (false, 10)] {
            let call = Call {
                dtype: DataType::U8,
                op: ReduceOp::Average,
                ..Call::new(Collective::AllReduce, 300_000)
            };
            let mut memory = Segments::new();
            for value in [4, 6, 0] {
                memory.add_bytes(0, vec![value; 300_000]);
            }
            Applier::new().apply(&mut memory, &work(300_000, is_final), &call, 2, at).unwrap();
            assert!(memory.bytes(SpaceId(2)).iter().all(|value| *value == expected));
        }
    }

    #[test]
    fn ghosts_of_one_origin_add_up_and_others_are_poisoned() {
        let call = Call::new(Collective::AllReduce, 64);
        let mut memory = Segments::new();
        for _ in 0..3 {
            memory.add_ghost(0, 256);
        }
        let run = |sum, origin, length| GhostRun { tag: GhostTag { sum, origin }, length };
        memory.write_ghost(SpaceId(0), 0, run(5, 0, 256));
        memory.write_ghost(SpaceId(1), 0, run(7, 0, 100));
        memory.write_ghost(SpaceId(1), 100, run(9, 100, 100));
        memory.write_ghost(SpaceId(1), 200, run(9, 0, 56));
        Applier::new().apply(&mut memory, &work(64, true), &call, 2, at).unwrap();
        let output = memory.ghost(SpaceId(2)).unwrap();
        assert_eq!(output.tag_at(99), GhostTag { sum: 12, origin: 99 });
        assert_eq!(output.tag_at(100), GhostTag { sum: 14, origin: 100 });
        assert!(output.tag_at(200).is_poison());
    }

    #[test]
    fn memory_that_is_not_there_is_named() {
        let call = Call::new(Collective::AllReduce, 64);
        let mut memory = Segments::new();
        memory.add_ghost(0, 256);
        memory.add_bytes(0, vec![0; 256]);
        memory.add_ghost(0, 256);
        let error = Applier::new().apply(&mut memory, &work(64, true), &call, 2, at).unwrap_err();
        assert!(error.to_string().contains("Slot"), "{error}");
    }
}
