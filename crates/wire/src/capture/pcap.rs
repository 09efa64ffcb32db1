//! The classic format: one header, then packets with seconds and a fraction.

use std::io::{Read, Write};

use super::input::{ByteOrder, Input};
use super::{CaptureError, LinkType, PACKET_BYTES_MAX, Packet, Timestamp};
use crate::bytes::take;

mod field {
    /// Of the file, after the magic.
    pub(super) const MAJOR: usize = 0;
    pub(super) const MINOR: usize = 2;
    pub(super) const LINK_TYPE: usize = 16;
    /// Of a packet.
    pub(super) const SECONDS: usize = 0;
    pub(super) const FRACTION: usize = 4;
    pub(super) const KEPT: usize = 8;
    pub(super) const ORIGINAL: usize = 12;
}

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const MAJOR: u16 = 2;
const MINOR: u16 = 4;

/// The unit of the fraction of a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Precision {
    Microseconds,
    Nanoseconds,
}

impl Precision {
    const fn picoseconds(self) -> u64 {
        match self {
            Self::Microseconds => 1_000_000,
            Self::Nanoseconds => 1_000,
        }
    }

    const fn magic(self) -> u32 {
        match self {
            Self::Microseconds => MAGIC_MICROSECONDS,
            Self::Nanoseconds => MAGIC_NANOSECONDS,
        }
    }
}

/// What the first four bytes of a file say about it.
pub(super) fn recognise(magic: [u8; 4]) -> Option<(ByteOrder, Precision)> {
    [ByteOrder::Little, ByteOrder::Big].into_iter().find_map(|order| match order.u32(magic) {
        MAGIC_MICROSECONDS => Some((order, Precision::Microseconds)),
        MAGIC_NANOSECONDS => Some((order, Precision::Nanoseconds)),
        _ => None,
    })
}

#[derive(Debug)]
pub(super) struct State {
    order: ByteOrder,
    precision: Precision,
    pub(super) link_type: LinkType,
}

impl State {
    /// Reads what follows the magic.
    pub(super) fn begin<R: Read>(
        input: &mut Input<R>,
        order: ByteOrder,
        precision: Precision,
    ) -> Result<Self, CaptureError> {
        let raw: [u8; 20] = input.array("the file header")?;
        let (major, minor) = (order.u16(take(&raw, field::MAJOR)), order.u16(take(&raw, field::MINOR)));
        if major != MAJOR {
            return Err(CaptureError::Version { format: "pcap", major, minor });
        }
        // The upper bits tell of a frame check sequence, which nothing here has.
        let link_type = LinkType(order.u32(take(&raw, field::LINK_TYPE)) as u16);
        Ok(Self { order, precision, link_type })
    }

    pub(super) fn next_packet<R: Read>(&self, input: &mut Input<R>) -> Result<Option<Packet>, CaptureError> {
        let offset = input.offset();
        let Some(raw) = input.array_or_end::<16>("a packet header")? else {
            return Ok(None);
        };
        let number = |at| self.order.u32(take(&raw, at));
        let kept = number(field::KEPT);
        if kept as usize > PACKET_BYTES_MAX {
            let (stated, most) = (kept.into(), PACKET_BYTES_MAX as u64);
            return Err(CaptureError::Length { offset, what: "the packet length", stated, least: 0, most });
        }
        let fraction = u64::from(number(field::FRACTION)) * self.precision.picoseconds();
        Ok(Some(Packet {
            timestamp: Some(Timestamp::new(number(field::SECONDS).into(), fraction)),
            interface: 0,
            link_type: self.link_type,
            bytes: input.bytes(kept as usize, "a packet")?,
            original_length: number(field::ORIGINAL),
            comments: Vec::new(),
        }))
    }
}

/// Writes a pcap file, numbers with their lowest byte first.
#[derive(Debug)]
pub struct PcapWriter<W> {
    write: W,
    precision: Precision,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    pub fn new(mut write: W, precision: Precision, link_type: LinkType) -> Result<Self, CaptureError> {
        write.write_all(&precision.magic().to_le_bytes())?;
        write.write_all(&MAJOR.to_le_bytes())?;
        write.write_all(&MINOR.to_le_bytes())?;
        write.write_all(&[0; 8])?;
        write.write_all(&(PACKET_BYTES_MAX as u32).to_le_bytes())?;
        write.write_all(&u32::from(link_type.0).to_le_bytes())?;
        Ok(Self { write, precision })
    }

    /// Writes one packet.
    pub fn write(&mut self, timestamp: Timestamp, bytes: &[u8]) -> Result<(), CaptureError> {
        let Ok(seconds) = u32::try_from(timestamp.seconds()) else {
            return Err(CaptureError::Time(timestamp));
        };
        let fraction = (timestamp.picoseconds() / self.precision.picoseconds()) as u32;
        let length = bytes.len() as u32;
        for number in [seconds, fraction, length, length] {
            self.write.write_all(&number.to_le_bytes())?;
        }
        self.write.write_all(bytes)?;
        Ok(())
    }

    /// Ends the file and gives the writer back.
    pub fn finish(mut self) -> Result<W, CaptureError> {
        self.write.flush()?;
        Ok(self.write)
    }
}
