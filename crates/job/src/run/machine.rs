//! The machine that runs programs, sans I/O.
//!
//! After each call, take all of [`Machine::poll_entry`]: ranks that enter a communication. The driver carries it, and calls
//! [`Machine::finished`] for each rank when it is done there. Computing is the machine's own affair: call
//! [`Machine::handle_timeout`] when [`Machine::poll_timeout`] says.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use railnet_core::{Rank, Span, Time};
use smallvec::SmallVec;

use super::workers::{Worker, Workers};
use crate::graph::{Communication, Operation, Program, StepGraph, Stream, Work};

/// The least that communication leaves of a GPU, in parts of 1,000.
const LEFT_LEAST: u64 = 250;

/// An operation of a worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    /// The worker's place among the workers.
    pub worker: u32,
    /// The operation's place in its program.
    pub operation: u32,
}

/// When an operation ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When the rank came to it.
    pub entered: Time,
    /// When all had come, and it began.
    pub begun: Time,
    /// When it was done.
    pub ended: Time,
    /// Who came last, where it was somebody else.
    pub last: Option<Ticket>,
}

const NOT_YET: Record = Record { entered: Time::NEVER, begun: Time::NEVER, ended: Time::NEVER, last: None };

/// What a worker computes at the moment.
#[derive(Debug)]
struct Running {
    operation: u32,
    /// What is left of it, on a GPU that does nothing else.
    left: Span,
    since: Time,
    /// Counts changes of its end: older timeouts are void.
    version: u32,
}

#[derive(Debug)]
struct State {
    /// Operations done, or under way, of each stream.
    heads: [u32; Stream::ALL.len()],
    busy: [bool; Stream::ALL.len()],
    /// What each operation still waits for.
    missing: Vec<u32>,
    /// One on each stream that computes: they share the GPU evenly.
    running: SmallVec<[Running; 1]>,
    /// Multiprocessors that communication has, in parts of 1,000 of all.
    taken: u64,
    taken_by: Vec<(u32, u64)>,
    records: Vec<Record>,
    left: u32,
    version: u32,
}

/// Runs the graph of a step.
#[derive(Debug)]
pub struct Machine<'a> {
    graph: &'a StepGraph,
    workers: Vec<Worker>,
    states: Vec<State>,
    timeouts: BinaryHeap<Reverse<(Time, u32, u32)>>,
    entries: VecDeque<Ticket>,
}

impl<'a> Machine<'a> {
    /// A machine at the beginning of a step, which begins at this time.
    pub fn new(graph: &'a StepGraph, workers: Workers, now: Time) -> Self {
        let workers = workers.workers;
        let state = |worker: &Worker| {
            let program = &graph.programs[worker.program as usize];
            let operations = &program.operations;
            State {
                heads: [0; Stream::ALL.len()],
                busy: [false; Stream::ALL.len()],
                missing: operations.iter().map(|operation| operation.after.len() as u32).collect(),
                running: SmallVec::new(),
                taken: 0,
                taken_by: Vec::new(),
                records: vec![NOT_YET; operations.len()],
                left: operations.len() as u32,
                version: 0,
            }
        };
        let states = workers.iter().map(state).collect();
        let mut machine =
            Self { graph, workers, states, timeouts: BinaryHeap::new(), entries: VecDeque::new() };
        for worker in 0..machine.workers.len() as u32 {
            for stream in Stream::ALL {
                machine.advance(worker, stream, now);
            }
        }
        machine
    }

