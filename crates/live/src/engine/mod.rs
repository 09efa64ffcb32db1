//! The engine of a process: rank machines of communicators, transports, and the loop that drives them.
//!
//! A thread that waits for a call drives everything; nothing runs behind a process that is not waiting, unless calls were
//! started and not waited for. Then the progress thread takes over.

mod backoff;
mod batching;
mod conduits;
mod context;
mod cores;
mod departures;
mod executor;
mod notices;
mod status;
mod streaming;
mod work;
mod zero_copy;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use railnet_coll::machine::{Answer, Departure, Failure, Notice, OperationId, Output, RankMachine, Standing};
use railnet_coll::{Call, Schedule};
use railnet_core::{Rank, Span, Time};
use rustix::event::{PollFd, PollFlags};

pub(crate) use backoff::{BLOCK_MAX, Backoff, Step};
pub use conduits::ReachError;
pub(crate) use conduits::{Card, Conduits, ListenAt, Prepared};
use context::Context;
pub(crate) use context::KeepAlive;
use departures::Departures;
pub(crate) use departures::Reason;
pub(crate) use notices::Envelope;
pub(crate) use status::bare as bare_status;
pub(crate) use work::At;

use crate::Control;
use crate::control::{Notice as Notification, NoticeKind};
use crate::rdma::Rdma;
use crate::socket;
use crate::status::StatusBoard;

/// A rank that does not read its clock for so long was stopped or descheduled: the others are not late for that.
const DESCHEDULED: Duration = Duration::from_millis(250);
/// The timeout of answers from other ranks. Their control threads answer while they compute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The grace period after a rank has left or a connection broke. A rank that dies, or gives up, is reported on the control
/// channel with the reason. That report may come later than the end of its connections: on a host with ten times as many
/// threads as cores, by more than half a second.
const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The longest timeout: picoseconds of 64 bits hold 213 days, and timeouts are added to times.
const TIMEOUT_MAX: Duration = Duration::from_hours(24 * 100);
/// Polls of the NIC before other threads get the engine.
const NIC_POLLS_MAX: usize = 16;
/// How long a rank that leaves answers peers that may have missed an acknowledgement: several times as long as they wait before
/// they ask.
const LINGER: Duration = Duration::from_millis(20);
/// How long an error is held back until the others have been sent the reason for which this rank may leave.
const ANNOUNCE_MAX: Duration = Duration::from_millis(100);

/// Closed communicators that are remembered: ranks that are behind may ask what became of a call.
const REMEMBERED: usize = 64;

/// A communicator of this engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ContextId(usize);

/// When a thread stops driving the engine for a call that it waits for.
#[derive(Debug)]
pub(crate) struct WaitLimit<'a> {
    /// Threads that want the engine.
    wanted: &'a AtomicUsize,
    limit: Duration,
    /// When the clock was first read: most calls are over before that.
    since: Cell<Option<Instant>>,
    /// Whether the thread has waited for the call before: the backoff continues where it was.
    resumes: bool,
}

