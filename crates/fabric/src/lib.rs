//! Links, switches and routing in virtual time, with the NICs of `railnet-nic` at the edge.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod calendar;
mod chance;
mod channel;
mod config;
mod fault;
mod network;
mod packet;
mod pause;
mod sample;
mod stuck;
mod switch;
mod turns;

pub use calendar::{Calendar, Sequences};
pub use chance::Chance;
pub use channel::ChannelCounters;
pub use config::{FlowControl, Framing, Marking, Routing, Scheduling, SwitchConfig, Weights};
pub use fault::{Fault, Ports, WhichPacket};
pub use network::{Application, Network, host_gid};
pub use sample::ChannelSample;
pub use stuck::Stuck;
