//! How channels run over the ranks of a communicator.

use railnet_topology::Places;

use crate::algorithm::Algorithm;
use crate::algorithm::tree::links;
use crate::schedule::Peer;
use crate::search::{Channel, Graph, Graphs};

/// Where the children of a node attach in its chain (NCCL 2.30 graph/connect.cc).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TreePattern {
    /// The first child at the second GPU, the second at the first.
    Balanced,
    /// Both children at the second GPU.
    Split,
    /// Both children at the first GPU.
    Plain,
}

/// How channels run over the ranks. Channels that use a ring, a chain or a head take theirs modulo how many there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// The ranks of each node, in local order. Every rank is in one node.
    pub nodes: Vec<Vec<u32>>,
    /// The ring of each channel: every rank once.
    pub rings: Vec<Vec<u32>>,
    /// The chain of each channel in each node, `[channel][node]`: the first rank talks to the parent node. There is one
    /// for each channel that the search found: with k of them, channels 0 to k-1 use the first of the two trees, the next k
    /// the second one, and so on in turns.
    pub chains: Vec<Vec<Vec<u32>>>,
    /// Where children attach in each node; the last counts for the nodes behind it.
    pub patterns: Vec<TreePattern>,
    /// The ranks that talk to the network or reduce for their node, `[head][node]`: a rail each.
    pub heads: Vec<Vec<u32>>,
    /// Whether the ranks of a node share a switch that reduces (NVLS).
    pub switch_reduces: bool,
    /// By which NICs channels reach other nodes, where that is known.
    pub nics: ChannelNics,
}

/// By which NICs channels reach other nodes: their places among a server's NICs for traffic between GPUs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChannelNics {
    /// For the ring of each channel in each node, `[channel][node]`.
    pub rings: Vec<Vec<NicPair>>,
    /// For the chain of each channel in each node, `[channel][node]`.
    pub chains: Vec<Vec<NicPair>>,
    /// For each head in each node, `[head][node]`.
    pub heads: Vec<Vec<u32>>,
}

/// Who is above and below a rank in a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreePeers {
    /// Who is above: nobody for the root.
    pub up: Option<u32>,
    /// Who is below: first the one in the same node.
    pub down: Vec<u32>,
}

/// The NICs of a channel in a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicPair {
    /// That of the first GPU.
    pub first: u32,
    /// That of any other GPU that talks to the network.
    pub other: u32,
}

impl Wiring {
    /// Ranks in one node, everything in ascending order, one channel.
    pub fn flat(ranks: u32) -> Self {
        Self::uniform(1, ranks)
    }

    /// So many nodes of so many ranks, everything in ascending order, one channel, every rank a head.
    pub fn uniform(nodes: u32, per_node: u32) -> Self {
        Self::ascending(&Places::even(nodes, per_node))
    }

    /// Nodes with the ranks at these places, everything in ascending order, one channel. Ranks are heads where every node has one
    /// of that number.
    pub fn ascending(places: &Places) -> Self {
        let nodes: Vec<Vec<u32>> = (0..places.nodes()).map(|node| places.range(node).collect()).collect();
        let least = nodes.iter().map(Vec::len).min().unwrap_or(0);
        let heads = (0..least).map(|head| nodes.iter().map(|node| node[head]).collect());
        Self {
            rings: vec![nodes.concat()],
            chains: vec![nodes.clone()],
            patterns: vec![TreePattern::Plain; nodes.len()],
            heads: heads.collect(),
            switch_reduces: true,
            nics: ChannelNics::default(),
            nodes,
        }
    }

