//! The driver of a storm: builds the world of a plan, posts its messages, and notes what completes.

use railnet_core::{GhostRun, GhostTag, QueuePairNumber, Random, Span, Time};
use railnet_nic::frame::WireForm;
use railnet_nic::memory::Memory;
use railnet_nic::{Completion, Operation, PostError, ReceiveRequest, SendRequest, Status};

use super::Sabotage;
use super::observer::Observer;
use super::plan::{Act, Message, POOL, Plan};
use super::violation::Violation;
use crate::application::Application;
use crate::network::Network;
use crate::testing::World;

/// Marks the work of a receive; the rest is the number of the message.
const RECEIVE: u64 = 1 << 32;
/// How often a run is stopped to look at its state.
const LOOKS: u64 = 24;
/// How far a run goes after that before it is asked whether it goes anywhere.
const STRIDE: Span = Span::from_ms(200);
/// Longer than a NIC waits for an answer before it gives up.
const PATIENCE: Span = Span::from_secs(2);

/// How a message ended at either end.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Ended {
    /// At the one who asked: every message ends there.
    pub(super) request: Option<Status>,
    /// At the one whose receive it takes.
    pub(super) receive: Option<Status>,
}

/// A message, ready to be posted.
struct Job {
    asks: (u32, QueuePairNumber),
    serves: (u32, QueuePairNumber),
    request: SendRequest,
    receive: Option<ReceiveRequest>,
    length: u32,
}

/// The application of a storm.
#[derive(Default)]
pub(super) struct Books {
    jobs: Vec<Job>,
    pub(super) ended: Vec<Ended>,
    /// The first thing that must not happen.
    pub(super) wrong: Option<Violation>,
    /// A completion to hide.
    hidden: Option<u64>,
    completions: u64,
}

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) world: World<Observer>,
    pub(super) books: Books,
    /// What each host's pool holds: its tag, or its bytes.
    pub(super) pools: Vec<(GhostTag, Vec<u8>)>,
    /// It came to its end by itself.
    pub(super) is_quiet: bool,
    sabotage: Option<Sabotage>,
}

impl<'a> Run<'a> {
    pub(super) fn new(plan: &'a Plan, form: WireForm, sabotage: Option<Sabotage>) -> Self {
        let mut world = World::watched(&plan.graph, plan.options.clone(), Observer::default());
        world.network.set_wire(form);
        world.network.sink.fastest = plan.graph.links.iter().map(|link| link.rate).max();
        match form {
            WireForm::Values => world.network.sink.in_order = true,
            WireForm::Bytes => {
                world.network.use_epochs();
                let hosts = plan.graph.hosts.len() as u32;
                world.network.partition_by_host((0..hosts).collect(), Span::MAX);
            }
        }
        let pools = fill(&mut world, plan);
        let connections: Vec<_> = plan
            .connections
            .iter()
            .map(|link| {
                world.connect_with(link.ends[0], link.ends[1], |connection| {
                    connection.path.traffic_class = link.traffic_class;
                    (connection.send_psn, connection.receive_psn) = (link.psn, link.psn);
                })
            })
            .collect();
        let jobs = plan.messages.iter().enumerate();
        let jobs =
            jobs.map(|(index, message)| job(&world, plan, connections[message.connection], index, message));
        let hidden = match sabotage {
            Some(Sabotage::HideCompletion { number }) => Some(number),
            _ => None,
        };
        let ended = vec![Ended::default(); plan.messages.len()];
        let books = Books { jobs: jobs.collect(), ended, hidden, ..Books::default() };
        for (index, message) in plan.messages.iter().enumerate() {
            world.network.call_at(message.start, index as u32);
        }
        for &(at, fault) in &plan.faults {
            world.network.fault_at(at, fault);
        }
        Self { plan, world, books, pools, is_quiet: false, sabotage }
    }

    /// Runs to the end, and looks at the state of the network on the way.
    pub(super) fn drive(&mut self) -> Result<(), Violation> {
        let mut random = Random::stream(self.plan.options.seed, "fabric storm looks", 0);
        for _ in 0..LOOKS {
            let ahead = Span::from_ns(random.between(1, 30_000));
            self.is_quiet = self.world.network.run(&mut self.books, self.world.network.now + ahead);
            self.disturb();
            self.look()?;
        }
        // In a deadlock pauses are refreshed for ever: once every retry limit has passed, that is an end too.
        while !self.is_quiet && self.world.network.now < self.plan.limit {
            if self.world.network.now > Time::ZERO + PATIENCE && self.is_locked() {
                break;
            }
            let until = (self.world.network.now + STRIDE).min(self.plan.limit);
            self.is_quiet = self.world.network.run(&mut self.books, until);
        }
        self.look()
    }

    /// Packets that will never move: they wait for each other in a circle.
    pub(super) fn is_locked(&self) -> bool {
        let network = &self.world.network;
        network.packets_in_flight() > 0 && !network.stall().cycle.is_empty()
    }

    pub(super) fn unfinished(&self) -> usize {
        self.books.ended.iter().filter(|ended| ended.request.is_none()).count()
    }

    fn look(&mut self) -> Result<(), Violation> {
        if let Some(wrong) = self.books.wrong.take() {
            return Err(wrong);
        }
        if let Some(what) = self.world.network.sink.contradiction.take() {
            return Err(Violation::new("events contradict each other").found(what));
        }
        let audited = self.world.network.audit();
        audited.map_err(|what| Violation::new("the state of the network contradicts itself").found(what))?;
        super::balance::check(&self.world, false)
    }

