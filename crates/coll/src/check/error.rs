//! What can be wrong with a schedule, in words.

use std::fmt;

use railnet_core::Bytes;
use thiserror::Error;

use crate::schedule::{Buffer, Connection, Peer};

/// A step of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepId {
    /// The rank that does it.
    pub rank: u32,
    /// Which of its workers.
    pub worker: u32,
    /// The channel it is about, where it uses a connection.
    pub channel: Option<u16>,
    /// The number of the step.
    pub step: u64,
    /// The chunk it is about.
    pub chunk: u32,
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, ", self.rank)?;
        match self.channel {
            Some(channel) if u32::from(channel) == self.worker => write!(f, "channel {channel}")?,
            Some(channel) => write!(f, "worker {} (channel {channel})", self.worker)?,
            None => write!(f, "worker {}", self.worker)?,
        }
        write!(f, ", step {} (chunk {})", self.step, self.chunk)
    }
}

/// Why a schedule is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The call makes no sense.
    #[error("the call makes no sense: {reason}")]
    Call {
        /// What is wrong with the call.
        reason: String,
    },
    /// No chunk fits into a connection.
    #[error("a chunk takes {chunk} slots, and a connection has {depth}")]
    Slots {
        /// Slots of a chunk.
        chunk: u32,
        /// Slots of a connection.
        depth: u32,
    },
    /// It is too large to be checked.
    #[error("too large to be checked: {reason}")]
    TooLarge {
        /// What is too large.
        reason: String,
    },
    /// A step does what it must not.
    #[error("{place}: {fault}")]
    Step {
        /// Which step.
        place: StepId,
        /// What it does.
        fault: Fault,
    },
    /// An element of an output is not what it should be.
    #[error("{}output element {element} {wrong}", written(*.rank, .place.as_ref()))]
    Output {
        /// Whose output.
        rank: u32,
        /// Which element, the first that is wrong.
        element: u64,
        /// The step that wrote it last, where one did.
        place: Option<StepId>,
        /// What is wrong.
        wrong: Wrong,
    },
    /// A rank goes on before everybody has come.
    #[error("rank {rank} goes on although it cannot know that rank {missing} has come")]
    Barrier {
        /// Who goes on.
        rank: u32,
        /// Who may not have come.
        missing: u32,
    },
    /// Something was sent that nobody takes.
    #[error("{place}: {chunks} chunk(s) to {to} are never received")]
    LeftOver {
        /// The step that sent the first of them.
        place: StepId,
        /// The rank or switch that should have received it.
        to: Target,
        /// How many chunks are left.
        chunks: u32,
    },
    /// A step waits for something that never comes.
    #[error("{place}: waits for {what}, which never comes: {why}")]
    Never {
        /// Which step.
        place: StepId,
        /// For what.
        what: Awaited,
        /// Why it never comes.
        why: String,
    },
    /// Steps wait for each other.
    #[error("deadlock: {} steps wait for each other{}", .cycle.len(), listed(.cycle))]
    Deadlock {
        /// Each waits for the next, the last for the first.
        cycle: Vec<Waiting>,
    },
    /// Two workers of a rank use the same element, at least one of them writes it, and nothing orders them.
    #[error("{second}: {} element {element} of its {} while {first} may still {} it: nothing orders the two",
        if *.second_writes { "writes" } else { "reads" }, buffer_name(*.buffer),
        if *.first_writes { "write" } else { "read" })]
    Race {
        /// One step.
        first: StepId,
        /// Whether it writes.
        first_writes: bool,
        /// The other.
        second: StepId,
        /// Whether it writes.
        second_writes: bool,
        /// The buffer, as the second step calls it.
        buffer: Buffer,
        /// The first such element.
        element: u64,
    },
}

fn written(rank: u32, place: Option<&StepId>) -> String {
    place.map_or_else(|| format!("rank {rank}: "), |place| format!("{place}: "))
}

fn listed(cycle: &[Waiting]) -> String {
    cycle.iter().fold(String::new(), |text, one| text + "\n  " + &one.to_string())
}

