//! The driver of jobs: their machines say which rank enters which communication, the collectives carry it.

mod servers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use railnet_coll::variables::Variables;
use railnet_coll::{Call, Collective, Counts};
use railnet_core::digest::Fold;
use railnet_core::event::Sink;
use railnet_core::{Rank, Span, Time};
use railnet_fabric::Network;
use railnet_job::graph::{Communication, StepGraph, Stream, What, Work};
use railnet_job::parallel::{Axis, Scope};
use railnet_job::run::analytic::{Asked, ClusterCosts, Network as _};
use railnet_job::run::{Machine, RankSpan, Special, Ticket, Workers, kind, timeline, timeline_until};
use railnet_topology::Vertex;

use self::servers::ServerTransfer;
use super::memo::{Admission, Memo, MemoCount};
use super::partitions::PartitionView;
use super::report::{self, How, JobResult, PortTraffic, Start, StepResult, Trouble, Troubles};
use crate::run::RunError;
use crate::run::collective::Collectives;
use crate::scenario::{PlacedJob, Scenario, ScenarioError};

/// The token by which the driver is woken; pending work of collectives never has so many places.
pub(super) const TICK: u32 = u32::MAX;

/// Which communicator of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Group {
        stream: Stream,
        scope: Scope,
        first: u32,
    },
    Pair {
        stream: Stream,
        from: u32,
        to: u32,
    },
    /// A rank and a server that has parameters or storage.
    Server {
        stream: Stream,
        rank: u32,
        node: u32,
    },
}

/// A communicator of a job.
#[derive(Debug)]
struct JobCommunicator {
    communicator: u32,
    first_member: u32,
    /// Its endpoints, in order.
    endpoints: Vec<u32>,
    /// Who makes each call: all of them, or the two of a message.
    callers: u32,
    /// Whether it reaches across servers.
    is_wide: bool,
}

/// A call that some ranks have entered.
#[derive(Debug)]
struct OpenCall {
    entered: u32,
    ended: u32,
    /// When the last one came, and who it was.
    begun: Time,
    last: Ticket,
    /// What had gone wrong in the network by then.
    before: Trouble,
}

/// What a member is in.
#[derive(Clone, Copy, Debug)]
struct Called {
    job: usize,
    ticket: Ticket,
    key: Key,
    number: u32,
}

/// A job under way.
struct ActiveJob<'g> {
    placed: &'g PlacedJob,
    graphs: (&'g StepGraph, Option<&'g StepGraph>),
    /// Calls of all ranks in all steps.
    calls: u64,
    special: Vec<Special>,
    machine: Machine<'g>,
    /// When its present step began.
    origin: Time,
    communicators: BTreeMap<Key, JobCommunicator>,
    /// Calls of each rank in each communicator.
    numbers: BTreeMap<(Key, u32), u32>,
    open_calls: BTreeMap<(Key, u32), OpenCall>,
    /// What ranks have under way with servers.
    server_transfers: BTreeMap<Ticket, ServerTransfer>,
    costs: ClusterCosts<'g>,
    how: BTreeMap<Communication, How>,
    troubles: Troubles,
    steps: Vec<Span>,
    first: Option<StepResult>,
    timeline: Vec<RankSpan>,
    is_done: bool,
}

/// Drives all jobs of a scenario.
pub(super) struct Driver<'g> {
    variables: Variables,
    keeps_timeline: bool,
    jobs: Vec<ActiveJob<'g>>,
    called: BTreeMap<u32, Called>,
    /// What ends at a time that is known: what goes to drives.
    timed: BinaryHeap<Reverse<(Time, usize, Ticket)>>,
    /// When the driver is to be woken next.
    armed: Time,
    /// When it last was.
    settled: Time,
    memo: Memo,
    /// Servers with which the rank that waits has begun to transfer.
    begun: u32,
    /// Calls of ranks that are over.
    over: u64,
    /// A rank that comes to something once all else of this moment has happened: of which job.
    waiting: Option<(usize, Ticket)>,
    pub(super) digest: Fold,
    pub(super) failure: Option<RunError>,
    /// Is set from outside where nothing more is to be run.
    pub(super) stop: Option<Arc<AtomicBool>>,
}

impl<'g> Driver<'g> {
    /// With all that ranks do, where that is asked for.
    pub(super) fn new(scenario: &Scenario, keeps_timeline: bool, has_memo: bool) -> Self {
        Self {
            variables: scenario.nccl().clone(),
            keeps_timeline,
            jobs: Vec::new(),
            called: BTreeMap::new(),
            timed: BinaryHeap::new(),
            armed: Time::NEVER,
            settled: Time::ZERO,
            memo: Memo::new(has_memo),
            begun: 0,
            over: 0,
            waiting: None,
            digest: Fold::new(),
            failure: None,
            stop: None,
        }
    }

