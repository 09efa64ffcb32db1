//! Leaves, each joined to every spine.

use railnet_core::Ratio;

use super::{BuildError, LinkSpec, Place, Plan, Size, at_least_one, impossible, product};
use crate::graph::FabricGraph;

/// Leaves, each joined to every spine.
///
/// It is oversubscribed when a leaf's hosts can send more than its uplinks carry: choose fewer spines or links per
/// spine, or another rate for the uplinks ([`LinkSpec::up`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSpine {
    /// How many leaves.
    pub leaves: u32,
    /// How many hosts on each leaf; host ids count leaf by leaf.
    pub hosts_per_leaf: u32,
    /// How many spines.
    pub spines: u32,
    /// How many links between each leaf and each spine.
    pub links_per_spine: u32,
}

impl LeafSpine {
    pub(super) const NAME: &'static str = "leaf-spine";

    /// One link between each leaf and each spine.
    pub fn new(leaves: u32, hosts_per_leaf: u32, spines: u32) -> Self {
        Self { leaves, hosts_per_leaf, spines, links_per_spine: 1 }
    }

    /// What a leaf's hosts can send over what its uplinks carry: 2 is "two to one". Nothing without uplinks.
    pub fn oversubscription(&self, links: &LinkSpec) -> Option<Ratio> {
        let down = product(&[self.hosts_per_leaf]).saturating_mul(links.at(Place::Edge).0.as_bps());
        let up = product(&[self.spines, self.links_per_spine]).saturating_mul(links.at(Place::Up).0.as_bps());
        (up > 0).then(|| Ratio::new(down, up))
    }

    pub(super) fn build(&self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        at_least_one(Self::NAME, "leaves", self.leaves)?;
        at_least_one(Self::NAME, "hosts_per_leaf", self.hosts_per_leaf)?;
        if self.spines > 0 {
            at_least_one(Self::NAME, "links_per_spine", self.links_per_spine)?;
        } else if self.leaves > 1 {
            let problem = format!("{} leaves without a spine cannot reach each other", self.leaves);
            return Err(impossible(Self::NAME, problem, "use at least 1 spine, or 1 leaf"));
        }
        let uplinks = product(&[self.spines, self.links_per_spine]);
        let down = product(&[self.leaves, self.links_per_spine]);
        let hosts = product(&[self.leaves, self.hosts_per_leaf]);
        let size = Size {
            hosts,
            links: hosts.saturating_add(uplinks.saturating_mul(u64::from(self.leaves))),
            ports: uplinks.saturating_add(u64::from(self.hosts_per_leaf)).max(down),
        };
        size.check(Self::NAME)?;

        let mut plan = Plan::new(links);
        let leaves: Vec<_> =
            (0..self.leaves).map(|id| plan.graph.switch(format!("leaf{id}"), 1, 0)).collect();
        let spines: Vec<_> =
            (0..self.spines).map(|id| plan.graph.switch(format!("spine{id}"), 2, 0)).collect();
        for id in 0..self.leaves * self.hosts_per_leaf {
            let host = plan.host(id);
            plan.link(host, leaves[(id / self.hosts_per_leaf) as usize], Place::Edge);
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
