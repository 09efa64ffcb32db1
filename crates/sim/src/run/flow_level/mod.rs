//! Traffic at flow fidelity: each flow is a rate on the links of its path, and flows share links max-min fairly.
//!
//! Paths, headers, start times and dependencies are those of the packets; queues, losses and congestion control are left out. What
//! becomes of a flow therefore is what an ideal congestion control would give it. [`railnet_flow`] does the sharing.

mod calls;
mod paths;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::digest::Fold;
use railnet_core::{Bytes, Component, QueuePairNumber, Rate, RunDigest, Span, Time};
use railnet_fabric::{ChannelCounters, host_gid};
use railnet_flow::{FlowId, FlowNetwork};
use railnet_nic::NicConfig;
use railnet_topology::Vertex;
use railnet_wire::udp_source_port;

use super::outcome::{FlowResult, LinkResult, Outcome};
use super::peers::{Lane, Peer, Peers};
use super::runner::MESSAGE_MAX;
use super::{LIMIT, RunError};
use crate::scenario::{Fidelity, Scenario, ScenarioError, graph};
use crate::traffic::{Flow, flows};
pub use calls::FlowLevel;
pub(super) use calls::{CallNetwork, CallPlans};
use paths::{FlowPath, Paths};

/// The extended header of the first packet of a message: where its bytes go.
const RETH: u64 = 16;
/// That of the last one: the immediate value.
const IMMEDIATE: u64 = 4;

/// A run at flow fidelity that is under way.
///
/// ```
/// use railnet_sim::{FlowLevelRun, Scenario};
///
/// let scenario = Scenario::parse(
///     "fidelity = \"flow\"\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n\
///      [[traffic]]\nkind = \"all-to-all\"\nbytes = \"64MB\"\n",
/// )?;
/// let mut run = FlowLevelRun::new(&scenario)?;
/// while run.step() {}
/// let (outcome, _digest) = run.finish()?;
/// assert_eq!(outcome.flows.len(), 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FlowLevelRun {
    network: FlowNetwork,
    paths: Paths,
    framing: WireLength,
    kind: railnet_wire::Framing,
    flows: Vec<Flow>,
    started: Vec<Time>,
    finished: Vec<Time>,
    /// Flows that wait for each flow.
    followers: Vec<Vec<u32>>,
    starts: BinaryHeap<Reverse<(Time, u32)>>,
    under_way: Vec<UnderWay>,
    connections: Connections,
    unfinished: usize,
    /// Packets over each direction of a link.
    packets: Vec<f64>,
    limit: Time,
    failure: Option<RunError>,
    ended: Vec<FlowId>,
    size: (usize, usize),
}

/// A flow that moves.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    flow: u32,
    /// From the moment its last byte has left the bottleneck to that at which all has arrived.
    latency: Span,
}

/// How long data is on the wire.
#[derive(Clone, Copy, Debug)]
struct WireLength {
    payload: u64,
    header: u64,
    counts_headers: bool,
    /// Bytes of a packet that a switch waits for before it forwards.
    forward: u64,
}

impl WireLength {
    fn of(scenario: &Scenario) -> Self {
        Self {
            payload: u64::from(scenario.payload()),
            header: u64::from(scenario.header_bytes()),
            counts_headers: scenario.framing().headers,
            forward: u64::from(scenario.forward_bytes()),
        }
    }

    /// Packets and bytes on the wire of a flow.
    fn of_flow(self, bytes: u64) -> (u64, u64) {
        let message = |bytes: u64| {
            let packets = bytes.div_ceil(self.payload).max(1);
            let extended = if self.counts_headers { RETH + IMMEDIATE } else { 0 };
            (packets, bytes.next_multiple_of(4) + packets * self.header + extended)
        };
        let (whole, rest) = (bytes / MESSAGE_MAX, bytes % MESSAGE_MAX);
        let (packets, wire) = message(MESSAGE_MAX);
        let last = if rest > 0 || whole == 0 { message(rest) } else { (0, 0) };
        (whole * packets + last.0, whole * wire + last.1)
    }

