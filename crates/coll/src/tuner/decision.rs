//! What follows from a winner: channels, threads, chunks (NCCL 2.30.7 src/enqueue.cc).

use railnet_core::Bytes;

use super::inputs::Inputs;
use super::peers;
use super::table::{Estimate, Model, NoChoice, Request, Table};
use crate::algorithm::split::cell;
use crate::algorithm::{Algorithm, Choice};
use crate::call::Collective;
use crate::protocol::{Fifo, Protocol};

/// How a call is to run, and what that is expected to cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decision {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Channels that share the data.
    pub channels: u32,
    /// Over how many of them grouped sends and receives spread each message.
    pub parts: Option<u32>,
    /// Threads of each channel.
    pub threads: u32,
    /// The longest chunk, in bytes of data.
    pub chunk: Bytes,
    /// The buffer of a connection.
    pub buffer: Bytes,
    /// What it costs; the model has nothing to say of grouped sends and receives.
    pub estimate: Option<Estimate>,
}

impl Decision {
    /// The decision as schedules are built from it.
    pub const fn choice(&self) -> Choice {
        Choice {
            algorithm: self.algorithm,
            protocol: self.protocol,
            channels: self.channels,
            parts: self.parts,
            buffer: Some(self.buffer),
            chunk: Some(self.chunk),
            fifo: None,
            by_turns: false,
        }
    }
}

/// Decides as NCCL does.
pub fn choose(inputs: &Inputs, request: &Request) -> Result<Decision, NoChoice> {
    match request.collective {
        Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter
        | Collective::SendReceive
        | Collective::Barrier => Ok(peers::decide(inputs, request)),
        _ => Table::new(inputs, request).choose(inputs, request),
    }
}

impl Table {
    /// Decides with this table, which must be one for the request's kind.
    pub fn choose(&self, inputs: &Inputs, request: &Request) -> Result<Decision, NoChoice> {
        let (cell, estimate) = self.best(request.bytes, request.together)?;
        let (algorithm, protocol) = (cell.algorithm, cell.protocol);
        let sizing = Sizing { inputs, request, algorithm, protocol };
        let (channels, threads) = sizing.channels_and_threads();
        let slow_nvls = matches!(
            self.cell(Algorithm::Nvls, Protocol::Simple).outcome,
            Ok(Model { bandwidth, .. }) if bandwidth < 150.0
        );
        let chunk = sizing.chunk(channels, slow_nvls);
        let buffer = inputs.settings.buffers[protocol as usize];
        let parts = None;
        Ok(Decision {
            algorithm,
            protocol,
            channels,
            parts,
            threads,
            chunk,
            buffer,
            estimate: Some(estimate),
        })
    }
}

/// Threads of a channel at most.
const THREADS_MAX: u32 = 640;
/// Threads of a warp.
const WARP: u32 = 32;

/// Threads that an algorithm gets with a protocol at most.
pub fn threads_max(inputs: &Inputs, algorithm: Algorithm, protocol: Protocol) -> u32 {
    let asked = inputs.settings.threads;
    match (algorithm, protocol) {
        (Algorithm::Ring, Protocol::Simple) => {
            let narrow =
                inputs.graphs.ring.is_some_and(|ring| ring.bandwidth_intra * ring.channels as f32 <= 12.0);
            asked.unwrap_or(if narrow { 256 } else { 512 })
        }
        (Algorithm::Tree, Protocol::Simple) | (_, Protocol::Ll) => asked.unwrap_or(512),
        _ => THREADS_MAX,
    }
}

/// Bytes that a thread must have, or fewer channels and threads are used.
pub fn thread_threshold(inputs: &Inputs, algorithm: Algorithm, protocol: Protocol) -> u64 {
    match (algorithm, protocol) {
        (Algorithm::Ring, Protocol::Ll) => 8 * u64::from(inputs.ranks),
        (Algorithm::CollNetDirect | Algorithm::CollNetChain, Protocol::Simple) => 512,
        (_, Protocol::Simple) => 64,
        _ => 8,
    }
}

struct Sizing<'a> {
    inputs: &'a Inputs,
    request: &'a Request,
    algorithm: Algorithm,
    protocol: Protocol,
}

