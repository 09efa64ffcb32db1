//! What goes wrong between ranks, and how they tell each other.
//!
//! A rank that sees a difference, or waits too long, asks everybody what they say about the operation. From the answers
//! it makes a verdict that names the ranks, and sends that to all: every rank ends with the same error.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use railnet_core::{Rank, Span, Time};
use thiserror::Error;

use super::signature::{Mark, Means, Shared, Signature};
use super::work::OperationId;
use crate::schedule::Peer;

/// What ranks tell each other outside of connections. The driver brings it, in order between any two.
#[derive(Clone, Debug)]
pub enum Notice {
    /// What do you say about this operation?
    Ask(OperationId),
    /// The answer to [`Notice::Ask`].
    Answer(OperationId, Answer),
    /// The communicator is broken, and this is why.
    Verdict(Arc<Failure>),
}

/// What a rank says about an operation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How it understands it; `None` where it has not entered it, or left it too long ago to remember.
    pub signature: Option<Arc<Signature>>,
    /// How far it is.
    pub standing: Standing,
    /// What it understood by the operations before that it remembers.
    pub history: Vec<Mark>,
}

/// How far a rank is with an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It did not make the call.
    NotEntered {
        /// What it finished last.
        last: Option<Arc<Signature>>,
        /// How long ago.
        ago: Span,
        /// Whether its program waits for a call of another communicator meanwhile.
        waits_elsewhere: bool,
    },
    /// It is in it.
    Entered {
        /// For how long.
        since: Span,
        /// For how long nothing happened there.
        idle: Span,
        /// What it waits for.
        waits: Vec<Wait>,
    },
    /// It has done it.
    Finished,
    /// It is still in an operation before it, and will come when that is over.
    Behind {
        /// For how long nothing happened there.
        idle: Span,
        /// What it waits for.
        waits: Vec<Wait>,
    },
}

/// What a worker waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The worker.
    pub worker: u32,
    /// The step it is at.
    pub step: u64,
    /// What it waits for.
    pub what: WaitingFor,
    /// Since when nothing happened on this rank.
    pub since: Time,
}

/// What a worker waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitingFor {
    /// Data from a peer, on a channel.
    Data(Peer, u16),
    /// Room at a peer, on a channel.
    Room(Peer, u16),
    /// A step of another worker.
    Worker(u32),
    /// Work that was handed out and not reported finished.
    Work,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = |peer: &Peer| match peer {
            Peer::Rank(rank) => format!("rank {rank}"),
            Peer::Switch(group) => format!("switch group {group}"),
        };
        match &self.what {
            WaitingFor::Data(from, channel) => write!(f, "data from {} on channel {channel}", peer(from)),
            WaitingFor::Room(at, channel) => write!(f, "room at {} on channel {channel}", peer(at)),
            WaitingFor::Worker(other) => write!(f, "worker {other}"),
            WaitingFor::Work => write!(f, "its own work"),
        }?;
        write!(f, " (worker {}, step {})", self.worker, self.step)
    }
}

