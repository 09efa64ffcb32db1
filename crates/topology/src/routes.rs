//! Where packets may go next: for every switch and every destination host, the ports of all shortest paths.
//!
//! Hosts on one leaf share their paths up to that leaf, so the table has a column per leaf, not per host, and the
//! sets of ports, of which there are few, are kept once. Everything is in ascending order and depends on the graph
//! alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::graph::{Adjacency, FabricGraph, LinkKind, Neighbour, Vertex};

/// No path.
const FAR: u32 = u32::MAX;
/// What a global link of a dragonfly costs: more than any detour inside groups.
const GLOBAL_COST: u32 = 1 << 16;
/// The part of a cost that counts links.
const HOPS_MASK: u32 = GLOBAL_COST - 1;
/// The group of ports with nothing in it.
const NOWHERE: u32 = 0;

/// The equal-cost next hops of every switch towards every host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Where each host is plugged in; nothing where its link is dead.
    attachments: Vec<Option<Attachment>>,
    /// The switches that hosts are plugged into, ascending: the columns of the table.
    leaves: Vec<u32>,
    /// `[switch][column]`: which group of ports leads there.
    table: Vec<u32>,
    /// `[switch][column]`: links from the switch to the leaf.
    distances: Vec<u16>,
    /// The distinct sets of ports, each ascending.
    groups: Vec<Vec<u16>>,
}

/// The equal-cost next hops of one switch.
#[derive(Clone, Copy, Debug)]
pub struct RoutesOf<'a> {
    routes: &'a Routes,
    switch: u32,
    /// By column.
    groups: &'a [u32],
}

impl<'a> RoutesOf<'a> {
    /// The ports that lie on a shortest path to `host`, ascending; empty where there is none.
    #[inline]
    pub fn next_hops(&self, host: u32) -> &'a [u16] {
        match &self.routes.attachments[host as usize] {
            Some(Attachment::Switch { leaf, port, .. }) if *leaf == self.switch => port,
            Some(Attachment::Switch { column, .. }) => {
                &self.routes.groups[self.groups[*column as usize] as usize]
            }
            _ => &[],
        }
    }
}

/// What the other end of a host's link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attachment {
    /// A switch: its id, the column it has, and the port as a slice to hand out.
    Switch { leaf: u32, column: u32, port: [u16; 1] },
    /// Another host, back to back.
    Host(u32),
}

impl Routes {
    /// All shortest paths by number of links. The graph passes [`FabricGraph::check`].
    pub fn shortest(graph: &FabricGraph) -> Self {
        Self::without(graph, &[])
    }

    /// All shortest paths that avoid the links marked in `dead_links`, by link id; links beyond its end are alive.
    pub fn without(graph: &FabricGraph, dead_links: &[bool]) -> Self {
        Self::compute(graph, dead_links, |_| 1)
    }

    /// The paths that switches use: those with the fewest global links, and of those all shortest. In a dragonfly a path
    /// over a third group may have fewer links, but takes bandwidth that belongs to others; elsewhere there are no global
    /// links. Links marked in `dead_links` are avoided.
    pub fn minimal(graph: &FabricGraph, dead_links: &[bool]) -> Self {
        Self::compute(graph, dead_links, |kind| if kind == LinkKind::Global { GLOBAL_COST + 1 } else { 1 })
    }

    /// The ports of `switch` that lie on a shortest path to `host`, ascending; empty where there is none.
    #[inline]
    pub fn next_hops(&self, switch: u32, host: u32) -> &[u16] {
        self.of(switch).next_hops(host)
    }

