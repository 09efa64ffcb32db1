//! Slots of ranks on nodes, real or simulated.

use crate::hostfile::Host;
use crate::launch::WORLD_SIZE_MAX;

/// The slot of a rank: its node, and its number there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankSlot {
    /// The number of its node.
    pub node: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// Its number on the node.
    pub local_rank: u32,
    /// The number of ranks on its node.
    pub local_size: u32,
    /// The name of its host group: ranks of different groups never use shared memory.
    pub group: String,
}

/// Why ranks cannot be placed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// None, or too many.
    #[error("{0} ranks: 1 to {WORLD_SIZE_MAX} can be started")]
    Ranks(u32),
    /// More nodes than ranks.
    #[error("{ranks} ranks cannot fill {nodes} nodes: each needs at least one")]
    Nodes {
        /// The ranks.
        ranks: u32,
        /// The nodes.
        nodes: u32,
    },
    /// More ranks than the hosts take.
    #[error("{ranks} ranks, but the hosts take {slots}: give them more slots")]
    Slots {
        /// The ranks.
        ranks: u32,
        /// What the hosts take.
        slots: u32,
    },
}

/// Places ranks on nodes in blocks, as evenly as possible.
pub fn place_on_nodes(ranks: u32, nodes: u32) -> Result<Vec<RankSlot>, SlotError> {
    check(ranks)?;
    if nodes == 0 || nodes > ranks {
        return Err(SlotError::Nodes { ranks, nodes });
    }
    let size = |node: u32| ranks / nodes + u32::from(node < ranks % nodes);
    Ok(slots_of((0..nodes).map(|node| (format!("node{node}"), size(node)))))
}

/// Fills the slots of hosts in their order; all of them if `ranks` is `None`.
pub fn place_on_hosts(hosts: &[Host], ranks: Option<u32>) -> Result<Vec<RankSlot>, SlotError> {
    let slots = hosts.iter().fold(0_u32, |sum, host| sum.saturating_add(host.slots));
    let ranks = ranks.unwrap_or(slots);
    check(ranks)?;
    if ranks > slots {
        return Err(SlotError::Slots { ranks, slots });
    }
    let mut left = ranks;
    let filled = hosts.iter().map(|host| {
        let here = host.slots.min(left);
        left -= here;
        (host.name.clone(), here)
    });
    Ok(slots_of(filled.filter(|(_, here)| *here > 0)))
}

fn check(ranks: u32) -> Result<(), SlotError> {
    if (1..=WORLD_SIZE_MAX).contains(&ranks) { Ok(()) } else { Err(SlotError::Ranks(ranks)) }
}

fn slots_of(nodes: impl Iterator<Item = (String, u32)>) -> Vec<RankSlot> {
    let sizes: Vec<(String, u32)> = nodes.collect();
    let nodes = sizes.len() as u32;
    let on_node = |(node, (group, local_size)): (u32, (String, u32))| {
        let slot = move |local_rank| RankSlot { node, nodes, local_rank, local_size, group: group.clone() };
        (0..local_size).map(slot)
    };
    (0..).zip(sizes).flat_map(on_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(slots: &[RankSlot]) -> Vec<(u32, u32, u32)> {
        slots.iter().map(|slot| (slot.node, slot.local_rank, slot.local_size)).collect()
    }

    #[test]
    fn ranks_are_spread_in_blocks() {
        let placed = place_on_nodes(5, 2).unwrap();
        assert_eq!(nodes(&placed), [(0, 0, 3), (0, 1, 3), (0, 2, 3), (1, 0, 2), (1, 1, 2)]);
        assert_eq!((placed[4].group.as_str(), placed[4].nodes), ("node1", 2));
        assert_eq!(place_on_nodes(2, 3), Err(SlotError::Nodes { ranks: 2, nodes: 3 }));
        assert_eq!(place_on_nodes(0, 1), Err(SlotError::Ranks(0)));
        assert_eq!(place_on_nodes(u32::MAX, 1), Err(SlotError::Ranks(u32::MAX)));
    }

    #[test]
    fn hosts_are_filled_in_their_order() {
        let hosts = crate::hostfile::parse("a:2\nb:2\nc:2").unwrap();
        assert_eq!(place_on_hosts(&hosts, None).unwrap().len(), 6);
        let placed = place_on_hosts(&hosts, Some(3)).unwrap();
        assert_eq!(nodes(&placed), [(0, 0, 2), (0, 1, 2), (1, 0, 1)]);
        assert_eq!((placed[2].group.as_str(), placed[2].nodes), ("b", 2));
        assert_eq!(place_on_hosts(&hosts, Some(7)), Err(SlotError::Slots { ranks: 7, slots: 6 }));
    }
}
