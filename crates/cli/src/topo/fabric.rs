//! A fabric in a few lines.

use std::collections::BTreeMap;
use std::io::Write;

use railnet_core::{Rate, Span};
use railnet_sim::Topology;
use railnet_topology::{FabricGraph, Link, LinkKind, Routes, Summary, Vertex, summary};
use serde_json::{Value, json};

use crate::sim::problem::File;
use crate::words::{count, grouped, rate};

pub(super) fn print(
    file: &File,
    graph: &FabricGraph,
    as_json: bool,
    with_links: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let measures = Measures::of(graph);
    let kind = kind(&file.scenario.fabric.topology);
    if as_json {
        let mut value = measures.json(&file.path, kind);
        if with_links {
            value["link_list"] = link_list(graph);
        }
        writeln!(out, "{value}")?;
        return Ok(());
    }
    writeln!(out, "{} · {kind}\n", file.path)?;
    for (what, number, reason) in measures.lines() {
        let line = format!("  {what:<17}{number:<18} {reason}");
        writeln!(out, "{}", line.trim_end())?;
    }
    if with_links {
        print_links(graph, out)?;
    }
    Ok(())
}

/// Every link by number, with what a scenario calls its ends.
fn print_links(graph: &FabricGraph, out: &mut dyn Write) -> anyhow::Result<()> {
    let ends = |link: &Link| link.ends.map(|end| graph.name(end.vertex).to_owned());
    let width = graph.links.iter().flat_map(ends).map(|name| name.chars().count()).max().unwrap_or(0);
    writeln!(out, "\n  {:<8}{:<width$}  {:<width$}  rate, delay", "Link", "from", "to")?;
    for (number, link) in graph.links.iter().enumerate() {
        let [from, to] = ends(link);
        writeln!(out, "  {number:<8}{from:<width$}  {to:<width$}  {}, {}", link.rate, link.delay)?;
    }
    Ok(())
}

fn link_list(graph: &FabricGraph) -> Value {
    let links = graph.links.iter().enumerate();
    links
        .map(|(number, link)| {
            let [from, to] = link.ends.map(|end| graph.name(end.vertex));
            let (rate, delay) = (link.rate.as_bps(), link.delay.as_us_f64());
            json!({ "number": number, "from": from, "to": to, "rate_bps": rate, "delay_us": delay })
        })
        .collect()
}

/// What scenarios call a shape.
fn kind(topology: &Topology) -> &'static str {
    match topology {
        // A scenario that was read has rails where it said nothing.
        Topology::Unsaid => "none",
        Topology::SingleSwitch { .. } => "single-switch",
        Topology::LeafSpine { .. } => "leaf-spine",
        Topology::FatTree { .. } => "fat-tree",
        Topology::RailOptimised { .. } => "rail-optimised",
        Topology::Dragonfly { .. } => "dragonfly",
        Topology::List { .. } => "list",
    }
}

/// Switches of one tier.
struct Tier {
    /// What they are called.
    name: String,
    switches: u64,
    /// What their links to the tier below carry, and those to the same tier or above.
    down: u64,
    up: u64,
}

struct Measures {
    summary: Summary,
    /// The ports of the largest switch, and its tier.
    ports: Option<(usize, usize)>,
    nodes: u64,
    tiers: Vec<Tier>,
    edge_links: u64,
    edge_bps: u64,
    /// Links alike: (rate, delay) and how many.
    kinds: BTreeMap<(Rate, Span), u64>,
}

impl Measures {
    fn of(graph: &FabricGraph) -> Self {
        let mut tiers: Vec<Tier> =
            (0..graph.tiers()).map(|_| Tier { name: String::new(), switches: 0, down: 0, up: 0 }).collect();
        for switch in &graph.switches {
            let tier = &mut tiers[usize::from(switch.tier.max(1)) - 1];
            tier.switches += 1;
            let name = switch.name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
            if tier.switches == 1 {
                name.clone_into(&mut tier.name);
            } else if tier.name != name {
                tier.name = format!("tier-{}", switch.tier.max(1));
            }
        }
        let level = |vertex: Vertex| match vertex {
            Vertex::Host(_) => 0,
            Vertex::Switch(switch) => usize::from(graph.switches[switch as usize].tier),
        };
        let mut kinds: BTreeMap<(Rate, Span), u64> = BTreeMap::new();
        let (mut edge_links, mut edge_bps) = (0, 0_u64);
        for link in &graph.links {
            *kinds.entry((link.rate, link.delay)).or_insert(0) += 1;
            let bps = link.rate.as_bps();
            if link.kind == LinkKind::Edge {
                edge_links += 1;
                edge_bps = edge_bps.saturating_add(bps);
            }
            for (near, far) in [(0, 1), (1, 0)] {
                let (here, there) = (level(link.ends[near].vertex), level(link.ends[far].vertex));
                let Some(tier) = here.checked_sub(1).and_then(|tier| tiers.get_mut(tier)) else { continue };
                let sum = if there < here { &mut tier.down } else { &mut tier.up };
                *sum = sum.saturating_add(bps);
            }
        }
        let nodes = graph.hosts.iter().map(|host| host.node).collect::<std::collections::BTreeSet<_>>().len();
        let summary = summary(graph, &Routes::minimal(graph, &[]));
        let mut ports = vec![0; graph.switches.len()];
        for end in graph.links.iter().flat_map(|link| &link.ends) {
            if let Vertex::Switch(switch) = end.vertex {
                ports[switch as usize] += 1;
            }
        }
        let tiers_of = graph.switches.iter().map(|switch| usize::from(switch.tier));
        let ports = ports.into_iter().zip(tiers_of).max();
        Self { summary, ports, nodes: nodes as u64, tiers, edge_links, edge_bps, kinds }
    }

