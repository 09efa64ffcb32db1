//! Reduction inside the network, as SHARP does it: switches add up what comes from below and hand the result down.
//!
//! A switch that reduces has a NIC of its own, the very one that hosts have, behind a port inside it. The members of a
//! group and the switches of its tree are joined by reliable connections, and data goes over them in segments, each a SEND
//! with immediate. So loss, pauses and marks are dealt with as everywhere, and a member's NIC does ordinary work.
//!
//! ```text
//!            root         reduces what its children sent, and sends the result down
//!           /    \
//!        leaf    leaf     reduce what their members sent, and send it up; send the result to each
//!        /  \    /  \
//!      host host host host
//! ```
//!
//! A segment of the result is also the word that the next may follow: a member has no more than
//! [`AggregationConfig::slots`] segments under way, so a switch needs no more memory than that for each of its children.
//! Where no member below a switch contributes or wants the result, the messages are empty.
//!
//! Data is of ghosts: their tags are really added up, and bytes would need to know their type.

mod attach;
mod engine;
mod error;
mod group;
mod tree;

use std::collections::{BTreeMap, VecDeque};

use railnet_core::{Bytes, Label, Rate};
use railnet_nic::{CompletionQueue, ProtectionDomain, Sge};

pub(crate) use attach::{extended, reducer};
pub use error::{ContributeError, ReductionFailure, Refused};
use group::{GroupState, HostNics, Team};

/// How switches reduce.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AggregationConfig {
    /// Groups that a switch can serve at once; those of the same members count as one where they are made so
    /// ([`crate::Network::aggregate_beside`]).
    pub contexts: u32,
    /// The pieces in which data is reduced.
    pub segment: Bytes,
    /// Segments that a member may have under way: sent, and the result not back.
    pub slots: u32,
    /// The rate at which a switch receives for reduction, and sends; `None` is that of all its ports together.
    pub rate: Option<Rate>,
}

impl Default for AggregationConfig {
    /// A group for each of 64 ports: a Quantum-2 reduces one stream for each port, where a Quantum has one for the whole
    /// switch (release notes of NVIDIA SHARP 3.13). A packet is a segment, and 512 KiB cover 10 µs at 400 Gb/s.
    fn default() -> Self {
        Self { contexts: 64, segment: Bytes::kib(4), slots: 128, rate: None }
    }
}

/// A group of members whose contributions are reduced together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(u32);

/// What a member does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It contributes, and gets the result.
    Both,
    /// It contributes.
    Contributes,
    /// It gets the result.
    Receives,
}

impl Role {
    fn contributes(self) -> bool {
        self != Self::Receives
    }

    fn receives(self) -> bool {
        self != Self::Contributes
    }
}

/// A member of a group. Its index in the list that the group is made with is its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its host.
    pub host: u32,
    /// The protection domain of that host's NIC in which its memory is registered.
    pub domain: ProtectionDomain,
    /// Its role.
    pub role: Role,
}

/// What a member contributes at once. The n-th ones of all members are reduced together and have one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contribution {
    /// The contribution; `None` for a member that only receives.
    pub source: Option<Sge>,
    /// Where the result goes; `None` for a member that only contributes.
    pub target: Option<Sge>,
    /// What [`crate::Application::reduced`] receives when the result is there.
    pub token: u64,
    /// The label of its packets.
    pub label: Label,
}

/// What the application is notified of.
#[derive(Debug)]
pub(crate) enum Notification {
    Reduced { group: Group, member: u32, token: u64 },
    Failed { group: Group, failure: ReductionFailure },
}

/// The NIC of a switch that reduces.
#[derive(Clone, Copy, Debug)]
struct Reducer {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    /// Groups that it serves.
    used: u32,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Aggregation {
    config: AggregationConfig,
    /// By switch.
    reducers: Vec<Reducer>,
    groups: Vec<Option<GroupState>>,
    free: Vec<u32>,
    teams: Vec<Option<Team>>,
    /// The queue on which the members of a host hear of results.
    queues: BTreeMap<u32, CompletionQueue>,
    pub(crate) notifications: VecDeque<Notification>,
}

impl Aggregation {
    fn group(&mut self, group: Group) -> Option<&mut GroupState> {
        self.groups.get_mut(group.0 as usize).and_then(Option::as_mut)
    }
}
