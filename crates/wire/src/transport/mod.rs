//! The InfiniBand transport headers of a packet as values: what the NIC speaks.

mod aeth;
mod atomic;
mod bth;
mod cnp;
mod deth;
pub(crate) mod extension;
mod flush;
mod reth;
mod telemetry;
mod word;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use extension::{CongestionEcho, Extension, SelectiveAck, TelemetryBlock};
pub use reth::Reth;
pub use telemetry::{Hop, Telemetry};

use crate::bytes::header;
use crate::malformed::{Layer, Malformed};
use crate::opcode::Opcode;
use atomic::AtomicAcknowledge;
use flush::Flush;
use word::{Immediate, Invalidate};

/// One extended header of fixed length.
trait Part: Sized {
    /// What errors call it.
    const LAYER: Layer;
    /// Its bytes.
    const LENGTH: usize;

    /// Reads it from exactly its bytes. Every combination of them means something.
    fn read(raw: &[u8]) -> Self;

    /// Writes it to exactly its bytes.
    fn write(&self, raw: &mut [u8]);
}

/// Which extended headers follow the base header: the kinds of [`Extended`], without the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "documented at the variants of Extended")]
pub enum Layout {
    None,
    Immediate,
    Invalidate,
    Reth,
    RethImmediate,
    Aeth,
    AtomicAck,
    Atomic,
    Deth,
    DethImmediate,
    Flush,
    Cnp,
}

impl Layout {
    /// Bytes of the extended headers together.
    pub const fn length(self) -> usize {
        match self {
            Self::None => 0,
            Self::Immediate => Immediate::LENGTH,
            Self::Invalidate => Invalidate::LENGTH,
            Self::Reth => Reth::LENGTH,
            Self::RethImmediate => Reth::LENGTH + Immediate::LENGTH,
            Self::Aeth => Aeth::LENGTH,
            Self::AtomicAck => Aeth::LENGTH + AtomicAcknowledge::LENGTH,
            Self::Atomic => AtomicEth::LENGTH,
            Self::Deth => Deth::LENGTH,
            Self::DethImmediate => Deth::LENGTH + Immediate::LENGTH,
            Self::Flush => Flush::LENGTH + Reth::LENGTH,
            Self::Cnp => cnp::Reserved::LENGTH,
        }
    }
}

impl Opcode {
    /// Which extended headers follow the base header in a packet of this opcode.
    pub const fn layout(self) -> Layout {
        match self {
            Self::RcSendFirst
            | Self::RcSendMiddle
            | Self::RcSendLast
            | Self::RcSendOnly
            | Self::RcWriteMiddle
            | Self::RcWriteLast
            | Self::RcReadResponseMiddle
            | Self::UcSendFirst
            | Self::UcSendMiddle
            | Self::UcSendLast
            | Self::UcSendOnly
            | Self::UcWriteMiddle
            | Self::UcWriteLast => Layout::None,
            Self::RcSendLastImmediate
            | Self::RcSendOnlyImmediate
            | Self::RcWriteLastImmediate
            | Self::UcSendLastImmediate
            | Self::UcSendOnlyImmediate
            | Self::UcWriteLastImmediate => Layout::Immediate,
            Self::RcSendLastInvalidate | Self::RcSendOnlyInvalidate => Layout::Invalidate,
            Self::RcWriteFirst
            | Self::RcWriteOnly
            | Self::RcReadRequest
            | Self::RcAtomicWrite
            | Self::UcWriteFirst
            | Self::UcWriteOnly => Layout::Reth,
            Self::RcWriteOnlyImmediate | Self::UcWriteOnlyImmediate => Layout::RethImmediate,
            Self::RcReadResponseFirst
            | Self::RcReadResponseLast
            | Self::RcReadResponseOnly
            | Self::RcAcknowledge => Layout::Aeth,
            Self::RcAtomicAcknowledge => Layout::AtomicAck,
            Self::RcCompareSwap | Self::RcFetchAdd => Layout::Atomic,
            Self::RcFlush => Layout::Flush,
            Self::UdSendOnly => Layout::Deth,
            Self::UdSendOnlyImmediate => Layout::DethImmediate,
            Self::Cnp => Layout::Cnp,
        }
    }
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
        /// The range to flush.
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

impl Extended {
    /// Which of the kinds this is.
    pub const fn layout(&self) -> Layout {
        match self {
            Self::None => Layout::None,
            Self::Immediate(_) => Layout::Immediate,
            Self::Invalidate(_) => Layout::Invalidate,
            Self::Reth(_) => Layout::Reth,
            Self::RethImmediate(..) => Layout::RethImmediate,
            Self::Aeth(_) => Layout::Aeth,
            Self::AtomicAck(..) => Layout::AtomicAck,
            Self::Atomic(_) => Layout::Atomic,
            Self::Deth(_) => Layout::Deth,
            Self::DethImmediate(..) => Layout::DethImmediate,
            Self::Flush { .. } => Layout::Flush,
            Self::Cnp => Layout::Cnp,
        }
    }