    /// What the search found in each of so many servers, joined to each other (NCCL 2.30 graph/connect.cc).
    ///
    /// There is a ring and a chain for each channel that was found. A communicator has twice as many channels or more,
    /// [`Graphs::counts`], which use them over again.
    pub fn new(graphs: &Graphs) -> Self {
        let nodes = graphs.nodes;
        let places = graphs.places();
        let on = |node: u32, channel: &Channel| -> Vec<u32> {
            channel.gpus.iter().map(|gpu| places.range(node).start + gpu).collect()
        };
        let count = graphs.ring.channels.len().min(graphs.tree.channels.len());
        // Channels that exchange NICs in pairs do so the other way round in every second node: a ring that leaves one
        // node by a NIC so enters the next by the same.
        let swaps = graphs.ring.cross_nic == 2 && count.is_multiple_of(2);
        let of_ring = |node: u32, channel: usize| {
            &graphs.ring_of(node).channels[if swaps && node % 2 == 1 { channel ^ 1 } else { channel }]
        };
        let of_tree = |node: u32, channel: usize| &graphs.tree_of(node).channels[channel];
        let heads = heads(graphs);
        let mut nics = ChannelNics::default();
        if nodes > 1 {
            let pair = |channel: &Channel| NicPair {
                first: channel.nic_in.unwrap_or(0),
                other: channel.nic_out.unwrap_or(0),
            };
            let all = |of: &dyn Fn(u32, usize) -> NicPair| -> Vec<Vec<NicPair>> {
                (0..count).map(|channel| (0..nodes).map(|node| of(node, channel)).collect()).collect()
            };
            nics.rings = all(&|node, channel| pair(of_ring(node, channel)));
            nics.chains = all(&|node, channel| pair(of_tree(node, channel)));
            nics.heads = heads.iter().map(|head| vec![head.nic_in.unwrap_or(0); nodes as usize]).collect();
        }
        let pattern = |node: u32| graphs.tree_of(node).pattern.tree().unwrap_or(TreePattern::Plain);
        Self {
            nodes: (0..nodes).map(|node| places.range(node).collect()).collect(),
            rings: (0..count)
                .map(|channel| (0..nodes).flat_map(|node| on(node, of_ring(node, channel))).collect())
                .collect(),
            chains: (0..count)
                .map(|channel| (0..nodes).map(|node| on(node, of_tree(node, channel))).collect())
                .collect(),
            patterns: (0..nodes).map(pattern).collect(),
            heads: heads
                .iter()
                .map(|head| (0..nodes).map(|node| places.range(node).start + head.gpus[0]).collect())
                .collect(),
            switch_reduces: graphs.nvls.is_some(),
            nics,
        }
    }

    /// Which of the two trees a channel uses: the first for as many channels as there are chains, then the second, and
    /// so on.
    pub fn tree_of(&self, channel: u32) -> u32 {
        channel / (self.chains.len() as u32).max(1) % 2
    }

    /// Who is above and below each rank in the tree of a channel.
    pub fn tree(&self, channel: u32) -> Vec<TreePeers> {
        let chains = &self.chains[channel as usize % self.chains.len()];
        let links = links(chains, &self.patterns, self.tree_of(channel) as usize, self.ranks());
        let peers = links.into_iter().map(|link| {
            let up = match link.up {
                Some(Peer::Rank(rank)) => Some(rank),
                _ => None,
            };
            TreePeers { up, down: link.down.to_vec() }
        });
        peers.collect()
    }

