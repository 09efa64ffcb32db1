//! A list of switches and links.

use std::collections::{BTreeMap, VecDeque};

use railnet_core::{Rate, Span};

use super::{BuildError, LinkSpec, Size};
use crate::graph::{End, FabricGraph, GraphBuilder, Link, LinkKind, Vertex};

/// A list of switches and links. Names that are not switches are hosts, numbered in the order in which they first
/// appear, those in `hosts` before all others; `name.nic3` is NIC 3 of the server `name`.
///
/// ```
/// use railnet_core::{Rate, Span};
/// use railnet_topology::fabric::{Explicit, ExplicitLink, FabricKind, LinkSpec};
///
/// let list = Explicit {
///     hosts: Vec::new(),
///     switches: vec!["left".into(), "right".into()],
///     links: ["a - left", "b - left", "c - right", "left - right"].map(ExplicitLink::new).to_vec(),
/// };
/// let graph = FabricKind::Explicit(list).build(&LinkSpec::new(Rate::gbps(100), Span::from_us(1)))?;
/// assert_eq!(graph.hosts[2].name, "c");
/// # Ok::<(), railnet_topology::fabric::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explicit {
    /// Hosts whose numbers do not depend on the order of the links.
    pub hosts: Vec<String>,
    /// The names of the switches.
    pub switches: Vec<String>,
    /// What is joined to what.
    pub links: Vec<ExplicitLink>,
}

/// One link of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplicitLink {
    /// `name - name`, each with `:port` after it where the port matters.
    pub between: String,
    /// Its rate, if it is not that of the fabric.
    pub rate: Option<Rate>,
    /// Its delay, if it is not that of the fabric.
    pub delay: Option<Span>,
}

impl ExplicitLink {
    /// A link with the rate and delay of the fabric.
    pub fn new(between: impl Into<String>) -> Self {
        Self { between: between.into(), rate: None, delay: None }
    }
}

impl Explicit {
    pub(super) const NAME: &'static str = "explicit";

    pub(super) fn build(&self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        let count = self.links.len() as u64;
        Size { hosts: 0, links: count, ports: 0 }.check(Self::NAME)?;
        let mut list = List::default();
        for name in &self.switches {
            // A name that is given twice is found when the graph is checked.
            let vertex = list.graph.switch(name.clone(), 0, 0);
            list.vertices.insert(name.clone(), vertex);
        }
        for name in &self.hosts {
            list.vertex(name);
        }
        let mut parsed = Vec::new();
        for link in &self.links {
            let sides = parse(&link.between)?;
            let ends = sides.map(|side| (list.vertex(&side.name), side.port));
            parsed.push(ends);
        }
        let hosts = list.vertices.len() as u64 - self.switches.len().min(list.vertices.len()) as u64;
        Size { hosts, links: count, ports: 0 }.check(Self::NAME)?;
        list.assign_ports(&self.links, &parsed, links)?;
        let mut graph = list.graph.finish();
        set_tiers(&mut graph);
        Ok(graph)
    }
}

/// One side of a link as written.
struct Side {
    name: String,
    port: Option<u16>,
}

fn parse(text: &str) -> Result<[Side; 2], BuildError> {
    let error = |problem: &str| BuildError::Link { text: text.to_owned(), problem: problem.to_owned() };
    // With spaces around the dash names may have dashes of their own.
    let Some((left, right)) = text.split_once(" - ").or_else(|| text.split_once('-')) else {
        return Err(error("there is no dash between two names"));
    };
    let side = |text: &str| -> Result<Side, BuildError> {
        let text = text.trim();
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name.trim_end(), Some(port.trim_start())),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(error("a name is missing"));
        }
        let parsed = port.map(str::parse).transpose();
        let port = parsed.map_err(|_| error(&format!("{:?} is not a port", port.unwrap_or_default())))?;
        Ok(Side { name: name.to_owned(), port })
    };
    Ok([side(left)?, side(right)?])
}

