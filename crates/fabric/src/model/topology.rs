//! The shape of a network and its routes, and who its components are.

use railnet_core::{Component, Random};
use railnet_topology::{FabricGraph, Routes, Vertex};

use crate::model::config::Routing;
use crate::model::murmur3::Murmur3Hash;
use crate::model::subnet::ForwardingTables;
use crate::model::valiant::ValiantRoutes;

/// Hosts, switches and links, and the paths between them.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) graph: FabricGraph,
    /// Minimal routes, around dead links.
    pub(crate) routes: Routes,
    /// Routes by way of intermediate groups, with Valiant routing.
    pub(crate) valiant: Option<ValiantRoutes>,
    /// What the subnet manager wrote into switches, where they forward by LID.
    pub(crate) tables: Option<ForwardingTables>,
    /// The hash of another simulator, where that selects paths.
    pub(crate) murmur3: Option<Murmur3Hash>,
    /// Hosts without the NICs of switches that reduce.
    pub(crate) host_count: u32,
}

impl Topology {
    pub(crate) fn new(
        graph: FabricGraph,
        routes: Routes,
        routing: Routing,
        host_count: u32,
        seed: u64,
    ) -> Self {
        let valiant = (routing == Routing::Valiant)
            .then(|| ValiantRoutes::new(&graph, Random::stream(seed, "detours", 0).next_u32()));
        let murmur3 = (routing == Routing::Murmur3).then_some(Murmur3Hash { hosts: host_count });
        let tables = match routing {
            Routing::Tables { lmc } => Some(ForwardingTables::new(&routes, counts(&graph), lmc)),
            _ => None,
        };
        Self { graph, routes, valiant, tables, murmur3, host_count }
    }

    /// Routes around dead links from now on.
    pub(crate) fn avoid(&mut self, dead_links: &[bool]) {
        self.routes = Routes::minimal(&self.graph, dead_links);
        if let Some(valiant) = &mut self.valiant {
            valiant.avoid(&self.graph, dead_links);
        }
        if let Some(tables) = &mut self.tables {
            *tables = ForwardingTables::new(&self.routes, counts(&self.graph), tables.lmc());
        }
    }

    /// How many hosts and switches there are.
    pub(crate) fn nodes(&self) -> (u32, u32) {
        (self.host_count, self.graph.switches.len() as u32)
    }

    /// The component of a host or switch.
    pub(crate) fn component(&self, vertex: Vertex) -> Component {
        component(vertex, self.nodes())
    }

    /// The component of the network as a whole.
    pub(crate) fn environment(&self) -> Component {
        let (hosts, switches) = self.nodes();
        Component(hosts + switches)
    }

    /// The component that schedules calls for all hosts. It emits nothing.
    pub(crate) fn outside(&self) -> Component {
        Component((self.graph.hosts.len() + self.graph.switches.len()) as u32 + 1)
    }
}

/// All hosts, those of switches that reduce with them, and switches.
fn counts(graph: &FabricGraph) -> (u32, u32) {
    (graph.hosts.len() as u32, graph.switches.len() as u32)
}

/// The component of a host or switch, in a network of so many of both: hosts first, then switches, then the network as a
/// whole, then the NICs of switches that reduce.
pub(crate) fn component(vertex: Vertex, (hosts, switches): (u32, u32)) -> Component {
    match vertex {
        Vertex::Host(host) if host < hosts => Component(host),
        Vertex::Host(host) => Component(host + switches + 1),
        Vertex::Switch(switch) => Component(hosts + switch),
    }
}
