//! Connection management (IBTA chapter 12): how applications that know an address and a service come to a connection, and
//! leave it again.
//!
//! A [`Manager`] speaks for one address. Like the NIC it owns no clock and no socket: what arrives for QP1 goes to
//! [`Manager::receive`], [`Manager::poll_transmit`] hands out what leaves through it, [`Manager::handle_timeout`] sends again what
//! was not answered, and [`Manager::poll_event`] tells the application.
//!
//! ```text
//!   active                                  passive
//!   connect ── REQ ───────────────────────▶ Requested
//!   Replied ◀─────────────────────── REP ── accept        (or REJ ── reject)
//!   establish ── RTU ─────────────────────▶ Established
//!   disconnect ── DREQ ───────────────────▶ Disconnected
//!   Disconnected ◀──────────────────  DREP
//!
//!   resolve ── SIDR_REQ ──────────────────▶ Resolving
//!   Resolved ◀──────────────────  SIDR_REP ── answer
//! ```

mod connection;
mod manager;
mod messages;
mod outbox;

pub use connection::{Call, Offer};
pub use manager::Manager;
pub use outbox::Datagram;

use railnet_core::QueuePairNumber;
use railnet_wire::Gid;
use railnet_wire::mad::{RejectReason, ServiceId};

/// A connection, or a question for a datagram's queue pair: the communication id of this side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection to a service that is listened on: [`Manager::accept`] or [`Manager::reject`] it.
    Requested {
        /// The new connection.
        connection: ConnectionId,
        /// What it is for.
        service: ServiceId,
        /// The peer.
        from: Gid,
        /// The peer's side.
        offer: Offer,
    },
    /// The peer accepted: bring the queue pair up, then [`Manager::establish`].
    Replied {
        /// The connection.
        connection: ConnectionId,
        /// The peer's side.
        offer: Offer,
    },
    /// The peer is ready; data may flow.
    Established(ConnectionId),
    /// The peer refused, or nobody listens there.
    Rejected {
        /// The connection, which is over.
        connection: ConnectionId,
        /// The reason in the REJ.
        reason: RejectReason,
        /// What the peer's application says about it.
        private: Vec<u8>,
    },
    /// The peer did not answer, however often it was asked.
    Unreachable(ConnectionId),
    /// One of both ended it.
    Disconnected(ConnectionId),
    /// Its queue pair number may be used again: no packet of the connection is left in the network.
    TimeWaitOver(ConnectionId),
    /// A peer asks for the queue pair of a datagram service: [`Manager::answer`] it.
    Resolving {
        /// The question.
        connection: ConnectionId,
        /// The service.
        service: ServiceId,
        /// The peer.
        from: Gid,
        /// Private data of the peer.
        private: Vec<u8>,
    },
    /// The answer to such a question.
    Resolved {
        /// The question.
        connection: ConnectionId,
        /// 0, or why there is none.
        status: u8,
        /// The queue pair.
        queue_pair: QueuePairNumber,
        /// Its queue key.
        queue_key: u32,
        /// Private data of the peer.
        private: Vec<u8>,
    },
}

/// Why a call to the manager was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// There is no such connection (any more).
    #[error("there is no such connection")]
    Unknown,
    /// The connection is in a state that does not allow the call.
    #[error("the connection is not in a state for this call")]
    State,
    /// Private data is longer than the message has room for.
    #[error("private data is longer than the {0} bytes that the message has room for")]
    PrivateData(usize),
    /// Somebody listens there already.
    #[error("the service is listened on already")]
    InUse,
    /// All communication ids are in use.
    #[error("all communication ids are in use")]
    Exhausted,
}
