//! The largest flow between two points of a network (Dinic's algorithm), for measuring bisections.

use std::collections::{BTreeMap, VecDeque};

/// A network whose edges carry the same amount in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// For each vertex its neighbours and how much passes to each.
    edges: Vec<BTreeMap<u32, u64>>,
}

impl Network {
    pub(crate) fn new(vertices: usize) -> Self {
        Self { edges: vec![BTreeMap::new(); vertices] }
    }

    /// Adds capacity between two different vertices.
    pub(crate) fn join(&mut self, a: u32, b: u32, capacity: u64) {
        for (from, to) in [(a, b), (b, a)] {
            let total = self.edges[from as usize].entry(to).or_insert(0);
            *total = total.saturating_add(capacity);
        }
    }

    /// How much can flow from `source` to `sink` at once.
    pub(crate) fn max_flow(mut self, source: u32, sink: u32) -> u64 {
        while self.merge_twins(source, sink) {}
        Dinic::new(&self).run(source, sink)
    }

    /// Makes one vertex of those with the same neighbours at the same capacities. What flows through the one can be
    /// split evenly over the many, so the largest flow stays the same, and regular fabrics become small. Answers
    /// whether there were any.
    fn merge_twins(&mut self, source: u32, sink: u32) -> bool {
        let mut classes: BTreeMap<Vec<(u32, u64)>, Vec<u32>> = BTreeMap::new();
        for (vertex, edges) in self.edges.iter().enumerate() {
            let vertex = vertex as u32;
            if vertex != source && vertex != sink && !edges.is_empty() {
                classes
                    .entry(edges.iter().map(|(to, size)| (*to, *size)).collect())
                    .or_default()
                    .push(vertex);
            }
        }
        let mut merged = false;
        for twins in classes.into_values().filter(|twins| twins.len() > 1) {
            // The neighbours may have been merged a moment ago: then these are looked at in the next round.
            let edges = self.edges[twins[0] as usize].clone();
            if edges.is_empty() || twins.iter().any(|twin| self.edges[*twin as usize] != edges) {
                merged = true;
                continue;
            }
            for twin in &twins[1..] {
                for (to, size) in std::mem::take(&mut self.edges[*twin as usize]) {
                    self.edges[to as usize].remove(twin);
                    self.join(twins[0], to, size);
                }
            }
            merged = true;
        }
        merged
    }
}

/// The algorithm's own form of a network: arcs in pairs, arc i ^ 1 the reverse of arc i.
struct Dinic {
    starts: Vec<Vec<u32>>,
    targets: Vec<u32>,
    room: Vec<u64>,
    levels: Vec<u32>,
    next: Vec<usize>,
}

const UNSEEN: u32 = u32::MAX;

impl Dinic {
    fn new(network: &Network) -> Self {
        let vertices = network.edges.len();
        let (mut starts, mut targets, mut room) = (vec![Vec::new(); vertices], Vec::new(), Vec::new());
        for (from, edges) in network.edges.iter().enumerate() {
            for (to, size) in edges.iter().filter(|(to, _)| **to as usize > from) {
                starts[from].push(targets.len() as u32);
                starts[*to as usize].push(targets.len() as u32 + 1);
                targets.extend([*to, from as u32]);
                room.extend([*size, *size]);
            }
        }
        Self { starts, targets, room, levels: vec![UNSEEN; vertices], next: vec![0; vertices] }
    }

    fn run(&mut self, source: u32, sink: u32) -> u64 {
        let mut flow: u64 = 0;
        while self.level(source, sink) {
            self.next.fill(0);
            loop {
                let pushed = self.push(source, sink);
                if pushed == 0 {
                    break;
                }
                flow = flow.saturating_add(pushed);
            }
        }
        flow
    }

