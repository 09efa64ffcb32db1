//! The driver of a storm: an application that posts, polls, and writes everything into the books.

use railnet_core::{Span, Time};

use super::ledger::Ledger;
use super::plan::{Plan, Scenario};
use super::violation::Violation;
use super::world::{RECEIVE, SHARED, World, is_signaled};
use super::{Sabotage, image::Image};
use crate::completion::Completion;
use crate::device::AsyncEvent;
use crate::error::PostError;
use crate::queue_pair::{Attributes, Service, State};
use crate::testing::Fate;

/// More steps than this are a livelock.
const STEPS_MAX: u64 = 400_000;

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) world: World,
    pub(super) ledger: Ledger,
    pub(super) image: Image,
    sabotage: Option<Sabotage>,
    /// When each end may post its next job, its next receive, and each NIC its next shared receive.
    job_after: Vec<Time>,
    receive_after: Vec<Time>,
    shared_after: Vec<Time>,
    shared_posted: Vec<usize>,
    struck: bool,
    completions: u64,
    steps: u64,
    /// What had been posted and completed when the NICs last had nothing to do.
    idle_at: Option<u64>,
}

impl<'a> Run<'a> {
    pub(super) fn new(plan: &'a Plan, world: World, sabotage: Option<Sabotage>) -> Self {
        let first = |delay: Option<Span>| Time::ZERO + delay.unwrap_or(Span::ZERO);
        let job_after = plan.ends.iter().map(|end| first(end.jobs.first().map(|job| job.delay)));
        let receive_after =
            plan.ends.iter().map(|end| first(end.receives.first().map(|receive| receive.delay)));
        let shared_after = plan.nics.iter().map(|nic| first(nic.shared.first().map(|receive| receive.delay)));
        Self {
            job_after: job_after.collect(),
            receive_after: receive_after.collect(),
            shared_after: shared_after.collect(),
            shared_posted: vec![0; plan.nics.len()],
            image: Image::of(&world),
            ledger: Ledger::new(plan),
            plan,
            world,
            sabotage,
            struck: false,
            completions: 0,
            steps: 0,
            idle_at: None,
        }
    }

