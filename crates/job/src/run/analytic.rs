//! Drives the machine with formulas instead of packets: NCCL's cost model for collectives, bounded by what the interconnect
//! carries. Milliseconds for thousands of GPUs.

mod caveat;
mod contention;
mod cost;
mod interconnect;
mod pipeline;
mod predict;
mod traffic;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use railnet_core::{Rank, Span, Time};
use smallvec::SmallVec;
use thiserror::Error;

pub use caveat::Caveat;
pub(crate) use cost::NIC_PERCENT;
pub use cost::{Bottleneck, Carries, ClusterCosts, Rates, Spread};
pub use interconnect::{HostPath, Interconnect, KernelCosts};
pub use predict::{Caller, Prediction, Question, predict};

use contention::Pace;

use super::machine::{Machine, Ticket};
use super::workers::Workers;
use crate::graph::{Communication, StepGraph, Stream, What};
use crate::parallel::{Axis, Group, Scope};

/// What a communication takes once all have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Price {
    /// From the last rank's entry to the end.
    pub time: Span,
    /// Multiprocessors of each GPU that it runs on, in parts of 1,000.
    pub permille: u32,
    /// The part of its time in which it keeps the interconnect busy by itself, in parts of 1,000: others that communicate at the
    /// same time slow it down where they need the rest and more.
    pub network_permille: u32,
}

/// What is asked of a network.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What is said.
    pub said: &'a Communication,
    /// Who says it.
    pub group: &'a Group,
    /// The sender and the receiver of a message between two.
    pub pair: Option<[Rank; 2]>,
    /// How many times its even share the busiest rank gets.
    pub load: f64,
}

/// Knows what communication takes.
pub trait Network {
    /// What this takes.
    fn price(&mut self, asked: &Asked<'_>) -> Result<Price, NoPrice>;
}

/// A communication cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NoPrice {
    /// There are no channels.
    #[error(transparent)]
    Search(#[from] railnet_coll::search::SearchError),
    /// No algorithm can run it.
    #[error(transparent)]
    Choice(#[from] railnet_coll::tuner::NoChoice),
    /// Nothing writes there.
    #[error(
        "a checkpoint is written, but {server} has no drives and no storage is named: give [storage] a rate"
    )]
    NoStorage {
        /// The server.
        server: String,
    },
    /// A rank is on no node.
    #[error("rank {rank} is beyond the {gpus} GPUs of the cluster")]
    NoSuchGpu {
        /// The rank.
        rank: u32,
        /// GPUs there are.
        gpus: u32,
    },
    /// Nothing moves, and not everybody is through: a mistake in the graph.
    #[error("the step is stalled: rank {rank} waits in {what}")]
    Stalled {
        /// The rank that waits.
        rank: u32,
        /// For what.
        what: String,
    },
}

/// Which communication of which ranks: the number of calls that they made before on that stream tells it from others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Group { stream: Stream, scope: Scope, first: u32, number: u32 },
    Pair { stream: Stream, from: u32, to: u32, number: u32 },
}

/// Those who have come so far: mostly one stands for all.
type Meeting = SmallVec<[Ticket; 2]>;

/// Prices that are kept for each worker: its layers say the same again and again.
const PRICES: usize = 16;

/// A communication under way.
#[derive(Debug)]
struct UnderWay {
    begun: Time,
    last: Ticket,
    tickets: Meeting,
    pace: Pace,
}

/// Runs a step, from time zero to its end.
pub fn run<'a>(
    graph: &'a StepGraph,
    workers: Workers,
    network: &mut impl Network,
) -> Result<Machine<'a>, NoPrice> {
    let mut driver = Driver::new(Machine::new(graph, workers, Time::ZERO));
    driver.enter(Time::ZERO, network)?;
    loop {
        let computed = driver.machine.poll_timeout();
        let said = driver.ends.peek().map(|Reverse((time, ..))| *time);
        let Some(now) = computed.into_iter().chain(said).min() else { break };
        driver.machine.handle_timeout(now);
        while driver.ends.peek().is_some_and(|Reverse((time, ..))| *time == now) {
            let Some(Reverse((_, _, slot))) = driver.ends.pop() else { break };
            // What was slowed down since, or is over, has another end.
            let is_due = driver.under_way[slot as usize].as_ref().is_some_and(|one| one.pace.end == now);
            if is_due {
                driver.end(now, slot);
            }
        }
        driver.enter(now, network)?;
    }
    if let Some(stuck) = driver.machine.waiting().next() {
        let (rank, said) = driver.machine.communication(stuck);
        return Err(NoPrice::Stalled { rank: rank.0, what: format!("{:?}", said.what) });
    }
    Ok(driver.machine)
}

