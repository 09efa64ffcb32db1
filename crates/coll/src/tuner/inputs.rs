//! What the cost model is asked about: the machine, and what the search found in it.

use railnet_core::Bytes;
use railnet_topology::Cluster;
use railnet_topology::host::{Architecture, DeviceKind, Host, PathType, Vendor};

use crate::algorithm::Algorithm;
use crate::search;
use crate::variables::Selection;
use crate::wiring::TreePattern;

/// Who made the CPUs: it decides what the network costs them, and what LL carries between nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuVendor {
    /// x86 by Intel.
    Intel,
    /// x86 by AMD.
    Amd,
    /// x86 of both kinds in one job.
    Mixed,
    /// POWER.
    Power,
    /// ARM and others.
    Other,
}

impl CpuVendor {
    fn of(host: &Host) -> Self {
        match host.processor().map(|processor| (processor.architecture, processor.vendor)) {
            Some((Architecture::X86, Vendor::Intel)) => Self::Intel,
            Some((Architecture::X86, Vendor::Amd)) => Self::Amd,
            Some((Architecture::Power, _)) => Self::Power,
            _ => Self::Other,
        }
    }

    /// Of all servers: kinds of x86 that differ are mixed.
    fn of_all(hosts: &[&Host]) -> Self {
        let mut all = hosts.iter().map(|host| Self::of(host));
        let first = all.next().unwrap_or(Self::Other);
        all.fold(first, |one, other| match (one, other) {
            _ if one == other => one,
            _ if one.is_x86() && other.is_x86() => Self::Mixed,
            _ => Self::Other,
        })
    }

    pub(super) const fn is_x86(self) -> bool {
        matches!(self, Self::Intel | Self::Amd | Self::Mixed)
    }
}

/// What the search found for one way to use the links: the part of NCCL's graphs that the cost model reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GraphFacts {
    /// Channels that the search placed; NCCL makes twice as many of them, or more.
    pub channels: u32,
    /// GB/s of each channel inside a node.
    pub bandwidth_intra: f32,
    /// GB/s of each channel between nodes.
    pub bandwidth_inter: f32,
    /// The longest path between GPUs.
    pub type_intra: PathType,
    /// The longest path between a GPU and its NIC.
    pub type_inter: PathType,
    /// Whether all channels run over the GPUs in the same order.
    pub same_channels: bool,
    /// What the NIC adds to the latency, in microseconds.
    pub latency_inter_us: f32,
    /// Where the children of a node attach: trees have it.
    pub pattern: Option<TreePattern>,
}

impl GraphFacts {
    /// So many channels of so many GB/s inside nodes and between them, over NVLink, with NICs on the GPUs' own PCIe
    /// switches.
    pub const fn uniform(channels: u32, bandwidth: f32) -> Self {
        Self {
            channels,
            bandwidth_intra: bandwidth,
            bandwidth_inter: bandwidth,
            type_intra: PathType::Nvl,
            type_inter: PathType::Pix,
            same_channels: true,
            latency_inter_us: 0.0,
            pattern: None,
        }
    }

    /// What the cost model reads of a graph.
    fn of(graph: &search::Graph) -> Self {
        Self {
            channels: graph.channels.len() as u32,
            bandwidth_intra: graph.bw_intra,
            bandwidth_inter: graph.bw_inter,
            type_intra: graph.type_intra,
            type_inter: graph.type_inter,
            same_channels: graph.same_channels,
            latency_inter_us: graph.latency_inter.as_us_f64() as f32,
            pattern: graph.pattern.tree(),
        }
    }

    /// The same, as trees of this pattern.
    #[must_use]
    pub const fn with_pattern(self, pattern: TreePattern) -> Self {
        Self { pattern: Some(pattern), ..self }
    }
}

/// What the search found, one graph for each way. `None` where it found no channel.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Graphs {
    /// Rings.
    pub ring: Option<GraphFacts>,
    /// Trees; PAT uses them too.
    pub tree: Option<GraphFacts>,
    /// Chains that end at a NIC.
    pub collnet_chain: Option<GraphFacts>,
    /// Heads that talk to all others of their node and to a NIC.
    pub collnet_direct: Option<GraphFacts>,
    /// Heads around the NVLink switch; NVLSTree uses them too.
    pub nvls: Option<GraphFacts>,
}

