//! What an operation will use: the connections of each worker, and how many chunks go over each.

use std::sync::Arc;

use super::work::{ConnectionId, Direction};
use crate::schedule::{Connection, Schedule, Usage};

/// What one rank does in a schedule. Made once and kept for calls that are made again and again.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) schedule: Arc<Schedule>,
    /// The connections of each worker, in ascending order.
    pub(super) workers: Vec<Vec<Use>>,
}

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
        let workers: Vec<_> = workers.collect();
        Self { schedule: Arc::clone(schedule), workers }
    }

    /// The name of a connection of a worker.
    pub(super) fn find(&self, worker: u32, direction: Direction, to: Connection) -> ConnectionId {
        let uses = &self.workers[worker as usize];
        let key = (direction, to);
        let found = uses.binary_search_by_key(&key, |one| one.key);
        uses[found.expect("the plan has seen every step")].id
    }
}
