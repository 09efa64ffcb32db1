//! The status of an engine for `railnet status`.

use std::sync::Arc;
use std::time::Duration;

use railnet_coll::Peer;
use railnet_coll::machine::{OperationId, Signature, WaitingFor};
use railnet_core::Span;

use super::Engine;
use super::context::Context;
use crate::Control;
use crate::status::{CallStatus, PeerStatus, RankState, RankStatus, StatusBoard};

/// The most calls of a communicator that are listed.
const CALLS: usize = 8;

fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_ps() / 1000)
}

/// The status of a rank of which only its identity is known.
pub(crate) fn bare(job: &str, control: &Control) -> RankStatus {
    let members = control.members();
    let peer = |member: &crate::message::Member| PeerStatus {
        pid: member.pid,
        host: member.host.clone(),
        transport: String::new(),
    };
    RankStatus {
        is_here: true,
        job: job.to_owned(),
        rank: control.rank().0,
        world_size: members.len() as u32,
        pid: std::process::id(),
        state: RankState::DoesNotAnswer,
        calls: Vec::new(),
        calls_done: 0,
        gone: Vec::new(),
        peers: members.iter().map(peer).collect(),
        counters: Vec::new(),
        nic: None,
        queue_pairs: Vec::new(),
    }
}

impl Engine {
    /// Where a thread that has the engine leaves its status.
    pub(crate) fn status_board(&self) -> &Arc<StatusBoard> {
        &self.status_board
    }

    /// The job it belongs to.
    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// The status as of the last time the clock was read.
    pub(crate) fn status(&self) -> RankStatus {
        let mut status = bare(&self.job, &self.control);
        let is_busy = self.is_busy();
        status.state = if is_busy { RankState::InCall } else { RankState::Computes };
        status.calls = self.contexts.iter().flat_map(|context| self.calls_of(context)).collect();
        status.calls_done = self.contexts.iter().map(|context| context.done).sum();
        let lost = self.lost.iter().map(|(rank, _)| *rank);
        status.gone = lost.chain(self.left.iter().map(|(rank, _)| *rank)).collect();
        for (rank, peer) in (0..).zip(&mut status.peers) {
            if rank != status.rank {
                peer.transport = self.conduits.kind(rank).to_string();
            }
        }
        status
            .counters
            .push(("unauthenticated connections and packets refused".to_owned(), self.conduits.refused()));
        if let Some(nic) = self.conduits.nic_ref() {
            nic.describe(&mut status);
        }
        status
    }

    fn calls_of(&self, context: &Context) -> Vec<CallStatus> {
        let waits = context.machine.waiting_for();
        let mut waits_for: Vec<u32> = waits
            .iter()
            .filter_map(|wait| match wait.what {
                WaitingFor::Data(Peer::Rank(rank), _) | WaitingFor::Room(Peer::Rank(rank), _) => {
                    context.members.get(rank as usize).copied()
                }
                _ => None,
            })
            .collect();
        waits_for.sort_unstable();
        waits_for.dedup();
        let still_for = duration(self.now.since(context.machine.last_progress()));
        let calls = (context.done..).zip(&context.calls).take(CALLS);
        let describe = |(index, (number, call)): (usize, (u64, &super::context::Submitted))| {
            let operation = OperationId(number);
            let schedule = context.machine.schedule(operation);
            let age = call.began.map_or(Duration::ZERO, |began| duration(self.now.since(began)));
            CallStatus {
                call: schedule.map_or_else(
                    || format!("call {operation}"),
                    |schedule| Signature::new(operation, schedule).to_string(),
                ),
                ranks: context.members.len() as u32,
                age,
                still_for: if index == 0 { still_for.min(age) } else { age },
                waits_for: if index == 0 { waits_for.clone() } else { Vec::new() },
            }
        };
        calls.enumerate().map(describe).collect()
    }
}
