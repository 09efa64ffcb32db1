//! Links, switches and routing in virtual time, with the NICs of `railnet-nic` at the edge.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod calendar;
mod channel;
mod config;
mod detour;
mod fault;
mod frame;
mod network;
mod note;
mod packet;
mod pause;
mod stuck;
mod switch;
mod tap;
#[cfg(feature = "testing")]
pub mod testing;

pub use calendar::{Calendar, Sequences};
pub use channel::ChannelCounters;
pub use config::{FlowControl, Framing, Marking, Routing, SwitchConfig};
pub use fault::Fault;
pub use frame::port_mac;
pub use network::{Application, Network, host_gid};
pub use stuck::Stuck;
pub use tap::Tapped;