/// Why a communicator is broken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Ranks do not mean the same operation.
    #[error(transparent)]
    Mismatch(MismatchError),
    /// A rank does not come.
    #[error(transparent)]
    Missing(MissingError),
    /// Everybody is there, and nothing moves.
    #[error(transparent)]
    Stuck(StuckError),
    /// The program of a rank stopped the communicator.
    #[error("rank {} aborted the communicator", by.0)]
    Aborted {
        /// The rank whose program stopped it.
        by: Rank,
    },
    /// A rank is gone.
    #[error("{}", lost(*rank, cause, during.as_deref()))]
    Lost {
        /// The rank that is gone.
        rank: Rank,
        /// What is known of it.
        cause: String,
        /// What was running.
        during: Option<Arc<Signature>>,
    },
    /// A rank has left after a failure in another communicator of its process.
    #[error("{}", departed(*rank, departure, during.as_deref()))]
    Departed {
        /// Which.
        rank: Rank,
        /// What failed there, and because of whom.
        departure: Departure,
        /// What was running.
        during: Option<Arc<Signature>>,
    },
    /// What another rank found out, in its words.
    #[error("{text}")]
    Told {
        /// The rank that reported it.
        by: Rank,
        /// Whose fault it is, where it is known.
        ranks: Vec<Rank>,
        /// The culprits outside of the communicator, by their ranks in the job.
        outsiders: Vec<u32>,
        /// The failure, in that rank's words.
        text: String,
    },
    /// A connection could not be made.
    #[error("{}", unconnected(*at, *with, reason, during.as_deref()))]
    Unconnected {
        /// Who tried.
        at: Rank,
        /// The rank that cannot be reached, if it is that.
        with: Option<Rank>,
        /// What happened.
        reason: String,
        /// What was running.
        during: Option<Arc<Signature>>,
    },
    /// A connection broke.
    #[error("{}", broken(*at, *with, *channel, reason, during.as_deref()))]
    Broken {
        /// Who saw it.
        at: Rank,
        /// The other end.
        with: Peer,
        /// The channel.
        channel: u16,
        /// What happened.
        reason: String,
        /// What was running.
        during: Option<Arc<Signature>>,
    },
}

/// Why a rank has left: a failure in another communicator of its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Departure {
    /// The ranks of this communicator whose fault that was.
    pub ranks: Vec<Rank>,
    /// Those outside of it, by their numbers in the job.
    pub outsiders: Vec<u32>,
    /// That failure in words.
    pub cause: String,
}

impl Failure {
    /// The ranks whose fault it is, where that is known: the others can go on without them.
    pub fn culprits(&self) -> Vec<Rank> {
        match self {
            Self::Missing(missing) => missing.missing.iter().map(|(rank, _)| *rank).collect(),
            Self::Lost { rank, .. } => vec![*rank],
            Self::Told { ranks, .. } | Self::Departed { departure: Departure { ranks, .. }, .. } => {
                ranks.clone()
            }
            Self::Broken { with: Peer::Rank(rank), .. } => vec![Rank(*rank)],
            Self::Unconnected { with, .. } => with.iter().copied().collect(),
            Self::Mismatch(mismatch) => mismatch.culprits(),
            Self::Stuck(_) | Self::Aborted { .. } | Self::Broken { .. } => Vec::new(),
        }
    }

    /// Ranks outside of the communicator whose fault it is, by their numbers in the job.
    pub fn outsiders(&self) -> &[u32] {
        match self {
            Self::Told { outsiders, .. } | Self::Departed { departure: Departure { outsiders, .. }, .. } => {
                outsiders
            }
            _ => &[],
        }
    }
}

impl Failure {
    /// The same failure in a communicator of these ranks of the job, of which this one is a part: what was outside may be inside.
    #[must_use]
    pub fn within(mut self, members: &[u32]) -> Self {
        if let Self::Told { ranks, outsiders, .. }
        | Self::Departed { departure: Departure { ranks, outsiders, .. }, .. } = &mut self
        {
            outsiders.retain(|world| match members.iter().position(|member| member == world) {
                Some(index) => {
                    ranks.push(Rank(index as u32));
                    false
                }
                None => true,
            });
        }
        self
    }