    /// The same for one switch and many hosts.
    #[inline]
    pub fn of(&self, switch: u32) -> RoutesOf<'_> {
        let columns = self.leaves.len();
        let row = switch as usize * columns;
        RoutesOf { routes: self, switch, groups: &self.table[row..row + columns] }
    }

    /// How many links a packet at `switch` still has to cross to reach `host`.
    pub fn distance(&self, switch: u32, host: u32) -> Option<u32> {
        match self.attachments[host as usize]? {
            Attachment::Switch { column, .. } => Some(u32::from(self.leaf_distance(switch, column)?) + 1),
            Attachment::Host(_) => None,
        }
    }

    /// How many links lie between two hosts; 0 from a host to itself.
    pub fn path_length(&self, source: u32, target: u32) -> Option<u32> {
        if source == target {
            return Some(0);
        }
        match self.attachments[source as usize]? {
            Attachment::Switch { leaf, .. } => Some(self.distance(leaf, target)? + 1),
            Attachment::Host(peer) => (peer == target).then_some(1),
        }
    }

    /// The switch that a host is plugged into; nothing where its link is dead or leads to another host.
    pub fn leaf_of(&self, host: u32) -> Option<u32> {
        match self.attachments[host as usize]? {
            Attachment::Switch { leaf, .. } => Some(leaf),
            Attachment::Host(_) => None,
        }
    }

    /// The distinct sets of ports in use.
    pub fn groups(&self) -> &[Vec<u16>] {
        &self.groups
    }

    /// Which of [`Routes::groups`] `switch` uses for `host`; nothing where the host hangs on that very switch or
    /// cannot be reached.
    pub fn group(&self, switch: u32, host: u32) -> Option<u32> {
        match self.attachments[host as usize]? {
            Attachment::Switch { leaf, column, .. } if leaf != switch => {
                Some(self.table[self.place(switch, column)]).filter(|group| *group != NOWHERE)
            }
            _ => None,
        }
    }

    /// The switches that hosts hang on, ascending.
    pub(crate) fn leaves(&self) -> &[u32] {
        &self.leaves
    }

    /// The ports of `switch` towards the leaf in `column`.
    pub(crate) fn hops_to_column(&self, switch: u32, column: u32) -> &[u16] {
        &self.groups[self.table[self.place(switch, column)] as usize]
    }

    /// Links from `switch` to the leaf in `column`.
    pub(crate) fn leaf_distance(&self, switch: u32, column: u32) -> Option<u16> {
        Some(self.distances[self.place(switch, column)]).filter(|distance| *distance != u16::MAX)
    }

    /// The column of the leaf a host hangs on.
    pub(crate) fn column_of(&self, host: u32) -> Option<u32> {
        match self.attachments[host as usize]? {
            Attachment::Switch { column, .. } => Some(column),
            Attachment::Host(_) => None,
        }
    }

    /// Whether the link of a host leads to another host.
    pub(crate) fn is_back_to_back(&self, host: u32) -> bool {
        matches!(self.attachments[host as usize], Some(Attachment::Host(_)))
    }

    fn place(&self, switch: u32, column: u32) -> usize {
        switch as usize * self.leaves.len() + column as usize
    }

    fn compute(graph: &FabricGraph, dead_links: &[bool], cost: impl Fn(LinkKind) -> u32) -> Self {
        let adjacency = graph.adjacency();
        let weighted = graph.links.iter().any(|link| cost(link.kind) != 1);
        let alive = Alive { graph, adjacency: &adjacency, dead_links, weighted };
        let mut routes = Self::attached(&alive);
        let mut groups = GroupTable::new(graph.switches.len());
        let columns = routes.leaves.len();
        routes.table = vec![NOWHERE; graph.switches.len() * columns];
        routes.distances = vec![u16::MAX; graph.switches.len() * columns];
        for (column, leaf) in routes.leaves.iter().enumerate() {
            let costs = alive.costs(&[*leaf], &cost);
            for switch in 0..graph.switches.len() {
                if costs[switch] == FAR {
                    continue;
                }
                let place = switch * columns + column;
                routes.distances[place] = hops(costs[switch]);
                if switch as u32 != *leaf {
                    routes.table[place] = groups.of(switch, &alive, &costs, &cost);
                }
            }
        }
        routes.groups = groups.sets;
        routes
    }

    /// Where the hosts hang; the tables are still empty.
    fn attached(alive: &Alive<'_>) -> Self {
        let graph = alive.graph;
        let mut columns = vec![None; graph.switches.len()];
        let hosts = 0..graph.hosts.len() as u32;
        let ends: Vec<_> = hosts.map(|host| alive.neighbours(Vertex::Host(host)).next()).collect();
        for end in ends.iter().flatten() {
            if let Vertex::Switch(leaf) = end.peer.vertex {
                columns[leaf as usize] = Some(0);
            }
        }
        let mut leaves = Vec::new();
        for (switch, column) in columns.iter_mut().enumerate() {
            if let Some(column) = column {
                *column = leaves.len() as u32;
                leaves.push(switch as u32);
            }
        }
        let attach = |end: &&Neighbour| match end.peer.vertex {
            Vertex::Switch(leaf) => {
                let column = columns[leaf as usize].expect("every leaf was given a column above");
                Attachment::Switch { leaf, column, port: [end.peer.port] }
            }
            Vertex::Host(host) => Attachment::Host(host),
        };
        let attachments = ends.iter().map(|end| end.as_ref().map(attach)).collect();
        Self { attachments, leaves, table: Vec::new(), distances: Vec::new(), groups: Vec::new() }
    }
}

