//! What the completion queues of a process have told so far, to all its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::c_int;

use super::calls::{Calls, Shared, why};
use super::endpoint::zero;
use super::program::QueueKind;
use crate::abi::*;
use crate::object;

/// How long a thread waits for what must come.
const TIMEOUT: Duration = Duration::from_secs(40);
/// How long it blocks for an event, or sleeps where there is no channel.
const NAP: Duration = Duration::from_millis(1);
/// Identifiers of receives; those of sends are below.
pub(super) const RECEIVES: u64 = 1 << 32;
/// Completions of one poll.
const BATCH: usize = 8;
/// Completions that a queue keeps; no program has so many.
const QUEUE_DEPTH: c_int = 4096;

/// A completion queue, and how it is read.
pub(super) struct Queue {
    pub(super) kind: QueueKind,
    pub(super) cq: Shared<ibv_cq>,
    channel: Shared<ibv_comp_channel>,
    /// One thread at a time takes events.
    waiting: Mutex<()>,
}

/// A receive that was posted.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    /// The endpoint whose memory it is, by its place in the process.
    pub(super) endpoint: usize,
    pub(super) offset: u32,
    pub(super) bytes: u32,
    /// The message that must land here, where that is known.
    pub(super) expected: Option<u32>,
}

/// Completions, and what waits for them.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) sends: BTreeMap<u64, ibv_wc>,
    pub(super) receives: BTreeMap<u64, ibv_wc>,
    pub(super) posted: BTreeMap<u64, Posted>,
    /// Work that no success may be told of: it was not signaled.
    pub(super) silent: BTreeSet<u64>,
    /// Asynchronous events: the kind, and the object.
    pub(super) events: Vec<(c_int, usize)>,
    wrong: Option<String>,
    next_receive: u64,
}

impl Seen {
    fn take(&mut self, wc: ibv_wc) {
        let known = if wc.wr_id < RECEIVES { &mut self.sends } else { &mut self.receives };
        let is_silent = wc.status == 0 && self.silent.contains(&wc.wr_id);
        let is_posted = wc.wr_id < RECEIVES || self.posted.contains_key(&wc.wr_id);
        let before = known.insert(wc.wr_id, wc);
        if before.is_some() || is_silent || !is_posted {
            let why = match (before, is_silent) {
                (Some(_), _) => "completed twice",
                (None, true) => "completed, though it was not signaled",
                (None, false) => "completed, though it was never posted",
            };
            self.wrong.get_or_insert(format!("work {:#x} {why}", wc.wr_id));
        }
    }

    /// An identifier for a receive that is about to be posted.
    pub(super) fn expect(&mut self, posted: Posted) -> u64 {
        self.next_receive += 1;
        let id = RECEIVES + self.next_receive;
        self.posted.insert(id, posted);
        id
    }
}

/// The queues of a process and what they told.
pub(super) struct Completions<'a> {
    calls: &'a Calls,
    context: Shared<ibv_context>,
    pub(super) queues: Vec<Queue>,
    seen: Mutex<Seen>,
}

impl<'a> Completions<'a> {
    /// Makes the completion queues of a process.
    pub(super) fn make(
        calls: &'a Calls,
        context: Shared<ibv_context>,
        kinds: &[QueueKind],
    ) -> Result<Self, String> {
        let mut queues = Vec::new();
        for &kind in kinds {
            let mut channel = std::ptr::null_mut();
            if kind == QueueKind::Events {
                channel = calls.ibv_create_comp_channel(context.0);
            }
            let cq = match kind {
                QueueKind::Extended => {
                    let mut attr = ibv_cq_init_attr_ex {
                        cqe: QUEUE_DEPTH as u32,
                        cq_context: std::ptr::null_mut(),
                        channel,
                        comp_vector: 0,
                        wc_flags: 0x7,
                        comp_mask: 0,
                        flags: 0,
                        parent_domain: std::ptr::null_mut(),
                    };
                    calls.create_extended_cq(context.0, &mut attr).cast()
                }
                _ => calls.ibv_create_cq(context.0, QUEUE_DEPTH, std::ptr::null_mut(), channel, 0),
            };
            if cq.is_null() || (channel.is_null() == (kind == QueueKind::Events)) {
                return Err(format!("ibv_create_cq: {}", why()));
            }
            queues.push(Queue { kind, cq: Shared(cq), channel: Shared(channel), waiting: Mutex::new(()) });
        }
        Ok(Self { calls, context, queues, seen: Mutex::new(Seen::default()) })
    }

