//! A fabric as a graph: hosts and switches joined by links.
//!
//! This is a description only: nothing here moves. [`crate::Routes`] says where packets for a host may go next, and
//! the builders in [`crate::fabric`] make the usual shapes.

use std::collections::BTreeMap;
use std::fmt;

use railnet_core::{Rate, Span};

/// A fabric as a graph: hosts (NIC ports) and switches joined by links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricGraph {
    /// The ports of NICs, by host id.
    pub hosts: Vec<HostNode>,
    /// The switches, by switch id.
    pub switches: Vec<SwitchNode>,
    /// The cables, by link id.
    pub links: Vec<Link>,
}

/// One port of a NIC: where packets start and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// What reports call it: `host3`, `node0.nic5`.
    pub name: String,
    /// The server it sits in.
    pub node: u32,
    /// Which NIC of that server it is.
    pub rail: u32,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchNode {
    /// What reports call it: `leaf2`, `core0`.
    pub name: String,
    /// How far above the hosts it is: 1 is a leaf (top of rack).
    pub tier: u8,
    /// The pod or group it belongs to. A switch of the top tier of several serves all pods: there it is the plane,
    /// the switches that the same aggregation switches reach.
    pub pod: u32,
}

/// Either end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Vertex {
    /// A host, by its place in [`FabricGraph::hosts`].
    Host(u32),
    /// A switch, by its place in [`FabricGraph::switches`].
    Switch(u32),
}

impl Vertex {
    /// Which host it is, if it is one.
    #[inline]
    pub const fn host(self) -> Option<u32> {
        match self {
            Self::Host(host) => Some(host),
            Self::Switch(_) => None,
        }
    }
}

/// A cable: both directions carry `rate` at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What it joins.
    pub ends: [End; 2],
    /// What each direction carries.
    pub rate: Rate,
    /// How long a bit travels.
    pub delay: Span,
    /// What it is for.
    pub kind: LinkKind,
}

/// Where a link is plugged in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct End {
    /// The host or switch.
    pub vertex: Vertex,
    /// Its port; ports of a vertex count from 0 without gaps.
    pub port: u16,
}

/// What a link is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkKind {
    /// Between a host and its switch (or two hosts back to back).
    Edge,
    /// Between switches of different tiers.
    Up,
    /// Between groups of a dragonfly. Packets that crossed one travel at a raised priority, so that they never wait
    /// for packets that have not.
    Global,
    /// Between switches of one tier inside a group.
    Local,
}

/// One port of a vertex and what it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The port on this side.
    pub port: u16,
    /// The link, by its place in [`FabricGraph::links`].
    pub link: u32,
    /// The other side.
    pub peer: End,
}

/// Why a graph is not a usable fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Nobody to talk.
    #[error("the fabric has no hosts")]
    NoHosts,
    /// Two things cannot be told apart.
    #[error("the name {name:?} is given twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A link refers to something that is not there.
    #[error("link {link} ends at {vertex:?}, which does not exist")]
    UnknownVertex {
        /// The link's id.
        link: u32,
        /// What it refers to.
        vertex: Vertex,
    },
    /// A link from a vertex to itself.
    #[error("link {link} joins {name} to itself")]
    SelfLink {
        /// The link's id.
        link: u32,
        /// The vertex.
        name: String,
    },
    /// A link that carries nothing.
    #[error("the link {link} has a rate of zero")]
    ZeroRate {
        /// The link, by the names of its ends.
        link: String,
    },
    /// Two links in one port.
    #[error("port {port} of {name} has two links")]
    PortTaken {
        /// The vertex.
        name: String,
        /// The port.
        port: u16,
    },
    /// The ports in use are not 0, 1, 2, ...
    #[error("port {port} of {name} has no link, though higher ports have: number ports from 0 without gaps")]
    PortGap {
        /// The vertex.
        name: String,
        /// The first port that is missing.
        port: u16,
    },
    /// A host or switch that nothing is plugged into.
    #[error("{name} has no link")]
    Unlinked {
        /// The vertex.
        name: String,
    },
    /// A host with several links.
    #[error("host {name} has {links} links; a host is one port of a NIC (if it is a switch, list it as one)")]
    HostLinks {
        /// The host.
        name: String,
        /// How many links it has.
        links: usize,
    },
    /// The fabric is in pieces.
    #[error("there is no path from {from} to {to}")]
    Disconnected {
        /// One side.
        from: String,
        /// What cannot be reached from it.
        to: String,
    },
}

