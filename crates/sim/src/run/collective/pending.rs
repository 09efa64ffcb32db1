//! What a driver of collectives waits for, by the token that it gets back.

use railnet_coll::machine::{ConnectionId, Filled, Mark, WorkId};

/// The bit of a token that says: this is about a collective.
pub(crate) const TOKEN: u32 = 1 << 31;

/// Something that will be over some time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    /// A rank makes its next call.
    Call {
        /// The member that calls.
        member: u32,
    },
    /// A rank makes connections for its next calls.
    Prepare {
        /// The member that will call.
        member: u32,
    },
    /// A piece of work, in so many parts.
    Work {
        /// The member whose work it is.
        member: u32,
        /// The work, by the machine's name for it.
        work: WorkId,
        /// Parts that are not over.
        parts: u32,
    },
    /// A filled slot is seen by its receiver in the same server.
    See {
        /// On which pair.
        pair: u32,
        /// What the sender says about its operation.
        mark: Mark,
    },
    /// A result of a switch is seen by one of its receivers.
    SeeResult {
        /// Of which group.
        group: u32,
        /// Which receiver, by its place.
        receiver: u32,
        /// What the senders say about their operation.
        mark: Mark,
    },
    /// A slice from the network is seen by its receiver.
    Arrive {
        /// The receiver.
        member: u32,
        /// Its end of the connection.
        connection: ConnectionId,
    },
    /// An emptied slot is seen by its sender.
    Free {
        /// The sender.
        member: u32,
        /// Its end of the connection.
        connection: ConnectionId,
    },
    /// A filled slot has been noticed by whoever posts it.
    Notice {
        /// The sender.
        member: u32,
        /// What was filled.
        filled: Filled,
    },
    /// A filled slot is at the NIC.
    Out {
        /// The sender.
        member: u32,
        /// What was filled.
        filled: Filled,
    },
    /// A slice is on its way from the NIC to memory.
    Into {
        /// The receiver.
        member: u32,
        /// Its end of the connection.
        connection: ConnectionId,
    },
    /// A layer that is to be put is at the NIC.
    PutOut {
        /// Of which pair.
        pair: u32,
        /// The layer whose block it is.
        layer: u32,
    },
    /// The blocks of a layer are posted.
    Put {
        /// Of which pair.
        pair: u32,
        /// The layer whose block it is.
        layer: u32,
    },
    /// A block that was put is on its way from the NIC to memory.
    PutInto {
        /// Of which pair.
        pair: u32,
    },
    /// The last rank is through with the present entry.
    EntryOver,
    /// Nothing: the place is free.
    Nothing,
}

/// All of them, by token.
#[derive(Debug, Default)]
pub(super) struct PendingTable {
    entries: Vec<Pending>,
    free: Vec<u32>,
}

impl PendingTable {
    /// Keeps something; gives its token.
    pub(super) fn add(&mut self, pending: Pending) -> u32 {
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = pending;
                index
            }
            None => {
                self.entries.push(pending);
                self.entries.len() as u32 - 1
            }
        };
        index | TOKEN
    }

    /// A part of what this token stands for is over; gives it once all of it is.
    pub(super) fn over(&mut self, token: u32) -> Option<Pending> {
        let index = token & !TOKEN;
        let entry = &mut self.entries[index as usize];
        if let Pending::Work { parts, .. } = entry {
            *parts -= 1;
            if *parts > 0 {
                return None;
            }
        }
        self.free.push(index);
        Some(std::mem::replace(entry, Pending::Nothing))
    }
}
