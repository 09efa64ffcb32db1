//! What a replay found.

use std::fmt;

use railnet_core::QueuePairNumber;
use railnet_wire::Gid;

use super::compare::Difference;
use super::freedom::Freedoms;
use crate::queue_pair::Service;

/// What the replay of a whole capture found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Packets in the capture.
    pub packets: u64,
    /// Management datagrams (queue pair 1), which are the connection manager's: skipped.
    pub management: u64,
    /// Packets that are not RoCEv2: skipped.
    pub other: u64,
    /// RoCEv2 packets that are not well formed: skipped.
    pub malformed: u64,
    /// One for each queue pair that requests went to.
    pub conversations: Vec<Conversation>,
}

impl Report {
    /// Whether nothing differs but for freedoms.
    pub fn is_equal(&self) -> bool {
        self.conversations.iter().all(|one| one.findings.is_empty())
    }

    /// All freedoms that were used.
    pub fn freedoms(&self) -> Freedoms {
        let mut all = Freedoms::default();
        for conversation in &self.conversations {
            all.add_all(&conversation.freedoms);
        }
        all
    }
}

/// What the replay of one conversation found.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Who answered.
    pub responder: Gid,
    /// Who asked.
    pub requester: Gid,
    /// The queue pair that answered.
    pub queue_pair: QueuePairNumber,
    /// The queue pair that asked; 0 where nothing tells it.
    pub peer: QueuePairNumber,
    /// The transport service.
    pub service: Service,
    /// Requests that the NIC was given.
    pub requests: usize,
    /// Requests that the recorded responder never saw, by their place in the capture, from 1.
    pub left_out: Vec<u64>,
    /// Recorded answers that were compared.
    pub answers: usize,
    /// Answers that are equal but for freedoms.
    pub equal: usize,
    /// Completions that were compared.
    pub completions: usize,
    /// Other things that were compared: final state, memory, address areas of datagrams.
    pub other_checks: usize,
    /// What was free, and how often.
    pub freedoms: Freedoms,
    /// What differs.
    pub findings: Vec<Finding>,
    /// Every answer, recorded and ours.
    pub pairs: Vec<Pair>,
}

impl Conversation {
    /// The usual short name of its service.
    pub const fn service_name(&self) -> &'static str {
        match self.service {
            Service::ReliableConnection => "RC",
            Service::UnreliableConnection => "UC",
            Service::Datagram => "UD",
        }
    }
}

/// A recorded answer and ours, each in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The request that ours answers, by its place in the capture.
    pub request: Option<u64>,
    /// The recorded one and its place in the capture; `None` where nothing was answered then.
    pub recorded: Option<(u64, String)>,
    /// What the NIC answered; `None` where it was silent.
    pub ours: Option<String>,
    /// What is not the same.
    pub differences: Vec<Difference>,
}

impl Pair {
    /// Whether both are there and the same.
    pub fn is_equal(&self) -> bool {
        self.recorded.is_some() && self.ours.is_some() && self.differences.is_empty()
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.recorded {
            Some((number, line)) => write!(f, "recorded, packet {number}: {line}")?,
            None => f.write_str("recorded: no answer")?,
        }
        match (&self.ours, self.request) {
            (Some(line), Some(request)) => write!(f, "\n    ours, to packet {request}: {line}"),
            (Some(line), None) => write!(f, "\n    ours: {line}"),
            (None, _) => f.write_str("\n    ours: no answer"),
        }
    }
}

/// Something that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// An answer.
    Answer(Pair),
    /// A completion, the final state or memory.
    Ending(Difference),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(pair) => {
                let what = match (&pair.recorded, &pair.ours) {
                    (Some(_), None) => "an answer is missing".to_owned(),
                    (None, _) => "an answer too many".to_owned(),
                    _ => {
                        let fields: Vec<String> = pair.differences.iter().map(ToString::to_string).collect();
                        fields.join("; ")
                    }
                };
                write!(f, "{what}\n    {pair}")
            }
            Self::Ending(difference) => difference.fmt(f),
        }
    }
}
