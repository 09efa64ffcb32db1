//! Which links a flow crosses: the path on which ECMP's hash puts its connection, or shares of all equal paths where switches balance
//! packet by packet.

use std::collections::BTreeMap;
use std::rc::Rc;

use railnet_core::{Rate, Span};
use railnet_fabric::{EcmpSeed, ForwardingTables, Routing, connection_hash};
use railnet_flow::Usage;
use railnet_topology::{Adjacency, FabricGraph, Neighbour, PathSelection, Routes, Vertex};

/// A fabric and how its switches choose among equal paths.
pub(super) struct Paths {
    pub(super) graph: FabricGraph,
    adjacency: Adjacency,
    routes: Routes,
    selection: PathSelection,
    /// Those of a subnet manager, where switches forward by LID.
    tables: Option<ForwardingTables>,
    seeds: Vec<EcmpSeed>,
    /// Shares of the links between two leaves, where switches balance.
    balanced: BTreeMap<(u32, u32), Rc<[Usage]>>,
}

/// The way of one flow.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowPath {
    pub(super) usage: Vec<Usage>,
    /// Rates and delays of the links that one of its packets crosses.
    pub(super) links: Vec<(Rate, Span)>,
}

impl Paths {
    pub(super) fn new(graph: FabricGraph, selection: PathSelection, routing: Routing, seed: u64) -> Self {
        let (adjacency, routes) = (graph.adjacency(), Routes::minimal(&graph, &[]));
        let seeds =
            (0..graph.switches.len() as u32).map(|switch| EcmpSeed::of_switch(seed, switch)).collect();
        let counts = (graph.hosts.len() as u32, graph.switches.len() as u32);
        let tables = match routing {
            Routing::Tables { lmc } => Some(ForwardingTables::new(&routes, counts, lmc)),
            _ => None,
        };
        Self { graph, adjacency, routes, selection, tables, seeds, balanced: BTreeMap::new() }
    }

    /// The resource that stands for a link in the direction away from a vertex.
    fn resource(&self, from: Vertex, link: u32) -> u32 {
        let is_second = self.graph.links[link as usize].ends[0].vertex != from;
        2 * link + u32::from(is_second)
    }

    /// Rates of all resources: both directions of each link.
    pub(super) fn capacities(&self) -> Vec<Rate> {
        self.graph.links.iter().flat_map(|link| [link.rate; 2]).collect()
    }

    /// What a resource joins, in its direction.
    pub(super) fn name(&self, resource: u32) -> String {
        let ends = self.graph.links[resource as usize / 2].ends;
        let from = resource as usize % 2;
        format!("{} → {}", self.graph.name(ends[from].vertex), self.graph.name(ends[1 - from].vertex))
    }

    /// The link at a host in one direction, and its rate.
    pub(super) fn at_host(&self, host: u32, sends: bool) -> Option<(u32, Rate)> {
        let vertex = Vertex::Host(host);
        let neighbour = self.adjacency.of(vertex).first()?;
        let away = self.resource(vertex, neighbour.link);
        let rate = self.graph.links[neighbour.link as usize].rate;
        Some((if sends { away } else { away ^ 1 }, rate))
    }

    /// The way of a connection between two hosts with this UDP source port; nothing where there is none.
    pub(super) fn path(&mut self, source: u32, target: u32, source_port: u16) -> Option<FlowPath> {
        let mut path = self.hashed(source, target, connection_hash(source, target, source_port))?;
        if self.selection == PathSelection::Balanced
            && let (Some(near), Some(far)) = (self.routes.leaf_of(source), self.routes.leaf_of(target))
            && near != far
        {
            let between = self.shares(near, far, target);
            let [first, .., last] = path.usage[..] else { return Some(path) };
            path.usage = [first].into_iter().chain(between.iter().copied()).chain([last]).collect();
        }
        Some(path)
    }

    /// The way on which hashes lead, or forwarding tables.
    fn hashed(&self, source: u32, target: u32, hash: u32) -> Option<FlowPath> {
        let mut path = FlowPath::default();
        let mut vertex = Vertex::Host(source);
        while vertex != Vertex::Host(target) {
            let ports = self.adjacency.of(vertex);
            let neighbour: &Neighbour = match vertex {
                Vertex::Host(_) => ports.first()?,
                Vertex::Switch(switch) => {
                    let hops = match &self.tables {
                        None => self.routes.next_hops(switch, target),
                        Some(tables) => tables.next_hop(switch, target, hash),
                    };
                    let port = match hops {
                        [] => return None,
                        [only] => *only,
                        _ => self.seeds[switch as usize].choose(hops, hash),
                    };
                    &ports[usize::from(port)]
                }
            };
            let link = &self.graph.links[neighbour.link as usize];
            path.usage.push(Usage::whole(self.resource(vertex, neighbour.link)));
            path.links.push((link.rate, link.delay));
            vertex = neighbour.peer.vertex;
        }
        Some(path)
    }

    /// What part of a flow crosses each link between two leaves, where each switch shares it out evenly over its next hops.
    fn shares(&mut self, near: u32, far: u32, target: u32) -> Rc<[Usage]> {
        if let Some(known) = self.balanced.get(&(near, far)) {
            return Rc::clone(known);
        }
        let mut found: BTreeMap<u32, f64> = BTreeMap::new();
        let mut front = BTreeMap::from([(near, 1.0)]);
        while !front.is_empty() {
            let mut next: BTreeMap<u32, f64> = BTreeMap::new();
            for (switch, share) in front {
                let ports = self.routes.next_hops(switch, target);
                let each = share / ports.len().max(1) as f64;
                for port in ports {
                    let vertex = Vertex::Switch(switch);
                    let neighbour = &self.adjacency.of(vertex)[usize::from(*port)];
                    *found.entry(self.resource(vertex, neighbour.link)).or_default() += each;
                    if let Vertex::Switch(peer) = neighbour.peer.vertex
                        && peer != far
                    {
                        *next.entry(peer).or_default() += each;
                    }
                }
            }
            front = next;
        }
        let shares = found.into_iter().map(|(resource, share)| Usage { resource, fraction: share as f32 });
        let shares: Rc<[Usage]> = shares.collect();
        self.balanced.insert((near, far), Rc::clone(&shares));
        shares
    }
}
