//! From a server to channels: how NCCL 2.30 would run rings, trees and heads over its GPUs and NICs.
//!
//! [`search`] tries speeds from the highest that any link could carry downwards, places as many channels of that speed as
//! the links allow, and gives up wishes one by one (all channels alike, the shortest paths, a NIC for each channel) until
//! nothing gets better. The work is bounded: half a million steps for each graph, most of which are never taken.
//!
//! ```
//! use railnet_coll::TopologyOptions;
//! use railnet_coll::search::search;
//!
//! let host = railnet_topology::catalogue::host("dgx-h100").expect("it is in the catalogue");
//! let alone = search(&host, 1, &TopologyOptions::default())?;
//! assert_eq!((alone.ring.channels.len(), alone.ring.bw_intra), (12, 30.0));
//! let many = search(&host, 8, &TopologyOptions::default())?;
//! assert_eq!((many.ring.channels.len(), many.ring.bw_inter), (8, 48.0));
//! # Ok::<(), railnet_coll::search::SearchError>(())
//! ```

mod agree;
mod counts;
pub(crate) mod policy;
mod relax;
pub(crate) mod system;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;

use railnet_core::Span;
use railnet_topology::Places;
use railnet_topology::host::{Host, PathType};
use thiserror::Error;

pub use agree::{Own, Uneven, agree};
pub use counts::ChannelCounts;

use crate::options::TopologyOptions;
use crate::wiring::TreePattern;
use system::System;
use walk::Draft;

/// Most channels that a search places: NCCL makes two of each.
const SEARCH_CHANNELS_MAX: usize = TopologyOptions::CHANNELS_MAX as usize / 2;
/// Most heads around an NVLink switch.
const NVLS_HEADS_MAX: usize = 32;
/// Most heads that exchange with all others.
const DIRECT_HEADS_MAX: usize = 8;

/// What a graph is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pattern {
    /// A chain; the first two GPUs share the way to the network.
    BalancedTree,
    /// A chain; the first GPU talks to the parent node, the second to the children.
    SplitTree,
    /// A chain whose first GPU talks to the network.
    Tree,
    /// A ring.
    Ring,
    /// Heads around the NVLink switch.
    Nvls,
    /// Heads that exchange with all other GPUs.
    CollNetDirect,
}

impl Pattern {
    /// NCCL's number for it.
    pub const fn number(self) -> u8 {
        match self {
            Self::BalancedTree => 1,
            Self::SplitTree => 2,
            Self::Tree => 3,
            Self::Ring => 4,
            Self::Nvls => 5,
            Self::CollNetDirect => 6,
        }
    }

    /// Where children attach, for trees.
    pub const fn tree(self) -> Option<TreePattern> {
        match self {
            Self::BalancedTree => Some(TreePattern::Balanced),
            Self::SplitTree => Some(TreePattern::Split),
            Self::Tree => Some(TreePattern::Plain),
            Self::Ring | Self::Nvls | Self::CollNetDirect => None,
        }
    }
}

/// A channel inside a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Channel {
    /// The NIC by which it comes from another node: its place among the server's NICs for traffic between GPUs. `None`
    /// where there is no other node.
    pub nic_in: Option<u32>,
    /// The GPUs in the order in which it passes them, by their number in the server. Heads come first; a channel of an
    /// NVLS graph is its head.
    pub gpus: Vec<u32>,
    /// The NIC by which it goes to another node.
    pub nic_out: Option<u32>,
}

/// What the search found for one pattern.
#[derive(Clone, PartialEq, Debug)]
pub struct Graph {
    /// What it is for; the search may settle for a simpler tree than it was asked for.
    pub pattern: Pattern,
    /// GB/s of each channel between GPUs.
    pub bw_intra: f32,
    /// GB/s of each channel between nodes.
    pub bw_inter: f32,
    /// The longest path allowed between GPUs.
    pub type_intra: PathType,
    /// The longest path allowed between a GPU and a NIC.
    pub type_inter: PathType,
    /// Whether channels were made to be alike.
    pub same_channels: bool,
    /// 0 where channels leave by the NIC they come in by, 2 where pairs of channels exchange NICs, 1 where any will do.
    pub cross_nic: u8,
    /// What the NIC adds to each message, as far as it says so.
    pub latency_inter: Span,
    /// The channels.
    pub channels: Vec<Channel>,
}

/// What the search found.
#[derive(Clone, PartialEq, Debug)]
pub struct Graphs {
    /// How many nodes there are.
    pub nodes: u32,
    /// GPUs of each, or of the one with most.
    pub gpus: u32,
    /// Compute capability of the oldest of them, without the point.
    pub compute_capability: u16,
    /// Rings.
    pub ring: Graph,
    /// Trees: as many channels as rings.
    pub tree: Graph,
    /// Chains that end at a NIC, where switches of the network reduce.
    pub collnet_chain: Option<Graph>,
    /// Heads that exchange with all others of their node, where switches of the network reduce.
    pub collnet_direct: Option<Graph>,
    /// Heads around the NVLink switch, where it reduces.
    pub nvls: Option<Graph>,
    /// How many channels a communicator makes of it.
    pub counts: ChannelCounts,
    /// Channels that the slowest pair of ranks can use, however many pairs there are: a power of two.
    pub per_peer_most: u32,
    /// What each node found, where they have unlike numbers of GPUs or NICs. The graphs above are what they agree on then.
    pub uneven: Option<Arc<Uneven>>,
}