impl Graphs {
    /// The graph that an algorithm runs on.
    pub const fn of(&self, algorithm: Algorithm) -> Option<&GraphFacts> {
        match algorithm {
            Algorithm::Tree | Algorithm::Pat => self.tree.as_ref(),
            Algorithm::Ring => self.ring.as_ref(),
            Algorithm::CollNetDirect => self.collnet_direct.as_ref(),
            Algorithm::CollNetChain => self.collnet_chain.as_ref(),
            Algorithm::Nvls | Algorithm::NvlsTree => self.nvls.as_ref(),
            Algorithm::Direct | Algorithm::Hypercube | Algorithm::PointToPoint | Algorithm::Custom => None,
        }
    }
}

/// The network's part in CollNet: switches that reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CollNet {
    /// Whether the user wants it (`NCCL_COLLNET_ENABLE`).
    pub is_enabled: bool,
    /// Whether the network can do it.
    pub is_available: bool,
    /// Whether the network also gathers and scatters, not only reduces.
    pub gathers: bool,
    /// GPUs of each node that talk to the network.
    pub heads: u32,
}

/// How grouped sends and receives use channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerFacts {
    /// Channels of all transfers together: a power of two.
    pub channels: u32,
    /// Channels of one transfer at most: a power of two.
    pub per_peer: u32,
    /// What a transfer sends at a time: 512 KiB over NVLink, else 128 KiB.
    pub chunk: Bytes,
}

/// Sizes and limits that the user may set.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Which algorithms may run (`NCCL_ALGO`).
    pub algorithms: Selection<7>,
    /// Which protocols may run (`NCCL_PROTO`).
    pub protocols: Selection<3>,
    /// The buffer of a connection for each protocol (`NCCL_LL_BUFFSIZE`, `NCCL_LL128_BUFFSIZE`, `NCCL_BUFFSIZE`).
    pub buffers: [Bytes; 3],
    /// Threads of Simple and LL at most (`NCCL_NTHREADS`).
    pub threads: Option<u32>,
    /// What the network costs a CPU in each step, in microseconds (`NCCL_NET_OVERHEAD`, in nanoseconds).
    pub net_overhead_us: Option<f32>,
    /// Whether reductions in the NVLink switch may run (`NCCL_NVLS_ENABLE`).
    pub nvls: bool,
    /// Whether reductions in the network's switches may run (`NCCL_COLLNET_ENABLE`).
    pub collnet: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            algorithms: Selection::default(),
            protocols: Selection::default(),
            buffers: crate::Protocol::ALL.map(crate::Protocol::buffer),
            threads: None,
            net_overhead_us: None,
            nvls: true,
            collnet: false,
        }
    }
}

/// All that the cost model looks at.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Nodes they are on.
    pub nodes: u32,
    /// Ranks on the fullest node.
    pub local_ranks: u32,
    /// The lowest compute capability of all GPUs: 90 for 9.0.
    pub capability_min: u32,
    /// The highest.
    pub capability_max: u32,
    /// Who made the CPUs.
    pub cpu: CpuVendor,
    /// What the search found.
    pub graphs: Graphs,
    /// Channels of the communicator.
    pub channels: u32,
    /// Channels of NVLS and NVLSTree.
    pub nvls_channels: u32,
    /// Whether servers have unlike numbers of GPUs or NICs: then no rail has a head in each of them.
    pub is_uneven: bool,
    /// Whether GPUs are joined by NVLink switches.
    pub has_nvswitch: bool,
    /// Whether those multicast and reduce.
    pub switch_reduces: bool,
    /// The network's switches.
    pub collnet: CollNet,
    /// Whether NICs run parts of the protocol themselves (NCCL's network devices).
    pub net_offload: bool,
    /// Sends and receives.
    pub peers: PeerFacts,
    /// What the user set.
    pub settings: Settings,
}

