//! Conduits: what carries the slots of a connection from one rank to another. Sans I/O; a driver holds both ends, or one
//! where the other is in another process.
//!
//! A conduit takes what the sender's machine has [`Filled`](crate::machine::Filled), brings it into the receiver's slots
//! and says so, and tells the sender when slots may be filled again. [`net`] does it over a NIC as NCCL does. Inside a
//! machine there is less to do: the sender's work writes into the receiver's slots, and what is left is to tell.

pub mod net;

use railnet_nic::Key;
use railnet_nic::memory::SpaceId;

use crate::machine::Layout;

/// Memory for the slots of one end of a connection. It holds the largest layout that is used; layouts take turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotMemory {
    /// The address space it lies in.
    pub space: SpaceId,
    /// Its first byte.
    pub address: u64,
    /// The key of the region it lies in.
    pub key: Key,
}

impl SlotMemory {
    /// Where a slot begins.
    pub const fn slot(&self, layout: &Layout, slot: u32) -> u64 {
        self.address + layout.stride() * slot as u64
    }
}
