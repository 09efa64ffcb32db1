//! `librdmacm`: connections by address and port, over the communication manager of the NIC.
//!
//! | module | what it is |
//! | --- | --- |
//! | `socket_address` | addresses of C |
//! | `device` | the devices that identifiers share |
//! | `identifier` | `rdma_cm_id`: creating, migrating, destroying, options |
//! | `resolve` | binding, resolving, listening |
//! | `connect` | connecting, accepting, refusing, disconnecting |
//! | `event` | event channels, and what the manager's events mean for an application |
//! | `queue_pair` | queue pairs, completion queues and shared receive queues of identifiers |
//! | `address_info` | `rdma_getaddrinfo` |
//! | `endpoint` | `rdma_create_ep`, and calls that wait |
//! | `management` | the identifiers of this process behind each connection |

pub(crate) mod address_info;
pub(crate) mod connect;
pub(crate) mod device;
pub(crate) mod endpoint;
pub(crate) mod event;
pub(crate) mod identifier;
mod management;
pub(crate) mod queue_pair;
pub(crate) mod resolve;
pub(crate) mod socket_address;

pub(crate) use device::{OpenedGuard, lock_opened};
pub(crate) use event::{CmEvent, EventChannel};
pub(crate) use identifier::CmId;
pub(crate) use management::Management;

use libc::c_int;

use crate::errors::{guard, set};

/// Runs a call of librdmacm: 0, or -1 and `errno`.
fn call(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    guard(-1, || match body() {
        Ok(()) => 0,
        Err(number) => {
            set(number);
            -1
        }
    })
}

/// The outcome of a function of libibverbs that returns 0 or the number of its refusal.
fn checked(number: c_int) -> Result<(), c_int> {
    if number == 0 { Ok(()) } else { Err(number) }
}

/// The outcome of one that returns a pointer.
fn made<T>(pointer: *mut T) -> Result<*mut T, c_int> {
    if pointer.is_null() { Err(crate::errors::last()) } else { Ok(pointer) }
}