struct Driver<'a> {
    machine: Machine<'a>,
    meetings: BTreeMap<Key, Meeting>,
    /// Calls that each worker made on each stream of each scope, and to each other rank.
    numbers: BTreeMap<(u32, Stream, Scope, u32), u32>,
    /// How many workers each group has.
    sizes: BTreeMap<(Scope, u32), usize>,
    groups: Vec<[Option<Group>; Scope::ALL.len()]>,
    /// When each that is under way ends, in what order they began, and where it is kept.
    ends: BinaryHeap<Reverse<(Time, u64, u32)>>,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    started: u64,
    /// Calls under way that need the interconnect, in the order in which they began.
    on_network: Vec<u32>,
    /// The parts of the interconnect that the calls of each worker need, together.
    needs: Vec<f64>,
    prices: Vec<SmallVec<[(Communication, Price); 4]>>,
}

impl<'a> Driver<'a> {
    fn new(machine: Machine<'a>) -> Self {
        let layout = &machine.graph().layout;
        let prices = vec![SmallVec::new(); machine.workers().len()];
        let mut sizes = BTreeMap::new();
        let mut groups = Vec::new();
        for worker in machine.workers() {
            let mut of_worker = [const { None }; Scope::ALL.len()];
            for scope in Scope::ALL {
                // The stages between the ends have no part in what the ends say.
                let is_end =
                    worker.place.pipeline == 0 || worker.place.pipeline + 1 == layout.size(Axis::Pipeline);
                if scope == Scope::Embedding && !is_end {
                    continue;
                }
                let group = layout.group(worker.rank, scope);
                *sizes.entry((scope, group.first.0)).or_insert(0) += 1;
                of_worker[scope as usize] = Some(group);
            }
            groups.push(of_worker);
        }
        Self {
            machine,
            meetings: BTreeMap::new(),
            numbers: BTreeMap::new(),
            sizes,
            groups,
            ends: BinaryHeap::new(),
            under_way: Vec::new(),
            free: Vec::new(),
            started: 0,
            on_network: Vec::new(),
            needs: vec![0.0; prices.len()],
            prices,
        }
    }

    /// Takes in all who have come to something, and starts what is complete.
    fn enter(&mut self, now: Time, network: &mut impl Network) -> Result<(), NoPrice> {
        while let Some(ticket) = self.machine.poll_entry() {
            let stream = self.machine.operation(ticket).stream;
            let (rank, said) = self.machine.communication(ticket);
            let (mut key, needed) = self.key(ticket, rank, said, stream);
            let pair = match key {
                Key::Pair { from, to, .. } => Some([Rank(from), Rank(to)]),
                Key::Group { .. } => None,
            };
            let price = self.price(ticket, said, pair, network)?;
            // A collective has its multiprocessors from the moment a rank enters it; messages between two are started when
            // both sides are there.
            if pair.is_none() {
                self.machine.occupy(ticket, price.permille, now);
            }
            let mut tickets = Meeting::new();
            if needed > 1 {
                self.number(&mut key, ticket, said, stream);
                let meeting = self.meetings.entry(key).or_default();
                meeting.push(ticket);
                if meeting.len() < needed {
                    continue;
                }
                tickets = self.meetings.remove(&key).expect("it was just there");
            } else {
                tickets.push(ticket);
            }
            let pace = Pace::new(now, price.time, price.network_permille);
            self.begin(now, UnderWay { begun: now, last: ticket, tickets, pace });
        }
        Ok(())
    }

