//! The event buffer of a switch: its ports do not transmit in the order of time, but sinks see events in that order.

use railnet_core::event::{Event, Sink};
use railnet_core::{Component, Time};

/// An event emitted out of order.
#[derive(Debug)]
struct BufferedEvent {
    at: Time,
    cause: u64,
    component: Component,
    event: Event,
}

/// What the active switch has emitted.
#[derive(Debug, Default)]
pub(crate) struct EventBuffer {
    is_open: bool,
    /// What makes the switch emit something now: see [`cause`].
    pub(crate) cause: u64,
    events: Vec<BufferedEvent>,
}

/// Causes of events, in their order at one moment.
pub(crate) mod cause {
    /// An event that is run in the order of time: what it causes is buffered in that order.
    pub(crate) const EVENT: u64 = 0;

    /// The arrival of a packet by a channel with this tie-break rank, where arrivals are not run in the order of time.
    #[inline]
    pub(crate) fn arrived(tie_break: u32) -> u64 {
        tie_break.into()
    }

    /// The transmission of a port.
    #[inline]
    pub(crate) fn transmit(egress: u32) -> u64 {
        1 << 32 | u64::from(egress)
    }
}

impl EventBuffer {
    /// The stride of a switch begins.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    /// Whether an event was buffered; if not, it can be recorded at once.
    #[inline]
    pub(crate) fn put(&mut self, at: Time, component: Component, event: &Event) -> bool {
        if self.is_open {
            self.events.push(BufferedEvent { at, cause: self.cause, component, event: *event });
        }
        self.is_open
    }

    /// The stride of a switch is over: records its events in order.
    #[inline]
    pub(crate) fn close(&mut self, sink: &mut impl Sink) {
        self.is_open = false;
        if !self.events.is_empty() {
            self.flush(sink);
        }
    }

    fn flush(&mut self, sink: &mut impl Sink) {
        self.events.sort_by_key(|buffered| (buffered.at, buffered.cause));
        for BufferedEvent { at, component, event, .. } in self.events.drain(..) {
            sink.record(at, component, &event);
        }
    }
}