    /// The graph that it runs.
    pub fn graph(&self) -> &'a StepGraph {
        self.graph
    }

    /// Those who run it.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// What a worker runs.
    pub fn program(&self, worker: u32) -> &'a Program {
        &self.graph.programs[self.workers[worker as usize].program as usize]
    }

    /// When each operation of a worker ran.
    pub fn records(&self, worker: u32) -> &[Record] {
        &self.states[worker as usize].records
    }

    /// What ran on a stream of a worker, in order, and when: a row of a trace.
    pub fn timeline(
        &self,
        worker: u32,
        stream: Stream,
    ) -> impl Iterator<Item = (&'a Operation, Record)> + '_ {
        let program = self.program(worker);
        let records = self.records(worker);
        let numbers = program.streams[stream as usize].iter();
        numbers.map(move |number| (&program.operations[*number as usize], records[*number as usize]))
    }

    /// An operation of a worker.
    pub fn operation(&self, ticket: Ticket) -> &'a Operation {
        &self.program(ticket.worker).operations[ticket.operation as usize]
    }

    /// What a worker that came out of [`Machine::poll_entry`] says, and which rank it is.
    pub fn communication(&self, ticket: Ticket) -> (Rank, &'a Communication) {
        match &self.operation(ticket).work {
            Work::Communicate(said) => (self.workers[ticket.worker as usize].rank, said),
            Work::Compute { .. } => unreachable!("only communication is entered"),
        }
    }

    /// A rank that has come to a communication.
    pub fn poll_entry(&mut self) -> Option<Ticket> {
        self.entries.pop_front()
    }

    /// When something is computed next.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        while let Some(Reverse((time, worker, version))) = self.timeouts.peek().copied() {
            let running = &self.states[worker as usize].running;
            if running.iter().any(|running| running.version == version) {
                return Some(time);
            }
            self.timeouts.pop();
        }
        None
    }

    /// It is this time: what is computed by now is done.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(time) = self.poll_timeout() {
            if time > now {
                break;
            }
            let Some(Reverse((_, worker, version))) = self.timeouts.pop() else { break };
            let running = &mut self.states[worker as usize].running;
            let Some(place) = running.iter().position(|one| one.version == version) else { continue };
            // The others have more of the GPU from now on.
            self.settle(worker, time);
            let running = self.states[worker as usize].running.remove(place);
            self.plan(worker);
            let record = &mut self.states[worker as usize].records[running.operation as usize];
            record.ended = time;
            self.done(Ticket { worker, operation: running.operation }, time);
        }
    }

    /// A communication has so many of 1,000 multiprocessors of the rank that entered it, until it is finished there.
    pub fn occupy(&mut self, ticket: Ticket, permille: u32, now: Time) {
        if permille == 0 {
            return;
        }
        let state = &mut self.states[ticket.worker as usize];
        state.taken_by.push((ticket.operation, u64::from(permille)));
        self.change_share(ticket.worker, now);
    }

    /// A communication is done on this rank. It began when all had come, the last of them being `last`.
    pub fn finished(&mut self, ticket: Ticket, begun: Time, last: Ticket, now: Time) {
        let state = &mut self.states[ticket.worker as usize];
        let record = &mut state.records[ticket.operation as usize];
        record.begun = begun;
        record.ended = now;
        record.last = (last != ticket).then_some(last);
        let before = state.taken_by.len();
        state.taken_by.retain(|(operation, _)| *operation != ticket.operation);
        if state.taken_by.len() != before {
            self.change_share(ticket.worker, now);
        }
        self.done(ticket, now);
    }

    /// Whether every worker is through.
    pub fn is_done(&self) -> bool {
        self.states.iter().all(|state| state.left == 0)
    }

    /// It is given up at this time: what is under way counts up to then, and what was not begun took no time.
    pub fn stop(&mut self, now: Time) {
        for record in self.states.iter_mut().flat_map(|state| &mut state.records) {
            if record.ended.is_set() {
                continue;
            }
            record.entered = record.entered.min(now);
            record.begun = if record.begun.is_set() { record.begun } else { now };
            record.ended = now;
        }
    }

    /// The communication that ranks wait in that are not through: to explain a stall.
    pub fn waiting(&self) -> impl Iterator<Item = Ticket> + '_ {
        let all = self.states.iter().enumerate().filter(|(_, state)| state.left > 0);
        let entered = all.flat_map(|(worker, state)| {
            let entered = state.records.iter().enumerate();
            let entered = entered.filter(|(_, record)| record.entered.is_set() && !record.ended.is_set());
            entered.map(move |(operation, _)| Ticket { worker: worker as u32, operation: operation as u32 })
        });
        entered.filter(|ticket| matches!(self.operation(*ticket).work, Work::Communicate(_)))
    }

    /// Communication takes more or less of a GPU from now on: what it computes goes on at another speed.
    fn change_share(&mut self, worker: u32, now: Time) {
        self.settle(worker, now);
        let state = &mut self.states[worker as usize];
        let taken: u64 = state.taken_by.iter().map(|(_, permille)| permille).sum();
        state.taken = taken.min(1_000 - LEFT_LEAST);
        self.plan(worker);
    }

    /// Counts what was computed since the share of the GPU last changed.
    fn settle(&mut self, worker: u32, now: Time) {
        let state = &mut self.states[worker as usize];
        let rate = u128::from(1_000 - state.taken);
        let together = state.running.len() as u128;
        for running in &mut state.running {
            let gone = u128::from(now.since(running.since).as_ps());
            let done = (gone * rate / (1_000 * together)) as u64;
            running.left = Span::from_ps(running.left.as_ps().saturating_sub(done));
            running.since = now;
        }
    }

    /// When what a worker computes will be done.
    fn plan(&mut self, worker: u32) {
        let state = &mut self.states[worker as usize];
        let rate = u128::from(1_000 - state.taken);
        let together = state.running.len() as u128;
        for running in &mut state.running {
            state.version += 1;
            running.version = state.version;
            let takes = (u128::from(running.left.as_ps()) * 1_000 * together).div_ceil(rate) as u64;
            let end = running.since + Span::from_ps(takes);
            self.timeouts.push(Reverse((end, worker, running.version)));
        }
    }

    /// An operation is done: its stream goes on, and those that waited for it may.
    fn done(&mut self, ticket: Ticket, now: Time) {
        let Ticket { worker, operation } = ticket;
        let program = self.program(worker);
        let stream = program.operations[operation as usize].stream;
        let state = &mut self.states[worker as usize];
        state.left -= 1;
        state.busy[stream as usize] = false;
        for dependent in program.dependents(operation) {
            state.missing[*dependent as usize] -= 1;
        }
        self.advance(worker, stream, now);
        for dependent in program.dependents(operation) {
            let other = program.operations[*dependent as usize].stream;
            if other != stream {
                self.advance(worker, other, now);
            }
        }
    }

    /// Starts what comes next on a stream, if it can.
    fn advance(&mut self, worker: u32, stream: Stream, now: Time) {
        let place = self.workers[worker as usize];
        let program = self.program(worker);
        let state = &mut self.states[worker as usize];
        let queue = &program.streams[stream as usize];
        let Some(operation) = queue.get(state.heads[stream as usize] as usize).copied() else { return };
        if state.busy[stream as usize] || state.missing[operation as usize] > 0 {
            return;
        }
        state.heads[stream as usize] += 1;
        state.busy[stream as usize] = true;
        let record = &mut state.records[operation as usize];
        record.entered = now;
        match program.operations[operation as usize].work {
            Work::Compute { time, experts } => {
                record.begun = now;
                let scaled = |span: Span, permille: u32| span * u64::from(permille) / 1_000;
                let left = scaled(time + scaled(experts, place.expert_permille), place.permille);
                self.settle(worker, now);
                let running = &mut self.states[worker as usize].running;
                running.push(Running { operation, left, since: now, version: 0 });
                self.plan(worker);
            }
            Work::Communicate(_) => self.entries.push_back(Ticket { worker, operation }),
        }
    }
}
