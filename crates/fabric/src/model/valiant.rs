//! Valiant routing: in a dragonfly each connection goes by way of an intermediate group.
//!
//! Minimal paths between two groups share few links, and traffic from all of one group to another crowds them. A path over a
//! random group takes twice the links and spreads any pattern evenly (Valiant and Brebner, STOC 1981; for dragonflies Kim,
//! Dally, Scott and Abts, ISCA 2008).

use railnet_topology::{DragonflyRoutes, FabricGraph};

use crate::model::ecmp::mix;
use crate::model::packet::PacketMetadata;

/// The priority of a packet behind a global link: the next one, unless that may lose packets and this one may not.
#[cold]
pub(crate) fn raised_priority(priority: u8, lossless: u8) -> u8 {
    let next = (priority + 1).min(7);
    let is_lossless = |priority: u8| lossless >> priority & 1 != 0;
    if is_lossless(priority) && !is_lossless(next) { priority } else { next }
}

/// No intermediate group, or none any more.
pub(crate) const NO_GROUP: u16 = u16::MAX;

/// The routes to intermediate groups.
#[derive(Debug)]
pub(crate) struct ValiantRoutes {
    routes: DragonflyRoutes,
    seed: u32,
}

impl ValiantRoutes {
    pub(crate) fn new(graph: &FabricGraph, seed: u32) -> Self {
        Self { routes: DragonflyRoutes::new(graph), seed }
    }

    /// Avoids dead links.
    pub(crate) fn avoid(&mut self, graph: &FabricGraph, dead_links: &[bool]) {
        self.routes = DragonflyRoutes::without(graph, dead_links);
    }

    /// The ports by which a packet may leave a switch. Its first switch chooses the intermediate group.
    // Out of line, so that networks without Valiant routing do not pay for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn next_hops(&self, switch: u32, metadata: &mut PacketMetadata) -> &[u16] {
        let here = self.routes.group_of_switch[switch as usize];
        if metadata.hops == 1 {
            metadata.via_group =
                self.choose(here, self.routes.group_of_host[metadata.target as usize], metadata.hash);
        }
        if metadata.via_group != NO_GROUP {
            let ports = self.routes.toward_group(switch, u32::from(metadata.via_group));
            if !ports.is_empty() {
                return ports;
            }
            // It is there, or cannot get there: the rest of the path is minimal.
            metadata.via_group = NO_GROUP;
        }
        self.routes.minimal.next_hops(switch, metadata.target)
    }

    /// The intermediate group of a connection: any but the two at its ends, always the same one.
    fn choose(&self, from: u32, to: u32, hash: u32) -> u16 {
        let others = self.routes.groups.saturating_sub(2);
        if from == to || others == 0 {
            return NO_GROUP;
        }
        let spread = mix(hash ^ self.seed);
        let mut group = ((u64::from(spread) * u64::from(others)) >> 32) as u32;
        let (low, high) = (from.min(to), from.max(to));
        group += u32::from(group >= low);
        group += u32::from(group >= high);
        group as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_core::{Rate, Span};
    use railnet_topology::fabric::{Dragonfly, FabricKind, LinkSpec};

    #[test]
    fn a_priority_is_raised_as_long_as_no_promise_is_broken() {
        assert_eq!((raised_priority(0, 0xff), raised_priority(6, 0xff), raised_priority(7, 0xff)), (1, 7, 7));
        assert_eq!(
            (raised_priority(3, 0b1000), raised_priority(3, 0b1_1000), raised_priority(2, 0b1000)),
            (3, 4, 3)
        );
    }

    #[test]
    fn detours_avoid_both_ends_and_use_all_other_groups_alike() {
        let shape =
            Dragonfly { groups: 9, routers_per_group: 4, hosts_per_router: 2, global_links_per_router: 2 };
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        let graph = FabricKind::Dragonfly(shape).build(&links).unwrap();
        let valiant = ValiantRoutes::new(&graph, 7);
        for (from, to) in [(0, 8), (8, 0), (3, 4), (5, 1)] {
            let mut times = [0_u32; 9];
            for flow in 0..7_000 {
                times[usize::from(valiant.choose(from, to, flow))] += 1;
            }
            assert_eq!(times[from as usize] + times[to as usize], 0);
            let others = times.iter().filter(|count| **count > 0);
            assert!(others.clone().all(|count| (800..1200).contains(count)), "{times:?}");
            assert_eq!(others.count(), 7);
        }
        assert_eq!(valiant.choose(2, 2, 5), NO_GROUP, "inside a group there is no intermediate group");
    }
}
