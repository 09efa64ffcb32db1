//! How the steps of rings and trees between servers overlap. NCCL's estimate adds a latency to bytes over a bandwidth, with factors
//! by size for what lies between (`treeCorrectionFactor`, the plateau of rings); here the chunks and slices that a call has are
//! counted, and those factors are left out.

use railnet_coll::tuner::{Constants, Decision, Inputs, Request, Threads};
use railnet_coll::{Collective, Fifo};

use super::traffic;

/// Where the interconnect is the bottleneck of a ring, it is busy while other chunks are on their hops: every rank has a chunk under
/// way, and only this part of the latency is left, to fill the pipeline. Fitted to runs with packets (docs/validation.md).
const RING_FILL: f64 = 0.25;

/// A ring: every chunk passes every rank, one step after the other. The latency and NCCL's time for the bytes are in seconds, as is
/// the time in which the interconnect is busy.
pub(super) fn ring(
    inputs: &Inputs,
    request: &Request,
    decision: &Decision,
    (latency, transfer, on_network): (f64, f64, f64),
) -> f64 {
    let steps = match Threads::of(&Constants::NCCL, inputs, decision.algorithm, decision.protocol) {
        // All channels share the threads of the GPU: while one waits for a step, others send.
        Threads::Gpu(_) => (latency + transfer / f64::from(decision.channels.max(1))).max(transfer),
        // A slice is on its next hop while the chunk's next one is sent: a step waits for one slice.
        Threads::Block(_) | Threads::Unlimited => {
            latency + transfer / f64::from(fifo(request.collective, decision).slices_per_chunk)
        }
    };
    steps.max(latency * RING_FILL + on_network)
}

/// The slots of a ring's connections.
pub(super) fn fifo(collective: Collective, decision: &Decision) -> Fifo {
    let is_fine = !matches!(collective, Collective::Broadcast | Collective::Reduce);
    Fifo::new(decision.protocol, decision.buffer, is_fine)
}

/// Hops between servers from the root of a tree to its farthest server: each of NCCL's two trees hangs the largest power of two below
/// the root, and halves of that below it.
pub(super) fn tree_depth(nodes: u32) -> u32 {
    nodes.next_power_of_two().ilog2()
}

/// A tree: a GPU hands a chunk on when all of it has come, so that the last chunk takes each step for all of its bytes, at the rate
/// of the threads of a channel. Those before it follow each other at half that rate, since the same threads send up and down.
/// Nothing where there are no trees.
pub(super) fn tree(
    inputs: &Inputs,
    request: &Request,
    decision: &Decision,
    (latency, on_network): (f64, f64),
) -> Option<f64> {
    let graph = inputs.graphs.of(decision.algorithm)?;
    let shares = traffic::shares(request.collective, decision, request.bytes, inputs.ranks);
    let channels = f64::from(shares.channels());
    let of_channel = request.bytes.as_u64() as f64 * shares.of(0);
    let chunk = of_channel.min(decision.chunk.as_u64() as f64);
    let directions = if request.collective == Collective::AllReduce { 2.0 } else { 1.0 };
    let steps = directions * f64::from(inputs.ranks / inputs.nodes - 1 + tree_depth(inputs.nodes));
    let links = f64::from(graph.channels) * f64::from(graph.bandwidth_intra) * 1e9;
    match Threads::of(&Constants::NCCL, inputs, decision.algorithm, decision.protocol) {
        // All channels share the threads of the GPU: while one waits for a step, others send.
        Threads::Gpu(gigabytes) => {
            let rate = (gigabytes * 1e9).min(links);
            let all = directions * request.bytes.as_u64() as f64 / rate;
            Some((latency + steps * chunk / rate).max(all).max(latency + on_network))
        }
        Threads::Block(gigabytes) => {
            let rate = (gigabytes * 1e9).min(links / channels);
            let others = directions * (of_channel - chunk) / rate;
            Some(latency + steps * chunk / rate + others.max(on_network))
        }
        Threads::Unlimited => None,
    }
}
