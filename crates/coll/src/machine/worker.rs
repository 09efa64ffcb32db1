//! A worker: the steps that one thread block does, one after the other, slice by slice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::link::Link;
use super::plan::{Plan, Uses};
use super::work::{ConnectionId, Direction, Layout, OperationId, Place, Tag, Work, WorkId};
use crate::schedule::{Piece, Step};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Between two steps.
    Fresh,
    /// Before a slice: so many of the things it waits for are there. First the steps that had to be over, then its
    /// connections.
    Waiting(u32),
    /// Its slice is being worked on.
    Working,
    /// It has no step left.
    Done,
}

/// A step that is ready to be done.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) step: Step,
    /// The connections of the step: those it receives from, then those it sends on.
    pub(super) links: SmallVec<[ConnectionId; 4]>,
    pub(super) slices: u32,
    /// Elements of a full slice.
    size: u64,
}

impl Loaded {
    /// Becomes this step of a worker.
    pub(super) fn set(&mut self, step: Step, index: u32, plan: &Uses, layout: &Layout, element: u64) {
        let before = std::mem::replace(&mut self.step, step);
        // Most steps use the connections of the step before.
        if (&before.receives, &before.sends) != (&self.step.receives, &self.step.sends) {
            self.links.clear();
            for to in &self.step.receives {
                self.links.push(plan.find(index, Direction::Receive, *to));
            }
            for to in &self.step.sends {
                self.links.push(plan.find(index, Direction::Send, *to));
            }
        }
        if self.links.is_empty() {
            // Local memory has no slots.
            (self.slices, self.size) = (1, self.step.count);
        } else {
            self.slices = layout.fifo.slices_per_chunk;
            self.size = slice_size(self.step.count, layout, element);
            let most = self.size * u64::from(self.slices);
            assert!(
                self.step.count <= most,
                "a chunk of {} elements does not fit into slots",
                self.step.count
            );
        }
    }
}