    /// What was seen so far.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is there; tells whether there was anything.
    pub(super) fn drain(&self) -> Result<bool, String> {
        let mut found = false;
        for queue in &self.queues {
            found |= self.drain_queue(queue)?;
        }
        Ok(found)
    }

    fn drain_queue(&self, queue: &Queue) -> Result<bool, String> {
        let mut taken = Vec::new();
        if queue.kind == QueueKind::Extended {
            let outcome = self.calls.poll_extended(queue.cq.0.cast(), |wc| taken.push(wc));
            if outcome != libc::ENOENT {
                zero(outcome, "ibv_start_poll")?;
            }
        } else {
            let mut batch: [ibv_wc; BATCH] = std::array::from_fn(|_| object::zeroed());
            let found = self.calls.poll_cq(queue.cq.0, &mut batch);
            let found = usize::try_from(found).map_err(|_| "ibv_poll_cq failed".to_owned())?;
            taken.extend_from_slice(&batch[..found]);
        }
        if taken.is_empty() {
            return Ok(false);
        }
        let mut seen = self.seen();
        for wc in taken {
            seen.take(wc);
        }
        seen.wrong.clone().map_or(Ok(true), Err)
    }

    /// Takes the asynchronous events that are there.
    fn take_events(&self) -> Result<(), String> {
        let descriptor = object::read(self.context.0).map_or(-1, |context| context.async_fd);
        // One thread at a time: the call blocks where there is none.
        let mut seen = self.seen();
        loop {
            if !is_readable(descriptor, Duration::ZERO) {
                return Ok(());
            }
            let mut event = ibv_async_event { element: std::ptr::null_mut(), event_type: -1 };
            if self.calls.ibv_get_async_event(self.context.0, &raw mut event) != 0 {
                return Err(format!("ibv_get_async_event: {}", why()));
            }
            seen.events.push((event.event_type, event.element as usize));
            self.calls.ibv_ack_async_event(&raw mut event);
        }
    }

    /// Polls and waits until what was seen suffices. `what` says what does not come.
    pub(super) fn wait(
        &self,
        mut suffices: impl FnMut(&Seen) -> bool,
        what: impl Fn(&Seen) -> String,
    ) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let found = self.drain()?;
            self.take_events()?;
            if suffices(&self.seen()) {
                return Ok(());
            }
            if began.elapsed() > TIMEOUT {
                return Err(format!("{} did not come within {} s", what(&self.seen()), TIMEOUT.as_secs()));
            }
            if !found {
                self.nap()?;
            }
        }
    }

    /// Blocks for a short time, for events where there is a channel.
    fn nap(&self) -> Result<(), String> {
        let free = self.queues.iter().filter(|queue| queue.kind == QueueKind::Events);
        for queue in free {
            let Ok(_waiting) = queue.waiting.try_lock() else { continue };
            zero(self.calls.request_notification(queue.cq.0, false), "ibv_req_notify_cq")?;
            // What came before the request gives no event.
            if self.drain_queue(queue)? {
                return Ok(());
            }
            let descriptor = object::read(queue.channel.0).map_or(-1, |channel| channel.fd);
            if is_readable(descriptor, NAP) {
                let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
                if self.calls.ibv_get_cq_event(queue.channel.0, &raw mut cq, &raw mut context) != 0 {
                    return Err(format!("ibv_get_cq_event: {}", why()));
                }
                if cq != queue.cq.0 {
                    return Err("a completion event of another queue".to_owned());
                }
                self.calls.ibv_ack_cq_events(cq, 1);
            }
            return Ok(());
        }
        std::thread::sleep(NAP / 20);
        Ok(())
    }

    /// Destroys the queues.
    pub(super) fn destroy(&self) -> Result<(), String> {
        for queue in &self.queues {
            zero(self.calls.ibv_destroy_cq(queue.cq.0), "ibv_destroy_cq")?;
            if !queue.channel.0.is_null() {
                let outcome = self.calls.ibv_destroy_comp_channel(queue.channel.0);
                zero(outcome, "ibv_destroy_comp_channel")?;
            }
        }
        Ok(())
    }
}

fn is_readable(descriptor: c_int, limit: Duration) -> bool {
    let mut entries = [libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
    object::poll(&mut entries, limit);
    entries[0].revents & libc::POLLIN != 0
}
