//! Capture files: pcap and pcapng, read and written through handed-in readers and writers.
//!
//! ```
//! use railnet_wire::capture::{LinkType, PcapWriter, Precision, Reader, Timestamp};
//!
//! let mut file = Vec::new();
//! let mut writer = PcapWriter::new(&mut file, Precision::Nanoseconds, LinkType::ETHERNET)?;
//! writer.write(Timestamp::new(1, 500_000_000_000), &[0; 60])?;
//!
//! let mut reader = Reader::new(&file[..])?;
//! let packet = reader.next_packet()?.expect("one packet was written");
//! assert_eq!(packet.bytes.len(), 60);
//! assert!(reader.next_packet()?.is_none());
//! # Ok::<(), railnet_wire::capture::CaptureError>(())
//! ```

mod erf;
mod input;
mod pcap;
mod pcapng;
mod pcapng_writer;

pub use erf::{ERF_LENGTH, infiniband_record};
pub use pcap::{PcapWriter, Precision};
pub use pcapng_writer::{InterfaceId, PcapngWriter};

use std::fmt;
use std::io::{self, Read};

use railnet_core::{Span, Time};

use crate::frame::Frame;
use crate::malformed::Malformed;
use input::Input;

/// The most bytes that a packet in a capture may have: what libpcap allows.
pub const PACKET_BYTES_MAX: usize = 262_144;
/// The most bytes that a block of a pcapng file may have.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;
/// The most interfaces in one section of a pcapng file.
pub const INTERFACES_MAX: usize = 65_536;

const PICOSECONDS_PER_SECOND: u64 = 1_000_000_000_000;

/// When a packet was captured: since the epoch of its file, which [`Time`] with its 213 days could not hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp {
    seconds: u64,
    picoseconds: u64,
}

impl Timestamp {
    /// Seconds, and picoseconds of the next one; a second's worth or more of those is carried over.
    pub const fn new(seconds: u64, picoseconds: u64) -> Self {
        Self {
            seconds: seconds.saturating_add(picoseconds / PICOSECONDS_PER_SECOND),
            picoseconds: picoseconds % PICOSECONDS_PER_SECOND,
        }
    }

    /// Whole seconds since the epoch.
    pub const fn seconds(self) -> u64 {
        self.seconds
    }

    /// Picoseconds since the last whole second.
    pub const fn picoseconds(self) -> u64 {
        self.picoseconds
    }

    /// How long after `earlier` this is: zero where it is before, the longest span where it is very long.
    pub fn since(self, earlier: Self) -> Span {
        let span = self.total().saturating_sub(earlier.total());
        u64::try_from(span).map_or(Span::MAX, Span::from_ps)
    }

    /// All of it in picoseconds.
    fn total(self) -> u128 {
        u128::from(self.seconds) * u128::from(PICOSECONDS_PER_SECOND) + u128::from(self.picoseconds)
    }

    /// The time in units of `10^-digits` seconds, rounded down; `None` where a 64-bit number cannot hold it.
    fn ticks(self, digits: u32) -> Option<u64> {
        u64::try_from(self.total() / 10_u128.pow(12_u32.checked_sub(digits)?)).ok()
    }
}

/// Time of a simulated run: its start is the epoch.
impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Self::new(0, time.as_ps())
    }
}

/// What the packets of an interface begin with, as registered with tcpdump.org.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkType(pub u16);

impl LinkType {
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);
    /// An IPv4 or IPv6 header.
    pub const RAW: Self = Self(101);
    /// A record header of ERF, see [`infiniband_record`].
    pub const ERF: Self = Self(197);
    /// An InfiniBand local route header.
    pub const INFINIBAND: Self = Self(247);
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ETHERNET => f.pad("Ethernet"),
            Self::RAW => f.pad("raw IP"),
            Self::ERF => f.pad("ERF"),
            Self::INFINIBAND => f.pad("InfiniBand"),
            Self(number) => write!(f, "link type {number}"),
        }
    }
}

/// One packet of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When, where the file says so.
    pub timestamp: Option<Timestamp>,
    /// On which of [`Reader::interfaces`].
    pub interface: u32,
    /// What its bytes begin with.
    pub link_type: LinkType,
    /// Its bytes, as far as they were kept.
    pub bytes: Vec<u8>,
    /// Bytes that it had on the wire.
    pub original_length: u32,
    /// Remarks.
    pub comments: Vec<String>,
}

/// Why a captured packet is not taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Undecodable {
    /// Only Ethernet, raw IP and InfiniBand are understood.
    #[error(
        "packets of {0} are not understood, only Ethernet (1), raw IP (101) and InfiniBand (247, and 197 in ERF)"
    )]
    LinkType(LinkType),
    /// The packet is not well formed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Packet {
    /// Takes the packet apart.
    pub fn frame(&self) -> Result<Frame<'_>, Undecodable> {
        match self.link_type {
            LinkType::ETHERNET => Ok(Frame::parse(&self.bytes)?),
            LinkType::RAW => Ok(Frame::parse_ip(&self.bytes)?),
            LinkType::ERF => erf::frame(&self.bytes),
            LinkType::INFINIBAND => Ok(Frame::parse_infiniband(&self.bytes)?),
            other => Err(Undecodable::LinkType(other)),
        }
    }

    /// Whether the capture kept only a part of the packet.
    pub fn is_cut(&self) -> bool {
        (self.bytes.len() as u64) < u64::from(self.original_length)
    }
}

