//! Railnet's extension header: what RoCEv2 has no field for.
//!
//! A packet that has one carries the first of the manufacturers' opcodes in its BTH. Its real opcode comes right
//! behind, with flags that tell which blocks follow; after them come the extended headers of the real opcode, as
//! always. Such packets only go to peers that were made with the same configuration: to any other NIC their opcode
//! means nothing.
//!
//! ```text
//!  BTH, opcode 0xc0 | real opcode, flags, hops, 0 | telemetry | congestion echo | selective ack | RETH, AETH, ...
//!  12 bytes         | 4                           | 40 (8 a hop in an echo) | 4 | 20            |
//! ```
//!
//! Switches write into the telemetry of a data packet, so the ICRC leaves that block and the number of hops out, as it
//! does with the fields of IP that routers change. The echo of it in an acknowledgement does not change any more, and
//! is covered.

use railnet_core::Psn;

use super::Bth;
use super::telemetry::{Hop, Telemetry};
use crate::bytes::{put_u16, put_u24, take, u16_at, u24_at};
use crate::malformed::{Layer, Malformed};
use crate::opcode::Opcode;

mod field {
    pub(super) const OPCODE: usize = 0;
    pub(super) const FLAGS: usize = 1;
    pub(super) const HOPS: usize = 2;
    pub(super) const MARKED: usize = 0;
    pub(super) const PACKETS: usize = 2;
    pub(super) const FIRST: usize = 1;
    pub(super) const BITS: usize = 4;
}

const GATHERED: u8 = 0x80;
const ECHOED: u8 = 0x40;
const CONGESTION: u8 = 0x20;
const SELECTIVE: u8 = 0x10;
const KNOWN: u8 = GATHERED | ECHOED | CONGESTION | SELECTIVE;

/// The opcode byte of a BTH that an extension header follows: the first of the manufacturers' range.
pub(super) const EXTENSION_OPCODE: u8 = 0xc0;

/// Bytes of the extension header itself.
const HEADER: usize = 4;

/// Telemetry in a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TelemetryBlock {
    /// None.
    #[default]
    None,
    /// Room in which switches write as the packet passes.
    Gathered(Telemetry),
    /// What was gathered on the way there, sent back.
    Echoed(Telemetry),
}

/// How many of the packets that an acknowledgement newly answers came marked by the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CongestionEcho {
    /// Packets with a mark.
    pub marked: u16,
    /// All packets since the last acknowledgement.
    pub packets: u16,
}

/// Which packets have arrived ahead of the one that is missing: one bit each, from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SelectiveAck {
    /// The sequence number of the first bit.
    pub first: Psn,
    bits: [u8; 16],
}

impl SelectiveAck {
    /// Packets that it can tell of.
    pub const PACKETS: u32 = 128;
    const LENGTH: usize = 20;

    /// Bit `i`, counted from the lowest, tells of packet `first + i`.
    pub const fn new(first: Psn, bits: u128) -> Self {
        Self { first, bits: bits.to_be_bytes() }
    }

    /// All bits.
    pub const fn bits(&self) -> u128 {
        u128::from_be_bytes(self.bits)
    }

    /// Notes that a packet has arrived; one that is out of reach is not noted.
    pub fn insert(&mut self, psn: Psn) {
        if let Some(place) = self.place(psn) {
            self.bits = (self.bits() | 1 << place).to_be_bytes();
        }
    }

    /// Whether it tells that this packet has arrived.
    pub const fn contains(&self, psn: Psn) -> bool {
        match self.place(psn) {
            Some(place) => self.bits() >> place & 1 != 0,
            None => false,
        }
    }

    const fn place(&self, psn: Psn) -> Option<u32> {
        let place = psn.value().wrapping_sub(self.first.value()) & Psn::MASK;
        if place < Self::PACKETS { Some(place) } else { None }
    }
}

