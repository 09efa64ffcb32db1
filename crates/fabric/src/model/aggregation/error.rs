//! Errors of in-network reduction.

use railnet_nic::{PostError, Status, VerbsError};

/// Why a group was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Switches do not reduce.
    #[error("the switches of this fabric do not reduce: give them an aggregation to do so")]
    Off,
    /// No member contributes.
    #[error("a group needs a member that contributes")]
    NoContributor,
    /// A group beside another has other members, or the other is gone.
    #[error("a group that shares the contexts of another has the same members, and the other is still there")]
    Others,
    /// A member is not behind a switch.
    #[error("{host} cannot be reached: its link is down, or leads to no switch")]
    Unreachable {
        /// The member's host.
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
        /// The switch.
        switch: String,
        /// How many it has.
        contexts: u32,
    },
    /// A NIC refused a verb.
    #[error("the NIC of {at}: {reason}")]
    Verbs {
        /// The host or switch.
        at: String,
        /// The NIC's reason.
        reason: VerbsError,
    },
}

/// Why a contribution was refused.
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
        /// The member.
        member: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The NIC refused it.
    #[error("member {member}: {reason}")]
    Post {
        /// The member.
        member: u32,
        /// The NIC's reason.
        reason: PostError,
    },
}

/// Why a group failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReductionFailure {
    /// Members gave contributions of different lengths.
    #[error(
        "contributions differ in length: at segment {segment}, {switch} got {} from {} and {} from {}",
        words(*.lengths, 0), .from[0], words(*.lengths, 1), .from[1]
    )]
    Uneven {
        /// The switch that found it.
        switch: String,
        /// The segment, counted from the first of the group.
        segment: u64,
        /// Two that differ: hosts, or switches below.
        from: [String; 2],
        /// What they sent, and whether it was the end of a contribution.
        lengths: [(u32, bool); 2],
    },
    /// A member that only receives expects another length than the others gave.
    #[error("the result has {length} B where {host} expects {expected} B")]
    Result {
        /// The member's host.
        host: String,
        /// The length of the result.
        length: u32,
        /// The length of the member's target.
        expected: u32,
    },
    /// A connection failed.
    #[error("the connection of {at}: {}", .status.text())]
    Transport {
        /// The host or switch whose connection it is.
        at: String,
        /// The status of its completion.
        status: Status,
    },
    /// A NIC refused work.
    #[error("the NIC of {at}: {reason}")]
    Post {
        /// The host or switch.
        at: String,
        /// The NIC's reason.
        reason: PostError,
    },
}

fn words(lengths: [(u32, bool); 2], which: usize) -> String {
    let (bytes, is_last) = lengths[which];
    format!("{bytes} B{}", if is_last { ", the last" } else { "" })
}
