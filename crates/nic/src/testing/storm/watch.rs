//! The sink of a storm: the digest of the run, and what the events tell about retries.

use railnet_core::event::{Event, RetryReason, Sink};
use railnet_core::{Component, Digest, QueuePairNumber, Time};

use super::world::RECEIVE;

/// What a queue pair has been through since its last send that succeeded.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Retries {
    /// Times it went back for want of an answer.
    pub(super) unanswered: u32,
    /// Times it went back because the peer had no receive.
    pub(super) not_ready: u32,
}

/// The sink.
#[derive(Default, Debug)]
pub(super) struct Watch {
    pub(super) digest: Digest,
    /// By NIC and queue pair number; there are few.
    retries: Vec<(Component, QueuePairNumber, Retries)>,
    pub(super) events: u64,
}

impl Watch {
    fn of(&mut self, source: Component, queue_pair: QueuePairNumber) -> &mut Retries {
        let found = self
            .retries
            .iter()
            .position(|(component, number, _)| (*component, *number) == (source, queue_pair));
        let place = found.unwrap_or_else(|| {
            self.retries.push((source, queue_pair, Retries::default()));
            self.retries.len() - 1
        });
        &mut self.retries[place].2
    }

    /// What this queue pair of this NIC has been through.
    pub(super) fn retries(&mut self, nic: usize, queue_pair: QueuePairNumber) -> Retries {
        *self.of(Component(nic as u32), queue_pair)
    }
}

impl Sink for Watch {
    fn record(&mut self, at: Time, source: Component, event: &Event) {
        self.events += 1;
        self.digest.record(at, source, event);
        match *event {
            Event::Retransmitting { queue_pair, reason, .. } => {
                let retries = self.of(source, queue_pair);
                match reason {
                    RetryReason::ReceiverNotReady => retries.not_ready += 1,
                    _ => retries.unanswered += 1,
                }
            }
            Event::Completed { queue_pair, work, status: 0, .. } if work & RECEIVE == 0 => {
                *self.of(source, queue_pair) = Retries::default();
            }
            _ => {}
        }
    }
}