    /// The NIC by which a rank talks to other nodes on a channel, as a place among its server's NICs for traffic between
    /// GPUs. `None` where that is not known, or the rank has no business with other nodes.
    pub fn nic(&self, algorithm: Algorithm, channel: u32, rank: u32) -> Option<u32> {
        // Ranks of a node follow each other, and nodes too.
        let node = self.nodes.partition_point(|ranks| ranks.first().is_some_and(|first| *first <= rank));
        let node = node.checked_sub(1)?;
        let first = *self.nodes[node].first()? as usize;
        let of_channel = |pairs: &[Vec<NicPair>], first: &dyn Fn(usize) -> u32| {
            let index = channel as usize % pairs.len().max(1);
            let pair = pairs.get(index)?.get(node)?;
            Some(if first(index) == rank { pair.first } else { pair.other })
        };
        match algorithm {
            Algorithm::Ring => of_channel(&self.nics.rings, &|channel| self.rings[channel][first]),
            Algorithm::Tree | Algorithm::CollNetChain => {
                of_channel(&self.nics.chains, &|channel| self.chains[channel][node][0])
            }
            Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollNetDirect => {
                let head = self.heads.iter().position(|head| head.get(node) == Some(&rank))?;
                self.nics.heads.get(head)?.get(node).copied()
            }
            Algorithm::Pat
            | Algorithm::Direct
            | Algorithm::Hypercube
            | Algorithm::PointToPoint
            | Algorithm::Custom => None,
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.nodes.iter().map(|node| node.len() as u32).sum()
    }

    /// The node of each rank.
    pub fn node_of(&self) -> Vec<u32> {
        let mut node_of = vec![0; self.ranks() as usize];
        for (node, ranks) in self.nodes.iter().enumerate() {
            for rank in ranks {
                node_of[*rank as usize] = node as u32;
            }
        }
        node_of
    }
}

/// A channel for each head: those around the NVLink switch, else those that exchange with all others, else the GPUs at
/// which trees begin. Nodes that have unlike numbers of GPUs or NICs have none: their rails do not match.
fn heads(graphs: &Graphs) -> Vec<Channel> {
    if graphs.uneven.is_some() {
        return Vec::new();
    }
    let graph: &Graph = graphs.nvls.as_ref().or(graphs.collnet_direct.as_ref()).unwrap_or(&graphs.tree);
    let mut heads: Vec<Channel> = Vec::new();
    for channel in &graph.channels {
        if heads.iter().all(|head| head.gpus[0] != channel.gpus[0]) {
            heads.push(channel.clone());
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use railnet_topology::catalogue;

    use super::*;
    use crate::options::TopologyOptions;
    use crate::search::search;

    fn wiring(name: &str, nodes: u32) -> Wiring {
        let host = catalogue::host(name).unwrap();
        Wiring::new(&search(&host, nodes, &TopologyOptions::default()).unwrap())
    }

    #[test]
    fn every_ring_passes_every_rank_once_and_every_chain_its_node() {
        let servers =
            catalogue::hosts().filter(|(name, _)| !catalogue::host(name).unwrap().gpus().is_empty());
        for (name, _) in servers {
            for nodes in [1, 2, 3, 4, 64] {
                let wiring = wiring(name, nodes);
                let all: Vec<u32> = (0..wiring.ranks()).collect();
                assert!(!wiring.rings.is_empty() && wiring.rings.len() == wiring.chains.len());
                for ring in &wiring.rings {
                    let mut ranks = ring.clone();
                    ranks.sort_unstable();
                    assert_eq!(ranks, all, "{name} x{nodes}");
                }
                for (chains, node) in wiring.chains.iter().flat_map(|chains| chains.iter().zip(&wiring.nodes))
                {
                    let mut ranks = chains.clone();
                    ranks.sort_unstable();
                    assert_eq!(&ranks, node, "{name} x{nodes}");
                }
                assert!(wiring.heads.iter().all(|head| head.len() == nodes as usize));
            }
        }
    }

    #[test]
    fn rings_stay_on_their_rails() {
        let wiring = wiring("dgx-h100", 4);
        for channel in 0..16 {
            let ring = &wiring.rings[channel as usize % 8];
            let edges = ring.iter().zip(ring.iter().cycle().skip(1));
            let between: Vec<_> = edges.filter(|(from, to)| *from / 8 != *to / 8).collect();
            assert_eq!(between.len(), 4);
            for (from, to) in between {
                let leaves = wiring.nic(Algorithm::Ring, channel, *from).unwrap();
                let enters = wiring.nic(Algorithm::Ring, channel, *to).unwrap();
                assert_eq!(leaves, enters, "channel {channel}: {from} to {to} changes rails");
                assert_eq!(from % 8, to % 8, "channel {channel}: {from} to {to}");
                assert_eq!(
                    leaves,
                    from % 8,
                    "channel {channel}: NIC {leaves} is not the one beside GPU {from}"
                );
            }
        }
        let entered: Vec<_> = wiring.nics.rings.iter().map(|nodes| nodes[0].first).collect();
        assert_eq!(entered, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn trees_and_heads_stay_on_their_rails_too() {
        let wiring = wiring("dgx-h100", 4);
        assert_eq!((&wiring.patterns[..], wiring.switch_reduces), (&[TreePattern::Plain; 4][..], true));
        for (channel, chains) in wiring.chains.iter().enumerate() {
            for chain in chains {
                assert_eq!(chain[0] % 8, channel as u32);
                assert_eq!(wiring.nic(Algorithm::Tree, channel as u32, chain[0]), Some(channel as u32));
            }
        }
        assert_eq!(wiring.heads[3], [3, 11, 19, 27]);
        assert_eq!(wiring.nic(Algorithm::NvlsTree, 0, 19), Some(3));
        assert_eq!((wiring.tree_of(7), wiring.tree_of(8), wiring.tree_of(16)), (0, 1, 0));
    }

    #[test]
    fn a_node_alone_has_no_nics() {
        let wiring = wiring("dgx-a100", 1);
        assert_eq!(wiring.nics, ChannelNics::default());
        assert_eq!(wiring.nic(Algorithm::Ring, 0, 0), None);
        assert_eq!(Wiring::flat(4).nic(Algorithm::Tree, 0, 0), None);
    }
}