    /// The same failure in the rank numbers of a communicator of which this one is a part. What another rank found out stays in its
    /// words.
    #[must_use]
    pub fn renumbered(&self, of: &impl Fn(Rank) -> Rank) -> Self {
        let all = |ranks: &[Rank]| ranks.iter().map(|rank| of(*rank)).collect::<Vec<_>>();
        let peer = |peer: Peer| match peer {
            Peer::Rank(rank) => Peer::Rank(of(Rank(rank)).0),
            switch @ Peer::Switch(_) => switch,
        };
        let signature = |one: &Arc<Signature>| {
            let mut one = Signature::clone(one);
            (one.call.root, one.call.peer) = (of(one.call.root), of(one.call.peer));
            Arc::new(one)
        };
        let during = |one: &Option<Arc<Signature>>| one.as_ref().map(signature);
        let waits = |some: &[Wait]| {
            let wait = |wait: &Wait| match wait.what {
                WaitingFor::Data(from, channel) => {
                    Wait { what: WaitingFor::Data(peer(from), channel), ..*wait }
                }
                WaitingFor::Room(at, channel) => Wait { what: WaitingFor::Room(peer(at), channel), ..*wait },
                WaitingFor::Worker(_) | WaitingFor::Work => *wait,
            };
            some.iter().map(wait).collect()
        };
        let seen = |seen: &LastSeen| match seen {
            LastSeen::Finished(last, ago) => LastSeen::Finished(signature(last), *ago),
            other => other.clone(),
        };
        match self {
            Self::Mismatch(one) => Self::Mismatch(MismatchError {
                operation: one.operation,
                sides: one.sides.iter().map(|(meant, ranks)| (signature(meant), all(ranks))).collect(),
                differences: one.differences.clone(),
                last: one.last.map(|(rank, after)| (of(rank), after)),
                absent: all(&one.absent),
            }),
            Self::Missing(one) => Self::Missing(MissingError {
                signature: signature(&one.signature),
                missing: one.missing.iter().map(|(rank, last)| (of(*rank), seen(last))).collect(),
                waiting: all(&one.waiting),
                since: one.since,
            }),
            Self::Stuck(one) => Self::Stuck(StuckError {
                signature: signature(&one.signature),
                since: one.since,
                waits: one.waits.iter().map(|(rank, some)| (of(*rank), waits(some))).collect(),
            }),
            Self::Aborted { by } => Self::Aborted { by: of(*by) },
            Self::Lost { rank, cause, during: running } => {
                Self::Lost { rank: of(*rank), cause: cause.clone(), during: during(running) }
            }
            Self::Departed { rank, departure, during: running } => Self::Departed {
                rank: of(*rank),
                departure: Departure { ranks: all(&departure.ranks), ..departure.clone() },
                during: during(running),
            },
            Self::Told { by, ranks, outsiders, text } => Self::Told {
                by: of(*by),
                ranks: all(ranks),
                outsiders: outsiders.clone(),
                text: text.clone(),
            },
            Self::Unconnected { at, with, reason, during: running } => Self::Unconnected {
                at: of(*at),
                with: with.map(of),
                reason: reason.clone(),
                during: during(running),
            },
            Self::Broken { at, with, channel, reason, during: running } => Self::Broken {
                at: of(*at),
                with: peer(*with),
                channel: *channel,
                reason: reason.clone(),
                during: during(running),
            },
        }
    }
}

fn during(signature: Option<&Signature>) -> String {
    signature.map(|one| format!(" during {} {}", one.call.collective, one.operation)).unwrap_or_default()
}

fn lost(rank: Rank, cause: &str, signature: Option<&Signature>) -> String {
    format!("rank {} is lost{}: {cause}", rank.0, during(signature))
}

fn departed(rank: Rank, departure: &Departure, signature: Option<&Signature>) -> String {
    let own = departure.ranks.iter().map(|rank| format!("rank {}", rank.0));
    let outsiders = departure.outsiders.iter().map(|rank| format!("rank {rank} of the job"));
    let culprits: Vec<String> = own.chain(outsiders).collect();
    let during = during(signature);
    let (rank, culprits, cause) = (rank.0, culprits.join(", "), &departure.cause);
    format!("rank {rank} left{during} after a failure in another communicator because of {culprits}: {cause}")
}

fn unconnected(at: Rank, with: Option<Rank>, reason: &str, signature: Option<&Signature>) -> String {
    let with = with.map(|rank| format!(" to rank {}", rank.0)).unwrap_or_default();
    format!("rank {} cannot connect{with}{}: {reason}", at.0, during(signature))
}

fn broken(at: Rank, with: Peer, channel: u16, reason: &str, signature: Option<&Signature>) -> String {
    let (at, during) = (at.0, during(signature));
    let with = match with {
        Peer::Rank(rank) => format!("rank {rank}"),
        Peer::Switch(group) => format!("switch group {group}"),
    };
    format!("rank {at}: the connection with {with} on channel {channel} broke{during}: {reason}")
}

