//! What communication costs on a cluster and its interconnect.
//!
//! Collectives are NCCL's: the search finds the channels of the group's GPUs, the tuner chooses, and its estimate is what the
//! call takes where the interconnect is no bottleneck. All groups of the same scope communicate at the same time; the resource
//! that is busy longest with all of them (a link of the fabric, a link inside a server, the kernel's cores) bounds the call
//! from below. Without an [`Interconnect`], switches are taken to carry whatever NICs send.

mod coflow;
mod load;

use std::collections::BTreeMap;
use std::sync::Arc;

use railnet_coll::algorithm::ChannelShares;
use railnet_coll::search::{Graphs, agree, search};
use railnet_coll::transport::Transports;
use railnet_coll::tuner::{Decision, Inputs, Request, Settings, choose};
use railnet_coll::{Algorithm, Collective, Protocol, TopologyOptions, Wiring};
use railnet_core::{Bytes, DataType, Rank, Rate, Span};
use railnet_topology::Cluster;
use railnet_topology::host::{DeviceKind, Host};

pub use coflow::{CallPlan, Coflow};
pub use load::Bottleneck;

use super::caveat::Caveat;
use super::interconnect::{HostPath, HostPaths, Interconnect, Load};
use super::predict::{Bounded, bounded, message_latency};
use super::traffic::{Hop, Wired};
use super::{Asked, Network, NoPrice, Price};
use crate::graph::{Communication, What};
use crate::parallel::{Group, Scope};

/// What NICs carry of messages at most: headers of 4 KiB packets, and what NCCL's users see of 400 Gb/s (46 to 49 of 50 GB/s:
/// nccl-tests#119, #267, #290).
pub(crate) const NIC_PERCENT: u64 = 97;

/// Nodes of a ring that are looked at for whether it keeps to its rails.
const NODES_LOOKED_AT: u32 = 16;

/// Rates of what is not between GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// What each parameter server takes and gives; what its NICs carry where nothing is said.
    pub server: Option<Rate>,
    /// How many parameter servers there are.
    pub servers: u32,
    /// What each node writes to its drives, or what each server takes that has the storage.
    pub storage: Option<Rate>,
    /// How many servers have the storage; none where every node has its own.
    pub storage_servers: u32,
    /// Whether what goes to those servers passes the memory of the host first.
    pub is_storage_bounced: bool,
}

/// What GPUs and NICs of a node carry, in bytes per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Carries {
    /// A GPU to others of its node.
    pub gpu: f64,
    /// A NIC, of messages.
    pub nic: f64,
    /// A NIC, where data goes through the memory of the host instead of straight from and to the GPU.
    pub bounced: f64,
    /// What is written on a NIC.
    pub line: Rate,
    /// NICs of a node.
    pub nics: u32,
}

impl Carries {
    /// All NICs of a node.
    pub fn node(&self) -> f64 {
        self.nic * f64::from(self.nics)
    }
}

/// Where the ranks of a group are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Shape {
    /// GPUs of each node, by their number in it.
    local: Vec<u32>,
    nodes: u32,
    /// The kinds of these nodes.
    kinds: Vec<u32>,
    /// Where servers have unlike numbers of GPUs or NICs, and nodes of the group are unlike: each look that a node of it has.
    looks: Vec<Look>,
}

/// What nodes of a group look like.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Look {
    kind: u32,
    /// GPUs that take part, by their number in the node.
    local: Vec<u32>,
    /// How many nodes look so.
    nodes: u32,
}

/// Where a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Nodes that it is on.
    pub nodes: u32,
    /// Its ranks on the node with most.
    pub local: u32,
    /// GPUs of that node.
    pub gpus: u32,
}

impl Shape {
    /// The same on nodes of one kind: whoever waits for all waits for the slowest kind.
    fn of_kind(&self, kind: u32) -> Self {
        Self { kinds: vec![kind], ..self.clone() }
    }

    fn kind(&self) -> u32 {
        self.kinds[0]
    }
}

/// What is known of a shape.
#[derive(Clone, Debug)]
struct Known {
    inputs: Inputs,
    /// How many times as long transfers between nodes take because other groups use the same NICs.
    crowd: f64,
    /// The part of the rings that stays on one rail.
    on_rails: f64,
    /// How its ranks reach each other across servers, where there is an interconnect and servers are alike.
    wired: Option<Arc<Wired>>,
}

