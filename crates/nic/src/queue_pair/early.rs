//! Requests that came before their turn, kept until it comes.

use std::collections::{BTreeMap, VecDeque};

use railnet_core::event::Sink;
use railnet_core::{Psn, Span, Time};
use railnet_wire::{Headers, Network, SelectiveAck};

use super::answers::Response;
use super::{Responder, Shared};
use crate::context::Context;
use crate::device::Device;
use crate::error::DropReason;
use crate::memory::{GhostRuns, Memory};
use crate::packet::{Inbound, Payload};

/// Requests that may wait behind a READ's answer: more than a peer that keeps to Soft-RoCE's limit has under way.
const HELD_MAX: usize = 1 << 10;

/// Early packets after which an answer tells of them at the latest: each then is in several answers.
const UNTOLD_MAX: u16 = 32;

/// How often an answer tells of early packets in the time after which missing ones are taken for lost, at least.
const TOLD_TIMES: u64 = 4;

#[derive(Debug)]
enum Kept {
    Bytes(Vec<u8>),
    Ghost(GhostRuns),
}

/// A packet that is kept.
#[derive(Debug)]
struct Early {
    network: Network,
    headers: Headers,
    payload: Kept,
}

impl Early {
    fn new(packet: &Inbound<'_>) -> Self {
        let payload = match packet.payload {
            Payload::Bytes(bytes) => Kept::Bytes(bytes.to_vec()),
            Payload::Ghost(runs) => Kept::Ghost(runs.into()),
        };
        Self { network: *packet.network, headers: *packet.headers, payload }
    }

    fn inbound(&self) -> Inbound<'_> {
        let payload = match &self.payload {
            Kept::Bytes(bytes) => Payload::Bytes(bytes),
            Kept::Ghost(runs) => Payload::Ghost(runs),
        };
        let (network, headers) = (&self.network, &self.headers);
        Inbound { network, headers, extension: None, payload, intact: true }
    }
}

/// What came early. Only queue pairs that need it have one.
#[derive(Debug, Default)]
pub(crate) struct EarlyPackets {
    /// Ahead of the expected one, by sequence number.
    packets: BTreeMap<u32, Early>,
    /// While a READ was answered, as they came.
    held: VecDeque<Early>,
    /// The newest of `packets`.
    newest: Psn,
    /// The oldest that came since an answer told of early packets.
    untold: Option<Psn>,
    /// How many came since then.
    untold_count: u16,
    /// When an answer last told of early packets.
    told_at: Option<Time>,
    /// The peer knows of a gap.
    is_told: bool,
}

impl EarlyPackets {
    /// Keeps a packet. Tells whether there is a gap now that was not there before.
    fn keep(&mut self, packet: &Inbound<'_>) -> bool {
        let psn = packet.headers.bth.psn;
        let opens_gap = self.packets.is_empty() || psn.is_after(self.newest.plus(1));
        if self.packets.is_empty() || psn.is_after(self.newest) {
            self.newest = psn;
        }
        // The same packet twice is one packet.
        self.packets.insert(psn.value(), Early::new(packet));
        opens_gap
    }

    fn take(&mut self, psn: Psn) -> Option<Early> {
        self.packets.remove(&psn.value())
    }

    /// Notes that the peer does not know of a packet that is here. Tells how many those are.
    fn note_untold(&mut self, psn: Psn) -> u16 {
        self.untold = Some(match self.untold {
            Some(untold) if untold.is_before(psn) => untold,
            _ => psn,
        });
        self.untold_count += 1;
        self.untold_count
    }

    /// Notes that an answer tells of what is here.
    fn note_told(&mut self, now: Time) {
        (self.untold_count, self.told_at, self.is_told) = (0, Some(now), true);
    }

