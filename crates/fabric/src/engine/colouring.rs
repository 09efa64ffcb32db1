//! Two-colouring: LPs of one colour have neighbours of the other colour only.
//!
//! The graph of LPs is bipartite in a tree or a Clos network: hosts have leaves for neighbours, leaves have hosts and
//! spines. So each colour may run two epochs ahead in turn: once one colour has run an epoch, the other can run that epoch
//! and the next, which nothing but the first colour reaches. Each LP runs strides of two epochs, and its state is loaded
//! half as often.

use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_topology::{FabricGraph, Vertex};

use crate::application::Application;
use crate::engine::epoch::Epochs;
use crate::network::Network;

/// With fewer epochs than this before a call of the application, strides of one epoch are run.
const EPOCHS_MIN: u64 = 4;

/// The switches of each colour. All host groups have the first.
#[derive(Debug)]
pub(crate) struct TwoColouring([Vec<u32>; 2]);

impl TwoColouring {
    /// `None` where the graph is not bipartite.
    pub(crate) fn new(graph: &FabricGraph, epochs: &Epochs) -> Option<Self> {
        let switches = graph.switches.len();
        let mut colour_of: Vec<Option<bool>> = vec![None; switches];
        // A link between two switches gives them different colours; a switch next to a host has the second.
        let mut links = Vec::new();
        for link in &graph.links {
            match link.ends.map(|end| end.vertex) {
                [Vertex::Switch(one), Vertex::Switch(two)] => links.push((one as usize, two as usize)),
                [Vertex::Switch(switch), Vertex::Host(_)] | [Vertex::Host(_), Vertex::Switch(switch)] => {
                    colour_of[switch as usize] = Some(true);
                }
                [Vertex::Host(one), Vertex::Host(two)] => {
                    let [one, two] = [one, two].map(|host| epochs.lp(Vertex::Host(host)));
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
                    match (colour_of[near], colour_of[far]) {
                        (Some(colour), None) => {
                            colour_of[far] = Some(!colour);
                            is_settled = false;
                        }
                        (Some(colour), Some(other)) if colour == other => return None,
                        _ => {}
                    }
                }
            }
        }
        // A switch that no host reaches may have any colour.
        let of = |colour: bool| {
            let switches = colour_of.iter().enumerate();
            switches.filter(|(_, of)| of.unwrap_or(true) == colour).map(|(switch, _)| switch as u32).collect()
        };
        Some(Self([of(false), of(true)]))
    }
}

impl<S: Sink> Network<S> {
    /// Runs all LPs in strides of two epochs, until a call of the application is near, or `limit` is. Returns the time of
    /// the last event, or `None` where that is too near.
    pub(crate) fn run_two_coloured(
        &mut self,
        application: &mut impl Application<S>,
        limit: Time,
    ) -> Option<Time> {
        if self.scheduler.colouring.is_none()
            || self.scheduler.partition.is_some()
            || self.scheduler.lookahead.is_extended()
        {
            return None;
        }
        let epochs = self.scheduler.epochs.as_ref()?;
        let start = epochs.next_epoch()?;
        let mut until = epochs.epoch_of(limit).min(self.scheduler.next_call());
        if until < start + EPOCHS_MIN {
            return None;
        }
        let colouring = self.scheduler.colouring.take()?;
        let mut latest = Time::ZERO;
        let mut next = [start; 2];
        while next[0].min(next[1]) < until {
            let colour = usize::from(next[1] < next[0]);
            let (first, last) = (next[colour], next[1 - colour].min(until - 1));
            let Some(epochs) = &mut self.scheduler.epochs else { break };
            epochs.begin_epochs_of_colour(first, last);
            let end = epochs.end();
            if colour == 0 {
                latest = latest.max(self.run_groups_until(application, end));
            }
            latest = latest.max(self.run_some_switches_until(&colouring.0[colour], end));
            next[colour] = last + 1;
            let furthest = next[0].max(next[1]);
            let Some(epochs) = &self.scheduler.epochs else { break };
            // With no events ahead, or a call, the other colour catches up and that is all.
            if epochs.next_epoch().is_none_or(|epoch| epoch > furthest) {
                until = until.min(furthest);
            }
            until = until.min(self.scheduler.next_call().max(furthest));
        }
        self.scheduler.colouring = Some(colouring);
        Some(latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::groups::HostGroups;
    use railnet_core::{Rate, Span};
    use railnet_topology::fabric::{Dragonfly, FabricKind, LeafSpine, LinkSpec};

    fn colouring(kind: &FabricKind) -> Option<[Vec<u32>; 2]> {
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        let graph = kind.build(&links).expect("a fabric that can be built");
        let mut epochs = Epochs::new(graph.switches.len() as u32, Span::from_us(1));
        epochs.add_groups(HostGroups::new((0..graph.hosts.len() as u32).collect()), Span::MAX);
        TwoColouring::new(&graph, &epochs).map(|TwoColouring(switches)| switches)
    }

    #[test]
    fn spines_have_the_colour_of_hosts_and_leaves_the_other() {
        let tree = LeafSpine { leaves: 3, hosts_per_leaf: 2, spines: 2, links_per_spine: 1 };
        assert_eq!(colouring(&FabricKind::LeafSpine(tree)), Some([vec![3, 4], vec![0, 1, 2]]));
    }

    #[test]
    fn a_graph_that_is_not_bipartite_has_no_colouring() {
        let groups =
            Dragonfly { groups: 3, routers_per_group: 2, hosts_per_router: 2, global_links_per_router: 1 };
        assert_eq!(colouring(&FabricKind::Dragonfly(groups)), None);
    }
}
