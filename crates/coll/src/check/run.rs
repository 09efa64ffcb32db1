//! The greedy run: every worker goes as far as it can, again and again, until all are done or nobody can.
//!
//! Workers block only on queues of which they are the one sender or the one receiver, and on steps of others. So what a
//! worker can do stays possible whatever the others do, and one run decides: if it ends, every run ends, and with the same
//! contents. Slices do not matter for that: a chunk that goes whole could also have gone slice by slice.

use std::collections::VecDeque;
use std::mem;

use railnet_core::{GhostTag, Rank};
use railnet_nic::memory::GhostRuns;

use super::error::{CheckError, Fault, StepId, Wrong};
use super::hazard::Hazards;
use super::links::{Links, NONE, Name};
use super::meaning::{Words, tag};
use super::memory::RankMemory;
use super::traffic::{combine, tag_in};
use crate::outputs::{Outputs, Source};
use crate::schedule::{Buffer, Connection, Peer, Piece, Schedule, Step};

/// What went wrong, boxed: a run has millions of results that are fine.
pub(super) type Failed = Box<CheckError>;

/// One worker on its way.
pub(super) struct Worker {
    pub(super) rank: u32,
    pub(super) number: u32,
    pub(super) steps: u64,
    /// Steps that are over: the number of the one it is at.
    pub(super) done: u64,
    pub(super) waits: Waits,
    /// The step it is at, while it waits.
    step: Option<Step>,
    /// The links of that step that were looked up: of its receives, then of its sends.
    links: Vec<u32>,
    /// Steps of others that were found to be over.
    afters: usize,
    /// Its round, and whether its last step sent something.
    round: u32,
    has_sent: bool,
    /// The first of those who wait for one of its steps, and the next of those who wait with it for another's.
    first_waiter: u32,
    next_waiter: u32,
}

impl Worker {
    /// The links from which the step it is at receives.
    pub(super) fn received(&self, step: &Step) -> &[u32] {
        &self.links[..step.receives.len()]
    }
}

/// What a worker waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waits {
    Nothing,
    Chunk { link: u32 },
    Room { link: u32 },
    Step { worker: u32, step: u64 },
}

/// A step that was done, for those who want to see the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The rank that did the step.
    pub rank: u32,
    /// Which worker.
    pub worker: u32,
    /// Which step.
    pub step: u64,
    /// In which round, if all chunks took the same time: what a step sends in one round, others use in the next.
    pub round: u32,
    /// How many ranks' contributions are in its result; 0 where it has none.
    pub contributions: u32,
}

/// What a run found out about a step that does not say everything about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inferred {
    /// The rank of the worker.
    pub rank: u32,
    /// Which worker.
    pub worker: u32,
    /// Which step.
    pub step: u64,
    /// The element of the inputs that its first element is made of; none where it moves nothing.
    pub origin: Option<u64>,
    /// Whether every contribution comes together here.
    pub is_final: bool,
    /// A bit for each of its sources (up to 64): whether that is the rank's own input as it was given.
    pub own: u64,
}

/// What to look at when contributions are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Suspect {
    /// An element of the output of a rank.
    Output { rank: u32, element: u64 },
    /// An element of the result of a step, counted from its first.
    Result { worker: u32, step: u64, at: u64 },
}

/// A run of a schedule.
pub(super) struct Run<'a> {
    pub(super) schedule: &'a Schedule,
    words: Words,
    /// The first worker of each rank, and the number of all at the end.
    pub(super) first_worker: Vec<u32>,
    pub(super) workers: Vec<Worker>,
    pub(super) memories: Vec<RankMemory>,
    pub(super) links: Links,
    ready: VecDeque<u32>,
    pub(super) hazards: Option<Hazards>,
    /// Rounds of all steps so far of each worker, where they are wanted.
    rounds: Option<Vec<Vec<u32>>>,
    pub(super) log: Vec<Done>,
    /// What was found out about each step, where that is wanted: then steps need not say it themselves.
    pub(super) inferred: Option<Vec<Inferred>>,
    own: u64,
    /// What failed and should be looked at with counting words, or what this run looks at.
    pub(super) suspect: Option<Suspect>,
    /// What was seen there: the last step that wrote the element, the contents of the result.
    pub(super) writer: Option<(u32, u64)>,
    pub(super) seen: Option<GhostTag>,
    pub(super) steps: u64,
    pub(super) chunks: u64,
    /// Elements that each rank sent.
    pub(super) sent: Vec<u64>,
    pub(super) result: GhostRuns,
    other: GhostRuns,
}

