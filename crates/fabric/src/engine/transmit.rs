//! Ports of switches that have more to send, where each switch is taken through windows of time by itself.
//!
//! What a port sends when it is free again concerns nobody else in its switch but by the memory that becomes free. So in a
//! switch's turn a port is woken late: when a packet joins its queue, or when the turn is over; then it does all that it should have
//! done by then, each thing at its time. That takes no event for each packet that leaves, and no order between ports. Mostly
//! packets join late, too, and a port does all of it at once ([`batch`](crate::engine::binning)).
//!
//! Meanwhile a switch knows of less free memory than it has. A packet that fits even so is taken in at once; before any other
//! one all ports are woken, and so they are before each event where somebody waits to be told that there is room again, the
//! first of them first.

use std::cmp::Reverse;

use railnet_core::event::{Event as Note, Sink};
use railnet_core::{Component, Order, Span, Time};
use railnet_topology::Vertex;

use crate::engine::event::{Event, PackedEvent, rank};
use crate::model::config::FlowControl;
use crate::network::Network;

/// Something to be told, out of order.
#[derive(Debug)]
struct BufferedEvent {
    at: Time,
    cause: u64,
    component: Component,
    note: Note,
}

/// What a switch in its turn has to tell: its ports do not take turns in the order of time, but whoever listens hears in that order.
#[derive(Debug, Default)]
pub(crate) struct EventBuffer {
    is_open: bool,
    /// Of what happens now.
    pub(crate) cause: u64,
    notes: Vec<BufferedEvent>,
}

/// What makes a switch note something, in the order of causes at one moment.
pub(crate) mod cause {
    /// An event that has its turn in the order of time: what it causes is written down in that order.
    pub(crate) const EVENT: u64 = 0;

    /// A packet that came by a channel that stands there among all, where packets come in no order.
    #[inline]
    pub(crate) fn arrived(tie_break: u32) -> u64 {
        tie_break.into()
    }

    /// A port that was woken.
    #[inline]
    pub(crate) fn transmit(egress: u32) -> u64 {
        1 << 32 | u64::from(egress)
    }
}

impl EventBuffer {
    /// Whether a note was written down; if not, it can be told at once.
    #[inline]
    pub(crate) fn take(&mut self, at: Time, component: Component, note: &Note) -> bool {
        if self.is_open {
            self.notes.push(BufferedEvent { at, cause: self.cause, component, note: *note });
        }
        self.is_open
    }
}

impl<S: Sink> Network<S> {
    /// A switch's turn begins.
    pub(crate) fn open_event_buffer(&mut self) {
        self.event_buffer.is_open = true;
    }

    /// A switch's turn is over at `limit`: its ports send what they should have by then. Returns when the last of them was woken.
    pub(crate) fn close_switch(&mut self, switch: u32, limit: Time) -> Time {
        let after = limit + Span::from_ps(1);
        let passed = self.run_bins(switch, after);
        let mut last = self.now.max(passed).max(self.drain_ready_heap(switch, after));
        let ready_heap = &self.switches[switch as usize].ready_heap;
        let mut next = ready_heap.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
        let mut index = 0;
        while let Some(&egress) = self.switches[switch as usize].ready_list.get(index) {
            if self.channels[egress as usize].is_due_before(after) {
                last = last.max(self.run_port_until(switch, egress, after));
            }
            let channel = &mut self.channels[egress as usize];
            if channel.is_ready_planned {
                next = next.min(channel.busy_until);
                index += 1;
            } else {
                channel.is_listed = false;
                self.switches[switch as usize].ready_list.swap_remove(index);
            }
        }
        if let Some(epochs) = &mut self.epochs
            && next.is_set()
        {
            epochs.schedule_switch(switch, next);
        }
        self.event_buffer.is_open = false;
        if !self.event_buffer.notes.is_empty() {
            self.flush_event_buffer();
        }
        last
    }

    fn flush_event_buffer(&mut self) {
        let notes = &mut self.event_buffer.notes;
        notes.sort_by_key(|buffered| (buffered.at, buffered.cause));
        for BufferedEvent { at, component, note, .. } in notes.drain(..) {
            self.sink.record(at, component, &note);
        }
    }

    /// Where somebody is told of room the moment there is some, wakes all ports of a switch that should have been before `time`,
    /// the first one first. Returns when the last of them was.
    #[allow(clippy::inline_always, reason = "mostly nobody is")]
    #[inline(always)]
    pub(crate) fn drain_ready_heap(&mut self, switch: u32, time: Time) -> Time {
        let state = &self.switches[switch as usize];
        let needs_order = state.xoff_count > 0 || self.config.flow_control == FlowControl::Credits;
        match needs_order || state.uses_ready_heap {
            true => self.drain_heap(switch, time, needs_order),
            false => Time::ZERO,
        }
    }

