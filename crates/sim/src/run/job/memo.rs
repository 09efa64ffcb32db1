//! Memoised collectives: one that is identical to an earlier one, with nothing else in its way, is not sent again.
//!
//! This is about calls inside a server, which share nothing with those in other servers, and of which a job makes
//! thousands. When all ranks of a group have come, the times at which they came, from the first on, decide all that
//! follows, as long as nobody else uses their memory and links. So the first such call is carried out, and the ends of the
//! others follow from it: in this server or in one like it, at the same time or later.
//!
//! Nobody knows beforehand whether a call will be left alone. If something else begins where a call is that was taken from
//! memory, or whose ranks have not all come, that call is carried out after all, from its beginning, before anything else
//! happens: nobody has seen anything of it but ends that stay the same, so its past can still be run. The result is the
//! same to the picosecond as if all had been carried out.

mod session;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_fabric::BusResource;

use self::session::{Key, Phase, Recorded, Session};
use super::partitions::PartitionView;
use crate::run::collective::driven::{Footprint, Planned};

/// How many collectives there were, and how many of them were memo hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoCount {
    /// All that ranks said to each other.
    pub calls: u64,
    /// Those that were not carried out.
    pub hits: u64,
}

/// A communicator.
#[derive(Debug)]
struct Group {
    footprint: Footprint,
    first_member: u32,
    /// Ranks that make each call.
    callers: u32,
    /// Nothing of the calls that were carried out is left from then on.
    quiet: Time,
    /// Its calls that are not over, the oldest first. Where one is carried out, so are all before it.
    sessions: VecDeque<Session>,
}

impl Group {
    fn position(&self, number: u64) -> Option<usize> {
        self.sessions.iter().position(|session| session.number == number)
    }
}

/// What to do with a rank that comes to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    /// It makes its call.
    Start,
    /// It waits for the others; whether it makes its call is decided then.
    Hold,
    /// Others have to be brought up to now first: ask again after all else of this moment.
    Retry,
}

/// The memory of a run.
#[derive(Debug)]
pub(super) struct Memo {
    is_on: bool,
    groups: BTreeMap<u32, Group>,
    /// Groups with calls in each server.
    busy: BTreeMap<u32, Vec<u32>>,
    records: Vec<Recorded>,
    known: BTreeMap<Key, usize>,
    /// Calls for which all have come, by group and number.
    undecided: Vec<(u32, u64)>,
    /// Records in whose way something came.
    voided: Vec<usize>,
    /// Groups whose next call came too soon after one that was taken.
    hurried: Vec<u32>,
    /// Ends of calls that were taken: when, of which group, of which of its ranks, in which call.
    ends: BinaryHeap<Reverse<(Time, u32, u32, u64)>>,
    numbers: u64,
    count: MemoCount,
}