impl<'a> WaitLimit<'a> {
    /// Until another thread wants the engine, or so much time has passed.
    pub(crate) const fn new(wanted: &'a AtomicUsize, limit: Duration, resumes: bool) -> Self {
        Self { wanted, limit, since: Cell::new(None), resumes }
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    fn has_passed(&self) -> bool {
        let now = Instant::now();
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        now.duration_since(since) >= self.limit
    }
}

/// Everything a process needs to do collectives.
#[derive(Debug)]
pub(crate) struct Engine {
    control: Arc<Control>,
    conduits: Conduits,
    contexts: Vec<Context>,
    names: BTreeMap<u64, ContextId>,
    /// Communicators that were dropped, and whose calls may still be under way.
    closing: Vec<ContextId>,
    /// Free entries of `contexts`.
    unused: Vec<ContextId>,
    /// Communicators that were closed last, by their names.
    closed: VecDeque<(u64, RankMachine)>,
    /// The timeout of a call without progress.
    limit: Duration,
    /// Whether ranks of this host share cores.
    shares_cores: bool,
    backoff: Backoff,
    start: Instant,
    now: Time,
    /// Whether calls were submitted since the clock was read.
    is_clock_old: bool,
    /// Ranks that have left, and when that was reported.
    left: Vec<(u32, Time)>,
    /// Calls that threads of the program wait for.
    awaited: Vec<(ContextId, OperationId)>,
    /// Ranks that are lost, and why.
    lost: Vec<(u32, String)>,
    /// Ranks that failed in some communicator, and why.
    departures: Departures,
    /// Notices for communicators that do not exist here yet, and who sent them.
    early: Vec<(u64, Rank, Notice)>,
    job: String,
    status_board: Arc<StatusBoard>,
}

impl Engine {
    /// Of a rank whose transports are ready.
    pub(crate) fn new(job: String, control: Arc<Control>, conduits: Conduits, limit: Duration) -> Self {
        let (ranks, cores) = conduits.ranks_and_cores_here();
        let shares_cores = ranks > cores;
        let backoff = Backoff::new(shares_cores, conduits.preferred_cpu());
        Self {
            shares_cores,
            control,
            conduits,
            contexts: Vec::new(),
            names: BTreeMap::new(),
            closing: Vec::new(),
            unused: Vec::new(),
            closed: VecDeque::new(),
            limit,
            backoff,
            start: Instant::now(),
            now: Time::ZERO,
            is_clock_old: false,
            left: Vec::new(),
            lost: Vec::new(),
            departures: Departures::default(),
            early: Vec::new(),
            awaited: Vec::new(),
            job,
            status_board: Arc::default(),
        }
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    pub(crate) fn conduits(&self) -> &Conduits {
        &self.conduits
    }

    pub(crate) fn conduits_mut(&mut self) -> &mut Conduits {
        &mut self.conduits
    }

    /// A backoff for a new wait.
    pub(crate) fn backoff(&self) -> Backoff {
        self.backoff.fresh()
    }

    /// Why calls of a communicator fail, once they do.
    pub(crate) fn failure(&self, id: ContextId) -> Option<Arc<Failure>> {
        self.contexts[id.0].machine.failure().map(Arc::clone)
    }

    /// Ranks of the world that are lost, and those that have left.
    pub(crate) fn gone(&mut self) -> Vec<u32> {
        self.poll_notices();
        let lost = self.lost.iter().map(|(rank, _)| *rank);
        lost.chain(self.left.iter().map(|(rank, _)| *rank)).collect()
    }

    fn read_clock(&mut self) {
        let now = Time::from_ps(self.start.elapsed().as_nanos() as u64 * 1000);
        let gap = now.since(self.now);
        self.now = now;
        if gap > span(DESCHEDULED) {
            self.contexts.iter_mut().for_each(|context| context.machine.excuse(gap));
        }
        if std::mem::take(&mut self.is_clock_old) {
            for context in &mut self.contexts {
                if context.is_busy() {
                    context.machine.awake(self.now);
                    context.note_begin(self.now);
                }
            }
        }
        if self.status_board.is_wanted() {
            self.status_board.leave(self.status());
        }
    }

    /// Finds or creates the communicator of this name. `members` are ranks of the world.
    pub(crate) fn context(&mut self, name: u64, rank: Rank, members: &Arc<[u32]>) -> ContextId {
        if let Some(known) = self.names.get(&name) {
            return *known;
        }
        let limit = span(self.limit);
        // Only a NIC asks for data before it comes.
        let has_nic = self.conduits.nic_ref().is_some();
        // The control channel is a star around rank 0 of the world.
        let relay = members.iter().position(|world| *world == 0).map(|index| Rank(index as u32));
        let machine = RankMachine::new(rank, members.len() as u32).with_limit(limit).with_relay(relay);
        let machine = machine.synchronous(has_nic);
        let mut context = Context::new(name, Arc::clone(members), machine, self.shares_cores);
        for (lost, cause) in &self.lost {
            self.departures.end(&mut context, *lost, cause);
        }
        for (_, from, notice) in self.early.extract_if(.., |(early, ..)| *early == name) {
            context.machine.notice(self.now, from, notice);
        }
        self.end_closed();
        let id = match self.unused.pop() {
            Some(id) => {
                self.contexts[id.0] = context;
                id
            }
            None => {
                self.contexts.push(context);
                ContextId(self.contexts.len() - 1)
            }
        };
        self.names.insert(name, id);
        id
    }

    /// A communicator was dropped. Its calls under way go on.
    pub(crate) fn close(&mut self, id: ContextId) {
        self.closing.push(id);
        self.end_closed();
    }

    /// Closes the connections of dropped communicators without calls under way, and frees what they had.
    fn end_closed(&mut self) {
        for id in std::mem::take(&mut self.closing) {
            if self.contexts[id.0].is_busy() {
                self.closing.push(id);
                continue;
            }
            self.contexts[id.0].machine.announce_sends(self.now);
            self.drain(id.0);
            let context = std::mem::replace(&mut self.contexts[id.0], Context::unused());
            let name = context.id;
            self.closed.truncate(REMEMBERED - 1);
            self.closed.push_front((name, context.end(&mut self.conduits)));
            self.conduits.forget(name);
            self.names.remove(&name);
            self.unused.push(id);
        }
    }

    /// Whether the other rank of a pair has entered the next call; asks it if that is unknown.
    pub(crate) fn probe(&mut self, id: ContextId) -> Result<bool, Arc<Failure>> {
        let machine = &mut self.contexts[id.0].machine;
        if let Some(failure) = machine.failure() {
            return Err(Arc::clone(failure));
        }
        if machine.has_peer_entered() {
            return Ok(true);
        }
        machine.probe();
        self.drain(id.0);
        Ok(false)
    }

    /// Sets the timeout of a communicator's calls, and returns the previous one.
    pub(crate) fn set_limit(&mut self, id: ContextId, limit: Duration) -> Duration {
        let before = self.contexts[id.0].machine.set_limit(span(limit));
        Duration::from_nanos(before.as_ps() / 1000)
    }

    /// The number of the next call.
    pub(crate) fn next_operation(&self, id: ContextId) -> OperationId {
        self.contexts[id.0].machine.next_operation()
    }

    /// Submits a call. `keep` owns the buffers of a call that nobody waits for.
    pub(crate) fn submit(
        &mut self,
        id: ContextId,
        schedule: &Arc<Schedule>,
        buffers: (At, At),
        keep: Option<KeepAlive>,
    ) -> Result<OperationId, Arc<Failure>> {
        // Most calls are over before their beginning matters: the clock is read when one is not.
        self.is_clock_old = true;
        let submitted = self.contexts[id.0].submit(self.now, schedule, buffers, keep);
        self.continues(submitted.is_ok());
        submitted
    }

    /// Submits a blocking call whose schedule is cached; `None` if it is not. A small one may be over when this returns.
    #[inline]
    pub(crate) fn submit_known(
        &mut self,
        id: ContextId,
        call: &Call,
        buffers: (At, At),
    ) -> Option<Result<OperationId, Arc<Failure>>> {
        self.is_clock_old = true;
        let Self { contexts, conduits, now, backoff, .. } = self;
        let submitted = contexts[id.0].submit_known(*now, call, buffers, conduits, backoff.spins_inline());
        self.continues(matches!(submitted, Some(Ok(_))));
        submitted
    }

    /// The program of this rank is about to learn of a failure in a communicator of these ranks of the world. Others that wait for it
    /// hear why it leaves, if it does.
    pub(crate) fn announce_failure(&mut self, failure: &Failure, members: &[u32]) {
        if let Some(body) = self.departures.failed(failure, members, self.control.rank().0) {
            self.control.notify(NoticeKind::Failed, &body);
            self.control.flush(ANNOUNCE_MAX);
        }
    }

    /// A rank that makes other calls after a failure does not leave because of it.
    #[inline]
    fn continues(&mut self, is_submitted: bool) {
        if is_submitted && self.departures.continues() {
            self.control.notify(NoticeKind::Failed, &[]);
        }
    }

    /// Why calls that wait for a rank of the world that is gone fail in a communicator of these ranks, as far as it has said so.
    pub(crate) fn departure(&self, world: u32, members: &[u32]) -> Option<Departure> {
        Some(self.departures.of(world)?.departure(members))
    }

    /// The cached schedule of a call.
    pub(crate) fn known(&mut self, id: ContextId, call: &Call) -> Option<Arc<Schedule>> {
        self.contexts[id.0].known(call)
    }

    /// Caches the schedule of a call.
    pub(crate) fn keep(&mut self, id: ContextId, schedule: &Arc<Schedule>) {
        self.contexts[id.0].keep(schedule);
    }

    /// Whether a call is over; an error if its communicator has failed.
    pub(crate) fn is_done(&self, id: ContextId, operation: OperationId) -> Result<bool, Arc<Failure>> {
        let context = &self.contexts[id.0];
        if context.is_done(operation) {
            return Ok(true);
        }
        context.machine.failure().map_or(Ok(false), |failure| Err(Arc::clone(failure)))
    }

    /// Drives the engine until a call is over. `None` if another thread wants the engine or the time has passed first.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        id: ContextId,
        operation: OperationId,
        until: &WaitLimit<'_>,
    ) -> Option<Result<(), Arc<Failure>>> {
        // The fast path: small calls mostly find all data there, and need no other call to be driven.
        if self.contexts[id.0].is_done(operation) && self.is_only_busy(id) {
            if !self.awaited.is_empty() {
                self.awaited.retain(|awaited| *awaited != (id, operation));
            }
            return Some(Ok(()));
        }
        self.wait_long(id, operation, until)
    }