/// Groups that communicate at the same time: the counts and strides of their ranks.
type Levels = Vec<(u32, u32)>;
/// How a collective runs, as far as its traffic goes.
type Style = (Collective, Algorithm, Protocol, ChannelShares);

/// NCCL's cost model over a cluster.
#[derive(Debug)]
pub struct ClusterCosts<'a> {
    cluster: &'a Cluster,
    settings: Settings,
    options: TopologyOptions,
    rates: Rates,
    kinds: Vec<&'a Host>,
    /// Multiprocessors of a GPU of each kind.
    multiprocessors: Vec<u32>,
    shapes: BTreeMap<(u32, Vec<(u32, u32)>), Shape>,
    known: BTreeMap<Shape, Known>,
    /// Channels by the kind of node, its GPUs, and whether there is more than one.
    graphs: BTreeMap<(u32, Vec<u32>, bool), Graphs>,
    prices: BTreeMap<(Shape, Levels, Collective, Bytes, DataType, u64), Price>,
    interconnect: Option<Arc<Interconnect>>,
    host_paths: HostPaths,
    /// How any rank of the cluster reaches any other by messages.
    transports: Option<Arc<Transports>>,
    /// Connections of collectives across servers, by shape.
    hops: BTreeMap<(Shape, Style), Arc<Vec<Hop>>>,
    /// What is busy longest with the collectives of all groups, for pieces of up to a power of two.
    loads: BTreeMap<(Levels, Style, u32), Load>,
    /// The same for messages between ranks that are so far apart.
    message_loads: BTreeMap<i64, Load>,
    /// The slowest resource of each kind of communication asked for so far.
    bottlenecks: BTreeMap<u8, Bottleneck>,
    /// The longest call of each scope, in seconds, and why packets may differ.
    longest: BTreeMap<u8, (f64, Scope, Option<Caveat>)>,
    /// Bytes per second from each GPU of each kind to each other of its server, and through its NIC.
    paths: BTreeMap<(u32, u32, Option<u32>), f64>,
    /// What GPUs of each kind of server send through their best NICs.
    to_nics: BTreeMap<u32, Vec<Rate>>,
}

impl<'a> ClusterCosts<'a> {
    /// The cost model over a cluster, with what the user said of NCCL.
    pub fn new(cluster: &'a Cluster, settings: Settings, options: TopologyOptions, rates: Rates) -> Self {
        let kinds = cluster.kinds();
        let multiprocessors = kinds.iter().map(|host| {
            let compute = host.gpus().first().and_then(|gpu| match &host.device(*gpu).kind {
                DeviceKind::Gpu { compute, .. } => *compute,
                _ => None,
            });
            compute.map_or(128, |compute| compute.multiprocessors)
        });
        Self {
            cluster,
            settings,
            options,
            rates,
            multiprocessors: multiprocessors.collect(),
            kinds,
            shapes: BTreeMap::new(),
            known: BTreeMap::new(),
            graphs: BTreeMap::new(),
            prices: BTreeMap::new(),
            paths: BTreeMap::new(),
            to_nics: BTreeMap::new(),
            interconnect: None,
            host_paths: HostPaths::default(),
            transports: None,
            hops: BTreeMap::new(),
            loads: BTreeMap::new(),
            message_loads: BTreeMap::new(),
            bottlenecks: BTreeMap::new(),
            longest: BTreeMap::new(),
        }
    }

    /// The same over an interconnect: its links, its hash, and the way from GPUs to NICs bound what is sent.
    #[must_use]
    pub fn over(mut self, interconnect: Arc<Interconnect>) -> Self {
        self.interconnect = Some(interconnect);
        self
    }

    /// Whether there is an interconnect.
    pub const fn has_interconnect(&self) -> bool {
        self.interconnect.is_some()
    }

    fn has_sharp(&self) -> bool {
        self.interconnect.as_ref().is_some_and(|net| net.aggregates)
    }

    /// The cost model with NCCL's defaults.
    pub fn plain(cluster: &'a Cluster) -> Self {
        Self::new(cluster, Settings::default(), TopologyOptions::default(), Rates::default())
    }

