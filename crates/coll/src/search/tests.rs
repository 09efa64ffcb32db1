//! What the search finds on servers that people have.

use railnet_topology::catalogue;

use super::*;

fn found(name: &str, nodes: u32) -> Graphs {
    let host = catalogue::host(name).unwrap();
    search(&host, nodes, &TopologyOptions::default()).unwrap()
}

#[test]
fn print_all() {
    for name in ["dgx-h100", "dgx-a100", "hgx-h200", "dgx-b200", "pcie-4gpu"] {
        for nodes in [1, 2, 64] {
            let start = 0;
            let graphs = found(name, nodes);
            println!("{name} x{nodes} {:?} {start}", graphs.counts);
            for graph in [Some(&graphs.ring), Some(&graphs.tree), graphs.nvls.as_ref()].into_iter().flatten()
            {
                println!(
                    "  {:?} ch {} bw {}/{} type {}/{} same {} cross {}",
                    graph.pattern,
                    graph.channels.len(),
                    graph.bw_intra,
                    graph.bw_inter,
                    graph.type_intra,
                    graph.type_inter,
                    graph.same_channels,
                    graph.cross_nic
                );
                if nodes != 64 {
                    for c in &graph.channels {
                        println!("     {:?} {:?} {:?}", c.nic_in, c.gpus, c.nic_out);
                    }
                }
            }
        }
    }
}
