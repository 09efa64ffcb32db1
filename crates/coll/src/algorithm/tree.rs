//! Tree: a double binary tree between nodes, a chain inside each (NCCL 2.30 graph/trees.cc, graph/connect.cc,
//! device/all_reduce.h).
//!
//! Every node is inside one of the two trees and a leaf of the other, so that with both in use each node sends and
//! receives the data once in each direction. With k chains in the wiring, channels 0 to k-1 use the first tree, the next
//! k the second one, and so on in turns.

use super::split::{Cells, chunk};
use super::up_down::{Links, UpDown};
use super::{Arc, BuildError, Call, Choice, Schedule, Wiring};
use crate::schedule::Peer;
use crate::wiring::TreePattern;

/// The place of a node in a binary tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeNode {
    /// The parent; none for the root.
    pub up: Option<u32>,
    /// The children: the first lies before the node, the second after it.
    pub down: [Option<u32>; 2],
    /// Which child of its parent it is.
    pub child: usize,
}

/// The place of `node` in a binary tree of so many in which every odd one is a leaf, and 0 the root with one child.
pub fn binary_tree(nodes: u32, node: u32) -> TreeNode {
    if node == 0 {
        let only = (nodes > 1).then(|| 1 << (nodes - 1).ilog2());
        return TreeNode { up: None, down: [None, only], child: 0 };
    }
    let bit = 1 << node.trailing_zeros();
    let (below, above) = (node ^ bit, (node ^ bit) | bit << 1);
    let up = if above < nodes { above } else { below };
    // The child after the node is nearer where the usual one does not exist.
    let mut low = bit >> 1;
    while low > 0 && node + low >= nodes {
        low >>= 1;
    }
    let first = (bit > 1).then(|| node - (bit >> 1));
    let second = (low > 0).then(|| node + low);
    TreeNode { up: Some(up), down: [first, second], child: usize::from(node >= up) }
}

/// The places of `node` in the two trees: the second one is the first shifted by one where the number of nodes is odd,
/// else mirrored.
pub fn double_tree(nodes: u32, node: u32) -> [TreeNode; 2] {
    let (other, back): (u32, &dyn Fn(u32) -> u32) = if nodes % 2 == 1 {
        ((node + nodes - 1) % nodes, &|other| (other + 1) % nodes)
    } else {
        (nodes - 1 - node, &|other| nodes - 1 - other)
    };
    let second = binary_tree(nodes, other);
    let second =
        TreeNode { up: second.up.map(back), down: second.down.map(|child| child.map(back)), ..second };
    [binary_tree(nodes, node), second]
}

/// Where in the chain of its parent a node attaches.
fn attachment(pattern: TreePattern, child: usize, chain: &[u32]) -> u32 {
    let at = match (pattern, child) {
        (TreePattern::Balanced, 0) | (TreePattern::Split, _) => 1,
        _ => 0,
    };
    chain[at.min(chain.len() - 1)]
}

/// The pattern of a node: the last one counts for those behind it.
fn pattern_of(patterns: &[TreePattern], node: u32) -> TreePattern {
    patterns.get(node as usize).or(patterns.last()).copied().unwrap_or(TreePattern::Plain)
}

/// The links of all ranks: `chains` of each node, tied together by one of the two trees.
pub(crate) fn links(chains: &[Vec<u32>], patterns: &[TreePattern], tree: usize, ranks: u32) -> Vec<Links> {
    let mut links = vec![Links::default(); ranks as usize];
    let mut tie = |above: u32, below: u32| {
        links[below as usize].up = Some(Peer::Rank(above));
        links[above as usize].down.push(below);
    };
    for chain in chains {
        for pair in chain.windows(2) {
            tie(pair[0], pair[1]);
        }
    }
    let nodes = chains.len() as u32;
    for node in 0..nodes {
        let place = double_tree(nodes, node)[tree];
        for child in place.down.into_iter().flatten() {
            let which = double_tree(nodes, child)[tree].child;
            tie(
                attachment(pattern_of(patterns, node), which, &chains[node as usize]),
                chains[child as usize][0],
            );
        }
    }
    links
}

/// The place of a rank in the tree of a channel: who is above, and who below.
pub fn tree_place(wiring: &Wiring, channel: u32, rank: u32) -> (Option<u32>, Vec<u32>) {
    let Some(chains) = wiring.chains.get(channel as usize % wiring.chains.len().max(1)) else {
        return (None, Vec::new());
    };
    let links = links(chains, &wiring.patterns, wiring.tree_of(channel) as usize, wiring.ranks());
    let Links { up, down } = &links[rank as usize];
    let up = up.and_then(|peer| match peer {
        Peer::Rank(rank) => Some(rank),
        Peer::Switch(_) => None,
    });
    (up, down.to_vec())
}

