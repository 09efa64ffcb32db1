//! What goes from where to where, and when.

use railnet_coll::check::Done;
use railnet_coll::{Peer, Schedule};

/// A chunk on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub(super) round: u32,
    pub(super) from: Peer,
    pub(super) to: Peer,
    pub(super) channel: u16,
    pub(super) chunk: u32,
    pub(super) count: u64,
    /// Ranks whose contributions are in it.
    pub(super) contributions: u32,
}

/// All chunks on their way, by round, then by sender.
pub(super) struct Moves {
    pub(super) all: Vec<Move>,
    pub(super) rounds: u32,
}

impl Moves {
    pub(super) fn new(schedule: &Schedule, done: &[Done]) -> Self {
        let mut all = Vec::new();
        for one in done {
            let step = schedule.program.step(one.rank, one.worker, one.step);
            let here = Peer::Rank(one.rank);
            let base = Move {
                round: one.round,
                from: here,
                to: here,
                channel: 0,
                chunk: step.chunk,
                count: step.count,
                contributions: one.contributions,
            };
            for on in &step.sends {
                all.push(Move { to: on.peer, channel: on.channel, ..base });
            }
            // What comes from a switch left it in the round in which the last of its senders gave.
            for on in step.receives.iter().filter(|on| matches!(on.peer, Peer::Switch(_))) {
                let round = one.round.saturating_sub(1);
                all.push(Move { round, from: on.peer, to: here, channel: on.channel, ..base });
            }
        }
        // Ranks come before switches, so a switch is fed before it feeds.
        all.sort_by_key(|one| (one.round, one.from, one.channel, one.chunk, one.to));
        let rounds = all.iter().map(|one| one.round + 1).max().unwrap_or(0);
        Self { all, rounds }
    }

    /// Those of a round.
    pub(super) fn of(&self, round: u32) -> &[Move] {
        let first = self.all.partition_point(|one| one.round < round);
        let last = self.all.partition_point(|one| one.round <= round);
        &self.all[first..last]
    }
}

/// `rank 3`, `switch 0`.
pub(super) fn name(peer: Peer) -> String {
    match peer {
        Peer::Rank(rank) => format!("rank {rank}"),
        Peer::Switch(group) => format!("switch {group}"),
    }
}

/// `3`, `s0`.
pub(super) fn short(peer: Peer) -> String {
    match peer {
        Peer::Rank(rank) => rank.to_string(),
        Peer::Switch(group) => format!("s{group}"),
    }
}
