//! The InfiniBand transport headers of a packet as values: what the NIC speaks.

use railnet_core::{Psn, QueuePairNumber};

use crate::opcode::Opcode;

/// The base transport header, without what follows from the rest of the packet (pad count, reserved bits).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Raise an event at the receiver when the message completes.
    pub solicited: bool,
    /// The migration bit: hardware sends 1, Linux Soft-RoCE 0.
    pub migrated: bool,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification: set in a CNP.
    pub becn: bool,
    /// The sender wants an acknowledgement.
    pub ack_request: bool,
    /// Partition key.
    pub partition: u16,
    /// The queue pair it is for.
    pub destination: QueuePairNumber,
    /// Its sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header: where in the target's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// What to swap in, or to add.
    pub swap_or_add: u64,
    /// What to compare with; 0 for FetchAdd.
    pub compare: u64,
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

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key, checked against the receiver's.
    pub queue_key: u32,
    /// The queue pair that sent it.
    pub source: QueuePairNumber,
}

/// What follows the base header. Which of these it is follows from the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extended {
    /// Nothing.
    None,
    /// Immediate data, as it stands on the wire.
    Immediate(u32),
    /// The key to invalidate.
    Invalidate(u32),
    /// Where to write or read.
    Reth(Reth),
    /// Where to write, and immediate data.
    RethImmediate(Reth, u32),
    /// A verdict.
    Aeth(Aeth),
    /// A verdict and the value that was there before.
    AtomicAck(Aeth, u64),
    /// An atomic operation.
    Atomic(AtomicEth),
    /// A datagram's addressing.
    Deth(Deth),
    /// A datagram's addressing, and immediate data.
    DethImmediate(Deth, u32),
    /// What to flush: placement type and selectivity, then where.
    Flush {
        /// Bits 3-0: how far the data must have got (1 global visibility, 2 persistence).
        placement: u8,
        /// Bits 5-4: 0 the range of the RETH, 1 the whole region.
        selectivity: u8,
        /// Where.
        reth: Reth,
    },
    /// The 16 reserved bytes of a congestion notification.
    Cnp,
}

/// The transport headers of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The base header.
    pub bth: Bth,
    /// What follows it.
    pub extended: Extended,
}
