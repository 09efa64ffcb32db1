//! Machines behind NICs, on a wire that can be made bad.

use std::collections::BTreeMap;
use std::sync::Arc;

use railnet_core::event::NoSink;
use railnet_core::{Random, Rank, Span};
use railnet_nic::memory::SpaceId;
use railnet_nic::testing::{Faults, Lab as Wires, loopback_gid};
use railnet_nic::{Access, CompletionQueue, Nic, NicConfig, Path, ProtectionDomain};

use super::buffers::{Buffers, Data, add};
use super::lab::{LabError, Wire};
use crate::conduit::SlotMemory;
use crate::conduit::net::{Fill, NetConfig, Receiver, Sender};
use crate::machine::{
    Applier, ConnectionId, Direction, Failure, Filled, OperationId, Output, Place, RankMachine, Work,
};
use crate::schedule::{Connection, Schedule};

/// How a lab of NICs is made.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// What data is made of.
    pub data: Data,
    /// How connections use queue pairs.
    pub net: NetConfig,
    /// What the wire does to packets.
    pub faults: Faults,
    /// Bytes of the slots of a connection, at most.
    pub buffer: u64,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

/// Half of a conduit.
#[derive(Debug)]
enum Half {
    Sends(Sender, SlotMemory),
    Receives(Receiver),
}

#[derive(Debug)]
struct End {
    rank: u32,
    connection: ConnectionId,
    half: Half,
}

/// Machines of one communicator, a NIC each.
#[derive(Debug)]
pub struct NetworkLab {
    /// The machines.
    pub machines: Vec<RankMachine>,
    /// The NICs, the wire between them, and all memory.
    pub wires: Wires<NoSink>,
    /// What ranks were told, if they failed.
    pub failures: BTreeMap<u32, Arc<Failure>>,
    options: NetworkOptions,
    domains: Vec<(ProtectionDomain, CompletionQueue)>,
    /// Halves by their token, and where both of a connection are.
    ends: Vec<End>,
    pairs: BTreeMap<Wire, [Option<u32>; 2]>,
    /// The half of each connection of each rank.
    tokens: Vec<BTreeMap<ConnectionId, u32>>,
    buffers: BTreeMap<OperationId, Buffers>,
    /// Work that is not done: slots are in use until it is.
    work: Vec<(u32, Work)>,
    random: Random,
    applier: Applier,
}

impl NetworkLab {
    /// So many ranks, each with a NIC that `adjust` may change.
    pub fn new(ranks: u32, options: NetworkOptions, adjust: impl Fn(&mut NicConfig)) -> Self {
        let nics = (0..ranks as usize).map(|index| {
            let mut config = Wires::<NoSink>::nic_config(index, options.seed);
            adjust(&mut config);
            Nic::new(config)
        });
        let mut wires = Wires::new(nics.collect(), options.seed, NoSink);
        wires.faults = options.faults;
        let domains = wires.nics.iter_mut().map(|nic| {
            (nic.alloc_pd(), nic.create_cq(1 << 16).expect("the depth is within the NIC's limit"))
        });
        Self {
            machines: (0..ranks).map(|rank| RankMachine::new(Rank(rank), ranks)).collect(),
            domains: domains.collect(),
            wires,
            failures: BTreeMap::new(),
            random: Random::stream(options.seed, "lab", 1),
            options,
            ends: Vec::new(),
            pairs: BTreeMap::new(),
            tokens: vec![BTreeMap::new(); ranks as usize],
            buffers: BTreeMap::new(),
            work: Vec::new(),
            applier: Applier::new(),
        }
    }

    /// Submits a schedule on all ranks.
    pub fn submit(&mut self, schedule: &Schedule) {
        let schedule = Arc::new(schedule.clone());
        for rank in 0..schedule.ranks {
            self.submit_on(rank, &schedule);
        }
    }

    /// Submits a schedule on one rank. The buffers are made with the first.
    pub fn submit_on(&mut self, rank: u32, schedule: &Arc<Schedule>) {
        let Self { wires, options, random, .. } = self;
        let id = self.machines[rank as usize].submit(wires.now, schedule).expect("nothing is broken yet");
        let make = || Buffers::new(&mut wires.memory, schedule, options.data, random);
        self.buffers.entry(id).or_insert_with(make);
        self.drain(rank);
    }

