//! Collectives in the simulated world: the machines of `coll`, with GPUs, NVLink and NICs under them.
//!
//! A communicator has a [`RankMachine`] for each of its ranks. What they ask for is turned into time here: work into
//! memory traffic of the GPU and slices over NVLink, filled slots into messages of NICs. Memory is made of ghosts, so that
//! every element of every result is checked.

mod carrier;
mod communicator;
mod connect;
pub(super) mod driven;
mod earliest;
mod emit;
mod group;
mod identity;
mod pending;
mod plan;
mod put;
mod sharp;
#[cfg(test)]
mod tests;
mod threads;
mod timing;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use railnet_coll::machine::{Applier, ConnectionId, Failure, Mark, Notice, Output, RankMachine, Work};
use railnet_coll::{CustomAlgorithm, Schedule};
use railnet_core::event::Sink;
use railnet_core::{Rank, Span, Time};
use railnet_fabric::{BusResource, Network};
use railnet_nic::Completion;
use railnet_nic::memory::SpaceId;

use super::runner::Endpoint;
use super::server::Servers;
use super::server_ranks::GpuBus;
use carrier::{BusPaths, Carrier, Pair};
use communicator::Communicator;
use group::Group;
pub(super) use pending::TOKEN;
use pending::{Pending, PendingTable};
pub use plan::CollectiveResult;
use plan::Entry;
pub use put::TransferResult;

/// What the network and its hosts have for collectives.
pub(super) struct HostResources<'a> {
    pub(super) servers: Option<&'a mut Servers>,
    pub(super) ports: &'a [Endpoint],
}

impl HostResources<'_> {
    /// The host group of each port: its server, which only the network connects with others. `None` if a server has no port.
    pub(super) fn host_groups(&self, ports: u32) -> Option<Vec<u32>> {
        match self.servers.as_deref() {
            None => Some((0..ports).collect()),
            Some(Servers { ports, .. }) => {
                let have_ports = (0..ports.nodes()).all(|server| !ports.range(server).is_empty());
                have_ports.then(|| (0..ports.total()).map(|port| ports.node_of(port)).collect())
            }
        }
    }
}

/// A rank of a communicator.
#[derive(Debug)]
struct Member {
    machine: RankMachine,
    communicator: u32,
    /// The GPU, or the port where there are none.
    endpoint: u32,
    /// A host of the network that is part of its server.
    host: u32,
    /// Input, output and scratch memory.
    buffers: [SpaceId; 3],
    /// What each connection leads to.
    ends: Vec<End>,
    /// Where the first slot of each connection is.
    slots: Vec<(SpaceId, u64)>,
    /// The work of each worker.
    works: Vec<Option<Work>>,
    /// The GPU, where there is one.
    gpu: Option<Gpu>,
    /// The threads that run each channel, where there is a limit to what they send.
    blocks: Vec<Option<Block>>,
    /// What it executes, where a job calls and not an entry.
    own: Option<Arc<Schedule>>,
    /// What it executes next, in the order of its calls.
    planned: std::collections::VecDeque<Arc<Schedule>>,
    /// For what it needs connections next.
    unprepared: std::collections::VecDeque<Arc<Schedule>>,
    /// Calls of the present entry that are over.
    done: u32,
    /// Bytes of outputs that were wrong.
    wrong: u64,
}

/// What of a GPU takes time: touching its memory, and sending lines.
#[derive(Debug)]
struct Gpu {
    bus: GpuBus,
    /// Ways that only touch its memory.
    paths: BusPaths,
}

/// Threads of a GPU that run one channel.
#[derive(Debug)]
struct Block {
    resource: BusResource,
    /// Ways that touch the GPU's memory and end there.
    paths: BusPaths,
}

/// What a connection of a member leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It sends on a pair.
    Sender(u32),
    /// It receives on a pair.
    Receiver(u32),
    /// It sends to a switch that reduces: the group, and its place among the senders.
    Contributor(u32, u32),
    /// It receives from a switch that reduces: the group, and its place among the receivers.
    Beneficiary(u32, u32),
    /// It sends to the network's switches, which reduce: the group, and which of its heads it is.
    Giver(u32, u32),
    /// It receives from the network's switches.
    Taker(u32, u32),
}

