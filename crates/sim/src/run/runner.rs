//! What runs on the hosts: connections, messages, and when flows began and ended.

use railnet_core::event::Sink;
use railnet_core::{QueuePairNumber, Time};
use railnet_fabric::{Application, Network, host_gid};
use railnet_nic::memory::SpaceId;
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Key, Mtu, Operation, Path, PostError, ProtectionDomain,
    QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge, Status,
};

use super::error::{FlowFailure, RunError};
use super::inside::Inside;
use super::peers::{Lane, Peer, Peers, Side};
use super::stall::{Waiting, blocking_cause};
use crate::scenario::{Scenario, ScenarioError};
use crate::traffic::Flow;

/// The longest message that a flow is cut into.
pub(super) const MESSAGE_MAX: u64 = 1 << 30;
/// Messages that may wait in a queue pair, in either direction.
const QUEUE_DEPTH: u32 = 1 << 15;
/// Moments at which flows start: so many are few.
const STARTS_FEW: usize = 1_000;
/// Where the memory of every host begins.
const BASE: u64 = 1 << 32;

/// What each port has for the messages of flows.
pub(super) struct Endpoint {
    pub(super) domain: ProtectionDomain,
    pub(super) queue: CompletionQueue,
    key: Key,
}

/// The application of a traffic scenario.
pub(super) struct Runner {
    hosts: u32,
    mtu: Mtu,
    timeout: u8,
    retry_count: u8,
    pub(super) endpoints: Vec<Endpoint>,
    /// The DSCP of acknowledgements, where it is not that of the data.
    ack_dscp: Option<u8>,
    /// The queue pairs of each host.
    connections: Vec<Peers>,
    pub(super) flows: Vec<Flow>,
    pub(super) started: Vec<Time>,
    pub(super) finished: Vec<Time>,
    /// Messages of each flow that have not arrived.
    left: Vec<u32>,
    /// Flows that wait for each flow: first of a chain, and the next in it. Flows that wait for nothing are chained
    /// too where they start at the same moment, so that the calendar holds one call for all of them.
    waiting: Vec<u32>,
    next_waiting: Vec<u32>,
    /// The first of each chain of flows that start at the same moment.
    starts: Vec<u32>,
    pub(super) unfinished: usize,
    /// Why the run cannot go on.
    pub(super) failure: Option<RunError>,
    /// When the flow failed that it tells of, if it does.
    failed_at: Time,
    /// Flows that finished since they were last taken, where a coupled simulation waits for them.
    pub(super) news: Option<Vec<u32>>,
    /// The servers behind the ports, where the scenario has any.
    pub(super) inside: Option<Inside>,
}

const NOBODY: u32 = u32::MAX;

/// How many messages a flow is cut into.
fn messages(flow: &Flow) -> u32 {
    flow.bytes.div_ceil(MESSAGE_MAX).max(1) as u32
}

impl Runner {
    pub(super) fn new(scenario: &Scenario, hosts: u32, flows: Vec<Flow>) -> Result<Self, ScenarioError> {
        let mtu = Mtu::of_payload(scenario.payload()).ok_or_else(|| ScenarioError::new("no such MTU"))?;
        let mut waiting = vec![NOBODY; flows.len()];
        let mut next_waiting = vec![NOBODY; flows.len()];
        for (index, flow) in flows.iter().enumerate().rev() {
            if let Some(before) = flow.after {
                next_waiting[index] = std::mem::replace(&mut waiting[before as usize], index as u32);
            }
        }
        let mut free: Vec<u32> =
            (0..flows.len() as u32).filter(|index| flows[*index as usize].after.is_none()).collect();
        free.sort_by_key(|index| (flows[*index as usize].start, *index));
        let mut starts = Vec::new();
        for alike in free.chunk_by(|a, b| flows[*a as usize].start == flows[*b as usize].start) {
            starts.extend(alike.first());
            for pair in alike.windows(2) {
                next_waiting[pair[0] as usize] = pair[1];
            }
        }
        let left = flows.iter().map(messages).collect();
        Ok(Self {
            hosts,
            mtu,
            timeout: scenario.timeout(),
            retry_count: scenario.nic.retry_count,
            endpoints: Vec::new(),
            ack_dscp: scenario.ack_dscp()?,
            connections: vec![Peers::default(); hosts as usize],
            started: vec![Time::NEVER; flows.len()],
            finished: vec![Time::NEVER; flows.len()],
            left,
            waiting,
            next_waiting,
            starts,
            unfinished: flows.len(),
            flows,
            failure: None,
            failed_at: Time::ZERO,
            news: None,
            inside: None,
        })
    }

