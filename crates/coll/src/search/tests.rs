//! What the search finds on servers that people have.

use railnet_core::{Bytes, Rate};
use railnet_topology::catalogue;
use railnet_topology::host::{DeviceKind, HostLinkKind, Processor};

use super::*;
use crate::options::{CrossNic, NicFilter};

fn found_with(name: &str, nodes: u32, options: &TopologyOptions) -> Graphs {
    search(&catalogue::host(name).unwrap(), nodes, options).unwrap()
}

fn found(name: &str, nodes: u32) -> Graphs {
    found_with(name, nodes, &TopologyOptions::default())
}

/// Channels, GB/s inside and between nodes, path types.
fn row(graph: &Graph) -> String {
    let (channels, intra, inter) = (graph.channels.len(), graph.bw_intra, graph.bw_inter);
    let types = format!("{}/{}", graph.type_intra, graph.type_inter);
    format!("{:?} {channels} at {intra}/{inter} {types} cross {}", graph.pattern, graph.cross_nic)
}

#[test]
fn dgx_h100_alone_has_twelve_channels_of_thirty() {
    // 18 NVLinks of 20.6 GB/s carry six rings of 60, which are halved; NCCL makes 24 channels of them
    // ("24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer" in its log).
    let graphs = found("dgx-h100", 1);
    assert_eq!(row(&graphs.ring), "Ring 12 at 30/30 NVL/PIX cross 0");
    assert!(graphs.ring.same_channels);
    assert!(graphs.ring.channels.iter().all(|channel| channel.gpus == [0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(row(&graphs.tree), "BalancedTree 12 at 30/30 NVL/PIX cross 0");
    // A head takes its share twice: nine shares of 40 fit into 370.8.
    let nvls = graphs.nvls.as_ref().unwrap();
    assert_eq!((nvls.channels.len(), nvls.bw_intra), (8, 40.0));
    let heads: Vec<_> = nvls.channels.iter().map(|channel| channel.gpus.clone()).collect();
    assert_eq!(heads, (0..8).map(|gpu| vec![gpu]).collect::<Vec<_>>());
    let counts = ChannelCounts { collective: 24, nvls: 16, p2p: 32, p2p_per_peer: 32 };
    assert_eq!(graphs.counts, counts);
    assert!(graphs.collnet_chain.is_none() && graphs.collnet_direct.is_none());
}

#[test]
fn many_dgx_h100_have_eight_channels_of_forty_eight() {
    for nodes in [2, 8, 64] {
        let graphs = found("dgx-h100", nodes);
        assert_eq!(row(&graphs.ring), "Ring 8 at 48/48 NVL/PIX cross 2");
        // The simple pattern: the log in nccl#1453 is met only with it.
        assert_eq!(row(&graphs.tree), "Tree 8 at 48/48 NVL/PIX cross 0");
        assert_eq!(row(graphs.nvls.as_ref().unwrap()), "Nvls 8 at 40/48 NVL/PIX cross 0");
        // "Channel xx/16" in the same log.
        assert_eq!(graphs.counts.collective, 16);
        for (number, channel) in graphs.ring.channels.iter().enumerate() {
            let (first, last) = (channel.gpus[0], channel.gpus[7]);
            assert_eq!((channel.nic_in, channel.nic_out), (Some(first), Some(last)));
            assert_eq!((first as usize, last as usize), (number, number ^ 1));
        }
    }
}

#[test]
fn dgx_a100_has_twelve_channels_of_twenty_and_eight_of_twenty_four() {
    let alone = found("dgx-a100", 1);
    assert_eq!(row(&alone.ring), "Ring 12 at 20/20 NVL/PIX cross 0");
    assert_eq!(row(&alone.tree), "BalancedTree 12 at 20/20 NVL/PIX cross 0");
    assert_eq!((alone.counts.collective, alone.counts.nvls), (24, 0));
    // 8 × 24 = 192: NVIDIA's own figure for several of them (nccl#812). A switch has two GPUs and two NICs, so that rings
    // leave by the NIC they came in by without crossing a CPU.
    let many = found("dgx-a100", 16);
    assert_eq!(row(&many.ring), "Ring 8 at 24/24 NVL/PIX cross 0");
    assert_eq!(many.ring.channels[0].gpus, [0, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(row(&many.tree), "BalancedTree 8 at 30/24 NVL/PIX cross 0");
    assert_eq!(many.counts.collective, 16);
    assert!(many.nvls.is_none());
}

#[test]
fn fewer_nics_than_gpus_are_shared() {
    // Half of the NICs: 190 GB/s measured on five nodes of eight H100 with four NICs of 400G (nccl#1368).
    let half = NicFilter::new("=mlx5_0,mlx5_4,mlx5_6,mlx5_10");
    let options = TopologyOptions { ib_hca: half, ..TopologyOptions::default() };
    let graphs = found_with("dgx-h100", 5, &options);
    assert_eq!(row(&graphs.ring), "Ring 8 at 24/24 NVL/PXN cross 0");
    let used: Vec<_> = graphs.ring.channels.iter().filter_map(|channel| channel.nic_in).collect();
    assert_eq!(used, [0, 2, 4, 6, 0, 2, 4, 6]);
    // One NIC that four GPUs share, on a server without NVLink.
    let plain = found("pcie-4gpu", 3);
    assert_eq!(row(&plain.ring), "Ring 1 at 12/12 SYS/SYS cross 0");
    assert_eq!(plain.counts.collective, 2);
    let nowhere = TopologyOptions { ib_hca: NicFilter::new("bnxt"), ..TopologyOptions::default() };
    let error = search(&catalogue::host("dgx-h100").unwrap(), 2, &nowhere).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dgx-h100 has no NIC that may be used, and 2 nodes have to be joined; NCCL_IB_HCA=bnxt leaves none of its 8"
    );
}

#[test]
fn a_server_without_nvlink_has_what_its_sockets_carry() {
    // 16 GB/s between the sockets: one ring of 15.
    let graphs = found("pcie-4gpu", 1);
    assert_eq!(row(&graphs.ring), "Ring 1 at 15/15 SYS/PIX cross 0");
    assert_eq!(graphs.ring.channels[0].gpus, [0, 1, 2, 3]);
    assert!(graphs.nvls.is_none());
    let error = search(&catalogue::host("cpu").unwrap(), 1, &TopologyOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "cpu has no GPUs: collectives run between GPUs");
}

/// Two GPUs under one CPU, with NVLinks between them where there are any.
fn two_gpus(processor: Processor, nvlinks: u16) -> Host {
    let mut host = Host::new("pair");
    let cpu = host.add("CPU0", DeviceKind::Cpu { socket: 0, processor });
    let gpus: Vec<_> = (0..2)
        .map(|id| {
            let kind = DeviceKind::Gpu {
                model: "test".into(),
                memory: Bytes::gib(80),
                memory_bandwidth: Rate::gbps(16_000),
                compute_capability: 80,
                compute: None,
            };
            let gpu = host.add(format!("GPU{id}"), kind);
            host.join_pcie(cpu, gpu, 4, 16, Some(id));
            gpu
        })
        .collect();
    if nvlinks > 0 {
        let rate = Rate::gbps(160 * u64::from(nvlinks));
        host.join(gpus[0], gpus[1], HostLinkKind::NvLink { links: nvlinks }, rate, rate);
    }
    host
}

#[test]
fn two_gpus_use_what_joins_them() {
    let options = TopologyOptions::default();
    // 12 links of 20 GB/s: 208 GB/s were measured (nccl-tests#178).
    let nvlink = search(&two_gpus(Processor::EPYC_ROME, 12), 1, &options).unwrap();
    assert_eq!(row(&nvlink.ring), "Ring 12 at 20/20 NVL/PIX cross 0");
    // 24 GB/s of PCIe, of which an Intel passes on five sixths.
    let amd = search(&two_gpus(Processor::EPYC_ROME, 0), 1, &options).unwrap();
    assert_eq!(row(&amd.ring), "Ring 2 at 12/12 PHB/PIX cross 0");
    let intel = search(&two_gpus(Processor::SAPPHIRE_RAPIDS, 0), 1, &options).unwrap();
    assert_eq!(row(&intel.ring), "Ring 1 at 20/20 PHB/PIX cross 0");
    let alone = TopologyOptions { p2p_disable: true, ..options };
    let host = search(&two_gpus(Processor::EPYC_ROME, 12), 1, &alone).unwrap();
    assert_eq!(host.ring.type_intra, PathType::Phb);
}

#[test]
fn what_the_user_says_about_nics_is_followed() {
    let with = |options: TopologyOptions| found_with("dgx-h100", 4, &options);
    // Without pairs of channels a ring leaves by the NIC it came in by, and NVLink also has to carry data to the GPU
    // beside it: 8 × 48 would be more than 370.8.
    let never = with(TopologyOptions { cross_nic: CrossNic::Never, ..TopologyOptions::default() });
    assert_eq!(row(&never.ring), "Ring 8 at 45/45 NVL/PXN cross 0");
    assert!(never.ring.channels.iter().all(|channel| channel.nic_in == channel.nic_out));
    let no_pxn =
        TopologyOptions { cross_nic: CrossNic::Never, pxn_disable: true, ..TopologyOptions::default() };
    assert_eq!(with(no_pxn).ring.type_inter, PathType::Phb);
    // Sockets cannot use the memory of GPUs: all goes through the host.
    let sockets = with(TopologyOptions { ib_disable: true, ..TopologyOptions::default() });
    assert_eq!(sockets.ring.type_inter, PathType::Phb);
    let no_nvls = with(TopologyOptions { nvls_enable: false, ..TopologyOptions::default() });
    assert_eq!((no_nvls.nvls, no_nvls.counts.nvls), (None, 0));
    let few = with(TopologyOptions { channels_max: 4, ..TopologyOptions::default() });
    assert_eq!(few.counts.collective, 4);
}

#[test]
fn switches_of_the_network_get_a_chain_and_a_head_for_each_rail() {
    let options = TopologyOptions { collnet_enable: true, ..TopologyOptions::default() };
    let graphs = found_with("dgx-h100", 4, &options);
    let (chain, direct) = (graphs.collnet_chain.unwrap(), graphs.collnet_direct.unwrap());
    assert_eq!(row(&chain), "Tree 8 at 48/48 NVL/PIX cross 0");
    assert_eq!((direct.pattern, direct.channels.len()), (Pattern::CollNetDirect, 8));
    for (head, channel) in direct.channels.iter().enumerate() {
        assert_eq!((channel.gpus[0] as usize, channel.nic_in), (head, Some(head as u32)));
    }
}

#[test]
fn blackwell_has_faster_links() {
    // 18 links of 40.1 GB/s are 721.8 in all, as NCCL logs it (nccl#1807).
    assert_eq!(row(&found("dgx-b200", 1).ring), "Ring 16 at 45/45 NVL/PIX cross 0");
    let many = found("dgx-b200", 2);
    assert_eq!(row(&many.ring), "Ring 8 at 48/48 NVL/PXN cross 0");
    assert_eq!(many.counts.nvls, 32);
}

#[test]
fn other_numbers_of_nodes_need_no_other_search() {
    let options = TopologyOptions::default();
    for name in ["dgx-a100", "dgx-h100", "dgx-b200", "pcie-4gpu"] {
        let host = catalogue::host(name).unwrap();
        let two = search(&host, 2, &options).unwrap();
        for nodes in [3, 8, 64, 2_048] {
            assert_eq!(
                two.on_nodes(nodes).unwrap(),
                search(&host, nodes, &options).unwrap(),
                "{name} x {nodes}"
            );
        }
        assert_eq!(two.on_nodes(1), None);
    }
}
