//! What can go wrong with a communicator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use railnet_coll::BuildError;
use railnet_coll::machine::Failure;
use railnet_coll::tuner::NoChoice;
use railnet_coll::window::WindowError;

use crate::agreement::Quorum;
use crate::control::ControlError;
use crate::engine::ReachError;
use crate::launch::LaunchError;
use crate::message::TroubleKind;
use crate::rendezvous::{ConfigError, MeetError, named};

/// Why a call failed, or a communicator was not made. It is written in words also where a program prints it for its
/// authors, as one does whose `main` returns it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launcher's variables make no sense.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A variable of Railnet's makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ranks did not meet.
    #[error(transparent)]
    Meet(#[from] MeetError),
    /// The ranks have met, and cannot reach each other.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The communicator is broken: this call failed, and so will every other. Make another communicator, without those
    /// whose fault it is.
    #[error("{failure}{notes}")]
    Failed {
        /// What happened.
        failure: Arc<Failure>,
        /// What else is known of the ranks whose fault it is.
        notes: String,
    },
    /// The call makes no sense.
    #[error(transparent)]
    Call(#[from] BuildError),
    /// Nothing that may be used can carry out the call.
    #[error(transparent)]
    NoChoice(#[from] NoChoice),
    /// A rank that was left out wants to go on.
    #[error("rank {rank} was left out of the communicator that is to be made: it cannot be in it")]
    LeftOut {
        /// Which.
        rank: usize,
    },
    /// A receive from whichever rank sends first, and none did.
    #[error("rank {rank} receives from any rank{tag}, and none has sent anything to it for {waited:.1?}")]
    NoSender {
        /// The receiver.
        rank: usize,
        /// Under which tag, in words; empty under the first.
        tag: String,
        /// How long it has waited.
        waited: Duration,
    },
    /// A receive from whichever rank sends first, when none can any more.
    #[error(
        "rank {rank} receives from any rank{tag}, and all others have left without sending it anything more"
    )]
    AllLeft {
        /// The receiver.
        rank: usize,
        /// Under which tag, in words; empty under the first.
        tag: String,
    },
    /// The program does not want to wait any longer.
    #[error("rank {rank} was interrupted while it waited for any rank to send to it")]
    Interrupted {
        /// The receiver.
        rank: usize,
    },
    /// A tagged transfer between a rank and itself.
    #[error("rank {rank} sends to itself, or receives from itself: copy the data in place of that")]
    ToItself {
        /// Which.
        rank: usize,
    },
    /// A rank that is named twice where each may be once.
    #[error("rank {rank} is named twice: each rank is in a communicator once")]
    Repeated {
        /// Which.
        rank: usize,
    },
    /// Too few ranks are left.
    #[error(
        "{} of {size} ranks answered: a quorum is {quorum}, so this rank does not continue. \
         The others may, if they can reach each other; RAILNET_QUORUM or Options::quorum sets the quorum",
        named_ranks(.answered)
    )]
    NoQuorum {
        /// Those that answered, this one among them.
        answered: Vec<usize>,
        /// Ranks of the communicator.
        size: usize,
        /// What would be enough.
        quorum: Quorum,
    },
    /// The other ranks continue without this one.
    #[error(
        "the other ranks agreed to continue without rank {rank}: it did not answer in time, or was reported to have failed. \
         Start it again as part of a new job"
    )]
    Excluded {
        /// This rank.
        rank: usize,
    },
    /// The ranks that are left did not agree in time.
    #[error("{} of {size} ranks answered and did not agree on who has failed within {waited:.1?} (RAILNET_TIMEOUT)", named_ranks(.answered))]
    NoAgreement {
        /// Those that answered, this one among them.
        answered: Vec<usize>,
        /// Ranks of the communicator.
        size: usize,
        /// How long it took.
        waited: Duration,
    },
    /// A buffer does not fit the call.
    #[error("{what} has {has} elements: {needs} are needed")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Its elements.
        has: usize,
        /// How many it should have.
        needs: String,
    },
    /// A one-sided operation makes no sense.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// A one-sided operation did not come to its end.
    #[error("{what}: rank {rank} {why}{notes}")]
    OneSided {
        /// Which operation, on which window.
        what: String,
        /// The rank that it needs.
        rank: usize,
        /// What is wrong with that.
        why: String,
        /// What else is known of it.
        notes: String,
    },
    /// A scalar of another type than the data.
    #[error(
        "the scalar of a pre-multiplied sum is of type {scalar}, and the data of type {data}: they must be equal"
    )]
    Scalar {
        /// The type of the scalar.
        scalar: railnet_core::DataType,
        /// That of the data.
        data: railnet_core::DataType,
    },
}

/// These ranks in words.
fn named_ranks(ranks: &[usize]) -> String {
    named(&ranks.iter().map(|rank| *rank as u32).collect::<Vec<_>>())
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The ranks of the communicator whose fault it is, where that is known.
    pub fn culprits(&self) -> Vec<usize> {
        match self {
            Self::Failed { failure, .. } => failure.culprits().iter().map(|rank| rank.0 as usize).collect(),
            Self::OneSided { rank, .. } => vec![*rank],
            // That rank 0 does not answer may have other reasons; that it is gone has none.
            Self::Meet(MeetError::Trouble(_) | MeetError::HubGone { .. })
            | Self::Reach(ReachError::Control(ControlError::Trouble { .. } | ControlError::HubGone { .. })) => {
                self.failed_peers().unwrap_or_default().into_iter().map(|rank| rank as usize).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ranks outside of the communicator whose fault it is, by their numbers in the job: one that died, and because of which a rank of
    /// this communicator has left.
    pub fn outsiders(&self) -> Vec<usize> {
        match self {
            Self::Failed { failure, .. } => failure.outsiders().iter().map(|rank| *rank as usize).collect(),
            _ => Vec::new(),
        }
    }

    /// The ranks that kept others from meeting, where that is why: ranks that are left may try without them.
    pub(super) fn failed_peers(&self) -> Option<Vec<u32>> {
        match self {
            Self::Meet(MeetError::Trouble(trouble))
            | Self::Reach(ReachError::Control(ControlError::Trouble { trouble, .. })) => {
                let kinds = [TroubleKind::Gone, TroubleKind::Missing, TroubleKind::Local];
                kinds.contains(&trouble.kind).then(|| trouble.ranks.clone())
            }
            Self::Meet(MeetError::HubGone { .. } | MeetError::Unreachable { .. })
            | Self::Reach(ReachError::Control(
                ControlError::HubGone { .. } | ControlError::NoAnswer { .. },
            )) => Some(vec![0]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_0_that_dies_while_ranks_set_up_is_the_culprit() {
        let gone = ControlError::HubGone {
            what: "exchange".to_owned(),
            cause: "its connection was closed".to_owned(),
        };
        assert_eq!(Error::Reach(ReachError::Control(gone)).culprits(), [0]);
        let silent =
            ControlError::NoAnswer { what: "exchange".to_owned(), waited: std::time::Duration::from_secs(1) };
        assert_eq!(Error::Reach(ReachError::Control(silent)).culprits(), [0_usize; 0]);
    }
}