/// A step that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Which step.
    pub place: StepId,
    /// For what.
    pub what: Awaited,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {}", self.place, self.what)
    }
}

/// What a step waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// A chunk.
    Chunk {
        /// The rank or switch that sent it.
        from: Target,
    },
    /// Room for a chunk.
    Room {
        /// In the connection to whom.
        to: Target,
    },
    /// The end of a step of the same rank.
    Step {
        /// The worker that does the step.
        worker: u32,
        /// Its number.
        step: u64,
    },
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk { from } => write!(f, "a chunk from {from}"),
            Self::Room { to } => write!(f, "room in the connection to {to}"),
            Self::Step { worker, step } => write!(f, "step {step} of its worker {worker}"),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target(pub Connection);

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { channel, lane, peer } = self.0;
        match peer {
            Peer::Rank(rank) => write!(f, "rank {rank}")?,
            Peer::Switch(group) => write!(f, "the switch of group {group}")?,
        }
        write!(f, " on channel {channel}")?;
        if lane > 0 { write!(f, ", lane {lane}") } else { Ok(()) }
    }
}

/// What a step does that it must not.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Its chunk does not fit into the slots.
    TooLong {
        /// How much it has.
        bytes: Bytes,
        /// How much fits.
        fits: Bytes,
    },
    /// It expects another length than was sent.
    Length {
        /// The step that sent.
        from: StepId,
        /// How many elements it sent.
        sent: u64,
        /// How many are expected.
        expected: u64,
    },
    /// Ranks give chunks of different lengths to a switch.
    UnequalParts {
        /// Another sender's step.
        other: StepId,
        /// How many elements that one sent.
        others: u64,
        /// How many this one sent.
        sent: u64,
    },
    /// It goes past the end of a buffer.
    PastTheEnd {
        /// Which buffer.
        buffer: Buffer,
        /// Where it begins.
        offset: u64,
        /// How many elements.
        count: u64,
        /// How many the buffer has.
        length: u64,
    },
    /// It uses contents that nobody has written.
    NotReady {
        /// Which buffer.
        buffer: Buffer,
        /// The first such element.
        element: u64,
        /// Whether the contents leave the rank.
        is_sent: bool,
    },
    /// It has elements to store or send, and no data.
    FromNothing,
    /// It adds up what does not belong together.
    Unlike {
        /// The element of one.
        one: u64,
        /// The element of another.
        other: u64,
    },
    /// It writes to the input of a call out of place.
    OverwritesInput,
    /// It reads as its input what is no longer its input: pre-multiplication would come twice.
    NotItsInput,
    /// It says that every contribution is in the result, and that is not so.
    NotFinal {
        /// What is wrong.
        wrong: Wrong,
    },
    /// It uses a connection that another worker uses too.
    SharedConnection {
        /// The connection.
        with: Target,
        /// The other worker.
        worker: u32,
    },
    /// It uses a connection twice.
    Twice {
        /// The connection.
        with: Target,
    },
    /// It talks to somebody who does not exist.
    NoSuchPeer {
        /// Whom.
        with: Target,
    },
    /// It talks to a switch of whose group it is no member.
    NotInGroup {
        /// The connection.
        with: Target,
        /// Whether it sends.
        is_send: bool,
    },
    /// It waits for a step that does not exist.
    NoSuchStep {
        /// The worker that is waited for.
        worker: u32,
        /// Its number.
        step: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes, fits } => {
                write!(f, "its chunk of {} bytes does not fit: the slots of a chunk hold {}", bytes.0, fits.0)
            }
            Self::Length { from, sent, expected } => {
                write!(f, "expects {expected} elements, but {from} sent {sent}")
            }
            Self::UnequalParts { other, others, sent } => {
                write!(f, "gives {sent} elements to the switch, but {other} gives {others}")
            }
            Self::PastTheEnd { buffer, offset, count, length } => write!(
                f,
                "goes past the end of its {}: {count} elements from {offset} on, of {length}",
                buffer_name(*buffer)
            ),
            Self::NotReady { buffer, element, is_sent } => {
                let uses = if *is_sent { "sends" } else { "uses" };
                let buffer = buffer_name(*buffer);
                write!(
                    f,
                    "{uses} element {element} of its {buffer} before it is ready: nothing has written it"
                )
            }
            Self::FromNothing => f.write_str("has elements to store or send, but takes none from anywhere"),
            Self::Unlike { one, other } => {
                write!(f, "adds up what does not belong together: elements {one} and {other}")
            }
            Self::OverwritesInput => f.write_str("writes to the input of a call that is out of place"),
            Self::NotItsInput => {
                f.write_str("reads as input what was overwritten: it would be multiplied beforehand twice")
            }
            Self::NotFinal { wrong } => write!(f, "the result {wrong}"),
            Self::SharedConnection { with, worker } => {
                write!(f, "uses the connection with {with}, which belongs to worker {worker}")
            }
            Self::Twice { with } => write!(f, "uses the connection with {with} twice"),
            Self::NoSuchPeer { with } => write!(f, "talks to {with}, which does not exist"),
            Self::NotInGroup { with, is_send } => {
                let verb = if *is_send { "sends to" } else { "receives from" };
                write!(f, "{verb} {with}, and is not in its group for that")
            }
            Self::NoSuchStep { worker, step } => {
                write!(f, "waits for step {step} of worker {worker}, which does not exist")
            }
        }
    }
}