    /// Has one more flow start at its time, which is not past. Returns its number.
    pub(super) fn add<S: Sink>(&mut self, network: &mut Network<S>, flow: Flow) -> u32 {
        let index = self.flows.len() as u32;
        self.left.push(match &mut self.inside {
            Some(inside) => {
                inside.add(&flow);
                inside.slices(&flow)
            }
            None => messages(&flow),
        });
        self.flows.push(flow);
        self.started.push(Time::NEVER);
        self.finished.push(Time::NEVER);
        self.waiting.push(NOBODY);
        self.next_waiting.push(NOBODY);
        self.unfinished += 1;
        network.call_at(flow.start, index);
        index
    }

    /// Gives every host memory and a completion queue, and has the flows start.
    pub(super) fn set_up<S: Sink>(&mut self, network: &mut Network<S>, inside: Option<Inside>) {
        if let Some(inside) = inside {
            self.left = self.flows.iter().map(|flow| inside.slices(flow)).collect();
            self.inside = Some(inside);
        }
        for host in 0..self.hosts {
            let space: SpaceId = network.memory.add_ghost(BASE, MESSAGE_MAX);
            // Borrowed apart: registration looks at the memory, the NIC is changed.
            let memory = std::mem::take(&mut network.memory);
            let (nic, _) = network.nic(host);
            let domain = nic.alloc_pd();
            let queue = nic.create_cq(1 << 22).expect("the depth is within the NIC's limit");
            let key = nic
                .reg_mr(&memory, domain, space, BASE, MESSAGE_MAX, Access::ALL, None)
                .expect("the memory was just made");
            network.memory = memory;
            network.watch(host, queue);
            self.endpoints.push(Endpoint { domain, queue, key });
        }
        self.make_room(network);
        for first in &self.starts {
            network.call_at(self.flows[*first as usize].start, *first);
        }
    }

    /// Room for what starts at the first moment, where that is much: what grows step by step is copied each time.
    fn make_room<S: Sink>(&mut self, network: &mut Network<S>) {
        let hosts = self.hosts as usize;
        let mut messages = vec![[0; 2]; hosts];
        let mut next = self.starts.first().copied().unwrap_or(NOBODY);
        while self.inside.is_none() && next != NOBODY {
            let Flow { source, target, .. } = self.flows[next as usize];
            messages[source as usize][0] += 1;
            messages[target as usize][1] += 1;
            next = self.next_waiting[next as usize];
        }
        for (host, [sends, receives]) in messages.into_iter().enumerate() {
            let peers = (sends + receives).min(hosts);
            self.connections[host].reserve(peers);
            network.nic(host as u32).0.reserve(peers, sends, receives);
        }
    }

    /// Nothing that a host hears lets another one do something: no flow waits for another, and nothing but the fabric connects
    /// them. The clock starts flows everywhere; it does so now and then only, and hosts can be taken apart in between.
    pub(super) fn minds_its_host(&self) -> bool {
        let is_free = self.flows.iter().all(|flow| flow.after.is_none());
        self.flows.is_empty() || is_free && self.inside.is_none() && self.starts.len() <= STARTS_FEW
    }

    /// Where the queue pairs of a flow are found: at its source, and at its target.
    fn lanes(&self, dscp: u8) -> [Lane; 2] {
        Lane::of(dscp, self.ack_dscp)
    }

    /// The queue pairs between two ports for data with this DSCP, at its source and at its target, if they were made.
    fn known(&self, from: u32, to: u32, dscp: u8) -> Option<(QueuePairNumber, QueuePairNumber)> {
        let [sends, _] = self.lanes(dscp);
        self.connections[from as usize].find(to, sends).map(|peer| (peer.own, peer.other))
    }