    /// Bytes on the wire of the first and of the last packet of a flow.
    fn ends(self, bytes: u64) -> [u64; 2] {
        let packets = bytes.div_ceil(self.payload).max(1);
        let [address, value] = if self.counts_headers { [RETH, IMMEDIATE] } else { [0, 0] };
        let packet = |payload: u64| self.header + payload.next_multiple_of(4);
        match packets {
            1 => [packet(bytes) + address + value; 2],
            _ => [packet(self.payload) + address, packet(bytes - (packets - 1) * self.payload) + value],
        }
    }

    /// What a flow takes besides its bytes at the slowest link: the first packet on the links before it, the last one on those behind
    /// it, where it may have to wait for the longer one in front of it.
    fn latency(self, path: &FlowPath, bytes: u64) -> Span {
        let Some((slowest, _)) = path.links.iter().enumerate().min_by_key(|(_, (rate, _))| *rate) else {
            return Span::ZERO;
        };
        let [first, last] = self.ends(bytes);
        let forwarded = |packet: u64| packet.min(self.forward);
        let ps = |rate: Rate, bytes: u64| rate.serialize(Bytes(bytes)).as_ps() as i64;
        let before = path.links[..slowest].iter();
        let mut latency: i64 =
            before.map(|(rate, delay)| ps(*rate, forwarded(first)) + delay.as_ps() as i64).sum();
        // When the last two packets begin and end to leave each link from the slowest on; all bytes have left that one at 0.
        let rate = path.links[slowest].0;
        let mut starts = [-ps(rate, last) - ps(rate, first), -ps(rate, last)];
        let mut end = 0;
        for pair in path.links[slowest..].windows(2) {
            let [(near, delay), (far, _)] = [pair[0], pair[1]];
            let arrives =
                |start: i64, packet: u64| start + ps(near, forwarded(packet)) + delay.as_ps() as i64;
            let before_last = arrives(starts[0], first);
            let mut last_starts = arrives(starts[1], last);
            if bytes > self.payload {
                last_starts = last_starts.max(before_last + ps(far, first));
            }
            starts = [before_last, last_starts];
            end = last_starts + ps(far, last);
        }
        latency += end + path.links.last().map_or(0, |(_, delay)| delay.as_ps() as i64);
        Span::from_ps(latency.max(0) as u64)
    }
}

/// The queue pairs that the NICs would have: their numbers choose the paths.
struct Connections {
    made: Vec<Peers>,
    ack_dscp: Option<u8>,
    first: u32,
    counts: Vec<u32>,
}

impl Connections {
    fn new(scenario: &Scenario, hosts: u32) -> Result<Self, ScenarioError> {
        let first = NicConfig::new(Component(0), scenario.seed, host_gid(0)).queue_pairs.start;
        let (made, counts) = (vec![Peers::default(); hosts as usize], vec![0; hosts as usize]);
        Ok(Self { made, ack_dscp: scenario.ack_dscp()?, first, counts })
    }

    /// The UDP source port of the connection between two hosts for data with this DSCP, which is made at its first use.
    fn source_port(&mut self, from: u32, to: u32, dscp: u8) -> u16 {
        let [sends, receives] = Lane::of(dscp, self.ack_dscp);
        if let Some(peer) = self.made[from as usize].find(to, sends) {
            return udp_source_port(0, peer.own, peer.other);
        }
        let ends = [from, to].map(|host| {
            let count = &mut self.counts[host as usize];
            *count += 1;
            QueuePairNumber::new(self.first + *count - 1)
        });
        let [own, other] = ends;
        self.made[from as usize].insert(Peer { host: to, lane: sends, own, other });
        self.made[to as usize].insert(Peer { host: from, lane: receives, own: other, other: own });
        udp_source_port(0, own, other)
    }
}

