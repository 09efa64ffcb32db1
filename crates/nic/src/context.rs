//! What the driver lends to a call: the time, the memory, and a sink for events.

use railnet_core::event::{Event, Sink};
use railnet_core::{Component, Time};

use crate::memory::Memory;

/// Lent to every call that may move data. The NIC owns no clock and no memory.
#[derive(Debug)]
pub struct Context<'a, M, S> {
    /// The present. It never runs backwards between calls.
    pub now: Time,
    /// The memory that registered regions lie in.
    pub memory: &'a mut M,
    /// Where events go; [`railnet_core::event::NoSink`] costs nothing.
    pub sink: &'a mut S,
}

impl<'a, M: Memory, S: Sink> Context<'a, M, S> {
    /// Lends `memory` and `sink` at the time `now`.
    pub fn new(now: Time, memory: &'a mut M, sink: &'a mut S) -> Self {
        Self { now, memory, sink }
    }

    /// Records a step inside the NIC. `make` runs only when somebody wants to know that much.
    #[inline(always)]
    pub(crate) fn emit_detail(&mut self, source: Component, make: impl FnOnce() -> Event) {
        if S::DETAIL {
            self.emit(source, make);
        }
    }

    /// Records an event. `make` runs only when somebody watches.
    #[inline(always)]
    pub(crate) fn emit(&mut self, source: Component, make: impl FnOnce() -> Event) {
        if S::ENABLED {
            self.sink.record(self.now, source, &make());
        }
    }
}
