//! Communicators: ranks, the GPUs behind them, and how channels run over them.

use std::ops::Range;
use std::sync::Arc;

use railnet_coll::search::{Graphs, agree};
use railnet_coll::transport::{Transport, Transports};
use railnet_coll::tuner::Inputs;
use railnet_coll::variables::Variables;
use railnet_coll::{Schedule, Wiring};
use railnet_core::event::Sink;
use railnet_core::{Bytes, Rank, Rate, Span};
use railnet_fabric::Network;
use railnet_topology::Cluster;
use railnet_topology::host::{DeviceKind, Host, NicRole, Processor};

use super::carrier::BusPaths;
use super::identity::ascending;
use super::plan::Differences;
use super::threads::Limits;
use super::timing::Timing;
use super::{Collectives, Gpu, HostResources, Member};
use crate::run::server::Servers;
use crate::scenario::{ConnectionSection, Order, ScenarioError};

/// The ranks of a group, and what is known of how they reach each other.
#[derive(Debug)]
pub(super) struct Communicator {
    /// The endpoint of each rank.
    pub(super) ranks: Vec<u32>,
    /// Its members, in the order of ranks.
    pub(super) members: Range<u32>,
    /// The first communicator that looks the same.
    pub(super) kind: u32,
    /// The servers, with just the GPUs that take part.
    pub(super) cluster: Cluster,
    /// Channels, as NCCL's ranks agree on what the weakest of them found.
    pub(super) graphs: Graphs,
    /// The servers that the cost model looks at.
    pub(super) weakest: Cluster,
    /// What the cost model looks at.
    pub(super) inputs: Inputs,
    pub(super) wiring: Wiring,
    /// How ranks reach each other.
    pub(super) transports: Arc<Transports>,
    pub(super) timing: Timing,
    /// What threads send at most.
    pub(super) limits: Limits,
    /// Whether the network's switches were asked for by name.
    pub(super) collnet: bool,
    /// What it executes in the present entry, or did in the last that it had a part in.
    pub(super) schedule: Option<Arc<Schedule>>,
    /// Its ranks that make another call there, or none.
    pub(super) differs: Differences,
    /// The words of its ranks in a call of an entry, the last that were asked for.
    pub(super) words: Option<((usize, u32), Vec<u128>)>,
    /// In which order its ranks follow each other.
    pub(super) order: Order,
    /// Whether what leaves passes the memory of the host, even where NICs reach that of GPUs.
    pub(super) is_bounced: bool,
    /// What connections are called, where the scenario says so.
    pub(super) named: Vec<ConnectionSection>,
}

/// What a CPU spends on a message of the network, in microseconds: NCCL's `netOverhead` (2.30.7, src/graph/tuning.cc).
fn net_overhead_us(processor: Option<Processor>) -> f32 {
    use railnet_topology::host::{Architecture, Vendor};
    match processor {
        Some(Processor { architecture: Architecture::X86, vendor: Vendor::Amd, .. }) => 2.0,
        _ => 1.0,
    }
}

fn timing_on(host: &Host, variables: &Variables) -> Timing {
    let set = variables.settings().net_overhead_us;
    Timing::new(set.unwrap_or_else(|| net_overhead_us(host.processor())))
}

/// Latencies of servers whose CPUs are unlike: all wait for the one that spends most on a message.
fn timing_of_all(cluster: &Cluster, variables: &Variables) -> Timing {
    let set = variables.settings().net_overhead_us;
    let all = cluster.kinds().into_iter().map(|host| net_overhead_us(host.processor()));
    Timing::new(set.unwrap_or_else(|| all.fold(0.0, f32::max)))
}

/// Latencies of what stands here.
pub(super) fn timing_of(resources: &HostResources<'_>, variables: &Variables) -> Timing {
    let host = resources.servers.as_deref().and_then(|servers| servers.host());
    let host = host.filter(|host| !host.gpus().is_empty());
    host.map_or(Timing::BARE, |host| timing_on(host, variables))
}

