//! Runs a scenario: makes the fabric, starts the flows, and notes what came of them.

use std::collections::BTreeMap;

use railnet_core::event::Sink;
use railnet_core::{Component, QueuePairNumber, Rate, Span, Time};
use railnet_fabric::{Application, ChannelCounters, Network, Tapped, host_gid};
use railnet_nic::frame::WireForm;
use railnet_nic::memory::SpaceId;
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Key, Mtu, Nic, NicConfig, Operation, PortConfig,
    PostError, ProtectionDomain, QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge, Status,
};
use railnet_topology::fabric::{
    Dragonfly, FabricKind, FatTree, LeafSpine, LinkSpec, RailOptimised, SingleSwitch,
};
use railnet_topology::{FabricGraph, Routes, Vertex};
use thiserror::Error;

use crate::scenario::{Scenario, ScenarioError, Topology};
use crate::traffic::{Flow, flows};

/// The longest message that a flow is cut into.
const MESSAGE_MAX: u64 = 1 << 30;
/// Messages that may wait in a queue pair, in either direction.
const QUEUE_DEPTH: u32 = 1 << 15;
/// When a run is given up that sets no limit itself, in virtual time.
const LIMIT: Span = Span::from_secs(60);
/// How far a run goes before it looks whether a flow has failed.
const STRIDE: Span = Span::from_ms(10);
/// Where the memory of every host begins.
const BASE: u64 = 1 << 32;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scenario makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A flow failed.
    #[error("flow {flow} (host {from} to host {to}) failed: {status}")]
    Flow {
        /// Which.
        flow: u32,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// How.
        status: Status,
    },
    /// A flow could not be started.
    #[error("flow {flow} (host {from} to host {to}) cannot be started: {reason}")]
    Post {
        /// Which.
        flow: u32,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Why not.
        reason: PostError,
    },
    /// Flows did not finish.
    #[error(
        "{unfinished} of {flows} flows did not finish within {limit}; the first is flow {first} (host {from} to host {to})"
    )]
    Unfinished {
        /// How many.
        unfinished: usize,
        /// Of how many.
        flows: usize,
        /// The time they had.
        limit: Span,
        /// The first of them.
        first: u32,
        /// Its sender.
        from: u32,
        /// Its receiver.
        to: u32,
    },
}

/// A flow and when it was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowResult {
    /// The flow.
    pub flow: Flow,
    /// When its first message was posted.
    pub started: Time,
    /// When its last byte had arrived.
    pub finished: Time,
}

/// One direction of a link and what it counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkResult {
    /// The sending end.
    pub from: String,
    /// The receiving end.
    pub to: String,
    /// Its rate.
    pub rate: Rate,
    /// What it counted.
    pub counters: ChannelCounters,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The flows, as the scenario lists them.
    pub flows: Vec<FlowResult>,
    /// Both directions of every link.
    pub links: Vec<LinkResult>,
    /// When the last flow had finished.
    pub completion: Time,
    /// Data packets times links they went over.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// Packets sent again by the NICs.
    pub resent: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Congestion notifications sent.
    pub notifications: u64,
    /// Hosts and switches.
    pub size: (usize, usize),
}

struct Endpoint {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    key: Key,
}

/// The application of a traffic scenario.
struct Runner {
    hosts: u32,
    mtu: Mtu,
    timeout: u8,
    retry_count: u8,
    endpoints: Vec<Endpoint>,
    /// The queue pair of each host towards each other one it talks to; one connection serves both directions.
    connections: Vec<BTreeMap<u32, QueuePairNumber>>,
    flows: Vec<Flow>,
    started: Vec<Time>,
    finished: Vec<Time>,
    /// Messages of each flow that have not arrived.
    left: Vec<u32>,
    /// Flows that wait for each flow: first of a chain, and the next in it. Flows that wait for nothing are chained
    /// too where they start at the same moment, so that the calendar holds one call for all of them.
    waiting: Vec<u32>,
    next_waiting: Vec<u32>,
    /// The first of each chain of flows that start at the same moment.
    starts: Vec<u32>,
    unfinished: usize,
    failure: Option<RunError>,
}

const NOBODY: u32 = u32::MAX;

impl Runner {
    fn new(scenario: &Scenario, hosts: u32, flows: Vec<Flow>) -> Result<Self, ScenarioError> {
        let mtu = Mtu::from_bytes(scenario.nic.mtu).ok_or_else(|| ScenarioError::new("no such MTU"))?;
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
        let left = flows.iter().map(|flow| flow.bytes.div_ceil(MESSAGE_MAX).max(1) as u32).collect();
        Ok(Self {
            hosts,
            mtu,
            timeout: scenario.nic.timeout,
            retry_count: scenario.nic.retry_count,
            endpoints: Vec::new(),
            connections: vec![BTreeMap::new(); hosts as usize],
            started: vec![Time::NEVER; flows.len()],
            finished: vec![Time::NEVER; flows.len()],
            left,
            waiting,
            next_waiting,
            starts,
            unfinished: flows.len(),
            flows,
            failure: None,
        })
    }

