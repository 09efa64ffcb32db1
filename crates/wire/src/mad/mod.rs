//! Management datagrams, of which one class matters here: connection management over queue pair 1.
//!
//! A connection is set up with REQ, REP and RTU and taken down with DREQ and DREP; MRA asks for patience, REJ refuses.
//! SIDR asks for the queue pair behind a service that speaks datagrams. Each message travels in a MAD of 256 bytes, the
//! payload of a UD SEND Only packet (IBTA chapters 12 and 13).

mod cma;
mod disconnect;
mod reply;
mod request;
mod sidr;

pub use cma::CmaHeader;
pub use disconnect::{DisconnectReply, DisconnectRequest, MessageReceived, Reject, RejectReason};
pub use reply::{ReadyToUse, Reply};
pub use request::{Path, Request, ServiceId};
pub use sidr::{SidrReply, SidrRequest};

use crate::bytes::{header, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::malformed::{Layer, Malformed};

/// The queue pair that management datagrams go to.
pub const MANAGEMENT_QUEUE_PAIR: u32 = 1;
/// The queue key of queue pair 1.
pub const MANAGEMENT_QUEUE_KEY: u32 = 0x8001_0000;
/// Bytes of a MAD.
pub const MAD_LENGTH: usize = 256;

const BODY_LENGTH: usize = MAD_LENGTH - MadHeader::LENGTH;

mod field {
    pub(super) const BASE_VERSION: usize = 0;
    pub(super) const CLASS: usize = 1;
    pub(super) const CLASS_VERSION: usize = 2;
    pub(super) const METHOD: usize = 3;
    pub(super) const STATUS: usize = 4;
    pub(super) const CLASS_SPECIFIC: usize = 6;
    pub(super) const TRANSACTION: usize = 8;
    pub(super) const ATTRIBUTE: usize = 16;
    pub(super) const MODIFIER: usize = 20;
}

/// The header of every MAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadHeader {
    /// Version of the MAD format: 1.
    pub base_version: u8,
    /// Management class; 7 is connection management.
    pub class: u8,
    /// Version of the class's format.
    pub class_version: u8,
    /// What is asked for; 3 is "send".
    pub method: u8,
    /// Status of an answer.
    pub status: u16,
    /// Of a meaning that the class gives it.
    pub class_specific: u16,
    /// The same in all messages of one exchange.
    pub transaction: u64,
    /// Which message it is.
    pub attribute: u16,
    /// Further detail of the attribute.
    pub modifier: u32,
}

impl MadHeader {
    /// Bytes of the header.
    pub const LENGTH: usize = 24;
    /// The class of connection management.
    pub const CLASS_CM: u8 = 7;

    const BASE_VERSION: u8 = 1;
    const CM_CLASS_VERSION: u8 = 2;
    const METHOD_SEND: u8 = 3;

    /// Reads the header at the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::Mad)?;
        let parsed = Self {
            base_version: raw[field::BASE_VERSION],
            class: raw[field::CLASS],
            class_version: raw[field::CLASS_VERSION],
            method: raw[field::METHOD],
            status: u16_at(raw, field::STATUS),
            class_specific: u16_at(raw, field::CLASS_SPECIFIC),
            transaction: u64_at(raw, field::TRANSACTION),
            attribute: u16_at(raw, field::ATTRIBUTE),
            modifier: u32_at(raw, field::MODIFIER),
        };
        if parsed.base_version != Self::BASE_VERSION {
            let value = parsed.base_version.into();
            return Err(Malformed::Field { layer: Layer::Mad, field: "BaseVersion", value });
        }
        Ok(parsed)
    }

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut raw = [0; Self::LENGTH];
        raw[field::BASE_VERSION] = self.base_version;
        raw[field::CLASS] = self.class;
        raw[field::CLASS_VERSION] = self.class_version;
        raw[field::METHOD] = self.method;
        put_u16(&mut raw, field::STATUS, self.status);
        put_u16(&mut raw, field::CLASS_SPECIFIC, self.class_specific);
        put_u64(&mut raw, field::TRANSACTION, self.transaction);
        put_u16(&mut raw, field::ATTRIBUTE, self.attribute);
        put_u32(&mut raw, field::MODIFIER, self.modifier);
        raw
    }
}