impl Loaded {
    /// Whether it has one slice, with something to move, and waits for nothing but its connections.
    pub(super) fn is_single(&self) -> bool {
        let Step { receives, sources, sends, stores, .. } = &self.step;
        let moves = !(receives.is_empty() && sources.is_empty() || sends.is_empty() && stores.is_empty());
        self.slices == 1 && self.step.count > 0 && self.step.after.is_empty() && moves
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) stage: Stage,
    pub(super) steps: u64,
    /// The step it is at: those before it are over.
    pub(super) number: u64,
    /// That step. Plans of few steps have them ready; others are loaded one after the other into the same place.
    pub(super) loaded: Arc<Loaded>,
    pub(super) slice: u32,
    /// What was done with the step before, where this one is the same.
    kept: Option<Work>,
    /// Workers that wait until this one has done a step.
    waiters: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Worker {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Done,
            steps: 0,
            number: 0,
            loaded: Arc::default(),
            slice: 0,
            kept: None,
            waiters: BinaryHeap::new(),
        }
    }

    /// Begins with the first of so many steps.
    #[inline]
    pub(super) fn begin(&mut self, steps: u64) {
        self.stage = Stage::Fresh;
        self.steps = steps;
        self.number = 0;
        debug_assert!(self.waiters.is_empty(), "nobody waits for what is over");
    }

    /// Takes the step it is at.
    #[inline]
    pub(super) fn load(&mut self, rank: u32, index: u32, plan: &Plan) {
        if let Some(ready) = plan.ready(index, self.number) {
            // Small calls are made again and again, and have one step: it is there already.
            if !Arc::ptr_eq(&self.loaded, ready) {
                self.loaded = Arc::clone(ready);
                self.kept = None;
            }
        } else {
            self.kept = None;
            if Arc::get_mut(&mut self.loaded).is_none() {
                self.loaded = Arc::default();
            }
            let own = Arc::get_mut(&mut self.loaded).expect("nobody else has it");
            let step = plan.schedule.program.step(rank, index, self.number);
            own.set(step, index, &plan.uses, &plan.layout, plan.element);
        }
        self.slice = 0;
        self.stage = Stage::Waiting(0);
    }

    /// Whether there is something to move in its slice.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let (_, count) = self.slice_range();
        let step = &self.loaded.step;
        let has_data = !(step.receives.is_empty() && step.sources.is_empty());
        let has_target = !(step.sends.is_empty() && step.stores.is_empty());
        count > 0 && has_data && has_target
    }

    /// The first element of the slice in the step's chunk, and how many it has.
    #[inline]
    pub(super) fn slice_range(&self) -> (u64, u64) {
        let Loaded { step, size, .. } = &*self.loaded;
        let start = (u64::from(self.slice) * size).min(step.count);
        (start, (*size).min(step.count - start))
    }

    /// What is done with its slice.
    pub(super) fn work(&self, id: WorkId, operation: OperationId, plan: &Plan, links: &[Link]) -> Work {
        let (offset, count) = self.slice_range();
        let step = &self.loaded.step;
        let (receives, sends) = self.loaded.links.split_at(step.receives.len());
        let places = |pieces: &[Piece], ends: &[ConnectionId]| {
            let mut places = SmallVec::new();
            for piece in pieces {
                places.push(Place::Buffer(piece.buffer, piece.offset + offset));
            }
            for end in ends {
                places.push(Place::Slot(*end, links[end.0 as usize].slot()));
            }
            places
        };
        Work {
            id,
            operation,
            count,
            sources: places(&step.sources, receives),
            targets: places(&step.stores, sends),
            is_final: step.is_final,
            layout: plan.layout,
            slice: self.slice,
            tag: Tag { sequence: operation.0, chunk: step.chunk, step: self.number },
        }
    }

    /// The same, made of what was done with the slice before where only slots are other ones.
    #[inline]
    pub(super) fn kept_work(
        &mut self,
        id: WorkId,
        operation: OperationId,
        plan: &Plan,
        links: &[Link],
    ) -> &Work {
        if self.loaded.slices > 1 || self.kept.is_none() {
            return self.kept.insert(self.work(id, operation, plan, links));
        }
        let Loaded { step, links: ends, .. } = &*self.loaded;
        let work = self.kept.as_mut().expect("it is there");
        let (receives, sends) = ends.split_at(step.receives.len());
        let sources = work.sources[step.sources.len()..].iter_mut().zip(receives);
        let targets = work.targets[step.stores.len()..].iter_mut().zip(sends);
        for (place, end) in sources.chain(targets) {
            *place = Place::Slot(*end, links[end.0 as usize].slot());
        }
        (work.id, work.operation, work.tag.sequence) = (id, operation, operation.0);
        work
    }

    pub(super) fn add_waiter(&mut self, step: u64, worker: u32) {
        self.waiters.push(Reverse((step, worker)));
    }

    /// A worker that waited for a step that is over now.
    #[inline]
    pub(super) fn next_waiter(&mut self) -> Option<u32> {
        let Reverse((step, worker)) = *self.waiters.peek()?;
        (step < self.number).then(|| {
            self.waiters.pop();
            worker
        })
    }
}

/// Elements of a full slice of a chunk of `count`: equal parts in units of 16 elements, but no less than a 32nd of the
/// slots of a slice (NCCL 2.30 device/prims_simple.h), and never more than these hold.
fn slice_size(count: u64, layout: &Layout, element: u64) -> u64 {
    let fifo = &layout.fifo;
    let room = fifo.slot.0 * u64::from(fifo.slots_per_slice) / element;
    let equal = count.div_ceil(16 * u64::from(fifo.slices_per_chunk)) * 16;
    equal.max(room / 32).min(room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Fifo, Protocol};

    #[test]
    fn slices_are_as_long_as_nccl_makes_them() {
        let layout = |fine| Layout {
            protocol: Protocol::Simple,
            fifo: Fifo::new(Protocol::Simple, Protocol::Simple.buffer(), fine),
        };
        // 2 MiB of f32 in two slices of 1 MiB, of which a 32nd is 8192 elements.
        assert_eq!(slice_size(524_288, &layout(true), 4), 262_144);
        assert_eq!(slice_size(100_000, &layout(true), 4), 50_000);
        assert_eq!(slice_size(100_001, &layout(true), 4), 50_016);
        assert_eq!(slice_size(1000, &layout(true), 4), 8192);
        assert_eq!(slice_size(0, &layout(true), 4), 8192);
        assert_eq!(slice_size(131_072, &layout(false), 4), 131_072);
    }
}
