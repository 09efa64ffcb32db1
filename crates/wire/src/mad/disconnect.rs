//! The messages that refuse, delay or end a connection: REJ, MRA, DREQ, DREP.

use std::fmt;

use railnet_core::QueuePairNumber;

use super::{BODY_LENGTH, Body, bits, to_bits};
use crate::bytes::{put, put_u16, put_u24, put_u32, take, u16_at, u24_at, u32_at};

mod field {
    pub(super) const LOCAL_ID: usize = 0;
    pub(super) const REMOTE_ID: usize = 4;
    /// REJ and MRA: two bits that say which message they are about.
    pub(super) const ABOUT: usize = 8;
    pub(super) const INFO_LENGTH: usize = 9;
    pub(super) const REASON: usize = 10;
    pub(super) const INFO: usize = 12;
    pub(super) const REJECT_PRIVATE: usize = 84;
    pub(super) const SERVICE_TIMEOUT: usize = 9;
    pub(super) const RECEIVED_PRIVATE: usize = 10;
    pub(super) const REMOTE_QUEUE_PAIR: usize = 8;
    pub(super) const REQUEST_PRIVATE: usize = 12;
    pub(super) const REPLY_PRIVATE: usize = 8;
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The manager cannot hold more connections.
    pub const NO_RESOURCES: Self = Self(3);
    /// No answer came in time.
    pub const TIMEOUT: Self = Self(4);
    /// There is no such connection.
    pub const INVALID_COMMUNICATION_ID: Self = Self(6);
    /// Nobody listens there.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The connection is not known, or no longer.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The user refuses, with reasons in the private data.
    pub const CONSUMER_DEFINED: Self = Self(28);

    /// What the number stands for (IBTA 12.6.7.2).
    pub const fn name(self) -> &'static str {
        match self.0 {
            1 => "no queue pair available",
            2 => "no end-to-end context available",
            3 => "no resources",
            4 => "timeout",
            5 => "unsupported request",
            6 => "invalid communication id",
            7 => "invalid communication instance",
            8 => "invalid service id",
            9 => "invalid transport service type",
            10 => "stale connection",
            11 => "no reliable datagram channel",
            12 => "primary GID rejected",
            13 => "primary LID rejected",
            14 => "invalid primary service level",
            15 => "invalid primary traffic class",
            16 => "invalid primary hop limit",
            17 => "invalid primary packet rate",
            18 => "alternate GID rejected",
            19 => "alternate LID rejected",
            20 => "invalid alternate service level",
            21 => "invalid alternate traffic class",
            22 => "invalid alternate hop limit",
            23 => "invalid alternate packet rate",
            24 => "port and CM redirection",
            25 => "port redirection",
            26 => "invalid path MTU",
            27 => "insufficient responder resources",
            28 => "consumer defined",
            29 => "invalid RNR retry count",
            30 => "duplicate local communication id",
            31 => "invalid class version",
            32 => "invalid flow label",
            33 => "invalid alternate flow label",
            _ => "reserved reason",
        }
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}

/// REJ: no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The sender's name for the connection; 0 where it has none.
    pub local_id: u32,
    /// The receiver's name for it.
    pub remote_id: u32,
    /// What is refused: 0 a REQ, 1 a REP, 2 something else; two bits.
    pub about: u8,
    /// How many bytes of `info` are meant, seven bits.
    pub info_length: u8,
    /// The reason code.
    pub reason: RejectReason,
    /// More on the reason.
    pub info: [u8; 72],
    /// The user's data.
    pub private: [u8; 148],
}

impl Body for Reject {
    const ATTRIBUTE: u16 = 0x12;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            remote_id: u32_at(raw, field::REMOTE_ID),
            about: bits(raw[field::ABOUT], 6, 2),
            info_length: bits(raw[field::INFO_LENGTH], 1, 7),
            reason: RejectReason(u16_at(raw, field::REASON)),
            info: take(raw, field::INFO),
            private: take(raw, field::REJECT_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u32(raw, field::REMOTE_ID, self.remote_id);
        raw[field::ABOUT] = to_bits(self.about, 6, 2);
        raw[field::INFO_LENGTH] = to_bits(self.info_length, 1, 7);
        put_u16(raw, field::REASON, self.reason.0);
        put(raw, field::INFO, self.info);
        put(raw, field::REJECT_PRIVATE, self.private);
    }
}

/// MRA: the message has arrived, the answer takes longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageReceived {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's name for it.
    pub remote_id: u32,
    /// What has arrived: 0 a REQ, 1 a REP, 2 a LAP; two bits.
    pub about: u8,
    /// Code of the time to wait for, five bits.
    pub service_timeout: u8,
    /// The user's data.
    pub private: [u8; 222],
}

impl Body for MessageReceived {
    const ATTRIBUTE: u16 = 0x11;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            remote_id: u32_at(raw, field::REMOTE_ID),
            about: bits(raw[field::ABOUT], 6, 2),
            service_timeout: bits(raw[field::SERVICE_TIMEOUT], 3, 5),
            private: take(raw, field::RECEIVED_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u32(raw, field::REMOTE_ID, self.remote_id);
        raw[field::ABOUT] = to_bits(self.about, 6, 2);
        raw[field::SERVICE_TIMEOUT] = to_bits(self.service_timeout, 3, 5);
        put(raw, field::RECEIVED_PRIVATE, self.private);
    }
}

/// DREQ: the wish to end the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisconnectRequest {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's name for it.
    pub remote_id: u32,
    /// The receiver's queue pair.
    pub remote_queue_pair: QueuePairNumber,
    /// The user's data.
    pub private: [u8; 220],
}

impl Body for DisconnectRequest {
    const ATTRIBUTE: u16 = 0x15;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            remote_id: u32_at(raw, field::REMOTE_ID),
            remote_queue_pair: QueuePairNumber::new(u24_at(raw, field::REMOTE_QUEUE_PAIR)),
            private: take(raw, field::REQUEST_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u32(raw, field::REMOTE_ID, self.remote_id);
        put_u24(raw, field::REMOTE_QUEUE_PAIR, self.remote_queue_pair.value());
        put(raw, field::REQUEST_PRIVATE, self.private);
    }
}

/// DREP: the connection is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisconnectReply {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's name for it.
    pub remote_id: u32,
    /// The user's data.
    pub private: [u8; 224],
}

impl Body for DisconnectReply {
    const ATTRIBUTE: u16 = 0x16;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            remote_id: u32_at(raw, field::REMOTE_ID),
            private: take(raw, field::REPLY_PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u32(raw, field::REMOTE_ID, self.remote_id);
        put(raw, field::REPLY_PRIVATE, self.private);
    }
}
