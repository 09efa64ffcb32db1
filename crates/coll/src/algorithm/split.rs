//! How the data of a call is shared out over channels, and over the loops of a channel.

use crate::call::Call;
use crate::protocol::{Fifo, Protocol};

/// The elements that a channel deals with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    pub(super) start: u64,
    pub(super) count: u64,
}

/// Shares `count` elements out over at most so many channels, in cells of `cell` elements: as NCCL does, all channels
/// get the same number of cells but for the last ones, and none gets less than one.
pub(super) fn shares(count: u64, channels: u32, cell: u64) -> Vec<Share> {
    let cells = count.div_ceil(cell).max(1);
    let used = u64::from(channels.max(1)).min(cells);
    let mut start = 0;
    (0..used)
        .map(|channel| {
            let many = cells / used + u64::from(channel < cells % used);
            let share = Share { start, count: (many * cell).min(count - start) };
            start += share.count;
            share
        })
        .collect()
}

/// The least elements that a channel gets: 32 KiB of traffic (NCCL 2.30 enqueue.cc), in units of 16 bytes.
pub(super) fn cell(call: &Call, protocol: Protocol, traffic_per_byte: u64) -> u64 {
    let traffic = traffic_per_byte * if protocol == Protocol::Ll { 4 } else { 1 };
    let bytes = (32 * 1024 / traffic).max(1).next_multiple_of(16);
    (bytes / call.dtype.size() as u64).max(1)
}

/// The elements of a full chunk: what the slots hold, in whole grains.
pub(super) fn chunk(
    call: &Call,
    protocol: Protocol,
    fifo: &Fifo,
    longest: Option<railnet_core::Bytes>,
) -> u64 {
    let bytes = fifo.chunk().0.min(longest.map_or(u64::MAX, |bytes| bytes.0));
    let grain = protocol.grain();
    let whole = if bytes >= grain { bytes / grain * grain } else { bytes };
    (whole / call.dtype.size() as u64).max(1)
}
