//! Requests that came before their turn, kept until it comes.

use std::collections::BTreeMap;

use railnet_core::Psn;
use railnet_core::event::Sink;
use railnet_wire::{Headers, Network};

use super::QueuePair;
use crate::context::Context;
use crate::device::Device;
use crate::memory::{GhostRuns, Memory};
use crate::packet::{Inbound, Payload};

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

/// What came early, by sequence number. Only queue pairs that need it have one.
#[derive(Debug, Default)]
pub(crate) struct EarlyPackets {
    packets: BTreeMap<u32, Early>,
}

impl EarlyPackets {
    pub(super) fn keep(&mut self, packet: &Inbound<'_>) {
        let payload = match packet.payload {
            Payload::Bytes(bytes) => Kept::Bytes(bytes.to_vec()),
            Payload::Ghost(runs) => Kept::Ghost(runs.into()),
        };
        let early = Early { network: *packet.network, headers: *packet.headers, payload };
        // The same packet twice is one packet.
        self.packets.insert(packet.headers.bth.psn.value(), early);
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
            let payload = match &early.payload {
                Kept::Bytes(bytes) => Payload::Bytes(bytes),
                Kept::Ghost(runs) => Payload::Ghost(runs),
            };
            let (network, headers) = (&early.network, &early.headers);
            let inbound = Inbound { network, headers, extension: None, payload, intact: true };
            let before = self.responder.expected;
            self.receive_expected(device, cx, &inbound);
            if self.responder.expected == before {
                // Not taken: no receive is posted, or the connection has ended. The peer will send it again.
                break;
            }
        }
    }
}
