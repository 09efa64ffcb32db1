//! What is known to be over when a step begins: races between the workers of a rank, and barriers.
//!
//! Each worker has a clock: how many steps of each worker it knows to be over. Chunks carry the clock of their sender,
//! and what a worker receives or waits for adds to what it knows. Two steps of a rank that touch the same element, one
//! of them writing, are in order only if the later one knows the earlier one to be over.

use smallvec::SmallVec;

use super::links::{Links, NONE};
use super::memory::RankMemory;
use super::run::{Run, Worker};
use crate::call::Collective;
use crate::schedule::{Buffer, Piece, Step};

/// Above so many (steps × workers) races are not looked for.
const WORK_MAX: u64 = 1 << 28;
/// Above so many (awaited steps × workers) they are not either.
const SNAPSHOT_MAX: u64 = 1 << 26;

/// Two steps that nothing orders.
pub(super) struct Conflict {
    /// The worker and step that was there first.
    pub(super) first: (u32, u64),
    pub(super) first_writes: bool,
    pub(super) second_writes: bool,
    pub(super) buffer: Buffer,
    pub(super) element: u64,
}

/// Clocks of all workers, and who used which memory last.
pub(super) struct Hazards {
    workers: usize,
    /// A clock for each worker.
    clocks: Vec<u32>,
    /// A clock for each place of a chunk.
    chunks: Vec<u32>,
    /// Steps that somebody waits for, in order, and the clock of each once it is over.
    awaited: Vec<(u32, u64)>,
    snapshots: Vec<u32>,
    /// The first of `awaited` of each worker that is not over.
    next_awaited: Vec<usize>,
    /// Uses of each of the three memories of each rank; none for ranks with one worker.
    uses: Vec<[Uses; 3]>,
}

impl Hazards {
    /// `None` where there can be no race, or the schedule is too large to look for them; then the second value is false.
    pub(super) fn new(run: &Run<'_>) -> (Option<Self>, bool) {
        let schedule = run.schedule;
        let workers = run.workers.len();
        let has_company = (0..schedule.ranks).any(|rank| run.workers_of(rank).len() > 1);
        if !has_company && schedule.call.collective != Collective::Barrier {
            return (None, true);
        }
        let steps: u64 = run.workers.iter().map(|worker| worker.steps).sum();
        if steps.saturating_mul(workers as u64) > WORK_MAX {
            return (None, false);
        }
        let awaited = awaited(run);
        if (awaited.len() * workers) as u64 > SNAPSHOT_MAX {
            return (None, false);
        }
        let next_awaited =
            (0..workers as u32).map(|worker| awaited.partition_point(|one| one.0 < worker)).collect();
        let uses = (0..schedule.ranks).map(|rank| {
            let is_alone = run.workers_of(rank).len() < 2;
            if is_alone { [const { Uses(Vec::new()) }; 3] } else { Uses::empty() }
        });
        let hazards = Self {
            workers,
            clocks: vec![0; workers * workers],
            chunks: Vec::new(),
            snapshots: vec![0; awaited.len() * workers],
            awaited,
            next_awaited,
            uses: uses.collect(),
        };
        (Some(hazards), true)
    }

    fn clock(&mut self, worker: u32) -> &mut [u32] {
        let first = worker as usize * self.workers;
        &mut self.clocks[first..first + self.workers]
    }

    /// What a worker knows when it begins a step.
    pub(super) fn join(
        &mut self,
        worker: u32,
        step: &Step,
        workers: &[Worker],
        first_worker: &[u32],
        links: &Links,
    ) {
        let one = &workers[worker as usize];
        let clock = &mut self.clocks[worker as usize * self.workers..][..self.workers];
        for link in one.received(step) {
            let slot = links.front(*link) as usize;
            later(clock, &self.chunks[slot * self.workers..][..self.workers]);
        }
        for after in &step.after {
            let target = first_worker[one.rank as usize] + after.worker;
            let index = self.awaited.binary_search(&(target, after.step));
            let index = index.expect("every awaited step was found beforehand");
            later(clock, &self.snapshots[index * self.workers..][..self.workers]);
        }
    }

    /// Notes what a step reads and writes.
    pub(super) fn access(
        &mut self,
        worker: u32,
        step: &Step,
        one: &Worker,
        memory: &RankMemory,
    ) -> Result<(), Conflict> {
        let uses = &mut self.uses[one.rank as usize];
        if uses[0].0.is_empty() || step.count == 0 {
            return Ok(());
        }
        let clock = &self.clocks[worker as usize * self.workers..][..self.workers];
        let knows = |(other, number): (u32, u64)| u64::from(clock[other as usize]) > number;
        let this = (worker, one.done);
        let mut touch = |piece: &Piece, writes: bool| {
            let area = memory.area(piece.buffer);
            let first = area.base + piece.offset;
            let uses = &mut uses[area.space as usize];
            uses.touch(first..first + step.count, this, writes, &knows).map_err(|found| Conflict {
                first: found.0,
                first_writes: found.1,
                second_writes: writes,
                buffer: piece.buffer,
                element: found.2 - area.base,
            })
        };
        for piece in &step.sources {
            // Nobody writes to the input out of place, so nobody races about it.
            if piece.buffer != Buffer::Input || memory.may_overwrite_input {
                touch(piece, false)?;
            }
        }
        step.stores.iter().try_for_each(|piece| touch(piece, true))
    }

