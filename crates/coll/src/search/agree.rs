//! What servers of several kinds agree on: each looks for channels by itself, and all take what the weakest of them has
//! (NCCL 2.30 init.cc, after its third all-gather).

use std::sync::Arc;

use railnet_topology::host::Host;
use railnet_topology::{Cluster, Places};

use super::{ChannelCounts, Graph, Graphs, SearchError, search};
use crate::options::TopologyOptions;

/// What nodes with unlike numbers of GPUs or NICs found, each for itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Uneven {
    /// What each kind of node found.
    pub kinds: Vec<Own>,
    /// The kind of each node.
    pub of: Vec<u32>,
    /// Where ranks are.
    pub ranks: Places,
}

impl Uneven {
    /// What a node found.
    pub fn of_node(&self, node: u32) -> &Own {
        &self.kinds[self.of[node as usize] as usize]
    }
}

/// What a kind of node found: of its channels as many are used as all have.
#[derive(Clone, PartialEq, Debug)]
pub struct Own {
    /// Rings.
    pub ring: Graph,
    /// Trees.
    pub tree: Graph,
}

/// The channels over the servers of a cluster, and the servers that the cost model is to look at.
///
/// Servers with the same GPUs and as many NICs all run the channels of the kind that carries least, and the cost model looks at as
/// many servers of that kind. Others each run their own: as many as the one with fewest has, as fast as the slowest. Reductions
/// in switches need a head for each rail in every node, and those have none.
pub fn agree(cluster: &Cluster, options: &TopologyOptions) -> Result<(Graphs, Cluster), SearchError> {
    let kinds = cluster.kinds();
    let mut found = Vec::new();
    for host in &kinds {
        found.push(search(host, cluster.nodes, options)?);
    }
    if are_alike(&kinds) {
        let carries = |graphs: &Graphs| {
            let each = if cluster.nodes > 1 { graphs.ring.bw_inter } else { graphs.ring.bw_intra };
            each * graphs.ring.channels.len() as f32
        };
        let mut least = 0;
        for kind in 1..kinds.len() {
            if carries(&found[kind]) < carries(&found[least]) {
                least = kind;
            }
        }
        let weakest = Cluster::new(kinds[least].clone(), cluster.nodes);
        return Ok((found.swap_remove(least), weakest));
    }
    let of = |node: u32| kinds.iter().position(|kind| *kind == cluster.host_of(node));
    let of = (0..cluster.nodes).map(|node| of(node).unwrap_or_default() as u32).collect();
    let mut graphs = found[0].clone();
    for other in &found[1..] {
        graphs.compute_capability = graphs.compute_capability.min(other.compute_capability);
        graphs.per_peer_most = graphs.per_peer_most.min(other.per_peer_most);
        meet(&mut graphs.ring, &other.ring);
        meet(&mut graphs.tree, &other.tree);
    }
    let count = graphs.ring.channels.len().min(graphs.tree.channels.len());
    graphs.ring.channels.truncate(count);
    graphs.tree.channels.truncate(count);
    graphs.gpus = cluster.ranks().most();
    (graphs.collnet_chain, graphs.collnet_direct, graphs.nvls) = (None, None, None);
    let kinds = found.into_iter().map(|graphs| Own { ring: graphs.ring, tree: graphs.tree }).collect();
    graphs.uneven = Some(Arc::new(Uneven { kinds, of, ranks: cluster.ranks().clone() }));
    graphs.counts = ChannelCounts::new(&graphs, options);
    Ok((graphs, cluster.clone()))
}

/// Whether servers have the same GPUs, by name, and as many NICs.
fn are_alike(kinds: &[&Host]) -> bool {
    let gpus = |host: &Host| -> Vec<String> {
        host.gpus().into_iter().map(|gpu| host.device(gpu).name.clone()).collect()
    };
    let looks = |host: &Host| (gpus(host), host.compute_nics().len());
    kinds[1..].is_empty() || kinds[1..].iter().all(|host| looks(host) == looks(kinds[0]))
}

