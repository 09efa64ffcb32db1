//! What members and switches do with messages.

use railnet_core::event::Sink;
use railnet_nic::memory::{GhostRuns, Memory, reduce_ghosts};
use railnet_nic::{
    Completion, CompletionKind, Operation, PostError, ReceiveRequest, SendRequest, Sge, Status,
};
use railnet_topology::Vertex;

use super::group::{Addressee, Node, Pending};
use super::{Aggregation, Group, HostNics, Notification, ReductionFailure};
use crate::network::Network;

/// The bit of an immediate value that says: this segment ends a contribution. The others count segments.
const LAST: u32 = 1 << 31;

/// A segment that is forwarded: its number, its length, and whether it ends a contribution.
#[derive(Clone, Copy)]
struct Segment {
    number: u64,
    length: u32,
    is_last: bool,
}

impl Segment {
    fn immediate(self) -> u32 {
        self.number as u32 & !LAST | if self.is_last { LAST } else { 0 }
    }

    fn send(self, work: u64) -> SendRequest {
        SendRequest::new(work, Operation::SendImmediate(self.immediate())).unsignaled()
    }
}

impl<S: Sink> Network<S> {
    /// Handles all messages of groups that have arrived at a host, or at the NIC of a switch.
    pub(crate) fn reduce(&mut self, host: u32) {
        self.endpoints.hosts[host as usize].is_reducing = false;
        let Some(queue) = self.endpoints.hosts[host as usize].reduces else { return };
        let Some((aggregation, mut nics)) = self.aggregation() else { return };
        let mut some = [Completion::EMPTY; 16];
        loop {
            let count = nics.endpoints.hosts[host as usize].nic.poll_cq(queue, &mut some);
            for completion in &some[..count] {
                aggregation.take_message(&mut nics, host, completion);
            }
            if count < some.len() {
                break;
            }
        }
        self.kick(host);
    }
}

impl Aggregation {
    fn take_message<S: Sink>(&mut self, nics: &mut HostNics<'_, S>, host: u32, completion: &Completion) {
        let addressee = Addressee::of(completion.work);
        let group = Group(addressee.group);
        let Some(state) = self.group(group).filter(|state| state.failure.is_none()) else { return };
        let at = || nics.topology.graph.name(Vertex::Host(host)).to_owned();
        if completion.status != Status::Success {
            let failure = ReductionFailure::Transport { at: at(), status: completion.status };
            self.fail(group, failure);
            return;
        }
        if !matches!(completion.kind, CompletionKind::Receive) {
            return;
        }
        let is_last = completion.immediate.unwrap_or_default() & LAST != 0;
        let result = match (addressee.node, addressee.edge) {
            (None, Some(member)) => self.result_at_member(nics, group, member, completion.length),
            (Some(node), Some(child)) => {
                self.take_from_child(nics, addressee, (node, child), completion.length, is_last)
            }
            (Some(node), None) => {
                let node = &mut state.nodes[node as usize];
                let segment = Segment { number: node.results, length: completion.length, is_last };
                node.results += 1;
                self.send_down(nics, addressee, segment)
            }
            (None, None) => Ok(()),
        };
        if let Err(reason) = result {
            let at = nics.topology.graph.name(Vertex::Host(host)).to_owned();
            self.fail(group, ReductionFailure::Post { at, reason });
        }
    }

