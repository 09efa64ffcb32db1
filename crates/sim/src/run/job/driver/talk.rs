//! What ranks and servers say to each other: gradients that are pushed, parameters that are pulled, checkpoints that are written.
//!
//! A rank shares its bytes out among all servers of a kind. Each part is a message between its GPU and the GPU of the same number
//! of the server, in a communicator of the two: on rails it stays on its own. A server is always ready: it makes its call when
//! the rank does, and what the rank pulls is sent when the rank has said that it has room, as with every message of NCCL's.

use railnet_core::event::Sink;
use railnet_core::{Bytes, Rank, Span, Time};
use railnet_job::graph::{Communication, What};
use railnet_job::parallel::Scope;
use railnet_job::run::{Ticket, kind};

use super::super::memo::Verdict;
use super::super::report::Trouble;
use super::super::stage::Stage;
use super::{Active, Called, Channel, Driver, Key};
use crate::scenario::ScenarioError;

/// What a rank has under way with servers.
#[derive(Debug)]
pub(super) struct Talk {
    /// Ends of messages that are not through.
    left: u32,
    begun: Time,
    /// What had gone wrong in the network by then.
    before: Trouble,
}

impl Driver<'_> {
    /// A rank begins to talk with all servers of a scope. Whether it could: else others have to be brought up to now first.
    pub(super) fn talk<S: Sink>(
        &mut self,
        index: usize,
        ticket: Ticket,
        stage: &mut Stage<'_, S>,
    ) -> Result<bool, ScenarioError> {
        let job = &self.jobs[index];
        let (rank, said) = job.machine.communication(ticket);
        let (said, stream) = (*said, job.machine.operation(ticket).stream);
        let nodes = job.placed.beside(said.scope);
        let count = u64::from(nodes.end - nodes.start);
        for (place, node) in (0..).zip(nodes).skip(self.begun as usize) {
            let cut = |place: u64| said.bytes.as_u64() * place / count;
            let bytes = Bytes(cut(place + 1) - cut(place));
            if bytes > Bytes::ZERO {
                let part = Communication { bytes, ..said };
                let key = Key::Server { stream, rank: rank.0, node };
                if !self.say(index, (ticket, key, &part), stage)? {
                    return Ok(false);
                }
            }
            self.begun += 1;
        }
        self.begun = 0;
        Ok(true)
    }

    /// A rank and a server make the two calls of a message. Whether they could.
    fn say<S: Sink>(
        &mut self,
        index: usize,
        (ticket, key, part): (Ticket, Key, &Communication),
        stage: &mut Stage<'_, S>,
    ) -> Result<bool, ScenarioError> {
        self.join(index, key, part.scope, stage)?;
        let job = &mut self.jobs[index];
        let channel = &job.channels[&key];
        let mut call = job.machine.graph().call(part, 2);
        // The rank comes first in the communicator: servers are behind it in the cluster.
        let ends = [Rank(0), Rank(1)];
        [call.root, call.peer] = if part.what == What::Pull { [ends[1], ends[0]] } else { ends };
        let planned = stage.plan_call(channel.first_member, &call)?;
        for end in ends {
            let seat = (channel.communicator, end.0);
            if self.memo.enter(stage, seat, &planned, false) == Verdict::Later {
                return Ok(false);
            }
            let member = channel.first_member + end.0;
            self.called.insert(member, Called { job: index, ticket, key, number: 0 });
        }
        let local = job.local(stage.now());
        let talk = job.talks.entry(ticket).or_insert_with(|| Talk {
            left: 0,
            begun: local,
            before: stage.trouble(),
        });
        talk.left += 2;
        let (_, said) = job.machine.communication(ticket);
        job.how.entry(*said).or_insert(planned.how());
        Ok(true)
    }

    /// The communicator of a rank and a server, made when it is first used.
    fn join<S: Sink>(
        &mut self,
        index: usize,
        key: Key,
        scope: Scope,
        stage: &mut Stage<'_, S>,
    ) -> Result<(), ScenarioError> {
        let job = &mut self.jobs[index];
        let Key::Server { rank, node, .. } = key else { return Ok(()) };
        if job.channels.contains_key(&key) {
            return Ok(());
        }
        let endpoints = job.server_endpoints(rank, node);
        let (communicator, first_member) = stage.add_group(&endpoints, &self.variables)?;
        if scope == Scope::Storage && job.placed.resolved.rates.is_storage_bounced {
            stage.bounce(communicator);
        }
        self.memo.add(communicator, stage.place(communicator, first_member), first_member, 2);
        let endpoints = endpoints.to_vec();
        job.channels
            .insert(key, Channel { communicator, first_member, endpoints, callers: 2, is_wide: true });
        Ok(())
    }

    /// One end of a message between a rank and a server is through.
    pub(super) fn talked<S: Sink>(&mut self, index: usize, ticket: Ticket, stage: &mut Stage<'_, S>) {
        let job = &mut self.jobs[index];
        let Some(talk) = job.talks.get_mut(&ticket) else { return };
        talk.left -= 1;
        if talk.left > 0 {
            return;
        }
        let (begun, before) = (talk.begun, talk.before);
        job.talks.remove(&ticket);
        self.over += 1;
        let local = job.local(stage.now());
        let (_, said) = job.machine.communication(ticket);
        let worst = job.troubles.entry(kind(said.scope, said.what));
        let worst = worst.or_insert((Span::ZERO, Trouble::default()));
        if local.since(begun) > worst.0 {
            *worst = (local.since(begun), stage.trouble().since(before));
        }
        job.machine.finished(ticket, begun, ticket, local);
    }
}

impl Active<'_> {
    /// The GPU of a rank, and the one of the same number of a server: with fewer of them, they take turns.
    fn server_endpoints(&self, rank: u32, node: u32) -> [u32; 2] {
        let (_, gpu) = self.placed.cluster.ranks().place(rank);
        let ends = self.placed.whole.ends().range(node);
        [self.placed.endpoint(rank), ends.start + gpu % (ends.end - ends.start)]
    }
}