    /// The call counts as awaited until it is over, also while another thread has the engine.
    fn wait_long(
        &mut self,
        id: ContextId,
        operation: OperationId,
        until: &WaitLimit<'_>,
    ) -> Option<Result<(), Arc<Failure>>> {
        if !self.awaited.contains(&(id, operation)) {
            self.awaited.push((id, operation));
        }
        let done = self.drive(id, operation, until);
        if let Some(outcome) = &done {
            // Before others are told that this rank waits no more: they would take it for late.
            if let Err(failure) = outcome {
                let members = Arc::clone(&self.contexts[id.0].members);
                self.announce_failure(failure, &members);
            }
            self.awaited.retain(|awaited| *awaited != (id, operation));
        }
        done
    }

    fn drive(
        &mut self,
        id: ContextId,
        operation: OperationId,
        until: &WaitLimit<'_>,
    ) -> Option<Result<(), Arc<Failure>>> {
        if !self.contexts[id.0].is_done(operation) {
            self.contexts[id.0].begin_wait();
            self.drain(id.0);
            if self.contexts[id.0].is_done(operation) && self.is_only_busy(id) {
                return Some(Ok(()));
            }
        }
        if !until.resumes {
            self.backoff.reset();
        }
        loop {
            let moved = self.poll(self.backoff.is_sweep_due());
            match self.is_done(id, operation) {
                Ok(true) => {
                    self.contexts[id.0].end_wait();
                    return Some(Ok(()));
                }
                Ok(false) => {}
                Err(failure) => {
                    // Buffers are the caller's again when this returns.
                    self.drain(id.0);
                    return Some(Err(failure));
                }
            }
            if until.is_wanted() {
                return None;
            }
            if moved {
                self.backoff.reset();
            } else if self.pause() && until.has_passed() {
                return None;
            }
        }
    }

