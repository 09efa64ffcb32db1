//! Records of Endace's extensible record format (ERF) around InfiniBand packets.
//!
//! A link type of its own is registered for InfiniBand, 247, and [`super::LinkType::INFINIBAND`] is read here; but Wireshark has no
//! dissector for it (4.0 answers with "unknown encapsulation"), where it opens InfiniBand in ERF records, link type 197, without
//! being told anything. So captures are written with those.

use crate::bytes::{put, put_u16, take, u16_at};
use crate::frame::Frame;
use crate::malformed::{Layer, Malformed};

use super::{LinkType, Timestamp, Undecodable};

mod field {
    pub(super) const TIMESTAMP: usize = 0;
    pub(super) const TYPE: usize = 8;
    pub(super) const FLAGS: usize = 9;
    pub(super) const RECORD_LENGTH: usize = 10;
    pub(super) const WIRE_LENGTH: usize = 14;
}

/// Bytes of the record header.
pub const ERF_LENGTH: usize = 16;
/// A record of an InfiniBand packet.
const TYPE_INFINIBAND: u8 = 21;
/// In the type: extension headers follow. In the first byte of one: another one follows.
const EXTENDED: u8 = 0x80;
const EXTENSION_LENGTH: usize = 8;
/// Records have the length of their packets.
const VARIES_IN_LENGTH: u8 = 0x04;

/// A record of an InfiniBand packet, LRH to VCRC, for an interface of [`LinkType::ERF`].
pub fn infiniband_record(timestamp: Timestamp, packet: &[u8]) -> Vec<u8> {
    let mut record = vec![0; ERF_LENGTH];
    // Seconds with 32 binary places, the lowest byte first.
    let fraction = (u128::from(timestamp.picoseconds()) << 32) / 1_000_000_000_000;
    let time = timestamp.seconds() << 32 | fraction as u64;
    put(&mut record, field::TIMESTAMP, time.to_le_bytes());
    record[field::TYPE] = TYPE_INFINIBAND;
    record[field::FLAGS] = VARIES_IN_LENGTH;
    put_u16(&mut record, field::RECORD_LENGTH, (ERF_LENGTH + packet.len()) as u16);
    put_u16(&mut record, field::WIRE_LENGTH, packet.len() as u16);
    record.extend_from_slice(packet);
    record
}

/// The InfiniBand packet of a record.
pub(super) fn frame(record: &[u8]) -> Result<Frame<'_>, Undecodable> {
    let short = |needed| Malformed::Truncated { layer: Layer::ErfRecord, needed, found: record.len() };
    if record.len() < ERF_LENGTH {
        return Err(short(ERF_LENGTH).into());
    }
    let [kind] = take(record, field::TYPE);
    if kind & !EXTENDED != TYPE_INFINIBAND {
        return Err(Undecodable::LinkType(LinkType::ERF));
    }
    let (mut start, mut more) = (ERF_LENGTH, kind & EXTENDED != 0);
    while more {
        let first = record.get(start).ok_or(short(start + EXTENSION_LENGTH))?;
        (start, more) = (start + EXTENSION_LENGTH, first & EXTENDED != 0);
    }
    let packet = record.get(start..).ok_or(short(start))?;
    // A record may be padded to whole words.
    let length = usize::from(u16_at(record, field::WIRE_LENGTH));
    Ok(Frame::parse_infiniband(&packet[..packet.len().min(length)])?)
}