    fn drain_heap(&mut self, switch: u32, time: Time, needs_order: bool) -> Time {
        let mut last = Time::ZERO;
        if !self.switches[switch as usize].uses_ready_heap {
            self.list_to_heap(switch);
        }
        while let Some(&Reverse((at, egress))) = self.switches[switch as usize].ready_heap.peek()
            && at < time
        {
            self.switches[switch as usize].ready_heap.pop();
            let channel = &mut self.channels[egress as usize];
            if channel.busy_until > at {
                // A packet left at that very moment before it.
                let later = Reverse((channel.busy_until, egress));
                self.switches[switch as usize].ready_heap.push(later);
            } else {
                self.transmit_at(egress, at);
                last = at;
            }
        }
        if !needs_order {
            self.heap_to_list(switch);
        }
        last
    }

    /// From now on ports of a switch are woken in the order of time.
    fn list_to_heap(&mut self, switch: u32) {
        let Self { switches, channels, .. } = self;
        let state = &mut switches[switch as usize];
        state.uses_ready_heap = true;
        for egress in state.ready_list.drain(..) {
            let channel = &mut channels[egress as usize];
            channel.is_listed = false;
            if channel.is_ready_planned {
                state.ready_heap.push(Reverse((channel.busy_until, egress)));
            }
        }
    }

    /// And from now on in no order again.
    fn heap_to_list(&mut self, switch: u32) {
        let Self { switches, channels, .. } = self;
        let state = &mut switches[switch as usize];
        state.uses_ready_heap = false;
        for Reverse((_, egress)) in state.ready_heap.drain() {
            channels[egress as usize].is_listed = true;
            state.ready_list.push(egress);
        }
    }

    /// Wakes all ports of a switch that should have been before now.
    #[cold]
    pub(crate) fn drain_ready_ports(&mut self, switch: u32) {
        let mut index = 0;
        while let Some(&egress) = self.switches[switch as usize].ready_list.get(index) {
            self.transmit_due(egress);
            index += 1;
        }
    }

    /// Wakes a port as often as it should have been before now: its queue is what it should be then.
    #[inline]
    pub(crate) fn transmit_due(&mut self, egress: u32) {
        let channel = &self.channels[egress as usize];
        if channel.is_due_before(self.now) {
            self.transmit_until(egress, self.now);
        }
    }

    /// Wakes a port as often as it should be before `time`. Returns when the last time was.
    pub(crate) fn transmit_until(&mut self, egress: u32, time: Time) -> Time {
        let (now, before) = (self.now, self.event_buffer.cause);
        self.event_buffer.cause = cause::transmit(egress);
        let mut last = Time::ZERO;
        loop {
            let channel = &mut self.channels[egress as usize];
            if !channel.is_due_before(time) {
                break;
            }
            channel.is_ready_planned = false;
            last = channel.busy_until;
            self.now = last;
            self.events += 1;
            self.send_first(egress);
        }
        (self.now, self.event_buffer.cause) = (now, before);
        last
    }

    /// Wakes a port once, which is free by then.
    fn transmit_at(&mut self, egress: u32, time: Time) {
        let now = std::mem::replace(&mut self.now, time);
        let before = std::mem::replace(&mut self.event_buffer.cause, cause::transmit(egress));
        self.channels[egress as usize].is_ready_planned = false;
        self.events += 1;
        self.send_first(egress);
        (self.now, self.event_buffer.cause) = (now, before);
    }

    /// The port of a channel is to be woken when it is free again.
    #[allow(clippy::inline_always, reason = "mostly it is planned already")]
    #[inline(always)]
    pub(crate) fn schedule_transmit(&mut self, egress: u32) {
        if self.channels[egress as usize].needs_transmit_event() {
            self.plan_transmit(egress);
        }
    }

    #[inline(never)]
    pub(crate) fn plan_transmit(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        let (at, sender, from) = (channel.busy_until.max(self.now), channel.sender, channel.from);
        if self.epochs.is_some()
            && let Vertex::Switch(switch) = from
        {
            let state = &mut self.switches[switch as usize];
            if state.uses_ready_heap {
                state.ready_heap.push(Reverse((at, egress)));
            } else {
                channel.is_listed = true;
                state.ready_list.push(egress);
            }
            return;
        }
        let order = transmit_order(at, sender, egress);
        if let Some(epochs) = &mut self.epochs
            && let Some(lp) = epochs.lp(from)
        {
            epochs.schedule_transmit(&order, lp, egress);
        } else {
            self.calendar.push(&order, PackedEvent::new(Event::TransmitReady { channel: egress }));
        }
    }

    /// Has all ports woken by the calendar from now on.
    pub(crate) fn move_ready_to_calendar(&mut self) {
        for switch in &mut self.switches {
            switch.uses_ready_heap = false;
            let ready_heap = switch.ready_heap.drain().map(|Reverse((_, egress))| egress);
            for egress in switch.ready_list.drain(..).chain(ready_heap) {
                let channel = &mut self.channels[egress as usize];
                channel.is_listed = false;
                if channel.is_ready_planned {
                    let order = transmit_order(channel.busy_until.max(self.now), channel.sender, egress);
                    self.calendar.push(&order, PackedEvent::new(Event::TransmitReady { channel: egress }));
                }
            }
        }
    }
}

/// Where the wake-up of a port stands among all events: with others of its switch at the same moment, by its number. A port has
/// no more than one.
fn transmit_order(time: Time, component: Component, egress: u32) -> Order {
    Order { time, priority: rank::TRANSMIT, component, sequence: egress.into() }
}