    /// Reads the headers of this kind from the front of `bytes`.
    fn parse(layout: Layout, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Rest(bytes);
        Ok(match layout {
            Layout::None => Self::None,
            Layout::Immediate => Self::Immediate(rest.part::<Immediate>()?.0),
            Layout::Invalidate => Self::Invalidate(rest.part::<Invalidate>()?.0),
            Layout::Reth => Self::Reth(rest.part()?),
            Layout::RethImmediate => Self::RethImmediate(rest.part()?, rest.part::<Immediate>()?.0),
            Layout::Aeth => Self::Aeth(rest.part()?),
            Layout::AtomicAck => Self::AtomicAck(rest.part()?, rest.part::<AtomicAcknowledge>()?.0),
            Layout::Atomic => Self::Atomic(rest.part()?),
            Layout::Deth => Self::Deth(rest.part()?),
            Layout::DethImmediate => Self::DethImmediate(rest.part()?, rest.part::<Immediate>()?.0),
            Layout::Flush => {
                let Flush { placement, selectivity } = rest.part()?;
                Self::Flush { placement, selectivity, reth: rest.part()? }
            }
            Layout::Cnp => {
                let cnp::Reserved = rest.part()?;
                Self::Cnp
            }
        })
    }

    /// Writes the headers to exactly their bytes.
    fn emit(&self, out: &mut [u8]) {
        match *self {
            Self::None => {}
            Self::Immediate(value) => Immediate(value).write(out),
            Self::Invalidate(key) => Invalidate(key).write(out),
            Self::Reth(reth) => reth.write(out),
            Self::RethImmediate(reth, value) => pair(&reth, &Immediate(value), out),
            Self::Aeth(aeth) => aeth.write(out),
            Self::AtomicAck(aeth, value) => pair(&aeth, &AtomicAcknowledge(value), out),
            Self::Atomic(atomic) => atomic.write(out),
            Self::Deth(deth) => deth.write(out),
            Self::DethImmediate(deth, value) => pair(&deth, &Immediate(value), out),
            Self::Flush { placement, selectivity, reth } => {
                pair(&Flush { placement, selectivity }, &reth, out);
            }
            Self::Cnp => cnp::Reserved.write(out),
        }
    }
}

/// Bytes from which parts are taken one after the other.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn part<P: Part>(&mut self) -> Result<P, Malformed> {
        let (raw, rest) = self.0.split_at_checked(P::LENGTH).ok_or(Malformed::Truncated {
            layer: P::LAYER,
            needed: P::LENGTH,
            found: self.0.len(),
        })?;
        self.0 = rest;
        Ok(P::read(raw))
    }
}

fn pair<A: Part, B: Part>(first: &A, second: &B, out: &mut [u8]) {
    let (front, back) = out.split_at_mut(A::LENGTH);
    first.write(front);
    second.write(back);
}

/// What [`Headers::parse`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParsedHeaders {
    /// The headers.
    pub headers: Headers,
    /// Bytes that they took, with the extension header.
    pub length: usize,
    /// Bytes of the extension header right behind the BTH, for [`Extension::parse`]; 0 for none.
    pub extension: usize,
    /// Bytes of padding between payload and ICRC.
    pub pad: usize,
}

impl Headers {
    /// The most bytes that transport headers take: those of an atomic request with everything in its extension.
    pub const MAX_LENGTH: usize = Bth::LENGTH + Extension::MAX_LENGTH + AtomicEth::LENGTH;

    /// Reads the transport headers at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<ParsedHeaders, Malformed> {
        let raw: &[u8; Bth::LENGTH] = header(bytes, Layer::BaseTransport)?;
        let rest = &bytes[Bth::LENGTH..];
        let (opcode, extension) = match Bth::opcode(raw)? {
            Some(opcode) => (opcode, 0),
            None => Extension::announced(rest)?,
        };
        let (bth, pad) = Bth::parse(raw, opcode)?;
        let layout = opcode.layout();
        let extended = Extended::parse(layout, &rest[extension..])?;
        let length = Bth::LENGTH + extension + layout.length();
        Ok(ParsedHeaders { headers: Self { bth, extended }, length, extension, pad })
    }

    /// Bytes of the headers, without an extension.
    pub const fn length(&self) -> usize {
        Bth::LENGTH + self.extended.layout().length()
    }

    /// Whether the extended headers are those that the opcode calls for.
    pub fn are_consistent(&self) -> bool {
        self.bth.opcode.layout() == self.extended.layout()
    }

    /// Writes the headers to the front of `out`, for a payload that ends in `pad` bytes of padding.
    #[inline]
    pub fn emit(&self, out: &mut [u8], pad: usize) {
        debug_assert!(self.are_consistent(), "{:?} does not go with {:?}", self.extended, self.bth.opcode);
        let (base, extended) = out[..self.length()].split_at_mut(Bth::LENGTH);
        base.copy_from_slice(&self.bth.to_bytes(pad));
        self.extended.emit(extended);
    }

    /// As [`Headers::emit`], with an extension header in between where there is something in it.
    #[inline]
    pub fn emit_with(&self, extension: &Extension, out: &mut [u8], pad: usize) {
        if extension.is_none() {
            return self.emit(out, pad);
        }
        debug_assert!(self.are_consistent(), "{:?} does not go with {:?}", self.extended, self.bth.opcode);
        let (base, rest) = out.split_at_mut(Bth::LENGTH);
        let (front, back) = rest.split_at_mut(extension.length());
        let mut raw = self.bth.to_bytes(pad);
        Bth::announce_extension(&mut raw);
        base.copy_from_slice(&raw);
        extension.emit(self.bth.opcode, front);
        self.extended.emit(&mut back[..self.extended.layout().length()]);
    }
}

/// Bytes of padding that bring a payload to a multiple of four.
pub const fn pad_length(payload_bytes: usize) -> usize {
    payload_bytes.wrapping_neg() & 3
}
