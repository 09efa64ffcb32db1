//! An InfiniBand subnet: LIDs of ports, and the linear forwarding tables (LFT) that a subnet manager writes into switches.
//!
//! The subnet manager gives each port of a host 2^LMC LIDs in a row, host after host, and each switch one behind them. A switch
//! forwards by destination LID alone: one port for each, so that a host's paths are as many as its LIDs at most. The tables are those
//! of a fat-tree routing engine such as OpenSM's: destination modulo ports (d-mod-k), where each tier divides by what those below it
//! have told apart. Counting LIDs at each switch for itself (OpenSM's Min Hop) would have all tiers of a fat-tree choose alike, and
//! leave most of its core unused. After a link has failed or is back, the manager sweeps and writes all tables anew.

use railnet_topology::Routes;
use railnet_wire::Lid;

/// The largest LID mask control: three bits.
pub const LMC_MAX: u8 = 7;

/// No port leads there.
const UNREACHABLE: u16 = u16::MAX;

/// The first LID of a host where each has 2^`lmc`: the lower bits are 0.
#[inline]
pub fn base_lid(host: u32, lmc: u8) -> Lid {
    Lid(((host + 1) << lmc) as u16)
}

/// The last LID of a subnet with so many hosts and switches; a subnet manager has none above [`Lid::UNICAST_LAST`] to give.
pub fn last_lid(hosts: usize, switches: usize, lmc: u8) -> u64 {
    ((hosts as u64 + 1) << lmc) + switches as u64 - 1
}

/// Which of a host's LIDs a connection with this hash uses: all of its packets the same.
#[inline]
pub(crate) fn path_bits(hash: u32, lmc: u8) -> u32 {
    hash & ((1 << lmc) - 1)
}

/// The forwarding tables of all switches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardingTables {
    lmc: u8,
    /// Entries of a switch: one for each LID of hosts.
    width: usize,
    /// `[switch][host, then path]`: the egress port.
    ports: Vec<u16>,
}

impl ForwardingTables {
    /// The tables of so many switches towards so many hosts.
    pub fn new(routes: &Routes, (hosts, switches): (u32, u32), lmc: u8) -> Self {
        let width = (hosts as usize) << lmc;
        let mut tables = Self { lmc, width, ports: vec![UNREACHABLE; width * switches as usize] };
        for switch in 0..switches {
            tables.fill(routes, switch, hosts);
        }
        tables
    }

    /// The LID mask control that they were made for.
    pub(crate) fn lmc(&self) -> u8 {
        self.lmc
    }

    fn fill(&mut self, routes: &Routes, switch: u32, hosts: u32) {
        let tier = (0..hosts).filter_map(|host| routes.distance(switch, host)).min().unwrap_or(1) - 1;
        let (routes, lmc) = (routes.of(switch), self.lmc);
        let row = &mut self.ports[switch as usize * self.width..][..self.width];
        for host in 0..hosts {
            let ports = routes.next_hops(host);
            let Ok(count) = u32::try_from(ports.len()) else { continue };
            if count == 0 {
                continue;
            }
            let below = count.saturating_pow(tier);
            for path in 0..1 << lmc {
                let place = (host + path) / below % count;
                row[((host << lmc) + path) as usize] = ports[place as usize];
            }
        }
    }

    /// The port by which a switch forwards a connection with this hash to a host; empty where none leads there.
    #[inline]
    pub fn next_hop(&self, switch: u32, host: u32, hash: u32) -> &[u16] {
        let place = ((host << self.lmc) + path_bits(hash, self.lmc)) as usize;
        let entry = &self.ports[switch as usize * self.width + place];
        if *entry == UNREACHABLE { &[] } else { std::slice::from_ref(entry) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_core::{Rate, Span};
    use railnet_topology::FabricGraph;
    use railnet_topology::fabric::{FabricKind, FatTree, LeafSpine, LinkSpec};
    use std::collections::BTreeSet;

    /// Leaves 0 and 1 with four hosts each, spines 2 to 5.
    fn graph() -> FabricGraph {
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        FabricKind::LeafSpine(LeafSpine::new(2, 4, 4)).build(&links).unwrap()
    }

    fn tables(lmc: u8) -> ForwardingTables {
        ForwardingTables::new(&Routes::minimal(&graph(), &[]), (8, 6), lmc)
    }

    #[test]
    fn lids_begin_behind_the_reserved_one_and_are_aligned() {
        assert_eq!([0, 1, 7].map(|host| base_lid(host, 0).0), [1, 2, 8]);
        assert_eq!([0, 1, 7].map(|host| base_lid(host, 2).0), [4, 8, 32]);
        assert_eq!(last_lid(8, 6, 0), 14);
        assert_eq!(last_lid(8, 6, 2), 41);
    }

    #[test]
    fn a_host_has_one_path_whatever_the_connection_and_hosts_share_ports_evenly() {
        let tables = tables(0);
        let up = |host: u32, hash: u32| tables.next_hop(0, host, hash)[0];
        for host in 4..8 {
            assert!((0..100).all(|hash| up(host, hash) == up(host, 0)));
        }
        let distinct: BTreeSet<u16> = (4..8).map(|host| up(host, 0)).collect();
        assert_eq!(distinct.len(), 4, "four hosts, four uplinks");
    }

    #[test]
    fn tiers_choose_apart_from_each_other() {
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        let graph = FabricKind::FatTree(FatTree::new(4)).build(&links).unwrap();
        let (hosts, switches) = (graph.hosts.len() as u32, graph.switches.len() as u32);
        let routes = Routes::minimal(&graph, &[]);
        let tables = ForwardingTables::new(&routes, (hosts, switches), 0);
        // From host 0 to the twelve hosts of other pods: all four cores are used, by three each.
        let mut cores = std::collections::BTreeMap::new();
        for host in 4..hosts {
            let mut vertex = graph.neighbours(railnet_topology::Vertex::Host(0))[0].peer.vertex;
            for _ in 0..2 {
                let railnet_topology::Vertex::Switch(switch) = vertex else { panic!("{vertex:?}") };
                let port = tables.next_hop(switch, host, 0)[0];
                vertex = graph.neighbours(vertex)[usize::from(port)].peer.vertex;
            }
            *cores.entry(format!("{vertex:?}")).or_insert(0) += 1;
        }
        assert_eq!(cores.into_values().collect::<Vec<u32>>(), [3; 4]);
    }

    #[test]
    fn a_mask_gives_a_host_as_many_paths() {
        let tables = tables(2);
        for host in 4..8 {
            let paths: BTreeSet<u16> = (0..4).map(|hash| tables.next_hop(0, host, hash)[0]).collect();
            assert_eq!(paths.len(), 4);
            assert_eq!(tables.next_hop(0, host, 5), tables.next_hop(0, host, 1));
        }
        assert_eq!(tables.next_hop(0, 2, 0), tables.next_hop(0, 2, 3), "a host of this leaf has one port");
    }

    #[test]
    fn a_sweep_goes_around_dead_links() {
        let graph = graph();
        let uplink = graph.links.iter().position(|link| {
            link.ends.iter().all(|end| matches!(end.vertex, railnet_topology::Vertex::Switch(_)))
        });
        let mut dead = vec![false; graph.links.len()];
        dead[uplink.unwrap()] = true;
        let routes = Routes::minimal(&graph, &dead);
        let tables = ForwardingTables::new(&routes, (8, 6), 0);
        for host in 4..8 {
            assert!(routes.next_hops(0, host).contains(&tables.next_hop(0, host, 0)[0]));
        }
    }
}
