//! `fabric.topology`: the shape.

use railnet_core::Ratio;
use railnet_topology::FabricGraph;
use railnet_topology::fabric::{
    Dragonfly, FabricKind, FatTree, LeafSpine, Pods, RailOptimised, SingleSwitch,
};
use serde::Deserialize;
use serde::de::Deserializer;

use super::control::RatioVisitor;
use super::fabric::{check_amount, check_rate};
use super::list::{self, HostNames, LinkEntry};
use super::{Scenario, ScenarioError};

/// The shape of a fabric.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Nothing is said: it follows from the servers, before anybody asks.
    #[default]
    #[serde(skip)]
    Unsaid,
    /// All hosts on one switch.
    SingleSwitch {
        /// Hosts on the switch.
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
        /// Links between a leaf and a spine.
        #[serde(default = "one")]
        links_per_spine: u32,
    },
    /// A k-ary fat-tree.
    FatTree {
        /// Ports of each switch.
        k: u32,
        /// Tiers of switches: 2 or 3.
        #[serde(default = "three")]
        tiers: u8,
        /// What hosts can send over what the top tier carries.
        #[serde(default)]
        oversubscription: Oversubscription,
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
        /// Links between a leaf and a spine.
        #[serde(default = "one")]
        links_per_spine: u32,
        /// Groups that share spines, where there is a third tier.
        #[serde(default)]
        groups_per_pod: Option<u32>,
        /// Cores that each spine is joined to.
        #[serde(default)]
        cores: Option<u32>,
        /// Links between a spine and a core.
        #[serde(default = "one")]
        links_per_core: u32,
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
    /// Link by link.
    List {
        /// How many hosts, or their names.
        #[serde(default)]
        hosts: Option<HostNames>,
        /// The names of the switches.
        #[serde(default)]
        switches: Vec<String>,
        /// What is joined to what.
        #[serde(default)]
        links: Vec<LinkEntry>,
        /// A file with the links, instead.
        #[serde(default)]
        file: Option<String>,
    },
}

fn three() -> u8 {
    3
}

fn one() -> u32 {
    1
}

/// `oversubscription = 2`.
#[derive(Clone, Copy, Debug)]
pub struct Oversubscription(Ratio);

impl Default for Oversubscription {
    fn default() -> Self {
        Self(Ratio::ONE)
    }
}

impl<'de> Deserialize<'de> for Oversubscription {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RatioVisitor).map(Self)
    }
}

impl Topology {
    fn kind(&self, scenario: &Scenario) -> Result<FabricKind, ScenarioError> {
        Ok(match *self {
            Self::Unsaid => return Err(ScenarioError::new("there is no fabric")),
            Self::SingleSwitch { hosts } => FabricKind::SingleSwitch(SingleSwitch { hosts }),
            Self::LeafSpine { leaves, hosts_per_leaf, spines, links_per_spine } => {
                FabricKind::LeafSpine(LeafSpine { leaves, hosts_per_leaf, spines, links_per_spine })
            }
            Self::FatTree { k, tiers, oversubscription } => {
                FabricKind::FatTree(FatTree { k, tiers, oversubscription: oversubscription.0 })
            }
            Self::RailOptimised {
                nodes,
                rails,
                nodes_per_group,
                spines,
                links_per_spine,
                groups_per_pod,
                cores,
                links_per_core,
            } => {
                let pods = match (groups_per_pod, cores) {
                    (None, None) => None,
                    (Some(groups), Some(cores)) => Some(Pods { groups, cores, links_per_core }),
                    _ => {
                        let message =
                            "a third tier has pods and cores: give `groups_per_pod` and `cores`, or neither";
                        return Err(ScenarioError::new(message));
                    }
                };
                let shape = RailOptimised { nodes, rails, nodes_per_group, spines, links_per_spine, pods };
                FabricKind::RailOptimised(shape)
            }
            Self::Dragonfly { groups, routers, hosts, global_links } => FabricKind::Dragonfly(Dragonfly {
                groups,
                routers_per_group: routers,
                hosts_per_router: hosts,
                global_links_per_router: global_links,
            }),
            Self::List { ref hosts, ref switches, ref links, ref file } => FabricKind::Explicit(match file {
                None => list::written(hosts.as_ref(), switches, links)?,
                Some(_) if hosts.is_some() || !switches.is_empty() || !links.is_empty() => {
                    let message = "the file says what there is: leave out `hosts`, `switches` and `links`";
                    return Err(ScenarioError::new(message).at("file"));
                }
                Some(path) => list::read(&scenario.file(path))?,
            }),
        })
    }
}

/// The fabric of a scenario.
pub fn graph(scenario: &Scenario) -> Result<FabricGraph, ScenarioError> {
    let within = |error: ScenarioError| error.within("fabric.topology");
    let kind = scenario.fabric.topology.kind(scenario).map_err(within)?;
    let links = scenario.fabric.link.spec();
    let mut graph = kind.build(&links).map_err(|error| within(ScenarioError::new(error.to_string())))?;
    if let Topology::RailOptimised { nodes, rails, .. } = scenario.fabric.topology {
        graph = scenario.on_rails(graph, (nodes, rails))?;
    }
    scenario.narrow(&mut graph);
    scenario.check_lids(graph.hosts.len(), graph.switches.len())?;
    for (number, link) in graph.links.iter().enumerate() {
        check_rate(link.rate).and_then(|()| check_amount(link.rate, link.delay)).map_err(|error| {
            let message = format!("the link {}: {}", graph.link_name(number as u32), error.message);
            within(ScenarioError::new(message))
        })?;
    }
    Ok(graph)
}