/// An interface on which packets were captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name, where the file has one.
    pub name: Option<String>,
    /// What its packets begin with.
    pub link_type: LinkType,
}

/// Why a capture cannot be read on, or not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is nothing in the file.
    #[error("the file is empty, no capture")]
    Empty,
    /// The file begins with something else.
    #[error("not a pcap or pcapng capture: it begins with {0:02x?}")]
    NotACapture([u8; 4]),
    /// The file is packed with gzip.
    #[error("the file is packed with gzip: unpack it first (gunzip)")]
    Compressed,
    /// A version of the format that is not known.
    #[error("{format} version {major}.{minor} is not known")]
    Version {
        /// Which format.
        format: &'static str,
        /// Major version in the file.
        major: u16,
        /// Minor version in the file.
        minor: u16,
    },
    /// The file ends in the middle of something.
    #[error("the capture is cut off at byte {offset}, inside {what}")]
    Truncated {
        /// Where the file ends.
        offset: u64,
        /// What is not complete.
        what: &'static str,
    },
    /// A length makes no sense.
    #[error("{what} at byte {offset} of the capture is {stated}, may be {least} to {most}")]
    Length {
        /// Where the part begins that has it.
        offset: u64,
        /// Whose length it is.
        what: &'static str,
        /// What stands there.
        stated: u64,
        /// The least that makes sense.
        least: u64,
        /// The most that makes sense.
        most: u64,
    },
    /// A packet of an interface that was not described before.
    #[error("the packet at byte {offset} of the capture is of interface {interface}, {known} are described")]
    UnknownInterface {
        /// Where the block begins.
        offset: u64,
        /// What it says.
        interface: u32,
        /// How many there are.
        known: usize,
    },
    /// The byte order mark of a pcapng section is none.
    #[error("the pcapng section at byte {offset} has no byte-order mark: {found:02x?}")]
    ByteOrder {
        /// Where the section begins.
        offset: u64,
        /// What stands there.
        found: [u8; 4],
    },
    /// A time that the format cannot hold.
    #[error("the format cannot hold a time of {} s in its resolution", .0.seconds())]
    Time(Timestamp),
    /// The file cannot be read.
    #[error("reading the capture failed at byte {offset}")]
    Read {
        /// How far it went.
        offset: u64,
        /// What reading failed with.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("writing the capture failed")]
    Write(#[from] io::Error),
}

/// Reads a capture of either format, packet by packet. Which it is, the first bytes tell.
///
/// After an error nothing more comes: what was read before it is good.
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    format: Format,
    interfaces: Vec<Interface>,
    has_ended: bool,
}

#[derive(Debug)]
enum Format {
    Pcap(pcap::State),
    Pcapng(pcapng::State),
}

impl<R: Read> Reader<R> {
    /// Begins to read.
    pub fn new(read: R) -> Result<Self, CaptureError> {
        let mut input = Input::new(read);
        let Some(magic) = input.array_or_end::<4>("the first four bytes")? else {
            return Err(CaptureError::Empty);
        };
        let mut interfaces = Vec::new();
        let format = if magic == pcapng::SECTION.to_be_bytes() {
            Format::Pcapng(pcapng::State::begin(&mut input)?)
        } else if let Some((order, precision)) = pcap::recognise(magic) {
            let state = pcap::State::begin(&mut input, order, precision)?;
            interfaces.push(Interface { name: None, link_type: state.link_type });
            Format::Pcap(state)
        } else if magic.starts_with(&[0x1f, 0x8b]) {
            return Err(CaptureError::Compressed);
        } else {
            return Err(CaptureError::NotACapture(magic));
        };
        Ok(Self { input, format, interfaces, has_ended: false })
    }

    /// The next packet; `None` at the end of the file.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, CaptureError> {
        if self.has_ended {
            return Ok(None);
        }
        let next = match &mut self.format {
            Format::Pcap(state) => state.next_packet(&mut self.input),
            Format::Pcapng(state) => state.next_packet(&mut self.input, &mut self.interfaces),
        };
        self.has_ended = !matches!(next, Ok(Some(_)));
        next
    }

    /// The interfaces that were described so far in this section of the file.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Packet, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_packet().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_carry_and_subtract() {
        let time = Timestamp::new(1, 2 * PICOSECONDS_PER_SECOND + 5);
        assert_eq!((time.seconds(), time.picoseconds()), (3, 5));
        assert_eq!(time.since(Timestamp::new(2, PICOSECONDS_PER_SECOND - 1)), Span::from_ps(6));
        assert_eq!(Timestamp::default().since(time), Span::ZERO);
        assert_eq!(time.ticks(9), Some(3_000_000_000));
        assert_eq!(Timestamp::new(u64::MAX, 0).ticks(12), None);
    }
}