impl FabricGraph {
    /// The ports of `vertex` in ascending order with what each leads to. Looks at every link: for all vertices at
    /// once use [`FabricGraph::adjacency`].
    pub fn neighbours(&self, vertex: Vertex) -> Vec<Neighbour> {
        let mut found = Vec::new();
        for (id, link) in self.links.iter().enumerate() {
            for (here, there) in [(0, 1), (1, 0)] {
                if link.ends[here].vertex == vertex {
                    let (port, peer) = (link.ends[here].port, link.ends[there]);
                    found.push(Neighbour { port, link: id as u32, peer });
                }
            }
        }
        found.sort_by_key(|neighbour| (neighbour.port, neighbour.link));
        found
    }

    /// How many links are plugged into `vertex`. Looks at every link.
    pub fn port_count(&self, vertex: Vertex) -> usize {
        let ends = self.links.iter().flat_map(|link| &link.ends);
        ends.filter(|end| end.vertex == vertex).count()
    }

    /// The neighbours of every vertex, computed once.
    pub fn adjacency(&self) -> Adjacency {
        Adjacency::new(self)
    }

    /// The name of a vertex; `?` for one that does not exist.
    pub fn name(&self, vertex: Vertex) -> &str {
        let name = match vertex {
            Vertex::Host(host) => self.hosts.get(host as usize).map(|host| &host.name),
            Vertex::Switch(switch) => self.switches.get(switch as usize).map(|switch| &switch.name),
        };
        name.map_or("?", String::as_str)
    }

    /// The host or switch of that name.
    pub fn find(&self, name: &str) -> Option<Vertex> {
        let host = self.hosts.iter().position(|host| host.name == name);
        if let Some(host) = host {
            return Some(Vertex::Host(host as u32));
        }
        let switch = self.switches.iter().position(|switch| switch.name == name);
        switch.map(|switch| Vertex::Switch(switch as u32))
    }

    /// The host of that name.
    pub fn find_host(&self, name: &str) -> Option<u32> {
        self.hosts.iter().position(|host| host.name == name).map(|host| host as u32)
    }

    /// The switch of that name.
    pub fn find_switch(&self, name: &str) -> Option<u32> {
        self.switches.iter().position(|switch| switch.name == name).map(|switch| switch as u32)
    }

    /// The links between two vertices, in order of their ids: a fault that names a cable by its ends means these.
    pub fn links_between(&self, a: Vertex, b: Vertex) -> Vec<u32> {
        let joins = |link: &Link| {
            let [left, right] = [link.ends[0].vertex, link.ends[1].vertex];
            (left, right) == (a, b) || (left, right) == (b, a)
        };
        let joining = self.links.iter().enumerate().filter(|(_, link)| joins(link));
        joining.map(|(id, _)| id as u32).collect()
    }

    /// How a link is spoken of: `leaf0 - spine1`.
    pub fn link_name(&self, link: u32) -> String {
        match self.links.get(link as usize) {
            Some(link) => format!("{} - {}", self.name(link.ends[0].vertex), self.name(link.ends[1].vertex)),
            None => "?".to_owned(),
        }
    }

    /// Deals the hosts out to servers of `nics` NICs each, in order of their ids, and names them accordingly:
    /// host 9 of a fabric for servers of 8 is `node1.nic1`.
    #[must_use]
    pub fn with_nics_per_node(mut self, nics: u32) -> Self {
        let nics = nics.max(1);
        for (id, host) in self.hosts.iter_mut().enumerate() {
            let id = id as u32;
            (host.node, host.rail) = (id / nics, id % nics);
            host.name = nic_name(host.node, host.rail);
        }
        self
    }

