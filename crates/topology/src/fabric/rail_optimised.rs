//! Rails: NIC r of every server of a group on one leaf.

use super::{BuildError, LinkSpec, Place, Plan, Size, at_least_one, impossible, product};
use crate::graph::{FabricGraph, nic_name};

/// A Clos in which NIC r of all servers of a group hangs on one leaf, so that GPUs of the same number talk over a
/// single switch.
///
/// Host id = server × rails + rail. Leaf (group, rail) has id group × rails + rail; the last group may have fewer
/// servers. Spines join all leaves; or, where groups are dealt out to pods, the leaves of their pod, and cores join the
/// spines of the same number of all pods.
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
    /// A third tier, where spines do not reach all leaves.
    pub pods: Option<Pods>,
}

/// The third tier of a fabric of rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pods {
    /// How many groups share the spines of a pod.
    pub groups: u32,
    /// How many cores each spine is joined to: so many for each spine of a pod.
    pub cores: u32,
    /// How many links between each spine and each of its cores.
    pub links_per_core: u32,
}

impl RailOptimised {
    pub(super) const NAME: &'static str = "rail-optimised";

    /// One group, and one link between each leaf and each spine.
    pub fn new(nodes: u32, rails: u32, spines: u32) -> Self {
        Self { nodes, rails, nodes_per_group: nodes, spines, links_per_spine: 1, pods: None }
    }

    /// Groups of at most `group` servers in which nothing is oversubscribed, of switches with so many ports: two tiers where
    /// a spine has a port for each leaf, three where it has not. Beyond what three reach, cores have the ports that it takes.
    pub fn of_switches(nodes: u32, rails: u32, group: u32, ports: u32) -> Self {
        let nodes_per_group = (1..=group.min(nodes)).rev().find(|group| nodes.is_multiple_of(*group));
        let nodes_per_group = nodes_per_group.unwrap_or(1);
        let groups = nodes.div_ceil(nodes_per_group);
        let flat = Self { nodes_per_group, ..Self::new(nodes, rails, nodes_per_group) };
        if product(&[groups, rails]) <= u64::from(ports) {
            return flat;
        }
        // Half of a spine's ports face down.
        let groups_per_pod = (ports / 2 / rails.max(1)).max(1);
        let (up, pods) = (groups_per_pod * rails, groups.div_ceil(groups_per_pod));
        let links = (1..=up).rev().find(|links| up.is_multiple_of(*links) && links * pods <= ports);
        let links_per_core = links.unwrap_or(1);
        let pods = Pods { groups: groups_per_pod, cores: up / links_per_core, links_per_core };
        Self { pods: Some(pods), ..flat }
    }

    /// Pods, their spines, and the cores behind each of those.
    fn upper(&self, groups: u32) -> (u32, u64, u64) {
        let pods = self.pods.map_or(1, |pods| groups.div_ceil(pods.groups.max(1)));
        let cores = self.pods.map_or(0, |pods| product(&[self.spines, pods.cores]));
        (pods, product(&[pods, self.spines]), cores)
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
        if let Some(pods) = self.pods {
            at_least_one(Self::NAME, "groups_per_pod", pods.groups)?;
            at_least_one(Self::NAME, "cores", pods.cores)?;
            at_least_one(Self::NAME, "links_per_core", pods.links_per_core)?;
        }
        let hosts = product(&[self.nodes, self.rails]);
        let uplinks = product(&[self.spines, self.links_per_spine]);
        let (pods, all_spines, cores) = self.upper(groups);
        let up = self.pods.map_or(0, |pods| product(&[pods.cores, pods.links_per_core]));
        let pod_leaves = self.pods.map_or(leaves, |pods| product(&[pods.groups.min(groups), self.rails]));
        let core_ports = self.pods.map_or(0, |one| product(&[pods, one.links_per_core]));
        let down = u64::from(self.nodes_per_group.min(self.nodes));
        let size = Size {
            hosts,
            links: hosts
                .saturating_add(uplinks.saturating_mul(leaves))
                .saturating_add(all_spines.saturating_mul(up)),
            ports: uplinks
                .saturating_add(down)
                .max(pod_leaves.saturating_mul(self.links_per_spine.into()).saturating_add(up))
                .max(core_ports),
        };
        size.check(Self::NAME)?;

        let mut plan = Plan::new(links);
        let mut leaves = Vec::new();
        for id in 0..groups * self.rails {
            let (group, rail) = (id / self.rails, id % self.rails);
            leaves.push(plan.graph.switch(format!("leaf{group}.{rail}"), 1, group));
        }
        let spine_name = |pod: u32, id: u32| match self.pods {
            None => format!("spine{id}"),
            Some(_) => format!("spine{pod}.{id}"),
        };
        let spines: Vec<Vec<_>> = (0..pods)
            .map(|pod| (0..self.spines).map(|id| plan.graph.switch(spine_name(pod, id), 2, pod)).collect())
            .collect();
        let cores: Vec<_> =
            (0..cores as u32).map(|id| plan.graph.switch(format!("core{id}"), 3, 0)).collect();
        for id in 0..self.nodes * self.rails {
            let (node, rail) = (id / self.rails, id % self.rails);
            let host = plan.graph.host(nic_name(node, rail), node, rail);
            let leaf = leaves[(node / self.nodes_per_group * self.rails + rail) as usize];
            plan.link(host, leaf, Place::Edge);
        }
        let pod_of =
            |leaf: usize| self.pods.map_or(0, |pods| leaf / self.rails as usize / pods.groups as usize);
        for (id, leaf) in leaves.iter().enumerate() {
            for spine in &spines[pod_of(id)] {
                for _ in 0..self.links_per_spine {
                    plan.link(*leaf, *spine, Place::Up);
                }
            }
        }
        let Some(third) = self.pods else { return Ok(plan.finish()) };
        for pod in &spines {
            for (spine, cores) in pod.iter().zip(cores.chunks(third.cores as usize)) {
                for core in cores {
                    for _ in 0..third.links_per_core {
                        plan.link(*spine, *core, Place::Core);
                    }
                }
            }
        }
        Ok(plan.finish())
    }
}
