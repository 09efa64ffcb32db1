//! A packet-level simulator of the network of an AI cluster: links, switches and routing in virtual time, with the NICs of
//! `railnet-nic` at the edge.
//!
//! It is a conservative parallel discrete-event simulation, in two folders:
//!
//! - [`model`](self#the-model) is *what* happens to a packet: switches with shared buffers, ECN marking, priority flow
//!   control, credits, routing, links that fail, buses inside a server.
//! - [`engine`](self#the-engine) is *in which order and where* it happens: calendar, epochs, lookahead, partitions.
//!
//! [`Network`] joins them. An [`Application`] posts work to the NICs and hears of completions.
//!
//! # The model
//!
//! A *channel* is one direction of a link together with the egress port in front of it: eight priority queues, a
//! transmitter, counters. A switch is a set of egress ports over one shared buffer. A packet's hop is always the same five
//! steps, each one function:
//!
//! ```text
//! arrive ─▶ route ─▶ admit to the shared buffer ─▶ enqueue at the egress port ─▶ transmit: mark, serialise, release the buffer
//! ```
//!
//! Every step has a *fast path*, for a port that only sends what is first in line, and a *slow path*: the same step with
//! the policies switched on that few packets need (PFC XOFF and XON, credits, weighted scheduling, cut-through, telemetry,
//! faults, frames). Headers lie apart from *packet metadata*, the half cache line that a hop reads.
//!
//! # The engine
//!
//! | term | meaning here |
//! | --- | --- |
//! | event | something that happens at a time; ordered by time, priority, component, the component's own sequence |
//! | logical process (LP) | a switch, or a *host group*: the NICs of a server, or one NIC. It has events of its own |
//! | lookahead | no LP reaches another sooner than the shortest link's delay |
//! | epoch | a span of virtual time no longer than the lookahead: each LP runs it alone, in any order of LPs |
//! | stride | two epochs in a row, which an LP may run at once where the graph of LPs is bipartite (two-colouring) |
//! | extended lookahead | while no traffic between servers is pending, the lookahead is the application's, and LPs run hundreds of epochs |
//! | partition | the LPs that one thread runs; [cross-partition messages](Network::exchange_messages) are exchanged between epochs |
//! | calendar wheel, overflow heap | buckets of the near future; a heap of everything later |
//! | ready list | egress ports of a switch that have more to send; they transmit lazily, not one event for each packet |
//! | tie-break rank | the position of a channel among all whose packets arrive at one moment |
//! | random stream | the random numbers of one component: a new component does not change those of others |
//! | event buffer | what a switch emits while it runs out of time order, sorted before a sink sees it |
//!
//! Which component caused an event, and that component's own sequence, decide ties. So a run has one digest, whether it is
//! run in the order of time (one partition, no lookahead), by epochs, or by many threads. The storm (`testing::storm`, with
//! the feature `testing`) runs random networks both ways and compares.
//!
//! # Example
//!
//! Three hosts send to a fourth through one switch. The incast fills the queue in front of its port, and the switch marks
//! packets.
//!
//! ```
//! use railnet_core::{Rate, Span, Time};
//! use railnet_fabric::{SwitchConfig, testing::{Log, World}};
//! use railnet_topology::Vertex;
//! use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};
//!
//! let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
//! let graph = FabricKind::SingleSwitch(SingleSwitch { hosts: 4 }).build(&links)?;
//! let mut world = World::new(&graph, SwitchConfig::default());
//! for host in 0..3 {
//!     world.send(host, 3, 8 << 20, u64::from(host));
//! }
//! let mut log = Log::default();
//! assert!(world.network.run(&mut log, Time::ZERO + Span::from_ms(100)));
//! let (_, _, _, counters) =
//!     world.network.channels().find(|(_, to, ..)| *to == Vertex::Host(3)).expect("host 3 has a link");
//! assert!(counters.marks > 0 && counters.queue_max > 400_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod application;
mod engine;
mod model;
mod network;
mod observe;
#[cfg(feature = "testing")]
pub mod testing;

pub use application::Application;
pub use engine::calendar::{Calendar, Sequences};
pub use model::aggregation::{
    AggregationConfig, ContributeError, Contribution, Group, Member, ReductionFailure, Refused, Role,
};
pub use model::bus::{BusCounters, BusHop, BusPath, BusResource, CUT_THROUGH_BYTES};
pub use model::chance::Chance;
pub use model::channel::ChannelCounters;
pub use model::config::{FlowControl, Framing, Marking, MarksAt, Routing, Scheduling, SwitchConfig, Weights};
pub use model::ecmp::{EcmpSeed, connection_hash};
pub use model::fault::{Fault, Ports, WhichPacket};
pub use model::frame::port_mac;
pub use model::subnet::{ForwardingTables, LMC_MAX, base_lid, last_lid};
pub use network::{Network, host_gid};
pub use observe::sample::ChannelSample;
pub use observe::stall::Stall;
pub use observe::tap::Tapped;