fn hops(cost: u32) -> u16 {
    // Costs stay below the mask: a path crosses no switch twice, and no graph this large is built.
    (cost & HOPS_MASK).min(u32::from(u16::MAX) - 1) as u16
}

/// The part of a graph whose links work.
struct Alive<'a> {
    graph: &'a FabricGraph,
    adjacency: &'a Adjacency,
    dead_links: &'a [bool],
    /// Whether some links cost more than others.
    weighted: bool,
}

impl Alive<'_> {
    fn neighbours(&self, vertex: Vertex) -> impl Iterator<Item = &Neighbour> {
        let alive = |link: u32| !self.dead_links.get(link as usize).copied().unwrap_or(false);
        self.adjacency.of(vertex).iter().filter(move |neighbour| alive(neighbour.link))
    }

    /// The ports of a switch that lead to switches: (port, switch, kind of link).
    fn switch_ports(&self, switch: u32) -> impl Iterator<Item = (u16, u32, LinkKind)> {
        self.neighbours(Vertex::Switch(switch)).filter_map(|neighbour| match neighbour.peer.vertex {
            Vertex::Switch(peer) => {
                Some((neighbour.port, peer, self.graph.links[neighbour.link as usize].kind))
            }
            Vertex::Host(_) => None,
        })
    }

    /// What each switch pays to reach the nearest of `targets`.
    fn costs(&self, targets: &[u32], cost: &impl Fn(LinkKind) -> u32) -> Vec<u32> {
        let mut costs = vec![FAR; self.graph.switches.len()];
        for target in targets {
            costs[*target as usize] = 0;
        }
        if self.weighted {
            self.walk_weighted(targets, &mut costs, cost);
        } else {
            self.walk(targets, &mut costs);
        }
        costs
    }

    /// Breadth first: every link costs one.
    fn walk(&self, targets: &[u32], costs: &mut [u32]) {
        let mut open: VecDeque<u32> = targets.iter().copied().collect();
        while let Some(switch) = open.pop_front() {
            let next = costs[switch as usize] + 1;
            for (_, peer, _) in self.switch_ports(switch) {
                if costs[peer as usize] == FAR {
                    costs[peer as usize] = next;
                    open.push_back(peer);
                }
            }
        }
    }

    /// Dijkstra.
    fn walk_weighted(&self, targets: &[u32], costs: &mut [u32], cost: &impl Fn(LinkKind) -> u32) {
        let mut open: BinaryHeap<_> = targets.iter().map(|target| Reverse((0_u32, *target))).collect();
        while let Some(Reverse((paid, switch))) = open.pop() {
            if paid > costs[switch as usize] {
                continue;
            }
            for (_, peer, kind) in self.switch_ports(switch) {
                let total = paid.saturating_add(cost(kind));
                if total < costs[peer as usize] {
                    costs[peer as usize] = total;
                    open.push(Reverse((total, peer)));
                }
            }
        }
    }
}

/// The distinct sets of ports, found again by what is in them.
struct GroupTable {
    sets: Vec<Vec<u16>>,
    ids: BTreeMap<Vec<u16>, u32>,
    /// The group each switch used last: the next leaf usually needs the same.
    last: Vec<u32>,
    ports: Vec<u16>,
}

impl GroupTable {
    fn new(switches: usize) -> Self {
        let ids = BTreeMap::from([(Vec::new(), NOWHERE)]);
        Self { sets: vec![Vec::new()], ids, last: vec![NOWHERE; switches], ports: Vec::new() }
    }

