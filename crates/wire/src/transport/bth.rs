//! The base transport header.

use railnet_core::{Psn, QueuePairNumber};

use super::extension::EXTENSION_OPCODE;
use crate::bytes::{put_u16, put_u24, u16_at, u24_at};
use crate::malformed::{Layer, Malformed};
use crate::opcode::Opcode;

mod field {
    pub(super) const OPCODE: usize = 0;
    pub(super) const FLAGS: usize = 1;
    pub(super) const PARTITION: usize = 2;
    pub(super) const CONGESTION: usize = 4;
    pub(super) const DESTINATION: usize = 5;
    pub(super) const ACK_REQUEST: usize = 8;
    pub(super) const PSN: usize = 9;
}

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const VERSION_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
const TRAILER: u8 = 0x01;

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

impl Bth {
    /// Bytes of the header.
    pub const LENGTH: usize = 12;

    /// A header as most packets have it: in the default partition, with no flag but the one that hardware sets.
    pub const fn new(opcode: Opcode, destination: QueuePairNumber, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            fecn: false,
            becn: false,
            ack_request: false,
            partition: 0xffff,
            destination,
            psn,
        }
    }

    /// What the packet is; `None` where an extension header follows, in which the real opcode stands.
    #[inline]
    pub(super) fn opcode(raw: &[u8; Self::LENGTH]) -> Result<Option<Opcode>, Malformed> {
        let code = raw[field::OPCODE];
        let opcode = Opcode::from_byte(code);
        if opcode.is_none() && code != EXTENSION_OPCODE {
            return Err(Malformed::UnknownOpcode(code));
        }
        Ok(opcode)
    }

    /// Reads the header of a packet of this opcode, and with it how many bytes of padding end the packet's payload.
    #[inline]
    pub(super) fn parse(raw: &[u8; Self::LENGTH], opcode: Opcode) -> Result<(Self, usize), Malformed> {
        let flags = raw[field::FLAGS];
        // IBTA 9.6: a packet of another transport version is dropped. Reserved bits are not looked at.
        if flags & VERSION_MASK != 0 {
            let value = (flags & VERSION_MASK).into();
            return Err(Malformed::Field { layer: Layer::BaseTransport, field: "TVer", value });
        }
        let bth = Self {
            opcode,
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            fecn: raw[field::CONGESTION] & FECN != 0,
            becn: raw[field::CONGESTION] & BECN != 0,
            ack_request: raw[field::ACK_REQUEST] & ACK_REQUEST != 0,
            partition: u16_at(raw, field::PARTITION),
            destination: QueuePairNumber::new(u24_at(raw, field::DESTINATION)),
            psn: Psn::new(u24_at(raw, field::PSN)),
        };
        Ok((bth, usize::from(flags >> PAD_SHIFT & 3)))
    }

    /// The header as bytes, of a packet whose payload ends in `pad` bytes of padding.
    pub fn to_bytes(&self, pad: usize) -> [u8; Self::LENGTH] {
        debug_assert!(pad < 4, "the pad count has two bits");
        let mut raw = [0; Self::LENGTH];
        raw[field::OPCODE] = self.opcode as u8;
        raw[field::FLAGS] =
            bit(self.solicited, SOLICITED) | bit(self.migrated, MIGRATED) | (pad as u8) << PAD_SHIFT;
        put_u16(&mut raw, field::PARTITION, self.partition);
        raw[field::CONGESTION] = bit(self.fecn, FECN) | bit(self.becn, BECN);
        put_u24(&mut raw, field::DESTINATION, self.destination.value());
        raw[field::ACK_REQUEST] = bit(self.ack_request, ACK_REQUEST);
        put_u24(&mut raw, field::PSN, self.psn.value());
        raw
    }

    /// Announces an extension header in a header that was written.
    pub(super) fn announce_extension(raw: &mut [u8; Self::LENGTH]) {
        raw[field::OPCODE] = EXTENSION_OPCODE;
    }

    /// Announces an authentication trailer in a header that was written.
    pub(crate) fn announce_trailer(raw: &mut [u8]) {
        raw[field::ACK_REQUEST] |= TRAILER;
    }

    /// Whether a header announces an authentication trailer.
    #[inline]
    pub(crate) fn has_trailer(raw: &[u8]) -> bool {
        raw.get(field::ACK_REQUEST).is_some_and(|byte| byte & TRAILER != 0)
    }

    /// The one byte that may change on the way: that of the congestion bits.
    pub(crate) const VARYING: usize = field::CONGESTION;

    /// Sets to ones what may change on the way, as the ICRC wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        raw[Self::VARYING] = 0xff;
    }
}

fn bit(is_set: bool, mask: u8) -> u8 {
    if is_set { mask } else { 0 }
}
