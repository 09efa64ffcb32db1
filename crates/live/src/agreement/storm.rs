//! A simulated adversary for [`Agreement`]: it kills, stops, delays and partitions 2 to 16 ranks, all from one seed.
//!
//! Ranks that agree then meet again, and agree once more where one of them has died meanwhile, as
//! [`crate::Communicator::rebuild_without`] has it. Each run checks what must hold whatever happens:
//!
//! - every generation has one membership, and it is a quorum of the one before;
//! - no rank waits past its timeout;
//! - no rank is excluded that was there and answered in time;
//! - where the ranks to which nothing happens are a quorum, all of them continue together;
//! - where ranks only die, those that are left continue or find that they are no quorum, and never run into their timeout.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use railnet_core::{Fold, Random, RunDigest, Span, Time};

use super::{Agreement, Config, Decision, Message, Outcome, Quorum};

/// How long ranks wait for each other; all other times are parts and multiples of it.
const TIMEOUT: Span = Span::from_secs(1);
/// The longest delay of a message where links are not slow.
const DELAY: Span = Span::from_ms(20);
/// How often a rank that has agreed looks whether all members have.
const MEETING_POLL: Span = Span::from_ms(50);
/// How long ranks that have agreed wait for each other to meet.
const MEETING_TIMEOUT: Span = Span::from_secs(4);
/// Events of one run at most: pings of 16 ranks for the longest time take a fraction of it.
const EVENTS_MAX: usize = 2_000_000;

/// What the adversary did in a run in which all invariants held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Story {
    /// Ranks.
    pub ranks: u32,
    /// Ranks that died.
    pub deaths: u32,
    /// Ranks that were stopped for a while.
    pub stops: u32,
    /// Whether the network was partitioned.
    pub is_partitioned: bool,
    /// Agreements that came to a decision, one after the other.
    pub generations: u32,
    /// Ranks of the last membership.
    pub members: u32,
    /// Messages that were sent.
    pub messages: u64,
    /// Equal runs have it in common.
    pub digest: RunDigest,
}

/// A run that broke an invariant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("seed {seed}: {what}")]
pub struct Violation {
    /// The seed that repeats it.
    pub seed: u64,
    /// The invariant, and the rank.
    pub what: String,
}

/// Runs the agreements of 2 to 16 ranks against the adversary of this seed.
pub fn run(seed: u64) -> Result<Story, Violation> {
    World::new(seed).finish().map_err(|what| Violation { seed, what })
}

/// What happens to a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// It enters its next agreement.
    Enter,
    Die,
    Timer,
    /// It learns that another one refuses connections.
    Refused(u32),
    /// A message, by its number.
    Arrive(usize),
    /// It looks whether all members have agreed, as a rendezvous does.
    Meet,
}

/// A message on its way: of which generation, from whom.
struct Letter {
    generation: usize,
    from: u32,
    message: Message,
}

/// How it ended for a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    /// It is a member of this generation, and so are all other members.
    Continues(usize),
    Excluded,
    NoQuorum,
    TimedOut,
}

struct Peer {
    /// The memberships it knows: the first is of all ranks. The agreement that it is in is about the last.
    memberships: Vec<Vec<u32>>,
    machine: Option<Agreement>,
    enters: Time,
    dies: Time,
    /// While it is stopped it does nothing; it does it afterwards.
    stopped: Option<(Time, Time)>,
    side: bool,
    /// The adversary does nothing to it: it must not be excluded.
    is_sound: bool,
    known: BTreeSet<u32>,
    timer: Time,
    meets_until: Time,
    end: Option<End>,
}

impl Peer {
    fn generation(&self) -> usize {
        self.memberships.len() - 1
    }

    fn membership(&self) -> &[u32] {
        self.memberships.last().expect("it begins with one")
    }

    /// The number of a rank in the membership that it agrees about.
    fn local(&self, rank: u32) -> Option<u32> {
        self.membership().iter().position(|one| *one == rank).map(|index| index as u32)
    }
}