impl Inputs {
    /// Hopper GPUs on Intel CPUs, so many nodes of so many ranks, with NVLink switches that reduce.
    ///
    /// ```
    /// use railnet_coll::tuner::{GraphFacts, Graphs, Inputs};
    ///
    /// let ring = GraphFacts::uniform(12, 30.0);
    /// let inputs = Inputs::hopper(1, 8, Graphs { ring: Some(ring), ..Graphs::default() });
    /// assert_eq!((inputs.ranks, inputs.channels), (8, 24));
    /// ```
    pub fn hopper(nodes: u32, local_ranks: u32, graphs: Graphs) -> Self {
        let channels = graphs.ring.map_or(1, |ring| 2 * ring.channels);
        let channels_pow2 = channels.next_power_of_two();
        Self {
            ranks: nodes * local_ranks,
            nodes,
            local_ranks,
            capability_min: 90,
            capability_max: 90,
            cpu: CpuVendor::Intel,
            graphs,
            channels,
            nvls_channels: 16,
            is_uneven: false,
            has_nvswitch: true,
            switch_reduces: true,
            collnet: CollNet::default(),
            net_offload: false,
            peers: PeerFacts {
                channels: channels_pow2,
                per_peer: channels_pow2.min(4),
                chunk: Bytes::kib(128),
            },
            settings: Settings::default(),
        }
    }

    /// What the network costs a CPU each time it is involved, in microseconds (NCCL's `netOverhead`).
    pub fn net_overhead_us(&self) -> f32 {
        let of_cpu = if matches!(self.cpu, CpuVendor::Amd) { 2.0 } else { 1.0 };
        self.settings.net_overhead_us.unwrap_or(of_cpu)
    }

    /// The whole of a cluster, with what the search found in it. Whether the network's switches can reduce is not part
    /// of a cluster's description: `has_sharp` says so.
    pub fn of(cluster: &Cluster, found: &search::Graphs, settings: Settings, has_sharp: bool) -> Self {
        let hosts = cluster.kinds();
        let capabilities = hosts.iter().flat_map(|host| {
            host.gpus().into_iter().filter_map(|gpu| match host.device(gpu).kind {
                DeviceKind::Gpu { compute_capability, .. } => Some(u32::from(compute_capability)),
                _ => None,
            })
        });
        let is_switch =
            |host: &&Host| host.devices.iter().any(|one| matches!(one.kind, DeviceKind::NvSwitch { .. }));
        let facts = |graph: &Option<search::Graph>| graph.as_ref().map(GraphFacts::of);
        let graphs = Graphs {
            ring: Some(GraphFacts::of(&found.ring)),
            tree: Some(GraphFacts::of(&found.tree)),
            collnet_chain: facts(&found.collnet_chain),
            collnet_direct: facts(&found.collnet_direct),
            nvls: facts(&found.nvls),
        };
        let heads = graphs.collnet_direct.map_or(0, |graph| graph.channels.min(found.gpus));
        Self {
            ranks: found.ranks(),
            nodes: found.nodes,
            local_ranks: found.gpus,
            capability_min: u32::from(found.compute_capability),
            capability_max: capabilities.max().unwrap_or(0),
            cpu: CpuVendor::of_all(&hosts),
            graphs,
            channels: found.counts.collective,
            nvls_channels: found.counts.nvls,
            is_uneven: found.uneven.is_some(),
            has_nvswitch: hosts.iter().all(is_switch),
            switch_reduces: hosts.iter().all(|host| host.has_nvls()),
            collnet: CollNet {
                is_enabled: settings.collnet,
                is_available: has_sharp,
                gathers: has_sharp,
                heads,
            },
            net_offload: false,
            peers: PeerFacts {
                channels: found.counts.p2p,
                per_peer: found.counts.p2p_per_peer,
                chunk: peer_chunk(&hosts, found),
            },
            settings,
        }
    }

    /// Ranks on each node, as the model counts.
    pub(super) fn per_node(&self) -> f32 {
        self.ranks as f32 / self.nodes as f32
    }
}

/// What sends and receives move at a time (NCCL 2.30 init.cc): more over NVLink than over PCIe and the network.
fn peer_chunk(hosts: &[&Host], found: &search::Graphs) -> Bytes {
    let is_arm = hosts
        .iter()
        .all(|host| host.processor().is_some_and(|processor| processor.architecture == Architecture::Arm));
    match found.nodes {
        1 if found.ring.type_intra <= PathType::Nvb => Bytes::kib(512),
        2.. if is_arm && found.compute_capability >= 100 => Bytes::kib(256),
        _ => Bytes::kib(128),
    }
}