    /// Whether nothing more is to be run.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// One more job, with its graphs (of a step without and with a checkpoint) and its ranks that are unlike the others.
    pub(super) fn add(
        &mut self,
        placed: &'g PlacedJob,
        graphs: (&'g StepGraph, Option<&'g StepGraph>),
        special: Vec<Special>,
    ) {
        let (settings, options) = (self.variables.settings(), self.variables.topology());
        let mut job = ActiveJob {
            placed,
            graphs,
            calls: calls(graphs.0) * u64::from(placed.resolved.steps),
            machine: Machine::new(graphs.0, Workers::all(graphs.0, &special), Time::ZERO),
            special,
            origin: Time::ZERO,
            communicators: BTreeMap::new(),
            numbers: BTreeMap::new(),
            open_calls: BTreeMap::new(),
            server_transfers: BTreeMap::new(),
            costs: ClusterCosts::new(&placed.cluster, settings, options, placed.resolved.rates),
            how: BTreeMap::new(),
            troubles: Troubles::new(),
            steps: Vec::new(),
            first: None,
            timeline: Vec::new(),
            is_done: false,
        };
        job.machine = job.next_machine();
        self.jobs.push(job);
    }

    /// When it has something to do next that it knows of.
    pub(super) fn armed(&self) -> Time {
        self.armed
    }

    /// When it last had.
    pub(super) fn settled(&self) -> Time {
        self.settled
    }