/// The body of one kind of message: everything after the MAD header.
trait Body: Sized {
    /// Which message it is.
    const ATTRIBUTE: u16;

    /// Reads it. Every combination of bytes means something; reserved bits are not looked at.
    fn read(raw: &[u8; BODY_LENGTH]) -> Self;

    /// Writes it over zeros.
    fn write(&self, raw: &mut [u8; BODY_LENGTH]);
}

macro_rules! messages {
    ($($(#[$doc:meta])* $variant:ident($body:ty), $name:literal;)*) => {
        /// A connection-management message.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Message {
            $($(#[$doc])* $variant($body),)*
        }

        impl Message {
            /// Its name in the specification.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// Its attribute number.
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => <$body>::ATTRIBUTE,)*
                }
            }

            fn read(attribute: u16, raw: &[u8; BODY_LENGTH]) -> Result<Self, Malformed> {
                match attribute {
                    $(<$body>::ATTRIBUTE => Ok(Self::$variant(<$body>::read(raw))),)*
                    unknown => Err(Malformed::UnknownAttribute(unknown)),
                }
            }

            fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
                match self {
                    $(Self::$variant(body) => body.write(raw),)*
                }
            }
        }
    };
}

messages! {
    /// Connect to me.
    Request(Request), "REQ";
    /// I need more time.
    MessageReceived(MessageReceived), "MRA";
    /// No.
    Reject(Reject), "REJ";
    /// Yes, and here is my side.
    Reply(Reply), "REP";
    /// Then let us begin.
    ReadyToUse(ReadyToUse), "RTU";
    /// Let us end it.
    DisconnectRequest(DisconnectRequest), "DREQ";
    /// It is ended.
    DisconnectReply(DisconnectReply), "DREP";
    /// Which queue pair serves this?
    SidrRequest(SidrRequest), "SIDR_REQ";
    /// This one.
    SidrReply(SidrReply), "SIDR_REP";
}

/// A connection-management datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionMad {
    /// The same in all messages of one exchange.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

impl ConnectionMad {
    /// Reads the payload of a packet for queue pair 1.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let head = MadHeader::parse(bytes)?;
        let wrong =
            |field, value: u8| Err(Malformed::Field { layer: Layer::Mad, field, value: value.into() });
        if head.class != MadHeader::CLASS_CM {
            return wrong("MgmtClass", head.class);
        }
        if head.class_version != MadHeader::CM_CLASS_VERSION {
            return wrong("ClassVersion", head.class_version);
        }
        if head.method != MadHeader::METHOD_SEND {
            return wrong("Method", head.method);
        }
        let body = header(&bytes[MadHeader::LENGTH..], Layer::ConnectionManagement)?;
        Ok(Self { transaction: head.transaction, message: Message::read(head.attribute, body)? })
    }

    /// The datagram as bytes.
    pub fn to_bytes(&self) -> [u8; MAD_LENGTH] {
        let head = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: MadHeader::CLASS_CM,
            class_version: MadHeader::CM_CLASS_VERSION,
            method: MadHeader::METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction: self.transaction,
            attribute: self.message.attribute(),
            modifier: 0,
        };
        let mut mad = [0; MAD_LENGTH];
        mad[..MadHeader::LENGTH].copy_from_slice(&head.to_bytes());
        let body = mad.last_chunk_mut().expect("a MAD is a header and a body");
        self.message.write(body);
        mad
    }
}

/// A field of `width` bits of a byte, `shift` bits from its low end.
const fn bits(byte: u8, shift: u32, width: u32) -> u8 {
    byte >> shift & ((1 << width) - 1)
}

/// A byte with such a field, to be combined with others.
const fn to_bits(value: u8, shift: u32, width: u32) -> u8 {
    (value & ((1 << width) - 1)) << shift
}