impl<'a> Run<'a> {
    pub(super) fn new(schedule: &'a Schedule, words: Words) -> Result<Self, Failed> {
        let fifo = &schedule.fifo;
        let room = fifo.depth / fifo.slots_per_chunk().max(1);
        if room == 0 {
            let chunk = fifo.slots_per_chunk();
            return Err(Box::new(CheckError::Slots { chunk, depth: fifo.depth }));
        }
        let program = &*schedule.program;
        let mut first_worker = Vec::with_capacity(schedule.ranks as usize + 1);
        let mut workers = Vec::new();
        for rank in 0..schedule.ranks {
            first_worker.push(workers.len() as u32);
            workers.extend((0..program.workers(rank)).map(|number| Worker {
                rank,
                number,
                steps: program.steps(rank, number),
                done: 0,
                waits: Waits::Nothing,
                step: None,
                links: Vec::new(),
                afters: 0,
                round: 0,
                has_sent: false,
                first_waiter: NONE,
                next_waiter: NONE,
            }));
        }
        first_worker.push(workers.len() as u32);
        let memories =
            (0..schedule.ranks).map(|rank| RankMemory::new(schedule, rank, words.raw[rank as usize]));
        Ok(Self {
            schedule,
            first_worker,
            ready: (0..workers.len() as u32).collect(),
            workers,
            memories: memories.collect(),
            words,
            links: Links::new(room),
            hazards: None,
            rounds: None,
            log: Vec::new(),
            inferred: None,
            own: 0,
            suspect: None,
            writer: None,
            seen: None,
            steps: 0,
            chunks: 0,
            sent: vec![0; schedule.ranks as usize],
            result: GhostRuns::new(),
            other: GhostRuns::new(),
        })
    }

    /// Also keeps what was done in which round.
    pub(super) fn logged(&mut self) {
        self.rounds = Some(vec![Vec::new(); self.workers.len()]);
    }

