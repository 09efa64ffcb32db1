//! Which ranks of a group talk to which across servers in a collective, by which NICs, and what share of the call's bytes each
//! connection carries.

use std::collections::BTreeMap;
use std::ops::Range;

use railnet_coll::algorithm::ChannelShares;
use railnet_coll::transport::{Transport, Transports};
use railnet_coll::tuner::{Decision, Inputs};
use railnet_coll::{
    Algorithm, Call, Collective, Connection, Peer, Protocol, Schedule, SwitchKind, Wiring, build,
};
use railnet_core::Bytes;

use super::pipeline;

/// The elements of a channel in the call by which shares are counted: a few grains of every protocol.
const ELEMENTS: u64 = 1 << 12;
/// Pairs of ranks of all-to-all that are counted one by one; of more, a regular sample stands for all.
const PAIRS_MAX: u64 = 1 << 18;

/// A connection between ranks of a group on two servers, or between a rank and the switches of the fabric.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Hop {
    /// The channel that uses it; of messages, none has.
    pub(super) channel: u32,
    pub(super) from: Option<u32>,
    pub(super) to: Option<u32>,
    /// The NICs of both ends.
    pub(super) nics: [u32; 2],
    /// The rank beside the sender's NIC to which data is handed first (PXN).
    pub(super) relay: Option<u32>,
    /// Whether the NICs may reach the memory of the GPUs.
    pub(super) gdr: [bool; 2],
    /// Bytes over it for each byte of the call.
    pub(super) share: f64,
}

/// The ranks of a group and how they reach each other.
#[derive(Clone, Debug)]
pub(super) struct Wired {
    pub(super) wiring: Wiring,
    pub(super) transports: Transports,
    node_of: Vec<u32>,
    /// How a GPU of a server reaches one of another by messages, by their numbers in their servers: servers are alike.
    messages: BTreeMap<(u32, u32), Message>,
}

/// How a message leaves a server and enters another one.
#[derive(Clone, Copy, Debug)]
struct Message {
    nics: [u32; 2],
    /// The GPU that helps, by its number in the sender's server.
    relay: Option<u32>,
    gdr: [bool; 2],
}

impl Wired {
    pub(super) fn new(wiring: Wiring, transports: Transports) -> Self {
        let mut messages = BTreeMap::new();
        if let [one, other, ..] = &wiring.nodes[..] {
            for (from_local, from) in (0..).zip(one) {
                for (to_local, to) in (0..).zip(other) {
                    if let Some(message) = message(&transports, one[0], *from, *to) {
                        messages.insert((from_local, to_local), message);
                    }
                }
            }
        }
        Self { node_of: wiring.node_of(), wiring, transports, messages }
    }

    /// The number of a rank among those of its server, and the first of those.
    fn local(&self, rank: u32) -> (u32, u32) {
        let first = self.wiring.nodes[self.node_of[rank as usize] as usize].first().copied().unwrap_or(rank);
        (rank - first, first)
    }

    /// The connections across servers of a collective that runs as decided, with data shared out like this over its channels.
    pub(super) fn hops(
        &self,
        collective: Collective,
        decision: &Decision,
        shares: ChannelShares,
    ) -> Vec<Hop> {
        if self.wiring.nodes.len() < 2 {
            return Vec::new();
        }
        match (collective, decision.algorithm) {
            (Collective::AllToAll, _) => self.all_to_all(),
            (_, Algorithm::Ring) => self.ring(collective, shares),
            (_, Algorithm::Pat) => self.pat(collective, decision),
            _ => self.scheduled(collective, decision, shares),
        }
    }

    fn is_across(&self, from: u32, to: u32) -> bool {
        self.node_of[from as usize] != self.node_of[to as usize]
    }