/// What tells groups around a switch apart: communicator, channel, lane, senders, receivers.
type GroupName = (u32, u16, u8, Vec<u32>, Vec<u32>);

/// A connection between two members: channel, lane, sender, receiver.
type PairKey = (u16, u8, u32, u32);

/// Everything that ranks do together in a run.
pub(super) struct Collectives {
    seed: u64,
    /// The endpoints that take part where a scenario names none.
    everyone: Vec<u32>,
    /// Algorithms from files.
    algorithms: BTreeMap<String, Arc<dyn CustomAlgorithm>>,
    /// Whether switches of the network reduce.
    aggregates: bool,
    /// What the cost model sees of the network, where calls are predicted.
    interconnect: Option<railnet_job::run::analytic::Interconnect>,
    entries: Vec<Entry>,
    /// The entry that runs.
    at: usize,
    started: Time,
    /// Members whose calls of the present entry are not over, and when the last of the others was through.
    running: u32,
    last_end: Time,
    communicators: Vec<Communicator>,
    members: Vec<Member>,
    pairs: Vec<Pair>,
    pair_names: BTreeMap<PairKey, u32>,
    /// Those that NICs carry, in the order in which they were made.
    net_pairs: Vec<u32>,
    groups: Vec<Group>,
    group_names: BTreeMap<GroupName, u32>,
    sharps: Vec<sharp::Sharp>,
    sharp_names: BTreeMap<sharp::SharpName, u32>,
    /// The first group of the same ports of a communicator: all of them share its contexts.
    sharp_teams: BTreeMap<(u32, Vec<u32>), railnet_fabric::Group>,
    pending: PendingTable,
    applier: Applier,
    notices: Vec<(u32, Option<Rank>, Notice)>,
    settings: connect::NetSettings,
    pub(super) transfers: put::Transfers,
    driven: driven::Driven,
    earliest: earliest::Earliest,
    pub(super) results: Vec<CollectiveResult>,
    pub(super) failure: Option<Arc<Failure>>,
    pub(super) finished: Time,
}

impl Collectives {
    /// Whether everything has been done.
    pub(super) fn is_done(&self) -> bool {
        self.unfinished() == 0
    }

    /// Calls that are not over.
    pub(super) fn unfinished(&self) -> usize {
        self.entries.len() - self.at + self.transfers.unfinished()
    }

    /// All calls.
    pub(super) fn all(&self) -> usize {
        self.entries.len() + self.transfers.puts.len()
    }

    /// The least time from an event in one server until it moves ranks in another without the network; `None` if that may be at
    /// once.
    pub(super) fn lookahead_bound(&self, resources: &HostResources<'_>) -> Option<Span> {
        if !self.transfers.puts.is_empty() {
            return None;
        }
        if !self.driven.is_on && self.entries.len() == 1 {
            return Some(Span::MAX);
        }
        // With the end of a call or an entry, others begin: they are launched first.
        let host = resources.servers.as_deref().and_then(Servers::host);
        host.filter(|host| !host.gpus().is_empty()).map(|_| timing::Timing::least_reaction())
    }

