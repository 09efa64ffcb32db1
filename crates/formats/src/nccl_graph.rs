//! NCCL's graph files: what `NCCL_GRAPH_DUMP_FILE` writes and `NCCL_GRAPH_FILE` reads, for what a search found.

use std::fmt::Write as _;

use railnet_coll::search::{Channel, Graph, Graphs};

/// Channels as a graph file. GPUs and NICs are named by their numbers in the server.
pub fn write(graphs: &Graphs) -> String {
    // NCCL's numbers: ring 0, tree 1, chain 2, NVLS 3, direct 4.
    let all = [
        Some(&graphs.ring),
        Some(&graphs.tree),
        graphs.collnet_chain.as_ref(),
        graphs.nvls.as_ref(),
        graphs.collnet_direct.as_ref(),
    ];
    let mut text = "<graphs version=\"1\">\n".to_owned();
    for (id, graph) in all.into_iter().enumerate().filter_map(|(id, graph)| Some((id, graph?))) {
        write_graph(&mut text, id, graph);
    }
    text.push_str("</graphs>\n");
    text
}

fn write_graph(text: &mut String, id: usize, graph: &Graph) {
    let micros = graph.latency_inter.as_ps() as f64 / 1e6;
    let _ = writeln!(
        text,
        "  <graph id=\"{id}\" pattern=\"{}\" crossnic=\"{}\" nchannels=\"{}\" speedintra=\"{}\" speedinter=\"{}\" \
         latencyinter=\"{micros}\" typeintra=\"{}\" typeinter=\"{}\" samechannels=\"{}\">",
        graph.pattern.number(),
        graph.cross_nic,
        graph.channels.len(),
        graph.bw_intra,
        graph.bw_inter,
        graph.type_intra,
        graph.type_inter,
        u8::from(graph.same_channels),
    );
    for channel in &graph.channels {
        write_channel(text, channel);
    }
    text.push_str("  </graph>\n");
}

fn write_channel(text: &mut String, channel: &Channel) {
    text.push_str("    <channel>\n");
    let first = channel.nic_in.map(|nic| ("net", nic));
    let gpus = channel.gpus.iter().map(|gpu| ("gpu", *gpu));
    let last = channel.nic_out.map(|nic| ("net", nic));
    for (what, number) in first.into_iter().chain(gpus).chain(last) {
        // NCCL reads these as hexadecimal numbers, with or without their prefix.
        let _ = writeln!(text, "      <{what} dev=\"{number:#x}\"/>");
    }
    text.push_str("    </channel>\n");
}
