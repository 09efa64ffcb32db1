//! How long the links of a fabric are busy with a set of demands: the mean load of every link, and what the hash of ECMP
//! adds to it.
//!
//! All hosts of a leaf share their paths beyond it, so demands are summed up by pairs of leaves, and the cost does not grow
//! with the number of connections.

use std::collections::BTreeMap;

use railnet_core::{Rate, Span};

use crate::graph::{Adjacency, FabricGraph, Vertex};
use crate::routes::Routes;

/// How switches choose among equal-cost paths, as far as the mean load goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathSelection {
    /// A hash pins each connection to a path: some links get more connections than others.
    Hashed,
    /// Packets or bursts go where there is room: equal paths carry equal loads.
    Balanced,
}

/// A fabric with its routes, ready to be loaded with demands.
#[derive(Clone, Debug)]
pub struct LoadedFabric {
    graph: FabricGraph,
    adjacency: Adjacency,
    routes: Routes,
    selection: PathSelection,
    /// A host on each leaf: routes to a leaf are those to its hosts.
    host_on: BTreeMap<u32, u32>,
}

/// What is sent between the hosts of a fabric at the same time. Bytes are bytes on the wire.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    /// Bytes out of and into each host.
    hosts: BTreeMap<u32, [f64; 2]>,
    /// Bytes and connections from leaf to leaf, as they were added.
    leaves: Vec<((u32, u32), Flows)>,
}

/// Connections that share their ends.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Flows {
    bytes: f64,
    connections: f64,
}

impl Flows {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.connections += other.connections;
    }

    fn times(self, share: f64) -> Self {
        Self { bytes: self.bytes * share, connections: self.connections * share }
    }
}

/// The link that takes longest.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Bottleneck {
    /// Seconds until it has carried all, hash collisions included.
    pub seconds: f64,
    /// The same if equal paths carried equal loads.
    pub seconds_balanced: f64,
    /// What it joins, in the direction of the load; empty where nothing is sent.
    pub link: String,
}

/// Load of one direction of a link between switches.
#[derive(Clone, Copy, Default)]
struct LinkLoad {
    /// What crosses it in the mean.
    mean: Flows,
    /// Connections that could have crossed it.
    candidates: f64,
}

impl LoadedFabric {
    /// A fabric that passes [`FabricGraph::check`].
    pub fn new(graph: FabricGraph, selection: PathSelection) -> Self {
        let (adjacency, routes) = (graph.adjacency(), Routes::minimal(&graph, &[]));
        let mut host_on = BTreeMap::new();
        for host in 0..graph.hosts.len() as u32 {
            if let Some(leaf) = routes.leaf_of(host) {
                host_on.entry(leaf).or_insert(host);
            }
        }
        Self { graph, adjacency, routes, selection, host_on }
    }

    /// The graph.
    pub const fn graph(&self) -> &FabricGraph {
        &self.graph
    }

    /// Propagation of all links of a shortest path, and how many there are; nothing where there is none.
    pub fn path(&self, from: u32, to: u32) -> Option<(Span, u32)> {
        let mut vertex = Vertex::Host(from);
        let (mut delay, mut links) = (Span::ZERO, 0);
        while vertex != Vertex::Host(to) {
            let ports = self.adjacency.of(vertex);
            let neighbour = match vertex {
                Vertex::Host(_) => ports.first()?,
                Vertex::Switch(switch) => &ports[usize::from(*self.routes.next_hops(switch, to).first()?)],
            };
            delay += self.graph.links[neighbour.link as usize].delay;
            links += 1;
            vertex = neighbour.peer.vertex;
        }
        Some((delay, links))
    }

    /// Adds what a host sends to another over so many connections.
    pub fn add(&self, demands: &mut Demands, [from, to]: [u32; 2], bytes: f64, connections: f64) {
        demands.hosts.entry(from).or_default()[0] += bytes;
        demands.hosts.entry(to).or_default()[1] += bytes;
        if let (Some(a), Some(b)) = (self.routes.leaf_of(from), self.routes.leaf_of(to))
            && a != b
        {
            demands.leaves.push(((a, b), Flows { bytes, connections }));
        }
    }

    /// Adds what a host sends or receives, wherever beyond its switch that comes from or goes to.
    pub fn add_at_host(&self, demands: &mut Demands, host: u32, sends: bool, bytes: f64) {
        demands.hosts.entry(host).or_default()[usize::from(!sends)] += bytes;
    }