impl Graphs {
    /// Where ranks are.
    pub fn places(&self) -> Places {
        self.uneven
            .as_ref()
            .map_or_else(|| Places::even(self.nodes, self.gpus), |uneven| uneven.ranks.clone())
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.places().total()
    }

    /// The rings of a node.
    pub fn ring_of(&self, node: u32) -> &Graph {
        self.uneven.as_ref().map_or(&self.ring, |uneven| &uneven.of_node(node).ring)
    }

    /// The trees of a node.
    pub fn tree_of(&self, node: u32) -> &Graph {
        self.uneven.as_ref().map_or(&self.tree, |uneven| &uneven.of_node(node).tree)
    }

    /// The same servers, but so many of them: what a search would find, without one. From one node to several and back there is no
    /// such way, and none where nodes are unlike.
    #[must_use]
    pub fn on_nodes(&self, nodes: u32) -> Option<Self> {
        if (nodes > 1) != (self.nodes > 1) || self.uneven.is_some() {
            return None;
        }
        let mut other = Self { nodes, ..self.clone() };
        other.counts.p2p_per_peer = ChannelCounts::for_each_peer(&other, other.counts.p2p);
        Some(other)
    }
}

/// Why there are no channels.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SearchError {
    /// Nobody to communicate.
    #[error("{host} has no GPUs: collectives run between GPUs")]
    NoGpus {
        /// The server.
        host: String,
    },
    /// No way to other nodes.
    #[error("{host} has no NIC that may be used, and {nodes} nodes have to be joined{filter}")]
    NoNics {
        /// The server.
        host: String,
        /// How many there are.
        nodes: u32,
        /// The filter that left none, in words.
        filter: String,
    },
}

/// The channels over so many servers of a kind.
pub fn search(host: &Host, nodes: u32, options: &TopologyOptions) -> Result<Graphs, SearchError> {
    let is_inter = nodes > 1;
    if host.gpus().is_empty() {
        return Err(SearchError::NoGpus { host: host.name.clone() });
    }
    let system = System::new(host, is_inter, options);
    if is_inter && system.nics.is_empty() {
        let all = host.compute_nics().len();
        let filter = match all {
            0 => String::new(),
            _ => format!("; NCCL_IB_HCA={} leaves none of its {all}", options.ib_hca),
        };
        return Err(SearchError::NoNics { host: host.name.clone(), nodes, filter });
    }
    let find = |pattern: Pattern, min: usize, max: usize| {
        relax::find(&system, Draft::new(pattern, min, max), options.cross_nic)
    };
    let or_fallback = |draft: Draft, pattern: Pattern| {
        if draft.channels.is_empty() { relax::fallback(&system, pattern) } else { draft }
    };
    let ring = or_fallback(find(Pattern::Ring, 1, SEARCH_CHANNELS_MAX), Pattern::Ring);
    let count = ring.channels.len();
    let tree = or_fallback(find(Pattern::BalancedTree, count, count), Pattern::BalancedTree);
    let found = |draft: Draft| (!draft.channels.is_empty()).then(|| graph(&system, &draft));
    let collnet = options.collnet_enable && is_inter;
    let collnet_chain = collnet.then(|| find(Pattern::Tree, count, count)).and_then(found);
    let collnet_direct = collnet.then(|| find(Pattern::CollNetDirect, 1, DIRECT_HEADS_MAX)).and_then(found);
    let nvls = options.nvls_enable && host.has_nvls() && system.gpus.len() > 1;
    let nvls = nvls.then(|| find(Pattern::Nvls, 1, NVLS_HEADS_MAX)).and_then(found);
    let mut graphs = Graphs {
        nodes,
        gpus: system.gpus.len() as u32,
        compute_capability: system.capability,
        ring: graph(&system, &ring),
        tree: graph(&system, &tree),
        collnet_chain,
        collnet_direct,
        nvls,
        counts: ChannelCounts::default(),
        per_peer_most: counts::per_peer(&system, is_inter),
        uneven: None,
    };
    graphs.counts = ChannelCounts::new(&graphs, options);
    Ok(graphs)
}

fn graph(system: &System, draft: &Draft) -> Graph {
    let nic = |nic: usize| system.nics.get(nic).map(|nic| nic.place);
    let channel = |channel: &walk::DraftChannel| {
        let gpus = if draft.pattern == Pattern::Nvls { &channel.gpus[..1] } else { &channel.gpus[..] };
        Channel {
            nic_in: nic(channel.enter),
            gpus: gpus.iter().map(|gpu| *gpu as u32).collect(),
            nic_out: nic(channel.leave),
        }
    };
    Graph {
        pattern: draft.pattern,
        bw_intra: draft.intra as f32 / 1000.0,
        bw_inter: draft.inter as f32 / 1000.0,
        type_intra: draft.type_intra,
        type_inter: draft.type_inter,
        same_channels: draft.same_channels,
        cross_nic: draft.cross_nic,
        latency_inter: draft.latency,
        channels: draft.channels.iter().map(channel).collect(),
    }
}
