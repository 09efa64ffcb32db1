//! Agreement on which ranks have failed: the survivors settle on one set, and only a quorum of them goes on.
//!
//! [`Agreement`] is single-decree Paxos (Lamport, *The Part-Time Parliament*, 1998) as a function of its state, an input and the time. Every
//! rank of the previous membership is an acceptor. The leader is the lowest rank that is not suspected; it collects what all others know,
//! and proposes the union: ranks that were reported failed, that refuse connections, or that were silent for the timeout. Where the leader
//! fails meanwhile, the next one takes over with a higher ballot, and a value that a quorum may have accepted is kept. Any two quorums have
//! a rank in common, so that two halves of a partitioned network never both go on.
//!
//! Two drivers feed it: `mesh` over TCP, and [`storm`], a simulated adversary that kills, stops, partitions and delays ranks.
//!
//! ```
//! use railnet_core::{Span, Time};
//! use railnet_live::agreement::{Agreement, Config, Outcome};
//!
//! // Rank 0 of two, whose peer has failed: half of the ranks, with the lowest among them, go on.
//! let config = Config::new(0, 2, Span::from_secs(1));
//! let mut agreement = Agreement::new(config, &[1], u64::MAX, Time::ZERO);
//! let Some(Outcome::Agreed(decision)) = agreement.outcome() else { panic!("nobody else is to be asked") };
//! assert_eq!(decision.failed, [1].into());
//! ```

pub(crate) mod mesh;
mod message;
pub mod storm;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use railnet_core::{Span, Time};

pub use message::{Ballot, Decision, Vote};

/// Pings per silence that would be noticed.
const PINGS: u64 = 4;

/// How many ranks of the previous membership have to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Quorum {
    /// More than half, or exactly half with the lowest previous rank among them: two groups can never both go on.
    #[default]
    Majority,
    /// So many, at least one. Below a majority, both sides of a partitioned network may go on: the program has to know that only one can.
    AtLeast(u32),
}

impl std::str::FromStr for Quorum {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "majority" { Ok(Self::Majority) } else { text.parse().map(Self::AtLeast) }
    }
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Majority => f.write_str("a majority, or half of them with the lowest rank"),
            Self::AtLeast(least) => write!(f, "at least {}", least.max(&1)),
        }
    }
}

impl Quorum {
    /// Whether these ranks, of so many, are enough.
    pub fn is_met(self, ranks: &BTreeSet<u32>, size: u32) -> bool {
        let count = ranks.len() as u32;
        match self {
            Self::Majority => 2 * count > size || (2 * count == size && ranks.contains(&0)),
            Self::AtLeast(least) => count >= least.max(1),
        }
    }
}

/// Who agrees, and how long ranks are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// This rank.
    pub rank: u32,
    /// Ranks of the previous membership.
    pub size: u32,
    /// How many have to go on.
    pub quorum: Quorum,
    /// How long a rank may take to enter the agreement.
    pub enter_timeout: Span,
    /// How long a rank that has entered may be silent.
    pub silence_timeout: Span,
    /// After how long this rank gives up.
    pub timeout: Span,
}

impl Config {
    /// A majority; ranks enter within the timeout, and all is over after four times that.
    pub fn new(rank: u32, size: u32, timeout: Span) -> Self {
        let quorum = Quorum::Majority;
        Self { rank, size, quorum, enter_timeout: timeout, silence_timeout: timeout, timeout: timeout * 4 }
    }
}

/// How an agreement ended for this rank.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// All that go on have this decision, and this rank is among them.
    Agreed(Decision),
    /// The others go on without this rank.
    Excluded(Decision),
    /// Too few ranks are left: those that answered, this one included.
    NoQuorum(BTreeSet<u32>),
    /// Nothing came of it within the timeout; these ranks answered.
    TimedOut(BTreeSet<u32>),
}