    /// Whether all jobs are through.
    pub(super) fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.is_done)
    }

    /// A call has ended: at the end of this moment the jobs go on.
    pub(super) fn note_ended<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) {
        // Of the past of a call that is run afterwards, the present is told when it comes.
        if view.now() >= self.settled {
            self.wake(view, view.now());
        }
    }

    fn wake<S: Sink>(&mut self, view: &mut PartitionView<'_, S>, at: Time) {
        if at < self.armed {
            self.armed = at;
            view.call_last_at(at, TICK);
        }
    }

    /// What ends ends, what can begin begins, until all wait. All that ends at a moment is known by then.
    pub(super) fn settle<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) {
        let now = view.now();
        self.settled = now;
        if self.armed <= now {
            self.armed = Time::NEVER;
        }
        loop {
            let ended = self.take_ended(view);
            let mut is_still = ended.is_empty();
            for member in ended {
                self.ended(member, view);
            }
            while self.timed.peek().is_some_and(|Reverse((time, ..))| *time <= now) {
                let Some(Reverse((_, job, ticket))) = self.timed.pop() else { break };
                self.over += 1;
                let job = &mut self.jobs[job];
                let record = job.machine.records(ticket.worker)[ticket.operation as usize];
                job.machine.finished(ticket, record.entered, ticket, job.local(now));
                is_still = false;
            }
            for index in 0..self.jobs.len() {
                is_still &= !self.go_on(index, view);
            }
            if is_still || self.failure.is_some() || self.waiting.is_some() || self.is_stopped() {
                break;
            }
        }
        if self.is_stopped() {
            return;
        }
        let is_behind = self.memo.decide(view);
        if is_behind || self.waiting.is_some() {
            self.wake(view, now);
        }
        self.arm(view);
    }

    /// Members whose calls are over: in the order of members, however they came to it.
    fn take_ended<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) -> Vec<u32> {
        let mut members = Vec::new();
        for (member, at) in view.take_ended() {
            if self.memo.ended(view, view.rank_slot(member), at) {
                members.push(member);
            }
        }
        members.extend(self.memo.take_ended(view.now()));
        members.sort_unstable();
        members
    }

    /// Goes on with a job; whether anything happened.
    fn go_on<S: Sink>(&mut self, index: usize, view: &mut PartitionView<'_, S>) -> bool {
        let now = view.now();
        let job = &mut self.jobs[index];
        if job.is_done {
            return false;
        }
        let mut has_moved = false;
        let local = job.local(now);
        if job.machine.poll_timeout().is_some_and(|time| time <= local) {
            job.machine.handle_timeout(local);
            has_moved = true;
        }
        while !self.is_stopped()
            && self.waiting.is_none_or(|(job, _)| job == index)
            && let Some(ticket) = self.next_entry(index)
        {
            match self.enter(index, ticket, view) {
                Ok(true) => has_moved = true,
                Ok(false) => {
                    self.waiting = Some((index, ticket));
                    return false;
                }
                Err(error) => {
                    self.failure.get_or_insert(RunError::Scenario(error));
                    return false;
                }
            }
        }
        if self.waiting.is_some() {
            return has_moved;
        }
        let job = &mut self.jobs[index];
        if job.machine.is_done() {
            has_moved = true;
            report::fold(&job.machine, &mut self.digest);
            if self.keeps_timeline {
                let step = job.steps.len() as u32;
                job.timeline.extend(timeline(&job.machine, step, job.origin));
            }
            job.end_step(now);
            if job.is_done {
                view.note_end();
            }
        }
        has_moved
    }

    /// The next rank that comes to something: one that had to wait is asked again.
    fn next_entry(&mut self, index: usize) -> Option<Ticket> {
        let waited = self.waiting.take().map(|(_, ticket)| ticket);
        waited.or_else(|| self.jobs[index].machine.poll_entry())
    }

    /// A rank comes to something. Whether it could: else others have to be brought up to now first.
    fn enter<S: Sink>(
        &mut self,
        index: usize,
        ticket: Ticket,
        view: &mut PartitionView<'_, S>,
    ) -> Result<bool, ScenarioError> {
        let now = view.now();
        let job = &mut self.jobs[index];
        let (rank, communication) = job.machine.communication(ticket);
        let stream = job.machine.operation(ticket).stream;
        let local = job.local(now);
        let group = job.machine.graph().layout.group(rank, communication.scope);
        if !job.placed.beside(communication.scope).is_empty() {
            return self.transfer_to_servers(index, ticket, view);
        }
        if communication.what == What::Write {
            // Drives of the server itself: nothing crosses the network.
            let price = job.costs.price(&Asked { said: communication, group: &group, pair: None, load: 1.0 });
            let price = price.map_err(|error| ScenarioError::new(error.to_string()))?;
            self.timed.push(Reverse((now + price.time, index, ticket)));
            return Ok(true);
        }
        let (key, message) = job.key(ticket, rank, communication, stream);
        if message.is_none() && group.is_alone() {
            job.machine.finished(ticket, local, ticket, local);
            return Ok(true);
        }
        if !job.communicators.contains_key(&key) {
            let endpoints = match message {
                Some(pair) => job.pair_endpoints(pair),
                None => group.ranks().map(|rank| job.placed.endpoint(rank.0)).collect(),
            };
            let (communicator, first_member) = view.add_group(&endpoints, &self.variables)?;
            let callers = if message.is_some() { 2 } else { endpoints.len() as u32 };
            self.memo.add(communicator, view.footprint(communicator, first_member), first_member, callers);
            let node = |endpoint: u32| job.placed.whole.ends().node_of(endpoint);
            let is_wide = endpoints.iter().any(|endpoint| node(*endpoint) != node(endpoints[0]));
            job.communicators
                .insert(key, JobCommunicator { communicator, first_member, endpoints, callers, is_wide });
        }
        let channel = &job.communicators[&key];
        let place = |rank: Rank| -> u32 {
            let endpoint = job.placed.endpoint(rank.0);
            let place = channel.endpoints.iter().position(|one| *one == endpoint);
            place.expect("a rank is in its own groups") as u32
        };
        let mut call = job.machine.graph().call(communication, channel.endpoints.len() as u32);
        if let Some([from, to]) = message {
            (call.root, call.peer) = (Rank(place(from)), Rank(place(to)));
        }
        let (place, member) = (place(rank), channel.first_member + place(rank));
        let planned = view.plan_call(member, &call)?;
        let admission = self.memo.enter(view, (channel.communicator, place), &planned, is_joint(&call));
        if admission == Admission::Retry {
            return Ok(false);
        }
        let number = *job.numbers.entry((key, rank.0)).and_modify(|number| *number += 1).or_insert(0);
        let open_call = job.open_calls.entry((key, number)).or_insert(OpenCall {
            entered: 0,
            ended: 0,
            begun: local,
            last: ticket,
            before: Trouble::default(),
        });
        open_call.entered += 1;
        (open_call.begun, open_call.last) = (local, ticket);
        if channel.is_wide && open_call.entered == channel.callers {
            open_call.before = view.trouble();
        }
        self.called.insert(member, Called { job: index, ticket, key, number });
        let how = planned.how();
        job.how.entry(*communication).or_insert(how);
        if message.is_none() {
            let multiprocessors = job.placed.resolved.job.gpu.multiprocessors.max(1);
            job.machine.occupy(ticket, how.channels * 1_000 / multiprocessors, local);
        }
        Ok(true)
    }

    /// The call of a member is over.
    fn ended<S: Sink>(&mut self, member: u32, view: &mut PartitionView<'_, S>) {
        let Some(Called { job, ticket, key, number }) = self.called.remove(&member) else { return };
        if matches!(key, Key::Server { .. }) {
            return self.transfer_ended(job, ticket, view);
        }
        self.over += 1;
        let job = &mut self.jobs[job];
        let local = job.local(view.now());
        let JobCommunicator { callers, is_wide, .. } = job.communicators[&key];
        let Some(open_call) = job.open_calls.get_mut(&(key, number)) else { return };
        open_call.ended += 1;
        let (begun, last) = (open_call.begun, open_call.last);
        let before = open_call.before;
        if open_call.ended == callers {
            job.open_calls.remove(&(key, number));
            let (_, communication) = job.machine.communication(ticket);
            let took = local.since(begun);
            let worst = job.troubles.entry(kind(communication.scope, communication.what));
            let worst = worst.or_insert((Span::ZERO, Trouble::default()));
            if is_wide && took > worst.0 {
                *worst = (took, view.trouble().since(before));
            }
        }
        job.machine.finished(ticket, begun, last, local);
    }

    /// Has the driver woken when something is computed or timed, or was over in a server that has gone further.
    fn arm<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) {
        let computed = self.jobs.iter_mut().filter(|job| !job.is_done).filter_map(|job| {
            let at = job.machine.poll_timeout()?;
            Some(job.origin + at.since(Time::ZERO))
        });
        let timed = self.timed.peek().map(|Reverse((time, ..))| *time);
        let ended = view.first_ended();
        let Some(next) = computed.chain(timed).chain(self.memo.next_end()).chain(ended).min() else { return };
        self.wake(view, next);
    }

    /// Who waits for what, where jobs are not through.
    pub(super) fn stalled(&self) -> Option<String> {
        let job = self.jobs.iter().find(|job| !job.is_done)?;
        let stuck = job.machine.waiting().next();
        let who = stuck.map_or_else(String::new, |ticket| {
            let (rank, communication) = job.machine.communication(ticket);
            format!(": rank {} waits in {} ({:?})", rank.0, communication.scope.name(), communication.what)
        });
        let step = job.steps.len() + 1;
        Some(format!("step {step} of {} did not end{who}", job.placed.resolved.name))
    }

    /// How many collectives there were, once the run is over.
    pub(super) fn count<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) -> MemoCount {
        self.memo.finish(view)
    }

    /// Steps, and calls of ranks, that are over, of all.
    pub(super) fn progress(&self) -> ((u64, u64), (u64, u64)) {
        let steps = self.jobs.iter().map(|job| job.steps.len() as u64).sum();
        let all = self.jobs.iter().map(|job| u64::from(job.placed.resolved.steps)).sum();
        ((steps, all), (self.over, self.jobs.iter().map(|job| job.calls).sum()))
    }

    /// What came of the jobs; of those that were stopped on the way, what is known.
    pub(super) fn finish<S: Sink>(
        self,
        collectives: Option<&Collectives>,
        network: &Network<S>,
    ) -> Vec<JobResult> {
        let (now, keeps_timeline) = (network.now, self.keeps_timeline);
        let results = self.jobs.into_iter().map(|mut job| {
            if keeps_timeline && !job.is_done {
                let step = job.steps.len() as u32;
                job.timeline.extend(timeline_until(&job.machine, step, job.origin, now));
            }
            let numbers = job.communicators.values().map(|channel| channel.communicator);
            let connections = collectives.map(|all| all.connections(numbers)).unwrap_or_default();
            let local = job.local(now);
            let (placed, how) = (job.placed.clone(), &job.how);
            let first = job.first.take().unwrap_or_else(|| {
                let how = |communication: &Communication| how.get(communication).copied();
                report::part_of_step(job.placed, &mut job.machine, local, how, &job.troubles)
            });
            let ports = job.ports(collectives, network);
            let start = Start::new(placed.ranks(), connections.queue_pairs);
            let (steps, timeline, faults) = (job.steps, job.timeline, Vec::new());
            JobResult { placed, connections, start, ports, steps, first, faults, life: None, timeline }
        });
        results.collect()
    }
}