impl FlowLevelRun {
    /// Has every flow of a scenario ready to start.
    pub fn new(scenario: &Scenario) -> Result<Self, ScenarioError> {
        if scenario.fidelity != Fidelity::Flow {
            let message = "this run has rates, no packets: `fidelity = \"flow\"`";
            return Err(ScenarioError::new(message).at("fidelity"));
        }
        scenario.check_flow_fidelity()?;
        let graph = graph(scenario)?;
        let flows = flows(scenario, &graph)?;
        one_priority(&flows)?;
        let size = (graph.hosts.len(), graph.switches.len());
        let paths = Paths::new(graph, scenario.path_selection(), scenario.routing(), scenario.seed);
        let capacities = paths.capacities();
        let mut followers = vec![Vec::new(); flows.len()];
        let mut starts = BinaryHeap::new();
        for (index, flow) in (0..).zip(&flows) {
            match flow.after {
                Some(before) => followers[before as usize].push(index),
                None => starts.push(Reverse((flow.start, index))),
            }
        }
        Ok(Self {
            network: FlowNetwork::new(&capacities),
            packets: vec![0.0; capacities.len()],
            framing: WireLength::of(scenario),
            kind: scenario.wire_framing(),
            connections: Connections::new(scenario, size.0 as u32)?,
            started: vec![Time::NEVER; flows.len()],
            finished: vec![Time::NEVER; flows.len()],
            unfinished: flows.len(),
            limit: Time::ZERO + scenario.limit.map_or(LIMIT, |limit| limit.0),
            flows,
            paths,
            followers,
            starts,
            under_way: Vec::new(),
            failure: None,
            ended: Vec::new(),
            size,
        })
    }

