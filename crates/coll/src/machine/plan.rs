//! What an operation will use: the connections of each worker, and how many chunks go over each.

use std::sync::Arc;

use railnet_core::{Bytes, Fold};

use super::signature::{Mark, Signature};
use super::work::{ConnectionId, Direction, InlineCopy, Layout, OperationId};
use super::worker::Loaded;
use crate::schedule::{Buffer, Connection, Piece, Schedule, Step, Usage};

/// Steps up to which they are kept ready: those of small calls, which are made most often and take least time.
const FEW: u64 = 8;
/// Bytes of a step up to which it matters that several are done in the shortest way: to look for what comes again and again is in
/// the way of who writes more.
const LITTLE: u64 = 512;
/// Bytes up to which a copy takes the inline fast path: one less than the length from which conduits treat slices specially.
const INLINE_COPY: u64 = (2 << 10) - 1;

/// What one rank does in a schedule. Made once and kept for calls that are made again and again.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) schedule: Arc<Schedule>,
    pub(super) uses: Uses,
    /// How its slices lie in slots, and the bytes of an element.
    pub(super) layout: Layout,
    pub(super) element: u64,
    /// What of signatures is the same for all operations by this plan.
    meaning: Fold,
    /// The steps of each worker, where they are few.
    ready: Vec<Vec<Arc<Loaded>>>,
    /// Whether each worker has one step of one slice, with something to move, and waits for no other; where there are several, with
    /// little to move.
    pub(super) is_single: bool,
    /// The only step of all, where that only copies a little data.
    pub(super) inline_copy: Option<InlineCopy>,
}

/// The connections of each worker, in ascending order.
#[derive(Debug)]
pub(super) struct Uses(pub(super) Vec<Vec<Use>>);

/// A connection that a worker uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) key: (Direction, Connection),
    pub(super) id: ConnectionId,
    pub(super) chunks: u64,
}

impl Plan {
    /// Asks what a rank uses; `name` gives the name of a connection.
    ///
    /// Receivers have to ask for data before they need it, or a schedule that the slots would carry could stand still:
    /// what they may ask for has to be known when the operation begins.
    pub(super) fn new(
        schedule: &Arc<Schedule>,
        rank: u32,
        mut name: impl FnMut(Direction, Connection) -> ConnectionId,
    ) -> Self {
        let program = &schedule.program;
        let workers = (0..program.workers(rank)).map(|worker| {
            let uses = program.uses(rank, worker).into_iter();
            let mut uses: Vec<Use> = uses
                .map(|Usage { direction, connection, chunks }| Use {
                    key: (direction, connection),
                    id: name(direction, connection),
                    chunks,
                })
                .collect();
            uses.sort_unstable_by_key(|one| one.key);
            uses
        });
        let uses = Uses(workers.collect());
        let layout = Layout { protocol: schedule.protocol, fifo: schedule.fifo };
        let element = schedule.call.dtype.size() as u64;
        let steps: Vec<u64> = (0..program.workers(rank)).map(|worker| program.steps(rank, worker)).collect();
        let mut ready: Vec<Vec<Arc<Loaded>>> = Vec::new();
        if steps.iter().sum::<u64>() <= FEW {
            ready = (0..)
                .zip(steps)
                .map(|(worker, steps)| {
                    let step = |number| {
                        let mut loaded = Loaded::default();
                        loaded.set(program.step(rank, worker, number), worker, &uses, &layout, element);
                        Arc::new(loaded)
                    };
                    (0..steps).map(step).collect()
                })
                .collect();
        }
        let meaning = Signature::new(OperationId(0), schedule).meaning();
        let is_single_step = |steps: &Vec<Arc<Loaded>>| matches!(&steps[..], [only] if only.is_single());
        let most = if ready.len() == 1 { u64::MAX } else { LITTLE };
        let is_little = |steps: &Vec<Arc<Loaded>>| steps.iter().all(|one| one.step.count * element <= most);
        let is_single = !ready.is_empty() && ready.iter().all(|one| is_single_step(one) && is_little(one));
        let inline_copy = match &ready[..] {
            [only] if is_single && !schedule.call.collective.reduces() => inline_copy(&only[0].step, element),
            _ => None,
        };
        Self { schedule: Arc::clone(schedule), uses, layout, element, meaning, ready, is_single, inline_copy }
    }

    /// A step that is ready.
    #[inline]
    pub(super) fn ready(&self, worker: u32, step: u64) -> Option<&Arc<Loaded>> {
        self.ready.get(worker as usize)?.get(step as usize)
    }

    /// How many steps a worker has.
    #[inline]
    pub(super) fn steps(&self, rank: u32, worker: u32) -> u64 {
        match self.ready.get(worker as usize) {
            Some(steps) => steps.len() as u64,
            None => self.schedule.program.steps(rank, worker),
        }
    }

    /// What travels of an operation's signature.
    #[inline]
    pub(super) fn mark(&self, operation: OperationId) -> Mark {
        Mark::new(operation, self.meaning)
    }
}

/// A step of a single slice as an inline copy, if it is one.
fn inline_copy(step: &Step, element: u64) -> Option<InlineCopy> {
    let length = Bytes(step.count * element);
    let place = |piece: &Piece| (piece.buffer, Bytes(piece.offset * element));
    let from = match (&step.sources[..], &step.receives[..]) {
        ([source], []) => Some(place(source)),
        ([], [_]) => None,
        _ => return None,
    };
    let into = match &step.stores[..] {
        [] => None,
        [store] => Some(place(store)),
        _ => return None,
    };
    let is_of_caller = from.into_iter().chain(into).all(|(buffer, _)| buffer != Buffer::Scratch);
    (length.0 <= INLINE_COPY && is_of_caller).then_some(InlineCopy { from, into, length })
}

impl Uses {
    /// The name of a connection of a worker.
    pub(super) fn find(&self, worker: u32, direction: Direction, to: Connection) -> ConnectionId {
        let uses = &self.0[worker as usize];
        let key = (direction, to);
        let found = uses.binary_search_by_key(&key, |one| one.key);
        uses[found.expect("the plan has seen every step")].id
    }
}
