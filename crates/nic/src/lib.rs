//! One RDMA NIC as a value: memory regions, queue pairs, completions, reliability, congestion control.
//!
//! A [`Nic`] owns no clock, no socket and no memory. It is driven from outside, and does the same whether the driver is
//! a simulator that moves header values in virtual time or a process that moves bytes through a socket:
//!
//! ```text
//!  verbs side     alloc_pd · reg_mr · alloc_mw · create_cq · create_srq · create_qp · modify_qp · query_qp · destroy_*
//!                 post_send · post_recv · poll_cq · req_notify · poll_event
//!  network side   receive(packet) · poll_transmit(port, priorities) · handle_timeout() · poll_timeout()
//! ```
//!
//! Every call that may move data gets a [`Context`]: the time, the memory that regions lie in, and a sink for events.
//! After a call, drain [`Nic::poll_cq`] and [`Nic::poll_event`]; call [`Nic::poll_transmit`] whenever the port can take
//! a packet; call [`Nic::handle_timeout`] when [`Nic::poll_timeout`] says. The cost of a call does not grow with the
//! number of queue pairs.
//!
//! One WRITE between two NICs, with the `testing` module as the driver:
//!
//! ```
//! use railnet_nic::testing::{Pair, PairOptions};
//! use railnet_nic::{Operation, SendRequest, Status};
//!
//! let mut pair = Pair::new(&PairOptions::default())?;
//! let request = SendRequest::new(1, Operation::Write(pair.remote(1, 0))).with(pair.sge(0, 4096, 5000));
//! pair.send(0, request)?;
//! let [done, _] = pair.finish();
//! assert_eq!(done[0].status, Status::Success);
//! assert_eq!(pair.bytes(1)[..5000], pair.bytes(0)[4096..9096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cm;
mod completion;
mod config;
mod context;
pub mod control;
mod device;
mod error;
pub mod frame;
pub mod memory;
mod network;
mod nic;
mod packet;
mod pool;
mod prefetch;
mod queue_pair;
pub mod recovery;
mod region;
mod schedule;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod work;

pub use completion::{Completion, CompletionKind, CompletionQueue, Notify, Status};
pub use config::{AckRequests, Behaviour, Limits, Mtu, NicConfig, PortConfig, ack_timeout, rnr_wait};
pub use context::Context;
pub use device::{AsyncEvent, Counters};
pub use error::{DropReason, PostError, VerbsError};
pub use nic::{Nic, QueuePairInfo};
pub use packet::{Inbound, OutboundPayload, Payload, Transmit};
pub use queue_pair::{
    Attribute, Attributes, Connection, Path, QueuePairConfig, Service, SharedReceiveQueue, State,
};
pub use region::{Access, Bind, Key, ProtectionDomain};
pub use schedule::Priorities;
pub use timer::Timer;
pub use work::{AddressHandle, DatagramTarget, Operation, ReceiveRequest, Remote, SendRequest, Sge, SgeList};