/// A port with data right behind it, as a server: what chooses algorithms wants to see one.
fn bare(rate: Rate) -> Host {
    let mut host = Host::new("host");
    let cpu = host.add("CPU0", DeviceKind::Cpu { socket: 0, processor: Processor::SAPPHIRE_RAPIDS });
    let gpu = DeviceKind::Gpu {
        model: "memory".to_owned(),
        memory: Bytes(1 << 40),
        memory_bandwidth: Rate::gbps(8_000),
        compute_capability: 90,
        compute: None,
    };
    let switch = host.add("PCI0", DeviceKind::PciSwitch { two_levels: false });
    let gpu = host.add("GPU0", gpu);
    let nic = host
        .add("nic0", DeviceKind::Nic { rate, role: NicRole::Compute, gpudirect: true, latency: Span::ZERO });
    host.join_pcie(cpu, switch, 6, 16, Some(0));
    host.join_pcie(switch, gpu, 6, 16, None);
    host.join_pcie(switch, nic, 6, 16, None);
    host
}

impl Communicator {
    /// How one rank reaches another.
    pub(super) fn transport(&self, from: u32, to: u32) -> Transport {
        self.transports.between(from, to).transport
    }
}

impl Collectives {
    /// The communicator of these endpoints, made when it is first used; `collnet` where the network's switches are asked
    /// for by name, whatever variables say.
    pub(super) fn communicator<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        ranks: &[u32],
        variables: &Variables,
        collnet: bool,
        order: Order,
    ) -> Result<u32, ScenarioError> {
        let is_same = |one: &Communicator| one.ranks == ranks && one.collnet == collnet && one.order == order;
        match self.communicators.iter().position(is_same) {
            Some(known) => Ok(known as u32),
            None => self.add_communicator(network, resources, ranks, variables, collnet, order),
        }
    }

    /// One more communicator of these endpoints, whoever else has them.
    pub(super) fn add_communicator<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        ranks: &[u32],
        variables: &Variables,
        collnet: bool,
        order: Order,
    ) -> Result<u32, ScenarioError> {
        let servers = resources.servers.as_deref();
        let full = servers.and_then(|servers| servers.host()).filter(|host| !host.gpus().is_empty());
        let (cluster, timing) = match (full, servers) {
            (Some(full), Some(servers)) => {
                let nodes = nodes(ranks, |endpoint| servers.server_of(endpoint))?;
                let runs = nodes.chunk_by(|one, other| is_like(servers, one, other));
                let groups: Vec<(Host, u32)> =
                    runs.map(|run| (part_of(network, servers, &run[0]), run.len() as u32)).collect();
                let cluster = Cluster::of_groups(&groups).expect("a group has a rank");
                (cluster, timing_on(full, variables))
            }
            _ => {
                let host = bare(network.port_rate(ranks[0]));
                (Cluster::new(host, ranks.len() as u32), Timing::BARE)
            }
        };
        let mut options = variables.topology();
        let mut settings = variables.settings();
        options.collnet_enable |= collnet;
        settings.collnet |= collnet;
        let options = &options;
        // Groups that look alike are searched once: a job has many.
        let alike = self.communicators.iter().find(|one| {
            one.cluster.nodes == cluster.nodes
                && one.collnet == collnet
                && one.order == order
                && one.cluster == cluster
        });
        let (kind, (graphs, weakest), transports) = match alike {
            Some(one) => {
                let found = (one.graphs.clone(), one.weakest.clone());
                (one.kind, found, Arc::clone(&one.transports))
            }
            None => {
                let found =
                    agree(&cluster, options).map_err(|error| ScenarioError::new(error.to_string()))?;
                (self.communicators.len() as u32, found, Arc::new(Transports::of(&cluster, options)))
            }
        };
        let first = self.members.len() as u32;
        let index = self.communicators.len() as u32;
        for (rank, endpoint) in ranks.iter().enumerate() {
            let member = Self::member(network, resources, index, rank as u32, ranks.len() as u32, *endpoint);
            self.members.push(member);
        }
        let wiring = match order {
            Order::Search => Wiring::new(&graphs),
            Order::Ascending => ascending(&graphs, &transports),
        };
        let timing = if graphs.uneven.is_some() { timing_of_all(&cluster, variables) } else { timing };
        let inputs = Inputs::of(&weakest, &graphs, settings, self.aggregates);
        self.communicators.push(Communicator {
            ranks: ranks.to_vec(),
            members: first..self.members.len() as u32,
            kind,
            wiring,
            transports,
            limits: Limits::new(&inputs),
            inputs,
            weakest,
            graphs,
            cluster,
            timing,
            collnet,
            schedule: None,
            differs: Vec::new(),
            words: None,
            order,
            is_bounced: false,
            named: Vec::new(),
        });
        Ok(index)
    }

    fn member<S: Sink>(
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        communicator: u32,
        rank: u32,
        ranks: u32,
        endpoint: u32,
    ) -> Member {
        let bus = resources.servers.as_deref_mut().and_then(|servers| servers.gpu_bus(network, endpoint));
        let port = |servers: &Servers| servers.endpoints[endpoint as usize].port;
        let host = bus.map(|bus| bus.host).or_else(|| resources.servers.as_deref().map(port));
        Member {
            machine: railnet_coll::machine::RankMachine::new(Rank(rank), ranks),
            communicator,
            endpoint,
            host: host.unwrap_or(endpoint),
            buffers: std::array::from_fn(|_| Self::add_buffer(network)),
            ends: Vec::new(),
            slots: Vec::new(),
            works: Vec::new(),
            gpu: bus.map(|bus| Gpu { bus, paths: BusPaths::default() }),
            blocks: Vec::new(),
            own: None,
            planned: std::collections::VecDeque::new(),
            unprepared: std::collections::VecDeque::new(),
            done: 0,
            wrong: 0,
        }
    }
}

