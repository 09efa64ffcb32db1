//! The acknowledgement extended transport header.

use super::Part;
use crate::bytes::{put_u24, u24_at};
use crate::malformed::Layer;

mod field {
    pub(super) const SYNDROME: usize = 0;
    pub(super) const MSN: usize = 1;
}

/// Why a responder refuses a request for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing before this one.
    Sequence = 0,
    /// The request is not one that can be served here.
    InvalidRequest = 1,
    /// Key, range or permission is wrong.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperational = 3,
    /// For reliable datagrams only.
    InvalidRdRequest = 4,
}

/// The verdict in an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// All is well up to this PSN. The value is a credit code; 31 means that credits are not in use.
    Ack {
        /// Credit code, five bits.
        credits: u8,
    },
    /// No receive was posted: try again after the time of this code.
    RnrNak {
        /// Timer code, five bits.
        timer: u8,
    },
    /// A negative acknowledgement.
    Nak(NakCode),
    /// A code without meaning, as it came.
    Reserved(u8),
}

impl Syndrome {
    /// The acknowledgement of a responder that does not use credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }

    /// What the byte means. Every byte means something.
    pub const fn from_byte(byte: u8) -> Self {
        match (byte >> 5, byte & 0x1f) {
            (0, credits) => Self::Ack { credits },
            (1, timer) => Self::RnrNak { timer },
            (3, 0) => Self::Nak(NakCode::Sequence),
            (3, 1) => Self::Nak(NakCode::InvalidRequest),
            (3, 2) => Self::Nak(NakCode::RemoteAccess),
            (3, 3) => Self::Nak(NakCode::RemoteOperational),
            (3, 4) => Self::Nak(NakCode::InvalidRdRequest),
            _ => Self::Reserved(byte),
        }
    }
}

/// Acknowledgement extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The verdict.
    pub syndrome: Syndrome,
    /// Message sequence number: how many messages the responder has completed, 24 bits.
    pub msn: u32,
}

impl Part for Aeth {
    const LAYER: Layer = Layer::AcknowledgeExtended;
    const LENGTH: usize = 4;

    fn read(raw: &[u8]) -> Self {
        Self { syndrome: Syndrome::from_byte(raw[field::SYNDROME]), msn: u24_at(raw, field::MSN) }
    }

    fn write(&self, raw: &mut [u8]) {
        raw[field::SYNDROME] = self.syndrome.to_byte();
        put_u24(raw, field::MSN, self.msn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }
}