    /// Runs to the end of all work, and on until the wire is empty.
    pub(super) fn drive(&mut self) -> Result<(), Box<Violation>> {
        if let Some(Sabotage::Silence { after }) = self.sabotage {
            let mut count = 0;
            self.world.lab.set_judge(move |_, _, _| {
                count += 1;
                if count > after { Fate::Lose } else { Fate::Deliver }
            });
        }
        while !self.is_finished() {
            self.act()?;
            self.step()?;
        }
        // Late duplicates may still be on their way: they must change nothing.
        let until = self.world.lab.now + self.plan.latency * 130 + Span::from_us(50);
        while self.world.lab.now < until {
            if !self.world.lab.step_until(until) {
                break;
            }
            self.drain()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Box<Violation>> {
        let now = self.world.lab.now;
        let wake = self.next_wake(now);
        self.steps += 1;
        let alive = self.world.lab.step_until(wake);
        self.drain()?;
        // The application has had its turn since the last time, and had nothing to do either.
        if !alive && self.idle_at.replace(self.progress()) == Some(self.progress()) && !self.is_finished() {
            return Err(self.hang("nothing will happen any more"));
        }
        if self.world.lab.now > self.plan.deadline {
            return Err(self.hang("the time is up"));
        }
        if self.steps > STEPS_MAX {
            return Err(self.hang("it runs in circles"));
        }
        Ok(())
    }

    fn progress(&self) -> u64 {
        let posted = |books: &super::ledger::Books| (books.posted + books.receives_posted) as u64;
        self.completions + self.ledger.ends.iter().map(posted).sum::<u64>()
    }

    /// The next time the application has something to do of its own accord.
    fn next_wake(&self, now: Time) -> Time {
        let mut wake = Time::NEVER;
        let mut consider = |wanted: bool, at: Time| {
            if wanted && at > now {
                wake = wake.min(at);
            }
        };
        for (index, end) in self.plan.ends.iter().enumerate() {
            let books = &self.ledger.ends[index];
            consider(books.posted < end.jobs.len(), self.job_after[index]);
            consider(books.receives_posted < end.receives.len(), self.receive_after[index]);
        }
        for (index, nic) in self.plan.nics.iter().enumerate() {
            consider(self.shared_posted[index] < nic.shared.len(), self.shared_after[index]);
        }
        consider(!self.struck, self.plan.strikes);
        wake
    }

    /// What the application does now.
    fn act(&mut self) -> Result<(), Box<Violation>> {
        let now = self.world.lab.now;
        if !self.struck && now >= self.plan.strikes {
            self.struck = true;
            self.strike()?;
        }
        for nic in 0..self.plan.nics.len() {
            self.post_shared(nic, now)?;
        }
        for end in 0..self.plan.ends.len() {
            if self.ledger.ends[end].gone && self.plan.ends[end].tiny_queue.is_none() {
                continue;
            }
            self.post_receives(end, now)?;
            self.post_jobs(end, now)?;
        }
        Ok(())
    }

    fn post_shared(&mut self, nic: usize, now: Time) -> Result<(), Box<Violation>> {
        let buffers = &self.plan.nics[nic].shared;
        let Some(queue) = self.world.stations[nic].shared else {
            return Ok(());
        };
        while self.shared_posted[nic] < buffers.len() && self.shared_after[nic] <= now {
            let index = self.shared_posted[nic];
            let request = self.world.receive(nic, SHARED | index as u64, &buffers[index]);
            let posted = self.world.lab.nics[nic].post_srq_recv(queue, request);
            posted.map_err(|error| Violation::new("a shared receive was refused").found(error))?;
            self.shared_posted[nic] += 1;
            if let Some(next) = buffers.get(index + 1) {
                self.shared_after[nic] = now + next.delay;
            }
        }
        Ok(())
    }

    fn post_receives(&mut self, end: usize, now: Time) -> Result<(), Box<Violation>> {
        let buffers = &self.plan.ends[end].receives;
        while self.ledger.ends[end].receives_posted < buffers.len() && self.receive_after[end] <= now {
            let index = self.ledger.ends[end].receives_posted;
            let nic = self.plan.ends[end].nic;
            let request = self.world.receive(nic, RECEIVE | index as u64, &buffers[index]);
            let queue_pair = self.world.ends[end].queue_pair;
            let (nic, mut cx) = self.world.lab.nic(nic);
            nic.post_recv(&mut cx, queue_pair, request)
                .map_err(|error| Violation::new("a receive was refused").found(error).on(end))?;
            self.ledger.ends[end].receives_posted += 1;
            if let Some(next) = buffers.get(index + 1) {
                self.receive_after[end] = now + next.delay;
            }
        }
        Ok(())
    }

    fn post_jobs(&mut self, end: usize, now: Time) -> Result<(), Box<Violation>> {
        let described = &self.plan.ends[end];
        loop {
            let books = &self.ledger.ends[end];
            let index = books.posted;
            let Some(job) = described.jobs.get(index) else {
                return Ok(());
            };
            let open = index - books.settled;
            if self.job_after[end] > now || open >= described.window || job.waits && open > 0 {
                return Ok(());
            }
            let window = self.world.ends[end];
            let request = self.world.request(self.plan, end, index);
            let queue_pair = window.queue_pair;
            let (nic, mut cx) = self.world.lab.nic(described.nic);
            match nic.post_send(&mut cx, queue_pair, request) {
                Ok(()) => {}
                Err(PostError::Full { .. }) if described.send_depth as usize <= open => {
                    self.world.ends[end] = window;
                    return Ok(());
                }
                Err(error) => {
                    return Err(Violation::new("work was refused").found(error).on(end).of(index as u64));
                }
            }
            self.ledger.ends[end].posted += 1;
            if let Some(next) = described.jobs.get(index + 1) {
                self.job_after[end] = now + next.delay;
            }
        }
    }

    /// The scenario's moment has come.
    fn strike(&mut self) -> Result<(), Box<Violation>> {
        let (plan, victim) = (self.plan, self.plan.victim);
        let described = &plan.ends[victim];
        let queue_pair = self.world.ends[victim].queue_pair;
        let result = match plan.scenario {
            Scenario::ModifiedToError => {
                let change = Attributes { state: Some(State::Error), ..Attributes::default() };
                let (nic, mut cx) = self.world.lab.nic(described.nic);
                nic.modify_qp(&mut cx, queue_pair, &change)
            }
            Scenario::Destroyed => {
                self.drain()?;
                self.ledger.ends[victim].gone = true;
                self.world.lab.nics[described.nic].destroy_qp(queue_pair)
            }
            Scenario::TargetDeregistered | Scenario::SourceDeregistered => {
                let nic = match plan.scenario {
                    Scenario::TargetDeregistered => plan.ends[described.peer].nic,
                    _ => described.nic,
                };
                let key = self.world.stations[nic].fleeting_key;
                self.world.lab.nics[nic].dereg_mr(key)
            }
            _ => Ok(()),
        };
        result.map_err(|error| Violation::new("a verb was refused").found(error).on(victim))
    }

    /// Takes all completions and events.
    pub(super) fn drain(&mut self) -> Result<(), Box<Violation>> {
        for end in 0..self.plan.ends.len() {
            let handles = self.world.ends[end];
            if self.plan.ends[end].tiny_queue.is_none() {
                self.drain_queue(end, handles.send_queue)?;
            }
            if handles.receive_queue != handles.send_queue {
                self.drain_queue(end, handles.receive_queue)?;
            }
        }
        for nic in 0..self.plan.nics.len() {
            while let Some(event) = self.world.lab.nics[nic].poll_event() {
                self.take_event(nic, event)?;
            }
        }
        Ok(())
    }

    /// Takes the completions of a queue that belongs to `end`.
    pub(super) fn drain_queue(
        &mut self,
        end: usize,
        queue: crate::completion::CompletionQueue,
    ) -> Result<(), Box<Violation>> {
        let nic = self.plan.ends[end].nic;
        if self.world.lab.nics[nic].completions(queue) == 0 {
            return Ok(());
        }
        let mut taken = self.world.lab.completions(nic, queue);
        self.interfere(&mut taken);
        for completion in &taken {
            let queue_pair = self.world.ends[end].queue_pair;
            if completion.queue_pair != queue_pair {
                let found = completion.queue_pair.value();
                return Err(Violation::new("a completion of another queue pair").found(found).on(end));
            }
            let retries = self.world.lab.sink.retries(nic, queue_pair);
            self.ledger.take(self.plan, end, completion, retries)?;
        }
        Ok(())
    }

    /// Falsifies completions, for tests of the checker.
    fn interfere(&mut self, taken: &mut Vec<Completion>) {
        let first = self.completions;
        self.completions += taken.len() as u64;
        let place = |number: u64| {
            let index = number.checked_sub(first)? as usize;
            (index < taken.len()).then_some(index)
        };
        match self.sabotage {
            Some(Sabotage::DropCompletion { number }) => {
                if let Some(index) = place(number) {
                    taken.remove(index);
                }
            }
            Some(Sabotage::RepeatCompletion { number }) => {
                if let Some(index) = place(number) {
                    taken.push(taken[index]);
                }
            }
            Some(Sabotage::LengthenCompletion { number }) => {
                if let Some(index) = place(number) {
                    taken[index].length += 1;
                }
            }
            _ => {}
        }
    }

    fn take_event(&mut self, nic: usize, event: AsyncEvent) -> Result<(), Box<Violation>> {
        let mut found = None;
        for (index, handles) in self.world.ends.iter().enumerate() {
            if self.plan.ends[index].nic != nic {
                continue;
            }
            match event {
                AsyncEvent::CompletionQueueOverflow(queue)
                    if queue == handles.send_queue || queue == handles.receive_queue =>
                {
                    found = Some((index, 0));
                }
                AsyncEvent::QueuePairFatal(number) if number == handles.queue_pair => {
                    found = Some((index, 1));
                }
                AsyncEvent::QueuePairRequestError(number) | AsyncEvent::QueuePairAccessError(number)
                    if number == handles.queue_pair && !self.plan.ends[index].ending.flushed =>
                {
                    return Err(Violation::new("a queue pair is in error for no reason")
                        .found(format!("{event:?}"))
                        .on(index));
                }
                _ => {}
            }
        }
        let Some((end, which)) = found else {
            return Ok(());
        };
        if self.plan.ends[end].tiny_queue.is_none() {
            return Err(Violation::new("a completion queue that is large enough ran over").on(end));
        }
        // A queue pair that had given up by then is in error already and cannot be put there.
        let retries = self.world.lab.sink.retries(nic, self.world.ends[end].queue_pair);
        let gave_up = retries.unanswered >= u32::from(self.plan.ends[end].retry_count);
        let books = &mut self.ledger.ends[end];
        books.overflow[which] = true;
        books.overflow[1] |= gave_up;
        // After both reports nothing more is to be expected: completions are lost by now.
        books.gone = books.overflow == [true; 2];
        books.failed |= books.gone;
        Ok(())
    }

    fn is_finished(&self) -> bool {
        (0..self.plan.ends.len()).all(|end| self.waits_for(end).is_none())
    }

    /// What an end still waits for.
    fn waits_for(&self, end: usize) -> Option<String> {
        let (described, books) = (&self.plan.ends[end], &self.ledger.ends[end]);
        if books.gone {
            return None;
        }
        if described.tiny_queue.is_some() {
            return Some("the reports that its completion queue ran over".into());
        }
        if books.posted < described.jobs.len() {
            let open = books.posted - books.settled;
            return Some(format!("{open} unfinished jobs, to post job {:#x}", books.posted));
        }
        let open = (books.settled..books.posted)
            .find(|&job| books.send_failed || is_signaled(described, &described.jobs[job]));
        if let Some(job) = open {
            return Some(format!("the completion of {:?}, work {job:#x}", described.jobs[job].act));
        }
        if described.service != Service::ReliableConnection {
            return None;
        }
        if books.failed {
            let owed = books.receives_posted - books.received.len().min(books.receives_posted);
            return (owed > 0 && !described.shared).then(|| format!("{owed} receives to be flushed"));
        }
        let sender = &self.ledger.ends[described.peer];
        let expected = self.plan.ends[described.peer].messages().count();
        if books.messages < expected && !sender.failed && !sender.gone {
            return Some(format!("message {} of {expected}", books.messages));
        }
        None
    }

    fn hang(&self, why: &str) -> Box<Violation> {
        let stuck = (0..self.plan.ends.len()).find_map(|end| Some((end, self.waits_for(end)?)));
        let (end, what) = stuck.unwrap_or((0, "nothing".into()));
        let (peer, books) = (self.plan.ends[end].peer, &self.ledger.ends[end]);
        let state = |end: usize| {
            let nic = &self.world.lab.nics[self.plan.ends[end].nic];
            nic.query_qp(self.world.ends[end].queue_pair)
                .map_or("gone".into(), |info| format!("{} with {} sends", info.state, info.sends))
        };
        Violation::new(format!("hang: {why}; it waits for {what}"))
            .found(format!(
                "{} of {} jobs settled, queue pair {}, peer {}",
                books.settled,
                self.plan.ends[end].jobs.len(),
                state(end),
                state(peer)
            ))
            .on(end)
    }
}
