//! One RDMA NIC as a value: memory regions, queue pairs, completions, reliability, congestion control.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod completion;
mod config;
mod context;
pub mod control;
mod device;
mod error;
pub mod memory;
mod network;
mod nic;
mod packet;
mod pool;
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
pub use queue_pair::{Attribute, Attributes, Path, QueuePairConfig, Service, SharedReceiveQueue, State};
pub use region::{Access, Bind, Key, ProtectionDomain};
pub use schedule::Priorities;
pub use timer::Timer;
pub use work::{AddressHandle, DatagramTarget, Operation, ReceiveRequest, Remote, SendRequest, Sge, SgeList};