impl Sizing<'_> {
    fn channels_and_threads(&self) -> (u32, u32) {
        let Self { inputs, request, algorithm, protocol } = *self;
        let bytes = request.bytes.0;
        let threshold = thread_threshold(inputs, algorithm, protocol);
        let mut channels = inputs.channels.max(1);
        let mut threads = threads_max(inputs, algorithm, protocol);
        let is_little = |channels: u32, threads: u32, heads: u64, threshold: u64| {
            bytes < u64::from(channels) * u64::from(threads) * heads * threshold
        };
        match algorithm {
            Algorithm::Nvls | Algorithm::NvlsTree => {
                let all = inputs.nvls_channels.max(1);
                let both = algorithm == Algorithm::Nvls && inputs.nodes > 1;
                return (if both { all.min(channels) } else { all }, threads);
            }
            Algorithm::CollNetDirect => {
                // Halves what a thread must have on the way down, at one and a half times each power of two.
                let (heads, mut threshold) = (u64::from(self.heads()), threshold);
                for power in [16, 8, 4, 2, 1] {
                    while is_little(channels, threads, heads, threshold) && channels > power {
                        if channels == power + power / 2 {
                            threshold /= 2;
                        }
                        channels -= 1;
                    }
                }
                return (channels, threads.max(3 * WARP));
            }
            _ => {}
        }
        while channels >= 2 && is_little(channels, threads, 1, threshold) {
            channels -= 1;
        }
        while threads.is_multiple_of(128) && is_little(channels, threads, 1, threshold) {
            threads /= 2;
        }
        threads = match (algorithm, protocol) {
            (Algorithm::Tree | Algorithm::Pat, _) => THREADS_MAX,
            (Algorithm::Ring, Protocol::Simple) => (threads + WARP).max(3 * WARP),
            _ => threads.max(3 * WARP),
        };
        (self.busy(channels), threads)
    }

    /// Channels that get something: a cell of the data, or of the block of each rank.
    fn busy(&self, channels: u32) -> u32 {
        let Inputs { ranks, .. } = *self.inputs;
        let Request { collective, bytes, .. } = *self.request;
        let blocks = match collective {
            Collective::AllGather | Collective::ReduceScatter => u64::from(ranks),
            _ => 1,
        };
        let (bytes, (cell, _)) = (bytes.0 / blocks, cell(collective, self.protocol, ranks));
        channels.min(bytes.div_ceil(cell).clamp(1, u64::from(u32::MAX)) as u32)
    }

    fn heads(&self) -> u32 {
        let graph = self.inputs.graphs.of(self.algorithm);
        graph.map_or(1, |graph| graph.channels.min(self.inputs.local_ranks)).max(1)
    }

    /// The longest chunk in bytes of data (calcCollChunking).
    fn chunk(&self, channels: u32, slow_nvls: bool) -> Bytes {
        let Self { inputs, request, algorithm, protocol } = *self;
        let fine = algorithm == Algorithm::Ring
            && !matches!(request.collective, Collective::Broadcast | Collective::Reduce);
        let fifo = Fifo::new(protocol, inputs.settings.buffers[protocol as usize], fine);
        let (bytes, channels) = (request.bytes.0, u64::from(channels));
        let mut chunk = fifo.chunk().0;
        let wide = channels * u64::from(self.heads());
        let depth = u64::from(inputs.ranks / inputs.nodes);
        let nodes = inputs.nodes;
        match algorithm {
            Algorithm::CollNetDirect => {
                for (loops, least) in [(64, 128), (8, 64), (8, 32)] {
                    while bytes / (wide * chunk).max(1) < depth * loops && chunk > least * 1024 {
                        chunk /= 2;
                    }
                }
            }
            Algorithm::CollNetChain => {
                chunk = chunk.min(256 * 1024);
                for (loops, least) in [(64, 128), (8, 64), (1, 32)] {
                    while bytes / (channels * chunk).max(1) < depth * loops && chunk > least * 1024 {
                        chunk /= 2;
                    }
                }
            }
            Algorithm::Nvls => {
                chunk = chunk.min(if nodes > 1 && slow_nvls { 32 } else { 128 } * 1024);
                chunk = stepped(chunk, bytes, wide, &[(64, 64), (8, 32), (2, 16)]);
            }
            Algorithm::NvlsTree => {
                chunk = chunk.min(if nodes >= 4 { 64 } else { 128 } * 1024);
                chunk = stepped(chunk, bytes, wide, &[(32, 256), (16, 128), (4, 64), (1, 32)]);
            }
            Algorithm::Tree if protocol == Protocol::Ll128 => {
                let per_node = inputs.per_node();
                let steps = (f64::from(1 + nodes.ilog2()) + 0.1 * f64::from(per_node)) as f32;
                for (loops, least) in [(64.0, 128), (16.0, 32)] {
                    while ((bytes / (channels * chunk).max(1)) as f32) < steps * loops / per_node
                        && chunk > least * 1024
                    {
                        chunk /= 2;
                    }
                }
            }
            Algorithm::Pat => {
                let loops = if request.collective == Collective::AllGather { 32 } else { 16 };
                while chunk * channels * loops > bytes && chunk > 64 * 1024 {
                    chunk /= 2;
                }
            }
            _ => {}
        }
        let grain = protocol.grain();
        Bytes(if chunk >= grain { chunk / grain * grain } else { chunk })
    }
}

/// A chunk shortened where there are fewer than so many loops of it: (loops, KiB).
fn stepped(mut chunk: u64, bytes: u64, wide: u64, steps: &[(u64, u64)]) -> u64 {
    for (loops, kib) in steps {
        if bytes < loops * wide * chunk && chunk > kib * 1024 {
            chunk = kib * 1024;
        }
    }
    chunk
}