/// Ranks do not mean the same operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MismatchError {
    /// Which operation of the communicator.
    pub operation: OperationId,
    /// Each meaning, with the ranks that have it in ascending order. The most common first.
    pub sides: Vec<(Arc<Signature>, Vec<Rank>)>,
    /// The respects in which they differ.
    pub differences: Vec<&'static str>,
    /// The rank that came last of those that have entered, and how long after the first.
    pub last: Option<(Rank, Span)>,
    /// Ranks that have not entered it.
    pub absent: Vec<Rank>,
}

impl std::error::Error for MismatchError {}

impl MismatchError {
    /// Those that differ from a majority of the ranks; without one, nobody can say whose fault it is.
    pub fn culprits(&self) -> Vec<Rank> {
        let Some(((_, most), others)) = self.sides.split_first() else { return Vec::new() };
        let others = others.iter().flat_map(|(_, ranks)| ranks.iter().copied());
        let mut others: Vec<Rank> = others.collect();
        if most.len() <= others.len() + self.absent.len() {
            return Vec::new();
        }
        others.sort_unstable();
        others
    }
}

impl fmt::Display for MismatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.differences.join(", ");
        write!(f, "ranks disagree about collective {} ({what}).", self.operation)?;
        if let Some((rank, after)) = self.last
            && after > Span::ZERO
        {
            write!(f, " Rank {} entered {after} after the first.", rank.0)?;
        }
        let in_words = ["algorithm", "protocol", "channels", "slots"];
        let needs_means = self.differences.iter().any(|name| in_words.contains(name));
        for (signature, ranks) in &self.sides {
            write!(f, "\n  {}: {signature}", names(ranks))?;
            if needs_means {
                write!(f, " by {}", Means(signature))?;
            }
        }
        if !self.absent.is_empty() {
            write!(f, "\n  {}: not entered", names(&self.absent))?;
        }
        Ok(())
    }
}

/// A rank does not come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingError {
    /// What the others are in.
    pub signature: Arc<Signature>,
    /// Who is missing, and what it did last: `None` where it never did anything or does not answer.
    pub missing: Vec<(Rank, LastSeen)>,
    /// Who waits.
    pub waiting: Vec<Rank>,
    /// For how long, at least.
    pub since: Span,
}

/// What is known of a missing rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LastSeen {
    /// It finished this, so long ago, and then made no call.
    Finished(Arc<Signature>, Span),
    /// It has made no call yet.
    Nothing,
    /// It does not answer.
    Silent,
}

impl std::error::Error for MissingError {}

impl fmt::Display for MissingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing: Vec<Rank> = self.missing.iter().map(|(rank, _)| *rank).collect();
        let Signature { operation, call, .. } = &*self.signature;
        let wait = if self.waiting.len() == 1 { "waits" } else { "wait" };
        let is_silent = self.missing.iter().all(|(_, seen)| *seen == LastSeen::Silent);
        let (have, does) = if missing.len() == 1 { ("has", "does") } else { ("have", "do") };
        let verb = if is_silent { format!("{does} not answer in") } else { format!("{have} not entered") };
        let (collective, since) = (call.collective, self.since);
        write!(f, "{} {verb} {collective} {operation} for {since}", names(&missing))?;
        write!(f, "; {} {wait}.", names(&self.waiting))?;
        if is_silent {
            return Ok(());
        }
        for (rank, seen) in &self.missing {
            write!(f, "\n  rank {}, last seen: ", rank.0)?;
            match seen {
                LastSeen::Finished(last, ago) => {
                    write!(
                        f,
                        "finished {} {} {ago} ago, then no call",
                        last.call.collective, last.operation
                    )?;
                }
                LastSeen::Nothing => write!(f, "alive, but made no call yet")?,
                LastSeen::Silent => write!(f, "it does not answer")?,
            }
        }
        Ok(())
    }
}

/// Everybody is there, and nothing moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StuckError {
    /// What everybody is in.
    pub signature: Arc<Signature>,
    /// For how long, at least.
    pub since: Span,
    /// What each rank waits for.
    pub waits: Vec<(Rank, Vec<Wait>)>,
}