/// What a packet carries that RoCEv2 has no field for. With nothing in it there is no extension header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extension {
    /// What switches write, or the echo of it.
    pub telemetry: TelemetryBlock,
    /// How many packets came marked: in acknowledgements.
    pub congestion: Option<CongestionEcho>,
    /// What arrived early: in acknowledgements.
    pub selective: Option<SelectiveAck>,
}

impl Extension {
    /// A packet of plain RoCEv2.
    pub const NONE: Self = Self { telemetry: TelemetryBlock::None, congestion: None, selective: None };

    /// The most bytes that it takes.
    pub const MAX_LENGTH: usize = HEADER + Telemetry::LENGTH + CONGESTION_LENGTH + SelectiveAck::LENGTH;

    /// Whether the packet is plain RoCEv2.
    #[inline]
    pub const fn is_none(&self) -> bool {
        self.flags() == 0
    }

    #[inline]
    const fn flags(&self) -> u8 {
        let telemetry = match self.telemetry {
            TelemetryBlock::None => 0,
            TelemetryBlock::Gathered(_) => GATHERED,
            TelemetryBlock::Echoed(_) => ECHOED,
        };
        let congestion = if self.congestion.is_some() { CONGESTION } else { 0 };
        let selective = if self.selective.is_some() { SELECTIVE } else { 0 };
        telemetry | congestion | selective
    }

    const fn hop_count(&self) -> usize {
        match &self.telemetry {
            TelemetryBlock::None => 0,
            TelemetryBlock::Gathered(telemetry) | TelemetryBlock::Echoed(telemetry) => {
                telemetry.hop_count() as usize
            }
        }
    }

    /// Bytes on the wire, 0 where there is nothing in it.
    #[inline]
    pub const fn length(&self) -> usize {
        let flags = self.flags();
        if flags == 0 { 0 } else { length(flags, self.hop_count()) }
    }

    /// How many bytes from the BTH on may change on the way, so that the ICRC leaves them out: the one with the
    /// congestion bits, and what switches write.
    pub const fn varying_bytes(&self) -> usize {
        match self.telemetry {
            TelemetryBlock::Gathered(_) => 2 + Telemetry::LENGTH,
            _ => 1,
        }
    }

    /// Whether the byte at this place, counted from the BTH on, may change on the way.
    pub const fn varies(&self, at: usize) -> bool {
        let is_gathered = matches!(self.telemetry, TelemetryBlock::Gathered(_));
        at == Bth::VARYING || is_gathered && at >= Bth::LENGTH && varies(at - Bth::LENGTH)
    }

