//! Machines in memory: conduits are queues, and what happens next is drawn by lot.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use railnet_core::{Random, Rank, Span, Time};
use railnet_nic::memory::{Memory as _, Segments, SpaceId};
use thiserror::Error;

use super::buffers::{Buffers, Data, add};
use super::switch::Switches;
use crate::machine::{
    Applier, ConnectionId, Direction, Failure, Filled, Layout, Mark, Notice, OperationId, Output, Place,
    RankMachine, Wait, Work,
};
use crate::schedule::{Connection, Peer, Schedule};

/// A connection, as nobody in particular sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Wire {
    pub(super) channel: u16,
    pub(super) lane: u8,
    pub(super) from: Peer,
    pub(super) to: Peer,
}

impl Wire {
    pub(super) fn new(rank: u32, to: Connection, direction: Direction) -> Self {
        let (from, to_peer) = match direction {
            Direction::Send => (Peer::Rank(rank), to.peer),
            Direction::Receive => (to.peer, Peer::Rank(rank)),
        };
        Self { channel: to.channel, lane: to.lane, from, to: to_peer }
    }
}

/// What a wire is made of: one memory for the slots of both ends.
#[derive(Debug, Default)]
struct Cable {
    sender: Option<ConnectionId>,
    receiver: Option<ConnectionId>,
    slots: Option<(SpaceId, u64)>,
    /// Slices that came before the receiver knew the wire.
    early: Vec<Mark>,
    /// Of each slice that has not come yet: its source buffer, its target and its length, if it is sent without a copy.
    under_way: VecDeque<Option<Lent>>,
}

/// A slice that is sent from a buffer: from here, to a slot, so many bytes.
type Lent = ((SpaceId, u64), (SpaceId, u64), usize);

/// Something that will happen.
#[derive(Debug)]
enum Event {
    Arrived(Wire, Mark),
    Freed(Wire),
    Work(u32, Work),
    Notice(u32, u32, Notice),
}

/// Why a lab is not content.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// Nothing happens any more, and ranks wait.
    #[error("nothing happens any more: {0:?}")]
    Stuck(Vec<(u32, Vec<Wait>)>),
    /// A communicator broke.
    #[error("rank {0}: {1}")]
    Failed(u32, Arc<Failure>),
    /// Results are wrong.
    #[error("{bytes} bytes of operation {operation} are wrong")]
    Wrong {
        /// Of which operation.
        operation: u64,
        /// Bytes that are wrong.
        bytes: u64,
    },
}

/// Machines of one communicator. Each event takes a microsecond.
#[derive(Debug)]
pub struct Lab {
    /// The machines.
    pub machines: Vec<RankMachine>,
    /// The present.
    pub now: Time,
    /// What each rank was told at the end, if it failed.
    pub failures: BTreeMap<u32, Arc<Failure>>,
    /// Operations that each rank has finished.
    pub finished: Vec<Vec<OperationId>>,
    /// Pieces of work done.
    pub work_done: u64,
    /// Ranks that do not answer, and hear nothing.
    pub dead: Vec<u32>,
    data: Data,
    memory: Segments,
    buffers: BTreeMap<OperationId, Buffers>,
    cables: BTreeMap<Wire, Cable>,
    switches: Switches,
    events: Vec<Event>,
    random: Random,
    applier: Applier,
    lends: bool,
    /// Slices that are lent, and were not handed over yet.
    lent: BTreeMap<(u32, ConnectionId, u32), Lent>,
}

impl Lab {
    /// So many ranks.
    pub fn new(ranks: u32, data: Data, seed: u64) -> Self {
        Self {
            machines: (0..ranks).map(|rank| RankMachine::new(Rank(rank), ranks)).collect(),
            now: Time::ZERO,
            failures: BTreeMap::new(),
            finished: vec![Vec::new(); ranks as usize],
            work_done: 0,
            dead: Vec::new(),
            data,
            memory: Segments::new(),
            buffers: BTreeMap::new(),
            cables: BTreeMap::new(),
            switches: Switches::default(),
            events: Vec::new(),
            random: Random::stream(seed, "lab", 0),
            applier: Applier::new(),
            lends: false,
            lent: BTreeMap::new(),
        }
    }

    /// The same with slices to ranks that are sent from buffers, where they stay there ([`Work::kept`]), and are read as late as
    /// can be: when they come. For bytes only.
    #[must_use]
    pub fn lending(self) -> Self {
        Self { lends: true, ..self }
    }

    /// Submits a schedule on all ranks, at different times.
    pub fn submit(&mut self, schedule: &Schedule) {
        let schedule = Arc::new(schedule.clone());
        let ranks = schedule.ranks;
        let first = self.random.below(u64::from(ranks)) as u32;
        for offset in 0..ranks {
            self.submit_on((first + offset) % ranks, &schedule);
            for _ in 0..self.random.below(4) {
                self.step();
            }
        }
    }

