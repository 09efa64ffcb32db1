//! `[[transfer]]`: blocks that are put into the windows of others, beside the same by send and receive.

use std::sync::Arc;

use railnet_coll::Peer;
use railnet_coll::conduit::SlotMemory;
use railnet_coll::machine::{Failure, expected_output, wrong_bytes};
use railnet_coll::variables::Variables;
use railnet_coll::window::{At, Awaited, PUT_MAX, Reserved, Rma, RmaOutput, WindowHandle, WindowId, Windows};
use railnet_coll::{Call, Collective};
use railnet_core::event::Sink;
use railnet_core::{Bytes, GhostRun, GhostTag, Psn, Rank, Span, Time};
use railnet_fabric::{BusPath, Network, host_gid};
use railnet_nic::memory::{Memory as _, SpaceId};
use railnet_nic::{Access, Completion, Connection, Path, QueuePairConfig, Service, VerbsError};
use railnet_topology::Vertex;

use super::communicator::timing_of;
use super::pending::Pending;
use super::plan::Entry;
use super::timing::Timing;
use super::{Collectives, HostResources};
use crate::scenario::{TransferSection, TransferWay};

/// The bit by which work, and memory that is watched, belong to a put.
pub(super) const PUT: u32 = 1 << 30;
/// Where windows begin.
const WINDOW: u64 = 1 << 40;
/// Where signals are counted.
const SIGNALS: u64 = 1 << 20;
/// Signals that may be under way at once: as many READs and atomics as NICs usually answer.
const ATOMICS: u8 = 16;
/// The most that one run of ghost memory can say.
const RUN_MAX: u64 = 1 << 30;

/// What came of a transfer, one way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransferResult {
    /// Which `[[transfer]]` of the scenario.
    pub section: usize,
    /// Whether it was put, and not sent and received.
    pub is_put: bool,
    /// Senders, each with its receiver.
    pub pairs: usize,
    /// Blocks of each.
    pub blocks: u64,
    /// Bytes of each block.
    pub block: Bytes,
    /// When it began.
    pub started: Time,
    /// Until some receiver had its first block.
    pub first: Span,
    /// Until all receivers had all.
    pub time: Span,
    /// Messages of NICs, those that control included.
    pub messages: u64,
    /// Packets that NICs sent.
    pub packets: u64,
    /// Their bytes.
    pub wire: Bytes,
    /// Bytes that are not what they should be.
    pub wrong: u64,
}

/// What NICs have sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    packets: u64,
    bytes: u64,
}

impl Sent {
    fn so_far<S: Sink>(network: &Network<S>) -> Self {
        let mut sent = Self::default();
        for (from, _, _, counters) in network.channels() {
            if matches!(from, Vertex::Host(_)) {
                sent.packets += counters.packets;
                sent.bytes += counters.bytes;
            }
        }
        sent
    }
}

/// All transfers.
#[derive(Debug, Default)]
pub(in crate::run) struct Transfers {
    /// How many `[[collective]]` there are: sections from there on are calls of transfers.
    pub(super) sections: usize,
    pub(super) puts: Vec<Put>,
    pairs: Vec<PutPair>,
    /// The put that runs, or comes next.
    at: usize,
    pub(in crate::run) results: Vec<TransferResult>,
    /// What NICs had sent before the present entry.
    sent: Sent,
    /// Messages of the present entry.
    pub(super) messages: u64,
    /// When the first call of the present entry was over on all ranks of a group.
    pub(super) first: Option<Time>,
}

impl Transfers {
    /// None yet, beside so many `[[collective]]`.
    pub(super) fn beside(sections: usize) -> Self {
        Self { sections, ..Self::default() }
    }

    fn next(&mut self) -> Option<&mut Put> {
        self.puts.get_mut(self.at)
    }

    /// Puts that are not over.
    pub(super) fn unfinished(&self) -> usize {
        self.puts.len() - self.at
    }
}

/// A transfer by put.
#[derive(Debug)]
pub(super) struct Put {
    section: usize,
    layers: u32,
    layer: u64,
    block: u64,
    /// The pairs, by their places among all.
    pairs: std::ops::Range<u32>,
    started: Time,
    first: Option<Time>,
    /// Blocks that are not there yet.
    left: u64,
    before: Sent,
}