    /// Numbers the vertices by their distance from the source over arcs with room; whether the sink has one.
    fn level(&mut self, source: u32, sink: u32) -> bool {
        self.levels.fill(UNSEEN);
        self.levels[source as usize] = 0;
        let mut open = VecDeque::from([source]);
        while let Some(vertex) = open.pop_front() {
            for arc in &self.starts[vertex as usize] {
                let target = self.targets[*arc as usize];
                if self.room[*arc as usize] > 0 && self.levels[target as usize] == UNSEEN {
                    self.levels[target as usize] = self.levels[vertex as usize] + 1;
                    open.push_back(target);
                }
            }
        }
        self.levels[sink as usize] != UNSEEN
    }

    /// Finds one path along rising levels and fills it; what it carried, 0 when there is none left.
    fn push(&mut self, source: u32, sink: u32) -> u64 {
        let mut path: Vec<u32> = Vec::new();
        let mut vertex = source;
        while vertex != sink {
            if let Some(arc) = self.advance(vertex) {
                path.push(arc);
                vertex = self.targets[arc as usize];
                continue;
            }
            // A dead end: step back and never come here again.
            let Some(arc) = path.pop() else { return 0 };
            vertex = self.targets[arc as usize ^ 1];
            self.next[vertex as usize] += 1;
        }
        let carried = path.iter().map(|arc| self.room[*arc as usize]).min().unwrap_or(0);
        for arc in path {
            self.room[arc as usize] -= carried;
            self.room[arc as usize ^ 1] = self.room[arc as usize ^ 1].saturating_add(carried);
        }
        carried
    }

    /// The next arc of `vertex` that has room and leads one level on.
    fn advance(&mut self, vertex: u32) -> Option<u32> {
        let arcs = &self.starts[vertex as usize];
        while let Some(arc) = arcs.get(self.next[vertex as usize]) {
            let level = self.levels[self.targets[*arc as usize] as usize];
            if self.room[*arc as usize] > 0 && level == self.levels[vertex as usize] + 1 {
                return Some(*arc);
            }
            self.next[vertex as usize] += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_carries_what_its_narrowest_part_does() {
        let mut network = Network::new(4);
        for (a, b, size) in [(0, 1, 7), (1, 2, 3), (2, 3, 5)] {
            network.join(a, b, size);
        }
        assert_eq!(network.max_flow(0, 3), 3);
    }

    #[test]
    fn flow_goes_around_what_is_full() {
        let mut network = Network::new(4);
        for (a, b, size) in [(0, 1, 10), (0, 2, 10), (1, 2, 1), (1, 3, 4), (2, 3, 9)] {
            network.join(a, b, size);
        }
        assert_eq!(network.max_flow(0, 3), 13);
    }

    #[test]
    fn nothing_flows_where_nothing_leads() {
        let mut network = Network::new(4);
        network.join(0, 1, 5);
        network.join(2, 3, 5);
        assert_eq!(network.max_flow(0, 3), 0);
    }

    /// Every set with the source in it and the sink not: the cheapest is the largest flow.
    fn cheapest_cut(network: &Network, source: u32, sink: u32) -> u64 {
        let sets =
            (0_u32..1 << network.edges.len()).filter(|set| set >> source & 1 == 1 && set >> sink & 1 == 0);
        let cut = |set: u32| -> u64 {
            let inside = network.edges.iter().enumerate().filter(|(from, _)| set >> from & 1 == 1);
            let leaving = inside.flat_map(|(_, edges)| edges).filter(|(to, _)| set >> **to & 1 == 0);
            leaving.map(|(_, size)| size).sum()
        };
        sets.map(cut).min().unwrap()
    }

    proptest! {
        #[test]
        fn the_largest_flow_is_the_cheapest_cut(edges in proptest::collection::vec((0u32..8, 0u32..8, 1u64..4), 0..24)) {
            let mut network = Network::new(8);
            for (a, b, size) in edges {
                if a != b {
                    network.join(a, b, size);
                }
            }
            prop_assert_eq!(network.clone().max_flow(0, 7), cheapest_cut(&network, 0, 7));
        }
    }
}
