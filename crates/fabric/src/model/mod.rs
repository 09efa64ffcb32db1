//! What happens to a packet, once: hosts, links, switches and their buffers, routing, flow control, faults.
//!
//! The model schedules events with the engine. It does not know in which order LPs run, or on which thread.

pub(crate) mod aggregation;
pub(crate) mod buffer;
pub(crate) mod bus;
pub(crate) mod chance;
pub(crate) mod channel;
pub(crate) mod config;
pub(crate) mod credit;
pub(crate) mod drr;
pub(crate) mod ecmp;
pub(crate) mod ecn;
pub(crate) mod fabric;
pub(crate) mod fault;
pub(crate) mod frame;
pub(crate) mod hop;
pub(crate) mod host;
pub(crate) mod murmur3;
pub(crate) mod packet;
pub(crate) mod pfc;
pub(crate) mod queue;
pub(crate) mod routing;
pub(crate) mod subnet;
pub(crate) mod switch;
pub(crate) mod telemetry;
pub(crate) mod topology;
pub(crate) mod valiant;
