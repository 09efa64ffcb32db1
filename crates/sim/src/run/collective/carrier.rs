//! What carries the slots of a connection from one rank to another, in the simulated world.

use railnet_coll::conduit::SlotMemory;
use railnet_coll::conduit::net::{Receiver, Sender};
use railnet_coll::machine::{ConnectionId, Mark};
use railnet_core::Span;
use railnet_fabric::BusPath;
use railnet_nic::memory::SpaceId;
use smallvec::SmallVec;

use super::threads::Pace;
use super::timing::Hop;

/// Where the slots of every connection begin.
pub(super) const SLOTS: u64 = 1 << 40;
/// How much memory the slots of a connection have. It is ghost memory: only what is used takes any.
pub(super) const SLOTS_LENGTH: u64 = 1 << 33;

/// A connection between two ranks.
#[derive(Debug)]
pub(super) struct Pair {
    /// The sender's machine, and its end of the connection once it has one.
    pub(super) sender: (u32, Option<ConnectionId>),
    /// The receiver's.
    pub(super) receiver: (u32, Option<ConnectionId>),
    /// What came before the receiver had made its call.
    pub(super) early: Vec<Mark>,
    pub(super) carrier: Carrier,
}

/// How it gets there.
#[derive(Debug)]
pub(super) enum Carrier {
    /// The sender's kernel writes into the receiver's slots.
    Local(Local),
    /// NICs do it.
    Net(Box<Net>),
}

#[derive(Debug)]
pub(super) struct Local {
    /// The receiver's slots.
    pub(super) slots: SpaceId,
    pub(super) hop: Hop,
    /// From one GPU to the other.
    pub(super) paths: BusPaths,
    /// The hops of those paths after the GPU's own.
    pub(super) hops: Vec<railnet_fabric::BusHop>,
    /// Time that flags take over it, besides.
    pub(super) extra: Span,
}

/// How often memory may be touched for each byte of a piece of work, and one more.
pub(super) const TOUCHES: usize = 10;

/// Ways that begin at a GPU and are the same after it, by what the GPU does; made when first used.
#[derive(Clone, Debug, Default)]
pub(super) struct BusPaths(SmallVec<[(Pace, Touches, BusPath); 1]>);

/// How often memory is touched for each byte.
pub(super) type Touches = u32;

impl BusPaths {
    /// The way of work at this pace that touches memory so often.
    pub(super) fn get(&mut self, pace: Pace, touches: Touches, make: impl FnOnce() -> BusPath) -> BusPath {
        let known = self.0.iter().find(|(one, often, _)| *one == pace && *often == touches);
        if let Some((.., path)) = known {
            return *path;
        }
        let path = make();
        self.0.push((pace, touches, path));
        path
    }
}

#[derive(Debug)]
pub(super) struct Net {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// The ports of the fabric: the sender's and the receiver's.
    pub(super) ports: [u32; 2],
    /// Bytes of messages.
    pub(super) sent: u64,
    /// The sender's slots.
    pub(super) slots: SlotMemory,
    /// From the sender's memory to its NIC; nothing where nothing lies between.
    pub(super) out: Option<BusPath>,
    /// From the receiver's NIC to its memory.
    pub(super) into: Option<BusPath>,
}

impl Pair {
    /// Where the slots of one end begin: a sender that writes right into the receiver's slots has none of its own.
    pub(super) fn slots(&self, is_sender: bool) -> (SpaceId, u64) {
        match &self.carrier {
            Carrier::Local(local) => (local.slots, SLOTS),
            Carrier::Net(net) => {
                let slots = if is_sender { &net.slots } else { net.receiver.slots() };
                (slots.space, slots.address)
            }
        }
    }
}
