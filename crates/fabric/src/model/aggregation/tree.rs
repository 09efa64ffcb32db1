//! Which switches reduce for a group: a tree over the shortest paths from its members' switches to one root.

use std::collections::BTreeMap;

use railnet_topology::Routes;

use super::Refused;

/// A switch of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlanNode {
    pub(super) switch: u32,
    /// Its index in the list; the root has none.
    pub(super) parent: Option<usize>,
    /// Members attached to it.
    pub(super) members: Vec<u32>,
}

/// What a tree is chosen from.
pub(super) struct Choice<'a> {
    pub(super) routes: &'a Routes,
    /// The host that stands for switch 0; those of the others follow.
    pub(super) first: u32,
    /// Groups that each switch serves.
    pub(super) used: &'a [u32],
    pub(super) contexts: u32,
    /// The neighbour of a switch by a port, if that is a switch.
    pub(super) beyond: &'a dyn Fn(u32, u16) -> Option<u32>,
    pub(super) name: &'a dyn Fn(u32) -> String,
}

impl Choice<'_> {
    /// A tree for members on these switches, children before their parents. Of the roots that are nearest to all, the one
    /// that serves the fewest groups: several groups spread over the top tier.
    pub(super) fn plan(&self, leaves: &[u32]) -> Result<Vec<PlanNode>, Refused> {
        let mut distinct = leaves.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let mut roots: Vec<_> = (0..self.used.len() as u32)
            .filter_map(|root| {
                let (depth, sum) = self.far(&distinct, root)?;
                Some((depth, sum, self.used[root as usize], root))
            })
            .collect();
        roots.sort_unstable();
        let Some(&(depth, sum, ..)) = roots.first() else { return Err(Refused::Apart) };
        let mut refusal = Refused::Apart;
        for &(.., root) in roots.iter().take_while(|root| (root.0, root.1) == (depth, sum)) {
            let tree = self.tree(&distinct, root, leaves);
            let full = tree.iter().find(|node| self.used[node.switch as usize] >= self.contexts);
            let Some(full) = full else { return Ok(tree) };
            refusal = Refused::NoContext { switch: (self.name)(full.switch), contexts: self.contexts };
        }
        Err(refusal)
    }

    /// How far a root is from the farthest of the leaves, and from all together.
    fn far(&self, leaves: &[u32], root: u32) -> Option<(u32, u32)> {
        leaves.iter().try_fold((0, 0), |(depth, sum), leaf| {
            let distance = self.routes.distance(*leaf, self.first + root)?;
            Some((distance.max(depth), sum + distance))
        })
    }

    fn tree(&self, leaves: &[u32], root: u32, members: &[u32]) -> Vec<PlanNode> {
        let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
        for leaf in leaves {
            let mut at = *leaf;
            while at != root && !parents.contains_key(&at) {
                let ports = self.routes.next_hops(at, self.first + root);
                let next = ports.iter().filter_map(|port| (self.beyond)(at, *port));
                // Where paths meet, less has to be sent on; besides, contexts are used evenly.
                let is_new = |switch: u32| switch != root && !parents.contains_key(&switch);
                let best = next.min_by_key(|next| (is_new(*next), self.used[*next as usize], *next));
                let next = best.expect("a root that can be reached has a way to it");
                parents.insert(at, next);
                at = next;
            }
        }
        let mut children: BTreeMap<u32, u32> = BTreeMap::new();
        for parent in parents.values() {
            *children.entry(*parent).or_default() += 1;
        }
        // A switch with one child and no members has nothing to add up: packets pass it as any other.
        let is_needed = |switch: u32| {
            leaves.contains(&switch)
                || switch == root
                || children.get(&switch).is_some_and(|count| *count > 1)
        };
        let mut nodes: Vec<u32> = parents.keys().copied().chain([root]).filter(|s| is_needed(*s)).collect();
        let depth = |switch: u32| self.routes.distance(switch, self.first + root).unwrap_or(0);
        nodes.sort_unstable_by_key(|switch| (std::cmp::Reverse(depth(*switch)), *switch));
        let place = |switch: u32| nodes.iter().position(|other| *other == switch);
        let parent_of = |switch: u32| {
            let mut at = *parents.get(&switch)?;
            while !is_needed(at) {
                at = parents[&at];
            }
            place(at)
        };
        nodes
            .iter()
            .map(|&switch| {
                let own = (0..members.len() as u32).filter(|member| members[*member as usize] == switch);
                PlanNode { switch, parent: parent_of(switch), members: own.collect() }
            })
            .collect()
    }
}
