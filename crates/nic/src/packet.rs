//! Packets as they enter and leave the NIC: headers as values, and a handle on the payload.

use railnet_core::event::PacketId;
use railnet_core::{Bytes, GhostRun, Label};
use railnet_wire::{Extension, Framing, Headers, Network};

use crate::memory::{GhostRuns, Memory};
use crate::region::CheckedMemory;

/// Bytes of a RoCEv2 packet on an Ethernet besides transport headers and payload. The rate limiter counts them.
pub(crate) const FRAMING: u64 = Framing::RoceV2.overhead() as u64;

/// Bytes of a packet in the middle of a message on the wire besides its payload: framing and BTH.
pub(crate) const OVERHEAD_LEAST: u64 = FRAMING + 12;

/// The payload of a packet that is going out. Bytes are in the buffer that the driver gave to the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutboundPayload {
    /// So many bytes at the end of the driver's buffer; 0 for none.
    Bytes(u32),
    /// Ghost data.
    Ghost(GhostRuns),
}

impl OutboundPayload {
    /// Bytes of payload.
    pub fn length(&self) -> u32 {
        match self {
            Self::Bytes(length) => *length,
            Self::Ghost(runs) => runs.iter().map(|run| run.length).sum(),
        }
    }
}

/// A packet that leaves the NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Addresses, traffic class, hop limit and source port.
    pub network: Network,
    /// Transport headers.
    pub headers: Headers,
    /// What RoCEv2 has no field for; `None` in most packets, which is why it is apart. The NIC uses the box again that
    /// it finds in the driver's place.
    pub extension: Option<Box<Extension>>,
    /// What they carry.
    pub payload: OutboundPayload,
    /// The traffic class it goes out with, 0 to 7.
    pub priority: u8,
    /// Which packet it is.
    pub packet: PacketId,
    /// What the work request is about.
    pub label: Label,
}

impl Transmit {
    /// What RoCEv2 has no field for.
    #[inline]
    pub fn extension(&self) -> &Extension {
        self.extension.as_deref().unwrap_or(&Extension::NONE)
    }
}

/// The payload of a packet that came in.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Real bytes, possibly none.
    Bytes(&'a [u8]),
    /// Ghost data.
    Ghost(&'a [GhostRun]),
}

impl Payload<'_> {
    /// Bytes of payload.
    #[inline]
    pub fn length(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u32,
            Self::Ghost([run]) => run.length,
            Self::Ghost(runs) => runs.iter().map(|run| run.length).sum(),
        }
    }

    /// Writes `length` bytes from `from` on to memory that was checked.
    #[inline]
    pub(crate) fn place<M: Memory>(
        &self,
        memory: &mut M,
        place: CheckedMemory,
        address: u64,
        from: u32,
        length: u32,
    ) {
        match *self {
            Self::Bytes(bytes) => {
                memory.write(place.space, address, &bytes[from as usize..][..length as usize]);
            }
            Self::Ghost(runs) => {
                let (mut address, mut skip, mut left) = (address, from, length);
                for run in runs {
                    if skip >= run.length {
                        skip -= run.length;
                        continue;
                    }
                    let part = (run.length - skip).min(left);
                    let tag = run.tag.advanced(u64::from(skip));
                    memory.write_ghost(place.space, address, GhostRun { tag, length: part });
                    address += u64::from(part);
                    left -= part;
                    skip = 0;
                    if left == 0 {
                        break;
                    }
                }
            }
        }
    }
}

/// A packet that comes to the NIC.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Addresses, traffic class (with the ECN marks of the way) and hop limit.
    pub network: &'a Network,
    /// Transport headers.
    pub headers: &'a Headers,
    /// What RoCEv2 has no field for, where the packet has some of it.
    pub extension: Option<&'a Extension>,
    /// What they carry.
    pub payload: Payload<'a>,
    /// The ICRC was right. Where packets do not travel as bytes: nothing on the way corrupted it.
    pub intact: bool,
}

/// Bytes that a RoCEv2 packet takes on the wire, all framing and an extension of so many bytes counted.
pub(crate) fn wire_bytes(headers: &Headers, extension: usize, payload: u32) -> Bytes {
    let length = headers.length() + extension;
    Bytes(FRAMING + length as u64 + u64::from(payload.next_multiple_of(4)))
}

/// The same of a packet that is carried otherwise.
pub(crate) fn reframed(bytes: Bytes, framing: Framing) -> Bytes {
    Bytes(bytes.0 - FRAMING + u64::from(framing.overhead()))
}
