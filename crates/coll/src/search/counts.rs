//! How many channels a communicator makes of those that the search found (NCCL 2.30 graph/connect.cc, graph/paths.cc).

use railnet_topology::host::PathType;

use super::Graphs;
use super::system::System;
use crate::options::TopologyOptions;

/// What one channel of a transfer over the network is expected to carry, in GB/s (`NCCL_P2P_PER_CHANNEL_NET_BW`).
const NET_PER_CHANNEL: i64 = 14;
/// Peers that one channel serves at a time.
const PEERS_PER_CHANNEL: u32 = 8;

/// How many channels a communicator has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChannelCounts {
    /// For collectives.
    pub collective: u32,
    /// For those that the NVLink switch reduces; 0 where it does not.
    pub nvls: u32,
    /// For sends and receives: a power of two.
    pub p2p: u32,
    /// For one send or receive at most: a power of two.
    pub p2p_per_peer: u32,
}

impl ChannelCounts {
    pub(super) fn new(graphs: &Graphs, options: &TopologyOptions) -> Self {
        let limit = TopologyOptions::CHANNELS_MAX;
        let is_inter = graphs.nodes > 1;
        let found = graphs.ring.channels.len().min(graphs.tree.channels.len()) as u32;
        let mut collective = (found * 2).min(limit);
        if let Some(chain) = &graphs.collnet_chain
            && chain.bw_intra > chain.bw_inter
            && graphs.gpus > 1
        {
            collective = (collective + collective / 2).min(limit);
        }
        // Few GPUs in a node need four channels for each that was found.
        if graphs.compute_capability >= 90 && is_inter && graphs.ring.bw_intra > 45.0 && collective < 16 {
            collective = (collective * 2).min(limit);
        }
        collective = collective.min(options.channels_max).max(options.channels_min).clamp(1, limit);
        let nvls = match (&graphs.nvls, graphs.compute_capability) {
            (None, _) => 0,
            (Some(_), 100..) => {
                if is_inter {
                    32
                } else {
                    24
                }
            }
            (Some(_), _) => 16,
        };
        let p2p = collective.max(nvls).min(limit).next_power_of_two();
        Self { collective, nvls, p2p, p2p_per_peer: Self::for_each_peer(graphs, p2p) }
    }

    /// Channels for one send or receive on so many nodes, of so many for all.
    pub(super) fn for_each_peer(graphs: &Graphs, p2p: u32) -> u32 {
        let mut each = graphs.per_peer_most;
        if graphs.nodes > 1 {
            let peers = graphs.ranks().div_ceil(PEERS_PER_CHANNEL);
            while each > 1 && each * peers > p2p {
                each /= 2;
            }
        }
        each.min(p2p)
    }
}

/// Channels that the slowest pair of ranks can use: two for each NVLink, two over PCIe, as many as the NICs need.
pub(super) fn per_peer(system: &System, is_inter: bool) -> u32 {
    let link = nvlink_megabytes(system.capability);
    let mut fewest = TopologyOptions::CHANNELS_MAX;
    for (gpu, routes) in system.gpu_to_gpu.iter().enumerate() {
        for route in routes.iter().enumerate().filter(|(peer, _)| *peer != gpu).map(|(_, route)| route) {
            let is_nvlink = matches!(route.kind, PathType::Nvl | PathType::Nvb);
            let links = if is_nvlink { (route.bandwidth / link).max(1) as u32 } else { 1 };
            fewest = fewest.min(2 * links);
        }
        if is_inter {
            let own = &system.own_nics[gpu];
            let gigabytes: i64 = own.iter().map(|nic| system.gpu_to_nic[gpu][*nic].bandwidth / 1000).sum();
            let needed = (gigabytes as u32).div_ceil(NET_PER_CHANNEL as u32);
            fewest = fewest.min(needed.max(own.len() as u32).max(1));
        }
    }
    fewest.next_power_of_two()
}

/// What NCCL expects of one NVLink, by compute capability.
fn nvlink_megabytes(capability: u16) -> i64 {
    match capability {
        100.. => 40_100,
        90.. => 20_600,
        86 => 12_000,
        70.. => 20_000,
        _ => 18_000,
    }
}