    /// A segment has arrived at a switch from a child.
    fn take_from_child<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        addressee: Addressee,
        (node, edge): (u32, u32),
        length: u32,
        is_last: bool,
    ) -> Result<(), PostError> {
        let (segment, all_slots) = (self.segment(), u64::from(self.config.slots.max(1)));
        let Some(state) = self.group(Group(addressee.group)) else { return Ok(()) };
        let Node { host, children, partial, .. } = &mut state.nodes[node as usize];
        let (host, count) = (*host, children.len() as u32);
        let child = &mut children[edge as usize];
        let (number, slot) = (child.arrived, child.arrived % all_slots);
        child.arrived += 1;
        let (slots, queue_pair) = (child.slots, child.queue_pair);
        let part = &mut partial[slot as usize];
        let other = part.first.filter(|(other, bytes, last)| {
            let both_give = slots.is_some() && children[*other as usize].slots.is_some();
            *last != is_last || both_give && *bytes != length
        });
        if let Some((other, bytes, last)) = other {
            let name =
                |edge: u32| nics.topology.graph.name(Vertex::Host(children[edge as usize].host)).to_owned();
            let switch = Vertex::Switch(host - nics.host_count());
            let failure = ReductionFailure::Uneven {
                switch: nics.topology.graph.name(switch).to_owned(),
                segment: number,
                from: [name(other), name(edge)],
                lengths: [(bytes, last), (length, is_last)],
            };
            self.fail(Group(addressee.group), failure);
            return Ok(());
        }
        if part.first.is_none() || slots.is_some() {
            part.first = Some((edge, length, is_last));
        }
        if let Some(slots) = slots {
            let mut runs = GhostRuns::new();
            let at = slots.sge(slot, segment, length).address;
            nics.memory.read_ghost(slots.space, at, length, &mut runs);
            part.sum = Some(match part.sum.take() {
                None => runs,
                Some(sum) => reduce_ghosts(&sum, &runs),
            });
        }
        part.count += 1;
        let all_links_up = part.count == count;
        let request = self.receive(addressee.work(), slots, slot);
        let (nic, mut cx) = nics.nic(host);
        nic.post_recv(&mut cx, queue_pair, request)?;
        if all_links_up {
            self.send_on(nics, Addressee { edge: None, ..addressee }, number, is_last)
        } else {
            Ok(())
        }
    }

    /// All children of a switch have sent a segment: the sum goes to the parent, or down from the root.
    fn send_on<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        addressee: Addressee,
        number: u64,
        is_last: bool,
    ) -> Result<(), PostError> {
        let (bytes, all_slots) = (self.segment(), u64::from(self.config.slots.max(1)));
        let slot = number % all_slots;
        let (Some(state), Some(node)) = (self.group(Group(addressee.group)), addressee.node) else {
            return Ok(());
        };
        let Node { host, parent, up, down, partial, .. } = &mut state.nodes[node as usize];
        let (host, parent, up, down) = (*host, *parent, *up, *down);
        let sum = std::mem::take(&mut partial[slot as usize]).sum.unwrap_or_default();
        let length = sum.iter().map(|run| run.length).sum();
        let segment = Segment { number, length, is_last };
        let kept = if parent.is_some() { up } else { down };
        if let Some(kept) = kept {
            let mut at = kept.sge(slot, bytes, length).address;
            for run in sum {
                nics.memory.write_ghost(kept.space, at, run);
                at += u64::from(run.length);
            }
        }
        let Some(parent) = parent else { return self.send_down(nics, addressee, segment) };
        // Before the message that asks for it.
        let receive = self.receive(addressee.work(), down, slot);
        let request = segment.send(addressee.work());
        let request = match up {
            Some(up) => request.with(up.sge(slot, bytes, length)),
            None => request,
        };
        let (nic, mut cx) = nics.nic(host);
        nic.post_recv(&mut cx, parent, receive)?;
        nic.post_send(&mut cx, parent, request)
    }

    /// A switch sends a segment of the result to all children.
    fn send_down<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        addressee: Addressee,
        segment: Segment,
    ) -> Result<(), PostError> {
        let (bytes, all_slots) = (self.segment(), u64::from(self.config.slots.max(1)));
        let (Some(state), Some(node)) = (self.group(Group(addressee.group)), addressee.node) else {
            return Ok(());
        };
        let node = &state.nodes[node as usize];
        let data = node.down.map(|down| down.sge(segment.number % all_slots, bytes, segment.length));
        let (nic, mut cx) = nics.nic(node.host);
        for (edge, child) in node.children.iter().enumerate() {
            let request = segment.send(Addressee { edge: Some(edge as u32), ..addressee }.work());
            let request = match data.filter(|_| child.receives) {
                Some(data) => request.with(data),
                None => request,
            };
            nic.post_send(&mut cx, child.queue_pair, request)?;
        }
        Ok(())
    }

    /// A segment of the result has arrived at a member.
    fn result_at_member<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        group: Group,
        member: u32,
        length: u32,
    ) -> Result<(), PostError> {
        let segment = self.segment();
        let Some(state) = self.group(group) else { return Ok(()) };
        let own = &mut state.members[member as usize];
        own.received += 1;
        let Some(pending) = own.pending.front_mut() else { return Ok(()) };
        let expected = if own.role.receives() { pending.part(pending.received, segment).1 } else { 0 };
        pending.received += 1;
        if length != expected {
            let host = nics.topology.graph.name(Vertex::Host(own.host)).to_owned();
            self.fail(group, ReductionFailure::Result { host, length, expected });
            return Ok(());
        }
        if pending.received == pending.segments {
            let token = pending.given.token;
            own.pending.pop_front();
            own.sending -= 1;
            self.notifications.push_back(Notification::Reduced { group, member, token });
        }
        self.pump(nics, group.0, member)
    }

    /// A member sends its contribution, as far as its slots allow.
    pub(super) fn pump<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        group: u32,
        member: u32,
    ) -> Result<(), PostError> {
        let (segment, slots) = (self.segment(), u64::from(self.config.slots.max(1)));
        let Some(state) = self.group(Group(group)) else { return Ok(()) };
        let own = &mut state.members[member as usize];
        let work = Addressee { group, node: None, edge: Some(member) }.work();
        let (nic, mut cx) = nics.nic(own.host);
        while own.sent < own.received + slots
            && let Some(pending) = own.pending.get_mut(own.sending)
        {
            let (offset, length) = pending.part(pending.sent, segment);
            let part = |whole: Sge| Sge { address: whole.address + u64::from(offset), length, ..whole };
            pending.sent += 1;
            let is_last = pending.sent == pending.segments;
            let mut receive = ReceiveRequest::new(work);
            receive.scatter.extend(pending.given.target.map(part));
            let mut request = Segment { number: own.sent, length, is_last }.send(work);
            request.gather.extend(pending.given.source.map(part));
            request.label = pending.given.label;
            own.sent += 1;
            own.sending += usize::from(is_last);
            nic.post_recv(&mut cx, own.queue_pair, receive)?;
            nic.post_send(&mut cx, own.queue_pair, request)?;
        }
        Ok(())
    }
}

impl Pending {
    /// Where a segment of it begins, and how long it is.
    fn part(&self, number: u32, segment: u32) -> (u32, u32) {
        let offset = number * segment;
        (offset, segment.min(self.length - offset))
    }
}

impl Aggregation {
    /// A group has failed and will have no result.
    fn fail(&mut self, group: Group, failure: ReductionFailure) {
        let Some(state) = self.group(group) else { return };
        if state.failure.is_none() {
            state.failure = Some(failure.clone());
            self.notifications.push_back(Notification::Failed { group, failure });
        }
    }
}
