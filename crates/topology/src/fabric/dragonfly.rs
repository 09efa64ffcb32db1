//! The dragonfly (Kim, Dally, Scott and Abts, ISCA 2008), with the palm-tree arrangement of its global links.

use super::{BuildError, LinkSpec, Place, Plan, Size, at_least_one, impossible, product};
use crate::graph::FabricGraph;

/// Groups of routers, all to all inside a group; global links between groups, spread evenly.
///
/// In the palm-tree arrangement the j-th global port of group i leads to group i - j - 1 (around the ring of
/// groups). With fewer groups than that needs, the ports go around again, so each pair of groups has several links;
/// what is left over after the last whole round goes to as many pairs as it reaches from both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dragonfly {
    /// How many groups: g.
    pub groups: u32,
    /// How many routers in each: a.
    pub routers_per_group: u32,
    /// How many hosts on each router: p.
    pub hosts_per_router: u32,
    /// How many global links each router has: h.
    pub global_links_per_router: u32,
}

impl Dragonfly {
    pub(super) const NAME: &'static str = "dragonfly";

    pub(super) fn build(&self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        self.check()?;
        let Self { groups, routers_per_group: routers, hosts_per_router, global_links_per_router } = *self;
        let mut plan = Plan::new(links);
        let mut switches = Vec::new();
        for id in 0..groups * routers {
            let (group, router) = (id / routers, id % routers);
            switches.push(plan.graph.switch(format!("router{group}.{router}"), 1, group));
        }
        for id in 0..groups * routers * hosts_per_router {
            let host = plan.host(id);
            plan.link(host, switches[(id / hosts_per_router) as usize], Place::Edge);
        }
        for group in switches.chunks(routers as usize) {
            for (id, router) in group.iter().enumerate() {
                for other in &group[id + 1..] {
                    plan.link(*router, *other, Place::Local);
                }
            }
        }
        let offsets = self.offsets();
        for group in 0..groups {
            for (port, offset) in offsets.iter().enumerate() {
                let other = (group + groups - offset - 1) % groups;
                if group > other {
                    continue;
                }
                let back = self.partner(&offsets, port);
                let router = |group: u32, port: usize| {
                    switches[group as usize * routers as usize + port / global_links_per_router as usize]
                };
                plan.link(router(group, port), router(other, back), Place::Global);
            }
        }
        Ok(plan.finish())
    }

    fn check(&self) -> Result<(), BuildError> {
        at_least_one(Self::NAME, "groups", self.groups)?;
        at_least_one(Self::NAME, "routers_per_group", self.routers_per_group)?;
        at_least_one(Self::NAME, "hosts_per_router", self.hosts_per_router)?;
        let routers = product(&[self.groups, self.routers_per_group]);
        let global = product(&[self.routers_per_group, self.global_links_per_router]);
        if u64::from(self.groups) > global.saturating_add(1) {
            let problem = format!(
                "{} groups, but the {} routers of a group with {} global links each reach {global} other groups",
                self.groups, self.routers_per_group, self.global_links_per_router,
            );
            let needed = (self.groups - 1).div_ceil(self.routers_per_group);
            let remedy = format!(
                "use at most {} groups, or {needed} global links per router",
                global.saturating_add(1)
            );
            return Err(impossible(Self::NAME, problem, remedy));
        }
        let hosts = routers.saturating_mul(self.hosts_per_router.into());
        let local = routers.saturating_mul(u64::from(self.routers_per_group) - 1) / 2;
        let all_global = global.saturating_mul(self.groups.into()) / 2;
        let ports = [self.routers_per_group, self.hosts_per_router, self.global_links_per_router];
        let size = Size {
            hosts,
            links: hosts.saturating_add(local).saturating_add(all_global),
            ports: ports.iter().map(|count| u64::from(*count)).sum(),
        };
        size.check(Self::NAME)
    }

    /// Which group each global port of a group leads to: port j to the group `offsets[j] + 1` before it. Within a
    /// round, the port with offset o is the other end of the one with offset g - 2 - o.
    fn offsets(&self) -> Vec<u32> {
        if self.groups < 2 {
            return Vec::new();
        }
        let round = self.groups - 1;
        let ports = self.routers_per_group * self.global_links_per_router;
        let mut offsets: Vec<u32> = (0..ports / round * round).map(|port| port % round).collect();
        let mut left = ports % round;
        let mut low = 0;
        while left >= 2 && low < round / 2 {
            offsets.extend([low, round - 1 - low]);
            left -= 2;
            low += 1;
        }
        // With an even number of groups, the group opposite is its own partner and takes a single port.
        if left == 1 && round % 2 == 1 {
            offsets.push(round / 2);
        }
        offsets
    }

    /// The port of the other group in which the link of `port` ends.
    fn partner(&self, offsets: &[u32], port: usize) -> usize {
        let round = self.groups as usize - 1;
        let start = port / round * round;
        let wanted = self.groups - 2 - offsets[port];
        let end = (start + round).min(offsets.len());
        let found = offsets[start..end].iter().position(|offset| *offset == wanted);
        start + found.expect("offsets come in pairs within a round")
    }
}