    fn place(&self, rank: Rank) -> Result<(u32, u32), NoPrice> {
        let gpus = self.cluster.gpus();
        if rank.0 >= gpus {
            return Err(NoPrice::NoSuchGpu { rank: rank.0, gpus });
        }
        Ok(self.cluster.ranks().place(rank.0))
    }

    fn kind_of(&self, node: u32) -> u32 {
        let host = self.cluster.host_of(node);
        self.kinds.iter().position(|kind| std::ptr::eq(*kind, host) || *kind == host).unwrap_or_default()
            as u32
    }

    fn shape(&mut self, group: &Group) -> Result<Shape, NoPrice> {
        let key = (group.first.0, group.levels.to_vec());
        if let Some(shape) = self.shapes.get(&key) {
            return Ok(shape.clone());
        }
        let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in group.ranks() {
            let (node, gpu) = self.place(rank)?;
            nodes.entry(node).or_default().push(gpu);
        }
        let mut kinds: Vec<u32> = nodes.keys().map(|node| self.kind_of(*node)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let looks = self.looks(&nodes);
        // The node with most of them counts, as for NCCL.
        let count = nodes.len() as u32;
        let mut local = nodes.into_values().max_by_key(Vec::len).unwrap_or_default();
        local.sort_unstable();
        let shape = Shape { local, nodes: count, kinds, looks };
        self.shapes.insert(key, shape.clone());
        Ok(shape)
    }

    /// The looks of nodes with these GPUs; none where all look the same, or have as many GPUs and NICs as each other.
    fn looks(&self, nodes: &BTreeMap<u32, Vec<u32>>) -> Vec<Look> {
        if !self.cluster.is_uneven() {
            return Vec::new();
        }
        let mut counts: BTreeMap<(u32, Vec<u32>), u32> = BTreeMap::new();
        for (node, gpus) in nodes {
            let mut local = gpus.clone();
            local.sort_unstable();
            *counts.entry((self.kind_of(*node), local)).or_default() += 1;
        }
        let looks = counts.into_iter().map(|((kind, local), nodes)| Look { kind, local, nodes });
        if looks.len() > 1 { looks.collect() } else { Vec::new() }
    }

    /// What is known of nodes that look unlike each other.
    fn known_of(&mut self, looks: &[Look]) -> Result<Known, NoPrice> {
        let groups: Vec<(Host, u32)> = looks
            .iter()
            .map(|look| (self.kinds[look.kind as usize].with_gpus(&look.local), look.nodes))
            .collect();
        let cluster = Cluster::of_groups(&groups).expect("a group is on a node");
        let (graphs, asked) = agree(&cluster, &self.options)?;
        let ring = f64::from(graphs.ring.bw_inter) * graphs.ring.channels.len() as f64;
        // The node whose NICs are most in demand is the one that all wait for.
        let crowd = looks.iter().map(|look| {
            let gpus = self.kinds[look.kind as usize].gpus().len() as f64;
            gpus / look.local.len() as f64 * ring / self.nics_gigabytes(look.kind)
        });
        let crowd = crowd.fold(1.0, f64::max);
        let inputs = Inputs::of(&asked, &graphs, self.settings.clone(), self.has_sharp());
        Ok(Known { inputs, crowd, on_rails: on_rails(&graphs), wired: None })
    }

    /// What is known of a shape of one kind.
    fn known(&mut self, shape: &Shape) -> Result<&Known, NoPrice> {
        if !self.known.contains_key(shape) && !shape.looks.is_empty() {
            let known = self.known_of(&shape.looks)?;
            self.known.insert(shape.clone(), known);
        }
        if !self.known.contains_key(shape) {
            let host = self.kinds[shape.kind() as usize].with_gpus(&shape.local);
            let graphs = self.graphs(&host, shape)?;
            let ring = f64::from(graphs.ring.bw_inter) * graphs.ring.channels.len() as f64;
            let gpus = self.kinds[shape.kind() as usize].gpus().len();
            let beside = gpus as f64 / shape.local.len() as f64;
            let crowd = if shape.nodes > 1 {
                (beside * ring / self.nics_gigabytes(shape.kind())).max(1.0)
            } else {
                1.0
            };
            let small = Cluster::new(host, shape.nodes);
            let inputs = Inputs::of(&small, &graphs, self.settings.clone(), self.has_sharp());
            let on_rails = on_rails(&graphs);
            let wired = (self.interconnect.is_some() && shape.nodes > 1)
                .then(|| Arc::new(Wired::new(Wiring::new(&graphs), Transports::of(&small, &self.options))));
            self.known.insert(shape.clone(), Known { inputs, crowd, on_rails, wired });
        }
        Ok(&self.known[shape])
    }

    /// The channels of a shape. How many nodes there are beyond the first changes little of them, and a search is long.
    fn graphs(&mut self, host: &Host, shape: &Shape) -> Result<Graphs, NoPrice> {
        let key = (shape.kind(), shape.local.clone(), shape.nodes > 1);
        if let Some(graphs) = self.graphs.get(&key).and_then(|graphs| graphs.on_nodes(shape.nodes)) {
            return Ok(graphs);
        }
        let found = search(host, shape.nodes, &self.options)?;
        self.graphs.insert(key, found.clone());
        Ok(found)
    }

    /// GB/s of all NICs of a node together, as NCCL counts.
    fn nics_gigabytes(&self, kind: u32) -> f64 {
        let host = self.kinds[kind as usize];
        let rates = host.compute_nics().into_iter().map(|nic| match host.device(nic).kind {
            DeviceKind::Nic { rate, .. } => rate.as_bps() as f64 / 8e9,
            _ => 0.0,
        });
        rates.sum()
    }

    fn collective(&mut self, asked: &Asked<'_>, collective: Collective) -> Result<Price, NoPrice> {
        let shape = self.shape(asked.group)?;
        if asked.group.is_alone() {
            return Ok(Price::default());
        }
        if !shape.looks.is_empty() {
            return self.on_kind(&shape, asked, collective);
        }
        let mut longest = Price::default();
        for kind in &shape.kinds {
            let price = self.on_kind(&shape.of_kind(*kind), asked, collective)?;
            if price.time > longest.time {
                longest = price;
            }
        }
        Ok(longest)
    }

    /// What a collective takes where all nodes are of a kind, or agree on what they all can.
    fn on_kind(
        &mut self,
        shape: &Shape,
        asked: &Asked<'_>,
        collective: Collective,
    ) -> Result<Price, NoPrice> {
        let said = asked.said;
        let load = (asked.load * 1_000.0).round() as u64;
        let key = (shape.clone(), asked.group.levels.to_vec(), collective, said.bytes, said.dtype, load);
        if let Some(price) = self.prices.get(&key) {
            return Ok(*price);
        }
        let price = if collective == Collective::AllToAll {
            self.all_to_all(shape, asked)?
        } else {
            self.tuned(shape, asked, collective)?
        };
        self.prices.insert(key, price);
        Ok(price)
    }

    /// What a collective that NCCL's cost model knows takes: its latency, and its bytes over the slower of GPUs and interconnect.
    fn tuned(&mut self, shape: &Shape, asked: &Asked<'_>, collective: Collective) -> Result<Price, NoPrice> {
        let said = asked.said;
        let decision = self.choose(shape, collective, said)?;
        let multiprocessors = self.fewest_multiprocessors(shape);
        let permille = decision.channels * 1_000 / multiprocessors;
        let Some(estimate) = decision.estimate else {
            return Ok(Price { permille, ..Price::default() });
        };
        let Some(load) = self.load(shape, asked.group, collective, &decision, said)? else {
            let crowd = self.known(shape)?.crowd;
            let seconds = (f64::from(estimate.latency_us) + f64::from(estimate.transfer_us) * crowd) / 1e6;
            return Ok(Price { time: span(seconds), permille, network_permille: 0 });
        };
        let request = request(collective, said);
        let inputs = &self.known(shape)?.inputs;
        let found = bounded(inputs, &request, &decision, &load).expect("the model has an estimate");
        self.remember(asked, &load, &found);
        Ok(priced(found.seconds, permille, found.on_network))
    }

    /// The least multiprocessors of a GPU of a group: of those that have fewest, channels take the largest part.
    fn fewest_multiprocessors(&self, shape: &Shape) -> u32 {
        let kinds = shape.kinds.iter().map(|kind| self.multiprocessors[*kind as usize]);
        kinds.min().unwrap_or(1)
    }

    fn choose(
        &mut self,
        shape: &Shape,
        collective: Collective,
        said: &Communication,
    ) -> Result<Decision, NoPrice> {
        Ok(choose(&self.known(shape)?.inputs, &request(collective, said))?)
    }

    /// How NCCL would run a collective; nothing of what is none, and of one of a rank alone.
    pub fn decision(&mut self, asked: &Asked<'_>) -> Result<Option<Decision>, NoPrice> {
        match asked.said.what {
            What::Collective(collective) if !asked.group.is_alone() => {
                let shape = self.slowest(asked, collective)?;
                self.choose(&shape, collective, asked.said).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Every GPU has a part for every other: those of its node go over NVLink, the others through its NIC.
    fn all_to_all(&mut self, shape: &Shape, asked: &Asked<'_>) -> Result<Price, NoPrice> {
        let (bytes, load) = (asked.said.bytes, asked.load);
        if !shape.looks.is_empty() {
            return self.all_to_all_of(shape, bytes, load);
        }
        let ranks = shape.local.len() as f64 * f64::from(shape.nodes);
        let between = ranks - shape.local.len() as f64;
        let each = bytes.as_u64() as f64 / ranks * load;
        let kind = shape.kind();
        let over_nvlink = self.over_nvlink(shape, bytes.as_u64() as f64 * load);
        let channels = self.known(shape)?.inputs.peers.channels;
        let permille = channels * 1_000 / self.multiprocessors[kind as usize];
        let latency = message_latency(shape.nodes > 1);
        if shape.nodes < 2 {
            return Ok(Price { time: span(latency + over_nvlink), permille, network_permille: 0 });
        }
        let decision = self.choose(shape, Collective::AllToAll, asked.said)?;
        if let Some(found) = self.load(shape, asked.group, Collective::AllToAll, &decision, asked.said)? {
            let on_network = found.seconds * bytes.as_u64() as f64 * load;
            let seconds = (latency + found.extra_delay).max(0.0) + over_nvlink.max(on_network);
            self.remember(asked, &found, &Bounded::of_messages(&found, seconds, on_network));
            return Ok(priced(seconds, permille, on_network));
        }
        let out = shape.local.iter().map(|gpu| self.rate(kind, *gpu, None)).fold(f64::INFINITY, f64::min);
        let time = latency + over_nvlink.max(between * each / out);
        Ok(Price { time: span(time), permille, network_permille: 0 })
    }

    /// Seconds in which the parts of a call of so many bytes cross NVLink that stay in a node.
    fn over_nvlink(&mut self, shape: &Shape, bytes: f64) -> f64 {
        let each = bytes / (shape.local.len() as f64 * f64::from(shape.nodes));
        let inside = shape.local.len() as f64 - 1.0;
        // All wait for the one with the narrowest way.
        let near = shape.local[1..].iter().map(|other| self.rate(shape.kind(), shape.local[0], Some(*other)));
        inside * each / near.fold(f64::INFINITY, f64::min)
    }

    /// The same among nodes that look unlike each other: all wait for the node with the narrowest way for what it has to send.
    fn all_to_all_of(&mut self, shape: &Shape, bytes: Bytes, load: f64) -> Result<Price, NoPrice> {
        let ranks: f64 = shape.looks.iter().map(|look| look.local.len() as f64 * f64::from(look.nodes)).sum();
        let each = bytes.as_u64() as f64 / ranks * load;
        let mut longest = 0.0_f64;
        for Look { kind, local, .. } in &shape.looks {
            let near = local[1..].iter().map(|other| self.rate(*kind, local[0], Some(*other)));
            let inside = (local.len() as f64 - 1.0) * each / near.fold(f64::INFINITY, f64::min);
            let out = local.iter().map(|gpu| self.rate(*kind, *gpu, None)).fold(f64::INFINITY, f64::min);
            let between = (ranks - local.len() as f64) * each / out;
            longest = longest.max(inside).max(between);
        }
        let channels = self.known(shape)?.inputs.peers.channels;
        let kinds = shape.kinds.iter().map(|kind| self.multiprocessors[*kind as usize]);
        let permille = channels * 1_000 / kinds.min().unwrap_or(1);
        Ok(Price { time: span(message_latency(true) + longest), permille, network_permille: 0 })
    }

    /// What GPUs and NICs carry, when all of them send: those of the first kind of servers; where servers have unlike numbers of
    /// them, of the kind whose NICs carry least together, which every ring passes.
    pub fn carries(&mut self) -> Carries {
        let kind = self.narrowest();
        let host = self.kinds[kind as usize];
        let (gpus, nics) = (host.gpus(), host.compute_nics());
        let gpu = if gpus.len() > 1 { self.rate(kind, 0, Some(1)) } else { 0.0 };
        if nics.is_empty() {
            return Carries { gpu, nic: 0.0, bounced: 0.0, line: Rate::ZERO, nics: 0 };
        }
        let nic = self.rate(kind, 0, None) * (gpus.len() as f64 / nics.len() as f64).max(1.0);
        let (bounced, line) = (Self::bounced(host), self.line(kind));
        Carries { gpu, nic, bounced: bounced.min(nic), line, nics: nics.len() as u32 }
    }

    /// The kind of servers with ranks whose NICs carry least, where servers have unlike numbers of GPUs or NICs; else the first.
    fn narrowest(&self) -> u32 {
        if !self.cluster.is_uneven() {
            return 0;
        }
        let with_ranks = (0..).zip(&self.kinds).filter(|(_, host)| !host.gpus().is_empty());
        let kinds = with_ranks.map(|(kind, _)| kind);
        kinds
            .min_by(|one, other| self.nics_gigabytes(*one).total_cmp(&self.nics_gigabytes(*other)))
            .unwrap_or(0)
    }

    /// Bytes per second that a GPU copies to the memory of the host and a NIC reads there, while nothing comes; the least of all kinds
    /// where servers have unlike numbers of GPUs or NICs.
    fn copied(&self) -> f64 {
        let hosts = if self.cluster.is_uneven() { &self.kinds[..] } else { &self.kinds[..1] };
        let with_ranks = hosts.iter().filter(|host| !host.gpus().is_empty());
        with_ranks.map(|host| Self::copied_in(host)).fold(f64::INFINITY, f64::min)
    }

    fn copied_in(host: &Host) -> f64 {
        let gpu = host.gpus()[0];
        let Some(nic) = host.nearest_nics(gpu).first().copied() else { return 0.0 };
        let cpu = host.numa_of(nic).and_then(|numa| host.cpus().get(numa as usize).copied());
        cpu.map_or(0.0, |cpu| {
            host.path(gpu, cpu).bandwidth.min(host.path(nic, cpu).bandwidth).as_bps() as f64 / 8.0
        })
    }

    /// Bytes per second that pass the memory of the host on their way to the NIC, while as many come: where a GPU and its NIC
    /// are behind one PCIe link, that carries what is sent and what is received both ways.
    fn bounced(host: &Host) -> f64 {
        let gpu = host.gpus()[0];
        let Some(nic) = host.nearest_nics(gpu).first().copied() else { return 0.0 };
        let cpu = host.numa_of(nic).and_then(|numa| host.cpus().get(numa as usize).copied());
        let Some(cpu) = cpu else { return 0.0 };
        let (copied, read) = (host.path(gpu, cpu), host.path(nic, cpu));
        let is_shared =
            copied.devices.windows(2).any(|hop| read.devices.windows(2).any(|other| other == hop));
        let slowest = copied.bandwidth.min(read.bandwidth).as_bps() as f64 / 8.0;
        if is_shared { slowest / 2.0 } else { slowest }
    }

    /// Bits per second of payload that a NIC of a kind of server carries: of its line, what packets leave for data, and no more than
    /// the kernel's cores handle where it carries the data.
    fn usable(&self, kind: u32) -> u64 {
        let line = self.line(kind).as_bps();
        let Some(net) = &self.interconnect else { return line * NIC_PERCENT / 100 };
        let payload = line as f64 / net.wire_factor();
        let cores = match net.host_path {
            HostPath::Kernel(kernel) => f64::from(kernel.cores) * 8.0 / kernel.per_byte(net.mtu),
            HostPath::GpuDirect | HostPath::Bounce => f64::INFINITY,
        };
        payload.min(cores) as u64
    }

    /// The rate of the fastest NIC of a kind of server, or of the links at its ports: a NIC is as fast as its link.
    fn line(&self, kind: u32) -> Rate {
        let node = (0..self.cluster.nodes).find(|node| self.kind_of(*node) == kind);
        let ports = self.interconnect.as_ref().zip(node).and_then(|(net, node)| {
            let ports = net.ports.get(node as usize)?.clone();
            (0..ports.end - ports.start).filter_map(|nic| net.port_rate(node, nic)).max()
        });
        ports.unwrap_or_else(|| Self::nic_line(self.kinds[kind as usize]))
    }

    /// The rate of the fastest NIC of a server.
    fn nic_line(host: &Host) -> Rate {
        let rates = host.compute_nics().into_iter().filter_map(|nic| match host.device(nic).kind {
            DeviceKind::Nic { rate, .. } => Some(rate),
            _ => None,
        });
        rates.max().unwrap_or(Rate::ZERO)
    }

    /// The node of a rank, and which of its GPUs the rank has.
    pub fn place_of(&self, rank: Rank) -> Result<(u32, u32), NoPrice> {
        self.place(rank)
    }

    /// GPUs of the node of a rank.
    pub fn gpus_beside(&self, rank: Rank) -> Result<u32, NoPrice> {
        let (node, _) = self.place(rank)?;
        Ok(self.cluster.ranks().count(node))
    }

    /// How many nodes a group is on, and how many of its ranks are on the one with most.
    pub fn spread(&mut self, group: &Group) -> Result<Spread, NoPrice> {
        let shape = self.shape(group)?;
        let local = shape.local.len() as u32;
        let fullest = shape.looks.iter().max_by_key(|look| look.local.len());
        let kind = fullest.map_or(shape.kind(), |look| look.kind);
        Ok(Spread { nodes: shape.nodes, local, gpus: self.kinds[kind as usize].gpus().len() as u32 })
    }

    /// The part of what a group's rings send between nodes that arrives at the NIC of the same number as it left from.
    pub fn on_rails(&mut self, group: &Group) -> Result<f64, NoPrice> {
        let shape = self.shape(group)?;
        Ok(self.known(&shape)?.on_rails)
    }

    /// Bytes per second from a GPU to another of its server, or through the best NIC for it, when all GPUs of the server send.
    fn rate(&mut self, kind: u32, from: u32, to: Option<u32>) -> f64 {
        if let Some(rate) = self.paths.get(&(kind, from, to)) {
            return *rate;
        }
        let host = self.kinds[kind as usize];
        let gpus = host.gpus();
        let gpu = gpus[from as usize];
        let rate = if let Some(to) = to {
            host.path(gpu, gpus[to as usize]).bandwidth.as_bps() as f64 / 8.0
        } else {
            let nics = host.compute_nics();
            let shared = (nics.len() as f64 / gpus.len() as f64).min(1.0);
            let usable = self.usable(kind);
            let best = self.to_nics.entry(kind).or_insert_with(|| host.rates_to_nics());
            best[from as usize].as_bps().min(usable) as f64 / 8.0 * shared
        };
        self.paths.insert((kind, from, to), rate);
        rate
    }

    fn message(&mut self, [from, to]: [Rank; 2], bytes: Bytes) -> Result<Price, NoPrice> {
        let ((node, gpu), (other_node, other_gpu)) = (self.place(from)?, self.place(to)?);
        let is_between = node != other_node;
        let kinds = [node, other_node].map(|node| self.kind_of(node));
        if is_between && let Some(load) = self.message_load([from, to])? {
            let on_network = load.seconds * bytes.as_u64() as f64;
            let seconds = (message_latency(true) + load.extra_delay).max(0.0) + on_network;
            return Ok(priced(seconds, 0, on_network));
        }
        let rate = if is_between {
            self.rate(kinds[0], gpu, None).min(self.rate(kinds[1], other_gpu, None))
        } else {
            self.rate(kinds[0], gpu, Some(other_gpu))
        };
        let seconds = message_latency(is_between) + bytes.as_u64() as f64 / rate;
        Ok(Price { time: span(seconds), ..Price::default() })
    }

    /// All ranks talk to all servers at once: the narrower side decides.
    fn servers(&mut self, asked: &Asked<'_>) -> Result<Price, NoPrice> {
        let bytes = asked.said.bytes.as_u64() as f64;
        let is_storage = !matches!(asked.said.what, What::Push | What::Pull);
        let (servers, rate, is_bounced) = match is_storage {
            true => (self.rates.storage_servers, self.rates.storage, self.rates.is_storage_bounced),
            false => (self.rates.servers, self.rates.server, false),
        };
        if let Some(net) = self.interconnect.clone() {
            let ports = if is_storage { &net.storage_servers } else { &net.parameter_servers };
            let sends = asked.said.what != What::Pull;
            if let Some(load) = self.server_load(ports, rate, !is_bounced, sends)? {
                let on_network = load.seconds * bytes;
                let seconds = (message_latency(true) + load.extra_delay).max(0.0) + on_network;
                self.remember(asked, &load, &Bounded::of_messages(&load, seconds, on_network));
                return Ok(priced(seconds, 0, on_network));
            }
        }
        Ok(self.servers_alone(asked.said.bytes, servers, rate, is_bounced))
    }

    /// The same where switches carry whatever NICs send: each rank goes through the NIC of its own number at either end.
    fn servers_alone(&mut self, bytes: Bytes, servers: u32, rate: Option<Rate>, is_bounced: bool) -> Price {
        let kinds: Vec<u32> = (0..)
            .zip(&self.kinds)
            .filter(|(_, host)| !host.gpus().is_empty())
            .map(|(kind, _)| kind)
            .collect();
        let through = kinds.into_iter().map(|kind| self.rate(kind, 0, None)).fold(f64::INFINITY, f64::min);
        let each = if is_bounced { through.min(self.copied()) } else { through };
        // A server is like those of the first kind, or its rate says what its NICs carry.
        let like = if self.cluster.is_uneven() { self.rate(0, 0, None) } else { through };
        let nics = like * self.cluster.host.gpus().len() as f64;
        let server = rate.map_or(nics, |rate| (rate.as_bps() as f64 / 8.0).min(nics));
        let share = server * f64::from(servers.max(1)) / f64::from(self.cluster.gpus());
        let seconds = message_latency(true) + bytes.as_u64() as f64 / each.min(share);
        Price { time: span(seconds), ..Price::default() }
    }

    fn storage(&mut self, asked: &Asked<'_>) -> Result<Price, NoPrice> {
        let Some(rate) = self.rates.storage else {
            return Err(NoPrice::NoStorage { server: self.cluster.host.name.clone() });
        };
        if self.rates.storage_servers > 0 {
            return self.servers(asked);
        }
        // All wait for the node with most ranks.
        let of_node = asked.said.bytes * u64::from(self.cluster.ranks().most());
        Ok(Price { time: rate.serialize(of_node), ..Price::default() })
    }
}

/// The part of the hops of rings between nodes that enter a node by the NIC of the number by which they left the one before.
fn on_rails(graphs: &Graphs) -> f64 {
    // Where all nodes are alike, it is but that every second one may exchange NICs.
    let some = graphs.nodes.min(NODES_LOOKED_AT + graphs.nodes % 2);
    let nodes = if graphs.uneven.is_some() { graphs.nodes } else { some };
    let wiring = Wiring::new(&Graphs { nodes, ..graphs.clone() });
    let hops = wiring.nics.rings.iter().flat_map(|ring| ring.iter().zip(ring.iter().cycle().skip(1)));
    let (mut all, mut straight) = (0_u32, 0_u32);
    for (leaves, enters) in hops {
        all += 1;
        straight += u32::from(leaves.other == enters.first);
    }
    f64::from(straight) / f64::from(all.max(1))
}

fn request(collective: Collective, said: &Communication) -> Request {
    let mut request = Request::new(collective, said.bytes);
    request.dtype = said.dtype;
    request
}

/// A price, with the part of its time in which the interconnect is busy with it.
fn priced(seconds: f64, permille: u32, on_network: f64) -> Price {
    let share = if seconds > 0.0 { (on_network / seconds).min(1.0) } else { 0.0 };
    Price { time: span(seconds), permille, network_permille: (share * 1_000.0).round() as u32 }
}

fn span(seconds: f64) -> Span {
    Span::from_ps((seconds * 1e12).round() as u64)
}

impl Network for ClusterCosts<'_> {
    fn price(&mut self, asked: &Asked<'_>) -> Result<Price, NoPrice> {
        match (asked.said.what, asked.pair) {
            (_, Some(pair)) => self.message(pair, asked.said.bytes),
            (What::Collective(collective), None) => self.collective(asked, collective),
            (What::Push | What::Pull, None) => self.servers(asked),
            (What::Write | What::Send { .. } | What::Receive { .. }, None) => self.storage(asked),
        }
    }
}