    /// The same without hosts that are not wanted, and without their links. Ports are numbered anew.
    #[must_use]
    pub fn keep_hosts(&self, wanted: impl Fn(&HostNode) -> bool) -> Self {
        let mut kept = GraphBuilder::new();
        let hosts: Vec<Option<Vertex>> = self
            .hosts
            .iter()
            .map(|host| wanted(host).then(|| kept.host(host.name.clone(), host.node, host.rail)))
            .collect();
        for switch in &self.switches {
            kept.switch(switch.name.clone(), switch.tier, switch.pod);
        }
        for link in &self.links {
            let ends = link.ends.map(|end| match end.vertex {
                Vertex::Host(host) => hosts[host as usize],
                switch @ Vertex::Switch(_) => Some(switch),
            });
            if let [Some(a), Some(b)] = ends {
                kept.link(a, b, link.rate, link.delay, link.kind);
            }
        }
        kept.finish()
    }

    /// The highest tier there is; 0 without switches.
    pub fn tiers(&self) -> u8 {
        self.switches.iter().map(|switch| switch.tier).max().unwrap_or(0)
    }

    /// Whether this is a usable fabric: names are unique, links join things that exist, every host has one link,
    /// ports are dense, rates are above zero, and everything reaches everything.
    pub fn check(&self) -> Result<(), GraphError> {
        if self.hosts.is_empty() {
            return Err(GraphError::NoHosts);
        }
        self.check_names()?;
        for (id, link) in self.links.iter().enumerate() {
            self.check_link(id as u32, link)?;
        }
        let adjacency = self.adjacency();
        for vertex in self.vertices() {
            self.check_ports(vertex, adjacency.of(vertex))?;
        }
        self.check_connected(&adjacency)
    }

    /// Hosts, then switches.
    fn vertices(&self) -> impl Iterator<Item = Vertex> {
        let hosts = (0..self.hosts.len() as u32).map(Vertex::Host);
        hosts.chain((0..self.switches.len() as u32).map(Vertex::Switch))
    }