    /// Whether only this communicator has anything to do.
    #[inline]
    fn is_only_busy(&self, id: ContextId) -> bool {
        let others = || self.contexts.iter().enumerate().filter(|(index, _)| *index != id.0);
        !self.control.has_notice()
            && self.conduits.nic_ref().is_none()
            && (self.contexts.len() == 1 || !others().any(|(_, context)| context.is_busy()))
    }

    /// Makes progress on everything: polls all connections, or only those from which something is awaited. Whether anything
    /// moved.
    pub(crate) fn poll(&mut self, all: bool) -> bool {
        self.flush_held();
        let mut moved = false;
        for index in 0..self.contexts.len() {
            if !self.contexts[index].is_busy() {
                continue;
            }
            moved |= self.drain(index);
            if self.contexts[index].poll(self.now, &mut self.conduits, all) {
                moved = true;
                self.drain(index);
            }
        }
        moved |= self.conduits.progress();
        if self.control.has_notice() {
            self.poll_notices();
            moved = true;
        }
        moved
    }

    /// Has kernels send the slices they hold: somebody waits for them, or no more follow.
    #[inline]
    pub(crate) fn flush_held(&mut self) {
        self.contexts.iter_mut().for_each(Context::flush_held);
    }

    fn drain(&mut self, index: usize) -> bool {
        let Self { contexts, conduits, control, now, .. } = self;
        let mut post = |envelope: Envelope| control.notify(NoticeKind::Mismatch, &envelope.write());
        contexts[index].drain(*now, conduits, &mut post)
    }

    /// Nothing moved: backs off, and checks timeouts where the clock was read. Whether it was.
    fn pause(&mut self) -> bool {
        match self.backoff.wait() {
            Step::Spun => return false,
            Step::Yielded => {}
            Step::Block => self.sleep(),
        }
        self.check_timeouts();
        true
    }

    /// What the progress thread does when nothing moves: spins, yields, and blocks at last, for [`backoff::BLOCK_MAX`] at most.
    pub(crate) fn back_off(&mut self) {
        self.pause();
    }