    /// All have come.
    fn begin(&mut self, now: Time, under_way: UnderWay) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() as u32 - 1
        });
        let (end, need) = (under_way.pace.end, under_way.pace.need());
        for ticket in &under_way.tickets {
            self.needs[ticket.worker as usize] += need;
        }
        self.under_way[slot as usize] = Some(under_way);
        self.ends.push(Reverse((end, self.started, slot)));
        self.started += 1;
        if need > 0.0 {
            self.on_network.push(slot);
            self.share(now);
        }
    }

    fn end(&mut self, now: Time, slot: u32) {
        let done = self.under_way[slot as usize].take().expect("every end has its communication");
        self.free.push(slot);
        let need = done.pace.need();
        if need > 0.0 {
            self.on_network.retain(|other| *other != slot);
            for ticket in &done.tickets {
                let needs = &mut self.needs[ticket.worker as usize];
                *needs = if self.on_network.is_empty() { 0.0 } else { *needs - need };
            }
            self.share(now);
        }
        for ticket in done.tickets {
            self.machine.finished(ticket, done.begun, done.last, now);
        }
    }

    /// Calls that need the interconnect share it with others of their ranks.
    fn share(&mut self, now: Time) {
        for slot in &self.on_network {
            let Some(one) = &mut self.under_way[*slot as usize] else { continue };
            let needs = one.tickets.iter().map(|ticket| self.needs[ticket.worker as usize]);
            let needs = needs.fold(0.0, f64::max);
            if one.pace.share(now, needs) {
                self.ends.push(Reverse((one.pace.end, self.started, *slot)));
                self.started += 1;
            }
        }
    }

    /// What it takes, which is the same whenever a worker says the same.
    fn price(
        &mut self,
        ticket: Ticket,
        said: &Communication,
        pair: Option<[Rank; 2]>,
        network: &mut impl Network,
    ) -> Result<Price, NoPrice> {
        let known = &mut self.prices[ticket.worker as usize];
        if let Some((_, price)) = known.iter().find(|(other, _)| other == said) {
            return Ok(*price);
        }
        let group = self.groups[ticket.worker as usize][said.scope as usize].as_ref();
        let group = group.expect("a rank says things only in its groups");
        let load = if said.scope == Scope::Expert { self.machine.graph().loads[0] } else { 1.0 };
        let price = network.price(&Asked { said, group, pair, load })?;
        if known.len() < PRICES {
            known.push((*said, price));
        }
        Ok(price)
    }

    /// Gives a meeting its number: that of calls that its ranks made before.
    fn number(&mut self, key: &mut Key, ticket: Ticket, said: &Communication, stream: Stream) {
        // A rank may have messages for several others on a stream: those for each are counted apart.
        let other = match said.what {
            What::Send { stage } | What::Receive { stage } => stage,
            _ => u32::MAX,
        };
        let count = self.numbers.entry((ticket.worker, stream, said.scope, other)).or_insert(0);
        let (Key::Group { number, .. } | Key::Pair { number, .. }) = key;
        *number = *count;
        *count += 1;
    }

    fn key(&self, ticket: Ticket, rank: Rank, said: &Communication, stream: Stream) -> (Key, usize) {
        let number = 0;
        let elsewhere = |stage: u32| {
            let place = self.machine.workers()[ticket.worker as usize].place.at(Axis::Pipeline, stage);
            self.machine.graph().layout.rank(place).0
        };
        match said.what {
            What::Send { stage } => (Key::Pair { stream, from: rank.0, to: elsewhere(stage), number }, 2),
            What::Receive { stage } => {
                let stream = match stream {
                    Stream::ReceiveForward => Stream::SendForward,
                    _ => Stream::SendBackward,
                };
                (Key::Pair { stream, from: elsewhere(stage), to: rank.0, number }, 2)
            }
            What::Collective(_) | What::Push | What::Pull | What::Write => {
                let group = self.groups[ticket.worker as usize][said.scope as usize].as_ref();
                let first = group.map_or(rank.0, |group| group.first.0);
                let needed = self.sizes.get(&(said.scope, first)).copied().unwrap_or(1);
                (Key::Group { stream, scope: said.scope, first, number }, needed)
            }
        }
    }
}