impl std::error::Error for StuckError {}

impl fmt::Display for StuckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Signature { operation, call, .. } = &*self.signature;
        write!(f, "all ranks are in {} {operation}, and nothing moved for {}", call.collective, self.since)?;
        for (rank, waits) in self.waits.iter().take(SHOWN) {
            if let Some(first) = waits.first() {
                write!(f, "\n  rank {} waits for {first}", rank.0)?;
            }
        }
        if self.waits.len() > SHOWN {
            write!(f, "\n  and {} more", self.waits.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Ranks that are named one by one: a screenful, and the rest says the same.
const SHOWN: usize = 8;

/// `rank 2` or `ranks 0, 1, 3 … 1023 (1021 of them)`.
fn names(ranks: &[Rank]) -> String {
    let list = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(", ");
    match ranks {
        [one] => format!("rank {}", one.0),
        few if few.len() <= SHOWN => format!("ranks {}", list(few)),
        [many @ .., last] => {
            format!("ranks {} … {} ({} of them)", list(&many[..SHOWN - 1]), last.0, many.len() + 1)
        }
        [] => "nobody".to_owned(),
    }
}

/// A rank that asks everybody.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) operation: OperationId,
    pub(super) since: Time,
    /// How long a rank may be idle before it counts as stuck.
    patience: Span,
    /// Whether only differences count: nothing has taken too long yet.
    pub(super) is_doubt: bool,
    /// What is to be asked in earnest after a doubt: something came up meanwhile.
    pub(super) next: Option<(OperationId, Span)>,
    /// Whether the clock was read since it began.
    pub(super) is_dated: bool,
    answers: BTreeMap<u32, Answer>,
}

impl Asking {
    pub(super) fn new(operation: OperationId, since: Time, patience: Span) -> Self {
        let answers = BTreeMap::new();
        Self { operation, since, patience, is_doubt: false, next: None, is_dated: false, answers }
    }

    pub(super) fn take(&mut self, from: u32, answer: Answer) {
        self.answers.insert(from, answer);
    }

    pub(super) fn is_complete(&self, ranks: u32) -> bool {
        self.answers.len() as u32 == ranks
    }

    /// The first operation before this one that ranks understood differently, as far as they remember: a rank may be through with
    /// its part of a call before data could have told it of the difference.
    pub(super) fn first_difference(&self) -> Option<OperationId> {
        let mut marks: BTreeMap<u64, Mark> = BTreeMap::new();
        let all = self.answers.values().flat_map(|answer| &answer.history);
        let differing = all.filter_map(|mark| {
            let operation = mark.near(self.operation.0);
            let known = *marks.entry(operation).or_insert(*mark);
            (known != *mark).then_some(OperationId(operation))
        });
        differing.min()
    }

    /// What the answers mean; `None` where it is only slow. A rank without an answer is silent; where the rank that relays answers
    /// is, nothing is known of the others.
    pub(super) fn verdict(self, ranks: u32, waited: Span, relay: Option<Rank>) -> Option<Failure> {
        let sides = self.sides();
        if sides.len() > 1 {
            return Some(Failure::Mismatch(self.mismatch(sides)));
        }
        if self.is_doubt {
            return None;
        }
        let mut missing: Vec<_> =
            (0..ranks).filter_map(|rank| Some((Rank(rank), self.missing(rank)?))).collect();
        if let Some(relay) = relay.filter(|relay| !self.answers.contains_key(&relay.0)) {
            missing.retain(|(rank, seen)| *rank == relay || *seen != LastSeen::Silent);
        }
        // A rank that waits in another communicator is blocked by others: it is a culprit only if no other rank is missing.
        let (held_up, absent): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(rank, _)| self.waits_elsewhere(*rank));
        let (held_up, missing) = if absent.is_empty() { (Vec::new(), held_up) } else { (held_up, absent) };
        let is_held_up = |rank: u32| held_up.iter().any(|(one, _)| one.0 == rank);
        let entered = |(rank, answer): (&u32, &Answer)| match &answer.standing {
            Standing::Entered { waits, .. } | Standing::Behind { waits, .. } => {
                Some((Rank(*rank), waits.clone()))
            }
            _ => is_held_up(*rank).then(|| (Rank(*rank), Vec::new())),
        };
        let waits: Vec<_> = self.answers.iter().filter_map(entered).collect();
        let signature = sides.into_iter().next().expect("who asks has entered it").0;
        if missing.is_empty() {
            let moves = |answer: &Answer| match &answer.standing {
                Standing::Entered { idle, .. } | Standing::Behind { idle, .. } => *idle < self.patience,
                _ => false,
            };
            let is_slow = self.answers.values().any(moves);
            return (!is_slow).then_some(Failure::Stuck(StuckError { signature, since: waited, waits }));
        }
        let waiting = waits.into_iter().map(|(rank, _)| rank).collect();
        Some(Failure::Missing(MissingError { signature, missing, waiting, since: waited }))
    }

    /// Whether all ranks that are missing wait for calls of other communicators: what is wrong is there, and will be known.
    pub(super) fn is_held_up(&self, ranks: u32) -> bool {
        let mut missing = (0..ranks).filter(|rank| self.missing(*rank).is_some()).peekable();
        let is_any = missing.peek().is_some();
        is_any
            && !self.is_doubt
            && self.sides().len() < 2
            && missing.all(|rank| self.waits_elsewhere(Rank(rank)))
    }

    /// The different signatures, each with its ranks, the most common first.
    fn sides(&self) -> Vec<(Shared, Vec<Rank>)> {
        let mut sides: Vec<(Shared, Vec<Rank>)> = Vec::new();
        for (rank, answer) in &self.answers {
            let Some(signature) = &answer.signature else { continue };
            match sides.iter_mut().find(|(known, _)| known == signature) {
                Some((_, ranks)) => ranks.push(Rank(*rank)),
                None => sides.push((Arc::clone(signature), vec![Rank(*rank)])),
            }
        }
        sides.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
        sides
    }

    fn waits_elsewhere(&self, rank: Rank) -> bool {
        let standing = self.answers.get(&rank.0).map(|answer| &answer.standing);
        matches!(standing, Some(Standing::NotEntered { waits_elsewhere: true, .. }))
    }

    fn missing(&self, rank: u32) -> Option<LastSeen> {
        match self.answers.get(&rank).map(|answer| &answer.standing) {
            None => Some(LastSeen::Silent),
            Some(Standing::NotEntered { last: Some(last), ago, .. }) => {
                Some(LastSeen::Finished(Arc::clone(last), *ago))
            }
            Some(Standing::NotEntered { last: None, .. }) => Some(LastSeen::Nothing),
            Some(_) => None,
        }
    }

    fn mismatch(&self, sides: Vec<(Shared, Vec<Rank>)>) -> MismatchError {
        let mut differences: Vec<&'static str> = Vec::new();
        for (other, _) in &sides[1..] {
            for name in sides[0].0.differences(other) {
                if !differences.contains(&name) {
                    differences.push(name);
                }
            }
        }
        let entered = self.answers.iter().filter_map(|(rank, answer)| match &answer.standing {
            Standing::Entered { since, .. } => Some((Rank(*rank), *since)),
            _ => None,
        });
        let entered: Vec<_> = entered.collect();
        let first = entered.iter().map(|(_, since)| *since).max();
        let last = entered.iter().min_by_key(|(rank, since)| (*since, *rank));
        let last = last
            .zip(first)
            .map(|((rank, since), first)| (*rank, Span::from_ps(first.as_ps() - since.as_ps())));
        let is_absent = |answer: &Answer| {
            matches!(answer.standing, Standing::NotEntered { .. } | Standing::Behind { .. })
        };
        let absent = self.answers.iter().filter(|(_, answer)| is_absent(answer)).map(|(rank, _)| Rank(*rank));
        MismatchError { operation: self.operation, differences, last, absent: absent.collect(), sides }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Call, Choice, Collective, Protocol, Wiring, build};

    #[test]
    fn a_rank_that_waits_in_another_communicator_is_blamed_only_if_nobody_else_is_missing() {
        let call = Call::new(Collective::AllReduce, 64);
        let choice = Choice::new(Algorithm::Ring, Protocol::Simple);
        let schedule = build(&call, &choice, &Wiring::flat(3)).expect("a ring of three");
        let asked = OperationId(0);
        let idle = Span::from_secs(8);
        let blamed = |answers: &[(u32, bool)]| {
            let mut asking = Asking::new(asked, Time::ZERO, Span::from_secs(6));
            let standing = Standing::Entered { since: idle, idle, waits: Vec::new() };
            let signature = Some(Arc::new(Signature::new(asked, &schedule)));
            asking.take(1, Answer { signature, standing, history: Vec::new() });
            for (rank, waits_elsewhere) in answers {
                let waits_elsewhere = *waits_elsewhere;
                let standing = Standing::NotEntered { last: None, ago: idle, waits_elsewhere };
                asking.take(*rank, Answer { signature: None, standing, history: Vec::new() });
            }
            let failure = asking.verdict(3, idle, None).expect("ranks are missing");
            (failure.culprits(), failure.to_string().contains("ranks 0, 1 wait."))
        };
        // Rank 2 is silent, or computes, or waits for somebody as well.
        assert_eq!(blamed(&[(0, true)]), (vec![Rank(2)], true));
        assert_eq!(blamed(&[(0, true), (2, false)]), (vec![Rank(2)], true));
        assert_eq!(blamed(&[(0, true), (2, true)]), (vec![Rank(0), Rank(2)], false));
        assert_eq!(blamed(&[(0, false), (2, false)]), (vec![Rank(0), Rank(2)], false));
    }

    #[test]
    fn nobody_is_blamed_for_answers_that_a_silent_rank_does_not_relay() {
        let call = Call::new(Collective::AllReduce, 64);
        let choice = Choice::new(Algorithm::Ring, Protocol::Simple);
        let schedule = build(&call, &choice, &Wiring::flat(4)).expect("a ring of four");
        let idle = Span::from_secs(8);
        let blamed = |answering: &[u32], relay: Option<Rank>| {
            let mut asking = Asking::new(OperationId(0), Time::ZERO, Span::from_secs(6));
            for rank in answering {
                let signature = Some(Arc::new(Signature::new(OperationId(0), &schedule)));
                let standing = Standing::Entered { since: idle, idle, waits: Vec::new() };
                asking.take(*rank, Answer { signature, standing, history: Vec::new() });
            }
            asking.verdict(4, idle, relay).expect("ranks are missing").culprits()
        };
        assert_eq!(blamed(&[1], Some(Rank(0))), [Rank(0)]);
        assert_eq!(blamed(&[0, 1], Some(Rank(0))), [Rank(2), Rank(3)]);
        assert_eq!(blamed(&[1], None), [Rank(0), Rank(2), Rank(3)]);
    }

    #[test]
    fn a_rank_that_a_silent_one_holds_up_in_an_earlier_call_is_not_blamed() {
        let call = Call::new(Collective::AllReduce, 64);
        let choice = Choice::new(Algorithm::Ring, Protocol::Simple);
        let schedule = build(&call, &choice, &Wiring::flat(3)).expect("a ring of three");
        let asked = OperationId(1);
        let signature = Some(Arc::new(Signature::new(asked, &schedule)));
        let (idle, waits) = (Span::from_secs(8), Vec::new());
        let entered = Standing::Entered { since: idle, idle, waits: waits.clone() };
        let mut asking = Asking::new(asked, Time::ZERO, Span::from_secs(6));
        asking.take(1, Answer { signature, standing: entered, history: Vec::new() });
        let behind = Standing::Behind { idle, waits };
        asking.take(0, Answer { signature: None, standing: behind, history: Vec::new() });
        let failure = asking.verdict(3, idle, None).expect("rank 2 is silent");
        assert_eq!(failure.culprits(), [Rank(2)]);
        assert!(
            failure
                .to_string()
                .starts_with("rank 2 does not answer in AllReduce #1 for 8 s; ranks 0, 1 wait.")
        );
    }
}