    /// Submits a schedule on one rank. The buffers are made with the first.
    pub fn submit_on(&mut self, rank: u32, schedule: &Arc<Schedule>) {
        let Self { memory, data, random, .. } = self;
        if let Ok(id) = self.machines[rank as usize].submit(self.now, schedule) {
            self.buffers.entry(id).or_insert_with(|| Buffers::new(memory, schedule, *data, random));
        }
        self.drain(rank);
    }

    /// Runs until nothing happens any more, then looks at results.
    pub fn run(&mut self) -> Result<(), LabError> {
        while self.step() {}
        if let Some((rank, failure)) = self.failures.first_key_value() {
            return Err(LabError::Failed(*rank, Arc::clone(failure)));
        }
        let stuck = self.machines.iter().filter(|machine| machine.unfinished() > 0);
        let stuck: Vec<_> = stuck.map(|machine| (machine.rank().0, machine.waiting_for())).collect();
        if !stuck.is_empty() {
            return Err(LabError::Stuck(stuck));
        }
        for (id, buffers) in &self.buffers {
            let bytes = buffers.wrong(&self.memory);
            if bytes > 0 {
                return Err(LabError::Wrong { operation: id.0, bytes });
            }
        }
        Ok(())
    }

    /// Runs until nothing happens any more, letting ranks run into their limits. Gives what each rank was told.
    pub fn run_out(&mut self) -> &BTreeMap<u32, Arc<Failure>> {
        for _ in 0..4 {
            while self.step() {}
            let due = self.machines.iter().filter_map(RankMachine::poll_timeout).min();
            let Some(due) = due else { break };
            self.now = self.now.max(due);
            for rank in 0..self.machines.len() as u32 {
                if !self.dead.contains(&rank) {
                    self.machines[rank as usize].handle_timeout(self.now);
                    self.drain(rank);
                }
            }
        }
        while self.step() {}
        &self.failures
    }

    /// Lets one thing happen. `false` when there is nothing.
    pub fn step(&mut self) -> bool {
        if self.events.is_empty() {
            return false;
        }
        self.now += Span::from_us(1);
        let index = self.random.below(self.events.len() as u64) as usize;
        match self.events.swap_remove(index) {
            Event::Arrived(wire, mark) => self.arrive(wire, mark),
            Event::Freed(wire) => {
                let (Peer::Rank(rank), Some(id)) = (wire.from, self.cables[&wire].sender) else {
                    return true;
                };
                self.machines[rank as usize].freed(self.now, id);
                self.drain(rank);
            }
            Event::Work(rank, work) => {
                self.apply(rank, &work);
                self.machines[rank as usize].finished(self.now, work.id);
                self.drain(rank);
            }
            Event::Notice(from, to, notice) => {
                if !self.dead.contains(&to) {
                    self.machines[to as usize].notice(self.now, Rank(from), notice);
                    self.drain(to);
                }
            }
        }
        true
    }

    fn arrive(&mut self, wire: Wire, mark: Mark) {
        let cable = self.cables.get_mut(&wire).expect("data goes over wires");
        let (Peer::Rank(rank), Some(id)) = (wire.to, cable.receiver) else {
            cable.early.push(mark);
            return;
        };
        if let Some(Some((from, to, length))) = cable.under_way.pop_front() {
            let mut data = Vec::new();
            self.memory.read(from.0, from.1, length, &mut data);
            self.memory.write(to.0, to.1, &data);
        }
        let machine = &mut self.machines[rank as usize];
        machine.heard(self.now, id, mark);
        machine.arrived(self.now, id);
        self.drain(rank);
    }

    /// Does what a machine says.
    fn drain(&mut self, rank: u32) {
        while let Some(output) = self.machines[rank as usize].poll_output() {
            match output {
                Output::Connect { connection, to, direction } => {
                    self.connect(rank, connection, to, direction);
                }
                Output::Expect(expect) => {
                    let wire = self.wire(rank, expect.connection);
                    if let Peer::Switch(_) = wire.from {
                        self.switches.expect(wire, expect);
                        self.turn_switches(wire, wire.from);
                    }
                }
                Output::Work(id) => {
                    let work = self.machines[rank as usize].work(id);
                    self.events.push(Event::Work(rank, work));
                }
                Output::Filled(filled) => self.carry(rank, &filled),
                Output::Emptied { connection, .. } => {
                    let wire = self.wire(rank, connection);
                    match wire.from {
                        Peer::Rank(_) => self.events.push(Event::Freed(wire)),
                        Peer::Switch(_) => {
                            self.switches.emptied(wire);
                            self.turn_switches(wire, wire.from);
                        }
                    }
                }
                Output::Notice { to, notice } => {
                    let everybody = 0..self.machines.len() as u32;
                    let to = everybody.filter(|one| to.map_or(*one != rank, |to| to.0 == *one));
                    self.events.extend(to.map(|to| Event::Notice(rank, to, (*notice).clone())));
                }
                Output::Finished(id) => self.finished[rank as usize].push(id),
                Output::Failed(failure) => {
                    self.failures.insert(rank, failure);
                }
            }
        }
    }

