//! What a fabric amounts to: sizes, bisection, path lengths and path counts.

use std::fmt;

use railnet_core::{Rate, Ratio};

use crate::flow::Network;
use crate::graph::{Adjacency, FabricGraph, Vertex};
use crate::routes::Routes;

/// A fabric in a few numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many hosts.
    pub hosts: u32,
    /// How many switches in each tier, leaves first.
    pub switches_per_tier: Vec<u32>,
    /// How many links, those of hosts included.
    pub links: u32,
    /// What the first half of the hosts, by id, can send to the second half at once: see [`bisection`].
    pub bisection: Rate,
    /// How many equal-cost paths two hosts have: the fewest and the most of any pair that has one.
    pub paths: (u64, u64),
    /// The longest of the shortest paths, in links.
    pub longest_path: u32,
    /// The mean length of the shortest paths of all ordered pairs of hosts, in links.
    pub average_path: Ratio,
    /// How many ordered pairs of hosts have no path.
    pub unreachable_pairs: u64,
}

impl Summary {
    /// The mean path length as a number to print.
    pub fn average_links(&self) -> f64 {
        self.average_path.numerator() as f64 / self.average_path.denominator() as f64
    }
}

/// Measures a fabric whose graph passes [`FabricGraph::check`].
pub fn summary(graph: &FabricGraph, routes: &Routes) -> Summary {
    let mut switches_per_tier = vec![0; graph.tiers() as usize];
    for switch in &graph.switches {
        if let Some(count) = switches_per_tier.get_mut((switch.tier as usize).wrapping_sub(1)) {
            *count += 1;
        }
    }
    let paths = paths(graph, routes);
    let average_path = if paths.pairs == 0 { Ratio::ZERO } else { Ratio::new(paths.links, paths.pairs) };
    let hosts = graph.hosts.len() as u64;
    Summary {
        hosts: graph.hosts.len() as u32,
        switches_per_tier,
        links: graph.links.len() as u32,
        bisection: bisection(graph),
        paths: if paths.pairs == 0 { (0, 0) } else { (paths.fewest, paths.most) },
        longest_path: paths.longest,
        average_path,
        unreachable_pairs: hosts * hosts.saturating_sub(1) - paths.pairs,
    }
}

/// What the first half of the hosts, by id, can send to the second half at once: the largest flow between them, with
/// both directions of every link counted on their own. Of an odd number of hosts the last half has one more.
pub fn bisection(graph: &FabricGraph) -> Rate {
    let switches = graph.switches.len() as u32;
    let (source, sink) = (switches, switches + 1);
    let half = graph.hosts.len() / 2;
    // Hosts melt into their side: what a side can push into a leaf is the sum of its links there.
    let point = |vertex: Vertex| match vertex {
        Vertex::Switch(switch) => switch,
        Vertex::Host(host) if (host as usize) < half => source,
        Vertex::Host(_) => sink,
    };
    let mut network = Network::new(graph.switches.len() + 2);
    for link in &graph.links {
        let [a, b] = link.ends.map(|end| point(end.vertex));
        if a != b {
            network.join(a, b, link.rate.as_bps());
        }
    }
    Rate::from_bps(network.max_flow(source, sink))
}

/// The shortest paths of all ordered pairs of hosts, added up.
struct Paths {
    pairs: u64,
    links: u64,
    longest: u32,
    fewest: u64,
    most: u64,
}

impl Paths {
    fn add(&mut self, pairs: u64, links: u32, count: u64) {
        if pairs == 0 {
            return;
        }
        self.pairs += pairs;
        self.links += pairs * u64::from(links);
        self.longest = self.longest.max(links);
        self.fewest = self.fewest.min(count);
        self.most = self.most.max(count);
    }
}

fn paths(graph: &FabricGraph, routes: &Routes) -> Paths {
    let mut paths = Paths { pairs: 0, links: 0, longest: 0, fewest: u64::MAX, most: 0 };
    let mut hosts_on = vec![0_u64; routes.leaves().len()];
    for host in 0..graph.hosts.len() as u32 {
        match routes.column_of(host) {
            Some(column) => hosts_on[column as usize] += 1,
            None if routes.is_back_to_back(host) => paths.add(1, 1, 1),
            None => {}
        }
    }
    let adjacency = graph.adjacency();
    let mut order: Vec<u32> = (0..graph.switches.len() as u32).collect();
    for (target, there) in hosts_on.iter().enumerate() {
        let column = target as u32;
        order.sort_by_key(|switch| (routes.leaf_distance(*switch, column), *switch));
        let counts = path_counts(routes, &adjacency, &order, column);
        for (leaf, here) in routes.leaves().iter().zip(&hosts_on) {
            let pairs = if *leaf == routes.leaves()[target] { here * (here - 1) } else { here * there };
            if let Some(distance) = routes.leaf_distance(*leaf, column) {
                paths.add(pairs, u32::from(distance) + 2, counts[*leaf as usize]);
            }
        }
    }
    paths
}

/// How many equal-cost paths lead from each switch to the leaf in `column`; `order` has the nearest switches first.
fn path_counts(routes: &Routes, adjacency: &Adjacency, order: &[u32], column: u32) -> Vec<u64> {
    let leaf = routes.leaves()[column as usize];
    let mut counts = vec![0_u64; order.len()];
    counts[leaf as usize] = 1;
    for switch in order.iter().filter(|switch| **switch != leaf) {
        let ports = adjacency.of(Vertex::Switch(*switch));
        let onward = routes.hops_to_column(*switch, column).iter().filter_map(|port| {
            let place = ports.binary_search_by_key(port, |neighbour| neighbour.port).ok()?;
            match ports[place].peer.vertex {
                Vertex::Switch(peer) => Some(counts[peer as usize]),
                Vertex::Host(_) => None,
            }
        });
        counts[*switch as usize] = onward.fold(0, u64::saturating_add);
    }
    counts
}

/// A few lines for people.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tiers: Vec<_> = self.switches_per_tier.iter().rev().map(u32::to_string).collect();
        let total: u32 = self.switches_per_tier.iter().sum();
        writeln!(f, "hosts      {}", self.hosts)?;
        let detail =
            if tiers.len() > 1 { format!(" ({}, top tier first)", tiers.join(" + ")) } else { String::new() };
        writeln!(f, "switches   {total}{detail}")?;
        writeln!(f, "links      {}", self.links)?;
        writeln!(f, "bisection  {} each way between the halves of the hosts", self.bisection)?;
        let (fewest, most) = self.paths;
        let range = if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") };
        writeln!(f, "paths      {range} of equal cost between two hosts")?;
        write!(f, "length     {:.3} links on average, {} at most", self.average_links(), self.longest_path)?;
        if self.unreachable_pairs > 0 {
            write!(f, "\ncut off    {} pairs of hosts have no path", self.unreachable_pairs)?;
        }
        Ok(())
    }
}
