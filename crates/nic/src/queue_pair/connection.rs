//! What a connection is made of, and the three steps that bring a queue pair up to it.

use railnet_core::{Psn, QueuePairNumber};
use railnet_wire::Gid;

use super::{Attributes, Path, State};
use crate::config::Mtu;
use crate::region::Access;

/// One side of a reliable connection. Start from [`Connection::to`] and change what differs.
///
/// ```
/// use railnet_core::QueuePairNumber;
/// use railnet_nic::{Connection, Mtu};
/// use railnet_wire::Gid;
///
/// let connection = Connection { mtu: Mtu::Mtu1024, ..Connection::to(Gid::default(), QueuePairNumber::new(0x22)) };
/// assert_eq!(connection.transitions().len(), 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The way to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub destination: QueuePairNumber,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// The sequence number that this side starts with.
    pub send_psn: Psn,
    /// The sequence number that the peer starts with.
    pub receive_psn: Psn,
    /// What the peer may do.
    pub access: Access,
    /// READs and atomics at once, in each direction.
    pub reads: u8,
    /// Code of the wait asked for when no receive is posted.
    pub min_rnr_timer: u8,
    /// Code of the acknowledgement timeout.
    pub timeout: u8,
    /// Retries without an answer.
    pub retry_count: u8,
    /// Retries when the peer has no receive; 7 is for ever.
    pub rnr_retry: u8,
}

impl Connection {
    /// An ordinary connection on the first port: MTU 4096, first sequence numbers 0, all rights, 67 ms and 7 retries.
    pub fn to(target: Gid, destination: QueuePairNumber) -> Self {
        Self {
            path: Path::to(target),
            destination,
            mtu: Mtu::Mtu4096,
            send_psn: Psn::new(0),
            receive_psn: Psn::new(0),
            access: Access::ALL,
            reads: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
        }
    }

    /// RESET to INIT, INIT to RTR, RTR to RTS: what [`crate::Nic::modify_qp`] takes, in this order.
    pub fn transitions(&self) -> [Attributes; 3] {
        [
            Attributes {
                state: Some(State::Init),
                partition_index: Some(0),
                port: Some(1),
                access: Some(self.access),
                ..Attributes::default()
            },
            Attributes {
                state: Some(State::ReadyToReceive),
                path: Some(self.path),
                path_mtu: Some(self.mtu),
                destination: Some(self.destination),
                receive_psn: Some(self.receive_psn),
                destination_reads: Some(self.reads),
                min_rnr_timer: Some(self.min_rnr_timer),
                ..Attributes::default()
            },
            Attributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(self.send_psn),
                timeout: Some(self.timeout),
                retry_count: Some(self.retry_count),
                rnr_retry: Some(self.rnr_retry),
                initiator_reads: Some(self.reads),
                ..Attributes::default()
            },
        ]
    }
}
