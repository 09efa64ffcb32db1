//! Requests that came before their turn, kept until it comes.

use std::collections::{BTreeMap, VecDeque};

use railnet_core::Psn;
use railnet_core::event::Sink;
use railnet_wire::{Headers, Network};

use super::QueuePair;
use super::responder::Response;
use crate::context::Context;
use crate::device::Device;
use crate::error::DropReason;
use crate::memory::{GhostRuns, Memory};
use crate::packet::{Inbound, Payload};

/// Requests that may wait behind a READ's answer: more than a peer that keeps to Soft-RoCE's limit has under way.
const HELD_MAX: usize = 1 << 10;

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
}

impl EarlyPackets {
    pub(super) fn keep(&mut self, packet: &Inbound<'_>) {
        // The same packet twice is one packet.
        self.packets.insert(packet.headers.bth.psn.value(), Early::new(packet));
    }

    fn take(&mut self, psn: Psn) -> Option<Early> {
        self.packets.remove(&psn.value())
    }
}

impl QueuePair {
    /// The expected packet was taken: those that waited for it follow, until one is missing.
    pub(super) fn take_early<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        while let Some(early) = &mut self.responder.early
            && let Some(early) = early.take(self.responder.expected)
        {
            let before = self.responder.expected;
            self.receive_expected(device, cx, &early.inbound());
            if self.responder.expected == before {
                // Not taken: no receive is posted, or the connection has ended. The peer will send it again.
                break;
            }
        }
    }

    /// A request on a reliable connection. Where READs block the requests after them, it waits for its turn.
    pub(super) fn receive_in_turn<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        if device.config.behaviour.reads_block_requests && self.is_answering_read(device) {
            let early = self.responder.early.get_or_insert_default();
            if early.held.len() == HELD_MAX {
                return Err(DropReason::OutOfSequence);
            }
            early.held.push_back(Early::new(packet));
            return Ok(());
        }
        self.receive_reliable(device, cx, packet)
    }

    /// An answer to a READ was sent to its end: requests that waited for that are carried out, up to the next READ.
    pub(super) fn take_held<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        while self.responder.early.as_ref().is_some_and(|early| !early.held.is_empty())
            && !self.is_answering_read(device)
        {
            let Some(early) = self.responder.early.as_mut().and_then(|early| early.held.pop_front()) else {
                break;
            };
            if let Err(reason) = self.receive_request(device, cx, &early.inbound()) {
                device.counters.count_drop(reason);
            }
        }
    }

    /// Whether some of a READ's answer waits, wherever it stands among the answers.
    fn is_answering_read(&self, device: &Device) -> bool {
        let mut at = self.responder.answers.front();
        while at.is_some() {
            if matches!(device.responses.get(at), Response::Read { .. }) {
                return true;
            }
            at = device.responses.next(at);
        }
        false
    }
}