/// The least that either graph promises.
fn meet(graph: &mut Graph, other: &Graph) {
    graph.channels.truncate(other.channels.len());
    graph.same_channels &= other.same_channels;
    graph.bw_intra = graph.bw_intra.min(other.bw_intra);
    graph.bw_inter = graph.bw_inter.min(other.bw_inter);
    graph.type_intra = graph.type_intra.max(other.type_intra);
    graph.type_inter = graph.type_inter.max(other.type_inter);
    graph.cross_nic = graph.cross_nic.max(other.cross_nic);
    graph.latency_inter = graph.latency_inter.max(other.latency_inter);
    // The simplest tree of all: the cost model counts on no more. Children attach as each node's own has it.
    if other.pattern.number() > graph.pattern.number() {
        graph.pattern = other.pattern;
    }
}

#[cfg(test)]
mod tests {
    use railnet_topology::catalogue;

    use super::*;
    use crate::wiring::Wiring;

    fn agreed(groups: &[(&str, &[u32], u32)]) -> Graphs {
        let host = |name: &str, gpus: &[u32]| catalogue::host(name).unwrap().with_gpus(gpus);
        let groups: Vec<(Host, u32)> =
            groups.iter().map(|(name, gpus, nodes)| (host(name, gpus), *nodes)).collect();
        agree(&Cluster::of_groups(&groups).unwrap(), &TopologyOptions::default()).unwrap().0
    }

    const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn all_take_what_the_weakest_has() {
        let graphs = agreed(&[("dgx-h100", &ALL, 2), ("pcie-4gpu", &ALL[..4], 2)]);
        let alone =
            |name: &str| search(&catalogue::host(name).unwrap(), 4, &TopologyOptions::default()).unwrap();
        let (big, small) = (alone("dgx-h100"), alone("pcie-4gpu"));
        assert_eq!((graphs.nodes, graphs.gpus, graphs.ranks()), (4, 8, 24));
        assert_eq!(graphs.ring.channels.len(), small.ring.channels.len().min(big.ring.channels.len()));
        assert!(small.ring.bw_inter < big.ring.bw_inter);
        assert!((graphs.ring.bw_inter - small.ring.bw_inter).abs() < f32::EPSILON);
        assert_eq!(graphs.ring.type_intra, small.ring.type_intra.max(big.ring.type_intra));
        assert_eq!(graphs.compute_capability, 89);
        assert!(big.nvls.is_some() && graphs.nvls.is_none());
    }

    #[test]
    fn every_ring_passes_every_rank_once_whatever_the_nodes_are() {
        let cases: [&[(&str, &[u32], u32)]; 4] = [
            &[("dgx-h100", &ALL, 2), ("pcie-4gpu", &ALL[..4], 4)],
            &[("pcie-4gpu", &ALL[..4], 1), ("dgx-a100", &ALL, 1), ("dgx-h100", &ALL[..1], 2)],
            // The same server, and other GPUs of it.
            &[("dgx-h100", &ALL[4..], 1), ("dgx-h100", &ALL[..4], 1)],
            &[("dgx-h100", &ALL[..4], 3), ("dgx-h100", &ALL[..3], 2)],
        ];
        for groups in cases {
            let graphs = agreed(groups);
            let wiring = Wiring::new(&graphs);
            let all: Vec<u32> = (0..graphs.ranks()).collect();
            assert!(!wiring.rings.is_empty(), "{groups:?}");
            for (ring, chains) in wiring.rings.iter().zip(&wiring.chains) {
                let mut ranks = ring.clone();
                ranks.sort_unstable();
                assert_eq!(ranks, all, "{groups:?}");
                let mut ranks = chains.concat();
                ranks.sort_unstable();
                assert_eq!(ranks, all, "{groups:?}");
            }
            assert_eq!(wiring.nodes.len() as u32, graphs.nodes);
        }
    }

    #[test]
    fn each_node_has_its_own_nics() {
        let graphs = agreed(&[("dgx-h100", &ALL[4..], 1), ("dgx-h100", &ALL[..4], 1)]);
        let wiring = Wiring::new(&graphs);
        for (channel, ring) in wiring.nics.rings.iter().enumerate() {
            assert!(ring[0].first >= 4, "channel {channel}: GPU 4 to 7 have the NICs 4 to 7 beside them");
            assert!(ring[1].first < 4, "channel {channel}");
        }
    }
}