/// One message between two ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Message {
    /// Still here.
    Ping,
    /// A leader asks for votes: no lower ballot is accepted from now on.
    Prepare(Ballot),
    /// The answer: what was accepted before, what is known, and the rank's flags.
    Promise(Ballot, Vote),
    /// A leader proposes a decision.
    Accept(Ballot, Decision),
    /// It was accepted.
    Accepted(Ballot),
    /// A higher ballot was promised.
    Rejected(Ballot),
    /// A quorum has accepted this.
    Decided(Decision),
    /// The sender gives up: only these ranks answered.
    NoQuorum(BTreeSet<u32>),
}

/// What a leader is at.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Role {
    Acceptor,
    Preparing { ballot: Ballot, votes: BTreeMap<u32, Vote> },
    Accepting { ballot: Ballot, decision: Decision, accepted: BTreeSet<u32> },
}

/// One rank's part in an agreement.
///
/// After each input, drain [`Agreement::poll_transmit`], look at [`Agreement::outcome`], and wait until [`Agreement::poll_timeout`].
#[derive(Clone, Debug)]
pub struct Agreement {
    config: Config,
    began: Time,
    /// When a rank that was never heard counts as failed.
    enter_by: Time,
    flags: u64,
    /// Reported, by the program or by a refused connection.
    failed: BTreeSet<u32>,
    /// Ranks that answered, found no quorum and left.
    left: BTreeSet<u32>,
    /// When each rank was last heard.
    heard: BTreeMap<u32, Time>,
    promised: Ballot,
    accepted: Option<(Ballot, Decision)>,
    role: Role,
    /// When a leader that was outbid may bid again.
    bids_from: Time,
    next_ping: Time,
    outgoing: VecDeque<(u32, Message)>,
    outcome: Option<Outcome>,
}

impl Agreement {
    /// Enters an agreement, with the ranks that are known to have failed and this rank's flags, of which the decision has the bitwise AND.
    pub fn new(config: Config, failed: &[u32], flags: u64, now: Time) -> Self {
        assert!(config.rank < config.size, "a rank of the membership");
        let mut this = Self {
            config,
            began: now,
            enter_by: now + config.enter_timeout,
            flags,
            failed: failed.iter().copied().filter(|rank| *rank < config.size).collect(),
            left: BTreeSet::new(),
            heard: BTreeMap::new(),
            promised: Ballot::default(),
            accepted: None,
            role: Role::Acceptor,
            bids_from: now,
            next_ping: now,
            outgoing: VecDeque::new(),
            outcome: None,
        };
        this.handle_timeout(now);
        this
    }

    /// A message has arrived.
    pub fn receive(&mut self, now: Time, from: u32, message: Message) {
        if from >= self.config.size || from == self.config.rank {
            return;
        }
        self.excuse_own_stall(now);
        self.heard.insert(from, now);
        if let Some(outcome) = &self.outcome {
            // Whoever asks after the decision missed it.
            if let (Outcome::Agreed(decision) | Outcome::Excluded(decision), false) =
                (outcome, matches!(message, Message::Decided(_) | Message::NoQuorum(_)))
            {
                self.outgoing.push_back((from, Message::Decided(decision.clone())));
            }
            return;
        }
        match message {
            Message::Ping => {}
            Message::Prepare(ballot) => self.promise(from, ballot),
            Message::Accept(ballot, decision) => self.accept(from, ballot, decision),
            Message::Promise(ballot, vote) => {
                if let Role::Preparing { ballot: own, votes } = &mut self.role
                    && *own == ballot
                {
                    votes.insert(from, vote);
                }
            }
            Message::Accepted(ballot) => {
                if let Role::Accepting { ballot: own, accepted, .. } = &mut self.role
                    && *own == ballot
                {
                    accepted.insert(from);
                }
            }
            Message::Rejected(ballot) => self.step_back(now, ballot),
            Message::Decided(decision) => self.decide(decision),
            Message::NoQuorum(voters) => {
                // The sender has left. Those who have nobody else to wait for leave as well.
                let unsuspected = self.unsuspected(now);
                self.failed.insert(from);
                self.left.insert(from);
                if unsuspected.is_subset(&voters) {
                    return self.give_up(&voters);
                }
            }
        }
        self.advance(now);
    }

