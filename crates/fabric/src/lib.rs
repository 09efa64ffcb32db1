//! Links, switches and routing in virtual time, with the NICs of `railnet-nic` at the edge.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod aggregation;
mod ahead;
mod application;
mod arrivals;
mod batch;
mod calendar;
mod chance;
mod channel;
mod config;
mod credit;
mod detour;
mod ecmp;
mod engine;
mod event;
mod fault;
mod forward;
mod frame;
mod halves;
mod lane;
mod lull;
mod marking;
mod murmur;
mod network;
mod note;
mod packet;
mod pause;
mod pending;
mod ports;
mod sample;
mod share;
mod stuck;
mod switch;
mod tap;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod turns;
mod waiting;
mod windows;

pub use aggregation::{
    AggregationConfig, ContributeError, Contribution, Group, Member, ReductionFailure, Refused, Role,
};
pub use application::Application;
pub use calendar::{Calendar, Sequences};
pub use chance::Chance;
pub use channel::ChannelCounters;
pub use config::{FlowControl, Framing, Marking, MarksAt, Routing, Scheduling, SwitchConfig, Weights};
pub use ecmp::{EcmpSeed, connection_hash};
pub use fault::{Fault, Ports, WhichPacket};
pub use frame::port_mac;
pub use lane::{Lane, LaneCounters, PIECE, Stop, Way};
pub use network::{Network, host_gid};
pub use sample::ChannelSample;
pub use stuck::Stuck;
pub use tap::Tapped;
