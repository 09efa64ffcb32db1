//! The channels of a cluster, and the transports between its ranks, in the words of NCCL's log.

use std::fmt::Write as _;
use std::io::Write;

use railnet_coll::Wiring;
use railnet_coll::search::{Graph, Graphs, Pattern};
use railnet_coll::transport::Transports;
use railnet_topology::host::Host;
use serde_json::{Value, json};

/// Trees are told of the ranks of the first node only, where there are more than this.
const RANKS_MAX: u32 = 64;

fn all(graphs: &Graphs) -> Vec<(&'static str, &Graph)> {
    let graphs = [
        ("ring", Some(&graphs.ring)),
        ("tree", Some(&graphs.tree)),
        ("collnet chain", graphs.collnet_chain.as_ref()),
        ("nvls", graphs.nvls.as_ref()),
        ("collnet direct", graphs.collnet_direct.as_ref()),
    ];
    graphs.into_iter().filter_map(|(name, graph)| Some((name, graph?))).collect()
}

pub(super) fn print(graphs: &Graphs, host: &Host, out: &mut dyn Write) -> anyhow::Result<()> {
    let wiring = Wiring::new(graphs);
    let (ranks, counts) = (wiring.ranks(), &graphs.counts);
    writeln!(out, "\nChannels of {ranks} ranks on {}\n", nodes(graphs.nodes))?;
    for (name, graph) in all(graphs) {
        writeln!(
            out,
            "{name}: Pattern {}, crossNic {}, nChannels {}, bw {:.1}/{:.1}, type {}/{}, sameChannels {}",
            graph.pattern.number(),
            graph.cross_nic,
            graph.channels.len(),
            graph.bw_intra,
            graph.bw_inter,
            graph.type_intra,
            graph.type_inter,
            u8::from(graph.same_channels),
        )?;
        print_graph(graph, host, out)?;
    }
    let channels = counts.collective;
    writeln!(out)?;
    let width = ranks.saturating_sub(1).to_string().len().max(2);
    for channel in 0..channels {
        let mut line = format!("Channel {channel:02}/{channels:02} :");
        let ring = &wiring.rings[channel as usize % wiring.rings.len()];
        // As rank 0 sees it: NCCL's log begins with itself.
        let start = ring.iter().position(|rank| *rank == 0).unwrap_or(0);
        for rank in ring[start..].iter().chain(&ring[..start]) {
            let _ = write!(line, " {rank:>width$}");
        }
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    print_trees(&wiring, channels, out)?;
    writeln!(
        out,
        "\n{} coll channels, {} nvls channels, {} p2p channels, {} p2p channels per peer",
        counts.collective, counts.nvls, counts.p2p, counts.p2p_per_peer
    )?;
    Ok(())
}

/// Each channel inside a node: the NIC it comes by, the GPUs, the NIC it goes by.
fn print_graph(graph: &Graph, host: &Host, out: &mut dyn Write) -> anyhow::Result<()> {
    let nics = host.compute_nics();
    let name = |nic: u32| format!("NET/{nic}({})", host.device(nics[nic as usize]).name);
    for (number, channel) in graph.channels.iter().enumerate() {
        let mut line = format!("{number:4} :");
        let first = channel.nic_in.map(name);
        let gpus = channel.gpus.iter().map(|gpu| format!("GPU/{gpu}"));
        let last = channel.nic_out.map(name).filter(|_| graph.pattern != Pattern::Nvls);
        for part in first.into_iter().chain(gpus).chain(last) {
            let _ = write!(line, " {part}");
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn print_trees(wiring: &Wiring, channels: u32, out: &mut dyn Write) -> anyhow::Result<()> {
    let trees: Vec<_> = (0..channels).map(|channel| wiring.tree(channel)).collect();
    let ranks = wiring.ranks();
    let shown = if ranks > RANKS_MAX { wiring.nodes[0].len() as u32 } else { ranks };
    for rank in 0..shown {
        let mut line = "Trees".to_owned();
        for (channel, tree) in trees.iter().enumerate() {
            let peers = &tree[rank as usize];
            let number = |peer: Option<u32>| peer.map_or("-1".to_owned(), |peer| peer.to_string());
            let down: Vec<_> = (0..3).map(|place| number(peers.down.get(place).copied())).collect();
            let _ = write!(line, " [{channel}] {}->{rank}->{}", down.join("/"), number(peers.up));
        }
        writeln!(out, "{line}")?;
    }
    if shown < ranks {
        writeln!(out, "… and so on for the other {} ranks", ranks - shown)?;
    }
    Ok(())
}

/// From each rank of the first node to each of it, and to each of the second.
fn pairs(transports: &Transports, per_node: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
    let last = transports.ranks().min(2 * per_node);
    let from_first = (0..per_node).flat_map(move |from| (0..last).map(move |to| (from, to)));
    from_first.filter(|(from, to)| from != to)
}

pub(super) fn print_transports(
    transports: &Transports,
    per_node: u32,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let others = transports.ranks() / per_node;
    writeln!(out, "\nTransports\n")?;
    let rows: Vec<_> = pairs(transports, per_node)
        .map(|(from, to)| {
            let reach = transports.between(from, to);
            (format!("{from} -> {to}"), reach.transport.to_string(), reach.reason)
        })
        .collect();
    let width = |cell: fn(&(String, String, String)) -> usize| rows.iter().map(cell).max().unwrap_or(0);
    let (first, second) = (width(|row| row.0.len()), width(|row| row.1.len()));
    for (pair, transport, reason) in &rows {
        writeln!(out, "  {pair:<first$}  via {transport:<second$}  {reason}")?;
    }
    if others > 2 {
        writeln!(out, "… other pairs of the {others} nodes are like these")?;
    }
    Ok(())
}

pub(super) fn object(graphs: &Graphs) -> Value {
    let wiring = Wiring::new(graphs);
    let graph = |graph: &Graph| {
        json!({
            "pattern": graph.pattern.number(),
            "cross_nic": graph.cross_nic,
            "bandwidth_intra": graph.bw_intra,
            "bandwidth_inter": graph.bw_inter,
            "type_intra": graph.type_intra.to_string(),
            "type_inter": graph.type_inter.to_string(),
            "same_channels": graph.same_channels,
            "channels": graph.channels.iter().map(|channel| json!({
                "nic_in": channel.nic_in,
                "gpus": channel.gpus,
                "nic_out": channel.nic_out,
            })).collect::<Vec<_>>(),
        })
    };
    let found: serde_json::Map<String, Value> =
        all(graphs).into_iter().map(|(name, one)| (name.replace(' ', "_"), graph(one))).collect();
    json!({
        "nodes": graphs.nodes,
        "graphs": found,
        "rings": wiring.rings,
        "coll_channels": graphs.counts.collective,
        "nvls_channels": graphs.counts.nvls,
        "p2p_channels": graphs.counts.p2p,
        "p2p_channels_per_peer": graphs.counts.p2p_per_peer,
    })
}

pub(super) fn transports_object(transports: &Transports, per_node: u32) -> Value {
    let rows = pairs(transports, per_node).map(|(from, to)| {
        let reach = transports.between(from, to);
        json!({ "from": from, "to": to, "via": reach.transport.to_string(), "reason": reach.reason })
    });
    rows.collect()
}

fn nodes(count: u32) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}