/// Calls of all ranks in a step.
fn calls(graph: &StepGraph) -> u64 {
    let each = u64::from(graph.layout.ranks()) / graph.programs.len().max(1) as u64;
    let operations = graph.programs.iter().flat_map(|program| &program.operations);
    let communication = operations.filter(|one| matches!(one.work, Work::Communicate(_)));
    communication.count() as u64 * each
}

/// Whether nobody can be through with a call before all have come to it.
fn is_joint(call: &Call) -> bool {
    let is_for_all = matches!(
        call.collective,
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll
    );
    is_for_all && matches!(call.counts, Counts::Each(count) if count > 0)
}

impl<'g> ActiveJob<'g> {
    /// The time of its machine, which begins at zero with each step.
    fn local(&self, now: Time) -> Time {
        Time::ZERO + now.since(self.origin)
    }

    /// What went over ports, by scope.
    fn ports<S: Sink>(&self, collectives: Option<&Collectives>, network: &Network<S>) -> Vec<PortTraffic> {
        let scopes: BTreeMap<u32, Scope> = self
            .communicators
            .iter()
            .map(|(key, channel)| match key {
                Key::Group { scope, .. } => (channel.communicator, *scope),
                Key::Pair { .. } => (channel.communicator, Scope::Pipeline),
                Key::Server { node, .. } if self.placed.servers.contains(node) => {
                    (channel.communicator, Scope::Servers)
                }
                Key::Server { .. } => (channel.communicator, Scope::Storage),
            })
            .collect();
        let mut found: BTreeMap<(u32, Scope), [u64; 2]> = BTreeMap::new();
        for (communicator, ports, bytes) in collectives.into_iter().flat_map(Collectives::sent) {
            let Some(scope) = scopes.get(&communicator) else { continue };
            for (end, port) in ports.into_iter().enumerate() {
                found.entry((port, *scope)).or_default()[end] += bytes;
            }
        }
        let name = |port: u32| network.graph().name(Vertex::Host(port)).to_owned();
        let found = found.into_iter().map(|((port, scope), [sent, received])| PortTraffic {
            port: name(port),
            scope,
            sent,
            received,
        });
        found.collect()
    }

