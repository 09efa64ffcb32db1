//! What all queue pairs of a NIC share.

use std::collections::VecDeque;

use railnet_core::event::{Event, Sink};
use railnet_core::{Component, QueuePairNumber};
use railnet_wire::Extension;

use crate::completion::{Completion, CompletionQueue, Put, Queue};
use crate::config::NicConfig;
use crate::context::Context;
use crate::error::DropReason;
use crate::memory::Memory;
use crate::pool::{Chain, Pool};
use crate::queue_pair::{Response, SharedReceiveQueue};
use crate::region::{ProtectionDomain, Regions};
use crate::schedule::Schedule;
use crate::timer::TimerQueue;
use crate::work::{ReceiveRequest, SendWork};

/// Something that happened outside of any call, or a notification that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion came on a queue that was armed.
    CompletionReady(CompletionQueue),
    /// A completion queue ran over: completions are lost, its queue pairs are in error.
    CompletionQueueOverflow(CompletionQueue),
    /// A queue pair is in error because its completion queue broke.
    QueuePairFatal(QueuePairNumber),
    /// The peer sent a request that makes no sense; the queue pair is in error.
    QueuePairRequestError(QueuePairNumber),
    /// The peer tried what it may not; the queue pair is in error.
    QueuePairAccessError(QueuePairNumber),
    /// The first packet came to a queue pair that is ready to receive but not yet to send.
    CommunicationEstablished(QueuePairNumber),
    /// The send queue is drained.
    SendQueueDrained(QueuePairNumber),
    /// A queue pair in error took its last receive from its shared queue.
    LastReceiveTaken(QueuePairNumber),
    /// A shared receive queue holds fewer receives than its limit.
    SharedReceiveLimit(SharedReceiveQueue),
}

/// What a NIC counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets sent.
    pub sent: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Packets that came in.
    pub received: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Sequence NAKs sent.
    pub sequence_naks: u64,
    /// Receiver-not-ready NAKs sent.
    pub rnr_naks: u64,
    /// Congestion notifications sent.
    pub notifications_sent: u64,
    /// Congestion notifications received.
    pub notifications_received: u64,
    dropped: [u64; DropReason::COUNT],
}

impl Counters {
    /// Packets thrown away for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) domain: ProtectionDomain,
    pub(crate) receives: Chain,
    pub(crate) depth: u32,
    pub(crate) gather_max: u32,
    /// Tell when fewer than so many are left; 0 when not armed.
    pub(crate) limit: u32,
    pub(crate) users: u32,
}

/// What all queue pairs share.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) component: Component,
    pub(crate) config: NicConfig,
    /// How many packets of a queue pair may be unacknowledged: no more than the peer would keep.
    pub(crate) unacked_max: u32,
    pub(crate) regions: Regions,
    pub(crate) queues: Vec<Option<Queue>>,
    pub(crate) shared: Vec<Option<SharedReceives>>,
    pub(crate) sends: Pool<SendWork>,
    pub(crate) receives: Pool<ReceiveRequest>,
    pub(crate) responses: Pool<Response>,
    pub(crate) timers: TimerQueue,
    pub(crate) ports: Vec<Schedule>,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Queues that ran over in this call: their queue pairs must go to error before it ends.
    pub(crate) overflowed: Vec<CompletionQueue>,
    pub(crate) counters: Counters,
    /// What the answer that is being taken in tells besides its verdict.
    pub(crate) told: Option<Extension>,
}

impl Device {
    pub(crate) fn complete<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        queue: CompletionQueue,
        completion: Completion,
        solicited: bool,
    ) {
        cx.emit(self.component, || Event::Completed {
            queue_pair: completion.queue_pair,
            queue: queue.0,
            work: completion.work,
            status: completion.status as u8,
        });
        let Some(Some(entry)) = self.queues.get_mut(queue.0 as usize) else {
            return;
        };
        match entry.put(completion, solicited) {
            Put::Quiet => {}
            Put::Notify => self.events.push_back(AsyncEvent::CompletionReady(queue)),
            Put::Overflow => {
                self.events.push_back(AsyncEvent::CompletionQueueOverflow(queue));
                self.overflowed.push(queue);
            }
        }
    }

    pub(crate) fn forget_completions(&mut self, queue_pair: QueuePairNumber, queues: [CompletionQueue; 2]) {
        for queue in queues {
            if let Some(Some(entry)) = self.queues.get_mut(queue.0 as usize) {
                entry.forget(queue_pair);
            }
        }
    }
}