#[derive(Default)]
struct List {
    graph: GraphBuilder,
    vertices: BTreeMap<String, Vertex>,
    /// The servers that hosts sit in, by name.
    nodes: BTreeMap<String, u32>,
}

impl List {
    /// The vertex of that name; a host if it is new.
    fn vertex(&mut self, name: &str) -> Vertex {
        if let Some(vertex) = self.vertices.get(name) {
            return *vertex;
        }
        let nic = name.rsplit_once(".nic").and_then(|(node, rail)| Some((node, rail.parse::<u32>().ok()?)));
        let (node, rail) = nic.unwrap_or((name, 0));
        let next = self.nodes.len() as u32;
        let node = *self.nodes.entry(node.to_owned()).or_insert(next);
        let vertex = self.graph.host(name, node, rail);
        self.vertices.insert(name.to_owned(), vertex);
        vertex
    }

    /// Ports that are written stay; the other links take the lowest that are free.
    fn assign_ports(
        &mut self,
        links: &[ExplicitLink],
        parsed: &[[(Vertex, Option<u16>); 2]],
        spec: &LinkSpec,
    ) -> Result<(), BuildError> {
        let mut taken: BTreeMap<Vertex, Vec<u16>> = BTreeMap::new();
        for (vertex, port) in parsed.iter().flatten() {
            taken.entry(*vertex).or_default().extend(port);
        }
        for ports in taken.values_mut() {
            ports.sort_unstable();
        }
        // The next port to try on each vertex, and how many of the taken ones lie below it.
        let mut next: BTreeMap<Vertex, (u32, usize)> = BTreeMap::new();
        for (link, sides) in links.iter().zip(parsed) {
            let mut ends = [End { vertex: sides[0].0, port: 0 }; 2];
            for (end, (vertex, port)) in ends.iter_mut().zip(sides) {
                let ports = &taken[vertex];
                let (at, below) = next.entry(*vertex).or_insert((0, 0));
                let port = port.map_or_else(
                    || {
                        while ports.get(*below).is_some_and(|port| u32::from(*port) <= *at) {
                            *at = (*at).max(u32::from(ports[*below]) + 1);
                            *below += 1;
                        }
                        *at += 1;
                        u16::try_from(*at - 1).ok()
                    },
                    Some,
                );
                let problem = || "it has more than 65536 links".to_owned();
                let port =
                    port.ok_or_else(|| BuildError::Link { text: link.between.clone(), problem: problem() })?;
                *end = End { vertex: *vertex, port };
            }
            let (rate, delay) = (link.rate.unwrap_or(spec.rate), link.delay.unwrap_or(spec.delay));
            self.graph.link_at(Link { ends, rate, delay, kind: LinkKind::Edge });
        }
        Ok(())
    }
}

/// A switch is as many tiers up as it is links away from the nearest host; links are named after the tiers they join.
fn set_tiers(graph: &mut FabricGraph) {
    let adjacency = graph.adjacency();
    let mut open: VecDeque<(Vertex, u8)> =
        (0..graph.hosts.len() as u32).map(|host| (Vertex::Host(host), 0)).collect();
    while let Some((vertex, tier)) = open.pop_front() {
        for neighbour in adjacency.of(vertex) {
            if let Vertex::Switch(peer) = neighbour.peer.vertex {
                let switch = &mut graph.switches[peer as usize];
                if switch.tier == 0 {
                    switch.tier = tier.saturating_add(1);
                    open.push_back((neighbour.peer.vertex, switch.tier));
                }
            }
        }
    }
    for link in &mut graph.links {
        link.kind = match link.ends.map(|end| end.vertex) {
            [Vertex::Switch(a), Vertex::Switch(b)] => {
                let same = graph.switches[a as usize].tier == graph.switches[b as usize].tier;
                if same { LinkKind::Local } else { LinkKind::Up }
            }
            _ => LinkKind::Edge,
        };
    }
}
