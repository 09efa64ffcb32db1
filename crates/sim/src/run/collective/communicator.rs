//! Communicators: ranks, the GPUs behind them, and how channels run over them.

use std::ops::Range;
use std::sync::Arc;

use railnet_coll::search::{Graphs, SearchError, search};
use railnet_coll::transport::{Transport, Transports};
use railnet_coll::tuner::Inputs;
use railnet_coll::variables::Variables;
use railnet_coll::{Schedule, TopologyOptions, Wiring};
use railnet_core::event::Sink;
use railnet_core::{Bytes, Rank, Rate, Span};
use railnet_fabric::Network;
use railnet_topology::Cluster;
use railnet_topology::host::{DeviceKind, Host, NicRole, Processor};

use super::carrier::Ways;
use super::identity::ascending;
use super::plan::Differences;
use super::threads::Limits;
use super::timing::Timing;
use super::{Collectives, Gpu, Ground, Member};
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
    /// Channels: of the kind of server that carries least, as NCCL's ranks agree on what the weakest of them found.
    pub(super) graphs: Graphs,
    /// As many servers of the kind that carries least.
    pub(super) weakest: Cluster,
    /// What the cost model looks at.
    pub(super) inputs: Inputs,
    pub(super) wiring: Wiring,
    /// How ranks reach each other, for each kind of server.
    pub(super) transports: Vec<Transports>,
    /// The kind of each server.
    pub(super) kinds: Vec<u32>,
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