/// What is wrong with contents.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// Nothing was ever put there.
    Blank,
    /// They are of another element.
    Elsewhere {
        /// Of which element of an input.
        found: u64,
        /// Of which they should be.
        wanted: u64,
    },
    /// Contributions are not those that should be there.
    Contributions {
        /// Ranks whose contribution is not there.
        missing: Vec<u32>,
        /// Ranks whose contribution is there, and should not.
        foreign: Vec<u32>,
        /// Ranks whose contribution is there more than once, and how often.
        repeated: Vec<(u32, u32)>,
    },
    /// They are right but for an average that is not divided, or divided twice.
    Division,
    /// They are right but for a multiplication beforehand that did not happen.
    Multiplication,
    /// Contributions are not those that should be there; there are too many ranks to say which.
    Unknown,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("was never written"),
            Self::Elsewhere { found, wanted } => {
                write!(f, "is made of element {found} of the inputs instead of {wanted}")
            }
            Self::Contributions { missing, foreign, repeated } => {
                let mut parts = Vec::new();
                if !missing.is_empty() {
                    parts.push(format!("lacks {}", owners(missing)));
                }
                if !foreign.is_empty() {
                    parts.push(format!("has {}, which does not belong there", owners(foreign)));
                }
                for (rank, times) in repeated {
                    let often = if *times == 2 { "twice".to_owned() } else { format!("{times} times") };
                    parts.push(format!("has rank {rank}'s contribution {often}"));
                }
                f.write_str(&parts.join(" and "))
            }
            Self::Division => f.write_str("is not divided exactly once, as an average has to be"),
            Self::Multiplication => f.write_str("has a contribution that was not multiplied beforehand"),
            Self::Unknown => f.write_str("does not have exactly the contributions that it should have"),
        }
    }
}

/// `rank 6's contribution`, `the contributions of ranks 1, 2 and 5`.
fn owners(ranks: &[u32]) -> String {
    const LISTED: usize = 8;
    let [only] = ranks else {
        let mut names: Vec<String> = ranks.iter().take(LISTED).map(u32::to_string).collect();
        let last = match ranks.len().saturating_sub(LISTED) {
            0 => names.pop().unwrap_or_default(),
            more => format!("{more} more"),
        };
        return format!("the contributions of ranks {} and {last}", names.join(", "));
    };
    format!("rank {only}'s contribution")
}

/// What a buffer is called.
pub(super) const fn buffer_name(buffer: Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "input",
        Buffer::Output => "output",
        Buffer::Scratch => "scratch memory",
    }
}
