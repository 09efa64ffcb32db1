//! Recorded conversations, held again with this NIC in the place of one of the speakers.
//!
//! A capture of two Soft-RoCE (rxe) hosts holds, for every queue pair that served requests, the requests and the
//! answers. For each such queue pair [`replay`] makes a NIC with the same numbers, keys and memory, hands it the recorded
//! requests in order, and compares what it answers with what was answered then, field by field and at last the whole
//! frame. Completions, the final state and memory are compared too where the notes beside the capture tell them.
//!
//! In: a reader of the capture, and the notes (the `.txt` beside it: commands and output of both sides) where there are
//! some. Out: a [`Report`]. What notes and connection messages do not tell is learned from the capture; what may differ
//! or had to be learned is a [`Freedom`], counted each time.
//!
//! Requests are not compared: when to send is the requester's own choice. Management datagrams (queue pair 1) belong to
//! the connection manager, not to the NIC: they are read for the numbers in them, and otherwise skipped.

mod compare;
mod freedom;
mod notes;
mod recording;
mod report;
mod search;
mod setup;
mod world;

use std::io::Read;

use railnet_wire::capture::CaptureError;

use crate::config::Behaviour;
use crate::error::{PostError, VerbsError};

pub use compare::{Difference, describe};
pub use freedom::{Freedom, Freedoms};
pub use notes::NotesError;
pub use report::{Conversation, Finding, Pair, Report};

/// Why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The capture cannot be read.
    #[error("the capture cannot be read")]
    Capture(#[from] CaptureError),
    /// The capture holds nothing to replay.
    #[error(
        "none of the {packets} packets of the capture is RoCEv2 (UDP port 4791): record on the host's Ethernet interface"
    )]
    NoRoce {
        /// Packets in it.
        packets: u64,
    },
    /// The notes are not understood.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// What the requests ask for is too much to be set up.
    #[error("queue pair {queue_pair}: {what} would need {asked:#x}, the limit is {limit:#x}")]
    TooLarge {
        /// Of which queue pair.
        queue_pair: railnet_core::QueuePairNumber,
        /// The resource.
        what: &'static str,
        /// The number that the requests need.
        asked: u64,
        /// How much there may be.
        limit: u64,
    },
    /// The NIC refuses the set-up that the capture asks for.
    #[error("the NIC cannot be set up as the recorded one was")]
    Setup(#[from] VerbsError),
    /// The NIC refuses a receive that the recorded one had.
    #[error("the NIC does not take the receives that the recorded one had")]
    Post(#[from] PostError),
}

/// Replays every conversation of a capture to a NIC of this behaviour.
///
/// [`Behaviour::RXE`] is the one to expect no mismatch from.
pub fn replay(capture: impl Read, notes: Option<&str>, behaviour: Behaviour) -> Result<Report, ReplayError> {
    let recording = recording::Recording::read(capture)?;
    let notes = notes.map(notes::Notes::parse).transpose()?;
    let mut conversations = Vec::new();
    for conversation in recording.conversations() {
        let setup = setup::Setup::new(&recording, &conversation, notes.as_ref())?;
        conversations.push(search::hold(&recording, &conversation, &setup, behaviour)?);
    }
    Ok(Report {
        packets: recording.total,
        management: recording.management,
        other: recording.other,
        malformed: recording.malformed,
        conversations,
    })
}
