//! Calls of ranks at flow fidelity: each channel of each group is a coflow, a rate that all its connections share, on the links of
//! the fabric, on those inside servers and on the kernel's cores.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use railnet_core::{QueuePairNumber, Random, Rate, Span, Time};
use railnet_flow::{FlowId, FlowNetwork, Usage, quotient};
use railnet_job::run::analytic::{CallPlan, Coflow, HostPath, Resource};
use railnet_topology::Cluster;
use railnet_wire::udp_source_port;

use super::paths::Paths;
use crate::run::RunError;
use crate::scenario::{Scenario, ScenarioError, graph};

/// A capacity of one core, or of one byte a second: capacities are rates in bits.
const UNIT: f64 = 1e9;

/// What calls put on the network of a scenario, laid out before any of them begins.
pub(in crate::run) struct CallPlans {
    paths: Paths,
    capacities: Vec<Rate>,
    seed: u64,
    queue_pairs: u32,
    /// Where links inside servers begin among the resources, and how many directions each server has room for.
    host_links: u32,
    links_each: u32,
    /// Where cores begin: those of a port that send, then those that receive.
    cores: u32,
    /// Servers whose rate is stated, by their first port and that rate.
    servers: BTreeMap<(u32, Rate), u32>,
    calls: Vec<CallPath>,
    /// The coflows of all calls: which call, what each has at most where its own GPUs, threads or cores may be slower than all it shares,
    /// and its resources.
    owners: Vec<(u32, Option<Rate>)>,
    usages: Vec<Vec<Usage>>,
}

/// How a call crosses the network.
#[derive(Clone, Debug)]
struct CallPath {
    /// What it takes besides its bytes.
    besides: Span,
    bytes: u64,
    /// The kinds of its coflows, one of each.
    coflows: Vec<Channel>,
}

/// A coflow on the resources of the network.
#[derive(Clone, Debug)]
struct Channel {
    usage: Vec<Usage>,
    cap: Option<Rate>,
}

/// A job, and the slot of the call in its step.
type CallName = (u32, u32);

/// A call under way.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    name: CallName,
    besides: Span,
    left: u32,
}

/// The network that all calls of a run share.
pub(in crate::run) struct CallNetwork {
    network: FlowNetwork,
    calls: Vec<CallPath>,
    paths: Paths,
    /// What stands for each direction of each link of the fabric, and its rate.
    links: Vec<(Option<u32>, Rate)>,
    /// Coflows that were laid out, and those that stand for them.
    counts: [usize; 2],
    /// Resources that hold single coflows back; those without one are used again.
    caps: Vec<u32>,
    /// The call and the cap of each flow.
    flows: Vec<(u32, Option<u32>)>,
    under_way: Vec<UnderWay>,
    free: Vec<u32>,
    /// When calls are over whose bytes have all crossed, in what order they came to that, and which.
    ends: BinaryHeap<Reverse<(Time, u64, CallName)>>,
    count: u64,
    moved: Vec<FlowId>,
}

impl CallPlans {
    /// The network of a scenario whose servers are those of `cluster`.
    pub(in crate::run) fn new(
        scenario: &Scenario,
        cluster: &Cluster,
        host_path: HostPath,
        queue_pairs: u32,
    ) -> Result<Self, ScenarioError> {
        let graph = graph(scenario)?;
        let ports = graph.hosts.len() as u32;
        let paths = Paths::new(graph, scenario.path_selection(), scenario.routing(), scenario.seed);
        let mut capacities = paths.capacities();
        let host_links = capacities.len() as u32;
        let most = cluster.kinds().iter().map(|host| host.links.len()).max().unwrap_or(0);
        for node in 0..cluster.nodes {
            let links = &cluster.host_of(node).links;
            for place in 0..most {
                capacities.extend([links.get(place).map_or(Rate::ZERO, |link| link.bandwidth); 2]);
            }
        }
        let cores = capacities.len() as u32;
        if let HostPath::Kernel(kernel) = host_path {
            let rate = Rate::from_bps((8.0 * UNIT * f64::from(kernel.cores)) as u64);
            capacities.extend((0..2 * ports).map(|_| rate));
        }
        Ok(Self {
            paths,
            capacities,
            seed: scenario.seed,
            queue_pairs: queue_pairs.max(1),
            host_links,
            links_each: 2 * most as u32,
            cores,
            servers: BTreeMap::new(),
            calls: Vec::new(),
            owners: Vec::new(),
            usages: Vec::new(),
        })
    }

