//! How channels run over the ranks of a communicator.

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
    /// Where children attach.
    pub pattern: TreePattern,
    /// The ranks that talk to the network or reduce for their node, `[head][node]`: a rail each.
    pub heads: Vec<Vec<u32>>,
    /// Whether the ranks of a node share a switch that reduces (NVLS).
    pub switch_reduces: bool,
}

impl Wiring {
    /// Ranks in one node, everything in ascending order, one channel.
    pub fn flat(ranks: u32) -> Self {
        Self::uniform(1, ranks)
    }

    /// So many nodes of so many ranks, everything in ascending order, one channel, every rank a head.
    pub fn uniform(nodes: u32, per_node: u32) -> Self {
        let nodes: Vec<Vec<u32>> =
            (0..nodes).map(|node| (node * per_node..(node + 1) * per_node).collect()).collect();
        let heads = (0..per_node as usize).map(|head| nodes.iter().map(|node| node[head]).collect());
        Self {
            rings: vec![nodes.concat()],
            chains: vec![nodes.clone()],
            pattern: TreePattern::Plain,
            heads: heads.collect(),
            switch_reduces: true,
            nodes,
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
