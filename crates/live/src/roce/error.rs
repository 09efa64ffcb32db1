//! What can be wrong with a driver.

use std::io;
use std::net::SocketAddr;

use railnet_nic::VerbsError;

/// Why a driver cannot be opened, or a queue pair not be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket cannot be had.
    #[error("cannot receive at {address}: {source}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// An address that stands for all of the host's.
    #[error("{0} is no address of a NIC: the ICRC covers it, so it must be a certain one")]
    Unspecified(SocketAddr),
    /// Peers of different versions of IP.
    #[error("{local} cannot reach {peer}: one is IPv4 and the other IPv6")]
    Family {
        /// This side.
        local: SocketAddr,
        /// The other.
        peer: SocketAddr,
    },
    /// A socket to send from cannot be had.
    #[error("cannot make a socket to send from {address}: {source}")]
    Sender {
        /// Its address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The NIC refuses.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}
