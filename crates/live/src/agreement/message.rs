//! What ranks that agree say to each other, in bytes.

use std::collections::BTreeSet;

use super::Message;
use crate::message::Malformed;
use crate::message::fields::{Reader, put_ranks};

/// The number of a proposal: ballots of different leaders never compare equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ballot {
    /// One more than any that its leader had seen.
    pub round: u64,
    /// Who proposes.
    pub leader: u32,
}

/// What was decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// The ranks that do not go on.
    pub failed: BTreeSet<u32>,
    /// The bitwise AND of the flags of those that do, as far as they were asked.
    pub flags: u64,
}

/// What a rank tells a leader.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vote {
    /// What it accepted last.
    pub accepted: Option<(Ballot, Decision)>,
    /// The ranks that it knows to have failed.
    pub failed: BTreeSet<u32>,
    /// Its flags.
    pub flags: u64,
}

impl Message {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Ping => out.push(0),
            Self::Prepare(ballot) => put(&mut out, 1, *ballot),
            Self::Promise(ballot, vote) => {
                put(&mut out, 2, *ballot);
                out.push(u8::from(vote.accepted.is_some()));
                if let Some((ballot, decision)) = &vote.accepted {
                    put_ballot(&mut out, *ballot);
                    put_decision(&mut out, decision);
                }
                put_decision(&mut out, &Decision { failed: vote.failed.clone(), flags: vote.flags });
            }
            Self::Accept(ballot, decision) => {
                put(&mut out, 3, *ballot);
                put_decision(&mut out, decision);
            }
            Self::Accepted(ballot) => put(&mut out, 4, *ballot),
            Self::Rejected(ballot) => put(&mut out, 5, *ballot),
            Self::Decided(decision) => {
                out.push(6);
                put_decision(&mut out, decision);
            }
            Self::NoQuorum(voters) => {
                out.push(7);
                put_ranks(&mut out, &voters.iter().copied().collect::<Vec<u32>>());
            }
        }
        out
    }

    /// From bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let message = match reader.byte("kind")? {
            0 => Self::Ping,
            1 => Self::Prepare(ballot(&mut reader)?),
            2 => {
                let of = ballot(&mut reader)?;
                let accepted = match reader.byte("flag")? {
                    0 => None,
                    1 => Some((ballot(&mut reader)?, decision(&mut reader)?)),
                    _ => return Err(Malformed::Field("flag")),
                };
                let Decision { failed, flags } = decision(&mut reader)?;
                Self::Promise(of, Vote { accepted, failed, flags })
            }
            3 => Self::Accept(ballot(&mut reader)?, decision(&mut reader)?),
            4 => Self::Accepted(ballot(&mut reader)?),
            5 => Self::Rejected(ballot(&mut reader)?),
            6 => Self::Decided(decision(&mut reader)?),
            7 => Self::NoQuorum(reader.list("ranks", |reader| reader.number("rank"))?.into_iter().collect()),
            other => return Err(Malformed::Kind(other)),
        };
        reader.finish()?;
        Ok(message)
    }
}

fn put(out: &mut Vec<u8>, kind: u8, ballot: Ballot) {
    out.push(kind);
    put_ballot(out, ballot);
}

fn put_ballot(out: &mut Vec<u8>, ballot: Ballot) {
    out.extend(ballot.round.to_le_bytes());
    out.extend(ballot.leader.to_le_bytes());
}

fn ballot(reader: &mut Reader<'_>) -> Result<Ballot, Malformed> {
    Ok(Ballot { round: reader.long("ballot")?, leader: reader.number("leader")? })
}

fn put_decision(out: &mut Vec<u8>, decision: &Decision) {
    put_ranks(out, &decision.failed.iter().copied().collect::<Vec<u32>>());
    out.extend(decision.flags.to_le_bytes());
}

fn decision(reader: &mut Reader<'_>) -> Result<Decision, Malformed> {
    let failed = reader.list("ranks", |reader| reader.number("rank"))?;
    Ok(Decision { failed: failed.into_iter().collect(), flags: reader.long("flags")? })
}