/// Latencies of what stands here.
pub(super) fn timing_of(ground: &Ground<'_>, variables: &Variables) -> Timing {
    let host = ground.servers.as_deref().and_then(|servers| servers.host());
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

/// The channels of the kind of server that carries least, and as many servers of that kind.
fn weakest(cluster: &Cluster, options: &TopologyOptions) -> Result<(Graphs, Cluster), SearchError> {
    let mut found: Option<(f32, Graphs, &Host)> = None;
    for host in cluster.kinds() {
        let graphs = search(host, cluster.nodes, options)?;
        let each = if cluster.nodes > 1 { graphs.ring.bw_inter } else { graphs.ring.bw_intra };
        let carries = each * graphs.ring.channels.len() as f32;
        if found.as_ref().is_none_or(|(least, ..)| carries < *least) {
            found = Some((carries, graphs, host));
        }
    }
    let (_, graphs, host) = found.expect("a cluster has at least one kind of server");
    Ok((graphs, Cluster::new(host.clone(), cluster.nodes)))
}

impl Communicator {
    /// How one rank reaches another: each end as its own server has it.
    pub(super) fn transport(&self, from: u32, to: u32) -> Transport {
        let mut transport = self.transports_of(from).between(from, to).transport;
        if let Transport::Network { to_nic, gdr_receive, .. } = &mut transport
            && let Transport::Network { to_nic: nic, gdr_receive: gdr, .. } =
                self.transports_of(to).between(from, to).transport
        {
            (*to_nic, *gdr_receive) = (nic, gdr);
        }
        transport
    }

    /// How the server of a rank has it.
    pub(super) fn transports_of(&self, rank: u32) -> &Transports {
        let per_node = (self.ranks.len() / self.kinds.len().max(1)).max(1) as u32;
        &self.transports[self.kinds[(rank / per_node) as usize] as usize]
    }
}

impl Collectives {
    /// The communicator of these endpoints, made when it is first used; `collnet` where the network's switches are asked
    /// for by name, whatever variables say.
    pub(super) fn communicator<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        ranks: &[u32],
        variables: &Variables,
        collnet: bool,
        order: Order,
    ) -> Result<u32, ScenarioError> {
        let is_same = |one: &Communicator| one.ranks == ranks && one.collnet == collnet && one.order == order;
        match self.communicators.iter().position(is_same) {
            Some(known) => Ok(known as u32),
            None => self.add_communicator(network, ground, ranks, variables, collnet, order),
        }
    }

    /// One more communicator of these endpoints, whoever else has them.
    pub(super) fn add_communicator<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        ranks: &[u32],
        variables: &Variables,
        collnet: bool,
        order: Order,
    ) -> Result<u32, ScenarioError> {
        let servers = ground.servers.as_deref();
        let full = servers.and_then(|servers| servers.host()).filter(|host| !host.gpus().is_empty());
        let (cluster, timing) = match (full, servers) {
            (Some(full), Some(servers)) => {
                let nodes = nodes(ranks, |endpoint| servers.server_of(endpoint))?;
                let local: Vec<u32> =
                    nodes[0].iter().map(|endpoint| endpoint % servers.endpoints_per_server()).collect();
                let alike = nodes.iter().all(|node| {
                    node.iter()
                        .map(|endpoint| endpoint % servers.endpoints_per_server())
                        .eq(local.iter().copied())
                });
                if !alike {
                    return Err(ScenarioError::new(
                        "the ranks of a group are the same GPUs of each of its servers, in order: choose others",
                    ));
                }
                let timing = timing_on(full, variables);
                let at = |node: &Vec<u32>| servers.host_at(servers.server_of(node[0])).unwrap_or(full);
                let mut cluster = Cluster::new(at(&nodes[0]).with_gpus(&local), nodes.len() as u32);
                for (place, node) in nodes.iter().enumerate().filter(|(_, node)| at(node) != at(&nodes[0])) {
                    cluster.replace(place as u32, at(node).with_gpus(&local));
                }
                (cluster, timing)
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
        let (kind, (graphs, weakest), transports, kinds) = match alike {
            Some(one) => {
                let found = (one.graphs.clone(), one.weakest.clone());
                (one.kind, found, one.transports.clone(), one.kinds.clone())
            }
            None => {
                let found =
                    weakest(&cluster, options).map_err(|error| ScenarioError::new(error.to_string()))?;
                let all = cluster.kinds();
                let transports =
                    all.iter().map(|host| Transports::new(host, cluster.nodes, options)).collect();
                let kind = |node: u32| all.iter().position(|kind| *kind == cluster.host_of(node));
                let kinds = (0..cluster.nodes).map(|node| kind(node).unwrap_or_default() as u32).collect();
                (self.communicators.len() as u32, found, transports, kinds)
            }
        };
        let first = self.members.len() as u32;
        let index = self.communicators.len() as u32;
        for (rank, endpoint) in ranks.iter().enumerate() {
            let member = Self::member(network, ground, index, rank as u32, ranks.len() as u32, *endpoint);
            self.members.push(member);
        }
        let wiring = match order {
            Order::Search => Wiring::new(&graphs),
            Order::Ascending => ascending(&graphs, &transports[0]),
        };
        let inputs = Inputs::of(&weakest, &graphs, settings, self.aggregates);
        self.communicators.push(Communicator {
            ranks: ranks.to_vec(),
            members: first..self.members.len() as u32,
            kind,
            wiring,
            transports,
            kinds,
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
        ground: &mut Ground<'_>,
        communicator: u32,
        rank: u32,
        ranks: u32,
        endpoint: u32,
    ) -> Member {
        let lanes = ground.servers.as_deref_mut().and_then(|servers| servers.gpu_lanes(network, endpoint));
        Member {
            machine: railnet_coll::machine::RankMachine::new(Rank(rank), ranks),
            communicator,
            endpoint,
            buffers: std::array::from_fn(|_| Self::add_buffer(network)),
            ends: Vec::new(),
            slots: Vec::new(),
            works: Vec::new(),
            gpu: lanes.map(|lanes| Gpu { lanes, ways: Ways::default() }),
            blocks: Vec::new(),
            own: None,
            planned: std::collections::VecDeque::new(),
            done: 0,
            wrong: 0,
        }
    }
}

/// The endpoints of each node. Ranks of one node follow each other, and there are as many of each.
fn nodes(ranks: &[u32], server_of: impl Fn(u32) -> u32) -> Result<Vec<Vec<u32>>, ScenarioError> {
    let nodes: Vec<Vec<u32>> =
        ranks.chunk_by(|a, b| server_of(*a) == server_of(*b)).map(<[u32]>::to_vec).collect();
    let mut seen: Vec<u32> = nodes.iter().map(|node| server_of(node[0])).collect();
    seen.sort_unstable();
    let is_split = seen.windows(2).any(|pair| pair[0] == pair[1]);
    if is_split || nodes.iter().any(|node| node.len() != nodes[0].len()) {
        return Err(ScenarioError::new(
            "a group has as many ranks on each of its servers, and those of one server follow each other",
        ));
    }
    Ok(nodes)
}