    fn wire(&self, rank: u32, connection: ConnectionId) -> Wire {
        let (to, direction) = self.machines[rank as usize].connection(connection);
        Wire::new(rank, to, direction)
    }

    fn connect(&mut self, rank: u32, id: ConnectionId, to: Connection, direction: Direction) {
        let wire = Wire::new(rank, to, direction);
        let cable = self.cables.entry(wire).or_default();
        match direction {
            Direction::Send => cable.sender = Some(id),
            Direction::Receive => {
                cable.receiver = Some(id);
                self.events.extend(cable.early.drain(..).map(|mark| Event::Arrived(wire, mark)));
            }
        }
    }

    fn carry(&mut self, rank: u32, filled: &Filled) {
        let wire = self.wire(rank, filled.connection);
        match wire.to {
            Peer::Rank(_) => {
                let lent = self.lent.remove(&(rank, filled.connection, filled.slot));
                self.cables.entry(wire).or_default().under_way.push_back(lent);
                self.events.push(Event::Arrived(wire, filled.mark));
            }
            Peer::Switch(_) => {
                self.switches.filled(wire, *filled);
                self.turn_switches(wire, wire.to);
            }
        }
    }

    /// Lets a switch do what it can.
    fn turn_switches(&mut self, wire: Wire, switch: Peer) {
        let Peer::Switch(group) = switch else { return };
        let key = (wire.channel, wire.lane, group);
        while let Some(id) = self.switches.next(key) {
            let schedule = self.machines.iter().find_map(|machine| machine.schedule(id)).cloned();
            let Some(schedule) = schedule else { return };
            let Some(turn) = self.switches.turn(key, &schedule) else { return };
            let layout = Layout { protocol: schedule.protocol, fifo: schedule.fifo };
            let slot = |lab: &mut Self, wire: Wire, slot: u32| {
                let (space, address) = lab.slots(wire, &layout);
                (space, address + layout.stride() * u64::from(slot))
            };
            let sources: Vec<_> = turn.sources.iter().map(|(wire, at)| slot(self, *wire, *at)).collect();
            let targets: Vec<_> = turn.targets.iter().map(|(wire, at)| slot(self, *wire, *at)).collect();
            turn.reduce(&mut self.memory, &schedule.call, &sources, &targets);
            self.events.extend(turn.sources.iter().map(|(wire, _)| Event::Freed(*wire)));
            self.events.extend(turn.targets.iter().map(|(wire, _)| Event::Arrived(*wire, turn.mark)));
        }
    }

    /// The slots of a wire, large enough for a layout.
    fn slots(&mut self, wire: Wire, layout: &Layout) -> (SpaceId, u64) {
        let cable = self.cables.entry(wire).or_default();
        let needed = layout.bytes();
        let is_enough = cable.slots.is_some_and(|(_, length)| length >= needed);
        if !is_enough {
            let (space, _) = add(&mut self.memory, self.data, needed);
            cable.slots = Some((space, needed));
        }
        let (space, _) = cable.slots.expect("there are slots now");
        (space, super::buffers::BASE)
    }

    fn apply(&mut self, rank: u32, work: &Work) {
        let machine = &self.machines[rank as usize];
        let Some(schedule) = machine.schedule(work.operation).cloned() else { return };
        let layout = work.layout;
        let mut places = BTreeMap::new();
        for place in work.sources.iter().chain(&work.targets) {
            if let Place::Slot(connection, _) = place {
                let wire = self.wire(rank, *connection);
                places.insert(*connection, self.slots(wire, &layout));
            }
        }
        let buffers = &self.buffers[&work.operation];
        let locate = |place: Place| match place {
            Place::Buffer(buffer, element) => buffers.locate(rank, buffer, element),
            Place::Slot(connection, slot) => {
                let (space, address) = places[&connection];
                (space, address + layout.stride() * u64::from(slot))
            }
        };
        self.work_done += 1;
        let done = self.applier.apply(&mut self.memory, work, &schedule.call, schedule.ranks, locate);
        done.expect("the lab has all memory");
        let Some(kept) = work.kept(&schedule).filter(|_| self.lends) else { return };
        let length = schedule.call.dtype.bytes(work.count).0 as usize;
        for place in &work.targets {
            let Place::Slot(connection, slot) = *place else { continue };
            if let Peer::Rank(_) = self.wire(rank, connection).to {
                let (from, to) = (locate(kept), locate(*place));
                // What is read before it comes would be wrong.
                self.memory.write(to.0, to.1, &vec![0xee; length]);
                self.lent.insert((rank, connection, slot), (from, to, length));
            }
        }
    }
}
