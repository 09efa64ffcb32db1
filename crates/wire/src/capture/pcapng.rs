//! The newer format, read: sections of blocks; interfaces have names and clocks, packets have comments.

use std::io::Read;

use super::input::{ByteOrder, Input};
use super::{
    BLOCK_BYTES_MAX, CaptureError, INTERFACES_MAX, Interface, LinkType, PICOSECONDS_PER_SECOND, Packet,
    Timestamp,
};
use crate::bytes::take;

/// Block types. That of a section reads the same in both byte orders.
pub(super) const SECTION: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;

pub(super) const BYTE_ORDER_MARK: u32 = 0x1a2b_3c4d;
pub(super) const MAJOR: u16 = 1;
/// Type, length, and the length once more.
pub(super) const BLOCK_OVERHEAD: usize = 12;

/// Option codes.
pub(super) const END_OF_OPTIONS: u16 = 0;
pub(super) const COMMENT: u16 = 1;
pub(super) const INTERFACE_NAME: u16 = 2;
pub(super) const TIME_RESOLUTION: u16 = 9;
const TIME_OFFSET: u16 = 14;

#[derive(Debug)]
pub(super) struct State {
    order: ByteOrder,
    clocks: Vec<Clock>,
    /// From the interface that simple packets belong to: the first.
    snap_length: u32,
}

/// How the timestamps of an interface are meant.
#[derive(Debug)]
struct Clock {
    /// Upper bit 0: powers of ten, 1: powers of two; the rest is the exponent's amount.
    resolution: u8,
    offset_seconds: i64,
}

impl Clock {
    const MICROSECONDS: u8 = 6;

    fn timestamp(&self, ticks: u64) -> Timestamp {
        let exponent = u32::from(self.resolution & 0x7f);
        let scaled = u128::from(ticks) * u128::from(PICOSECONDS_PER_SECOND);
        let picoseconds = if self.resolution & 0x80 != 0 {
            scaled >> exponent
        } else {
            // Finer than 10^-38 s: a 64-bit count of it is less than a picosecond.
            10_u128.checked_pow(exponent).map_or(0, |unit| scaled / unit)
        };
        let seconds = (picoseconds / u128::from(PICOSECONDS_PER_SECOND)) as u64;
        let rest = (picoseconds % u128::from(PICOSECONDS_PER_SECOND)) as u64;
        Timestamp::new(seconds.saturating_add_signed(self.offset_seconds), rest)
    }
}

/// A block's contents and where it began.
struct Block {
    kind: u32,
    offset: u64,
    body: Vec<u8>,
}

impl State {
    /// Reads the first section header, after its type.
    pub(super) fn begin<R: Read>(input: &mut Input<R>) -> Result<Self, CaptureError> {
        let mut state = Self { order: ByteOrder::Little, clocks: Vec::new(), snap_length: 0 };
        let offset = input.offset() - 4;
        state.section(input, offset)?;
        Ok(state)
    }