    /// What half of the hosts can send over what the fabric passes on between the halves.
    fn at_bisection(&self) -> f64 {
        // Of an odd number the smaller half sends.
        let hosts = f64::from(self.summary.hosts.max(1));
        let sent = self.edge_bps as f64 / hosts * f64::from(self.summary.hosts / 2);
        sent / self.summary.bisection.as_bps().max(1) as f64
    }

    fn lines(&self) -> Vec<(&'static str, String, String)> {
        let summary = &self.summary;
        let hosts = u64::from(summary.hosts);
        let tiers: Vec<String> =
            self.tiers.iter().map(|tier| format!("{} {}", grouped(tier.switches), tier.name)).collect();
        let by_tier = tiers.join(" + ") + if tiers.len() > 1 { ", leaves first" } else { "" };
        let switches: u64 = self.tiers.iter().map(|tier| tier.switches).sum();
        let kinds: Vec<String> = self
            .kinds
            .iter()
            .map(|((rate, delay), count)| match self.kinds.len() {
                1 => format!("all of {rate} and {delay}"),
                _ => format!("{} of {rate} and {delay}", grouped(*count)),
            })
            .collect();
        let links = u64::from(summary.links);
        let (fewest, most) = summary.paths;
        let paths = if fewest == most {
            grouped(fewest)
        } else {
            format!("{} to {}", grouped(fewest), grouped(most))
        };
        let mut lines = vec![
            ("Hosts", grouped(hosts), format!("NIC ports, in {}", count(self.nodes, "node", "nodes"))),
            ("Switches", grouped(switches), by_tier),
            (
                "Links",
                grouped(links),
                format!(
                    "{} to hosts, {} between switches; {}",
                    grouped(self.edge_links),
                    grouped(links - self.edge_links),
                    kinds.join(", ")
                ),
            ),
            (
                "Bisection",
                rate(summary.bisection.as_bps() as f64),
                "each way between the first and the second half of the hosts".to_owned(),
            ),
            ("Paths", paths, "of equal cost between two hosts".to_owned()),
            (
                "Path length",
                format!("{:.3} links", summary.average_links()),
                format!("on average, {} at most", count(u64::from(summary.longest_path), "link", "links")),
            ),
        ];
        if let Some((ports, tier)) = self.ports {
            let name =
                tier.checked_sub(1).and_then(|tier| self.tiers.get(tier)).map_or("", |tier| &tier.name);
            lines.insert(2, ("Ports", grouped(ports as u64), format!("of the largest switch, a {name}")));
        }
        lines.push((
            "Oversubscription",
            format!("{:.2} : 1", self.at_bisection()),
            "what half of the hosts can send, to the bisection; 1 : 1 blocks nothing".to_owned(),
        ));
        for tier in self.tiers.iter().filter(|tier| tier.up > 0 && tier.down > 0) {
            let reason = format!(
                "at {} switches: {} down, {} up",
                tier.name,
                rate(tier.down as f64),
                rate(tier.up as f64)
            );
            lines.push(("", format!("{:.2} : 1", tier.down as f64 / tier.up as f64), reason));
        }
        if summary.unreachable_pairs > 0 {
            lines.push((
                "Cut off",
                grouped(summary.unreachable_pairs),
                "pairs of hosts have no path".to_owned(),
            ));
        }
        lines
    }

    fn json(&self, path: &str, kind: &str) -> Value {
        let summary = &self.summary;
        let tiers: Vec<Value> = self
            .tiers
            .iter()
            .map(|tier| {
                let ratio = (tier.up > 0).then(|| tier.down as f64 / tier.up as f64);
                json!({
                    "name": tier.name,
                    "switches": tier.switches,
                    "down_bps": tier.down,
                    "up_bps": tier.up,
                    "oversubscription": ratio,
                })
            })
            .collect();
        json!({
            "scenario": path,
            "kind": kind,
            "hosts": summary.hosts,
            "nodes": self.nodes,
            "switches": self.tiers.iter().map(|tier| tier.switches).sum::<u64>(),
            "tiers": tiers,
            "links": summary.links,
            "host_links": self.edge_links,
            "bisection_bps": summary.bisection.as_bps(),
            "paths_min": summary.paths.0,
            "paths_max": summary.paths.1,
            "path_links_average": summary.average_links(),
            "path_links_max": summary.longest_path,
            "oversubscription": self.at_bisection(),
            "unreachable_pairs": summary.unreachable_pairs,
        })
    }
}
