//! Flow-level simulation: transfers as rates that share links max-min fairly, in virtual time.
//!
//! A [`FlowNetwork`] has *resources* (a direction of a link, a PCIe lane, a core) with a capacity each. A *flow* moves bytes over a
//! path of resources; at any moment all flows have their max-min fair rates (Bertsekas and Gallager, Data Networks, 6.5.2): none can
//! be raised without lowering one that is no faster. Rates change only when a flow starts or ends or a capacity changes, so the
//! cost does not grow with bytes, and between two such moments nothing is computed.
//!
//! - Changes of one moment are taken together.
//! - Only the flows whose rates a change can reach are computed again ([`allocation`](FlowNetwork#what-a-change-reaches)).
//! - Equal flows (same path, same bytes, same start) are one bundle with a count.
//! - A flow that is sprayed over several paths uses a fraction of each.
//! - Where flows are alike by symmetry, one stands for all of them ([`quotient`]): exact, and found without being told.
//!
//! Nothing here knows of packets, switches or buffers. The caller adds what a path takes besides (propagation, headers), and says which
//! path each flow takes.
//!
//! # Example
//!
//! ```
//! use railnet_core::{Rate, Span, Time};
//! use railnet_flow::{FlowNetwork, Usage};
//!
//! // Two links of 80 Gb/s: 10 GB/s each.
//! let mut network = FlowNetwork::new(&[Rate::gbps(80), Rate::gbps(80)]);
//! let both = network.start(&[Usage::whole(0), Usage::whole(1)], 10_000_000, 1);
//! let one = network.start(&[Usage::whole(0)], 20_000_000, 1);
//!
//! // They share link 0: 5 GB/s each, so the shorter one takes 2 ms.
//! let mut ended = Vec::new();
//! assert_eq!(network.next_end(), Some(Time::ZERO + Span::from_ms(2)));
//! network.advance(Time::ZERO + Span::from_ms(2), &mut ended);
//! assert_eq!(ended, [both]);
//! // The other one has 10 MB left, and the link for itself.
//! assert_eq!(network.next_end(), Some(Time::ZERO + Span::from_ms(3)));
//! # let _ = one;
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod allocation;
mod flows;
mod network;
mod symmetry;

pub use flows::{FlowId, Usage};
pub use network::FlowNetwork;
pub use symmetry::{FlowKind, Quotient, quotient};
