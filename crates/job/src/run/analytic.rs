//! Drives the machine without packets: by formulas ([`run`]: NCCL's cost model for collectives, bounded by what the interconnect
//! carries), or with a [`Carrier`] that shares links among all calls that are under way.

mod caveat;
mod contention;
mod cost;
mod interconnect;
mod pipeline;
mod predict;
mod traffic;

use std::collections::BTreeMap;

use railnet_core::{Rank, Span, Time};
use smallvec::SmallVec;
use thiserror::Error;

pub use caveat::Caveat;
pub(crate) use cost::NIC_PERCENT;
pub use cost::{Bottleneck, CallPlan, Carries, ClusterCosts, Coflow, Rates, Spread};
pub use interconnect::{HostPath, Interconnect, KernelCosts, Resource};
pub use predict::{Caller, Prediction, Question, predict};

use contention::Paced;

use super::machine::{Machine, Ticket};
use super::workers::Workers;
use crate::graph::{Communication, StepGraph, Stream, What, Work};
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

/// Carries calls from the moment when all their ranks have come. Its driver tells [`StepRun::end`] when one is over.
pub trait Carrier {
    /// What the carrier keeps of a call that it has priced.
    type Plan: Copy;

    /// What this takes if nothing is in its way, and how it is carried.
    fn price(&mut self, asked: &Asked<'_>) -> Result<(Price, Self::Plan), NoPrice>;

    /// All ranks of a call have come; the call is named by `slot` until it is over.
    fn begin(&mut self, now: Time, slot: u32, begun: &Begun<'_, Self::Plan>);
}

/// A call that begins.
#[derive(Clone, Copy, Debug)]
pub struct Begun<'a, P> {
    /// What it takes alone.
    pub price: Price,
    /// How it is carried.
    pub plan: P,
    /// The operations of the workers that make it.
    pub tickets: &'a [Ticket],
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

impl Key {
    fn pair(self) -> Option<[Rank; 2]> {
        match self {
            Self::Pair { from, to, .. } => Some([Rank(from), Rank(to)]),
            Self::Group { .. } => None,
        }
    }
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
}

/// Runs a step by formulas, from time zero to its end.
pub fn run<'a>(
    graph: &'a StepGraph,
    workers: Workers,
    network: &mut impl Network,
) -> Result<Machine<'a>, NoPrice> {
    let mut carrier = Paced::new(network, workers.workers.len());
    let mut step = StepRun::new(graph, workers, Time::ZERO);
    let mut ended = Vec::new();
    step.enter(Time::ZERO, &mut carrier)?;
    while let Some(now) = step.next_timeout().into_iter().chain(carrier.next_end()).min() {
        step.handle_timeout(now);
        carrier.advance(now, &mut ended);
        for slot in ended.drain(..) {
            step.end(now, slot);
        }
        step.enter(now, &mut carrier)?;
    }
    step.finish()
}

/// A step under way: ranks compute, meet in calls, and go on when these are over.
#[derive(Debug)]
pub struct StepRun<'a, P> {
    machine: Machine<'a>,
    meetings: BTreeMap<Key, Meeting>,
    /// Calls that each worker made on each stream of each scope, and to each other rank.
    numbers: BTreeMap<(u32, Stream, Scope, u32), u32>,
    /// How many workers each group has.
    sizes: BTreeMap<(Scope, u32), usize>,
    groups: Vec<[Option<Group>; Scope::ALL.len()]>,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    prices: Vec<Prices<P>>,
}

/// What a worker has asked for, and what it takes.
type Prices<P> = SmallVec<[(Communication, Price, P); 4]>;

