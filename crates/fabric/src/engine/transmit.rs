//! Ready lists: the ports of a switch that have more to transmit.
//!
//! Ports share only the buffer accounting. So where a switch is an LP, a port transmits lazily: when a packet joins its
//! queue, or when the stride ends, it transmits all that it should have by then, each packet at its time. That takes no
//! event for each packet, and no order between ports.
//!
//! Deferred releases make the free space conservative: a packet that fits even so is admitted at once; before any other one,
//! all ports of the ready list transmit. While a sender waits for XON, the ready list becomes a heap, and ports transmit in
//! the order of time.

use std::cmp::Reverse;

use railnet_core::event::Sink;
use railnet_core::{Component, Order, Span, Time};
use railnet_topology::Vertex;

use crate::engine::event::{Event, PackedEvent, rank};
use crate::engine::event_buffer::cause;
use crate::model::config::FlowControl;
use crate::model::fabric::Fabric;
use crate::model::hop::{self, SlowPath};
use crate::network::Network;

impl Fabric {
    /// From now on ports of a switch transmit in the order of time.
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
}

impl<S: Sink> Network<S> {
    /// The stride of a switch ends at `limit`: its ports transmit what they should have by then. Returns when the last event
    /// was.
    pub(crate) fn end_stride(&mut self, switch: u32, limit: Time) -> Time {
        let after = limit + Span::from_ps(1);
        let passed = self.run_bins(switch, after);
        let mut last = self.now.max(passed).max(self.drain_ready_heap(switch, after));
        let ready_heap = &self.fabric.switches[switch as usize].ready_heap;
        let mut next = ready_heap.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
        let mut index = 0;
        while let Some(&egress) = self.fabric.switches[switch as usize].ready_list.get(index) {
            if self.fabric.channels[egress as usize].is_due_before(after) {
                last = last.max(self.run_port_until(switch, egress, after));
            }
            let channel = &mut self.fabric.channels[egress as usize];
            if channel.is_ready_planned {
                next = next.min(channel.busy_until);
                index += 1;
            } else {
                channel.is_listed = false;
                self.fabric.switches[switch as usize].ready_list.swap_remove(index);
            }
        }
        if let Some(epochs) = &mut self.scheduler.epochs
            && next.is_set()
        {
            epochs.schedule_switch(switch, next);
        }
        self.observers.event_buffer.close(&mut self.sink);
        last
    }

    /// Where senders wait for XON or credit, has all ports of a switch transmit what they should have before `time`, in the
    /// order of time. Returns when the last transmission was.
    #[allow(clippy::inline_always, reason = "mostly no sender waits")]
    #[inline(always)]
    pub(crate) fn drain_ready_heap(&mut self, switch: u32, time: Time) -> Time {
        let state = &self.fabric.switches[switch as usize];
        let needs_order = state.xoff_count > 0 || self.fabric.config.flow_control == FlowControl::Credits;
        match needs_order || state.uses_ready_heap {
            true => self.drain_heap(switch, time, needs_order),
            false => Time::ZERO,
        }
    }

    fn drain_heap(&mut self, switch: u32, time: Time, needs_order: bool) -> Time {
        let mut last = Time::ZERO;
        if !self.fabric.switches[switch as usize].uses_ready_heap {
            self.fabric.list_to_heap(switch);
        }
        while let Some(&Reverse((at, egress))) = self.fabric.switches[switch as usize].ready_heap.peek()
            && at < time
        {
            self.fabric.switches[switch as usize].ready_heap.pop();
            let channel = &mut self.fabric.channels[egress as usize];
            if channel.busy_until > at {
                // A packet left at that very moment before it.
                let later = Reverse((channel.busy_until, egress));
                self.fabric.switches[switch as usize].ready_heap.push(later);
            } else {
                self.transmit_at(egress, at);
                last = at;
            }
        }
        if !needs_order {
            self.fabric.heap_to_list(switch);
        }
        last
    }