    fn next_machine(&self) -> Machine<'g> {
        let number = self.steps.len() as u32 + 1;
        let interval = self.placed.resolved.checkpoint.map(|(interval, _)| interval);
        let is_written = interval.is_some_and(|interval| number.is_multiple_of(interval));
        let graph = self.graphs.1.filter(|_| is_written).unwrap_or(self.graphs.0);
        Machine::new(graph, Workers::all(graph, &self.special), Time::ZERO)
    }

    /// All ranks are through with a step.
    fn end_step(&mut self, now: Time) {
        if self.first.is_none() {
            let how = &self.how;
            let how = |communication: &Communication| how.get(communication).copied();
            self.first = Some(report::step(self.placed, &self.machine, how, &self.troubles));
        }
        self.steps.push(now.since(self.origin));
        self.origin = now;
        if self.steps.len() as u32 == self.placed.resolved.steps {
            self.is_done = true;
        } else {
            self.machine = self.next_machine();
        }
    }

    /// Which communicator it is about; of a message, its two ends too.
    fn key(
        &self,
        ticket: Ticket,
        rank: Rank,
        communication: &Communication,
        stream: Stream,
    ) -> (Key, Option<[Rank; 2]>) {
        let elsewhere = |stage: u32| {
            let place = self.machine.workers()[ticket.worker as usize].place.at(Axis::Pipeline, stage);
            self.machine.graph().layout.rank(place)
        };
        let pair = match communication.what {
            What::Send { stage } => [rank, elsewhere(stage)],
            What::Receive { stage } => [elsewhere(stage), rank],
            _ => {
                let first = self.machine.graph().layout.group(rank, communication.scope).first.0;
                return (Key::Group { stream, scope: communication.scope, first }, None);
            }
        };
        // Both sides by the name of the sender's stream.
        let stream = match stream {
            Stream::ReceiveForward => Stream::SendForward,
            Stream::ReceiveBackward => Stream::SendBackward,
            other => other,
        };
        (Key::Pair { stream, from: pair[0].0, to: pair[1].0 }, Some(pair))
    }

    /// The endpoints of a communicator for messages between two: the same GPUs of both servers, as far as those have them, so that
    /// each knows the other's rail.
    fn pair_endpoints(&self, pair: [Rank; 2]) -> Vec<u32> {
        let ranks = self.placed.cluster.ranks();
        let places = pair.map(|rank| ranks.place(rank.0));
        let of_node = |node: u32| {
            let gpus = places.into_iter().map(|(_, gpu)| gpu).filter(move |gpu| *gpu < ranks.count(node));
            gpus.map(move |gpu| self.placed.endpoint(ranks.range(node).start + gpu))
        };
        let mut found: Vec<u32> = places.iter().flat_map(|(node, _)| of_node(*node)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}