    /// Has both directions of the link at a port carry this share of their rate.
    pub(in crate::run) fn slow_port(&mut self, port: u32, share: f64) {
        for sends in [true, false] {
            let Some((resource, rate)) = self.paths.at_host(port, sends) else { continue };
            let left = Rate::from_bps((rate.as_bps() as f64 * share).round() as u64);
            self.capacities[resource as usize] = left;
        }
    }

    /// Lays a call's coflows out, and returns its number. `connections` tells those of one communicator from those of others; `home` says
    /// where in the cluster a server of the plan is.
    pub(in crate::run) fn lay_out(
        &mut self,
        plan: &CallPlan,
        connections: u64,
        home: impl Fn(u32) -> u32,
    ) -> Result<u32, RunError> {
        let call = self.calls.len() as u32;
        let held = (plan.alone - plan.besides).as_secs_f64() / plan.bytes.as_u64().max(1) as f64;
        for (number, coflow) in (0..).zip(&plan.coflows) {
            let usage = self.usage(coflow, (connections, number), &home)?;
            let seconds = coflow.seconds_min.max(held);
            let cap = (seconds > 0.0).then(|| Rate::from_bps(((8.0 / seconds) as u64).max(1)));
            self.owners.push((call, cap));
            self.usages.push(usage);
        }
        self.calls.push(CallPath { besides: plan.besides, bytes: plan.bytes.as_u64(), coflows: Vec::new() });
        Ok(call)
    }

    /// All calls are laid out: one coflow stands for those that are alike.
    pub(in crate::run) fn settle(self) -> CallNetwork {
        let Self { paths, capacities, mut calls, owners, usages, host_links, .. } = self;
        // A rate has fewer than 48 bits, unless it holds nothing back.
        let label = |(call, cap): &(u32, Option<Rate>)| {
            u64::from(*call) << 48 ^ cap.map_or(u64::MAX >> 16, |rate| rate.as_bps().min(u64::MAX >> 16))
        };
        let labels: Vec<u64> = owners.iter().map(label).collect();
        let found = quotient(&capacities, &labels, &usages);
        let counts = [usages.len(), found.flows.len()];
        for kind in found.flows {
            let (call, cap) = owners[kind.first as usize];
            calls[call as usize].coflows.push(Channel { usage: kind.usage, cap });
        }
        let links = found.kind_of_resource.iter().zip(&capacities).take(host_links as usize);
        let links = links.map(|(kind, rate)| (*kind, *rate)).collect();
        CallNetwork {
            paths,
            network: FlowNetwork::new(&found.capacities),
            calls,
            links,
            counts,
            caps: Vec::new(),
            flows: Vec::new(),
            under_way: Vec::new(),
            free: Vec::new(),
            ends: BinaryHeap::new(),
            count: 0,
            moved: Vec::new(),
        }
    }

    fn usage(
        &mut self,
        coflow: &Coflow,
        (connections, number): (u64, u64),
        home: impl Fn(u32) -> u32,
    ) -> Result<Vec<Usage>, RunError> {
        let mut shares: BTreeMap<u32, f64> = BTreeMap::new();
        for (resource, share) in &coflow.uses {
            match *resource {
                Resource::HostLink { node, link, direction } => {
                    let place = home(node) * self.links_each + 2 * link + u32::from(direction);
                    *shares.entry(self.host_links + place).or_default() += share;
                }
                Resource::Cores { port, sends } => {
                    *shares.entry(self.cores + 2 * port + u32::from(!sends)).or_default() += share * UNIT;
                }
                Resource::Port { port, sends } => {
                    let Some((resource, _)) = self.paths.at_host(port, sends) else { continue };
                    *shares.entry(resource).or_default() += share;
                }
                Resource::Server { port, rate } => {
                    let capacities = &mut self.capacities;
                    let server = *self.servers.entry((port, rate)).or_insert_with(|| {
                        capacities.push(rate);
                        capacities.len() as u32 - 1
                    });
                    *shares.entry(server).or_default() += share;
                }
                Resource::Path { from, to } => {
                    let share = share / f64::from(self.queue_pairs);
                    let name = connections ^ number << 48 ^ u64::from(from) << 24 ^ u64::from(to);
                    let mut random = Random::stream(self.seed, "flow-level connection", name);
                    for _ in 0..self.queue_pairs {
                        let [own, other] = [random.next_u32(), random.next_u32()]
                            .map(|bits| QueuePairNumber::new(bits >> 8));
                        let path =
                            self.paths.path(from, to, udp_source_port(0, own, other)).ok_or_else(|| {
                                let message = format!("there is no path from port {from} to port {to}");
                                RunError::Scenario(ScenarioError::new(message))
                            })?;
                        for usage in path.usage {
                            *shares.entry(usage.resource).or_default() += share * f64::from(usage.fraction);
                        }
                    }
                }
            }
        }
        Ok(shares.into_iter().map(|(resource, share)| Usage { resource, fraction: share as f32 }).collect())
    }
}