impl<'a, P: Copy> StepRun<'a, P> {
    /// A step that begins at this time. [`StepRun::enter`] is to be called next.
    pub fn new(graph: &'a StepGraph, workers: Workers, now: Time) -> Self {
        let machine = Machine::new(graph, workers, now);
        let layout = &machine.graph().layout;
        let prices = machine.workers().iter().map(|_| SmallVec::new()).collect();
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
            under_way: Vec::new(),
            free: Vec::new(),
            prices,
        }
    }

    /// Has every call of the step priced, so that the carrier knows of all of them before the first begins.
    pub fn prepare(&mut self, carrier: &mut impl Carrier<Plan = P>) -> Result<(), NoPrice> {
        for worker in 0..self.machine.workers().len() as u32 {
            let operations = &self.machine.program(worker).operations;
            for (operation, state) in (0..).zip(operations) {
                if let Work::Communicate(said) = &state.work {
                    let ticket = Ticket { worker, operation };
                    let rank = self.machine.workers()[worker as usize].rank;
                    let (key, _) = self.key(ticket, rank, said, state.stream);
                    self.price(ticket, said, key.pair(), carrier)?;
                }
            }
        }
        Ok(())
    }

    /// When a rank has computed something next.
    pub fn next_timeout(&mut self) -> Option<Time> {
        self.machine.poll_timeout()
    }

    /// The time has come. [`StepRun::enter`] is to be called before the next moment.
    pub fn handle_timeout(&mut self, now: Time) {
        self.machine.handle_timeout(now);
    }

    /// Whether all ranks are through.
    pub fn is_over(&self) -> bool {
        self.machine.is_done()
    }

    /// What the step came to, when nothing happens any more.
    pub fn finish(self) -> Result<Machine<'a>, NoPrice> {
        if let Some(stuck) = self.machine.waiting().next() {
            let (rank, said) = self.machine.communication(stuck);
            return Err(NoPrice::Stalled { rank: rank.0, what: format!("{:?}", said.what) });
        }
        Ok(self.machine)
    }

    /// Takes in all who have come to something, and starts what is complete.
    pub fn enter(&mut self, now: Time, carrier: &mut impl Carrier<Plan = P>) -> Result<(), NoPrice> {
        while let Some(ticket) = self.machine.poll_entry() {
            let stream = self.machine.operation(ticket).stream;
            let (rank, said) = self.machine.communication(ticket);
            let (mut key, needed) = self.key(ticket, rank, said, stream);
            let pair = key.pair();
            let (price, plan) = self.price(ticket, said, pair, carrier)?;
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
            let slot = self.free.pop().unwrap_or_else(|| {
                self.under_way.push(None);
                self.under_way.len() as u32 - 1
            });
            carrier.begin(now, slot, &Begun { price, plan, tickets: &tickets });
            self.under_way[slot as usize] = Some(UnderWay { begun: now, last: ticket, tickets });
        }
        Ok(())
    }

    /// A call is over. [`StepRun::enter`] is to be called before the next moment.
    pub fn end(&mut self, now: Time, slot: u32) {
        let done = self.under_way[slot as usize].take().expect("every end has its communication");
        self.free.push(slot);
        for ticket in done.tickets {
            self.machine.finished(ticket, done.begun, done.last, now);
        }
    }

    /// What it takes, which is the same whenever a worker says the same.
    fn price(
        &mut self,
        ticket: Ticket,
        said: &Communication,
        pair: Option<[Rank; 2]>,
        carrier: &mut impl Carrier<Plan = P>,
    ) -> Result<(Price, P), NoPrice> {
        let known = &mut self.prices[ticket.worker as usize];
        if let Some((_, price, plan)) = known.iter().find(|(other, ..)| other == said) {
            return Ok((*price, *plan));
        }
        let group = self.groups[ticket.worker as usize][said.scope as usize].as_ref();
        let group = group.expect("a rank says things only in its groups");
        let load = if said.scope == Scope::Expert { self.machine.graph().loads[0] } else { 1.0 };
        let (price, plan) = carrier.price(&Asked { said, group, pair, load })?;
        if known.len() < PRICES {
            known.push((*said, price, plan));
        }
        Ok((price, plan))
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