    /// Lets everybody go as far as they can.
    pub(super) fn go(&mut self) -> Result<(), Failed> {
        while let Some(worker) = self.ready.pop_front() {
            while self.workers[worker as usize].done < self.workers[worker as usize].steps {
                if !self.advance(worker)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether everything is over.
    pub(super) fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| worker.done == worker.steps)
    }

    /// The first output element that is not what it should be.
    pub(super) fn wrong_output(&self) -> Option<(u32, u64, Source)> {
        let outputs = Outputs::new(&self.schedule.call, self.schedule.ranks);
        let mut stretches = Vec::new();
        for rank in 0..self.schedule.ranks {
            outputs.of(Rank(rank), &mut stretches);
            for stretch in &stretches {
                let tag = tag(stretch, &self.words);
                let memory = &self.memories[rank as usize];
                if let Some(element) = memory.differs(stretch.start, stretch.count, tag) {
                    return Some((rank, element, *stretch));
                }
            }
        }
        None
    }

    /// What a step of a worker is called.
    pub(super) fn place(&self, worker: u32, number: u64) -> StepId {
        let one = &self.workers[worker as usize];
        let step = self.schedule.program.step(one.rank, one.number, number);
        place_of(one, number, &step)
    }

    /// Does the step a worker is at, if it can.
    fn advance(&mut self, worker: u32) -> Result<bool, Failed> {
        let one = &mut self.workers[worker as usize];
        let step = match one.step.take() {
            Some(step) => step,
            None => {
                let step = self.schedule.program.step(one.rank, one.number, one.done);
                one.links.clear();
                one.afters = 0;
                step
            }
        };
        let waits = self.missing(worker, &step)?;
        if waits == Waits::Nothing {
            self.perform(worker, &step)?;
            return Ok(true);
        }
        self.wait(worker, waits);
        self.workers[worker as usize].step = Some(step);
        Ok(false)
    }

    fn fail<T>(&self, worker: u32, step: &Step, fault: Fault) -> Result<T, Failed> {
        let one = &self.workers[worker as usize];
        Err(Box::new(CheckError::Step { place: place_of(one, one.done, step), fault }))
    }

    /// What a step still has to wait for. What was there once stays there, so nothing is looked at twice.
    fn missing(&mut self, worker: u32, step: &Step) -> Result<Waits, Failed> {
        while self.workers[worker as usize].afters < step.after.len() {
            let one = &self.workers[worker as usize];
            let after = step.after[one.afters];
            let first = self.first_worker[one.rank as usize];
            let last = self.first_worker[one.rank as usize + 1];
            let target = first.saturating_add(after.worker);
            if target >= last || after.step >= self.workers[target as usize].steps {
                return self.fail(worker, step, Fault::NoSuchStep { worker: after.worker, step: after.step });
            }
            if self.workers[target as usize].done <= after.step {
                return Ok(Waits::Step { worker: target, step: after.step });
            }
            self.workers[worker as usize].afters += 1;
        }
        let receives = step.receives.len();
        // The last link that was looked up may be the one that it waited for.
        if let Some(link) = self.workers[worker as usize].links.pop() {
            let position = self.workers[worker as usize].links.len();
            if let Some(waits) = self.blocked(link, position < receives) {
                self.workers[worker as usize].links.push(link);
                return Ok(waits);
            }
            self.workers[worker as usize].links.push(link);
        }
        loop {
            let position = self.workers[worker as usize].links.len();
            let is_receive = position < receives;
            let on =
                if is_receive { step.receives.get(position) } else { step.sends.get(position - receives) };
            let Some(on) = on else { return Ok(Waits::Nothing) };
            let link = self.link(worker, step, on, is_receive)?;
            self.workers[worker as usize].links.push(link);
            if let Some(waits) = self.blocked(link, is_receive) {
                return Ok(waits);
            }
        }
    }

    fn blocked(&self, link: u32, is_receive: bool) -> Option<Waits> {
        let queued = self.links.all[link as usize].queued;
        if is_receive {
            (queued == 0).then_some(Waits::Chunk { link })
        } else {
            (queued == self.links.room).then_some(Waits::Room { link })
        }
    }

    /// The link behind a connection of a step; it belongs to the worker from now on.
    fn link(&mut self, worker: u32, step: &Step, on: &Connection, is_receive: bool) -> Result<u32, Failed> {
        let one = &self.workers[worker as usize];
        let name = if is_receive { Name::received_by(one.rank, on) } else { Name::sent_by(one.rank, on) };
        let with = if is_receive { name.seen_by_receiver() } else { name.seen_by_sender() };
        let exists = match on.peer {
            Peer::Rank(rank) => rank < self.schedule.ranks,
            Peer::Switch(group) => (group as usize) < self.schedule.groups.len(),
        };
        if !exists {
            return self.fail(worker, step, Fault::NoSuchPeer { with });
        }
        let Some(link) = self.links.get(name, self.schedule) else {
            return self.fail(worker, step, Fault::NotInGroup { with, is_send: !is_receive });
        };
        let found = &mut self.links.all[link as usize];
        let (end, named_at) = if is_receive {
            (&mut found.receiver, &mut found.received_at)
        } else {
            (&mut found.sender, &mut found.sent_at)
        };
        if *end == NONE {
            *end = worker;
        }
        let owner = *end;
        if owner != worker {
            let owner = self.workers[owner as usize].number;
            return self.fail(worker, step, Fault::SharedConnection { with, worker: owner });
        }
        let number = self.workers[worker as usize].done;
        if mem::replace(named_at, number) == number {
            return self.fail(worker, step, Fault::Twice { with });
        }
        Ok(link)
    }

    fn wait(&mut self, worker: u32, waits: Waits) {
        self.workers[worker as usize].waits = waits;
        match waits {
            Waits::Nothing => {}
            Waits::Chunk { link } => self.links.all[link as usize].receiver_waits = true,
            Waits::Room { link } => self.links.all[link as usize].sender_waits = true,
            Waits::Step { worker: target, .. } => {
                let next = mem::replace(&mut self.workers[target as usize].first_waiter, worker);
                self.workers[worker as usize].next_waiter = next;
            }
        }
    }

    pub(super) fn wake(&mut self, worker: u32) {
        self.workers[worker as usize].waits = Waits::Nothing;
        self.ready.push_back(worker);
    }

    /// Does a step for which everything is there.
    fn perform(&mut self, worker: u32, step: &Step) -> Result<(), Failed> {
        let uses_connections = !step.receives.is_empty() || !step.sends.is_empty();
        let bytes = self.schedule.call.dtype.bytes(step.count);
        let fits = self.schedule.fifo.chunk();
        if uses_connections && bytes > fits {
            return self.fail(worker, step, Fault::TooLong { bytes, fits });
        }
        if step.count > u64::from(u32::MAX) {
            let reason = format!("a step with {} elements", step.count);
            return Err(Box::new(CheckError::TooLarge { reason }));
        }
        if let Some(hazards) = &mut self.hazards {
            hazards.join(worker, step, &self.workers, &self.first_worker, &self.links);
        }
        let links = mem::take(&mut self.workers[worker as usize].links);
        let (received, sent) = links.split_at(step.receives.len());
        self.gather(worker, step, received)?;
        if let Some(Suspect::Result { worker: wanted, step: number, at }) = self.suspect
            && (wanted, number) == (worker, self.workers[worker as usize].done)
        {
            self.seen = Some(tag_in(&self.result, at));
        }
        if self.inferred.is_some() {
            self.infer(worker);
        } else if step.is_final && self.schedule.call.collective.reduces() {
            self.finish(worker, step)?;
        }
        for piece in &step.stores {
            self.store(worker, step, *piece)?;
        }
        let round = self.round(worker, step, received);
        if let Some(hazards) = &mut self.hazards {
            let one = &self.workers[worker as usize];
            hazards.access(worker, step, one, &self.memories[one.rank as usize]).map_err(|conflict| {
                let first = self.place(conflict.first.0, conflict.first.1);
                let second = self.place(worker, self.workers[worker as usize].done);
                Box::new(CheckError::Race {
                    first,
                    first_writes: conflict.first_writes,
                    second,
                    second_writes: conflict.second_writes,
                    buffer: conflict.buffer,
                    element: conflict.element,
                })
            })?;
            let one = &self.workers[worker as usize];
            self.hazards.as_mut().expect("it is there").pass(worker, one.done);
        }
        for link in received {
            self.take(*link)?;
        }
        for link in sent {
            self.send(worker, step, *link, round)?;
        }
        self.workers[worker as usize].links = links;
        self.end(worker, round, !step.sends.is_empty());
        Ok(())
    }

    /// Reduces everything that comes in to one result.
    fn gather(&mut self, worker: u32, step: &Step, received: &[u32]) -> Result<(), Failed> {
        let mut result = mem::take(&mut self.result);
        let mut other = mem::take(&mut self.other);
        result.clear();
        let mut is_first = true;
        for link in received {
            let chunk = &self.links.chunks[self.links.front(*link) as usize];
            if chunk.count != step.count {
                let from = self.place(chunk.from.0, chunk.from.1);
                let fault = Fault::Length { from, sent: chunk.count, expected: step.count };
                return self.fail(worker, step, fault);
            }
            if is_first {
                result.clone_from(&chunk.runs);
            } else if let Err((one, other)) = combine(&mut result, &chunk.runs, &mut other) {
                return self.fail(worker, step, Fault::Unlike { one, other });
            }
            is_first = false;
        }
        self.own = 0;
        for (index, piece) in step.sources.iter().enumerate() {
            let into = if is_first { &mut result } else { &mut other };
            let is_own = self.load(worker, step, *piece, into)?;
            self.own |= u64::from(is_own && index < 64) << (index & 63);
            if !is_first {
                let loaded = mem::take(&mut other);
                if let Err((one, other)) = combine(&mut result, &loaded, &mut other) {
                    return self.fail(worker, step, Fault::Unlike { one, other });
                }
            }
            is_first = false;
        }
        if is_first && step.count > 0 && !(step.stores.is_empty() && step.sends.is_empty()) {
            return self.fail(worker, step, Fault::FromNothing);
        }
        (self.result, self.other) = (result, other);
        Ok(())
    }

    /// Reads local data, and says whether it is the input as it was given.
    fn load(&self, worker: u32, step: &Step, piece: Piece, into: &mut GhostRuns) -> Result<bool, Failed> {
        into.clear();
        self.inside(worker, step, piece)?;
        if step.count == 0 {
            return Ok(false);
        }
        let rank = self.workers[worker as usize].rank;
        self.memories[rank as usize].read(piece.buffer, piece.offset, step.count as u32, into);
        let mut element = piece.offset;
        let mut is_own = true;
        for run in into.iter_mut() {
            if run.tag.sum == 0 {
                let is_sent = !step.sends.is_empty();
                let fault = Fault::NotReady { buffer: piece.buffer, element, is_sent };
                return self.fail(worker, step, fault);
            }
            let (raw, given) = (self.words.raw[rank as usize], self.words.given[rank as usize]);
            is_own &= run.tag.sum == raw;
            if raw != given && (piece.buffer == Buffer::Input || self.inferred.is_some()) {
                if run.tag.sum == raw {
                    run.tag.sum = given;
                } else if self.inferred.is_none() {
                    return self.fail(worker, step, Fault::NotItsInput);
                }
            }
            element += u64::from(run.length);
        }
        Ok(is_own)
    }

    fn inside(&self, worker: u32, step: &Step, piece: Piece) -> Result<(), Failed> {
        let rank = self.workers[worker as usize].rank;
        let length = self.memories[rank as usize].area(piece.buffer).length;
        if piece.offset.checked_add(step.count).is_some_and(|end| end <= length) {
            return Ok(());
        }
        let Piece { buffer, offset } = piece;
        self.fail(worker, step, Fault::PastTheEnd { buffer, offset, count: step.count, length })
    }

    /// Where every contribution has to be in the result.
    fn finish(&mut self, worker: u32, step: &Step) -> Result<(), Failed> {
        let mut at = 0;
        for run in &mut self.result {
            if run.tag.sum != self.words.full {
                let number = self.workers[worker as usize].done;
                self.suspect = Some(Suspect::Result { worker, step: number, at });
                return self.fail(worker, step, Fault::NotFinal { wrong: Wrong::Unknown });
            }
            run.tag.sum = self.words.divided;
            at += u64::from(run.length);
        }
        Ok(())
    }

    /// Notes what a step is about and whether it is final, whatever it says itself.
    fn infer(&mut self, worker: u32) {
        let one = &self.workers[worker as usize];
        let reduces = self.schedule.call.collective.reduces();
        let is_final = reduces && self.result.iter().any(|run| run.tag.sum == self.words.full);
        let found = Inferred {
            rank: one.rank,
            worker: one.number,
            step: one.done,
            origin: self.result.first().map(|run| run.tag.origin),
            is_final,
            own: self.own,
        };
        for run in self.result.iter_mut().filter(|run| is_final && run.tag.sum == self.words.full) {
            run.tag.sum = self.words.divided;
        }
        self.inferred.iter_mut().for_each(|list| list.push(found));
    }

    fn store(&mut self, worker: u32, step: &Step, piece: Piece) -> Result<(), Failed> {
        self.inside(worker, step, piece)?;
        let one = &self.workers[worker as usize];
        let memory = &mut self.memories[one.rank as usize];
        if piece.buffer == Buffer::Input && !memory.may_overwrite_input {
            return self.fail(worker, step, Fault::OverwritesInput);
        }
        let mut offset = piece.offset;
        for run in &self.result {
            memory.write(piece.buffer, offset, *run);
            offset += u64::from(run.length);
        }
        if let Some(Suspect::Output { rank, element }) = self.suspect
            && rank == one.rank
        {
            let (output, area) = (memory.area(Buffer::Output), memory.area(piece.buffer));
            let (first, wanted) = (area.base + piece.offset, output.base + element);
            if area.space == output.space && (first..first + step.count).contains(&wanted) {
                self.writer = Some((worker, one.done));
            }
        }
        Ok(())
    }

    /// The round of a step, where rounds are wanted.
    fn round(&mut self, worker: u32, step: &Step, received: &[u32]) -> u32 {
        let Some(rounds) = &mut self.rounds else { return 0 };
        let one = &self.workers[worker as usize];
        let mut round = one.round + u32::from(one.has_sent && !step.sends.is_empty());
        for link in received {
            round = round.max(self.links.chunks[self.links.front(*link) as usize].round + 1);
        }
        for after in &step.after {
            let target = self.first_worker[one.rank as usize] + after.worker;
            round = round.max(rounds[target as usize][after.step as usize]);
        }
        rounds[worker as usize].push(round);
        let contributions = self.result.first().map_or(0, |run| Words::contributions(run.tag.sum));
        self.log.push(Done { rank: one.rank, worker: one.number, step: one.done, round, contributions });
        round
    }

    fn end(&mut self, worker: u32, round: u32, has_sent: bool) {
        self.steps += 1;
        let one = &mut self.workers[worker as usize];
        (one.round, one.has_sent) = (round, has_sent || (one.has_sent && one.round == round));
        one.done += 1;
        let done = one.done;
        let mut waiter = mem::replace(&mut one.first_waiter, NONE);
        while waiter != NONE {
            let next = self.workers[waiter as usize].next_waiter;
            match self.workers[waiter as usize].waits {
                waits @ Waits::Step { step, .. } if step >= done => self.wait(waiter, waits),
                _ => self.wake(waiter),
            }
            waiter = next;
        }
    }

    /// Whether a rank has come to a barrier before another leaves it is a matter of [`Hazards`]; this asks it.
    pub(super) fn barrier(&self) -> Result<(), Failed> {
        let Some(hazards) = &self.hazards else { return Ok(()) };
        for rank in 0..self.schedule.ranks {
            let own = self.workers_of(rank);
            let missing = (0..self.schedule.ranks).find(|other| {
                *other != rank && !own.clone().any(|one| hazards.knows_any(one, self.workers_of(*other)))
            });
            if let Some(missing) = missing {
                return Err(Box::new(CheckError::Barrier { rank, missing }));
            }
        }
        Ok(())
    }

    pub(super) fn workers_of(&self, rank: u32) -> std::ops::Range<u32> {
        self.first_worker[rank as usize]..self.first_worker[rank as usize + 1]
    }

    /// What a suspect holds at the end.
    pub(super) fn contents(&self, suspect: Suspect) -> Option<GhostTag> {
        match suspect {
            Suspect::Output { rank, element } => {
                Some(self.memories[rank as usize].tag_at(Buffer::Output, element))
            }
            Suspect::Result { .. } => self.seen,
        }
    }
}

fn place_of(one: &Worker, number: u64, step: &Step) -> StepId {
    let channel = step.receives.first().or(step.sends.first()).map(|on| on.channel);
    StepId { rank: one.rank, worker: one.number, channel, step: number, chunk: step.chunk }
}

/// Elements of all inputs and outputs, to be refused where they cannot be counted.
pub(super) fn elements(schedule: &Schedule) -> Option<u64> {
    let mut sum = 0u64;
    for rank in (0..schedule.ranks).map(Rank) {
        sum = sum.checked_add(schedule.call.input_count(rank, schedule.ranks))?;
        sum = sum.checked_add(schedule.call.output_count(rank, schedule.ranks))?;
    }
    Some(sum)
}