impl CallNetwork {
    /// A call of this number begins, whose bytes cross the network; it is known by this name until it is over.
    pub(in crate::run) fn begin(&mut self, now: Time, name: CallName, call: u32) {
        self.advance_to(now);
        let path = &self.calls[call as usize];
        let call = self.free.pop().unwrap_or_else(|| {
            self.under_way.push(UnderWay::default());
            self.under_way.len() as u32 - 1
        });
        let (besides, left) = (path.besides, path.coflows.len() as u32);
        self.under_way[call as usize] = UnderWay { name, besides, left };
        let mut usage = Vec::new();
        for channel in &path.coflows {
            usage.clone_from(&channel.usage);
            let cap = channel.cap.map(|rate| {
                let cap = self.caps.pop().unwrap_or_else(|| self.network.add_resource(rate));
                self.network.set_capacity(cap, rate);
                usage.push(Usage::whole(cap));
                cap
            });
            let FlowId(flow) = self.network.start(&usage, path.bytes, 1);
            if flow as usize >= self.flows.len() {
                self.flows.resize(flow as usize + 1, (0, None));
            }
            self.flows[flow as usize] = (call, cap);
        }
    }

    /// A call begins that stays inside servers.
    pub(in crate::run) fn begin_inside(&mut self, now: Time, name: CallName, time: Span) {
        self.end_at(now + time, name);
    }

    fn end_at(&mut self, at: Time, name: CallName) {
        self.ends.push(Reverse((at, self.count, name)));
        self.count += 1;
    }

    /// When something happens next.
    pub(in crate::run) fn next_event(&mut self) -> Option<Time> {
        let end = self.ends.peek().map(|Reverse((at, ..))| *at);
        end.into_iter().chain(self.network.next_end()).min()
    }

    /// Advances to a moment no later than the next event; calls that are over are added to `ended`.
    pub(in crate::run) fn advance(&mut self, now: Time, ended: &mut Vec<CallName>) {
        self.advance_to(now);
        while let Some(Reverse((at, _, name))) = self.ends.peek().copied()
            && at <= now
        {
            self.ends.pop();
            ended.push(name);
        }
    }

    fn advance_to(&mut self, now: Time) {
        let mut moved = std::mem::take(&mut self.moved);
        self.network.advance(now, &mut moved);
        for FlowId(flow) in moved.drain(..) {
            let (call, cap) = self.flows[flow as usize];
            self.caps.extend(cap);
            let state = &mut self.under_way[call as usize];
            state.left -= 1;
            if state.left == 0 {
                let UnderWay { name, besides, .. } = *state;
                self.free.push(call);
                self.end_at(now + besides, name);
            }
        }
        self.moved = moved;
    }

    /// Bytes that have crossed each direction of each link of the fabric.
    pub(in crate::run) fn carried(&self) -> impl Iterator<Item = f64> {
        self.links.iter().map(|(kind, _)| kind.map_or(0.0, |kind| self.network.carried(kind)))
    }

    /// What the run was like up to now.
    pub(in crate::run) fn seen(&self) -> FlowLevel {
        let seconds = self.network.now().since(Time::ZERO).as_secs_f64();
        let mut busiest: Option<(usize, f64)> = None;
        for (place, (bytes, (_, rate))) in self.carried().zip(&self.links).enumerate() {
            let busy = 8.0 * bytes / rate.as_bps() as f64 / seconds;
            if bytes > 0.0 && busiest.is_none_or(|(_, most)| busy > most * (1.0 + 1e-9)) {
                busiest = Some((place, busy));
            }
        }
        let [coflows, run] = self.counts;
        FlowLevel {
            coflows,
            run,
            busiest: busiest.map(|(place, busy)| (self.paths.name(place as u32), busy)),
        }
    }
}

/// What a run at flow fidelity says of itself.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowLevel {
    /// Connections that run at one rate, of all calls of all groups: a channel of a group is one.
    pub coflows: usize,
    /// Those of them that were run, each for all that are alike.
    pub run: usize,
    /// The link of the fabric that was busy longest, in its direction, and the part of the time in which it was.
    pub busiest: Option<(String, f64)>,
}