    /// What the link of a host carries each way; nothing where it has none.
    pub fn host_rate(&self, host: u32) -> Option<Rate> {
        let neighbour = self.adjacency.of(Vertex::Host(host)).first()?;
        Some(self.graph.links[neighbour.link as usize].rate)
    }

    /// The link that is busy longest with these demands.
    pub fn bottleneck(&self, demands: &Demands) -> Bottleneck {
        let mut worst = Bottleneck::default();
        for (host, both) in &demands.hosts {
            let Some(neighbour) = self.adjacency.of(Vertex::Host(*host)).first() else { continue };
            let rate = self.bytes_per_second(neighbour.link);
            for (direction, bytes) in both.iter().enumerate() {
                let seconds = bytes / rate;
                if seconds > worst.seconds {
                    let ends = [self.graph.name(Vertex::Host(*host)), self.graph.name(neighbour.peer.vertex)];
                    let link = format!("{} → {}", ends[direction], ends[1 - direction]);
                    worst = Bottleneck { seconds, seconds_balanced: seconds, link };
                }
            }
        }
        for class in self.classes(&self.loads(demands)) {
            let found = self.of_class(&class);
            if found.seconds > worst.seconds {
                worst = found;
            }
        }
        worst
    }

    fn bytes_per_second(&self, link: u32) -> f64 {
        self.graph.links[link as usize].rate.as_bps() as f64 / 8.0
    }

    /// The load of both directions of each link between switches, link by link: what goes to a leaf is split evenly at every switch
    /// with several next hops.
    fn loads(&self, demands: &Demands) -> Vec<LinkLoad> {
        let mut loads = vec![LinkLoad::default(); 2 * self.graph.links.len()];
        // Sorted by pair, stable: sums do not depend on anything else.
        let mut leaves = demands.leaves.clone();
        leaves.sort_by_key(|(pair, _)| *pair);
        let pairs = leaves.chunk_by(|(one, _), (other, _)| one == other);
        let summed = pairs.map(|same| {
            let mut flows = Flows::default();
            for (_, more) in same {
                flows.add(*more);
            }
            (same[0].0, flows)
        });
        for ((from, to), flows) in summed {
            let Some(host) = self.host_on.get(&to) else { continue };
            let mut front = BTreeMap::from([(from, 1.0)]);
            while !front.is_empty() {
                let mut next: BTreeMap<u32, f64> = BTreeMap::new();
                for (switch, share) in front {
                    let ports = self.routes.next_hops(switch, *host);
                    let each = share / ports.len().max(1) as f64;
                    for port in ports {
                        let neighbour = &self.adjacency.of(Vertex::Switch(switch))[usize::from(*port)];
                        let Vertex::Switch(peer) = neighbour.peer.vertex else { continue };
                        let ends = self.graph.links[neighbour.link as usize].ends;
                        let direction = usize::from(ends[0].vertex != Vertex::Switch(switch));
                        let load = &mut loads[2 * neighbour.link as usize + direction];
                        load.mean.add(flows.times(each));
                        load.candidates += flows.connections;
                        if peer != to {
                            *next.entry(peer).or_default() += each;
                        }
                    }
                }
                front = next;
            }
        }
        loads
    }

    /// Links that are loaded alike, by how long they are busy in the mean and how many connections could cross each.
    fn classes(&self, loads: &[LinkLoad]) -> Vec<Class> {
        let mut classes: BTreeMap<[u64; 3], Class> = BTreeMap::new();
        for (place, load) in loads.iter().enumerate().filter(|(_, load)| load.candidates > 0.0) {
            let (link, direction) = (place as u32 / 2, place as u8 & 1);
            let seconds = load.mean.bytes / self.bytes_per_second(link);
            // Alike to three digits: sums of shares differ in the last bits.
            let alike = |value: f64| (value * 1e3).round() as u64;
            let key = [alike(seconds * 1e9), alike(load.candidates), alike(load.mean.connections)];
            let class =
                classes.entry(key).or_insert(Class { link, direction, load: *load, seconds, links: 0 });
            class.links += 1;
        }
        classes.into_values().collect()
    }

    fn of_class(&self, class: &Class) -> Bottleneck {
        let Class { load, seconds, links, .. } = class;
        let mean = load.mean.connections;
        let is_hashed = self.selection == PathSelection::Hashed && load.candidates > mean + 1e-9;
        let times = if is_hashed && mean > 0.0 {
            most_hashed(load.candidates.round().max(1.0) as u64, mean / load.candidates, *links) / mean
        } else {
            1.0
        };
        let ends = self.graph.links[class.link as usize].ends;
        let [from, to] = [usize::from(class.direction), 1 - usize::from(class.direction)];
        let name = |end: usize| self.graph.name(ends[end].vertex);
        Bottleneck {
            seconds: seconds * times.max(1.0),
            seconds_balanced: *seconds,
            link: format!("{} → {}", name(from), name(to)),
        }
    }
}

