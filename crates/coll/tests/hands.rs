//! Machines whose work is done on the spot do the same as those whose outputs are taken out of a queue.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use railnet_coll::machine::{
    ConnectionId, Direction, Errand, Handed, Hands, Landing, Look, Mark, OperationId, Output, Place,
    RankMachine, Work,
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

/// Whole operations that a rank did as errands, and their connections.
type Errands = BTreeMap<(u32, OperationId), (Errand, Vec<ConnectionId>)>;

/// Where the next slice of a connection of a rank may be put.
type Landings = BTreeMap<(u32, ConnectionId), Landing>;

struct World {
    machines: Vec<RankMachine>,
    /// The connections of each machine.
    ends: Vec<Vec<(Wire, Direction)>>,
    cables: BTreeMap<Wire, Cable>,
    done: Done,
    errands: Errands,
    landings: Landings,
    landed: u64,
    finished: Vec<Vec<OperationId>>,
    dice: Random,
}

/// The hands of one rank. They look when they feel like it.
struct Helper<'a> {
    rank: u32,
    ends: &'a [(Wire, Direction)],
    cables: &'a mut BTreeMap<Wire, Cable>,
    done: &'a mut Done,
    errands: &'a mut Errands,
    landings: &'a mut Landings,
    landed: &'a mut u64,
    finished: &'a mut Vec<OperationId>,
    dice: &'a mut Random,
}

impl Hands for Helper<'_> {
    fn look(&mut self, connection: ConnectionId) -> Look {
        let (wire, direction) = self.ends[connection.0 as usize];
        let cable = self.cables.entry(wire).or_default();
        match direction {
            _ if self.dice.below(3) == 0 => Look::Nothing,
            Direction::Receive => cable.slices.pop_front().map_or(Look::Nothing, Look::Arrived),
            Direction::Send if cable.slots == 0 => Look::Nothing,
            Direction::Send => Look::Freed(std::mem::take(&mut cable.slots)),
        }
    }

    fn awaits(&mut self, connection: ConnectionId, landing: Landing) {
        // Nothing has to be done with nothing.
        if landing.length > Bytes(0) {
            self.landings.insert((self.rank, connection), landing);
        }
    }

    fn carry(&mut self, errand: &Errand, connections: &[ConnectionId], mark: Mark) -> bool {
        if self.dice.below(3) == 0 {
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
        self.errands.insert((self.rank, operation), (*errand, connections.to_vec()));
        true
    }

    fn work(&mut self, work: &Work, schedule: &Schedule) -> bool {
        assert_eq!(work.layout.fifo, schedule.fifo);
        for source in &work.sources {
            let Place::Slot(connection, _) = source else { continue };
            if let Some(landing) = self.landings.remove(&(self.rank, *connection)) {
                // What was put there is where it goes, and all there is to it.
                assert_eq!((work.sources.len(), work.operation), (1, landing.operation));
                assert_eq!(landing.collective, schedule.call.collective);
                assert_eq!(landing.length.0, 4 * work.count);
                assert_eq!(work.targets[0], Place::Buffer(Buffer::Output, landing.offset.0 / 4));
                *self.landed += 1;
            }
        }
        self.done.entry((self.rank, work.id.worker())).or_default().push(work.clone());
        true
    }

    fn filled(&mut self, filled: &Handed<'_>) {
        assert_eq!(filled.direction, Direction::Send);
        let (wire, _) = self.ends[filled.connection.0 as usize];
        self.cables.entry(wire).or_default().slices.push_back(filled.mark);
    }

    fn emptied(&mut self, connection: ConnectionId) {
        let (wire, _) = self.ends[connection.0 as usize];
        self.cables.entry(wire).or_default().slots += 1;
    }

    fn finished(&mut self, operation: OperationId) {
        self.finished.push(operation);
    }
}

impl World {
    fn new(ranks: u32, by_hand: bool, seed: u64) -> Self {
        let machine = |rank| {
            let machine = RankMachine::new(Rank(rank), ranks);
            if by_hand { machine.by_hand(false) } else { machine }
        };
        Self {
            machines: (0..ranks).map(machine).collect(),
            ends: vec![Vec::new(); ranks as usize],
            cables: BTreeMap::new(),
            done: Done::new(),
            errands: Errands::new(),
            landings: Landings::new(),
            landed: 0,
            finished: vec![Vec::new(); ranks as usize],
            dice: Random::from_seed(seed),
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
        let Self { machines, ends, cables, done, errands, landings, landed, finished, dice } = self;
        let index = rank as usize;
        let (ends, finished) = (&ends[index], &mut finished[index]);
        let mut hands = Helper { rank, ends, cables, done, errands, landings, landed, finished, dice };
        machines[index].proceed(Time::ZERO, &mut hands);
        self.drain(rank);
    }

    /// Begins with an operation, in the shortest way if there is one. Whether there was.
    fn begin(&mut self, rank: u32, schedule: &Arc<Schedule>) -> bool {
        let Self { machines, ends, cables, done, errands, landings, landed, finished, dice } = self;
        let index = rank as usize;
        let machine = &mut machines[index];
        if machine.is_single(schedule, true) {
            let (ends, finished) = (&ends[index], &mut finished[index]);
            let mut hands = Helper { rank, ends, cables, done, errands, landings, landed, finished, dice };
            if machine.at_once(Time::ZERO, &mut hands).is_some() {
                return true;
            }
        }
        machine.submit(Time::ZERO, schedule).unwrap();
        false
    }

    /// Each operation is submitted when the one before is over, as by a caller that waits. Also gives how many were begun in the
    /// shortest way.
    fn run_one_by_one(mut self, schedules: &[Arc<Schedule>]) -> (Done, Errands, u64) {
        let ranks = self.machines.len();
        let (mut begun, mut short) = (vec![0; ranks], 0);
        for _ in 0..2_000_000 {
            if self.finished.iter().all(|finished| finished.len() == schedules.len()) {
                return (self.done, self.errands, short);
            }
            let rank = self.dice.below(ranks as u64) as usize;
            if self.dice.below(2) == 0 {
                self.tell(rank as u32);
            }
            if self.machines[rank].unfinished() == 0 && begun[rank] < schedules.len() {
                short += u64::from(self.begin(rank as u32, &schedules[begun[rank]]));
                begun[rank] += 1;
            }
            self.proceed(rank as u32);
        }
        panic!("it stands still");
    }

    /// Tells a machine what has come over one of its connections.
    fn tell(&mut self, rank: u32) {
        let ends = &self.ends[rank as usize];
        if ends.is_empty() {
            return;
        }
        let end = self.dice.below(ends.len() as u64) as usize;
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

    fn run(mut self, schedules: &[Arc<Schedule>], by_hand: bool) -> (Done, u64) {
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
                return (self.done, self.landed);
            }
            let rank = self.dice.below(ranks) as u32;
            if self.dice.below(2) == 0 {
                self.tell(rank);
            }
            if by_hand { self.proceed(rank) } else { self.drain(rank) }
        }
        panic!("it stands still");
    }
}

