//! What is to be sent, and when again.

use std::collections::{BTreeSet, VecDeque};

use railnet_core::{Span, Time};
use railnet_wire::Gid;
use railnet_wire::mad::{ConnectionMad, MAD_LENGTH, Message};

/// A management datagram for QP1 of an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// The address.
    pub target: Gid,
    /// The payload.
    pub bytes: [u8; MAD_LENGTH],
}

/// The wait for the first answer; it doubles until it is as long as Linux waits.
const FIRST_WAIT: Span = Span::from_ms(256);
const DOUBLINGS_MAX: u32 = 4;

/// A message that is sent until it is answered.
#[derive(Clone, Debug)]
pub(super) struct Retry {
    message: Message,
    due: Time,
    sent: u32,
    sent_max: u32,
}

impl Retry {
    pub(super) fn message(&self) -> &Message {
        &self.message
    }
}

/// Datagrams that wait for the NIC, and timers by connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    ready: VecDeque<Datagram>,
    timers: BTreeSet<(Time, u32)>,
}

impl Outbox {
    pub(super) fn push(&mut self, target: Gid, transaction: u64, message: &Message) {
        let bytes = ConnectionMad { transaction, message: message.clone() }.to_bytes();
        self.ready.push_back(Datagram { target, bytes });
    }

    pub(super) fn pop(&mut self) -> Option<Datagram> {
        self.ready.pop_front()
    }

    /// Sends a message, `sent_max` times at most.
    pub(super) fn begin(
        &mut self,
        now: Time,
        (id, target, transaction): (u32, Gid, u64),
        message: Message,
        sent_max: u32,
    ) -> Retry {
        self.push(target, transaction, &message);
        let retry = Retry { message, due: now + FIRST_WAIT, sent: 1, sent_max };
        self.set_timer(retry.due, id);
        retry
    }

    /// Sends it again where it is due; `None` where that was often enough.
    pub(super) fn again(
        &mut self,
        now: Time,
        (id, target, transaction): (u32, Gid, u64),
        mut retry: Retry,
    ) -> Option<Retry> {
        if retry.sent >= retry.sent_max {
            return None;
        }
        self.push(target, transaction, &retry.message);
        let wait = Span::from_ps(FIRST_WAIT.as_ps() << retry.sent.min(DOUBLINGS_MAX));
        (retry.due, retry.sent) = (now + wait, retry.sent + 1);
        self.set_timer(retry.due, id);
        Some(retry)
    }

    /// The peer needs so much time.
    pub(super) fn put_off(&mut self, id: u32, retry: &mut Retry, until: Time) {
        self.stop(id, retry);
        retry.due = retry.due.max(until);
        self.set_timer(retry.due, id);
    }

    pub(super) fn stop(&mut self, id: u32, retry: &Retry) {
        self.timers.remove(&(retry.due, id));
    }

    pub(super) fn set_timer(&mut self, due: Time, id: u32) {
        self.timers.insert((due, id));
    }

    pub(super) fn clear_timer(&mut self, due: Time, id: u32) {
        self.timers.remove(&(due, id));
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(due, _)| *due)
    }

    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let first = *self.timers.first().filter(|(due, _)| *due <= now)?;
        self.timers.remove(&first);
        Some(first.1)
    }
}