    /// A rank is gone: its host refuses connections to it.
    pub fn report_gone(&mut self, now: Time, rank: u32) {
        if rank != self.config.rank && self.failed.insert(rank) {
            self.advance(now);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.outcome.is_some() {
            return;
        }
        self.excuse_own_stall(now);
        if now >= self.next_ping {
            self.next_ping = now + self.ping_interval();
            self.say_again();
        }
        self.advance(now);
        if self.outcome.is_none() && now >= self.began + self.config.timeout {
            self.outcome = Some(Outcome::TimedOut(self.answered()));
        }
    }

    /// The next message to send, and to whom.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<(u32, Message)> {
        self.outgoing.pop_front()
    }

    /// When [`Agreement::handle_timeout`] is due; never after the outcome.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.outcome.is_some() {
            return None;
        }
        // Silence is noticed with the pings.
        Some(self.next_ping.min(self.began + self.config.timeout))
    }

    /// How it ended.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The ranks that are neither known to have failed nor silent for their timeout: whom this rank waits for or goes on with.
    pub fn unsuspected(&self, now: Time) -> BTreeSet<u32> {
        (0..self.config.size).filter(|rank| !self.is_suspected(*rank, now)).collect()
    }

    /// A rank that was itself stopped finds everybody silent: what they sent waits to be read. They get the time that it missed.
    fn excuse_own_stall(&mut self, now: Time) {
        let stall = now.since(self.next_ping);
        if stall > self.ping_interval() {
            self.heard.values_mut().for_each(|heard| *heard = (*heard + stall).min(now));
            self.enter_by += stall;
            self.next_ping = now;
        }
    }

    fn ping_interval(&self) -> Span {
        Span::from_ps((self.config.silence_timeout.as_ps() / PINGS).max(1))
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.config.rank;
        (0..self.config.size).filter(move |rank| *rank != own)
    }

    fn answered(&self) -> BTreeSet<u32> {
        self.heard.keys().copied().chain([self.config.rank]).collect()
    }

    /// When a rank has been silent for too long, as far as it was heard by now.
    fn silent_at(&self, rank: u32) -> Time {
        match self.heard.get(&rank) {
            Some(heard) => *heard + self.config.silence_timeout,
            None => self.enter_by,
        }
    }

    fn is_suspected(&self, rank: u32, now: Time) -> bool {
        rank != self.config.rank && (self.failed.contains(&rank) || now >= self.silent_at(rank))
    }

    fn promise(&mut self, from: u32, ballot: Ballot) {
        let answer = if ballot < self.promised {
            Message::Rejected(self.promised)
        } else {
            self.promised = ballot;
            Message::Promise(ballot, self.vote())
        };
        self.outgoing.push_back((from, answer));
    }

    fn vote(&self) -> Vote {
        Vote { accepted: self.accepted.clone(), failed: self.failed.clone(), flags: self.flags }
    }

    fn accept(&mut self, from: u32, ballot: Ballot, decision: Decision) {
        let answer = if ballot < self.promised {
            Message::Rejected(self.promised)
        } else {
            self.promised = ballot;
            self.accepted = Some((ballot, decision));
            Message::Accepted(ballot)
        };
        self.outgoing.push_back((from, answer));
    }

    /// Somebody else bids higher: it gets the time to finish, which differs from rank to rank.
    fn step_back(&mut self, now: Time, ballot: Ballot) {
        let own = match &self.role {
            Role::Acceptor => return,
            Role::Preparing { ballot, .. } | Role::Accepting { ballot, .. } => *ballot,
        };
        if ballot > own && self.outcome.is_none() {
            self.promised = self.promised.max(ballot);
            self.role = Role::Acceptor;
            self.bids_from = now + self.ping_interval() * u64::from(1 + self.config.rank);
        }
    }

    fn decide(&mut self, decision: Decision) {
        if self.outcome.is_some() {
            return;
        }
        for rank in self.others() {
            self.outgoing.push_back((rank, Message::Decided(decision.clone())));
        }
        let members: BTreeSet<u32> =
            (0..self.config.size).filter(|rank| !decision.failed.contains(rank)).collect();
        self.outcome = Some(if !self.config.quorum.is_met(&members, self.config.size) {
            Outcome::NoQuorum(members)
        } else if decision.failed.contains(&self.config.rank) {
            Outcome::Excluded(decision)
        } else {
            Outcome::Agreed(decision)
        });
    }

    fn give_up(&mut self, voters: &BTreeSet<u32>) {
        for rank in self.others() {
            self.outgoing.push_back((rank, Message::NoQuorum(voters.clone())));
        }
        self.outcome = Some(Outcome::NoQuorum(voters.union(&self.left).copied().collect()));
    }

    /// Does what the state and the time allow.
    fn advance(&mut self, now: Time) {
        if self.outcome.is_some() {
            return;
        }
        let unsuspected = self.unsuspected(now);
        let leads = unsuspected.first() == Some(&self.config.rank);
        if leads && self.role == Role::Acceptor && now >= self.bids_from {
            self.bid();
        }
        let (size, quorum) = (self.config.size, self.config.quorum);
        if let Role::Preparing { ballot, votes } = &self.role
            && unsuspected.iter().all(|rank| votes.contains_key(rank))
        {
            let voters: BTreeSet<u32> = votes.keys().copied().collect();
            if !quorum.is_met(&voters, size) {
                return self.give_up(&voters);
            }
            let (ballot, decision) = (*ballot, self.proposal(votes, &unsuspected));
            // The leader's own acceptance; a higher ballot that it promised meanwhile has the leader step back.
            if self.promised > ballot {
                return self.step_back(now, self.promised);
            }
            self.accepted = Some((ballot, decision.clone()));
            self.role = Role::Accepting { ballot, decision, accepted: [self.config.rank].into() };
            self.say_again();
        }
        if let Role::Accepting { decision, accepted, .. } = &self.role {
            if quorum.is_met(accepted, size) {
                self.decide(decision.clone());
            } else if unsuspected.is_subset(accepted) {
                // Ranks that voted have failed since: nobody is left who could make a quorum.
                let accepted = accepted.clone();
                self.give_up(&accepted);
            }
        }
    }

    /// Opens a ballot that is higher than all it has seen.
    fn bid(&mut self) {
        let ballot = Ballot { round: self.promised.round + 1, leader: self.config.rank };
        self.promised = ballot;
        let votes = [(self.config.rank, self.vote())].into();
        self.role = Role::Preparing { ballot, votes };
        for rank in self.others() {
            self.outgoing.push_back((rank, Message::Prepare(ballot)));
        }
    }

    /// The value of the highest ballot that was accepted, as Paxos has it; otherwise the union of what all know.
    fn proposal(&self, votes: &BTreeMap<u32, Vote>, unsuspected: &BTreeSet<u32>) -> Decision {
        let kept = votes.values().filter_map(|vote| vote.accepted.as_ref()).max_by_key(|(ballot, _)| *ballot);
        if let Some((_, decision)) = kept {
            return decision.clone();
        }
        let reported = votes.values().flat_map(|vote| vote.failed.iter().copied());
        let silent = self.others().filter(|rank| !unsuspected.contains(rank) && !votes.contains_key(rank));
        let failed: BTreeSet<u32> = reported.chain(silent).collect();
        let going_on = votes.iter().filter(|(rank, _)| !failed.contains(rank));
        let flags = going_on.fold(u64::MAX, |flags, (_, vote)| flags & vote.flags);
        Decision { failed, flags }
    }

    /// Repeats what was asked and not answered, and pings all others: messages may be lost with a connection.
    fn say_again(&mut self) {
        for rank in self.others() {
            let message = match &self.role {
                Role::Preparing { ballot, votes } if !votes.contains_key(&rank) => Message::Prepare(*ballot),
                Role::Accepting { ballot, decision, accepted } if !accepted.contains(&rank) => {
                    Message::Accept(*ballot, decision.clone())
                }
                _ => Message::Ping,
            };
            self.outgoing.push_back((rank, message));
        }
    }
}