#[test]
fn work_on_the_spot_is_the_same_work() {
    let mut dice = Random::from_seed(11);
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
    let (mut runs, mut works, mut landings) = (0, 0, 0);
    while runs < 300 {
        let ranks = dice.below(4) as u32 + 2;
        let mut schedules: Vec<Arc<Schedule>> = Vec::new();
        for _ in 0..=dice.below(3) {
            let call = Call::new(*dice.pick(&collectives), dice.below(3) * dice.below(2000));
            let choice = Choice::new(*dice.pick(&algorithms), Protocol::Simple).on(dice.below(2) as u32 + 1);
            let choice = Choice { buffer: Some(Bytes(8 * 512)), ..choice };
            let Ok(schedule) = build(&call, &choice, &Wiring::flat(ranks)) else { continue };
            let schedule = Arc::new(schedule);
            // The same again and again, and others in between.
            schedules.extend((0..=dice.below(25)).map(|_| Arc::clone(&schedule)));
            if dice.below(2) == 0 {
                schedules.rotate_left(1);
            }
        }
        if schedules.is_empty() {
            continue;
        }
        let (queued, _) = World::new(ranks, false, runs).run(&schedules, false);
        let (by_hand, landed) = World::new(ranks, true, runs).run(&schedules, true);
        assert_eq!(queued, by_hand, "run {runs}");
        landings += landed;
        works += queued.values().map(Vec::len).sum::<usize>();
        runs += 1;
    }
    assert!(works > 100_000, "{works} pieces of work");
    assert!(landings > 10_000, "{landings} slices could land");
}

/// The work that is left when errands were done, each of which must be the only work of its operation on its rank.
fn without(mut done: Done, errands: &Errands) -> Done {
    for ((rank, operation), (errand, connections)) in errands {
        let works = done.get_mut(&(*rank, 0)).unwrap();
        let at = works.iter().position(|work| work.operation == *operation).unwrap();
        let work = works.remove(at);
        assert!(works.get(at).is_none_or(|next| next.operation != *operation));
        let place = |(buffer, offset): (Buffer, Bytes)| Place::Buffer(buffer, offset.0 / 4);
        let own = |places: &[Place]| places.iter().copied().find(|one| matches!(one, Place::Buffer(..)));
        assert_eq!(own(&work.sources), errand.from.map(place));
        assert_eq!(own(&work.targets), errand.into.map(place));
        assert_eq!(errand.length.0, 4 * work.count);
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
fn small_operations_in_the_shortest_way_are_the_same_work() {
    let mut dice = Random::from_seed(12);
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
        let ranks = dice.below(3) as u32 + 2;
        let mut schedules: Vec<Arc<Schedule>> = Vec::new();
        for _ in 0..=dice.below(3) {
            let call = Call::new(*dice.pick(&collectives), dice.below(40));
            let choice = Choice::new(*dice.pick(&algorithms), Protocol::Simple);
            let choice = Choice { buffer: Some(Bytes(8 * 512)), ..choice };
            let Ok(schedule) = build(&call, &choice, &Wiring::flat(ranks)) else { continue };
            let schedule = Arc::new(schedule);
            schedules.extend((0..=dice.below(60)).map(|_| Arc::clone(&schedule)));
        }
        let (queued, _) = World::new(ranks, false, runs).run(&schedules, false);
        let (one_by_one, errands, begun) = World::new(ranks, true, runs).run_one_by_one(&schedules);
        carried += errands.len();
        assert_eq!(without(queued, &errands), one_by_one, "run {runs}");
        short += begun;
        all += u64::from(ranks) * schedules.len() as u64;
        runs += 1;
    }
    assert!(short > 1000 && short < all, "{short} of {all}");
    assert!(carried > 500, "{carried} errands");
}

/// What a peer says that means something else is found out in the shortest way too, before an operation or in the middle of it.
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