    fn ring(&self, collective: Collective, shares: ChannelShares) -> Vec<Hop> {
        let factor = collective.bus_factor(self.wiring.ranks());
        let mut hops = Vec::new();
        for channel in 0..shares.channels() {
            let share = factor * shares.of(channel);
            let ring = &self.wiring.rings[channel as usize % self.wiring.rings.len()];
            for (from, to) in ring.iter().zip(ring.iter().cycle().skip(1)) {
                if self.is_across(*from, *to) {
                    hops.extend(self.hop(Algorithm::Ring, channel, *from, *to, share));
                }
            }
        }
        hops
    }

    /// Every rank has a part for every other.
    fn all_to_all(&self) -> Vec<Hop> {
        let ranks = self.wiring.ranks();
        let stride = (u64::from(ranks) * u64::from(ranks)).div_ceil(PAIRS_MAX).max(1) as u32;
        let share = f64::from(stride) / f64::from(ranks);
        let mut hops = Vec::new();
        for from in 0..ranks {
            // Distances that are alike for all senders load all receivers alike.
            for distance in (1..ranks).step_by(stride as usize) {
                let to = (from + distance) % ranks;
                if self.is_across(from, to) {
                    hops.extend(self.hop(Algorithm::PointToPoint, 0, from, to, share));
                }
            }
        }
        hops
    }

    /// Trees that are the same for every rank but for where they begin: what the first sends to others that are so far away, each
    /// sends to those that are as far from it.
    fn pat(&self, collective: Collective, decision: &Decision) -> Vec<Hop> {
        let ranks = self.wiring.ranks();
        let call = Call::new(collective, 1);
        let choice = Decision { channels: 1, ..*decision }.choice();
        let Ok(schedule) = build(&call, &choice, &self.wiring) else { return Vec::new() };
        let all = call.bytes(ranks).as_u64() as f64;
        let mut hops = Vec::new();
        for ((_, connection, sends), bytes) in bytes_by_connection(&schedule, 0..1) {
            let Peer::Rank(away) = connection.peer else { continue };
            if !sends {
                continue;
            }
            for from in 0..ranks {
                let to = (from + away) % ranks;
                if self.is_across(from, to) {
                    hops.extend(self.hop(Algorithm::Pat, 0, from, to, bytes / all));
                }
            }
        }
        hops
    }

    /// What a schedule sends over each connection, for a small call in which all channels have as much.
    fn scheduled(&self, collective: Collective, decision: &Decision, shares: ChannelShares) -> Vec<Hop> {
        let ranks = self.wiring.ranks();
        let channels = shares.channels();
        let call = Call::new(collective, ELEMENTS * u64::from(channels));
        let choice = Decision { channels, ..*decision }.choice();
        let Ok(schedule) = build(&call, &choice, &self.wiring) else { return Vec::new() };
        let all = call.bytes(ranks).as_u64() as f64;
        let bytes = bytes_by_connection(&schedule, 0..ranks);
        let mut hops = Vec::new();
        for ((rank, connection, sends), bytes) in bytes {
            let share = bytes / all * shares.of(u32::from(connection.channel)) * f64::from(channels);
            match connection.peer {
                Peer::Rank(to) if sends && self.is_across(rank, to) => {
                    let channel = u32::from(connection.channel);
                    hops.extend(self.hop(schedule.algorithm, channel, rank, to, share));
                }
                Peer::Switch(group) if schedule.groups[group as usize].kind == SwitchKind::Network => {
                    let channel = u32::from(connection.channel);
                    hops.extend(self.to_switches(schedule.algorithm, channel, rank, sends, share));
                }
                _ => {}
            }
        }
        hops
    }

    fn hop(&self, algorithm: Algorithm, channel: u32, from: u32, to: u32, share: f64) -> Option<Hop> {
        let wired = [from, to].map(|rank| self.wiring.nic(algorithm, channel, rank));
        let (nics, relay, gdr) = if let [Some(out), Some(into)] = wired {
            let (relay, gdr_send) = self.transports.by_nic(from, out, true);
            let (_, gdr_receive) = self.transports.by_nic(to, into, false);
            ([out, into], relay, [gdr_send, gdr_receive])
        } else {
            let ((local, first), (to_local, _)) = (self.local(from), self.local(to));
            let Message { nics, relay, gdr } = *self.messages.get(&(local, to_local))?;
            (nics, relay.map(|relay| first + relay), gdr)
        };
        Some(Hop { channel, from: Some(from), to: Some(to), nics, relay, gdr, share })
    }