    /// Something moved: the next wait begins by spinning.
    pub(crate) fn reset_backoff(&mut self) {
        self.backoff.reset();
    }

    /// Reads the clock, and checks the timeouts of all communicators.
    pub(crate) fn check_timeouts(&mut self) {
        self.read_clock();
        for index in 0..self.contexts.len() {
            if self.contexts[index].is_busy() {
                self.check_timeout(index);
            }
        }
    }

    /// Checks whether a call has timed out.
    fn check_timeout(&mut self, index: usize) {
        let (now, context) = (self.now, &mut self.contexts[index]);
        let own = context.machine.rank();
        context.ask_if_calls_match(now);
        context.machine.handle_timeout(now);
        if let Some(since) = context.machine.asking_since()
            && now.since(since) > span(ANSWER_TIMEOUT)
        {
            let unanswered = self.departures.unanswered(context).filter(|_| context.machine.is_overdue());
            match unanswered {
                Some(failure) => context.machine.notice(now, own, Notice::Verdict(Arc::new(failure))),
                None => context.machine.expired(now),
            }
        }
        context.check_ends(now, span(GRACE_PERIOD), &self.departures);
        context.check_unsent(now, span(self.limit));
        let gone = self.left.iter().find_map(|(world, heard)| {
            let rank = context.rank_of(*world)?;
            let still = now.since((*heard).max(context.machine.last_progress()));
            (still > span(GRACE_PERIOD) || context.cannot_reach(rank)).then_some(*world)
        });
        if let Some(world) = gone {
            self.departures.end(context, world, "it has finished, and its program left");
        }
        context.check_reach(now, span(GRACE_PERIOD), &self.departures);
        self.drain(index);
    }

    fn sleep(&mut self) {
        self.conduits.poll_accept();
        self.conduits.set_blocked(true);
        if !self.poll(true) {
            let doorbells = self.conduits.doorbells().map(|fd| (fd, PollFlags::IN));
            let streams = self.contexts.iter().filter(|context| context.is_busy()).flat_map(Context::streams);
            let mut fds: Vec<PollFd<'_>> =
                doorbells.chain(streams).map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
            let limit = self.nic_timeout().map_or(backoff::BLOCK_MAX, |timer| timer.min(backoff::BLOCK_MAX));
            // An error of poll is no reason to stop: the loop polls again.
            let _ = socket::wait(&mut fds, Instant::now() + limit);
        }
        self.conduits.set_blocked(false);
    }

    /// Receives notices from the control channel.
    pub(crate) fn poll_notices(&mut self) {
        self.read_clock();
        while let Some(Notification { rank, kind, body }) = self.control.try_notice() {
            match kind {
                NoticeKind::Mismatch => {
                    // A malformed notice of an authenticated rank: there is nobody else to tell.
                    if let Ok(envelope) = Envelope::read(&body) {
                        self.deliver(envelope);
                    }
                }
                NoticeKind::Lost | NoticeKind::Abort => {
                    let cause = String::from_utf8_lossy(&body).into_owned();
                    self.lost.push((rank.0, cause.clone()));
                    for context in &mut self.contexts {
                        self.departures.end(context, rank.0, &cause);
                    }
                    if rank.0 == 0 && kind == NoticeKind::Lost {
                        self.departures.lose_hub(&cause);
                    }
                }
                NoticeKind::Failed => self.departures.hear(rank.0, &body),
                NoticeKind::Left => self.left.push((rank.0, self.now)),
                // A rank that is silent is asked when a call has waited for it long enough.
                NoticeKind::Silent | NoticeKind::Heard => {}
            }
        }
        for index in 0..self.contexts.len() {
            self.drain(index);
        }
    }