    /// Begins with the first entry.
    pub(super) fn begin<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>) {
        self.start(network, resources);
    }

    /// Has every rank of the present entry make its first call.
    fn start<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>) {
        if self.at == self.entries.len() {
            self.start_put(network);
            return;
        }
        self.begin_count(network);
        let entry = &self.entries[self.at];
        self.started = network.now;
        self.running = 0;
        let mut members: Vec<u32> = Vec::new();
        for part in &entry.parts {
            let communicator = &mut self.communicators[part.communicator as usize];
            communicator.schedule = Some(Arc::clone(&part.schedule));
            communicator.differs.clone_from(&part.differs);
            members.extend(communicator.members.clone());
        }
        for member in members {
            self.running += 1;
            let state = &mut self.members[member as usize];
            (state.done, state.wrong) = (0, 0);
            if !self.is_absent(member) {
                let schedule = Arc::clone(self.schedule(member));
                let launch = self.launch(member);
                self.connect_before(network, resources, member, &schedule, launch);
                self.launch_call(network, member, launch);
            }
        }
    }

    /// The schedule that a member executes in the present entry.
    fn schedule(&self, member: u32) -> &Arc<Schedule> {
        let state = &self.members[member as usize];
        if let Some(own) = &state.own {
            return own;
        }
        let communicator = &self.communicators[state.communicator as usize];
        let rank = state.machine.rank();
        let own = communicator.differs.iter().find(|(other, _)| *other == rank);
        let common = communicator.schedule.as_ref().expect("only members of the present entry run");
        own.and_then(|(_, schedule)| schedule.as_ref()).unwrap_or(common)
    }

    /// From a member's call to its first step.
    fn launch(&self, member: u32) -> Span {
        let communicator = self.members[member as usize].communicator;
        self.communicators[communicator as usize].timing.launch(self.schedule(member))
    }

    /// Has something happen to a member after a while.
    fn later<S: Sink>(&mut self, network: &mut Network<S>, after: Span, member: u32, pending: Pending) {
        let token = self.pending.add(pending);
        network.call_on(self.members[member as usize].host, network.now + after, token);
    }

    /// Has a member make a call after a while, on behalf of one who looks at all servers.
    fn launch_call<S: Sink>(&mut self, network: &mut Network<S>, member: u32, launch: Span) {
        let token = self.pending.add(Pending::Call { member });
        network.call_on_after(self.members[member as usize].host, network.now + launch, token);
    }

    /// Makes the connections to other servers that a member needs for its next call. They are not left to the call: how NICs
    /// number them would depend on which server comes to its own first. It is done just before it, when all servers have
    /// come that far.
    fn connect_before<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        schedule: &Arc<Schedule>,
        launch: Span,
    ) {
        let is_wide = self.is_wide(member);
        let Member { machine, unprepared, .. } = &mut self.members[member as usize];
        if !is_wide || machine.knows(schedule) {
            return;
        }
        unprepared.push_back(Arc::clone(schedule));
        match launch.as_ps().checked_sub(1) {
            Some(before) => {
                let token = self.pending.add(Pending::Prepare { member });
                network.call_last_at(network.now + Span::from_ps(before), token);
            }
            None => self.prepare(network, resources, member),
        }
    }

    /// Makes the connections that a member needs next.
    fn prepare<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>, member: u32) {
        let Some(schedule) = self.members[member as usize].unprepared.pop_front() else { return };
        // They are made for what it executes then, not for what it does now.
        let present = self.members[member as usize].own.replace(Arc::clone(&schedule));
        self.members[member as usize].machine.prepare(&schedule);
        self.pump(network, resources, member);
        self.members[member as usize].own = present;
    }

    /// A rank makes its call.
    fn call<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>, member: u32) {
        if let Some(next) = self.members[member as usize].planned.pop_front() {
            self.members[member as usize].own = Some(next);
        }
        let schedule = Arc::clone(self.schedule(member));
        self.fill_buffers(network, member, &schedule.call);
        let submitted = self.members[member as usize].machine.submit(network.now, &schedule);
        match submitted {
            Ok(operation) => self.emit_call_made(network, member, operation),
            Err(failure) => {
                self.failure.get_or_insert(failure);
                return;
            }
        }
        self.pump(network, resources, member);
    }

    /// Something that was waited for is over.
    pub(super) fn over<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        token: u32,
    ) {
        let Some(pending) = self.pending.over(token) else { return };
        match pending {
            Pending::Call { member } => self.call(network, resources, member),
            Pending::Prepare { member } => self.prepare(network, resources, member),
            Pending::Work { member, work, .. } => {
                self.complete(network, member, work.worker());
                self.pump(network, resources, member);
            }
            Pending::See { pair, mark } => {
                let Pair { receiver: (member, connection), early, .. } = &mut self.pairs[pair as usize];
                match *connection {
                    Some(connection) => {
                        let member = *member;
                        self.arrived(network, resources, member, connection, Some(mark));
                    }
                    None => early.push(mark),
                }
            }
            Pending::SeeResult { group, receiver, mark } => {
                let spoke = &mut self.groups[group as usize].receivers[receiver as usize];
                match spoke.connection {
                    Some(connection) => {
                        let member = spoke.member;
                        self.arrived(network, resources, member, connection, Some(mark));
                    }
                    None => spoke.early.push(mark),
                }
            }
            Pending::Arrive { member, connection } => {
                self.arrived(network, resources, member, connection, None);
            }
            Pending::Free { member, connection } => {
                self.members[member as usize].machine.freed(network.now, connection);
                self.pump(network, resources, member);
            }
            Pending::Notice { member, filled } => self.set_out(network, resources, member, filled),
            Pending::Out { member, filled } => self.send(network, resources, member, filled),
            Pending::Into { member, connection } => self.delivered(network, member, connection),
            Pending::PutOut { pair, layer } => self.put_out(network, pair, layer),
            Pending::Put { pair, layer } => self.put_layer(network, pair, layer),
            Pending::PutInto { pair } => self.put_arrived(network, pair),
            Pending::EntryOver => self.end_entry(network, resources),
            Pending::Nothing => {}
        }
    }

    fn arrived<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        connection: ConnectionId,
        mark: Option<Mark>,
    ) {
        self.emit_slice_arrived(network, member, connection);
        let machine = &mut self.members[member as usize].machine;
        if let Some(mark) = mark {
            machine.heard(network.now, connection, mark);
        }
        machine.arrived(network.now, connection);
        self.pump(network, resources, member);
    }

    /// Does what a machine asks for.
    fn pump<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>, member: u32) {
        while let Some(output) = self.members[member as usize].machine.poll_output() {
            match output {
                Output::Connect { connection, to, direction } => {
                    self.connect(network, resources, member, connection, to, direction);
                }
                Output::Expect(expect) => self.expect(network, member, expect),
                Output::Work(id) => {
                    let work = self.members[member as usize].machine.work(id);
                    self.begin_work(network, member, work);
                }
                Output::Filled(filled) => {
                    self.emit_slice_sent(network, member, &filled);
                    self.filled(network, resources, member, filled);
                }
                Output::Emptied { connection, .. } => self.emptied(network, member, connection),
                Output::Notice { to, notice } => self.notices.push((member, to, *notice)),
                Output::Finished(operation) => {
                    self.emit_call_over(network, member, operation);
                    self.finish_call(network, member);
                }
                Output::Failed(failure) => {
                    self.failure.get_or_insert(failure);
                }
            }
        }
        self.deliver_notices(network, resources);
    }

    /// Brings what ranks tell each other outside of connections: at once, since nothing is measured any more by then.
    fn deliver_notices<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>) {
        while let Some((from, to, notice)) = self.notices.pop() {
            let sender = &self.members[from as usize];
            let rank = sender.machine.rank();
            let all = self.communicators[sender.communicator as usize].members.clone();
            for member in all {
                let machine = &mut self.members[member as usize].machine;
                if machine.rank() == rank || to.is_some_and(|to| to != machine.rank()) {
                    continue;
                }
                machine.notice(network.now, rank, notice.clone());
                self.pump(network, resources, member);
            }
        }
    }

    /// A call of a member is over; with the last one of all members, the entry is.
    fn finish_call<S: Sink>(&mut self, network: &mut Network<S>, member: u32) {
        let call = self.schedule(member).call.clone();
        let wrong = self.wrong_bytes(network, member, &call);
        if self.driven.is_on {
            self.end_driven(network, member, wrong);
            return;
        }
        let iterations = self.entries[self.at].iterations;
        let state = &mut self.members[member as usize];
        state.wrong += wrong;
        state.done += 1;
        if state.done == 1 && call.output_count(state.machine.rank(), state.machine.ranks()) > 0 {
            let first = self.transfers.first.get_or_insert(network.now);
            *first = network.now.min(*first);
        }
        if state.done < iterations {
            let launch = self.launch(member);
            self.later(network, launch, member, Pending::Call { member });
            return;
        }
        self.running -= 1;
        self.last_end = self.last_end.max(network.now);
        if self.running == 0 {
            let token = self.pending.add(Pending::EntryOver);
            network.call_last_at(self.last_end, token);
        }
    }

    /// All members are through with the present entry.
    fn end_entry<S: Sink>(&mut self, network: &mut Network<S>, resources: &mut HostResources<'_>) {
        self.note_result(network.now);
        self.note_sends(network);
        self.at += 1;
        self.start(network, resources);
    }

    /// What came of the present entry.
    fn note_result(&mut self, now: Time) {
        let entry = &self.entries[self.at];
        let element = entry.call().dtype.size() as u64;
        let members = entry.parts.iter().flat_map(|part| {
            let members = self.communicators[part.communicator as usize].members.clone();
            members.map(|member| self.members[member as usize].wrong)
        });
        let wrong = members.sum::<u64>().div_ceil(element);
        let time = now.since(self.started) / u64::from(entry.iterations);
        self.results.push(CollectiveResult::new(entry, self.started, time, wrong));
    }

    /// Whether a completion belongs to a collective.
    pub(super) fn owns(completion: &Completion) -> bool {
        completion.work >> 32 != 0
    }

    /// Whether a member makes no call in the present entry.
    fn is_absent(&self, member: u32) -> bool {
        let Member { communicator, machine, .. } = &self.members[member as usize];
        let parts = self.entries.get(self.at).map_or(&[][..], |entry| &entry.parts);
        parts.iter().any(|part| part.communicator == *communicator && part.is_absent(machine.rank()))
    }

    /// Nothing will happen any more, and not everything is done: a rank that waits asks the others, once it has waited
    /// as long as it may.
    pub(super) fn inquire<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        limit: Time,
    ) {
        if self.is_done() || self.failure.is_some() {
            return;
        }
        let waits = self.members.iter().enumerate();
        let waits = waits.filter_map(|(member, state)| Some((state.machine.poll_timeout()?, member as u32)));
        let Some((at, member)) = waits.min() else { return };
        network.now = network.now.max(at.min(limit));
        self.members[member as usize].machine.expired(network.now);
        self.pump(network, resources, member);
    }

    /// Who waits for what, where a run has come to an end too early.
    pub(super) fn stalled(&self) -> String {
        let call = self.entries.get(self.at).map_or("nothing", |entry| entry.call().collective.name());
        let waits: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .filter_map(|(index, member)| {
                let rank = member.machine.rank().0;
                if self.is_absent(index as u32) {
                    return Some(format!("rank {rank} made no call"));
                }
                let wait = member.machine.waiting_for().into_iter().next()?;
                Some(format!("rank {rank} waits for {wait}"))
            })
            .take(4)
            .collect();
        let (done, all) = (self.at, self.entries.len());
        format!("{call} did not end ({done} of {all} were done): {}", waits.join("; "))
    }

    /// The word of a rank in a call: what its input holds.
    fn word(&self, member: u32, done: u32) -> u128 {
        let name = u64::from(member) << 32 | (self.at as u64) << 12 | u64::from(done & 0xfff);
        let mut random = railnet_core::Random::stream(self.seed, "collective word", name);
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    }

    /// Words of all ranks of the communicator of a member, in the call that it is in. All of them ask, one after the other:
    /// the answer is kept.
    fn words(&mut self, member: u32) -> &[u128] {
        let Member { communicator, done, .. } = self.members[member as usize];
        let (key, index) = ((self.at, done), communicator as usize);
        if self.communicators[index].words.as_ref().is_none_or(|known| known.0 != key) {
            let members = self.communicators[index].members.clone();
            let words = members.map(|other| self.word(other, done)).collect();
            self.communicators[index].words = Some((key, words));
        }
        self.communicators[index].words.as_ref().map_or(&[], |known| &known.1)
    }

    fn carrier(&self, end: End) -> Option<&Carrier> {
        match end {
            End::Sender(pair) | End::Receiver(pair) => Some(&self.pairs[pair as usize].carrier),
            _ => None,
        }
    }
}
