//! Grouped sends and receives: AllToAll, Gather, Scatter, SendReceive, and a barrier (NCCL 2.30.7 src/enqueue.cc).

use railnet_core::Bytes;

use super::decision::Decision;
use super::inputs::Inputs;
use super::table::Request;
use crate::algorithm::Algorithm;
use crate::call::Collective;
use crate::protocol::Protocol;

/// Bytes for each channel up to which LL is used (`NCCL_P2P_LL_THRESHOLD`).
const LL_THRESHOLD: u64 = 16 * 1024;
/// Threads of the channels.
const THREADS: u32 = 640;

/// How the transfers of a call run; all are of one size.
pub(super) fn decide(inputs: &Inputs, request: &Request) -> Decision {
    let ranks = u64::from(inputs.ranks);
    let bytes = match request.collective {
        Collective::SendReceive => request.bytes.0,
        _ => request.bytes.0 / ranks,
    };
    let parts = parts(inputs, bytes);
    // Connections over the network have no buffers for LL.
    let is_short = bytes <= u64::from(parts) * LL_THRESHOLD && inputs.nodes == 1;
    let allows = |protocol: Protocol| inputs.settings.protocols.allows(request.collective, protocol as usize);
    let protocol = if is_short && allows(Protocol::Ll) { Protocol::Ll } else { Protocol::Simple };
    let buffer = inputs.settings.buffers[protocol as usize];
    let slot = protocol.payload(buffer.0 / u64::from(Protocol::SLOTS));
    let mut chunk = inputs.peers.chunk.0.min(slot);
    if protocol == Protocol::Simple && inputs.nodes > 1 {
        // Over the network short transfers are pipelined in smaller chunks.
        chunk = match bytes {
            bytes if bytes < chunk => chunk / 4,
            bytes if bytes < 8 * chunk => chunk / 2,
            _ => chunk,
        };
    }
    Decision {
        algorithm: Algorithm::PointToPoint,
        protocol,
        channels: inputs.peers.channels.max(1),
        parts: Some(parts),
        threads: THREADS,
        chunk: Bytes(chunk),
        buffer,
        estimate: None,
    }
}

/// Channels over which one transfer is spread.
fn parts(inputs: &Inputs, bytes: u64) -> u32 {
    let peers = inputs.peers;
    let (least, most) = if inputs.nodes > 1 {
        (peers.chunk.0 / 2, peers.chunk.0)
    } else {
        (peers.chunk.0 / 8, peers.chunk.0 * 32)
    };
    let per_peer = peers.per_peer.max(1);
    let mut parts = per_peer;
    while parts > 1 && u64::from(parts) * u64::from(inputs.ranks) > u64::from(peers.channels) {
        parts /= 2;
    }
    parts = bytes.div_ceil(least.max(1)).clamp(1, u64::from(parts)) as u32;
    while 2 * parts <= per_peer && bytes.div_ceil(u64::from(parts)) > most {
        parts *= 2;
    }
    parts
}