    fn to_switches(
        &self,
        algorithm: Algorithm,
        channel: u32,
        rank: u32,
        sends: bool,
        share: f64,
    ) -> Option<Hop> {
        let nic = self.wiring.nic(algorithm, channel, rank).or_else(|| self.transports.nic_beside(rank))?;
        let (relay, gdr) = self.transports.by_nic(rank, nic, sends);
        let (from, to) = if sends { (Some(rank), None) } else { (None, Some(rank)) };
        Some(Hop { channel, from, to, nics: [nic; 2], relay, gdr: [gdr; 2], share })
    }
}

/// How one rank sends a message to another on a different server; `first` is the first rank of the sender's.
fn message(transports: &Transports, first: u32, from: u32, to: u32) -> Option<Message> {
    match transports.between(from, to).transport {
        Transport::Network { from_nic, to_nic, gdr_send, gdr_receive, relay, .. } => Some(Message {
            nics: [from_nic, to_nic],
            relay: relay.map(|relay| relay - first),
            gdr: [gdr_send, gdr_receive],
        }),
        _ => None,
    }
}

/// The bytes that some ranks send on each connection, and receive.
fn bytes_by_connection(schedule: &Schedule, ranks: Range<u32>) -> BTreeMap<(u32, Connection, bool), f64> {
    let mut bytes = BTreeMap::new();
    for rank in ranks {
        for worker in 0..schedule.program.workers(rank) {
            for number in 0..schedule.program.steps(rank, worker) {
                let step = schedule.program.step(rank, worker, number);
                let data = schedule.call.dtype.bytes(step.count).as_u64() as f64;
                let sent = step.sends.iter().map(|to| (*to, true));
                let heard = step.receives.iter().map(|from| (*from, false));
                for (connection, sends) in sent.chain(heard) {
                    *bytes.entry((rank, connection, sends)).or_insert(0.0) += data;
                }
            }
        }
    }
    bytes
}

/// Bytes on the way for each byte of data, flags included.
pub(super) fn flags_factor(protocol: Protocol) -> f64 {
    // Lines of all protocols fit into so many bytes of data.
    const DATA: u64 = 120;
    protocol.on_the_way(DATA) as f64 / DATA as f64
}

/// How the data of a call is shared out over its channels.
pub(super) fn shares(collective: Collective, decision: &Decision, bytes: Bytes, ranks: u32) -> ChannelShares {
    ChannelShares::new(collective, decision.protocol, ranks, bytes, decision.channels)
}

/// What a channel sends at a time over a connection, in bytes: a slot, the chunk of algorithms with heads (NCCL 2.30 enqueue.cc),
/// or all it has of a small call.
pub(super) fn piece(collective: Collective, decision: &Decision, bytes: f64, inputs: &Inputs) -> f64 {
    let slot = decision.protocol.payload(decision.protocol.buffer().as_u64() / u64::from(Protocol::SLOTS));
    let (blocks, most) = match decision.algorithm {
        // A chunk goes in slices.
        Algorithm::Ring => (inputs.ranks * pipeline::fifo(collective, decision).slices_per_chunk, slot),
        // Heads share what a channel has.
        Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollNetDirect => {
            let heads = inputs.graphs.of(decision.algorithm).map_or(1, |graph| graph.channels);
            let chunk = if inputs.nodes >= 4 { 64 * 1024 } else { 128 * 1024 };
            (heads.min(inputs.local_ranks), chunk)
        }
        // NCCL shortens the chunks of LL128 where there are few of them.
        Algorithm::Tree => (1, decision.chunk.as_u64().min(slot)),
        _ => (1, slot),
    };
    let each = bytes / f64::from(decision.channels.max(1)) / f64::from(blocks.max(1));
    each.clamp(1.0, most as f64)
}