    /// Falsifies something that the checks must notice.
    fn disturb(&mut self) {
        let network = &mut self.world.network;
        match self.sabotage {
            Some(Sabotage::LosePacketSilently) => {
                let full = network.fabric.channels.iter_mut().find(|channel| channel.occupied != 0);
                if let Some(channel) = full
                    && let queue = &mut channel.queues[channel.occupied.trailing_zeros() as usize]
                    && let Some(waiting) = queue.pop(&mut network.fabric.pool)
                {
                    network.fabric.packets.release(waiting.packet());
                    self.sabotage = None;
                }
            }
            Some(Sabotage::ForgetMemory { bytes }) => {
                network.fabric.switches[0].buffer.used += bytes;
                self.sabotage = None;
            }
            _ => {}
        }
    }
}

/// Puts something into every host's pool that no other host has.
fn fill(world: &mut World<Observer>, plan: &Plan) -> Vec<(GhostTag, Vec<u8>)> {
    (0..plan.graph.hosts.len() as u32)
        .map(|host| {
            let mut random = Random::stream(plan.options.seed, "fabric storm pool", u64::from(host));
            let tag = GhostTag { sum: u128::from(random.next_u64()) << 32 | 1, origin: random.next_u64() };
            let (space, address) = (world.space(host), world.address(0));
            let memory = &mut world.network.memory;
            if plan.options.is_ghost {
                memory.write_ghost(space, address, GhostRun { tag, length: POOL as u32 });
                return (tag, Vec::new());
            }
            let bytes: Vec<u8> = (0..POOL).map(|index| tag.pattern(index)).collect();
            memory.write(space, address, &bytes);
            (tag, bytes)
        })
        .collect()
}

fn job(
    world: &World<Observer>,
    plan: &Plan,
    (first, second): (QueuePairNumber, QueuePairNumber),
    index: usize,
    message: &Message,
) -> Job {
    let (asks, serves) = message.ends(plan);
    let pairs = if message.is_reverse { (second, first) } else { (first, second) };
    let Message { from, to, length, .. } = *message;
    let (operation, local) = match message.act {
        Act::Write => (Operation::WriteImmediate(world.remote(serves, to), index as u32), from),
        Act::Send => (Operation::SendImmediate(index as u32), from),
        Act::Read => (Operation::Read(world.remote(serves, from)), to),
    };
    let receive = ReceiveRequest::new(RECEIVE | index as u64);
    let receive = match message.act {
        Act::Write => Some(receive),
        Act::Send => Some(receive.with(world.sge(serves, to, length))),
        Act::Read => None,
    };
    Job {
        asks: (asks, pairs.0),
        serves: (serves, pairs.1),
        request: SendRequest::new(index as u64, operation).with(world.sge(asks, local, length)),
        receive,
        length,
    }
}

impl Books {
    fn accuse(&mut self, violation: Violation) {
        self.wrong.get_or_insert(violation);
    }

    /// Posting fails only on a queue pair that is in error: its work counts as flushed.
    fn posted(&mut self, index: usize, posted: Result<(), PostError>, is_receive: bool) {
        match posted {
            Ok(()) => {}
            Err(PostError::State { .. }) => {
                let ended = &mut self.ended[index];
                *(if is_receive { &mut ended.receive } else { &mut ended.request }) = Some(Status::Flushed);
            }
            Err(error) => self.accuse(Violation::new(format!("message {index} is refused")).found(error)),
        }
    }
}

impl Application<Observer> for Books {
    fn completed(&mut self, _network: &mut Network<Observer>, host: u32, completion: &Completion) {
        self.completions += 1;
        if self.hidden == Some(self.completions) {
            return;
        }
        let index = (completion.work & (RECEIVE - 1)) as usize;
        let is_receive = completion.work & RECEIVE != 0;
        let job = &self.jobs[index];
        let (expected, length) = (if is_receive { job.serves } else { job.asks }, job.length);
        let ended = &mut self.ended[index];
        let place = if is_receive { &mut ended.receive } else { &mut ended.request };
        let before = place.replace(completion.status);
        let kind = if is_receive { "receive" } else { "request" };
        let wrong = |what: &str| Violation::new(format!("the {kind} of message {index} {what}"));
        if let Some(before) = before {
            let found = format!("{before}, then {}", completion.status);
            self.accuse(wrong("completes twice").found(found));
        } else if expected != (host, completion.queue_pair) {
            self.accuse(
                wrong("completes elsewhere").found(format!("host {host}, {:?}", completion.queue_pair)),
            );
        } else if completion.status == Status::Success
            && is_receive
            && (completion.length != length || completion.immediate != Some(index as u32))
        {
            let found = format!("{} B, immediate {:?}", completion.length, completion.immediate);
            self.accuse(wrong("tells another message").expected(format!("{length} B")).found(found));
        }
    }

    fn called(&mut self, network: &mut Network<Observer>, token: u32) {
        let index = token as usize;
        let Job { asks, serves, request, receive, .. } = &self.jobs[index];
        let (asks, serves, request) = (*asks, *serves, request.clone());
        if let Some(receive) = receive.clone() {
            let (nic, mut cx) = network.nic(serves.0);
            let posted = nic.post_recv(&mut cx, serves.1, receive);
            self.posted(index, posted, true);
        }
        let (nic, mut cx) = network.nic(asks.0);
        let posted = nic.post_send(&mut cx, asks.1, request);
        self.posted(index, posted, false);
        network.kick(asks.0);
        network.kick(serves.0);
    }
}