    /// Has all ports of a switch transmit what they should have before now.
    #[cold]
    pub(crate) fn drain_ready_ports(&mut self, switch: u32) {
        let mut index = 0;
        while let Some(&egress) = self.fabric.switches[switch as usize].ready_list.get(index) {
            self.catch_up_port(egress);
            index += 1;
        }
    }

    /// Has a port transmit what it should have before now: then its queue is up to date.
    #[inline]
    pub(crate) fn catch_up_port(&mut self, egress: u32) {
        if self.fabric.channels[egress as usize].is_due_before(self.now) {
            self.transmit_until(egress, self.now);
        }
    }

    /// Has a port of a switch transmit what it should have before `time`. Returns when the last transmission was.
    pub(crate) fn transmit_until(&mut self, egress: u32, time: Time) -> Time {
        let Vertex::Switch(switch) = self.fabric.channels[egress as usize].from else { return Time::ZERO };
        let cause = cause::transmit(egress);
        let before = (self.now, std::mem::replace(&mut self.observers.event_buffer.cause, cause));
        let path = &mut SlowPath { network: self, switch, egress };
        let (count, last) = hop::transmit_due(path, time, cause);
        self.scheduler.events += count;
        (self.now, self.observers.event_buffer.cause) = before;
        last
    }

    /// Has a port transmit once, which is free by then.
    fn transmit_at(&mut self, egress: u32, time: Time) {
        let now = std::mem::replace(&mut self.now, time);
        let before = std::mem::replace(&mut self.observers.event_buffer.cause, cause::transmit(egress));
        self.fabric.channels[egress as usize].is_ready_planned = false;
        self.scheduler.events += 1;
        self.send_first(egress);
        (self.now, self.observers.event_buffer.cause) = (now, before);
    }

    /// Schedules the next transmission of a channel for when it is free.
    #[allow(clippy::inline_always, reason = "mostly it is scheduled already")]
    #[inline(always)]
    pub(crate) fn schedule_transmit(&mut self, egress: u32) {
        if self.fabric.channels[egress as usize].needs_transmit_event() {
            self.plan_transmit(egress);
        }
    }

    #[inline(never)]
    pub(crate) fn plan_transmit(&mut self, egress: u32) {
        let channel = &mut self.fabric.channels[egress as usize];
        let (at, sender, from) = (channel.busy_until.max(self.now), channel.sender, channel.from);
        if self.scheduler.epochs.is_some()
            && let Vertex::Switch(switch) = from
        {
            let state = &mut self.fabric.switches[switch as usize];
            if state.uses_ready_heap {
                state.ready_heap.push(Reverse((at, egress)));
            } else {
                channel.is_listed = true;
                state.ready_list.push(egress);
            }
            return;
        }
        let order = transmit_order(at, sender, egress);
        if let Some(epochs) = &mut self.scheduler.epochs
            && let Some(lp) = epochs.lp(from)
        {
            epochs.schedule_transmit(&order, lp, egress);
        } else {
            self.scheduler.calendar.push(&order, PackedEvent::new(Event::TransmitReady { channel: egress }));
        }
    }

    /// Moves the ready lists to the calendar.
    pub(crate) fn move_ready_to_calendar(&mut self) {
        for switch in &mut self.fabric.switches {
            switch.uses_ready_heap = false;
            let ready_heap = switch.ready_heap.drain().map(|Reverse((_, egress))| egress);
            for egress in switch.ready_list.drain(..).chain(ready_heap) {
                let channel = &mut self.fabric.channels[egress as usize];
                channel.is_listed = false;
                if channel.is_ready_planned {
                    let order = transmit_order(channel.busy_until.max(self.now), channel.sender, egress);
                    self.scheduler
                        .calendar
                        .push(&order, PackedEvent::new(Event::TransmitReady { channel: egress }));
                }
            }
        }
    }
}

/// The order of a transmit-ready event: among those of its switch at the same moment, by channel. A channel has no more than
/// one.
fn transmit_order(time: Time, component: Component, egress: u32) -> Order {
    Order { time, priority: rank::TRANSMIT, component, sequence: egress.into() }
}