    /// Runs until nothing happens any more, for ten seconds of the lab's time at most, then looks at results.
    pub fn run(&mut self) -> Result<(), LabError> {
        let limit = self.wires.now + Span::from_secs(10);
        self.settle();
        while self.machines.iter().any(|machine| machine.unfinished() > 0)
            && self.failures.is_empty()
            && self.wires.now < limit
            && (self.wires.step() || !self.work.is_empty())
        {
            self.settle();
        }
        if let Some((rank, failure)) = self.failures.first_key_value() {
            return Err(LabError::Failed(*rank, Arc::clone(failure)));
        }
        let stuck = self.machines.iter().filter(|machine| machine.unfinished() > 0);
        let stuck: Vec<_> = stuck.map(|machine| (machine.rank().0, machine.waiting_for())).collect();
        if !stuck.is_empty() {
            return Err(LabError::Stuck(stuck));
        }
        for (id, buffers) in &self.buffers {
            let bytes = buffers.wrong(&self.wires.memory);
            if bytes > 0 {
                return Err(LabError::Wrong { operation: id.0, bytes });
            }
        }
        Ok(())
    }

    /// Slots that are filled and wait for their receiver.
    pub fn waiting(&self) -> usize {
        let waiting = |end: &End| match &end.half {
            Half::Sends(sender, _) => sender.waiting(),
            Half::Receives(_) => 0,
        };
        self.ends.iter().map(waiting).sum()
    }

    /// Hands completions and clear-to-sends to their conduits, and does some of the work.
    fn settle(&mut self) {
        for (rank, work) in std::mem::take(&mut self.work) {
            if self.random.below(8) == 0 {
                self.apply(rank, &work);
                self.machines[rank as usize].finished(self.wires.now, work.id);
                self.drain(rank);
            } else {
                self.work.push((rank, work));
            }
        }
        for rank in 0..self.machines.len() {
            for completion in self.wires.completions(rank, self.domains[rank].1) {
                let End { rank, connection, half } = &mut self.ends[(completion.work >> 32) as usize];
                let (machine, now) = (&mut self.machines[*rank as usize], self.wires.now);
                let told = match half {
                    Half::Sends(sender, _) => sender.completed(&completion).map(|count| {
                        (0..count).for_each(|_| machine.freed(now, *connection));
                    }),
                    Half::Receives(receiver) => receiver.completed(&completion).map(|count| {
                        (0..count).for_each(|_| machine.arrived(now, *connection));
                    }),
                };
                if let Err(error) = told {
                    machine.broken(*connection, error.to_string());
                }
            }
            self.drain(rank as u32);
        }
        for token in 0..self.ends.len() {
            let End { rank, connection, half } = &mut self.ends[token];
            let Half::Sends(sender, _) = half else { continue };
            let (nic, mut cx) = self.wires.nic(*rank as usize);
            let heard = sender.poll(nic, &mut cx).expect("the send queue is long enough");
            if let Some(mark) = heard {
                self.machines[*rank as usize].heard(self.wires.now, *connection, mark);
            }
            let rank = *rank;
            self.drain(rank);
        }
    }

    fn drain(&mut self, rank: u32) {
        while let Some(output) = self.machines[rank as usize].poll_output() {
            match output {
                Output::Connect { connection, to, direction } => {
                    self.connect(rank, connection, to, direction);
                }
                Output::Expect(expect) => {
                    let token = self.tokens[rank as usize][&expect.connection];
                    let Half::Receives(receiver) = &mut self.ends[token as usize].half else { continue };
                    let (nic, mut cx) = self.wires.nic(rank as usize);
                    receiver.expect(nic, &mut cx, expect).expect("the queues are long enough");
                }
                Output::Work(id) => self.work.push((rank, self.machines[rank as usize].work(id))),
                Output::Filled(filled) => self.fill(rank, &filled),
                Output::Emptied { connection, .. } => {
                    let token = self.tokens[rank as usize][&connection];
                    let Half::Receives(receiver) = &mut self.ends[token as usize].half else { continue };
                    let (nic, mut cx) = self.wires.nic(rank as usize);
                    receiver.emptied(nic, &mut cx).expect("the queues are long enough");
                }
                Output::Notice { to, notice } => {
                    for other in 0..self.machines.len() as u32 {
                        if to.map_or(other != rank, |to| to.0 == other) {
                            let machine = &mut self.machines[other as usize];
                            machine.notice(self.wires.now, Rank(rank), (*notice).clone());
                            self.drain(other);
                        }
                    }
                }
                Output::Finished(_) => {}
                Output::Failed(failure) => {
                    self.failures.insert(rank, failure);
                }
            }
        }
    }

