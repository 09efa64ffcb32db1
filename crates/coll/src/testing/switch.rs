//! Switches that reduce and multicast: the n-th slices of all senders become one, which all receivers get.

use std::collections::{BTreeMap, VecDeque};

use railnet_core::{GhostRun, reduce};
use railnet_nic::memory::{Backing, GhostRuns, Memory, Segments, SpaceId};

use super::lab::Wire;
use crate::call::Call;
use crate::machine::{Expect, Filled, Mark, OperationId};
use crate::schedule::{Peer, Schedule};

/// A channel, a lane of it, and a group.
pub(super) type Key = (u16, u8, u32);

/// All switches of a lab.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// What was sent to a switch and not taken by it.
    sent: BTreeMap<Wire, VecDeque<Filled>>,
    /// What receivers will get, and slices that are in their slots.
    expected: BTreeMap<Wire, (VecDeque<Expect>, u32)>,
}

/// What a switch does at once.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) sources: Vec<(Wire, u32)>,
    pub(super) targets: Vec<(Wire, u32)>,
    pub(super) mark: Mark,
    length: u64,
}

impl Switches {
    pub(super) fn expect(&mut self, wire: Wire, expect: Expect) {
        self.expected.entry(wire).or_default().0.push_back(expect);
    }

    pub(super) fn filled(&mut self, wire: Wire, filled: Filled) {
        self.sent.entry(wire).or_default().push_back(filled);
    }

    pub(super) fn emptied(&mut self, wire: Wire) {
        self.expected.entry(wire).or_default().1 -= 1;
    }

    /// The operation that a group is at, if anything was sent to it.
    pub(super) fn next(&self, (channel, lane, group): Key) -> Option<OperationId> {
        let is_ours =
            |wire: &Wire| (wire.channel, wire.lane, wire.to) == (channel, lane, Peer::Switch(group));
        let first = self.sent.iter().filter(|(wire, _)| is_ours(wire)).filter_map(|(_, queue)| queue.front());
        first.map(|filled| OperationId(filled.tag.sequence)).min()
    }

    /// What a group does next, if all of it is there.
    pub(super) fn turn(&mut self, (channel, lane, group): Key, schedule: &Schedule) -> Option<Turn> {
        let members = &schedule.groups[group as usize];
        let switch = Peer::Switch(group);
        let up = |rank: &u32| Wire { channel, lane, from: Peer::Rank(*rank), to: switch };
        let down = |rank: &u32| Wire { channel, lane, from: switch, to: Peer::Rank(*rank) };
        let has_sent = |rank: &u32| self.sent.get(&up(rank)).is_some_and(|queue| !queue.is_empty());
        let has_room = |rank: &u32| {
            self.expected.get(&down(rank)).is_some_and(|(expected, taken)| {
                let fifo = &schedule.fifo;
                !expected.is_empty() && (taken + 1) * fifo.slots_per_slice <= fifo.depth
            })
        };
        if !members.senders.iter().all(has_sent) || !members.receivers.iter().all(has_room) {
            return None;
        }
        let mut turn = Turn { sources: Vec::new(), targets: Vec::new(), mark: Mark(0), length: 0 };
        for rank in &members.senders {
            let filled = self.sent.get_mut(&up(rank))?.pop_front()?;
            turn.sources.push((up(rank), filled.slot));
            (turn.mark, turn.length) = (filled.mark, filled.data.0);
        }
        for rank in &members.receivers {
            let (expected, taken) = self.expected.get_mut(&down(rank))?;
            *taken += 1;
            let first = expected.front_mut()?;
            turn.targets.push((down(rank), first.slot));
            first.slot = (first.slot + schedule.fifo.slots_per_slice) % schedule.fifo.depth;
            first.slices -= 1;
            if first.slices == 0 {
                expected.pop_front();
            }
        }
        Some(turn)
    }
}

impl Turn {
    /// Puts the sources together, and the result into all targets.
    pub(super) fn reduce(
        &self,
        memory: &mut Segments,
        call: &Call,
        sources: &[(SpaceId, u64)],
        targets: &[(SpaceId, u64)],
    ) {
        let Some((space, address)) = sources.first().filter(|_| self.length > 0) else { return };
        if memory.backing(*space, *address, self.length) == Some(Backing::Ghost) {
            let mut runs: Vec<GhostRun> = Vec::new();
            for (index, (space, address)) in sources.iter().enumerate() {
                let mut own = GhostRuns::new();
                memory.read_ghost(*space, *address, self.length as u32, &mut own);
                if index == 0 {
                    runs = own.to_vec();
                } else {
                    assert_eq!(runs.len(), own.len(), "slices hold the same stretches everywhere");
                    for (run, own) in runs.iter_mut().zip(own) {
                        run.tag = run.tag.reduced_with(own.tag);
                    }
                }
            }
            for (space, address) in targets {
                let mut at = *address;
                for run in &runs {
                    memory.write_ghost(*space, at, *run);
                    at += u64::from(run.length);
                }
            }
            return;
        }
        let mut sum = Vec::new();
        for (index, (space, address)) in sources.iter().enumerate() {
            let mut own = Vec::new();
            memory.read(*space, *address, self.length as usize, &mut own);
            if index == 0 {
                sum = own;
            } else {
                reduce::reduce(call.dtype, call.op, &mut sum, &own).expect("slices are equally long");
            }
        }
        for (space, address) in targets {
            memory.write(*space, *address, &sum);
        }
    }
}