    /// The step is over, as its worker knows.
    pub(super) fn pass(&mut self, worker: u32, number: u64) {
        self.clock(worker)[worker as usize] = number as u32 + 1;
        let next = self.next_awaited[worker as usize];
        if self.awaited.get(next) == Some(&(worker, number)) {
            let from = worker as usize * self.workers;
            let clock = &self.clocks[from..from + self.workers];
            self.snapshots[next * self.workers..][..self.workers].copy_from_slice(clock);
            self.next_awaited[worker as usize] += 1;
        }
    }

    /// The worker has sent a chunk that lies in this place.
    pub(super) fn sent(&mut self, worker: u32, slot: u32) {
        self.make_room(slot);
        let from = worker as usize * self.workers;
        let clock = &self.clocks[from..from + self.workers];
        self.chunks[slot as usize * self.workers..][..self.workers].copy_from_slice(clock);
    }

    /// A switch has added one chunk to another.
    pub(super) fn merged(&mut self, from: u32, into: u32) {
        for index in 0..self.workers {
            let other = self.chunks[from as usize * self.workers + index];
            let own = &mut self.chunks[into as usize * self.workers + index];
            *own = other.max(*own);
        }
    }

    /// A switch has copied a chunk.
    pub(super) fn copied(&mut self, from: u32, to: u32) {
        self.make_room(to);
        let first = from as usize * self.workers;
        self.chunks.copy_within(first..first + self.workers, to as usize * self.workers);
    }

    fn make_room(&mut self, slot: u32) {
        let needed = (slot as usize + 1) * self.workers;
        if self.chunks.len() < needed {
            self.chunks.resize(needed, 0);
        }
    }

    /// Whether a worker knows that one of these has done anything.
    pub(super) fn knows_any(&self, worker: u32, mut others: std::ops::Range<u32>) -> bool {
        others.any(|other| self.clocks[worker as usize * self.workers + other as usize] > 0)
    }
}

fn later(clock: &mut [u32], other: &[u32]) {
    for (own, other) in clock.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}

/// All steps that somebody waits for, in order. Those that do not exist are refused when somebody comes to wait.
fn awaited(run: &Run<'_>) -> Vec<(u32, u64)> {
    let mut awaited = Vec::new();
    for worker in &run.workers {
        for number in 0..worker.steps {
            let step = run.schedule.program.step(worker.rank, worker.number, number);
            let first = run.first_worker[worker.rank as usize];
            awaited.extend(step.after.iter().map(|after| (first.saturating_add(after.worker), after.step)));
        }
    }
    awaited.sort_unstable();
    awaited.dedup();
    awaited
}

/// Who used which part of a memory last.
struct Uses(Vec<Part>);

/// A part of a memory, up to where the next begins.
#[derive(Clone)]
struct Part {
    start: u64,
    /// The worker and step that wrote it last; the worker is none where nobody did.
    writer: (u32, u64),
    /// Who read it since, the last step of each.
    readers: SmallVec<[(u32, u64); 2]>,
}

impl Uses {
    fn empty() -> [Self; 3] {
        let empty = Part { start: 0, writer: (NONE, 0), readers: SmallVec::new() };
        [0; 3].map(|_| Self(vec![empty.clone()]))
    }

    /// The index of the part that begins here, made by a cut where there was none.
    fn cut(&mut self, at: u64) -> usize {
        let index = self.0.partition_point(|part| part.start < at);
        if self.0.get(index).is_none_or(|part| part.start != at) {
            let mut part = self.0[index - 1].clone();
            part.start = at;
            self.0.insert(index, part);
        }
        index
    }

    /// Notes a use; an error is an earlier one that may not be over, whether it wrote, and where.
    fn touch(
        &mut self,
        range: std::ops::Range<u64>,
        this: (u32, u64),
        writes: bool,
        knows: &dyn Fn((u32, u64)) -> bool,
    ) -> Result<(), ((u32, u64), bool, u64)> {
        let (first, last) = (self.cut(range.start), self.cut(range.end));
        let is_over = |other: (u32, u64)| other.0 == this.0 || other.0 == NONE || knows(other);
        for part in &mut self.0[first..last] {
            if !is_over(part.writer) {
                return Err((part.writer, true, part.start));
            }
            if writes {
                if let Some(reader) = part.readers.iter().find(|reader| !is_over(**reader)) {
                    return Err((*reader, false, part.start));
                }
            } else if let Some(reader) = part.readers.iter_mut().find(|reader| reader.0 == this.0) {
                reader.1 = this.1;
            } else {
                part.readers.push(this);
            }
        }
        if writes {
            self.0.drain(first + 1..last);
            self.0[first].writer = this;
            self.0[first].readers.clear();
        }
        Ok(())
    }
}
