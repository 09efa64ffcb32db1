//! One connection.

use railnet_core::{Psn, QueuePairNumber, Time};
use railnet_wire::Gid;
use railnet_wire::mad::{Message, ServiceId};

use super::outbox::Retry;
use crate::{Access, Attributes, Mtu, Path, State};

/// What one side tells the other about its queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The queue pair.
    pub queue_pair: QueuePairNumber,
    /// The sequence number that the other side starts with (IBTA 12.7.31): what this queue pair expects first.
    pub psn: Psn,
    /// READs and atomics that it serves at once.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have in flight.
    pub initiator_depth: u8,
    /// Retries without an answer, for both; only the active side's counts.
    pub retry_count: u8,
    /// How often the other side shall try when no receive is posted.
    pub rnr_retry: u8,
    /// Its receives come from a shared queue.
    pub uses_shared_receive_queue: bool,
    /// Private data of the application.
    pub private: Vec<u8>,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            queue_pair: QueuePairNumber::new(0),
            psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry: 0,
            uses_shared_receive_queue: false,
            private: Vec::new(),
        }
    }
}

/// A connection to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The peer's address.
    pub target: Gid,
    /// What it is for.
    pub service: ServiceId,
    /// An unreliable connection.
    pub is_unreliable: bool,
    /// The largest payload of a packet on the way.
    pub mtu: Mtu,
    /// Code of the acknowledgement timeout, for both sides.
    pub ack_timeout: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// This side.
    pub offer: Offer,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// REQ sent.
    Requesting,
    /// REQ received; the application has to answer.
    Requested,
    /// REP received; the application has to bring its queue pair up.
    Answered,
    /// REP sent.
    Replied,
    /// Data may flow.
    Established,
    /// DREQ sent.
    Disconnecting,
    /// Over, and kept until this time to answer what comes late.
    Over(Time),
    /// SIDR_REQ sent.
    Resolving,
    /// SIDR_REQ received; the application has to answer.
    Asked,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    pub(super) service: ServiceId,
    pub(super) transaction: u64,
    pub(super) remote: Gid,
    /// The peer's communication id; 0 until it is known.
    pub(super) remote_id: u32,
    pub(super) is_active: bool,
    pub(super) is_unreliable: bool,
    pub(super) mtu: Mtu,
    pub(super) ack_timeout: u8,
    pub(super) traffic_class: u8,
    pub(super) own: Offer,
    pub(super) peer: Offer,
    /// What is sent until it is answered.
    pub(super) retry: Option<Retry>,
    /// What answers the peer's last message, should it come again.
    pub(super) answer: Option<Message>,
    /// The application is done with it.
    pub(super) is_forgotten: bool,
}

impl Connection {
    pub(super) fn new(call: &Call, phase: Phase, transaction: u64) -> Self {
        Self {
            phase,
            service: call.service,
            transaction,
            remote: call.target,
            remote_id: 0,
            is_active: matches!(phase, Phase::Requesting | Phase::Resolving),
            is_unreliable: call.is_unreliable,
            mtu: call.mtu,
            ack_timeout: call.ack_timeout,
            traffic_class: call.traffic_class,
            own: call.offer.clone(),
            peer: Offer::default(),
            retry: None,
            answer: None,
            is_forgotten: false,
        }
    }

    /// What the connection says about its queue pair on the way to a state.
    pub(super) fn attributes(&self, to: State) -> Option<Attributes> {
        let mut attributes = Attributes { state: Some(to), ..Attributes::default() };
        match to {
            State::Init => {
                (attributes.port, attributes.partition_index) = (Some(1), Some(0));
                let reads = Access::REMOTE_READ.bits() | Access::REMOTE_ATOMIC.bits();
                let reads = if self.own.responder_resources > 0 || self.is_active { reads } else { 0 };
                attributes.access = Some(Access::from_bits(Access::REMOTE_WRITE.bits() | reads));
            }
            State::ReadyToReceive => {
                attributes.path = Some(self.path());
                attributes.path_mtu = Some(self.mtu);
                attributes.destination = Some(self.peer.queue_pair);
                attributes.receive_psn = Some(self.own.psn);
                if !self.is_unreliable {
                    attributes.destination_reads = Some(self.responder_resources());
                    attributes.min_rnr_timer = Some(0);
                }
            }
            State::ReadyToSend => {
                attributes.send_psn = Some(self.peer.psn);
                if !self.is_unreliable {
                    attributes.initiator_reads = Some(self.initiator_depth());
                    attributes.timeout = Some(self.ack_timeout);
                    let active = if self.is_active { &self.own } else { &self.peer };
                    attributes.retry_count = Some(active.retry_count);
                    attributes.rnr_retry = Some(self.peer.rnr_retry);
                }
            }
            _ => return None,
        }
        Some(attributes)
    }

    pub(super) fn path(&self) -> Path {
        Path {
            source: 0,
            target: self.remote,
            flow_label: 0,
            traffic_class: self.traffic_class,
            hop_limit: 64,
        }
    }

    /// The active side follows what the reply grants; the passive one said it itself.
    fn responder_resources(&self) -> u8 {
        if self.is_active { self.peer.initiator_depth } else { self.own.responder_resources }
    }

    fn initiator_depth(&self) -> u8 {
        if self.is_active { self.peer.responder_resources } else { self.own.initiator_depth }
    }
}
