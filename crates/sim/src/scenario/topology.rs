//! `fabric.topology`: the shape.

use railnet_topology::FabricGraph;
use railnet_topology::fabric::{
    Dragonfly, FabricKind, FatTree, LeafSpine, LinkSpec, RailOptimised, SingleSwitch,
};
use serde::Deserialize;

use super::{Scenario, ScenarioError};

/// The shape of a fabric.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// All hosts on one switch.
    SingleSwitch {
        /// How many.
        hosts: u32,
    },
    /// Leaves that each join hosts, and spines that join the leaves.
    LeafSpine {
        /// Leaves.
        leaves: u32,
        /// Hosts of each leaf.
        hosts_per_leaf: u32,
        /// Spines.
        spines: u32,
    },
    /// A k-ary fat-tree.
    FatTree {
        /// Ports of each switch.
        k: u32,
        /// Tiers of switches: 2 or 3.
        #[serde(default = "three")]
        tiers: u8,
    },
    /// A Clos fabric whose leaves each serve one rail of a group of nodes.
    RailOptimised {
        /// Servers.
        nodes: u32,
        /// NICs of each server.
        rails: u32,
        /// Servers of a group: the ports of a leaf that go down.
        nodes_per_group: u32,
        /// Spines.
        spines: u32,
    },
    /// Groups of routers, all joined inside a group, and groups joined to each other.
    Dragonfly {
        /// Groups.
        groups: u32,
        /// Routers of a group.
        routers: u32,
        /// Hosts of a router.
        hosts: u32,
        /// Links to other groups of a router.
        global_links: u32,
    },
}

fn three() -> u8 {
    3
}

impl Topology {
    fn kind(&self) -> FabricKind {
        match *self {
            Self::SingleSwitch { hosts } => FabricKind::SingleSwitch(SingleSwitch { hosts }),
            Self::LeafSpine { leaves, hosts_per_leaf, spines } => {
                FabricKind::LeafSpine(LeafSpine::new(leaves, hosts_per_leaf, spines))
            }
            Self::FatTree { k, tiers } => FabricKind::FatTree(FatTree { tiers, ..FatTree::new(k) }),
            Self::RailOptimised { nodes, rails, nodes_per_group, spines } => {
                FabricKind::RailOptimised(RailOptimised {
                    nodes_per_group,
                    ..RailOptimised::new(nodes, rails, spines)
                })
            }
            Self::Dragonfly { groups, routers, hosts, global_links } => FabricKind::Dragonfly(Dragonfly {
                groups,
                routers_per_group: routers,
                hosts_per_router: hosts,
                global_links_per_router: global_links,
            }),
        }
    }
}

/// The fabric of a scenario.
pub fn graph(scenario: &Scenario) -> Result<FabricGraph, ScenarioError> {
    let links = LinkSpec::new(scenario.fabric.link.rate.0, scenario.fabric.link.delay.0);
    let kind = scenario.fabric.topology.kind();
    kind.build(&links).map_err(|error| ScenarioError::new(error.to_string()).at("fabric.topology"))
}