    /// Reads the extension header at the front of `bytes`; [`Extension::NONE`] of no bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.is_empty() { Ok(Self::NONE) } else { Self::read(bytes).map(|(extension, _)| extension) }
    }

    /// The real opcode of a packet whose BTH announced an extension header, and the length of that.
    #[cold]
    pub(super) fn announced(bytes: &[u8]) -> Result<(Opcode, usize), Malformed> {
        Self::read(bytes).map(|(extension, opcode)| (opcode, extension.length()))
    }

    fn read(bytes: &[u8]) -> Result<(Self, Opcode), Malformed> {
        let short = |needed| Malformed::Truncated { layer: Layer::Extension, needed, found: bytes.len() };
        let wrong =
            |field, value: u8| Malformed::Field { layer: Layer::Extension, field, value: value.into() };
        let head: &[u8; HEADER] = bytes.first_chunk().ok_or(short(HEADER))?;
        let (code, flags, hops) = (head[field::OPCODE], head[field::FLAGS], head[field::HOPS]);
        let opcode = Opcode::from_byte(code).ok_or(wrong("opcode", code))?;
        // An unknown flag means an unknown block, and nothing behind it can be read. None at all means nothing: a
        // packet has one form.
        let both = GATHERED | ECHOED;
        if flags & !KNOWN != 0 || flags == 0 || flags & both == both {
            return Err(wrong("flags", flags));
        }
        let count = if flags & both != 0 { usize::from(hops) } else { 0 };
        if count > Telemetry::HOPS_MAX {
            return Err(wrong("hops", hops));
        }
        let length = length(flags, count);
        let mut rest = bytes.get(HEADER..length).ok_or(short(length))?;
        let mut block = |length: usize| rest.split_off(..length).expect("the length counts every block");
        let mut extension = Self::NONE;
        if flags & GATHERED != 0 {
            extension.telemetry = TelemetryBlock::Gathered(Telemetry::parse(block(Telemetry::LENGTH), count));
        }
        if flags & ECHOED != 0 {
            let raw = block(count * Hop::LENGTH);
            extension.telemetry = TelemetryBlock::Echoed(Telemetry::parse(raw, count));
        }
        if flags & CONGESTION != 0 {
            let raw = block(CONGESTION_LENGTH);
            let (marked, packets) = (u16_at(raw, field::MARKED), u16_at(raw, field::PACKETS));
            extension.congestion = Some(CongestionEcho { marked, packets });
        }
        if flags & SELECTIVE != 0 {
            let raw = block(SelectiveAck::LENGTH);
            let first = Psn::new(u24_at(raw, field::FIRST));
            extension.selective = Some(SelectiveAck { first, bits: take(raw, field::BITS) });
        }
        Ok((extension, opcode))
    }

    /// Writes it to exactly its bytes.
    pub(crate) fn emit(&self, opcode: Opcode, out: &mut [u8]) {
        out.fill(0);
        out[field::OPCODE] = opcode as u8;
        out[field::FLAGS] = self.flags();
        out[field::HOPS] = self.hop_count() as u8;
        let mut at = HEADER;
        match &self.telemetry {
            TelemetryBlock::None => {}
            TelemetryBlock::Gathered(telemetry) => {
                telemetry.emit(&mut out[at..][..Telemetry::LENGTH]);
                at += Telemetry::LENGTH;
            }
            TelemetryBlock::Echoed(telemetry) => {
                let length = self.hop_count() * Hop::LENGTH;
                telemetry.emit(&mut out[at..][..length]);
                at += length;
            }
        }
        if let Some(CongestionEcho { marked, packets }) = self.congestion {
            put_u16(out, at + field::MARKED, marked);
            put_u16(out, at + field::PACKETS, packets);
            at += CONGESTION_LENGTH;
        }
        if let Some(SelectiveAck { first, bits }) = self.selective {
            put_u24(out, at + field::FIRST, first.value());
            out[at + field::BITS..][..bits.len()].copy_from_slice(&bits);
        }
    }
}

const CONGESTION_LENGTH: usize = 4;

const fn length(flags: u8, hops: usize) -> usize {
    let telemetry = match flags & (GATHERED | ECHOED) {
        GATHERED => Telemetry::LENGTH,
        ECHOED => hops * Hop::LENGTH,
        _ => 0,
    };
    let congestion = if flags & CONGESTION != 0 { CONGESTION_LENGTH } else { 0 };
    let selective = if flags & SELECTIVE != 0 { SelectiveAck::LENGTH } else { 0 };
    HEADER + telemetry + congestion + selective
}

/// The bytes of an extension header that hold what changes on the way, and all before them: what the ICRC must mask.
pub(crate) const VARIANT_LENGTH: usize = HEADER + Telemetry::LENGTH;

/// The front of what follows a BTH with what changes on the way set to ones, where the packet has such a part.
#[inline]
pub(crate) fn masked(base: &[u8], rest: &[u8]) -> Option<[u8; VARIANT_LENGTH]> {
    if base.first() != Some(&EXTENSION_OPCODE) {
        return None;
    }
    let mut front: [u8; VARIANT_LENGTH] = *rest.first_chunk()?;
    if front[field::FLAGS] & GATHERED == 0 {
        return None;
    }
    for (_, byte) in front.iter_mut().enumerate().filter(|(at, _)| varies(*at)) {
        *byte = 0xff;
    }
    Some(front)
}

/// Whether the byte at this place of a header that gathers telemetry changes on the way.
const fn varies(at: usize) -> bool {
    at == field::HOPS || at >= HEADER && at < VARIANT_LENGTH
}