    /// The group of the ports of `switch` that lie on a cheapest path.
    fn of(
        &mut self,
        switch: usize,
        alive: &Alive<'_>,
        costs: &[u32],
        cost: &impl Fn(LinkKind) -> u32,
    ) -> u32 {
        self.ports.clear();
        for (port, peer, kind) in alive.switch_ports(switch as u32) {
            if costs[peer as usize] != FAR && costs[peer as usize] + cost(kind) == costs[switch] {
                self.ports.push(port);
            }
        }
        let last = self.last[switch];
        if self.sets[last as usize] == self.ports {
            return last;
        }
        let id = match self.ids.get(&self.ports) {
            Some(id) => *id,
            None => {
                let id = self.sets.len() as u32;
                self.sets.push(self.ports.clone());
                self.ids.insert(self.ports.clone(), id);
                id
            }
        };
        self.last[switch] = id;
        id
    }
}

/// Routes of a dragonfly: minimal ones, and what Valiant's detour over a random group needs.
///
/// A minimal path crosses at most one global link where the graph allows it (a path over two can have fewer links,
/// but would take bandwidth from other groups). A Valiant path picks an intermediate group, follows
/// [`DragonflyRoutes::toward_group`] until it is there, then the minimal path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DragonflyRoutes {
    /// The minimal paths.
    pub minimal: Routes,
    /// How many groups there are.
    pub groups: u32,
    /// The group of each switch.
    pub group_of_switch: Vec<u32>,
    /// The group of each host.
    pub group_of_host: Vec<u32>,
    /// Whether each link is global. A packet that crossed one moves up a priority.
    pub is_global: Vec<bool>,
    /// `[switch][group]`.
    toward: Vec<u32>,
    port_sets: Vec<Vec<u16>>,
}

impl DragonflyRoutes {
    /// The routes of a fabric whose groups are the pods of its switches.
    pub fn new(graph: &FabricGraph) -> Self {
        Self::without(graph, &[])
    }

    /// The routes that avoid the links marked in `dead_links`.
    pub fn without(graph: &FabricGraph, dead_links: &[bool]) -> Self {
        let minimal = Routes::minimal(graph, dead_links);
        let group_of_switch: Vec<u32> = graph.switches.iter().map(|switch| switch.pod).collect();
        let groups = group_of_switch.iter().max().map_or(0, |group| group + 1);
        let adjacency = graph.adjacency();
        let group_of_host = (0..graph.hosts.len() as u32).map(|host| {
            match adjacency.of(Vertex::Host(host)).first().map(|neighbour| neighbour.peer.vertex) {
                Some(Vertex::Switch(leaf)) => group_of_switch[leaf as usize],
                _ => 0,
            }
        });
        let group_of_host = group_of_host.collect();
        let alive = Alive { graph, adjacency: &adjacency, dead_links, weighted: true };
        let cost = |kind| if kind == LinkKind::Global { GLOBAL_COST + 1 } else { 1 };
        let mut table = GroupTable::new(graph.switches.len());
        let mut toward = vec![NOWHERE; graph.switches.len() * groups as usize];
        for group in 0..groups {
            let members: Vec<u32> =
                (0..graph.switches.len() as u32).filter(|s| group_of_switch[*s as usize] == group).collect();
            let costs = alive.costs(&members, &cost);
            for switch in 0..graph.switches.len() {
                if costs[switch] != FAR && costs[switch] != 0 {
                    toward[switch * groups as usize + group as usize] =
                        table.of(switch, &alive, &costs, &cost);
                }
            }
        }
        let is_global = graph.links.iter().map(|link| link.kind == LinkKind::Global).collect();
        Self { minimal, groups, group_of_switch, group_of_host, is_global, toward, port_sets: table.sets }
    }

    /// The ports of `switch` on the way to `group`, ascending; empty when it is already there, or cannot get there.
    pub fn toward_group(&self, switch: u32, group: u32) -> &[u16] {
        let place = switch as usize * self.groups as usize + group as usize;
        &self.port_sets[self.toward[place] as usize]
    }
}
