//! All hosts on one switch.

use super::{BuildError, LinkSpec, Place, Plan, Size, at_least_one};
use crate::graph::FabricGraph;

/// All hosts on one switch: the smallest fabric in which packets can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleSwitch {
    /// How many hosts.
    pub hosts: u32,
}

impl SingleSwitch {
    pub(super) const NAME: &'static str = "single-switch";

    pub(super) fn build(self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        at_least_one(Self::NAME, "hosts", self.hosts)?;
        let hosts = u64::from(self.hosts);
        Size { hosts, links: hosts, ports: hosts }.check(Self::NAME)?;
        let mut plan = Plan::new(links);
        let switch = plan.graph.switch("switch0", 1, 0);
        for id in 0..self.hosts {
            let host = plan.host(id);
            plan.link(host, switch, Place::Edge);
        }
        Ok(plan.finish())
    }
}