impl Memo {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            groups: BTreeMap::new(),
            busy: BTreeMap::new(),
            records: Vec::new(),
            known: BTreeMap::new(),
            undecided: Vec::new(),
            voided: Vec::new(),
            hurried: Vec::new(),
            ends: BinaryHeap::new(),
            numbers: 0,
            count: MemoCount::default(),
        }
    }

    /// One more communicator.
    pub(super) fn add(&mut self, communicator: u32, footprint: Footprint, first_member: u32, callers: u32) {
        let (quiet, sessions) = (Time::ZERO, VecDeque::new());
        self.groups.insert(communicator, Group { footprint, first_member, callers, quiet, sessions });
    }

    /// A rank comes to a call. `is_joint` says that nobody can be through before all have come.
    pub(super) fn enter<S: Sink>(
        &mut self,
        view: &mut PartitionView<'_, S>,
        (communicator, place): (u32, u32),
        planned: &Planned,
        is_joint: bool,
    ) -> Admission {
        self.close_quiet(view, communicator);
        let now = view.now();
        let group = &self.groups[&communicator];
        let next = group.sessions.iter().position(|session| !session.has(place));
        if next.is_none() {
            if self.make_way(view, communicator, now + planned.launch) {
                return Admission::Retry;
            }
            self.begin(view.now(), communicator, planned, is_joint);
        }
        let group = self.groups.get_mut(&communicator).expect("communicators are added when they are made");
        let index = next.unwrap_or(group.sessions.len() - 1);
        let session = &mut group.sessions[index];
        session.entries.push((place, now));
        let is_complete = session.entries.len() as u32 == group.callers;
        if is_complete && (matches!(session.phase, Phase::Held) || session.may_record) {
            self.undecided.push((communicator, session.number));
        }
        if matches!(session.phase, Phase::Held) {
            return Admission::Hold;
        }
        view.make_call(group.first_member + place, planned, now);
        Admission::Start
    }

    /// The first rank of a group comes to a call.
    fn begin(&mut self, now: Time, communicator: u32, planned: &Planned, is_joint: bool) {
        self.count.calls += 1;
        self.numbers += 1;
        let is_alone = self.others(communicator).next().is_none();
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        let could = self.is_on && is_joint && is_alone && group.footprint.bus.is_some();
        let active = now + planned.launch;
        let is_beside = group.sessions.iter().any(|session| matches!(session.phase, Phase::Real(_)));
        let phase =
            if could && !is_beside && active >= group.quiet { Phase::Held } else { Phase::Real(None) };
        let may_record = could && is_beside && matches!(phase, Phase::Real(_));
        if group.sessions.is_empty() {
            for server in &group.footprint.servers {
                self.busy.entry(*server).or_default().push(communicator);
            }
        }
        let callers = group.callers as usize;
        let ranks = planned.schedule.ranks as usize;
        group.sessions.push_back(Session {
            number: self.numbers,
            planned: planned.clone(),
            active,
            entries: Vec::with_capacity(callers),
            reported: vec![false; ranks],
            done: vec![false; ranks],
            phase,
            may_record,
            before: None,
            quiet: Time::NEVER,
        });
    }

    /// Ends what was taken, once nothing of it would be left, wherever this group is.
    fn close_quiet<S: Sink>(&mut self, view: &mut PartitionView<'_, S>, communicator: u32) {
        let servers = &self.groups[&communicator].footprint.servers;
        let others = servers.iter().filter_map(|server| self.busy.get(server)).flatten();
        let over: Vec<u32> = others
            .copied()
            .filter(|other| {
                let first = self.groups[other].sessions.front();
                first.is_some_and(|session| session.is_hit() && session.quiet <= view.now())
            })
            .collect();
        for other in over {
            self.close(view, other, view.now());
        }
    }

    /// Calls of a group that were taken and of which nothing would be left are over.
    fn close<S: Sink>(&mut self, view: &mut PartitionView<'_, S>, communicator: u32, by: Time) {
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        while let Some(session) = group.sessions.front()
            && let Phase::Hit(record, _) = session.phase
            && self.records[record].left == 0
            && session.quiet <= by
        {
            self.count.hits += 1;
            for (resource, more) in group.footprint.bus.iter().flatten().zip(&self.records[record].bus) {
                view.count_on_bus(group.first_member, *resource, *more);
            }
            for (place, _) in &session.entries {
                view.skip_call(group.first_member + place);
            }
            group.sessions.pop_front();
        }
        self.leave(communicator);
    }

    /// A group without calls is in nobody's way.
    fn leave(&mut self, communicator: u32) {
        let group = &self.groups[&communicator];
        if !group.sessions.is_empty() {
            return;
        }
        for server in &group.footprint.servers {
            if let Some(busy) = self.busy.get_mut(server) {
                busy.retain(|other| *other != communicator);
            }
        }
    }

    /// Groups with calls that share something with this one.
    fn others(&self, communicator: u32) -> impl Iterator<Item = u32> + '_ {
        let own = &self.groups[&communicator].footprint;
        let busy = own.servers.iter().filter_map(|server| self.busy.get(server)).flatten().copied();
        busy.filter(move |other| {
            let place = &self.groups[other].footprint;
            *other != communicator && share(own.bus.as_deref(), place.bus.as_deref())
        })
    }

    /// A group makes one more call, which uses nothing before `active`: what is under way beside it is not alone any more.
    /// Whether anything has to be carried out first.
    fn make_way<S: Sink>(
        &mut self,
        view: &mut PartitionView<'_, S>,
        communicator: u32,
        active: Time,
    ) -> bool {
        let mut must_wait = false;
        let others: Vec<u32> = self.others(communicator).collect();
        for other in others {
            must_wait |= self.disturb(view, other);
        }
        // One after the other is no disturbance, if nothing is left of the first when the second begins. Where that is not
        // known yet, it will be looked at when it is.
        let own = self.groups[&communicator].sessions.iter();
        let is_early = own.filter(|session| session.quiet.is_set()).any(|session| session.quiet > active);
        must_wait | is_early && self.disturb(view, communicator)
    }

    /// Something else is where the calls of a group are. Whether they have to be carried out first.
    fn disturb<S: Sink>(&mut self, view: &mut PartitionView<'_, S>, communicator: u32) -> bool {
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        let mut records = Vec::new();
        for session in &mut group.sessions {
            session.may_record = false;
            if let Phase::Real(record) = &mut session.phase {
                records.extend(record.take());
            }
        }
        let has_more = group.sessions.iter().any(|session| !matches!(session.phase, Phase::Real(_)));
        if has_more {
            self.carry_out(view, communicator, u64::MAX);
        }
        for record in records {
            self.void(record);
        }
        has_more
    }

    fn void(&mut self, record: usize) {
        let one = &mut self.records[record];
        if one.left > 0 && !one.is_void {
            one.is_void = true;
            self.known.remove(&one.key);
            self.voided.push(record);
        }
    }

    /// Carries out the calls of a group up to this one after all, from their beginning.
    fn carry_out<S: Sink>(&mut self, view: &mut PartitionView<'_, S>, communicator: u32, last: u64) {
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        for session in group.sessions.iter_mut().filter(|session| session.number <= last) {
            if matches!(session.phase, Phase::Real(_)) {
                continue;
            }
            for (place, at) in &session.entries {
                view.make_call(group.first_member + place, &session.planned, *at);
            }
            (session.phase, session.quiet) = (Phase::Real(None), Time::NEVER);
        }
    }

    /// Decides about calls for which all have come. Whether anything of the past is to be run.
    pub(super) fn decide<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) -> bool {
        let mut is_behind = false;
        for communicator in std::mem::take(&mut self.hurried) {
            is_behind |= self.disturb(view, communicator);
        }
        while let Some(record) = self.voided.pop() {
            for (follower, number) in std::mem::take(&mut self.records[record].followers) {
                is_behind = true;
                self.undecided.push((follower, number));
            }
        }
        for (communicator, number) in std::mem::take(&mut self.undecided) {
            is_behind |= self.decide_call(view, communicator, number);
        }
        is_behind
    }

    fn decide_call<S: Sink>(
        &mut self,
        view: &mut PartitionView<'_, S>,
        communicator: u32,
        number: u64,
    ) -> bool {
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        let Some(index) = group.position(number) else { return false };
        let session = &mut group.sessions[index];
        let is_real = matches!(session.phase, Phase::Real(_));
        if is_real && !session.may_record {
            return false;
        }
        let key = session.key(group.footprint.kind);
        if let Some(record) = self.known.get(&key).copied() {
            if !is_real {
                session.follow(record);
                if self.records[record].left > 0 {
                    self.records[record].followers.push((communicator, number));
                }
                self.follow(communicator, number);
            }
            return false;
        }
        // What its bus resources have counted when it begins: those before it have to be known.
        let before = session.before.take();
        let mut bus: Option<Vec<_>> = match is_real {
            true => before,
            false => {
                let bus = group.footprint.bus.iter().flatten();
                Some(bus.map(|resource| view.bus_counters(group.first_member, *resource)).collect())
            }
        };
        for earlier in group.sessions.iter().take(index) {
            bus = match earlier.phase {
                Phase::Hit(record, _) if self.records[record].left == 0 => bus.map(|mut bus| {
                    for (resource, more) in bus.iter_mut().zip(&self.records[record].bus) {
                        session::add(resource, more);
                    }
                    bus
                }),
                _ => None,
            };
        }
        let mut record = None;
        if let Some(bus) = bus {
            record = Some(self.records.len());
            let first = group.sessions[index].entries[0].1;
            self.known.insert(key.clone(), self.records.len());
            self.records.push(Recorded::new(key, first, bus));
        }
        if !is_real {
            self.carry_out(view, communicator, number);
        }
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        group.sessions[index].phase = Phase::Real(record);
        !is_real
    }

    /// Plans the ends of a call that was taken, as far as they are known.
    fn follow(&mut self, communicator: u32, number: u64) {
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        let Some(index) = group.position(number) else { return };
        let next = group.sessions.get(index + 1).map(|session| session.active);
        let session = &mut group.sessions[index];
        let first = session.entries[0].1;
        let Phase::Hit(record, planned) = &mut session.phase else { return };
        let record = &self.records[*record];
        for (place, end) in record.ends.iter().enumerate() {
            let Some(end) = end.filter(|_| !planned[place]) else { continue };
            planned[place] = true;
            self.ends.push(Reverse((first + end, communicator, place as u32, number)));
        }
        if record.left == 0 {
            session.quiet = first + record.last() + group.footprint.residue;
            if next.is_some_and(|active| active < session.quiet) {
                self.hurried.push(communicator);
            }
        }
    }

    /// A rank is through with a call that was carried out. Whether that is news.
    pub(super) fn ended<S: Sink>(
        &mut self,
        view: &PartitionView<'_, S>,
        (communicator, place): (u32, u32),
        at: Time,
    ) -> bool {
        let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
        let bus = group.footprint.bus.iter().flatten();
        let first = group.first_member;
        let count = || bus.clone().map(|resource| view.bus_counters(first, *resource)).collect::<Vec<_>>();
        let is_it = |session: &Session| session.has(place) && !session.done[place as usize];
        let index = group.sessions.iter().position(is_it).expect("only what was begun ends");
        group.quiet = at + group.footprint.residue;
        let is_hurried = group.sessions.get(index + 1).is_some_and(|next| next.active < group.quiet);
        let session = &mut group.sessions[index];
        session.done[place as usize] = true;
        let is_news = !std::mem::replace(&mut session.reported[place as usize], true);
        let is_over = session.done.iter().filter(|done| **done).count() as u32 == group.callers;
        let Phase::Real(record) = session.phase else { unreachable!("what was taken ends otherwise") };
        if is_hurried {
            session.phase = Phase::Real(None);
            group.sessions[index + 1].may_record = false;
        }
        if is_over {
            group.sessions.remove(index);
            if let Some(next) = group.sessions.get_mut(index).filter(|next| next.may_record) {
                next.before = Some(count());
            }
        }
        match record {
            Some(record) if is_hurried => self.void(record),
            Some(record) if !self.records[record].is_void => {
                let one = &mut self.records[record];
                one.end(place, at);
                if one.left == 0 {
                    one.count(&count());
                }
                for (follower, number) in one.followers.clone() {
                    let group = &self.groups[&follower];
                    let session = group.position(number).map(|index| &group.sessions[index]);
                    if session.is_some_and(|session| session.follows(record)) {
                        self.follow(follower, number);
                    }
                }
            }
            _ => {}
        }
        self.leave(communicator);
        is_news
    }

    /// When the next rank is through with a call that was taken.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.ends.peek().map(|Reverse((time, ..))| *time)
    }

    /// Ranks that are through by now with calls that were taken: members of communicators.
    pub(super) fn take_ended(&mut self, now: Time) -> Vec<u32> {
        let mut members = Vec::new();
        while self.next_end().is_some_and(|time| time <= now) {
            let Some(Reverse((_, communicator, place, number))) = self.ends.pop() else { break };
            let group = self.groups.get_mut(&communicator).expect("only what is known has calls");
            let Some(index) = group.position(number) else { continue };
            let session = &mut group.sessions[index];
            if session.is_hit() && !std::mem::replace(&mut session.reported[place as usize], true) {
                members.push(group.first_member + place);
            }
        }
        members
    }

    /// The run is over: what was taken counts.
    pub(super) fn finish<S: Sink>(&mut self, view: &mut PartitionView<'_, S>) -> MemoCount {
        let all: Vec<u32> = self.groups.keys().copied().collect();
        for communicator in all {
            self.close(view, communicator, Time::NEVER);
        }
        self.count
    }
}

/// Whether two groups use something together. One that uses NICs may use all of its servers.
fn share(one: Option<&[BusResource]>, other: Option<&[BusResource]>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.iter().any(|resource| other.contains(resource)),
        _ => true,
    }
}
