//! REP and RTU: the two answers that make a connection.

use railnet_core::{Psn, QueuePairNumber};

use super::{BODY_LENGTH, Body, bits, to_bits};
use crate::bytes::{put, put_u24, put_u32, put_u64, take, u24_at, u32_at, u64_at};

mod field {
    pub(super) const LOCAL_ID: usize = 0;
    pub(super) const REMOTE_ID: usize = 4;
    pub(super) const QUEUE_KEY: usize = 8;
    pub(super) const QUEUE_PAIR: usize = 12;
    pub(super) const EE_CONTEXT: usize = 16;
    pub(super) const PSN: usize = 20;
    pub(super) const RESPONDER_RESOURCES: usize = 24;
    pub(super) const INITIATOR_DEPTH: usize = 25;
    pub(super) const ACK_DELAY: usize = 26;
    pub(super) const RNR_RETRIES: usize = 27;
    pub(super) const CA_GUID: usize = 28;
    pub(super) const PRIVATE: usize = 36;
    pub(super) const RTU_PRIVATE: usize = 8;
}

/// REP: the request is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's name for it.
    pub remote_id: u32,
    /// Queue key, for datagrams.
    pub queue_key: u32,
    /// The sender's queue pair.
    pub queue_pair: QueuePairNumber,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub ee_context: u32,
    /// The sequence number with which the receiver of this message shall begin to send.
    pub psn: Psn,
    /// READs and atomics that the sender can serve at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender would have under way at once.
    pub initiator_depth: u8,
    /// Code of the time that the sender may take to acknowledge, five bits.
    pub target_ack_delay: u8,
    /// What became of the alternate path, two bits.
    pub failover: u8,
    /// The sender uses credits.
    pub uses_flow_control: bool,
    /// Retries when the receiver is not ready, three bits; 7 is without end.
    pub rnr_retries: u8,
    /// The sender receives into a shared queue.
    pub uses_shared_receive_queue: bool,
    /// The sender's channel adapter.
    pub ca_guid: u64,
    /// The user's data.
    pub private: [u8; 196],
}

impl Body for Reply {
    const ATTRIBUTE: u16 = 0x13;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            remote_id: u32_at(raw, field::REMOTE_ID),
            queue_key: u32_at(raw, field::QUEUE_KEY),
            queue_pair: QueuePairNumber::new(u24_at(raw, field::QUEUE_PAIR)),
            ee_context: u24_at(raw, field::EE_CONTEXT),
            psn: Psn::new(u24_at(raw, field::PSN)),
            responder_resources: raw[field::RESPONDER_RESOURCES],
            initiator_depth: raw[field::INITIATOR_DEPTH],
            target_ack_delay: bits(raw[field::ACK_DELAY], 3, 5),
            failover: bits(raw[field::ACK_DELAY], 1, 2),
            uses_flow_control: bits(raw[field::ACK_DELAY], 0, 1) != 0,
            rnr_retries: bits(raw[field::RNR_RETRIES], 5, 3),
            uses_shared_receive_queue: bits(raw[field::RNR_RETRIES], 4, 1) != 0,
            ca_guid: u64_at(raw, field::CA_GUID),
            private: take(raw, field::PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u32(raw, field::REMOTE_ID, self.remote_id);
        put_u32(raw, field::QUEUE_KEY, self.queue_key);
        put_u24(raw, field::QUEUE_PAIR, self.queue_pair.value());
        put_u24(raw, field::EE_CONTEXT, self.ee_context);
        put_u24(raw, field::PSN, self.psn.value());
        raw[field::RESPONDER_RESOURCES] = self.responder_resources;
        raw[field::INITIATOR_DEPTH] = self.initiator_depth;
        raw[field::ACK_DELAY] = to_bits(self.target_ack_delay, 3, 5)
            | to_bits(self.failover, 1, 2)
            | to_bits(self.uses_flow_control.into(), 0, 1);
        raw[field::RNR_RETRIES] =
            to_bits(self.rnr_retries, 5, 3) | to_bits(self.uses_shared_receive_queue.into(), 4, 1);
        put_u64(raw, field::CA_GUID, self.ca_guid);
        put(raw, field::PRIVATE, self.private);
    }
}

/// RTU: the reply has arrived, the connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToUse {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's name for it.
    pub remote_id: u32,
    /// The user's data.
    pub private: [u8; 224],
}

impl Body for ReadyToUse {
    const ATTRIBUTE: u16 = 0x14;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            remote_id: u32_at(raw, field::REMOTE_ID),
            private: take(raw, field::RTU_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u32(raw, field::REMOTE_ID, self.remote_id);
        put(raw, field::RTU_PRIVATE, self.private);
    }
}