    fn deliver(&mut self, envelope: Envelope) {
        let Envelope { context, to, from, members, notice } = envelope;
        let Some(id) = self.names.get(&context) else {
            if let Some((_, machine)) = self.closed.iter_mut().find(|(name, _)| *name == context) {
                machine.notice(self.now, from, notice);
                while let Some(output) = machine.poll_output() {
                    let Output::Notice { to, notice } = output else { continue };
                    let envelope = Envelope {
                        context,
                        to,
                        from: machine.rank(),
                        members: members.clone(),
                        notice: *notice,
                    };
                    self.control.notify(NoticeKind::Mismatch, &envelope.write());
                }
                return;
            }
            let own = members.iter().position(|world| *world == self.control.rank().0);
            match (notice, own) {
                // It was never used here: that is an answer too.
                (Notice::Ask(operation), Some(own)) => {
                    let waits_elsewhere = !self.awaited.is_empty();
                    let standing = Standing::NotEntered { last: None, ago: Span::ZERO, waits_elsewhere };
                    let notice =
                        Notice::Answer(operation, Answer { signature: None, standing, history: Vec::new() });
                    let own = Rank(own as u32);
                    let envelope = Envelope { context, to: Some(from), from: own, members, notice };
                    self.control.notify(NoticeKind::Mismatch, &envelope.write());
                }
                (notice, Some(_)) => self.early.push((context, from, notice)),
                (_, None) => {}
            }
            return;
        };
        let waits_elsewhere = self.awaited.iter().any(|(awaited, _)| awaited != id);
        let machine = &mut self.contexts[id.0].machine;
        machine.set_waits_elsewhere(waits_elsewhere);
        let is_ours = to.is_none_or(|to| to == machine.rank());
        let sender = self.contexts[id.0].members.get(from.0 as usize).copied();
        let has_failed = sender.is_some_and(|sender| self.departures.has_told(sender));
        let notice = if has_failed { held_up(notice) } else { notice };
        let machine = &mut self.contexts[id.0].machine;
        if is_ours && from != machine.rank() && from.0 < machine.ranks() {
            machine.notice(self.now, from, notice);
        }
    }

    /// Aborts a communicator on all ranks.
    pub(crate) fn abort(&mut self, id: ContextId) {
        self.contexts[id.0].machine.abort();
        self.drain(id.0);
    }

    /// What becomes readable when the NIC has something to do, if there is a NIC.
    pub(crate) fn nic_doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.conduits.nic_ref().map(Rdma::watch)
    }

    /// When the NIC's next timer is due; `None` if it has none.
    pub(crate) fn nic_timeout(&self) -> Option<Duration> {
        self.conduits.nic_ref().and_then(Rdma::next_timeout)
    }

    /// Polls the NIC, a limited number of times. Whether it had something to do.
    pub(crate) fn drive_nic(&mut self) -> bool {
        let rounds = (0..NIC_POLLS_MAX).take_while(|_| self.conduits.progress()).count();
        rounds > 0
    }

    /// Drives the NIC until this process may leave: all that it sent is acknowledged, and peers had time to ask for lost
    /// acknowledgements. For so long at most.
    pub(crate) fn drain_nic(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (mut received, mut since) = (0, Instant::now());
        loop {
            self.drive_nic();
            let gone = self.gone();
            let (now, Some(nic)) = (Instant::now(), self.conduits.nic_ref()) else { return };
            if nic.received() != received {
                (received, since) = (nic.received(), now);
            }
            // An acknowledgement may have been lost: a peer that misses it asks again.
            let quiet = since + LINGER;
            if now >= deadline || nic.is_drained(&gone) && (now >= quiet || !nic.has_senders(&gone)) {
                return;
            }
            let timer = nic.next_timeout().map_or(quiet, |timer| now + timer);
            let mut fds = [PollFd::from_borrowed_fd(nic.watch(), PollFlags::IN)];
            // An error of poll is no reason to stop: the loop polls again.
            let _ = socket::wait(&mut fds, timer.min(now + backoff::BLOCK_MAX).min(deadline));
        }
    }

    /// Whether a rank of the world has left.
    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.left.iter().any(|(left, _)| *left == rank)
    }

    /// Announces to receivers what was sent to them, before this process leaves.
    pub(crate) fn announce_sends(&mut self) {
        for index in 0..self.contexts.len() {
            self.contexts[index].machine.announce_sends(self.now);
            self.drain(index);
        }
    }

    /// Ends the packet capture, if there is one.
    pub(crate) fn finish_capture(&mut self) {
        if let Some(nic) = self.conduits.nic() {
            nic.finish_capture();
        }
    }

    /// Whether calls are under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.contexts.iter().any(Context::is_busy)
    }
}

/// The answer of a rank whose last call has failed because of others: what keeps it from a call is there, and it may leave.
fn held_up(mut notice: Notice) -> Notice {
    if let Notice::Answer(_, Answer { standing: Standing::NotEntered { waits_elsewhere, .. }, .. }) =
        &mut notice
    {
        *waits_elsewhere = true;
    }
    notice
}

fn span(duration: Duration) -> Span {
    Span::from_ns(duration.min(TIMEOUT_MAX).as_nanos() as u64)
}
