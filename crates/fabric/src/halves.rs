//! Places in two halves, of which neither has neighbours in itself.
//!
//! In a tree or a Clos network the tiers take turns: hosts have leaves for neighbours, leaves have hosts and spines. So once one
//! half of them has been taken through a window, the other one can be taken through that window and the next, which nothing
//! but the first half reaches. In this way each place is taken through two windows at a time, and what it has counted and what
//! waits in it is fetched from memory half as often.

use railnet_core::event::Sink;
use railnet_core::{Span, Time};
use railnet_topology::{FabricGraph, Vertex};

use crate::application::Application;
use crate::network::Network;
use crate::windows::Windows;

/// Fewer windows than this before something happens to all places at once are taken as they come.
const FEW: u64 = 4;

/// Which half each switch belongs to: all islands are in the first.
#[derive(Debug)]
pub(crate) struct Halves([Vec<u32>; 2]);

impl Halves {
    /// None where two neighbours would be in the same half.
    pub(crate) fn new(graph: &FabricGraph, windows: &Windows) -> Option<Self> {
        let switches = graph.switches.len();
        let mut half_of: Vec<Option<bool>> = vec![None; switches];
        // Two switches in a row are neighbours of each other; what is next to an island is in the second half.
        let mut links = Vec::new();
        for link in &graph.links {
            match link.ends.map(|end| end.vertex) {
                [Vertex::Switch(one), Vertex::Switch(two)] => links.push((one as usize, two as usize)),
                [Vertex::Switch(switch), Vertex::Host(_)] | [Vertex::Host(_), Vertex::Switch(switch)] => {
                    half_of[switch as usize] = Some(true);
                }
                [Vertex::Host(one), Vertex::Host(two)] => {
                    let [one, two] = [one, two].map(|host| windows.place(Vertex::Host(host)));
                    if one != two {
                        return None;
                    }
                }
            }
        }
        let mut is_settled = false;
        while !is_settled {
            is_settled = true;
            for &(one, two) in &links {
                for (near, far) in [(one, two), (two, one)] {
                    match (half_of[near], half_of[far]) {
                        (Some(half), None) => {
                            half_of[far] = Some(!half);
                            is_settled = false;
                        }
                        (Some(half), Some(other)) if half == other => return None,
                        _ => {}
                    }
                }
            }
        }
        // What no host can reach is of no matter.
        let of = |half: bool| {
            let switches = half_of.iter().enumerate();
            switches.filter(|(_, of)| of.unwrap_or(true) == half).map(|(switch, _)| switch as u32).collect()
        };
        Some(Self([of(false), of(true)]))
    }
}

impl<S: Sink> Network<S> {
    /// Finds out whether places can be taken by halves, once it is said which islands there are and how soon the application
    /// reacts.
    pub(crate) fn find_halves(&mut self, reaction: Span) {
        let windows = self.windows.as_ref().filter(|windows| windows.are_passed_twice_within(reaction));
        self.halves = windows.and_then(|windows| Halves::new(&self.graph, windows)).map(Box::new);
    }

    /// Takes all places through windows, two at a time, until one is near in which something happens to all of them, or
    /// `limit` is. Returns when the last thing happened, or none where that is too near.
    pub(crate) fn run_by_halves(
        &mut self,
        application: &mut impl Application<S>,
        limit: Time,
    ) -> Option<Time> {
        if self.halves.is_none() || self.share.is_some() || self.lulls.are_expected() {
            return None;
        }
        let windows = self.windows.as_ref()?;
        let start = windows.next_window()?;
        let mut until = windows.window_of(limit).min(self.next_call());
        if until < start + FEW {
            return None;
        }
        let halves = self.halves.take()?;
        let mut latest = Time::ZERO;
        let mut next = [start; 2];
        while next[0].min(next[1]) < until {
            let half = usize::from(next[1] < next[0]);
            let (first, last) = (next[half], next[1 - half].min(until - 1));
            let Some(windows) = &mut self.windows else { break };
            windows.go_through_with_half(first, last);
            let end = windows.end();
            if half == 0 {
                latest = latest.max(self.take_hosts_to(application, end));
            }
            latest = latest.max(self.catch_up_some(&halves.0[half], end));
            next[half] = last + 1;
            let furthest = next[0].max(next[1]);
            let Some(windows) = &self.windows else { break };
            // With nothing in sight, or someone to call, the other half comes up to this one and that is all.
            if windows.next_window().is_none_or(|window| window > furthest) {
                until = until.min(furthest);
            }
            until = until.min(self.next_call().max(furthest));
        }
        self.halves = Some(halves);
        Some(latest)
    }

    /// The window in which the application is to be called about all hosts.
    fn next_call(&self) -> u64 {
        let at = self.calendar.next_time().unwrap_or(Time::NEVER);
        self.windows.as_ref().map_or(0, |windows| windows.window_of(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::Islands;
    use railnet_core::Rate;
    use railnet_topology::fabric::{Dragonfly, FabricKind, LeafSpine, LinkSpec};

    fn halves(kind: &FabricKind) -> Option<[Vec<u32>; 2]> {
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        let graph = kind.build(&links).expect("a fabric that can be built");
        let mut windows = Windows::new(graph.switches.len() as u32, Span::from_us(1));
        windows.add_islands(Islands::new((0..graph.hosts.len() as u32).collect()), Span::MAX);
        Halves::new(&graph, &windows).map(|Halves(switches)| switches)
    }

    #[test]
    fn spines_are_in_the_half_of_hosts_and_leaves_are_in_the_other() {
        let tree = LeafSpine { leaves: 3, hosts_per_leaf: 2, spines: 2, links_per_spine: 1 };
        assert_eq!(halves(&FabricKind::LeafSpine(tree)), Some([vec![3, 4], vec![0, 1, 2]]));
    }

    #[test]
    fn routers_that_are_neighbours_and_have_hosts_are_in_no_halves() {
        let groups =
            Dragonfly { groups: 3, routers_per_group: 2, hosts_per_router: 2, global_links_per_router: 1 };
        assert_eq!(halves(&FabricKind::Dragonfly(groups)), None);
    }
}