/// Links that are loaded alike.
struct Class {
    link: u32,
    direction: u8,
    load: LinkLoad,
    seconds: f64,
    links: u32,
}

/// The most connections that any of `links` links gets, in the mean, where each of `connections` crosses a link with
/// probability `share`: the maximum of as many binomial variables, taken to be independent.
fn most_hashed(connections: u64, share: f64, links: u32) -> f64 {
    // So many are summed up exactly; the powers below stay far from the smallest number there is.
    const MOST: u64 = 512;
    if connections > MOST {
        // What the fullest link has beyond the mean grows with the square root of the connections.
        let excess = most_hashed(MOST, share, links) - MOST as f64 * share;
        return connections as f64 * share + excess * (connections as f64 / MOST as f64).sqrt();
    }
    let (odds, mut probability) = (share / (1.0 - share), power(1.0 - share, connections));
    if probability <= 0.0 {
        return connections as f64 * share;
    }
    let (mut cumulative, mut expected) = (0.0, 0.0);
    for count in 0..=connections {
        cumulative = (cumulative + probability).min(1.0);
        // E[max] is the sum over counts of the probability that the maximum is larger.
        let larger = 1.0 - power(cumulative, u64::from(links));
        expected += larger;
        if larger < 1e-9 && count as f64 > connections as f64 * share {
            break;
        }
        probability *= odds * (connections - count) as f64 / (count + 1) as f64;
    }
    expected
}

/// A whole power, by squaring: the same digits on every platform.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{FabricKind, LeafSpine, LinkSpec};

    fn leaf_spine(spines: u32, selection: PathSelection) -> LoadedFabric {
        let links = LinkSpec::new(Rate::gbps(80), Span::from_us(1));
        let graph = FabricKind::LeafSpine(LeafSpine::new(2, 4, spines)).build(&links).unwrap();
        LoadedFabric::new(graph, selection)
    }

    /// Every host of the first leaf sends a gigabyte to one of the second.
    fn across(fabric: &LoadedFabric) -> Bottleneck {
        let mut demands = Demands::default();
        for host in 0..4 {
            fabric.add(&mut demands, [host, host + 4], 1e9, 1.0);
        }
        fabric.bottleneck(&demands)
    }

    #[test]
    fn the_narrowest_tier_decides() {
        // 10 GB/s a link: 0.1 s at the hosts; one uplink carries all four, four carry one each.
        let balanced = PathSelection::Balanced;
        let one = across(&leaf_spine(1, balanced));
        assert!((one.seconds - 0.4).abs() < 1e-9, "{one:?}");
        assert_eq!(one.link, "leaf0 → spine0");
        let four = across(&leaf_spine(4, balanced));
        assert!((four.seconds - 0.1).abs() < 1e-9, "{four:?}");
    }

    #[test]
    fn a_hash_puts_several_connections_on_one_link() {
        let hashed = across(&leaf_spine(4, PathSelection::Hashed));
        // Four connections over four links: the fullest of four has 2.1 in the mean, and so has one of the links down.
        assert!((0.19..0.27).contains(&hashed.seconds), "{hashed:?}");
        assert!((hashed.seconds_balanced - 0.1).abs() < 1e-9, "{hashed:?}");
        // With one path there is nothing to hash.
        let one = across(&leaf_spine(1, PathSelection::Hashed));
        assert!((one.seconds - 0.4).abs() < 1e-9, "{one:?}");
    }

    #[test]
    fn many_connections_even_out() {
        let few = most_hashed(16, 0.25, 8) / 4.0;
        let many = most_hashed(4_000, 0.25, 8) / 1_000.0;
        let more = most_hashed(400_000, 0.25, 8) / 100_000.0;
        assert!(few > 1.5 && many < 1.06 && more < 1.01, "{few} {many} {more}");
        assert!(few > many && many > more && more >= 1.0);
    }

    #[test]
    fn a_path_has_its_links_and_their_delay() {
        let fabric = leaf_spine(2, PathSelection::Hashed);
        assert_eq!(fabric.path(0, 1), Some((Span::from_us(2), 2)));
        assert_eq!(fabric.path(0, 5), Some((Span::from_us(4), 4)));
    }
}