struct World {
    random: Random,
    quorum: Quorum,
    peers: Vec<Peer>,
    partition: Option<(Time, Time)>,
    has_slow_links: bool,
    /// Ranks die, and nothing else happens.
    has_only_deaths: bool,
    leaves: bool,
    calendar: BinaryHeap<Reverse<(Time, u64, u32, Event)>>,
    sequence: u64,
    letters: Vec<Option<Letter>>,
    /// The decision of each generation.
    decisions: Vec<Decision>,
    /// The generation whose members have met.
    met: Option<usize>,
    digest: Fold,
}

fn instant(random: &mut Random, most: Span) -> Time {
    Time::ZERO + Span::from_ps(random.below(most.as_ps()))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::stream(seed, "agreement", 0);
        let size = random.between(2, 16) as u32;
        let mut chance = |percent: u64| random.below(100) < percent;
        let (stops, lates, splits, slow, leaves) =
            (chance(30), chance(20), chance(30), chance(20), chance(70));
        let is_fixed = chance(10);
        let quorum = if is_fixed {
            Quorum::AtLeast(random.between(u64::from(size / 2 + 1), u64::from(size)) as u32)
        } else {
            Quorum::Majority
        };
        let deaths = random.below(u64::from(size)) as usize;
        let mut doomed: Vec<u32> = (0..size).collect();
        shuffle(&mut doomed, &mut random);
        doomed.truncate(deaths);
        let partition = splits.then(|| {
            let from = instant(&mut random, TIMEOUT);
            (from, from + Span::from_ps(random.below(TIMEOUT.as_ps() * 6)))
        });
        let mut peers = Vec::new();
        for rank in 0..size {
            // Half of those that die do so before the agreement begins: that is why there is one.
            let dies = match (doomed.contains(&rank), random.below(2)) {
                (false, _) => Time::NEVER,
                (true, 0) => Time::ZERO,
                (true, _) => instant(&mut random, TIMEOUT * 2),
            };
            let is_late = lates && random.below(4) == 0;
            let enters = instant(&mut random, if is_late { TIMEOUT * 3 } else { TIMEOUT / 4 });
            let stopped = (stops && random.below(4) == 0).then(|| {
                let from = instant(&mut random, TIMEOUT);
                (from, from + Span::from_ps(random.below(TIMEOUT.as_ps() * 5)))
            });
            let is_sound = dies == Time::NEVER && !is_late && stopped.is_none() && !splits && !slow;
            peers.push(Peer {
                memberships: vec![(0..size).collect()],
                machine: None,
                enters,
                dies,
                stopped,
                side: random.below(2) == 0,
                is_sound,
                known: BTreeSet::new(),
                timer: Time::NEVER,
                meets_until: Time::NEVER,
                end: None,
            });
        }
        let dead: Vec<u32> = (0..size).filter(|rank| peers[*rank as usize].dies == Time::ZERO).collect();
        for peer in &mut peers {
            peer.known = dead.iter().copied().filter(|_| random.below(2) == 0).collect();
        }
        let mut this = Self {
            random,
            quorum,
            peers,
            partition,
            has_slow_links: slow,
            has_only_deaths: !stops && !lates && !splits && !slow,
            leaves,
            calendar: BinaryHeap::new(),
            sequence: 0,
            letters: Vec::new(),
            decisions: Vec::new(),
            met: None,
            digest: Fold::new(),
        };
        for rank in 0..size {
            let Peer { enters, dies, .. } = this.peers[rank as usize];
            this.schedule(enters, rank, Event::Enter);
            if dies != Time::NEVER {
                this.schedule(dies, rank, Event::Die);
            }
        }
        this
    }

    fn schedule(&mut self, at: Time, rank: u32, event: Event) {
        self.sequence += 1;
        self.calendar.push(Reverse((at, self.sequence, rank, event)));
    }

    fn finish(mut self) -> Result<Story, String> {
        for _ in 0..EVENTS_MAX {
            let Some(Reverse((now, _, rank, event))) = self.calendar.pop() else { return self.verdict() };
            let peer = &self.peers[rank as usize];
            if peer.dies <= now && event != Event::Die {
                continue;
            }
            if let Some((from, to)) = peer.stopped
                && (from..to).contains(&now)
                && event != Event::Die
            {
                self.schedule(to, rank, event);
                continue;
            }
            self.handle(now, rank, event)?;
        }
        Err(format!("the run has not ended after {EVENTS_MAX} events"))
    }

    fn handle(&mut self, now: Time, rank: u32, event: Event) -> Result<(), String> {
        let peer = &mut self.peers[rank as usize];
        match event {
            Event::Enter => self.enter(now, rank),
            Event::Die => {
                let others = (0..self.peers.len() as u32).filter(|other| *other != rank);
                others.for_each(|other| self.refuse(now, other, rank));
            }
            Event::Timer => match &mut peer.machine {
                Some(machine) if machine.poll_timeout().is_some_and(|due| due <= now) => {
                    machine.handle_timeout(now);
                }
                _ => {}
            },
            Event::Refused(other) => {
                peer.known.insert(other);
                if let (Some(local), Some(machine)) = (peer.local(other), &mut peer.machine) {
                    machine.report_gone(now, local);
                }
            }
            Event::Arrive(number) => self.arrive(now, rank, number),
            Event::Meet => self.meet(now, rank),
        }
        self.transmit(now, rank);
        self.conclude(now, rank)
    }

    fn enter(&mut self, now: Time, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if peer.machine.is_some() || peer.end.is_some() {
            return;
        }
        peer.enters = now;
        let size = peer.membership().len() as u32;
        let local = peer.local(rank).expect("a rank that is excluded enters no further agreement");
        let known: Vec<u32> = peer.known.iter().filter_map(|other| peer.local(*other)).collect();
        let config = Config { quorum: self.quorum, ..Config::new(local, size, TIMEOUT) };
        peer.machine = Some(Agreement::new(config, &known, !(1 << rank), now));
        // A connection to a rank that is gone is refused, unless its whole host is unreachable.
        let dead: Vec<u32> =
            (0..self.peers.len() as u32).filter(|other| self.peers[*other as usize].dies <= now).collect();
        for other in dead {
            self.refuse(now, rank, other);
        }
    }

    fn arrive(&mut self, now: Time, rank: u32, number: usize) {
        let Some(letter) = &self.letters[number] else { return };
        let peer = &mut self.peers[rank as usize];
        let is_early = letter.generation > peer.generation()
            || (letter.generation == peer.generation() && peer.machine.is_none());
        if peer.end.is_some() && is_early {
            return;
        }
        if is_early {
            // The sender connects again until this rank has entered.
            return self.schedule(now + DELAY, rank, Event::Arrive(number));
        }
        if letter.generation < peer.generation() {
            // This rank has left that agreement; a driver that serves late ranks repeats the decision.
            if !self.leaves
                && !matches!(letter.message, Message::Decided(_))
                && let Some(decision) = self.decisions.get(letter.generation).cloned()
            {
                let (generation, from) = (letter.generation, letter.from);
                self.post(
                    now,
                    rank,
                    from,
                    Letter { generation, from: rank, message: Message::Decided(decision) },
                );
            }
            return;
        }
        let (Some(local), Some(machine)) = (peer.local(letter.from), &mut peer.machine) else { return };
        if let Some(letter) = self.letters[number].take() {
            machine.receive(now, local, letter.message);
        }
    }

    /// What a rank does when its agreement is over.
    fn conclude(&mut self, now: Time, rank: u32) -> Result<(), String> {
        let peer = &mut self.peers[rank as usize];
        let Some(machine) = &peer.machine else { return Ok(()) };
        let Some(outcome) = machine.outcome().cloned() else {
            let stopped = peer.stopped.map_or(Span::ZERO, |(from, to)| to - from);
            if now > peer.enters + TIMEOUT * 4 + stopped {
                return Err(format!("rank {rank} waits at {now}, past its timeout"));
            }
            return Ok(());
        };
        peer.machine = None;
        let end = match outcome {
            Outcome::Agreed(decision) => {
                let membership: Vec<u32> = (0..)
                    .zip(peer.membership())
                    .filter(|(local, _)| !decision.failed.contains(local))
                    .map(|(_, rank)| *rank)
                    .collect();
                let generation = peer.generation();
                peer.memberships.push(membership);
                peer.meets_until = now + MEETING_TIMEOUT;
                self.schedule(now, rank, Event::Meet);
                return self.decided(rank, generation, decision);
            }
            Outcome::Excluded(decision) => {
                let generation = peer.generation();
                peer.end = Some(End::Excluded);
                return self.decided(rank, generation, decision);
            }
            Outcome::NoQuorum(_) => End::NoQuorum,
            Outcome::TimedOut(_) => End::TimedOut,
        };
        peer.end = Some(end);
        Ok(())
    }

    /// Checks a decision, and that it is the only one of its generation.
    fn decided(&mut self, rank: u32, generation: usize, decision: Decision) -> Result<(), String> {
        if let Some(other) = self.decisions.get(generation) {
            if *other != decision {
                return Err(format!(
                    "rank {rank} has {decision:?} in generation {generation}, another {other:?}"
                ));
            }
            return Ok(());
        }
        let membership = &self.peers[rank as usize].memberships[generation];
        let size = membership.len() as u32;
        for local in &decision.failed {
            let failed = membership[*local as usize];
            let peer = &self.peers[failed as usize];
            // A rank that found no quorum has left by itself.
            if peer.is_sound && peer.end.is_none() {
                return Err(format!("rank {failed} answered in time and is excluded: {decision:?}"));
            }
        }
        let members: BTreeSet<u32> = (0..size).filter(|local| !decision.failed.contains(local)).collect();
        if !self.quorum.is_met(&members, size) {
            return Err(format!("{members:?} of {size} continue in generation {generation}"));
        }
        self.decisions.push(decision);
        Ok(())
    }

    /// The rendezvous of those that have agreed: it is complete once all wait in it, and fails where one has died or left it.
    fn meet(&mut self, now: Time, rank: u32) {
        let peer = &self.peers[rank as usize];
        if peer.end.is_some() || peer.machine.is_some() {
            return;
        }
        let (generation, members) = (peer.generation(), peer.membership().to_vec());
        let of = |member: &u32| &self.peers[*member as usize];
        let waits = |member: &u32| {
            of(member).generation() == generation && of(member).machine.is_none() && of(member).end.is_none()
        };
        let is_dead = |member: &u32| of(member).dies <= now;
        if self.met == Some(generation) || members.iter().all(|member| waits(member) && !is_dead(member)) {
            self.met = Some(generation);
            self.peers[rank as usize].end = Some(End::Continues(generation));
            // A member that dies later is another failure.
            for member in members {
                let peer = &mut self.peers[member as usize];
                peer.dies = if peer.dies > now { Time::NEVER } else { peer.dies };
            }
            return;
        }
        // Whoever has left the rendezvous, or ended before it, refuses connections; the others restart.
        let has_ended = |member: &u32| of(member).generation() < generation && of(member).end.is_some();
        let has_restarted = |member: &u32| {
            of(member).generation() > generation
                || of(member).generation() == generation && of(member).machine.is_some()
        };
        let is_missing = |member: &u32| now >= peer.meets_until && of(member).generation() < generation;
        let failed: Vec<u32> = members
            .iter()
            .copied()
            .filter(|member| is_dead(member) || has_ended(member) || is_missing(member))
            .collect();
        if failed.is_empty() && now < peer.meets_until && !members.iter().any(has_restarted) {
            self.schedule(now + MEETING_POLL, rank, Event::Meet);
            return;
        }
        self.peers[rank as usize].known.extend(failed);
        self.schedule(now, rank, Event::Enter);
    }

    /// Has a rank learn, soon or never, that another one refuses connections.
    fn refuse(&mut self, now: Time, rank: u32, gone: u32) {
        if self.random.below(5) > 0 && !self.is_cut(now, rank, gone) {
            let delay = Span::from_ps(self.random.below(DELAY.as_ps()));
            self.schedule(now + delay, rank, Event::Refused(gone));
        }
    }

    fn is_cut(&self, now: Time, one: u32, other: u32) -> bool {
        let differ = self.peers[one as usize].side != self.peers[other as usize].side;
        differ && self.partition.is_some_and(|(from, to)| (from..to).contains(&now))
    }

    fn post(&mut self, now: Time, from: u32, to: u32, letter: Letter) {
        // What a partition swallows is lost with its connection.
        if self.is_cut(now, from, to) {
            return;
        }
        let most = if self.has_slow_links && self.random.below(20) == 0 { TIMEOUT * 3 } else { DELAY };
        let delay = Span::from_ps(1 + self.random.below(most.as_ps()));
        self.letters.push(Some(letter));
        let number = self.letters.len() - 1;
        self.schedule(now + delay, to, Event::Arrive(number));
    }

    fn transmit(&mut self, now: Time, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        let generation = peer.generation();
        let Some(machine) = &mut peer.machine else { return };
        let mut outgoing = Vec::new();
        while let Some(sent) = machine.poll_transmit() {
            outgoing.push(sent);
        }
        if let Some(due) = machine.poll_timeout()
            && peer.timer != due
        {
            peer.timer = due;
            self.schedule(due, rank, Event::Timer);
        }
        for (to, message) in outgoing {
            let message = Message::read(&message.write()).expect("what is written can be read");
            let to = self.peers[rank as usize].membership()[to as usize];
            self.post(now, rank, to, Letter { generation, from: rank, message });
        }
    }

    fn verdict(mut self) -> Result<Story, String> {
        let mut last: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (rank, peer) in (0_u32..).zip(&self.peers) {
            if peer.end.is_none() && peer.dies == Time::NEVER {
                return Err(format!("rank {rank} never ends"));
            }
            if self.has_only_deaths && peer.end == Some(End::TimedOut) {
                return Err(format!("rank {rank} waits for its timeout, where ranks have only died"));
            }
            if let Some(End::Continues(generation)) = peer.end {
                last.entry(generation).or_default().push(rank);
            }
        }
        if last.len() > 1 {
            return Err(format!("ranks continue in several generations: {last:?}"));
        }
        let sound: BTreeSet<u32> =
            (0..).zip(&self.peers).filter(|(_, peer)| peer.is_sound).map(|(rank, _)| rank).collect();
        // Sound ranks that are a quorum continue, whatever the others do.
        let size = self.peers.len() as u32;
        if self.quorum.is_met(&sound, size)
            && let Some(rank) =
                sound.iter().find(|rank| !matches!(self.peers[**rank as usize].end, Some(End::Continues(_))))
        {
            let end = &self.peers[*rank as usize].end;
            return Err(format!("rank {rank} is one of {sound:?} and does not continue: {end:?}"));
        }
        for peer in &self.peers {
            let text = format!("{:?} {:?}", peer.end, peer.memberships);
            text.bytes().for_each(|byte| self.digest.push(u64::from(byte)));
        }
        Ok(Story {
            ranks: size,
            deaths: self.peers.iter().filter(|peer| peer.dies != Time::NEVER).count() as u32,
            stops: self.peers.iter().filter(|peer| peer.stopped.is_some()).count() as u32,
            is_partitioned: self.partition.is_some(),
            generations: self.decisions.len() as u32,
            members: last.values().next().map_or(0, |ranks| ranks.len() as u32),
            messages: self.letters.len() as u64,
            digest: RunDigest::from_u128(self.digest.finish_wide()),
        })
    }
}

/// Fisher and Yates.
fn shuffle(ranks: &mut [u32], random: &mut Random) {
    for last in (1..ranks.len()).rev() {
        ranks.swap(last, random.below(last as u64 + 1) as usize);
    }
}
