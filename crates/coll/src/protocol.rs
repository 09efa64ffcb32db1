//! Protocols: how data lies in the slots of a connection. Sizes are NCCL 2.30's (src/include/device.h).

use std::fmt;
use std::str::FromStr;

use railnet_core::Bytes;
use railnet_core::parse::{ParseError, unknown_name};

/// How data lies in the slots of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    /// Lines of 16 bytes, half of them flags: least latency, half the bandwidth.
    Ll,
    /// Lines of 128 bytes, 8 of them flags.
    Ll128,
    /// Whole slots, then a counter: most bandwidth.
    Simple,
}

impl Protocol {
    /// All of them, in NCCL's order.
    pub const ALL: [Self; 3] = [Self::Ll, Self::Ll128, Self::Simple];
    /// Slots of a connection.
    pub const SLOTS: u32 = 8;

    /// NCCL's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "Simple",
        }
    }

    /// The buffer of a connection: 8 slots with flags. `NCCL_BUFFSIZE` sets that of Simple.
    pub const fn buffer(self) -> Bytes {
        match self {
            // 8 lines of 16 bytes for each of 512 threads.
            Self::Ll => Bytes(8 * 512 * 8 * 16),
            // 120 lines-worth of 8 bytes for each of 640 threads.
            Self::Ll128 => Bytes(120 * 640 * 8 * 8),
            Self::Simple => Bytes(1 << 22),
        }
    }

    /// What of `bytes` in a buffer is data.
    pub const fn payload(self, bytes: u64) -> u64 {
        match self {
            Self::Ll => bytes / 2,
            Self::Ll128 => bytes / 16 * 15,
            Self::Simple => bytes,
        }
    }

    /// What `bytes` of data take on their way, flags included.
    pub const fn on_the_way(self, bytes: u64) -> u64 {
        match self {
            Self::Ll => bytes.div_ceil(8) * 16,
            Self::Ll128 => bytes.div_ceil(120) * 128,
            Self::Simple => bytes,
        }
    }

    /// Chunks are whole multiples of this.
    pub const fn grain(self) -> u64 {
        match self {
            Self::Ll => 16,
            Self::Ll128 => 1920,
            Self::Simple => 512,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reads NCCL's names, in any case.
impl FromStr for Protocol {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let found = Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(text.trim()));
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            unknown_name("protocol", text, &names, &names)
        })
    }
}

/// How a schedule uses the slots of its connections. A chunk goes in slices, each of which takes some slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fifo {
    /// Data that fits into one slot.
    pub slot: Bytes,
    /// Slots of a connection.
    pub depth: u32,
    /// Slots that each slice takes, even an empty one.
    pub slots_per_slice: u32,
    /// Slices of each chunk.
    pub slices_per_chunk: u32,
}

impl Fifo {
    /// NCCL's: 8 slots of `buffer`, in slices of 2 and chunks of 4 slots where `fine`, else a slot each.
    pub const fn new(protocol: Protocol, buffer: Bytes, fine: bool) -> Self {
        let slot = Bytes(protocol.payload(buffer.0 / Protocol::SLOTS as u64));
        let (slots_per_slice, slices_per_chunk) =
            if fine && matches!(protocol, Protocol::Simple) { (2, 2) } else { (1, 1) };
        Self { slot, depth: Protocol::SLOTS, slots_per_slice, slices_per_chunk }
    }

    /// Slots that a chunk takes.
    pub const fn slots_per_chunk(&self) -> u32 {
        self.slots_per_slice * self.slices_per_chunk
    }

    /// Data that fits into a chunk.
    pub const fn chunk(&self) -> Bytes {
        Bytes(self.slot.0 * self.slots_per_chunk() as u64)
    }
}
