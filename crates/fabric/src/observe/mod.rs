//! What observers see: events for sinks, frames for taps, samples of links, and why a network stalls.

pub(crate) mod emit;
pub(crate) mod sample;
pub(crate) mod stall;
pub(crate) mod tap;
