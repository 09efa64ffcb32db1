//! Machines with a synchronous executor do the same as those whose outputs are queued.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use railnet_coll::machine::{
    ConnectionId, Direction, Execution, Executor, Handed, InlineCopy, Mark, OperationId, Output, Place,
    Polled, RankMachine, ReceiveBuffer, Task, Work,
};
use railnet_coll::{
    Algorithm, Buffer, Call, Choice, Collective, Connection, Peer, Protocol, Schedule, Wiring, build,
};
use railnet_core::{Bytes, Random, Rank, Time};

/// A connection: sender, receiver, channel, lane.
type Wire = (u32, u32, u16, u8);

/// What is on its way on a connection: slices, and slots that go back.
#[derive(Default)]
struct Cable {
    slices: VecDeque<Mark>,
    slots: u64,
}

fn wire(rank: u32, to: Connection, direction: Direction) -> Wire {
    let Peer::Rank(peer) = to.peer else { panic!("no switches here") };
    match direction {
        Direction::Send => (rank, peer, to.channel, to.lane),
        Direction::Receive => (peer, rank, to.channel, to.lane),
    }
}

/// What each worker of each rank did.
type Done = BTreeMap<(u32, u32), Vec<Work>>;

/// Whole operations that a rank did as inline copies, and their connections.
type InlineCopies = BTreeMap<(u32, OperationId), (InlineCopy, Vec<ConnectionId>)>;

/// Where the next slice of a connection of a rank may be put.
type ReceiveBuffers = BTreeMap<(u32, ConnectionId), ReceiveBuffer>;

struct World {
    machines: Vec<RankMachine>,
    /// The connections of each machine.
    ends: Vec<Vec<(Wire, Direction)>>,
    cables: BTreeMap<Wire, Cable>,
    done: Done,
    copies: InlineCopies,
    buffers: ReceiveBuffers,
    received_in_place: u64,
    finished: Vec<Vec<OperationId>>,
    random: Random,
}

/// The executor of one rank. What it polls is there two times of three.
struct Synchronous<'a> {
    rank: u32,
    ends: &'a [(Wire, Direction)],
    cables: &'a mut BTreeMap<Wire, Cable>,
    done: &'a mut Done,
    copies: &'a mut InlineCopies,
    buffers: &'a mut ReceiveBuffers,
    received_in_place: &'a mut u64,
    finished: &'a mut Vec<OperationId>,
    random: &'a mut Random,
}

impl Executor for Synchronous<'_> {
    fn poll(&mut self, connection: ConnectionId) -> Polled {
        let (wire, direction) = self.ends[connection.0 as usize];
        let cable = self.cables.entry(wire).or_default();
        match direction {
            _ if self.random.below(3) == 0 => Polled::Nothing,
            Direction::Receive => cable.slices.pop_front().map_or(Polled::Nothing, Polled::Arrived),
            Direction::Send if cable.slots == 0 => Polled::Nothing,
            Direction::Send => Polled::Freed(std::mem::take(&mut cable.slots)),
        }
    }

    fn post_receive(&mut self, connection: ConnectionId, buffer: ReceiveBuffer) {
        // Nothing has to be done with nothing.
        if buffer.length > Bytes(0) {
            self.buffers.insert((self.rank, connection), buffer);
        }
    }

    fn copy_inline(&mut self, copy: &InlineCopy, connections: &[ConnectionId], mark: Mark) -> bool {
        if self.random.below(3) == 0 {
            return false;
        }
        for connection in connections {
            let (wire, direction) = self.ends[connection.0 as usize];
            let cable = self.cables.entry(wire).or_default();
            match direction {
                Direction::Send => cable.slices.push_back(mark),
                Direction::Receive => cable.slots += 1,
            }
        }
        let operation = OperationId(self.finished.len() as u64);
        self.copies.insert((self.rank, operation), (*copy, connections.to_vec()));
        true
    }

    fn execute(&mut self, task: Task<'_>) -> Execution {
        let (work, schedule) = task.describe();
        assert_eq!(work.layout.fifo, schedule.fifo);
        for source in &work.sources {
            let Place::Slot(connection, _) = source else { continue };
            if let Some(buffer) = self.buffers.remove(&(self.rank, *connection)) {
                // What was put there is where it goes, and all there is to it.
                assert_eq!((work.sources.len(), work.operation), (1, buffer.operation));
                assert_eq!(buffer.collective, schedule.call.collective);
                assert_eq!(buffer.length.0, 4 * work.count);
                assert_eq!(work.targets[0], Place::Buffer(Buffer::Output, buffer.offset.0 / 4));
                *self.received_in_place += 1;
            }
        }
        self.done.entry((self.rank, work.id.worker())).or_default().push(work.clone());
        Execution::Done
    }

    fn filled(&mut self, filled: &Handed<'_>) {
        assert_eq!(filled.direction, Direction::Send);
        let (wire, _) = self.ends[filled.connection.0 as usize];
        self.cables.entry(wire).or_default().slices.push_back(filled.mark);
    }

    fn emptied(&mut self, emptied: &Handed<'_>) {
        assert_eq!(emptied.direction, Direction::Receive);
        let (wire, _) = self.ends[emptied.connection.0 as usize];
        self.cables.entry(wire).or_default().slots += 1;
    }

    fn finished(&mut self, operation: OperationId) {
        self.finished.push(operation);
    }
}

