//! What observers see: events for sinks, frames for taps, samples of links, and why a network stalls.

pub(crate) mod emit;
pub(crate) mod sample;
pub(crate) mod stall;
pub(crate) mod tap;

use crate::engine::event_buffer::EventBuffer;
use tap::Taps;

/// What the network keeps for observers.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    /// Events of the active switch, to be sorted.
    pub(crate) event_buffer: EventBuffer,
    pub(crate) taps: Taps,
    /// By channel: priorities that wait for credit, where a sink wants details.
    pub(crate) credit_waits: Vec<u8>,
}

impl Observers {
    /// With details of so many channels.
    pub(crate) fn new(detailed_channels: usize) -> Self {
        Self { credit_waits: vec![0; detailed_channels], ..Self::default() }
    }
}
