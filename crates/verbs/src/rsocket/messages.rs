//! What rsockets say to each other (rdma-core, `librdmacm/docs/rsocket`): private data when they connect, entries that they
//! write into each other's memory, and immediate data.

/// A piece of memory of the peer's, as it stands in target lists: in the order of bytes of its host.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

/// A piece of memory that `riowrite` reaches by an offset.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Mapped {
    pub(super) offset: u64,
    pub(super) target: Target,
}

/// Entries of a target list.
pub(super) const TARGETS: u32 = 2;

const VERSION: u8 = 1;
const FLAG_BIG_ENDIAN: u8 = 1 << 0;
const FLAG_MAPS: u8 = 1 << 1;

/// Private data of REQ and REP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Messages that the sender has receives for.
    pub(super) credits: u16,
    /// Pieces of memory that the receiver may map for the sender.
    pub(super) maps: u32,
    /// The target list; its length is in entries.
    pub(super) list: Target,
    /// The first receive buffer.
    pub(super) buffer: Target,
}

impl Hello {
    pub(super) const LENGTH: usize = 40;

    pub(super) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        (bytes[0], bytes[1]) = (VERSION, FLAG_MAPS);
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = to_scale(self.maps);
        for (at, target) in [(8, self.list), (24, self.buffer)] {
            bytes[at..at + 8].copy_from_slice(&target.address.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&target.key.to_be_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&target.length.to_be_bytes());
        }
        bytes
    }

    /// `None`: the peer is no rsocket of this version and order of bytes.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.first_chunk()?;
        if bytes[0] != VERSION || bytes[1] & FLAG_BIG_ENDIAN != 0 {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let target = |at: usize| Target {
            address: u64::from(word(at)) << 32 | u64::from(word(at + 4)),
            key: word(at + 8),
            length: word(at + 12),
        };
        let maps = if bytes[1] & FLAG_MAPS != 0 { from_scale(bytes[7]) } else { 0 };
        let credits = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(Self { credits, maps, list: target(8), buffer: target(24) })
    }
}

/// Counts in eight bits: up to 128 as they are, larger ones in units of 256.
fn to_scale(count: u32) -> u8 {
    if count <= 1 << 7 { count as u8 } else { 1 << 7 | (count >> 8).min(0x7f) as u8 }
}

fn from_scale(scale: u8) -> u32 {
    if scale <= 1 << 7 { scale.into() } else { u32::from(scale & 0x7f) << 8 }
}

/// Immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// So many bytes were written into the receive buffer.
    Data(u32),
    /// Messages may be sent up to this number; a target may be new.
    Credits(u16),
    /// An entry of the map is new.
    Map(u32),
    /// The sender is gone.
    Disconnect,
    /// It only shows that the sender is there.
    KeepAlive,
    /// The sender sends no more data.
    Shutdown,
}

const KIND_AT: u32 = 29;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAP: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    pub(super) fn to_immediate(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credits(number) => (CREDITS, number.into()),
            Self::Map(index) => (MAP, index),
            Self::Disconnect => (CONTROL, 0),
            Self::KeepAlive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
        };
        kind << KIND_AT | value
    }

    pub(super) fn parse(immediate: u32) -> Option<Self> {
        let value = immediate & ((1 << KIND_AT) - 1);
        match (immediate >> KIND_AT, value) {
            (DATA, bytes) => Some(Self::Data(bytes)),
            (CREDITS, number) => Some(Self::Credits(number as u16)),
            (MAP, index) => Some(Self::Map(index)),
            (CONTROL, 0) => Some(Self::Disconnect),
            (CONTROL, 1) => Some(Self::KeepAlive),
            (CONTROL, 2) => Some(Self::Shutdown),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire() {
        let target = Target { address: 0x0123_4567_89ab_cdef, key: 0x1122_3344, length: 7 };
        let hello =
            Hello { credits: 384, maps: 512, list: target, buffer: Target { length: 1 << 18, ..target } };
        let bytes = hello.to_bytes();
        assert_eq!((bytes[..8].to_vec(), bytes[8]), (vec![1, 2, 1, 0x80, 0, 0, 0, 0x82], 0x01));
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..39]), None);
        assert_eq!(Hello::parse(&[2; 56]), None);
    }

    #[test]
    fn messages_survive_immediate_data() {
        let all = [
            (Message::Data(70000), 70000),
            (Message::Credits(0xfffe), 0x8000_fffe),
            (Message::Map(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, immediate) in all {
            assert_eq!(message.to_immediate(), immediate);
            assert_eq!(Message::parse(immediate), Some(message));
        }
        assert_eq!(Message::parse(0xe000_0009), None);
    }
}