/// A sender and its receiver.
#[derive(Debug)]
pub(super) struct PutPair {
    put: u32,
    ends: [Windows; 2],
    ports: [u32; 2],
    spaces: [SpaceId; 2],
    out: Option<BusPath>,
    into: Option<BusPath>,
    timing: Timing,
}

impl Collectives {
    /// Makes windows and connections for a transfer.
    pub(super) fn plan_put<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        section: usize,
        transfer: &TransferSection,
        pairs: &[[u32; 2]],
        variables: &Variables,
    ) -> Result<(), VerbsError> {
        if transfer.by == TransferWay::Send {
            return Ok(());
        }
        let first = self.transfers.pairs.len() as u32;
        let length = u64::from(transfer.layers) * transfer.layer.0.as_u64();
        for ends in pairs {
            let pair = self.put_pair(network, resources, *ends, length, variables)?;
            self.transfers.pairs.push(pair);
        }
        self.transfers.puts.push(Put {
            section,
            layers: transfer.layers,
            layer: transfer.layer.0.as_u64(),
            block: transfer.block.0.as_u64(),
            pairs: first..self.transfers.pairs.len() as u32,
            started: Time::ZERO,
            first: None,
            left: transfer.blocks() * pairs.len() as u64,
            before: Sent::default(),
        });
        Ok(())
    }

    fn put_pair<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        ends: [u32; 2],
        length: u64,
        variables: &Variables,
    ) -> Result<PutPair, VerbsError> {
        let index = self.transfers.pairs.len() as u32;
        let (mut ports, mut out, mut into) = (ends, None, None);
        let timing = timing_of(resources, variables);
        if let Some(servers) = resources.servers.as_deref() {
            let [from, to] = ends.map(|end| &servers.endpoints[end as usize]);
            (ports, out, into) = ([from.port, to.port], from.out.first().copied(), to.into.first().copied());
        }
        let bytes = Windows::signal_bytes(2);
        let mut windows = Vec::new();
        let mut spaces = [SpaceId::default(); 2];
        let mut handles = Vec::new();
        for side in 0..2 {
            let control = network.memory.add_bytes(SIGNALS, vec![0; bytes as usize]);
            let signals = Self::register(network, resources, ports[side], control, SIGNALS, bytes);
            if side == 1 {
                network.memory.watch(control, SIGNALS..SIGNALS + bytes, u64::from(PUT | index));
            }
            spaces[side] = network.memory.add_ghost(WINDOW, length);
            let SlotMemory { address, key, .. } =
                Self::register(network, resources, ports[side], spaces[side], WINDOW, length);
            handles.push(WindowHandle { address, length: Bytes(length), key });
            // Tokens count from 1 on: work of plain traffic has none.
            let token = (PUT | index << 1 | side as u32) + 1;
            windows.push(Windows::new(Rank(side as u32), 2, token, signals));
        }
        let mut numbers = Vec::new();
        for port in ports {
            let endpoint = &resources.ports[port as usize];
            let config = QueuePairConfig::new(Service::ReliableConnection, endpoint.queue);
            let (nic, _) = network.nic(port);
            numbers.push(nic.create_qp(endpoint.domain, &config)?);
        }
        for side in 0..2 {
            let config = self.settings.config;
            let path =
                Path { traffic_class: self.settings.traffic_class, ..Path::to(host_gid(ports[1 - side])) };
            let connection = Connection {
                path,
                destination: numbers[1 - side],
                mtu: config.mtu,
                send_psn: Psn::new(0),
                receive_psn: Psn::new(0),
                access: Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
                reads: ATOMICS,
                min_rnr_timer: 12,
                timeout: config.timeout,
                retry_count: config.retry_count,
                rnr_retry: 7,
            };
            let (nic, mut cx) = network.nic(ports[side]);
            for change in connection.transitions() {
                nic.modify_qp(&mut cx, numbers[side], &change)?;
            }
            let signal = windows[1 - side].signal_from(Rank(side as u32));
            windows[side].connect(Rank(1 - side as u32), numbers[side], signal);
            windows[side].register(handles[side]).expect("windows begin where they should");
            let far = handles[1 - side];
            windows[side]
                .registered(WindowId(0), Rank(1 - side as u32), far)
                .expect("it was just registered");
        }
        let ends = windows.try_into().expect("two were made");
        Ok(PutPair { put: self.transfers.puts.len() as u32, ends, ports, spaces, out, into, timing })
    }

    /// Begins with the next put.
    pub(super) fn start_put<S: Sink>(&mut self, network: &mut Network<S>) {
        let Some(put) = self.transfers.next() else {
            self.finished = network.now;
            return;
        };
        (put.started, put.before) = (network.now, Sent::so_far(network));
        let Put { layers, layer, block, .. } = *put;
        for index in put.pairs.clone() {
            let word = self.put_word(index);
            let pair = &mut self.transfers.pairs[index as usize];
            for (space, tag) in pair.spaces.iter().zip([GhostTag { sum: word, origin: 0 }, GhostTag::BLANK]) {
                let (mut offset, length) = (0, u64::from(layers) * layer);
                while offset < length {
                    let part = (length - offset).min(RUN_MAX);
                    let run = GhostRun { tag: tag.advanced(offset), length: part as u32 };
                    network.memory.write_ghost(*space, WINDOW + offset, run);
                    offset += part;
                }
            }
            let (nic, mut cx) = network.nic(pair.ports[1]);
            for _ in 0..u64::from(layers) * layer / block {
                let one = Awaited { peer: Rank(0), count: 1, reserved: Reserved::default() };
                let waits = pair.ends[1].submit(nic, &mut cx, vec![Rma::WaitSignal(vec![one])]);
                waits.expect("the sender is there");
            }
            for number in 0..layers {
                self.read_layer(network, index, number, layer);
            }
        }
    }

    /// The NIC reads a layer out of the GPU's memory.
    fn read_layer<S: Sink>(&mut self, network: &mut Network<S>, pair: u32, layer: u32, bytes: u64) {
        let PutPair { out, timing, .. } = &self.transfers.pairs[pair as usize];
        let (out, post) = (*out, timing.post());
        match out {
            Some(way) => {
                let token = self.pending.add(Pending::PutOut { pair, layer });
                network.carry(way, Bytes(bytes), self.packets(bytes), token);
            }
            None => self.put_later(network, post, pair, layer),
        }
    }

    fn packets(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.settings.mtu_bytes).max(1) as u32
    }

    /// A layer is at the NIC: soon the CPU posts it.
    pub(super) fn put_out<S: Sink>(&mut self, network: &mut Network<S>, pair: u32, layer: u32) {
        let post = self.transfers.pairs[pair as usize].timing.post();
        self.put_later(network, post, pair, layer);
    }

    fn put_later<S: Sink>(&mut self, network: &mut Network<S>, after: Span, pair: u32, layer: u32) {
        let token = self.pending.add(Pending::Put { pair, layer });
        network.call_on(self.transfers.pairs[pair as usize].ports[0], network.now + after, token);
    }

    /// The blocks of a layer are put, each with its signal.
    pub(super) fn put_layer<S: Sink>(&mut self, network: &mut Network<S>, pair: u32, layer: u32) {
        let PutPair { put, ends, ports, .. } = &mut self.transfers.pairs[pair as usize];
        let Put { layer: bytes, block, .. } = self.transfers.puts[*put as usize];
        let first = u64::from(layer) * bytes;
        let puts = (0..bytes / block).map(|index| {
            let at = At { window: WindowId(0), offset: first + index * block };
            let (bytes, reserved) = (Bytes(block), Reserved::default());
            Rma::PutSignal { peer: Rank(1), from: at, to: at, bytes, reserved }
        });
        let port = ports[0];
        let (nic, mut cx) = network.nic(port);
        ends[0].submit(nic, &mut cx, puts.collect()).expect("windows are as long as what is put");
        network.kick(port);
    }

    /// A NIC has something to say about what was put.
    pub(super) fn put_completed<S: Sink>(&mut self, network: &mut Network<S>, completion: &Completion) {
        let name = ((completion.work >> 32) as u32 - 1) & !PUT;
        let (index, side) = (name >> 1, (name & 1) as usize);
        let PutPair { ends, ports, .. } = &mut self.transfers.pairs[index as usize];
        let port = ports[side];
        let (nic, mut cx) = network.nic(port);
        ends[side].completed(nic, &mut cx, completion);
        network.kick(port);
        self.drain_put(network, index, side);
    }

    /// Signals have come.
    pub(super) fn put_touched<S: Sink>(&mut self, network: &mut Network<S>, index: u32) {
        let PutPair { ends, ports, .. } = &mut self.transfers.pairs[index as usize];
        let (nic, mut cx) = network.nic(ports[1]);
        ends[1].poll(nic, &mut cx);
        self.drain_put(network, index, 1);
    }

    fn drain_put<S: Sink>(&mut self, network: &mut Network<S>, index: u32, side: usize) {
        while let Some(output) = self.transfers.pairs[index as usize].ends[side].poll_output() {
            let pair = &self.transfers.pairs[index as usize];
            match output {
                RmaOutput::Finished(_) if side == 0 => {}
                RmaOutput::Finished(_) => {
                    let block = self.transfers.puts[pair.put as usize].block;
                    match pair.into {
                        Some(way) => {
                            let token = self.pending.add(Pending::PutInto { pair: index });
                            network.carry(way, Bytes(block), self.packets(block), token);
                        }
                        None => self.put_arrived(network, index),
                    }
                }
                RmaOutput::Failed(error) => {
                    let (at, with) = (Rank(side as u32), Peer::Rank(1 - side as u32));
                    let reason = error.to_string();
                    let failure = Failure::Broken { at, with, channel: 0, reason, during: None };
                    self.failure.get_or_insert(Arc::new(failure));
                }
            }
        }
    }

    /// A block is in the receiver's memory, and it knows.
    pub(super) fn put_arrived<S: Sink>(&mut self, network: &mut Network<S>, index: u32) {
        let put = &mut self.transfers.puts[self.transfers.pairs[index as usize].put as usize];
        put.first.get_or_insert(network.now);
        put.left -= 1;
        if put.left > 0 {
            return;
        }
        let result = self.put_result(network);
        self.transfers.results.push(result);
        self.transfers.at += 1;
        self.start_put(network);
    }

    fn put_result<S: Sink>(&self, network: &Network<S>) -> TransferResult {
        let put = &self.transfers.puts[self.transfers.at];
        let (length, sent) = (u64::from(put.layers) * put.layer, Sent::so_far(network));
        let blocks = length / put.block;
        let call = Call { peer: Rank(1), ..Call::new(Collective::SendReceive, length / 4) };
        let wrong = put.pairs.clone().map(|index| {
            let ghost =
                network.memory.ghost(self.transfers.pairs[index as usize].spaces[1]).expect("it is a ghost");
            let words = [self.put_word(index), 0];
            wrong_bytes(&expected_output(&call, Rank(1), 2), call.dtype, &words, ghost, 0)
        });
        let each = blocks * (put.block.div_ceil(PUT_MAX) + 1);
        TransferResult {
            section: put.section,
            is_put: true,
            pairs: put.pairs.len(),
            blocks,
            block: Bytes(put.block),
            started: put.started,
            first: put.first.unwrap_or(network.now).since(put.started),
            time: network.now.since(put.started),
            messages: each * put.pairs.len() as u64,
            packets: sent.packets - put.before.packets,
            wire: Bytes(sent.bytes - put.before.bytes),
            wrong: wrong.sum(),
        }
    }

    /// What a sender's window holds.
    fn put_word(&self, index: u32) -> u128 {
        let mut random = railnet_core::Random::stream(self.seed, "transfer word", u64::from(index));
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    }

    /// An entry begins: what was sent before does not count.
    pub(super) fn begin_count<S: Sink>(&mut self, network: &Network<S>) {
        if self.entries[self.at].section >= self.transfers.sections {
            let transfers = &mut self.transfers;
            (transfers.sent, transfers.messages, transfers.first) = (Sent::so_far(network), 0, None);
        }
    }

    /// An entry is over that sent the blocks of a transfer.
    pub(super) fn note_sends<S: Sink>(&mut self, network: &Network<S>) {
        let Entry { section, iterations, parts, .. } = &self.entries[self.at];
        let Some(section) = section.checked_sub(self.transfers.sections) else { return };
        let Some(result) = self.results.pop() else { return };
        let sent = Sent::so_far(network);
        self.transfers.results.push(TransferResult {
            section,
            is_put: false,
            pairs: parts.len(),
            blocks: u64::from(*iterations),
            block: result.call.bytes(2),
            started: result.started,
            first: self.transfers.first.unwrap_or(network.now).since(result.started),
            time: network.now.since(result.started),
            messages: self.transfers.messages,
            packets: sent.packets - self.transfers.sent.packets,
            wire: Bytes(sent.bytes - self.transfers.sent.bytes),
            wrong: result.wrong * result.call.dtype.size() as u64,
        });
    }
}