    /// Which packets are here, for an answer to tell: all of them, or those that the peer is least likely to know.
    pub(super) fn told(&mut self, expected: Psn) -> Option<SelectiveAck> {
        if self.packets.is_empty() {
            return None;
        }
        let least = expected.plus(1);
        let last = self.newest.minus(SelectiveAck::PACKETS - 1);
        let mut first = if last.is_after(least) { last } else { least };
        if let Some(untold) = self.untold.take()
            && untold.is_before(first)
            && !untold.is_before(least)
        {
            first = untold;
        }
        let mut told = SelectiveAck::new(first, 0);
        let from = first.value();
        let to = from + SelectiveAck::PACKETS;
        // Around the end of the numbers the set has two parts.
        let wrapped = 0..to.saturating_sub(Psn::MASK + 1);
        for (&psn, _) in self.packets.range(from..to).chain(self.packets.range(wrapped)) {
            told.insert(Psn::new(psn));
        }
        Some(told)
    }
}

impl Responder {
    /// Keeps a packet until its turn comes. Under selective repeat the peer gets to know: at once where order is kept
    /// and a gap is a loss; else now and then, for there gaps come and go. It can wait no longer than it takes a packet
    /// for lost, and an answer tells of so many packets only.
    pub(super) fn keep_early(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        now: Time,
        packet: &Inbound<'_>,
    ) {
        let early = self.early.get_or_insert_default();
        let opens_gap = early.keep(packet);
        if !shared.recovery.is_selective() {
            return;
        }
        let bth = &packet.headers.bth;
        let untold = early.note_untold(bth.psn);
        let reordering = device.config.recovery.reordering();
        let is_time = if reordering == Span::ZERO {
            opens_gap
        } else {
            early.told_at.is_none_or(|at| now >= at + Span::from_ps(reordering.as_ps() / TOLD_TIMES))
        };
        if is_time || bth.ack_request || untold >= UNTOLD_MAX {
            early.note_told(now);
            self.acknowledge_through(shared, device, self.expected.minus(1));
        }
    }

    /// The expected packet was taken: those that waited for it follow, until one is missing.
    pub(super) fn take_early<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        asked: bool,
    ) {
        let first = self.expected;
        while let Some(early) = &mut self.early
            && let Some(early) = early.take(self.expected)
        {
            let before = self.expected;
            self.receive_expected(shared, device, cx, &early.inbound());
            if self.expected == before {
                // Not taken: no receive is posted, or the connection has ended. The peer will send it again.
                return;
            }
        }
        if shared.recovery.is_selective()
            && let Some(early) = &mut self.early
        {
            // A peer that was told of a gap must hear that it is filled, before it takes the missing one for lost.
            let is_filled = early.packets.is_empty() && std::mem::take(&mut early.is_told);
            if is_filled || asked && self.expected != first {
                self.acknowledge_through(shared, device, self.expected.minus(1));
            }
        }
    }

    /// A request on a reliable connection. Where READs block the requests after them, it waits for its turn.
    pub(super) fn receive_in_turn<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        if device.config.behaviour.reads_block_requests && self.is_answering_read(device) {
            let early = self.early.get_or_insert_default();
            if early.held.len() == HELD_MAX {
                return Err(DropReason::OutOfSequence);
            }
            early.held.push_back(Early::new(packet));
            return Ok(());
        }
        self.receive_reliable(shared, device, cx, packet)
    }

    /// An answer to a READ was sent to its end: requests that waited for that are carried out, up to the next READ.
    pub(super) fn take_held<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        while self.early.as_ref().is_some_and(|early| !early.held.is_empty())
            && !self.is_answering_read(device)
        {
            let Some(early) = self.early.as_mut().and_then(|early| early.held.pop_front()) else {
                break;
            };
            if let Err(reason) = self.receive_request(shared, device, cx, &early.inbound()) {
                device.counters.count_drop(reason);
            }
        }
    }

    /// Whether some of a READ's answer waits, wherever it stands among the answers.
    fn is_answering_read(&self, device: &Device) -> bool {
        let mut at = self.answers.front();
        while at.is_some() {
            if matches!(device.responses.get(at), Response::Read { .. }) {
                return true;
            }
            at = device.responses.next(at);
        }
        false
    }
}