/// Whether the chains of every channel have every rank once.
pub(super) fn check_chains(choice: &Choice, wiring: &Wiring) -> Result<(), BuildError> {
    let impossible = |reason| Err(BuildError::Impossible { algorithm: choice.algorithm, reason });
    if wiring.chains.is_empty() {
        return impossible("the wiring has no chains".to_owned());
    }
    for (index, chains) in wiring.chains.iter().enumerate() {
        let sorted = |ranks: &[u32]| {
            let mut ranks = ranks.to_vec();
            ranks.sort_unstable();
            ranks
        };
        let fits = chains.len() == wiring.nodes.len()
            && chains.iter().zip(&wiring.nodes).all(|(chain, node)| sorted(chain) == sorted(node));
        if !fits {
            return impossible(format!(
                "the chains of channel {index} do not have every rank of each node once"
            ));
        }
    }
    Ok(())
}

pub(super) fn build(call: &Call, choice: &Choice, wiring: &Wiring) -> Result<Schedule, BuildError> {
    check_chains(choice, wiring)?;
    let ranks = wiring.ranks();
    let fifo = choice.fifo(false);
    // The first trees of all chains, then the second ones.
    let trees = [0, 1].into_iter().flat_map(|tree| {
        wiring.chains.iter().map(move |chains| links(chains, &wiring.patterns, tree, ranks))
    });
    let program = UpDown {
        chunk: chunk(call, choice, &fifo),
        shares: Cells::new(call, choice, ranks).shares(call.block_of(0, ranks)),
        trees: trees.collect(),
    };
    Ok(choice.schedule(call, ranks, fifo, program.channels(), Arc::new(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(node: TreeNode) -> (i64, i64, i64) {
        let number = |node: Option<u32>| node.map_or(-1, i64::from);
        (number(node.up), number(node.down[0]), number(node.down[1]))
    }

    /// Written down from NCCL's rules: (up, first child, second child) in both trees.
    #[test]
    fn trees_are_those_of_nccl() {
        type Place = (i64, i64, i64);
        let leaf = |up| (up, -1, -1);
        let known: &[(u32, u32, Place, Place)] = &[
            (4, 0, (-1, -1, 2), leaf(1)),
            (4, 1, leaf(2), (3, 2, 0)),
            (4, 2, (0, 1, 3), leaf(1)),
            (4, 3, leaf(2), (-1, -1, 1)),
            (12, 0, (-1, -1, 8), leaf(1)),
            (12, 1, leaf(2), (3, 2, 0)),
            (12, 2, (4, 1, 3), leaf(1)),
            (12, 3, leaf(2), (11, 7, 1)),
            (12, 4, (8, 2, 6), leaf(5)),
            (12, 8, (0, 4, 10), leaf(9)),
            (12, 11, leaf(10), (-1, -1, 3)),
            (13, 0, (-1, -1, 8), (9, 11, -1)),
            (13, 8, (0, 4, 12), leaf(7)),
            (13, 9, leaf(10), (1, 5, 0)),
            (13, 12, (8, 10, -1), leaf(11)),
            (13, 1, leaf(2), (-1, -1, 9)),
        ];
        for (nodes, node, first, second) in known {
            assert_eq!(double_tree(*nodes, *node).map(tuple), [*first, *second], "{node} of {nodes}");
        }
    }

    #[test]
    fn parents_and_children_agree_and_everybody_reaches_the_root() {
        for nodes in 1..200 {
            for tree in 0..2 {
                let places: Vec<_> = (0..nodes).map(|node| double_tree(nodes, node)[tree]).collect();
                for (node, place) in places.iter().enumerate() {
                    let (mut at, mut hops) = (node as u32, 0);
                    while let Some(up) = places[at as usize].up {
                        assert_eq!(places[up as usize].down[places[at as usize].child], Some(at));
                        (at, hops) = (up, hops + 1);
                    }
                    assert!(hops <= nodes.ilog2() + 1, "{node} of {nodes} is {hops} from the root");
                    for child in place.down.into_iter().flatten() {
                        assert_eq!(places[child as usize].up, Some(node as u32));
                    }
                }
                assert_eq!(places.iter().filter(|place| place.up.is_none()).count(), 1);
            }
        }
    }

    #[test]
    fn children_attach_where_the_pattern_says() {
        // Four nodes of two: node 2 hangs below node 0, and has nodes 1 and 3 below it.
        let wiring = Wiring::uniform(4, 2);
        let down = |pattern, rank: u32| {
            let mut down = links(&wiring.chains[0], &[pattern; 4], 0, 8)[rank as usize].down.to_vec();
            down.sort_unstable();
            down
        };
        assert_eq!((down(TreePattern::Plain, 4), down(TreePattern::Plain, 5)), (vec![2, 5, 6], vec![]));
        assert_eq!((down(TreePattern::Split, 4), down(TreePattern::Split, 5)), (vec![5], vec![2, 6]));
        assert_eq!((down(TreePattern::Balanced, 4), down(TreePattern::Balanced, 5)), (vec![5, 6], vec![2]));
    }
}