    /// The connection between two ports for data with this DSCP, made at its first use: the queue pair of either end.
    fn connection<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        (from, to): (u32, u32),
        dscp: u8,
    ) -> (QueuePairNumber, QueuePairNumber) {
        let [sends, receives] = self.lanes(dscp);
        if let Some(peer) = self.connections[from as usize].find(to, sends) {
            return (peer.own, peer.other);
        }
        let ends = [from, to].map(|near| {
            let endpoint = &self.endpoints[near as usize];
            let config = QueuePairConfig {
                send_depth: QUEUE_DEPTH,
                receive_depth: QUEUE_DEPTH,
                ..QueuePairConfig::new(Service::ReliableConnection, endpoint.queue)
            };
            let (nic, _) = network.nic(near);
            nic.create_qp(endpoint.domain, &config).expect("the range holds a number for every peer")
        });
        let answers = self.ack_dscp.unwrap_or(dscp);
        for (near, far, own, other, lane, dscp) in
            [(from, to, ends[0], ends[1], sends, dscp), (to, from, ends[1], ends[0], receives, answers)]
        {
            self.connections[near as usize].insert(Peer { host: far, lane, own, other });
            let plain = Connection::to(host_gid(far), other);
            let connection = Connection {
                mtu: self.mtu,
                timeout: self.timeout,
                retry_count: self.retry_count,
                // The lower two bits say that the path understands ECN marks.
                path: Path { traffic_class: dscp << 2 | plain.path.traffic_class & 3, ..plain.path },
                ..plain
            };
            let (nic, mut cx) = network.nic(near);
            for change in connection.transitions() {
                nic.modify_qp(&mut cx, own, &change).expect("the attributes are those the transition needs");
            }
        }
        (ends[0], ends[1])
    }

    fn start<S: Sink>(&mut self, network: &mut Network<S>, index: u32) {
        let flow = self.flows[index as usize];
        self.started[index as usize] = network.now;
        let result = match self.inside {
            Some(_) => self.read_slices(network, index),
            None => self.post(network, index, &flow),
        };
        self.note_failure(index, result);
    }

    fn note_failure(&mut self, index: u32, result: Result<(), PostError>) {
        if let Err(reason) = result {
            let Flow { source: from, target: to, .. } = self.flows[index as usize];
            self.failure.get_or_insert(RunError::Post { flow: index, from, to, reason });
        }
    }

    /// Every queue pair that was made, with its host.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = (u32, QueuePairNumber)> {
        let hosts = self.connections.iter().enumerate();
        hosts.flat_map(|(host, peers)| peers.made().iter().map(move |peer| (host as u32, peer.own)))
    }

    /// The connections by which a host receives: the peer, the DSCP, and its own queue pair.
    pub(super) fn peers(&self, host: u32) -> impl Iterator<Item = (u32, u8, QueuePairNumber)> {
        let peers = self.connections[host as usize].iter().filter(|peer| peer.lane.side != Side::Sends);
        peers.map(|peer| (peer.host, peer.lane.dscp, peer.own))
    }

    /// Where a flow that has started is.
    fn place<S: Sink>(&self, network: &mut Network<S>, index: u32) -> Option<Waiting> {
        let flow = &self.flows[index as usize];
        let Flow { source: from, target: to, .. } = *flow;
        let (near, far) = (self.port(from), self.port(to));
        let (queue_pair, other) = self.known(near, far, flow.dscp)?;
        let (nic, _) = network.nic(far);
        let psn = nic.query_qp(other).ok()?.receive_psn;
        Some(Waiting { flow: index, from, to, queue_pair, psn })
    }

    /// The flows that have started and not finished.
    pub(super) fn waiting<S: Sink>(&self, network: &mut Network<S>) -> Vec<Waiting> {
        let is_under_way =
            |index: &u32| self.started[*index as usize].is_set() && !self.finished[*index as usize].is_set();
        let flows = (0..self.flows.len() as u32).filter(is_under_way);
        flows.filter_map(|index| self.place(network, index)).collect()
    }

    fn fail<S: Sink>(&mut self, network: &mut Network<S>, index: u32, status: Status) {
        // Hosts that are taken apart may tell of failures in another order than that of time.
        if self.failure.is_some() && self.failed_at <= network.now {
            return;
        }
        self.failed_at = network.now;
        if let Some(waiting) = self.place(network, index) {
            let cause = blocking_cause(network);
            self.failure = Some(RunError::Flow(Box::new(FlowFailure { waiting, status, cause })));
        }
    }

    /// Hands all messages of a flow to its NIC.
    fn post<S: Sink>(&mut self, network: &mut Network<S>, index: u32, flow: &Flow) -> Result<(), PostError> {
        let mut left = flow.bytes;
        loop {
            let length = left.min(MESSAGE_MAX) as u32;
            self.post_message(network, index, [flow.source, flow.target], length, index)?;
            left -= u64::from(length);
            if left == 0 {
                break;
            }
        }
        network.kick(flow.source);
        Ok(())
    }

    /// Hands a message to the NIC of the first port, for the second.
    pub(super) fn post_message<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        index: u32,
        [source, target]: [u32; 2],
        length: u32,
        immediate: u32,
    ) -> Result<(), PostError> {
        let dscp = self.flows[index as usize].dscp;
        let (from, to) = self.connection(network, (source, target), dscp);
        let (nic, mut cx) = network.nic(target);
        nic.post_recv(&mut cx, to, ReceiveRequest::new(u64::from(index)))?;
        let remote = Remote { address: BASE, key: self.endpoints[target as usize].key };
        let sge = Sge { address: BASE, length, key: self.endpoints[source as usize].key };
        let operation = Operation::WriteImmediate(remote, immediate);
        let request = SendRequest::new(u64::from(index), operation).with(sge).unsignaled();
        let (nic, mut cx) = network.nic(source);
        nic.post_send(&mut cx, from, request)
    }

    /// The port of the fabric that a sender or receiver uses.
    pub(super) fn port(&self, endpoint: u32) -> u32 {
        self.inside.as_ref().map_or(endpoint, |inside| inside.port(endpoint))
    }

    /// One of the messages of a flow is there; with the last one those start that wait for it.
    pub(super) fn arrived<S: Sink>(&mut self, network: &mut Network<S>, index: u32) {
        self.left[index as usize] -= 1;
        if self.left[index as usize] > 0 {
            return;
        }
        self.finished[index as usize] = network.now;
        self.unfinished -= 1;
        if let Some(news) = &mut self.news {
            news.push(index);
        }
        if self.unfinished == 0 {
            network.end_pause_storms();
        }
        let mut next = self.waiting[index as usize];
        while next != NOBODY {
            let start = self.flows[next as usize].start;
            if start > network.now {
                network.call_at(start, next);
            } else {
                self.start(network, next);
            }
            next = self.next_waiting[next as usize];
        }
    }
}

impl<S: Sink> Application<S> for Runner {
    fn completed(&mut self, network: &mut Network<S>, _host: u32, completion: &Completion) {
        let index = completion.work as u32;
        if self.finished[index as usize].is_set() {
            // All of it has arrived; only the sender never heard of it.
            return;
        }
        if completion.status != Status::Success {
            self.fail(network, index, completion.status);
            return;
        }
        if self.inside.is_some() {
            let result = self.slice_received(network, completion);
            self.note_failure(index, result);
        } else {
            self.arrived(network, index);
        }
    }

    fn carried(&mut self, network: &mut Network<S>, token: u32) {
        let index = self.inside.as_ref().map_or(0, |inside| inside.flow_of(token));
        let result = self.slice_carried(network, token);
        self.note_failure(index, result);
    }

    fn called(&mut self, network: &mut Network<S>, token: u32) {
        self.start(network, token);
        if self.flows[token as usize].after.is_some() {
            return;
        }
        let mut next = self.next_waiting[token as usize];
        while next != NOBODY {
            self.start(network, next);
            next = self.next_waiting[next as usize];
        }
    }
}