    /// Gives every host memory and a completion queue.
    fn set_up<S: Sink>(&mut self, network: &mut Network<S>) {
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
        for first in &self.starts {
            network.call_at(self.flows[*first as usize].start, *first);
        }
    }

    /// The connection between two hosts, made at its first use: the queue pair of either.
    fn connection<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        from: u32,
        to: u32,
    ) -> (QueuePairNumber, QueuePairNumber) {
        let known = |near: u32, far: u32| self.connections[near as usize].get(&far).copied();
        if let (Some(own), Some(other)) = (known(from, to), known(to, from)) {
            return (own, other);
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
        for (near, far, own, other) in [(from, to, ends[0], ends[1]), (to, from, ends[1], ends[0])] {
            self.connections[near as usize].insert(far, own);
            let connection = Connection {
                mtu: self.mtu,
                timeout: self.timeout,
                retry_count: self.retry_count,
                ..Connection::to(host_gid(far), other)
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
        if let Err(reason) = self.post(network, index, &flow) {
            let Flow { source: from, target: to, .. } = flow;
            self.failure.get_or_insert(RunError::Post { flow: index, from, to, reason });
        }
        network.kick(flow.source);
    }

    fn post<S: Sink>(&mut self, network: &mut Network<S>, index: u32, flow: &Flow) -> Result<(), PostError> {
        let (from, to) = self.connection(network, flow.source, flow.target);
        let mut left = flow.bytes;
        loop {
            let length = left.min(MESSAGE_MAX) as u32;
            let (nic, mut cx) = network.nic(flow.target);
            nic.post_recv(&mut cx, to, ReceiveRequest::new(u64::from(index)))?;
            let remote = Remote { address: BASE, key: self.endpoints[flow.target as usize].key };
            let sge = Sge { address: BASE, length, key: self.endpoints[flow.source as usize].key };
            let operation = Operation::WriteImmediate(remote, index);
            let request = SendRequest::new(u64::from(index), operation).with(sge).unsignaled();
            let (nic, mut cx) = network.nic(flow.source);
            nic.post_send(&mut cx, from, request)?;
            left -= u64::from(length);
            if left == 0 {
                return Ok(());
            }
        }
    }
}

impl<S: Sink> Application<S> for Runner {
    fn completed(&mut self, network: &mut Network<S>, _host: u32, completion: &Completion) {
        let index = completion.work as u32;
        if completion.status != Status::Success {
            let Flow { source: from, target: to, .. } = self.flows[index as usize];
            let status = completion.status;
            self.failure.get_or_insert(RunError::Flow { flow: index, from, to, status });
            return;
        }
        self.left[index as usize] -= 1;
        if self.left[index as usize] > 0 {
            return;
        }
        self.finished[index as usize] = network.now;
        self.unfinished -= 1;
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

/// The fabric of a scenario.
pub fn graph(scenario: &Scenario) -> Result<FabricGraph, ScenarioError> {
    let links = LinkSpec::new(scenario.fabric.link.rate.0, scenario.fabric.link.delay.0);
    let kind = match scenario.fabric.topology {
        Topology::SingleSwitch { hosts } => FabricKind::SingleSwitch(SingleSwitch { hosts }),
        Topology::LeafSpine { leaves, hosts_per_leaf, spines } => {
            FabricKind::LeafSpine(LeafSpine::new(leaves, hosts_per_leaf, spines))
        }
        Topology::FatTree { k, tiers } => FabricKind::FatTree(FatTree { tiers, ..FatTree::new(k) }),
        Topology::RailOptimised { nodes, rails, nodes_per_group, spines } => {
            FabricKind::RailOptimised(RailOptimised {
                nodes_per_group,
                ..RailOptimised::new(nodes, rails, spines)
            })
        }
        Topology::Dragonfly { groups, routers, hosts, global_links } => FabricKind::Dragonfly(Dragonfly {
            groups,
            routers_per_group: routers,
            hosts_per_router: hosts,
            global_links_per_router: global_links,
        }),
    };
    kind.build(&links).map_err(|error| ScenarioError::new(error.to_string()).at("fabric.topology"))
}

/// Runs a scenario; events go to `sink`, which comes back with the outcome.
pub fn run<S: Sink>(scenario: &Scenario, sink: S) -> Result<(Outcome, S), RunError> {
    Run::new(scenario, sink)?.finish()
}

/// A run that is under way, for those who want to watch it. It comes to the same outcome in one go and in steps.
///
/// ```
/// use railnet_core::Span;
/// use railnet_core::event::NoSink;
/// use railnet_sim::{Run, Scenario};
///
/// let scenario = Scenario::parse(
///     "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n\
///      [[traffic]]\nkind = \"all-to-all\"\nbytes = \"64KB\"\n",
/// )?;
/// let mut run = Run::new(&scenario, NoSink)?;
/// while !run.advance(Span::from_us(10)) {
///     println!("{}: {} flows to go", run.now(), run.unfinished());
/// }
/// let (outcome, _) = run.finish()?;
/// assert_eq!(outcome.flows.len(), 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Run<S> {
    graph: FabricGraph,
    network: Network<S>,
    runner: Runner,
    limit: Span,
    is_over: bool,
}

impl<S: Sink> Run<S> {
    /// Makes the fabric and has every flow ready to start.
    pub fn new(scenario: &Scenario, sink: S) -> Result<Self, ScenarioError> {
        let graph = graph(scenario)?;
        let hosts = graph.hosts.len() as u32;
        let mut runner = Runner::new(scenario, hosts, flows(scenario, hosts)?)?;
        let routes = Routes::minimal(&graph, &[]);
        let (rate, control) = (scenario.fabric.link.rate.0, scenario.control());
        let nic = |host: u32| {
            let mut config = NicConfig::new(Component(host), scenario.seed, host_gid(host));
            config.ports = vec![PortConfig { gids: vec![host_gid(host)], rate, mtu: Mtu::Mtu4096 }];
            config.control = control.clone();
            config.recovery = scenario.recovery();
            config.notification_interval = scenario.notification_interval();
            Nic::new(config)
        };
        let (config, framing) = (scenario.switch_config(), scenario.framing());
        let mut network = Network::new(&graph, routes, config, framing, scenario.seed, sink, nic);
        runner.set_up(&mut network);
        let limit = scenario.limit.map_or(LIMIT, |limit| limit.0);
        Ok(Self { graph, network, runner, limit, is_over: false })
    }

    /// Goes on for `span` of virtual time; whether the run is over.
    pub fn advance(&mut self, span: Span) -> bool {
        let limit = Time::ZERO + self.limit;
        let until = (self.network.now + span).min(limit);
        let is_quiet = self.network.run(&mut self.runner, until);
        self.is_over = is_quiet || until >= limit || self.runner.failure.is_some();
        self.is_over
    }

    /// How packets travel, before the run begins: as values, or as bytes with the same digest.
    pub fn set_wire(&mut self, form: WireForm) {
        self.network.set_wire(form);
    }

    /// Keeps a copy of every frame that passes a link, by its number in [`graph`], until
    /// [`Run::drain_taps`] hands them out.
    pub fn tap(&mut self, link: u32) {
        self.network.tap(link);
    }

    /// Hands out the frames that passed the taps since the last call, in the order of time.
    pub fn drain_taps(&mut self, take: impl FnMut(&Tapped<'_>)) {
        self.network.drain_taps(take);
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.network.now
    }

    /// Events handled so far.
    pub fn events(&self) -> u64 {
        self.network.events()
    }

    /// Flows that have not finished, those not yet started included.
    pub fn unfinished(&self) -> usize {
        self.runner.unfinished
    }

    /// All flows.
    pub fn flows(&self) -> usize {
        self.runner.flows.len()
    }

    /// Runs what is left, and says what came of it all.
    pub fn finish(mut self) -> Result<(Outcome, S), RunError> {
        while !self.is_over {
            self.advance(STRIDE);
        }
        let Self { graph, mut network, runner, limit, .. } = self;
        if let Some(failure) = runner.failure {
            return Err(failure);
        }
        if runner.unfinished > 0 {
            let first = runner.finished.iter().position(|at| !at.is_set()).unwrap_or(0);
            let Flow { source: from, target: to, .. } = runner.flows[first];
            let (unfinished, flows) = (runner.unfinished, runner.flows.len());
            return Err(RunError::Unfinished { unfinished, flows, limit, first: first as u32, from, to });
        }
        Ok((outcome(&graph, &mut network, runner), network.sink))
    }
}

fn outcome<S: Sink>(graph: &FabricGraph, network: &mut Network<S>, runner: Runner) -> Outcome {
    let name = |vertex: Vertex| match vertex {
        Vertex::Host(host) => graph.hosts[host as usize].name.clone(),
        Vertex::Switch(switch) => graph.switches[switch as usize].name.clone(),
    };
    let links = network
        .channels()
        .map(|(from, to, rate, counters)| LinkResult {
            from: name(from),
            to: name(to),
            rate,
            counters: *counters,
        })
        .collect();
    let completion = runner.finished.iter().copied().max().unwrap_or(Time::ZERO);
    let times = runner.started.into_iter().zip(runner.finished);
    let flows = runner
        .flows
        .into_iter()
        .zip(times)
        .map(|(flow, (started, finished))| FlowResult { flow, started, finished })
        .collect();
    let (mut resent, mut timeouts, mut notifications) = (0, 0, 0);
    for host in 0..network.host_count() {
        let (nic, _) = network.nic(host);
        let counters = nic.counters();
        resent += counters.resent;
        timeouts += counters.timeouts;
        notifications += counters.notifications_sent;
    }
    let (packet_hops, events) = (network.packet_hops(), network.events());
    let size = (graph.hosts.len(), graph.switches.len());
    Outcome { flows, links, completion, packet_hops, events, resent, timeouts, notifications, size }
}
