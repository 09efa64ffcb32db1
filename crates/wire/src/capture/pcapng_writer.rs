//! The newer format, written: one section, numbers with their lowest byte first.

use std::io::Write;

use super::pcapng::{
    BLOCK_OVERHEAD, BYTE_ORDER_MARK, COMMENT, END_OF_OPTIONS, ENHANCED_PACKET, INTERFACE, INTERFACE_NAME,
    MAJOR, SECTION, TIME_RESOLUTION,
};
use super::{CaptureError, LinkType, Timestamp};

/// An interface of a file that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceId(u32);

/// Writes a pcapng file.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    write: W,
    /// By interface: digits of a second in its timestamps.
    digits: Vec<u32>,
}

impl<W: Write> PcapngWriter<W> {
    /// Digits of a second in timestamps of real time: nanoseconds.
    pub const NANOSECONDS: u8 = 9;
    /// Digits of a second in timestamps of simulated time. A file of these can last 213 days from its epoch.
    pub const PICOSECONDS: u8 = 12;

    /// Writes the section header.
    pub fn new(write: W) -> Result<Self, CaptureError> {
        Self::with_comment(write, None)
    }

    /// Writes the section header, with a comment on the whole file.
    pub fn with_comment(write: W, comment: Option<&str>) -> Result<Self, CaptureError> {
        let mut body = Vec::new();
        body.extend(BYTE_ORDER_MARK.to_le_bytes());
        body.extend(MAJOR.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        // The length of the section is not known yet.
        body.extend(u64::MAX.to_le_bytes());
        if let Some(comment) = comment {
            option(&mut body, COMMENT, comment.as_bytes());
            option(&mut body, END_OF_OPTIONS, &[]);
        }
        let mut writer = Self { write, digits: Vec::new() };
        writer.block(SECTION, &body)?;
        Ok(writer)
    }

    /// Describes an interface. `digits` of a second, at most 12, are kept of its timestamps.
    pub fn interface(
        &mut self,
        name: &str,
        link_type: LinkType,
        digits: u8,
    ) -> Result<InterfaceId, CaptureError> {
        let digits = digits.min(Self::PICOSECONDS);
        let mut body = Vec::new();
        body.extend(link_type.0.to_le_bytes());
        body.extend([0; 6]);
        option(&mut body, INTERFACE_NAME, name.as_bytes());
        option(&mut body, TIME_RESOLUTION, &[digits]);
        option(&mut body, END_OF_OPTIONS, &[]);
        self.block(INTERFACE, &body)?;
        self.digits.push(digits.into());
        Ok(InterfaceId(self.digits.len() as u32 - 1))
    }

    /// Writes one packet with its comments.
    pub fn write(
        &mut self,
        interface: InterfaceId,
        timestamp: Timestamp,
        bytes: &[u8],
        comments: &[&str],
    ) -> Result<(), CaptureError> {
        self.write_cut(interface, timestamp, (bytes, usize::MAX), comments)
    }

    /// Writes the first so many bytes of a packet with its comments.
    pub fn write_cut(
        &mut self,
        interface: InterfaceId,
        timestamp: Timestamp,
        (bytes, most): (&[u8], usize),
        comments: &[&str],
    ) -> Result<(), CaptureError> {
        let digits = self.digits[interface.0 as usize];
        let ticks = timestamp.ticks(digits).ok_or(CaptureError::Time(timestamp))?;
        let length = bytes.len() as u32;
        let bytes = &bytes[..bytes.len().min(most)];
        let mut body = Vec::with_capacity(bytes.len() + 64);
        for number in [interface.0, (ticks >> 32) as u32, ticks as u32, bytes.len() as u32, length] {
            body.extend(number.to_le_bytes());
        }
        body.extend_from_slice(bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        for comment in comments {
            option(&mut body, COMMENT, comment.as_bytes());
        }
        if !comments.is_empty() {
            option(&mut body, END_OF_OPTIONS, &[]);
        }
        self.block(ENHANCED_PACKET, &body)
    }

    /// Ends the file and gives the writer back.
    pub fn finish(mut self) -> Result<W, CaptureError> {
        self.write.flush()?;
        Ok(self.write)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> Result<(), CaptureError> {
        let length = ((body.len() + BLOCK_OVERHEAD) as u32).to_le_bytes();
        self.write.write_all(&kind.to_le_bytes())?;
        self.write.write_all(&length)?;
        self.write.write_all(body)?;
        self.write.write_all(&length)?;
        Ok(())
    }
}

/// Appends an option. One that is too long for its length field is cut.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}
