//! What can go wrong when switches reduce.

use railnet_nic::{PostError, Status, VerbsError};

/// Why there is no group.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Switches do not reduce.
    #[error("the switches of this fabric do not reduce: give them an aggregation to do so")]
    Off,
    /// There is nothing to reduce.
    #[error("a group needs a member that contributes")]
    NoContributor,
    /// A group beside another has other members, or the other is gone.
    #[error("a group that shares the contexts of another has the same members, and the other is still there")]
    Others,
    /// A member is not behind a switch.
    #[error("{host} cannot be reached: its link is down, or leads to no switch")]
    Unreachable {
        /// Who.
        host: String,
    },
    /// The members have no switch in common.
    #[error("no switch reaches all members: the links between them are down")]
    Apart,
    /// A switch serves as many groups as it can.
    #[error(
        "{switch} has no reduction context left: all {contexts} are in use. Release a group, or do without reduction in switches"
    )]
    NoContext {
        /// Which.
        switch: String,
        /// How many it has.
        contexts: u32,
    },
    /// A NIC refused.
    #[error("the NIC of {at}: {reason}")]
    Verbs {
        /// Where.
        at: String,
        /// Why.
        reason: VerbsError,
    },
}

/// Why a contribution was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContributeError {
    /// The group was released, or there is no such member.
    #[error("there is no such group or member")]
    Unknown,
    /// The group has failed before.
    #[error("the group has failed: {0}")]
    Failed(ReductionFailure),
    /// Memory does not fit the member's role.
    #[error("member {member} {what}")]
    Role {
        /// Who.
        member: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The NIC refused it.
    #[error("member {member}: {reason}")]
    Post {
        /// Who.
        member: u32,
        /// Why.
        reason: PostError,
    },
}

/// Why a group will never come to a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReductionFailure {
    /// Members gave contributions of different lengths.
    #[error(
        "contributions differ in length: at segment {segment}, {switch} got {} from {} and {} from {}",
        words(*.lengths, 0), .from[0], words(*.lengths, 1), .from[1]
    )]
    Uneven {
        /// Where it was noticed.
        switch: String,
        /// Which segment, counted from the first of the group.
        segment: u64,
        /// Two that differ: hosts, or switches below.
        from: [String; 2],
        /// What they sent, and whether it was the end of a contribution.
        lengths: [(u32, bool); 2],
    },
    /// A member that only receives expects another length than the others gave.
    #[error("the result has {length} B where {host} expects {expected} B")]
    Result {
        /// Who.
        host: String,
        /// What came.
        length: u32,
        /// What it has a place for.
        expected: u32,
    },
    /// A connection failed.
    #[error("the connection of {at}: {}", .status.text())]
    Transport {
        /// Whose: a host's or a switch's.
        at: String,
        /// How.
        status: Status,
    },
    /// A NIC did not take work.
    #[error("the NIC of {at}: {reason}")]
    Post {
        /// Whose.
        at: String,
        /// Why.
        reason: PostError,
    },
}

fn words(lengths: [(u32, bool); 2], which: usize) -> String {
    let (bytes, is_last) = lengths[which];
    format!("{bytes} B{}", if is_last { ", the last" } else { "" })
}