    /// Goes on to the next moment at which a flow starts or ends. Whether there was one.
    pub fn step(&mut self) -> bool {
        if self.failure.is_some() || self.unfinished == 0 {
            return false;
        }
        let end = self.network.next_end();
        let start = self.starts.peek().map(|Reverse((at, _))| *at);
        let Some(next) = [start, end].into_iter().flatten().min() else { return false };
        if next > self.limit {
            self.failure = Some(self.late());
            return false;
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.network.advance(next, &mut ended);
        for id in ended.drain(..) {
            self.end(self.under_way[id.0 as usize]);
        }
        self.ended = ended;
        while let Some(Reverse((at, index))) = self.starts.peek().copied()
            && at <= next
        {
            self.starts.pop();
            self.start(index);
        }
        true
    }

    fn start(&mut self, index: u32) {
        let flow = self.flows[index as usize];
        self.started[index as usize] = self.network.now();
        let port = match self.kind {
            // Switches see no UDP port there: connections between two hosts share a path.
            railnet_wire::Framing::RoceV1 => 0,
            _ => self.connections.source_port(flow.source, flow.target, flow.dscp),
        };
        let Some(path) = self.paths.path(flow.source, flow.target, port) else {
            let message = format!("there is no path from host {} to host {}", flow.source, flow.target);
            self.failure = Some(RunError::Scenario(ScenarioError::new(message)));
            return;
        };
        let (packets, wire) = self.framing.of_flow(flow.bytes);
        for usage in &path.usage {
            self.packets[usage.resource as usize] += packets as f64 * f64::from(usage.fraction);
        }
        let id = self.network.start(&path.usage, wire, 1);
        let place = id.0 as usize;
        if place >= self.under_way.len() {
            self.under_way.resize(place + 1, UnderWay::default());
        }
        self.under_way[place] = UnderWay { flow: index, latency: self.framing.latency(&path, flow.bytes) };
    }

    fn end(&mut self, UnderWay { flow, latency }: UnderWay) {
        let at = self.network.now() + latency;
        self.finished[flow as usize] = at;
        self.unfinished -= 1;
        for follower in std::mem::take(&mut self.followers[flow as usize]) {
            self.starts.push(Reverse((self.flows[follower as usize].start.max(at), follower)));
        }
    }

    fn late(&self) -> RunError {
        let first = self.finished.iter().position(|at| !at.is_set()).unwrap_or(0);
        let Flow { source: from, target: to, .. } = self.flows[first];
        RunError::Unfinished {
            unfinished: self.unfinished,
            flows: self.flows.len(),
            limit: self.limit.since(Time::ZERO),
            first: first as u32,
            from,
            to,
            waiting: Vec::new(),
        }
    }

    /// The present.
    pub const fn now(&self) -> Time {
        self.network.now()
    }

    /// Why the run failed, if it did.
    pub fn failure(&self) -> Option<RunError> {
        self.failure.clone()
    }

    /// Flows that have not finished, and all.
    pub fn unfinished(&self) -> (usize, usize) {
        (self.unfinished, self.flows.len())
    }

    /// What came of a run that is over, or why it failed.
    pub fn finish(mut self) -> Result<(Outcome, RunDigest), RunError> {
        while self.step() {}
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.outcome()),
        }
    }

    /// Gives up, and says what is known by now.
    pub fn stop(self) -> (Outcome, RunDigest) {
        let now = self.network.now();
        let (mut outcome, digest) = self.outcome();
        let (whole, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut outcome.flows).into_iter().partition(|flow| flow.finished.is_set());
        outcome.flows = whole;
        outcome.open_flows = open.into_iter().filter(|flow| flow.started.is_set()).collect();
        outcome.completion = now;
        (outcome, digest)
    }

    fn outcome(self) -> (Outcome, RunDigest) {
        let links = self.links();
        let mut digest = Fold::new();
        let mut flows = Vec::with_capacity(self.flows.len());
        for ((flow, started), finished) in self.flows.into_iter().zip(self.started).zip(self.finished) {
            digest.push(started.since(Time::ZERO).as_ps());
            digest.push(if finished.is_set() { finished.since(Time::ZERO).as_ps() } else { u64::MAX });
            flows.push(FlowResult { flow, started, finished });
        }
        for link in &links {
            digest.push(link.counters.bytes);
        }
        let finished = flows.iter().map(|flow| flow.finished).filter(|at| at.is_set());
        let outcome = Outcome {
            fidelity: Fidelity::Flow,
            framing: self.kind,
            completion: finished.max().unwrap_or(Time::ZERO),
            flows,
            open_flows: Vec::new(),
            links,
            packet_hops: 0,
            events: 0,
            resent: 0,
            timeouts: 0,
            notifications: 0,
            size: self.size,
            collectives: Vec::new(),
            transfers: Vec::new(),
            lanes: Vec::new(),
            series: None,
        };
        (outcome, RunDigest::from_u128(digest.finish_wide()))
    }

    /// What both directions of each link carried.
    fn links(&self) -> Vec<LinkResult> {
        let graph = &self.paths.graph;
        let name = |vertex: Vertex| graph.name(vertex).to_owned();
        let directions =
            (0..).zip(&graph.links).flat_map(|(id, link)| [(2 * id, link, 0), (2 * id + 1, link, 1)]);
        let results = directions.map(|(resource, link, from): (u32, _, usize)| LinkResult {
            from: name(link.ends[from].vertex),
            to: name(link.ends[1 - from].vertex),
            rate: link.rate,
            counters: ChannelCounters {
                bytes: self.network.carried(resource).round() as u64,
                packets: self.packets[resource as usize].round() as u64,
                data_packets: self.packets[resource as usize].round() as u64,
                ..ChannelCounters::default()
            },
            queued: 0,
        });
        results.collect()
    }
}

/// Flows of several priorities do not share links evenly.
fn one_priority(flows: &[Flow]) -> Result<(), ScenarioError> {
    let Some(first) = flows.first() else { return Ok(()) };
    match flows.iter().find(|flow| flow.priority != first.priority) {
        Some(other) => {
            let message = format!(
                "flows have priorities {} and {}: at flow fidelity all share links as equals; use `fidelity = \"packet\"`",
                first.priority, other.priority
            );
            Err(ScenarioError::new(message).at("fidelity"))
        }
        None => Ok(()),
    }
}
