//! Rails: NIC r of every server of a group on one leaf.

use super::{BuildError, LinkSpec, Place, Plan, Size, at_least_one, impossible, product};
use crate::graph::{FabricGraph, nic_name};

/// A Clos in which NIC r of all servers of a group hangs on one leaf, so that GPUs of the same number talk over a
/// single switch.
///
/// Host id = server × rails + rail. Leaf (group, rail) has id group × rails + rail; the last group may have fewer
/// servers. Spines join all leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOptimised {
    /// How many servers.
    pub nodes: u32,
    /// How many NICs in each.
    pub rails: u32,
    /// How many servers share the leaves of a group.
    pub nodes_per_group: u32,
    /// How many spines.
    pub spines: u32,
    /// How many links between each leaf and each spine.
    pub links_per_spine: u32,
}

impl RailOptimised {
    pub(super) const NAME: &'static str = "rail-optimised";

    /// One group, and one link between each leaf and each spine.
    pub fn new(nodes: u32, rails: u32, spines: u32) -> Self {
        Self { nodes, rails, nodes_per_group: nodes, spines, links_per_spine: 1 }
    }

    pub(super) fn build(&self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        at_least_one(Self::NAME, "nodes", self.nodes)?;
        at_least_one(Self::NAME, "rails", self.rails)?;
        at_least_one(Self::NAME, "nodes_per_group", self.nodes_per_group)?;
        let groups = self.nodes.div_ceil(self.nodes_per_group);
        let leaves = product(&[groups, self.rails]);
        if self.spines > 0 {
            at_least_one(Self::NAME, "links_per_spine", self.links_per_spine)?;
        } else if leaves > 1 {
            let problem = format!("{leaves} leaves without a spine cannot reach each other");
            return Err(impossible(Self::NAME, problem, "use at least 1 spine"));
        }
        let hosts = product(&[self.nodes, self.rails]);
        let uplinks = product(&[self.spines, self.links_per_spine]);
        let down = u64::from(self.nodes_per_group.min(self.nodes));
        let size = Size {
            hosts,
            links: hosts.saturating_add(uplinks.saturating_mul(leaves)),
            ports: uplinks.saturating_add(down).max(leaves.saturating_mul(self.links_per_spine.into())),
        };
        size.check(Self::NAME)?;

        let mut plan = Plan::new(links);
        let mut leaves = Vec::new();
        for id in 0..groups * self.rails {
            let (group, rail) = (id / self.rails, id % self.rails);
            leaves.push(plan.graph.switch(format!("leaf{group}.{rail}"), 1, group));
        }
        let spines: Vec<_> =
            (0..self.spines).map(|id| plan.graph.switch(format!("spine{id}"), 2, 0)).collect();
        for id in 0..self.nodes * self.rails {
            let (node, rail) = (id / self.rails, id % self.rails);
            let host = plan.graph.host(nic_name(node, rail), node, rail);
            let leaf = leaves[(node / self.nodes_per_group * self.rails + rail) as usize];
            plan.link(host, leaf, Place::Edge);
        }
        for leaf in &leaves {
            for spine in &spines {
                for _ in 0..self.links_per_spine {
                    plan.link(*leaf, *spine, Place::Up);
                }
            }
        }
        Ok(plan.finish())
    }
}
