//! Service id resolution: which queue pair serves datagrams of a service.

use railnet_core::QueuePairNumber;

use super::{BODY_LENGTH, Body, ServiceId};
use crate::bytes::{put, put_u16, put_u24, put_u32, put_u64, take, u16_at, u24_at, u32_at, u64_at};

mod field {
    pub(super) const REQUEST_ID: usize = 0;
    pub(super) const PARTITION: usize = 4;
    pub(super) const REQUEST_SERVICE: usize = 8;
    pub(super) const REQUEST_PRIVATE: usize = 16;
    pub(super) const STATUS: usize = 4;
    pub(super) const INFO_LENGTH: usize = 5;
    pub(super) const QUEUE_PAIR: usize = 8;
    pub(super) const REPLY_SERVICE: usize = 12;
    pub(super) const QUEUE_KEY: usize = 20;
    pub(super) const INFO: usize = 24;
    pub(super) const REPLY_PRIVATE: usize = 96;
}

/// SIDR_REQ: the question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The sender's name for the question.
    pub request_id: u32,
    /// Partition key.
    pub partition: u16,
    /// What is wanted.
    pub service: ServiceId,
    /// The user's data; with RDMA CM it begins with a [`super::CmaHeader`].
    pub private: [u8; 216],
}

impl Body for SidrRequest {
    const ATTRIBUTE: u16 = 0x17;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            request_id: u32_at(raw, field::REQUEST_ID),
            partition: u16_at(raw, field::PARTITION),
            service: ServiceId(u64_at(raw, field::REQUEST_SERVICE)),
            private: take(raw, field::REQUEST_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::REQUEST_ID, self.request_id);
        put_u16(raw, field::PARTITION, self.partition);
        put_u64(raw, field::REQUEST_SERVICE, self.service.0);
        put(raw, field::REQUEST_PRIVATE, self.private);
    }
}

/// SIDR_REP: the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// The asker's name for the question.
    pub request_id: u32,
    /// 0 valid, 1 service not supported, 2 rejected, 3 no queue pair, 4 redirected, 5 version not supported.
    pub status: u8,
    /// How many bytes of `info` are meant.
    pub info_length: u8,
    /// The queue pair to send to.
    pub queue_pair: QueuePairNumber,
    /// What was asked for.
    pub service: ServiceId,
    /// The queue key to send with.
    pub queue_key: u32,
    /// More on the status.
    pub info: [u8; 72],
    /// The user's data.
    pub private: [u8; 136],
}

impl Body for SidrReply {
    const ATTRIBUTE: u16 = 0x18;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            request_id: u32_at(raw, field::REQUEST_ID),
            status: raw[field::STATUS],
            info_length: raw[field::INFO_LENGTH],
            queue_pair: QueuePairNumber::new(u24_at(raw, field::QUEUE_PAIR)),
            service: ServiceId(u64_at(raw, field::REPLY_SERVICE)),
            queue_key: u32_at(raw, field::QUEUE_KEY),
            info: take(raw, field::INFO),
            private: take(raw, field::REPLY_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::REQUEST_ID, self.request_id);
        raw[field::STATUS] = self.status;
        raw[field::INFO_LENGTH] = self.info_length;
        put_u24(raw, field::QUEUE_PAIR, self.queue_pair.value());
        put_u64(raw, field::REPLY_SERVICE, self.service.0);
        put_u32(raw, field::QUEUE_KEY, self.queue_key);
        put(raw, field::INFO, self.info);
        put(raw, field::REPLY_PRIVATE, self.private);
    }
}