    fn connect(&mut self, rank: u32, connection: ConnectionId, to: Connection, direction: Direction) {
        let token = self.ends.len() as u32;
        let (domain, queue) = self.domains[rank as usize];
        let data = self.options.data;
        let slots = self.memory(rank, data, self.options.buffer);
        let net = self.options.net;
        let made = match direction {
            Direction::Send => {
                let ring = self.memory(rank, Data::Bytes, Sender::RING_BYTES);
                self.wires.memory.bytes_mut(ring.space).fill(0);
                let nic = &mut self.wires.nics[rank as usize];
                Sender::new(nic, domain, queue, net, token, ring).map(|sender| Half::Sends(sender, slots))
            }
            Direction::Receive => {
                let nic = &mut self.wires.nics[rank as usize];
                Receiver::new(nic, domain, queue, net, token, slots).map(Half::Receives)
            }
        };
        let half = made.expect("the NIC has queue pairs left");
        self.ends.push(End { rank, connection, half });
        self.tokens[rank as usize].insert(connection, token);
        let pair = self.pairs.entry(Wire::new(rank, to, direction)).or_default();
        pair[usize::from(direction == Direction::Receive)] = Some(token);
        if let [Some(sender), Some(receiver)] = *pair {
            self.join(sender, receiver);
        }
    }

    /// Connects the halves of a conduit.
    fn join(&mut self, sender: u32, receiver: u32) {
        let handle = |half: &Half| match half {
            Half::Sends(sender, _) => sender.handle(),
            Half::Receives(receiver) => receiver.handle(),
        };
        for (own, other) in [(sender, receiver), (receiver, sender)] {
            let other = &self.ends[other as usize];
            let (peer, path) = (handle(&other.half), Path::to(loopback_gid(other.rank as usize)));
            let End { rank, half, .. } = &mut self.ends[own as usize];
            let (nic, mut cx) = self.wires.nic(*rank as usize);
            let result = match half {
                Half::Sends(sender, _) => sender.connect(nic, &mut cx, path, &peer),
                Half::Receives(receiver) => receiver.connect(nic, &mut cx, path, &peer),
            };
            result.expect("both ends are made alike");
        }
    }

    /// Memory that a NIC may use.
    fn memory(&mut self, rank: u32, data: Data, length: u64) -> SlotMemory {
        let (space, address) = add(&mut self.wires.memory, data, length);
        let nic = &mut self.wires.nics[rank as usize];
        let domain = self.domains[rank as usize].0;
        let key = nic.reg_mr(&self.wires.memory, domain, space, address, length, Access::ALL, None);
        SlotMemory { space, address, key: key.expect("the memory was just made") }
    }

    fn fill(&mut self, rank: u32, filled: &Filled) {
        let layout = filled.layout;
        let End { connection, half, .. } =
            &mut self.ends[self.tokens[rank as usize][&filled.connection] as usize];
        let Half::Sends(sender, slots) = half else { return };
        let fill = Fill {
            address: slots.slot(&layout, filled.slot),
            length: filled.bytes.0 as u32,
            key: slots.key,
            mark: filled.mark,
            label: filled.tag.into(),
        };
        let (nic, mut cx) = self.wires.nic(rank as usize);
        let heard = sender.fill(nic, &mut cx, fill).expect("the send queue is long enough");
        if let Some(mark) = heard {
            self.machines[rank as usize].heard(self.wires.now, *connection, mark);
        }
    }

    fn slots(&self, rank: u32, connection: ConnectionId) -> SlotMemory {
        match &self.ends[self.tokens[rank as usize][&connection] as usize].half {
            Half::Sends(_, slots) => *slots,
            Half::Receives(receiver) => *receiver.slots(),
        }
    }

    fn apply(&mut self, rank: u32, work: &Work) {
        let layout = work.layout;
        let schedule = self.machines[rank as usize].schedule(work.operation).cloned();
        let schedule = schedule.expect("it runs");
        let mut memory = std::mem::take(&mut self.wires.memory);
        let mut applier = std::mem::take(&mut self.applier);
        let locate = |place: Place| -> (SpaceId, u64) {
            match place {
                Place::Buffer(buffer, element) => self.buffers[&work.operation].locate(rank, buffer, element),
                Place::Slot(connection, slot) => {
                    let slots = self.slots(rank, connection);
                    (slots.space, slots.slot(&layout, slot))
                }
            }
        };
        let done = applier.apply(&mut memory, work, &schedule.call, schedule.ranks, locate);
        done.expect("the lab has all memory");
        (self.wires.memory, self.applier) = (memory, applier);
    }
}