    pub(super) fn next_packet<R: Read>(
        &mut self,
        input: &mut Input<R>,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Option<Packet>, CaptureError> {
        loop {
            let offset = input.offset();
            let Some(kind) = input.array_or_end::<4>("a block header")? else {
                return Ok(None);
            };
            if kind == SECTION.to_be_bytes() {
                self.section(input, offset)?;
                interfaces.clear();
                continue;
            }
            let kind = self.order.u32(kind);
            let block = Block { kind, offset, body: self.body(input, offset)? };
            match block.kind {
                INTERFACE => self.interface(&block, interfaces)?,
                ENHANCED_PACKET | OLD_PACKET => return self.packet(&block, interfaces).map(Some),
                SIMPLE_PACKET => return self.simple_packet(&block, interfaces).map(Some),
                _ => {}
            }
        }
    }

    /// Reads a section header after its type. What was known of interfaces is void.
    fn section<R: Read>(&mut self, input: &mut Input<R>, offset: u64) -> Result<(), CaptureError> {
        let raw: [u8; 8] = input.array("a section header")?;
        let mark: [u8; 4] = take(&raw, 4);
        self.order = [ByteOrder::Little, ByteOrder::Big]
            .into_iter()
            .find(|order| order.u32(mark) == BYTE_ORDER_MARK)
            .ok_or(CaptureError::ByteOrder { offset, found: mark })?;
        self.clocks.clear();
        let length = self.length(take(&raw, 0), offset, 28)?;
        let body = self.rest(input, offset, length, 12)?;
        let (major, minor) = (self.order.u16(take(&body, 0)), self.order.u16(take(&body, 2)));
        if major != MAJOR {
            return Err(CaptureError::Version { format: "pcapng", major, minor });
        }
        Ok(())
    }

    /// Reads a block after its type.
    fn body<R: Read>(&self, input: &mut Input<R>, offset: u64) -> Result<Vec<u8>, CaptureError> {
        let length = self.length(input.array("a block header")?, offset, BLOCK_OVERHEAD)?;
        self.rest(input, offset, length, 8)
    }

    /// A block's length, checked.
    fn length(&self, raw: [u8; 4], offset: u64, least: usize) -> Result<usize, CaptureError> {
        let stated = self.order.u32(raw);
        let length = stated as usize;
        if (least..=BLOCK_BYTES_MAX).contains(&length) && length.is_multiple_of(4) {
            return Ok(length);
        }
        Err(length_error(offset, "a block length", stated.into(), least, BLOCK_BYTES_MAX))
    }

    /// The rest of a block of which `done` bytes are read, less the length at its end.
    fn rest<R: Read>(
        &self,
        input: &mut Input<R>,
        offset: u64,
        length: usize,
        done: usize,
    ) -> Result<Vec<u8>, CaptureError> {
        let body = input.bytes(length - done - 4, "a block")?;
        let again = self.order.u32(input.array("a block")?) as usize;
        if again != length {
            return Err(length_error(offset, "the second length of a block", again as u64, length, length));
        }
        Ok(body)
    }

    fn interface(&mut self, block: &Block, interfaces: &mut Vec<Interface>) -> Result<(), CaptureError> {
        const FIXED: usize = 8;
        block.need(FIXED)?;
        if interfaces.len() == INTERFACES_MAX {
            let stated = INTERFACES_MAX as u64 + 1;
            return Err(length_error(block.offset, "the count of interfaces", stated, 0, INTERFACES_MAX));
        }
        let mut name = None;
        let mut clock = Clock { resolution: Clock::MICROSECONDS, offset_seconds: 0 };
        self.options(block, FIXED, |code, value| match (code, value) {
            (INTERFACE_NAME, _) => name = Some(String::from_utf8_lossy(value).into_owned()),
            (TIME_RESOLUTION, &[resolution]) => clock.resolution = resolution,
            (TIME_OFFSET, value) => {
                if let Ok(raw) = value.try_into() {
                    clock.offset_seconds = self.order.u64(raw) as i64;
                }
            }
            _ => {}
        })?;
        if interfaces.is_empty() {
            self.snap_length = self.order.u32(take(&block.body, 4));
        }
        self.clocks.push(clock);
        interfaces.push(Interface { name, link_type: LinkType(self.order.u16(take(&block.body, 0))) });
        Ok(())
    }

    fn packet(&self, block: &Block, interfaces: &[Interface]) -> Result<Packet, CaptureError> {
        const FIXED: usize = 20;
        block.need(FIXED)?;
        let number = |at| self.order.u32(take(&block.body, at));
        let interface = match block.kind {
            OLD_PACKET => self.order.u16(take(&block.body, 0)).into(),
            _ => number(0),
        };
        let known = described(block, interface, interfaces)?;
        let clock = &self.clocks[interface as usize];
        let kept = number(12) as usize;
        let bytes = block.data(FIXED, kept)?;
        let mut comments = Vec::new();
        self.options(block, FIXED + kept.next_multiple_of(4), |code, value| {
            if code == COMMENT {
                comments.push(String::from_utf8_lossy(value).into_owned());
            }
        })?;
        Ok(Packet {
            timestamp: Some(clock.timestamp(u64::from(number(4)) << 32 | u64::from(number(8)))),
            interface,
            link_type: known.link_type,
            bytes,
            original_length: number(16),
            comments,
        })
    }

    fn simple_packet(&self, block: &Block, interfaces: &[Interface]) -> Result<Packet, CaptureError> {
        const FIXED: usize = 4;
        block.need(FIXED)?;
        let known = described(block, 0, interfaces)?;
        let original_length = self.order.u32(take(&block.body, 0));
        // It has no length of its own: what the interface keeps of such a packet.
        let kept =
            if self.snap_length == 0 { original_length } else { original_length.min(self.snap_length) };
        let bytes = block.data(FIXED, kept as usize)?;
        let link_type = known.link_type;
        Ok(Packet { timestamp: None, interface: 0, link_type, bytes, original_length, comments: Vec::new() })
    }

    /// Walks the options at the end of a block.
    fn options(
        &self,
        block: &Block,
        start: usize,
        mut found: impl FnMut(u16, &[u8]),
    ) -> Result<(), CaptureError> {
        let mut rest = block.body.get(start..).unwrap_or_default();
        while let Some((head, after)) = rest.split_first_chunk::<4>() {
            let (code, length) = (self.order.u16(take(head, 0)), self.order.u16(take(head, 2)));
            if code == END_OF_OPTIONS {
                break;
            }
            let length = usize::from(length);
            let Some(value) = after.get(..length) else {
                return Err(length_error(block.offset, "an option length", length as u64, 0, after.len()));
            };
            found(code, value);
            rest = after.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Block {
    /// Checks that the fixed part is there.
    fn need(&self, fixed: usize) -> Result<(), CaptureError> {
        if self.body.len() >= fixed {
            return Ok(());
        }
        let stated = (self.body.len() + BLOCK_OVERHEAD) as u64;
        let least = fixed + BLOCK_OVERHEAD;
        Err(length_error(self.offset, "a block length", stated, least, BLOCK_BYTES_MAX))
    }

    /// The packet in it.
    fn data(&self, start: usize, length: usize) -> Result<Vec<u8>, CaptureError> {
        let there = &self.body[start..];
        match there.get(..length) {
            Some(data) => Ok(data.to_vec()),
            None => Err(length_error(self.offset, "the packet length", length as u64, 0, there.len())),
        }
    }
}

fn described<'a>(
    block: &Block,
    interface: u32,
    interfaces: &'a [Interface],
) -> Result<&'a Interface, CaptureError> {
    interfaces.get(interface as usize).ok_or(CaptureError::UnknownInterface {
        offset: block.offset,
        interface,
        known: interfaces.len(),
    })
}

fn length_error(offset: u64, what: &'static str, stated: u64, least: usize, most: usize) -> CaptureError {
    CaptureError::Length { offset, what, stated, least: least as u64, most: most as u64 }
}