    fn check_names(&self) -> Result<(), GraphError> {
        let hosts = self.hosts.iter().map(|host| &host.name);
        let mut names: Vec<_> = hosts.chain(self.switches.iter().map(|switch| &switch.name)).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(GraphError::DuplicateName { name: pair[0].clone() }),
            None => Ok(()),
        }
    }

    fn check_link(&self, id: u32, link: &Link) -> Result<(), GraphError> {
        for end in link.ends {
            let exists = match end.vertex {
                Vertex::Host(host) => (host as usize) < self.hosts.len(),
                Vertex::Switch(switch) => (switch as usize) < self.switches.len(),
            };
            if !exists {
                return Err(GraphError::UnknownVertex { link: id, vertex: end.vertex });
            }
        }
        if link.ends[0].vertex == link.ends[1].vertex {
            let name = self.name(link.ends[0].vertex).to_owned();
            return Err(GraphError::SelfLink { link: id, name });
        }
        if link.rate == Rate::ZERO {
            return Err(GraphError::ZeroRate { link: self.link_name(id) });
        }
        Ok(())
    }

    fn check_ports(&self, vertex: Vertex, neighbours: &[Neighbour]) -> Result<(), GraphError> {
        let name = || self.name(vertex).to_owned();
        if neighbours.is_empty() {
            return Err(GraphError::Unlinked { name: name() });
        }
        if matches!(vertex, Vertex::Host(_)) && neighbours.len() > 1 {
            return Err(GraphError::HostLinks { name: name(), links: neighbours.len() });
        }
        for (expected, neighbour) in neighbours.iter().enumerate() {
            let port = neighbour.port;
            if (port as usize) < expected {
                return Err(GraphError::PortTaken { name: name(), port });
            }
            if port as usize > expected {
                return Err(GraphError::PortGap { name: name(), port: expected as u16 });
            }
        }
        Ok(())
    }

    fn check_connected(&self, adjacency: &Adjacency) -> Result<(), GraphError> {
        let start = Vertex::Host(0);
        let mut seen = vec![false; self.hosts.len() + self.switches.len()];
        seen[adjacency.index(start)] = true;
        let mut open = vec![start];
        while let Some(vertex) = open.pop() {
            for neighbour in adjacency.of(vertex) {
                let place = &mut seen[adjacency.index(neighbour.peer.vertex)];
                if !*place {
                    *place = true;
                    open.push(neighbour.peer.vertex);
                }
            }
        }
        match self.vertices().find(|vertex| !seen[adjacency.index(*vertex)]) {
            Some(missing) => Err(GraphError::Disconnected {
                from: self.name(start).to_owned(),
                to: self.name(missing).to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// The name of a NIC of a server.
pub(crate) fn nic_name(node: u32, rail: u32) -> String {
    format!("node{node}.nic{rail}")
}

/// The neighbours of every vertex, ports ascending.
#[derive(Clone, Debug)]
pub struct Adjacency {
    hosts: usize,
    /// Where the neighbours of each vertex start; hosts first, then switches, then the end.
    starts: Vec<u32>,
    neighbours: Vec<Neighbour>,
}

impl Adjacency {
    fn new(graph: &FabricGraph) -> Self {
        let vertices = graph.hosts.len() + graph.switches.len();
        let mut adjacency =
            Self { hosts: graph.hosts.len(), starts: vec![0; vertices + 1], neighbours: Vec::new() };
        for end in graph.links.iter().flat_map(|link| &link.ends) {
            let index = adjacency.index(end.vertex);
            adjacency.starts[index + 1] += 1;
        }
        for vertex in 0..vertices {
            adjacency.starts[vertex + 1] += adjacency.starts[vertex];
        }
        let blank = End { vertex: Vertex::Host(0), port: 0 };
        adjacency.neighbours = vec![Neighbour { port: 0, link: 0, peer: blank }; graph.links.len() * 2];
        let mut next = adjacency.starts.clone();
        for (id, link) in graph.links.iter().enumerate() {
            for (here, there) in [(0, 1), (1, 0)] {
                let place = &mut next[adjacency.index(link.ends[here].vertex)];
                adjacency.neighbours[*place as usize] =
                    Neighbour { port: link.ends[here].port, link: id as u32, peer: link.ends[there] };
                *place += 1;
            }
        }
        for vertex in 0..vertices {
            let range = adjacency.starts[vertex] as usize..adjacency.starts[vertex + 1] as usize;
            adjacency.neighbours[range].sort_by_key(|neighbour| (neighbour.port, neighbour.link));
        }
        adjacency
    }

    /// The ports of `vertex` in ascending order with what each leads to.
    pub fn of(&self, vertex: Vertex) -> &[Neighbour] {
        let index = self.index(vertex);
        &self.neighbours[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    fn index(&self, vertex: Vertex) -> usize {
        match vertex {
            Vertex::Host(host) => host as usize,
            Vertex::Switch(switch) => self.hosts + switch as usize,
        }
    }
}

/// Puts a graph together and hands out ports: the next free one of each side, unless one is asked for.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: FabricGraph,
    /// The next port to hand out.
    next: BTreeMap<Vertex, u32>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a host.
    pub fn host(&mut self, name: impl Into<String>, node: u32, rail: u32) -> Vertex {
        self.graph.hosts.push(HostNode { name: name.into(), node, rail });
        Vertex::Host(self.graph.hosts.len() as u32 - 1)
    }

    /// Adds a switch.
    pub fn switch(&mut self, name: impl Into<String>, tier: u8, pod: u32) -> Vertex {
        self.graph.switches.push(SwitchNode { name: name.into(), tier, pod });
        Vertex::Switch(self.graph.switches.len() as u32 - 1)
    }

    /// Adds a link at the next free port of each side. At most 65,536 links fit one vertex: the caller counts.
    pub fn link(&mut self, a: Vertex, b: Vertex, rate: Rate, delay: Span, kind: LinkKind) {
        let ends = [a, b].map(|vertex| End { vertex, port: self.next_port(vertex) });
        self.graph.links.push(Link { ends, rate, delay, kind });
    }

    /// Adds a link as it stands.
    pub fn link_at(&mut self, link: Link) {
        for end in link.ends {
            let next = self.next.entry(end.vertex).or_insert(0);
            *next = (*next).max(u32::from(end.port) + 1);
        }
        self.graph.links.push(link);
    }

    /// The graph as it is; [`FabricGraph::check`] has not been asked.
    pub fn finish(self) -> FabricGraph {
        self.graph
    }

    fn next_port(&mut self, vertex: Vertex) -> u16 {
        let next = self.next.entry(vertex).or_insert(0);
        let port = u16::try_from(*next).expect("builders count ports before they link");
        *next += 1;
        port
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Edge => "edge",
            Self::Up => "up",
            Self::Global => "global",
            Self::Local => "local",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hosts on a switch each, the switches joined twice.
    fn dumbbell() -> FabricGraph {
        let mut graph = GraphBuilder::new();
        let hosts = [graph.host("a", 0, 0), graph.host("b", 1, 0)];
        let switches = [graph.switch("left", 1, 0), graph.switch("right", 1, 0)];
        let (rate, delay) = (Rate::gbps(100), Span::from_us(1));
        for (host, switch) in hosts.into_iter().zip(switches) {
            graph.link(host, switch, rate, delay, LinkKind::Edge);
        }
        for _ in 0..2 {
            graph.link(switches[0], switches[1], rate, delay, LinkKind::Local);
        }
        graph.finish()
    }

    #[test]
    fn vertices_are_found_by_name_and_know_their_neighbours() {
        let graph = dumbbell();
        assert_eq!(graph.check(), Ok(()));
        assert_eq!(graph.find("b"), Some(Vertex::Host(1)));
        assert_eq!(graph.find("right"), Some(Vertex::Switch(1)));
        assert_eq!((graph.find("c"), graph.find_host("left"), graph.find_switch("a")), (None, None, None));
        let left = Vertex::Switch(0);
        assert_eq!(graph.port_count(left), 3);
        assert_eq!(graph.neighbours(left), graph.adjacency().of(left));
        let peers: Vec<_> = graph.neighbours(left).iter().map(|neighbour| neighbour.peer).collect();
        let right = |port| End { vertex: Vertex::Switch(1), port };
        assert_eq!(peers, [End { vertex: Vertex::Host(0), port: 0 }, right(1), right(2)]);
        assert_eq!(graph.links_between(Vertex::Switch(1), left), [2, 3]);
        assert_eq!(graph.link_name(2), "left - right");
        assert_eq!(graph.link_name(9), "?");
    }

    #[test]
    fn hosts_can_be_left_out() {
        let mut graph = GraphBuilder::new();
        let leaf = graph.switch("leaf", 1, 0);
        for host in 0..4 {
            let host = graph.host(format!("host{host}"), host, 0);
            graph.link(host, leaf, Rate::gbps(100), Span::from_us(1), LinkKind::Edge);
        }
        let graph = graph.finish().keep_hosts(|host| host.node != 1);
        assert_eq!(graph.check(), Ok(()));
        let names: Vec<&str> = graph.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["host0", "host2", "host3"]);
        assert_eq!(graph.links_between(Vertex::Host(1), leaf), [1]);
        assert_eq!(graph.neighbours(leaf)[1].peer.vertex, Vertex::Host(1));
    }

    #[test]
    fn links_to_nowhere_are_found() {
        let mut graph = dumbbell();
        graph.links[3].ends[1].vertex = Vertex::Switch(7);
        let error = graph.check().unwrap_err();
        assert_eq!(error.to_string(), "link 3 ends at Switch(7), which does not exist");
    }
}