/// Whether two servers are the same, and so are these endpoints of them.
fn is_like(servers: &Servers, one: &[u32], other: &[u32]) -> bool {
    let hosts = [one, other].map(|node| servers.host_at(servers.server_of(node[0])));
    let local = |node: &[u32]| -> Vec<u32> { node.iter().map(|end| servers.place_of(*end).1).collect() };
    let is_same = match hosts {
        [Some(one), Some(other)] => std::ptr::eq(one, other) || one == other,
        _ => hosts[0].is_none() && hosts[1].is_none(),
    };
    is_same && local(one) == local(other)
}

/// A server with just the GPUs of these endpoints of it. One without GPUs has memory right behind the port.
fn part_of<S: Sink>(network: &Network<S>, servers: &Servers, node: &[u32]) -> Host {
    let host = servers.host_at(servers.server_of(node[0])).filter(|host| !host.gpus().is_empty());
    match host {
        Some(host) => {
            let local: Vec<u32> = node.iter().map(|endpoint| servers.place_of(*endpoint).1).collect();
            host.with_gpus(&local)
        }
        None => bare(network.port_rate(servers.endpoints[node[0] as usize].port)),
    }
}

/// The endpoints of each node. Ranks of one node follow each other, in the order of its GPUs.
fn nodes(ranks: &[u32], server_of: impl Fn(u32) -> u32) -> Result<Vec<Vec<u32>>, ScenarioError> {
    let nodes: Vec<Vec<u32>> =
        ranks.chunk_by(|a, b| server_of(*a) == server_of(*b)).map(<[u32]>::to_vec).collect();
    let mut seen: Vec<u32> = nodes.iter().map(|node| server_of(node[0])).collect();
    seen.sort_unstable();
    let is_split = seen.windows(2).any(|pair| pair[0] == pair[1]);
    if is_split || nodes.iter().any(|node| !node.is_sorted()) {
        return Err(ScenarioError::new(
            "the ranks of a group that are on one server follow each other, in the order of its GPUs: choose others",
        ));
    }
    Ok(nodes)
}