impl World {
    fn new(ranks: u32, synchronous: bool, seed: u64) -> Self {
        let machine = |rank| {
            let machine = RankMachine::new(Rank(rank), ranks);
            if synchronous { machine.synchronous(false) } else { machine }
        };
        Self {
            machines: (0..ranks).map(machine).collect(),
            ends: vec![Vec::new(); ranks as usize],
            cables: BTreeMap::new(),
            done: Done::new(),
            copies: InlineCopies::new(),
            buffers: ReceiveBuffers::new(),
            received_in_place: 0,
            finished: vec![Vec::new(); ranks as usize],
            random: Random::from_seed(seed),
        }
    }

    /// Takes outputs out of the queue of a machine.
    fn drain(&mut self, rank: u32) {
        let index = rank as usize;
        while let Some(output) = self.machines[index].poll_output() {
            match output {
                Output::Connect { to, direction, .. } => {
                    self.ends[index].push((wire(rank, to, direction), direction));
                }
                Output::Work(id) => {
                    let work = self.machines[index].work(id);
                    self.done.entry((rank, id.worker())).or_default().push(work);
                    self.machines[index].finished(Time::ZERO, id);
                }
                Output::Filled(filled) => {
                    let (wire, _) = self.ends[index][filled.connection.0 as usize];
                    self.cables.entry(wire).or_default().slices.push_back(filled.mark);
                }
                Output::Emptied { connection, .. } => {
                    let (wire, _) = self.ends[index][connection.0 as usize];
                    self.cables.entry(wire).or_default().slots += 1;
                }
                Output::Finished(id) => self.finished[index].push(id),
                Output::Expect(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn proceed(&mut self, rank: u32) {
        self.drain(rank);
        let Self { machines, ends, cables, done, copies, buffers, received_in_place, finished, random } =
            self;
        let index = rank as usize;
        let (ends, finished) = (&ends[index], &mut finished[index]);
        let mut executor =
            Synchronous { rank, ends, cables, done, copies, buffers, received_in_place, finished, random };
        machines[index].proceed(Time::ZERO, &mut executor);
        self.drain(rank);
    }

    /// Begins with an operation, on the fast path if there is one. Whether there was.
    fn begin(&mut self, rank: u32, schedule: &Arc<Schedule>) -> bool {
        let Self { machines, ends, cables, done, copies, buffers, received_in_place, finished, random } =
            self;
        let index = rank as usize;
        let machine = &mut machines[index];
        if machine.is_single(schedule, true) {
            let (ends, finished) = (&ends[index], &mut finished[index]);
            let mut executor = Synchronous {
                rank,
                ends,
                cables,
                done,
                copies,
                buffers,
                received_in_place,
                finished,
                random,
            };
            if machine.submit_single(Time::ZERO, &mut executor).is_some() {
                return true;
            }
        }
        machine.submit(Time::ZERO, schedule).unwrap();
        false
    }

    /// Each operation is submitted when the one before is over, as by a caller that waits. Also gives how many were begun in the
    /// shortest way.
    fn run_one_by_one(mut self, schedules: &[Arc<Schedule>]) -> (Done, InlineCopies, u64) {
        let ranks = self.machines.len();
        let (mut begun, mut short) = (vec![0; ranks], 0);
        for _ in 0..2_000_000 {
            if self.finished.iter().all(|finished| finished.len() == schedules.len()) {
                return (self.done, self.copies, short);
            }
            let rank = self.random.below(ranks as u64) as usize;
            if self.random.below(2) == 0 {
                self.tell(rank as u32);
            }
            if self.machines[rank].unfinished() == 0 && begun[rank] < schedules.len() {
                short += u64::from(self.begin(rank as u32, &schedules[begun[rank]]));
                begun[rank] += 1;
            }
            self.proceed(rank as u32);
        }
        panic!("it is stuck");
    }

    /// Tells a machine what has come over one of its connections.
    fn tell(&mut self, rank: u32) {
        let ends = &self.ends[rank as usize];
        if ends.is_empty() {
            return;
        }
        let end = self.random.below(ends.len() as u64) as usize;
        let ((wire, direction), id) = (ends[end], ConnectionId(end as u32));
        let (cable, machine) = (self.cables.entry(wire).or_default(), &mut self.machines[rank as usize]);
        match direction {
            Direction::Receive => {
                if let Some(mark) = cable.slices.pop_front() {
                    machine.heard(Time::ZERO, id, mark);
                    machine.arrived(Time::ZERO, id);
                }
            }
            Direction::Send if cable.slots > 0 => {
                cable.slots -= 1;
                machine.freed(Time::ZERO, id);
            }
            Direction::Send => {}
        }
    }

    fn run(mut self, schedules: &[Arc<Schedule>], synchronous: bool) -> (Done, u64) {
        for schedule in schedules {
            for machine in &mut self.machines {
                machine.submit(Time::ZERO, schedule).unwrap();
            }
        }
        let ranks = self.machines.len() as u64;
        for _ in 0..2_000_000 {
            if self.finished.iter().all(|finished| finished.len() == schedules.len()) {
                for (machine, finished) in self.machines.iter().zip(&self.finished) {
                    assert!((0..).zip(finished).all(|(number, one)| one.0 == number));
                    assert_eq!(machine.unfinished(), 0);
                }
                return (self.done, self.received_in_place);
            }
            let rank = self.random.below(ranks) as u32;
            if self.random.below(2) == 0 {
                self.tell(rank);
            }
            if synchronous { self.proceed(rank) } else { self.drain(rank) }
        }
        panic!("it is stuck");
    }
}

#[test]
fn synchronous_work_is_the_same_work() {
    let mut random = Random::from_seed(11);
    let collectives =
        [Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::AllToAll];
    let algorithms = [
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Direct,
        Algorithm::Hypercube,
        Algorithm::Pat,
        Algorithm::PointToPoint,
    ];
    let (mut runs, mut works, mut buffers) = (0, 0, 0);
    while runs < 300 {
        let ranks = random.below(4) as u32 + 2;
        let mut schedules: Vec<Arc<Schedule>> = Vec::new();
        for _ in 0..=random.below(3) {
            let call = Call::new(*random.pick(&collectives), random.below(3) * random.below(2000));
            let choice =
                Choice::new(*random.pick(&algorithms), Protocol::Simple).on(random.below(2) as u32 + 1);
            let choice = Choice { buffer: Some(Bytes(8 * 512)), ..choice };
            let Ok(schedule) = build(&call, &choice, &Wiring::flat(ranks)) else { continue };
            let schedule = Arc::new(schedule);
            // The same again and again, and others in between.
            schedules.extend((0..=random.below(25)).map(|_| Arc::clone(&schedule)));
            if random.below(2) == 0 {
                schedules.rotate_left(1);
            }
        }
        if schedules.is_empty() {
            continue;
        }
        let (queued, _) = World::new(ranks, false, runs).run(&schedules, false);
        let (synchronous, received_in_place) = World::new(ranks, true, runs).run(&schedules, true);
        assert_eq!(queued, synchronous, "run {runs}");
        buffers += received_in_place;
        works += queued.values().map(Vec::len).sum::<usize>();
        runs += 1;
    }
    assert!(works > 100_000, "{works} pieces of work");
    assert!(buffers > 10_000, "{buffers} slices could be received in place");
}

/// The work that is left when inline copies were done, each of which must be the only work of its operation on its rank.
fn without(mut done: Done, copies: &InlineCopies) -> Done {
    for ((rank, operation), (copy, connections)) in copies {
        let works = done.get_mut(&(*rank, 0)).unwrap();
        let at = works.iter().position(|work| work.operation == *operation).unwrap();
        let work = works.remove(at);
        assert!(works.get(at).is_none_or(|next| next.operation != *operation));
        let place = |(buffer, offset): (Buffer, Bytes)| Place::Buffer(buffer, offset.0 / 4);
        let own = |places: &[Place]| places.iter().copied().find(|one| matches!(one, Place::Buffer(..)));
        assert_eq!(own(&work.sources), copy.from.map(place));
        assert_eq!(own(&work.targets), copy.into.map(place));
        assert_eq!(copy.length.0, 4 * work.count);
        let slots = work.sources.iter().chain(&work.targets).filter_map(|one| match one {
            Place::Slot(connection, _) => Some(*connection),
            Place::Buffer(..) => None,
        });
        assert_eq!(slots.collect::<Vec<_>>(), *connections);
        assert_eq!(work.sources.len(), 1);
    }
    done.retain(|_, works| !works.is_empty());
    done
}

#[test]
fn small_operations_on_the_fast_path_are_the_same_work() {
    let mut random = Random::from_seed(12);
    let collectives = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::AllToAll,
    ];
    let algorithms = [Algorithm::Direct, Algorithm::PointToPoint, Algorithm::Ring];
    let (mut runs, mut short, mut all, mut carried) = (0, 0, 0, 0);
    while runs < 200 {
        let ranks = random.below(3) as u32 + 2;
        let mut schedules: Vec<Arc<Schedule>> = Vec::new();
        for _ in 0..=random.below(3) {
            let call = Call::new(*random.pick(&collectives), random.below(40));
            let choice = Choice::new(*random.pick(&algorithms), Protocol::Simple);
            let choice = Choice { buffer: Some(Bytes(8 * 512)), ..choice };
            let Ok(schedule) = build(&call, &choice, &Wiring::flat(ranks)) else { continue };
            let schedule = Arc::new(schedule);
            schedules.extend((0..=random.below(60)).map(|_| Arc::clone(&schedule)));
        }
        let (queued, _) = World::new(ranks, false, runs).run(&schedules, false);
        let (one_by_one, copies, begun) = World::new(ranks, true, runs).run_one_by_one(&schedules);
        carried += copies.len();
        assert_eq!(without(queued, &copies), one_by_one, "run {runs}");
        short += begun;
        all += u64::from(ranks) * schedules.len() as u64;
        runs += 1;
    }
    assert!(short > 1000 && short < all, "{short} of {all}");
    assert!(carried > 500, "{carried} copies");
}

/// What a peer says that means something else is found out on the fast path too, before an operation or in the middle of it.
#[test]
fn who_means_something_else_is_found_out_at_once() {
    let runs =
        (0..20).flat_map(|seed| [Collective::Broadcast, Collective::AllGather].map(|what| (seed, what)));
    for (seed, collective) in runs {
        let schedule = |count| {
            let choice = Choice::new(Algorithm::Direct, Protocol::Simple);
            Arc::new(build(&Call::new(collective, count), &choice, &Wiring::flat(2)).unwrap())
        };
        let (usual, other) = (schedule(2), schedule(3));
        let mut world = World::new(2, true, seed);
        for number in 1..=40 {
            (0..2).for_each(|rank| _ = world.begin(rank, &usual));
            for rank in [0, 1].repeat(50) {
                world.tell(rank);
                world.proceed(rank);
            }
            assert!(world.finished.iter().all(|finished| finished.len() == number), "{number}");
        }
        world.begin(0, &other);
        (0..50).for_each(|_| world.proceed(0));
        world.begin(1, &usual);
        (0..50).for_each(|_| world.tell(1));
        // It asks what the other meant, and does nothing until it knows.
        let mut outputs = std::iter::from_fn(|| world.machines[1].poll_output());
        assert!(outputs.any(|output| matches!(output, Output::Notice { .. })), "{collective}, {seed}");
        assert_eq!(world.finished[1].len(), 40, "{collective}, {seed}");
    }
}
