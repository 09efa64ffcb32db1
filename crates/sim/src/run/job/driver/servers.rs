//! Transfers between ranks and servers: gradients that are pushed, parameters that are pulled, checkpoints that are written.
//!
//! A rank shares its bytes out among all servers of a kind. Each part is a message between its GPU and the GPU of the same number
//! of the server, in a communicator of the two: on rails it stays on its own. A server is always ready: it makes its call when
//! the rank does, and what the rank pulls is sent when the rank has communication that it has room, as with every message of NCCL's.

use railnet_core::event::Sink;
use railnet_core::{Bytes, Rank, Span, Time};
use railnet_job::graph::{Communication, What};
use railnet_job::parallel::Scope;
use railnet_job::run::{Ticket, kind};

use super::super::memo::Admission;
use super::super::partitions::PartitionView;
use super::super::report::Trouble;
use super::{ActiveJob, Called, Driver, JobCommunicator, Key};
use crate::scenario::ScenarioError;

/// The transfers of a rank with all servers of a scope.
#[derive(Debug)]
pub(super) struct ServerTransfer {
    /// Ends of messages that are not through.
    left: u32,
    begun: Time,
    /// What had gone wrong in the network by then.
    before: Trouble,
}

impl Driver<'_> {
    /// A rank begins its transfers with all servers of a scope. `false` if others have to be brought up to now first.
    pub(super) fn transfer_to_servers<S: Sink>(
        &mut self,
        index: usize,
        ticket: Ticket,
        view: &mut PartitionView<'_, S>,
    ) -> Result<bool, ScenarioError> {
        let job = &self.jobs[index];
        let (rank, communication) = job.machine.communication(ticket);
        let (communication, stream) = (*communication, job.machine.operation(ticket).stream);
        let nodes = job.placed.beside(communication.scope);
        let count = u64::from(nodes.end - nodes.start);
        for (place, node) in (0..).zip(nodes).skip(self.begun as usize) {
            let cut = |place: u64| communication.bytes.as_u64() * place / count;
            let bytes = Bytes(cut(place + 1) - cut(place));
            if bytes > Bytes::ZERO {
                let part = Communication { bytes, ..communication };
                let key = Key::Server { stream, rank: rank.0, node };
                if !self.start_transfer(index, (ticket, key, &part), view)? {
                    return Ok(false);
                }
            }
            self.begun += 1;
        }
        self.begun = 0;
        Ok(true)
    }

    /// A rank and a server make the two calls of a message. Whether they could.
    fn start_transfer<S: Sink>(
        &mut self,
        index: usize,
        (ticket, key, part): (Ticket, Key, &Communication),
        view: &mut PartitionView<'_, S>,
    ) -> Result<bool, ScenarioError> {
        self.connect_server(index, key, part.scope, view)?;
        let job = &mut self.jobs[index];
        let channel = &job.communicators[&key];
        let mut call = job.machine.graph().call(part, 2);
        // The rank comes first in the communicator: servers are behind it in the cluster.
        let ends = [Rank(0), Rank(1)];
        [call.root, call.peer] = if part.what == What::Pull { [ends[1], ends[0]] } else { ends };
        let planned = view.plan_call(channel.first_member, &call)?;
        for end in ends {
            let rank_slot = (channel.communicator, end.0);
            if self.memo.enter(view, rank_slot, &planned, false) == Admission::Retry {
                return Ok(false);
            }
            let member = channel.first_member + end.0;
            self.called.insert(member, Called { job: index, ticket, key, number: 0 });
        }
        let local = job.local(view.now());
        let transfer = job.server_transfers.entry(ticket).or_insert_with(|| ServerTransfer {
            left: 0,
            begun: local,
            before: view.trouble(),
        });
        transfer.left += 2;
        let (_, communication) = job.machine.communication(ticket);
        job.how.entry(*communication).or_insert(planned.how());
        Ok(true)
    }

    /// The communicator of a rank and a server, made when it is first used.
    fn connect_server<S: Sink>(
        &mut self,
        index: usize,
        key: Key,
        scope: Scope,
        view: &mut PartitionView<'_, S>,
    ) -> Result<(), ScenarioError> {
        let job = &mut self.jobs[index];
        let Key::Server { rank, node, .. } = key else { return Ok(()) };
        if job.communicators.contains_key(&key) {
            return Ok(());
        }
        let endpoints = job.server_endpoints(rank, node);
        let (communicator, first_member) = view.add_group(&endpoints, &self.variables)?;
        if scope == Scope::Storage && job.placed.resolved.rates.is_storage_bounced {
            view.bounce(communicator);
        }
        self.memo.add(communicator, view.footprint(communicator, first_member), first_member, 2);
        let endpoints = endpoints.to_vec();
        job.communicators.insert(
            key,
            JobCommunicator { communicator, first_member, endpoints, callers: 2, is_wide: true },
        );
        Ok(())
    }

    /// One end of a message between a rank and a server is through.
    pub(super) fn transfer_ended<S: Sink>(
        &mut self,
        index: usize,
        ticket: Ticket,
        view: &mut PartitionView<'_, S>,
    ) {
        let job = &mut self.jobs[index];
        let Some(transfer) = job.server_transfers.get_mut(&ticket) else { return };
        transfer.left -= 1;
        if transfer.left > 0 {
            return;
        }
        let (begun, before) = (transfer.begun, transfer.before);
        job.server_transfers.remove(&ticket);
        self.over += 1;
        let local = job.local(view.now());
        let (_, communication) = job.machine.communication(ticket);
        let worst = job.troubles.entry(kind(communication.scope, communication.what));
        let worst = worst.or_insert((Span::ZERO, Trouble::default()));
        if local.since(begun) > worst.0 {
            *worst = (local.since(begun), view.trouble().since(before));
        }
        job.machine.finished(ticket, begun, ticket, local);
    }
}

impl ActiveJob<'_> {
    /// The GPU of a rank, and the one of the same number of a server: with fewer of them, they take turns.
    fn server_endpoints(&self, rank: u32, node: u32) -> [u32; 2] {
        let (_, gpu) = self.placed.cluster.ranks().place(rank);
        let ends = self.placed.whole.ends().range(node);
        [self.placed.endpoint(rank), ends.start + gpu % (ends.end - ends.start)]
    }
}
