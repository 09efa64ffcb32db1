//! Ports of switches that have more to send, where each switch is taken through windows of time by itself.
//!
//! What a port sends when it is free again concerns nobody else in its switch but by the memory that becomes free. So in a
//! switch's turn a port is woken late: when a packet joins its queue, or when the turn is over; then it does all that it should have
//! done by then, each thing at its time. That takes no event for each packet that leaves, and no order between ports. Mostly
//! packets join late, too, and a port does all of it at once ([`batch`](crate::batch)).
//!
//! Meanwhile a switch knows of less free memory than it has. A packet that fits even so is taken in at once; before any other
//! one all ports are woken, and so they are before each event where somebody waits to be told that there is room again, the
//! first of them first.

use std::cmp::Reverse;

use railnet_core::event::{Event as Note, Sink};
use railnet_core::{Component, Order, Span, Time};
use railnet_topology::Vertex;

use crate::config::FlowControl;
use crate::event::{Event, Packed, rank};
use crate::network::Network;

/// Something to be told, out of order.
#[derive(Debug)]
struct Untold {
    at: Time,
    cause: u64,
    component: Component,
    note: Note,
}

/// What a switch in its turn has to tell: its ports do not take turns in the order of time, but whoever listens hears in that order.
#[derive(Debug, Default)]
pub(crate) struct Notebook {
    is_open: bool,
    /// Of what happens now.
    pub(crate) cause: u64,
    notes: Vec<Untold>,
}

/// What makes a switch note something, in the order of causes at one moment.
pub(crate) mod cause {
    /// An event that has its turn in the order of time: what it causes is written down in that order.
    pub(crate) const EVENT: u64 = 0;

    /// A packet that came by a channel that stands there among all, where packets come in no order.
    #[inline]
    pub(crate) fn arrived(standing: u32) -> u64 {
        standing.into()
    }

    /// A port that was woken.
    #[inline]
    pub(crate) fn woken(egress: u32) -> u64 {
        1 << 32 | u64::from(egress)
    }
}

impl Notebook {
    /// Whether a note was written down; if not, it can be told at once.
    #[inline]
    pub(crate) fn take(&mut self, at: Time, component: Component, note: &Note) -> bool {
        if self.is_open {
            self.notes.push(Untold { at, cause: self.cause, component, note: *note });
        }
        self.is_open
    }
}

impl<S: Sink> Network<S> {
    /// A switch's turn begins.
    pub(crate) fn open_ports(&mut self) {
        self.notebook.is_open = true;
    }

    /// A switch's turn is over at `limit`: its ports send what they should have by then. Returns when the last of them was woken.
    pub(crate) fn close_ports(&mut self, switch: u32, limit: Time) -> Time {
        let after = limit + Span::from_ps(1);
        let passed = self.pass_ports(switch, after);
        let mut last = self.now.max(passed).max(self.wake_in_order(switch, after));
        let in_line = &self.switches[switch as usize].in_line;
        let mut next = in_line.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
        let mut index = 0;
        while let Some(&egress) = self.switches[switch as usize].awake.get(index) {
            if self.channels[egress as usize].is_due_before(after) {
                last = last.max(self.pass_until(switch, egress, after));
            }
            let channel = &mut self.channels[egress as usize];
            if channel.wake_set {
                next = next.min(channel.busy_until);
                index += 1;
            } else {
                channel.is_listed = false;
                self.switches[switch as usize].awake.swap_remove(index);
            }
        }
        if let Some(windows) = &mut self.windows
            && next.is_set()
        {
            windows.wake_ports(switch, next);
        }
        self.notebook.is_open = false;
        if !self.notebook.notes.is_empty() {
            self.tell_in_order();
        }
        last
    }

    fn tell_in_order(&mut self) {
        let notes = &mut self.notebook.notes;
        notes.sort_by_key(|untold| (untold.at, untold.cause));
        for Untold { at, component, note, .. } in notes.drain(..) {
            self.sink.record(at, component, &note);
        }
    }

    /// Where somebody is told of room the moment there is some, wakes all ports of a switch that should have been before `time`,
    /// the first one first. Returns when the last of them was.
    #[allow(clippy::inline_always, reason = "mostly nobody is")]
    #[inline(always)]
    pub(crate) fn wake_in_order(&mut self, switch: u32, time: Time) -> Time {
        let state = &self.switches[switch as usize];
        let needs_order = state.stopped > 0 || self.config.flow_control == FlowControl::Credits;
        match needs_order || state.is_in_line {
            true => self.wake_line(switch, time, needs_order),
            false => Time::ZERO,
        }
    }

    fn wake_line(&mut self, switch: u32, time: Time, needs_order: bool) -> Time {
        let mut last = Time::ZERO;
        if !self.switches[switch as usize].is_in_line {
            self.stand_in_line(switch);
        }
        while let Some(&Reverse((at, egress))) = self.switches[switch as usize].in_line.peek()
            && at < time
        {
            self.switches[switch as usize].in_line.pop();
            let channel = &mut self.channels[egress as usize];
            if channel.busy_until > at {
                // A packet left at that very moment before it.
                let later = Reverse((channel.busy_until, egress));
                self.switches[switch as usize].in_line.push(later);
            } else {
                self.wake_at(egress, at);
                last = at;
            }
        }
        if !needs_order {
            self.leave_line(switch);
        }
        last
    }

    /// From now on ports of a switch are woken in the order of time.
    fn stand_in_line(&mut self, switch: u32) {
        let Self { switches, channels, .. } = self;
        let state = &mut switches[switch as usize];
        state.is_in_line = true;
        for egress in state.awake.drain(..) {
            let channel = &mut channels[egress as usize];
            channel.is_listed = false;
            if channel.wake_set {
                state.in_line.push(Reverse((channel.busy_until, egress)));
            }
        }
    }

    /// And from now on in no order again.
    fn leave_line(&mut self, switch: u32) {
        let Self { switches, channels, .. } = self;
        let state = &mut switches[switch as usize];
        state.is_in_line = false;
        for Reverse((_, egress)) in state.in_line.drain() {
            channels[egress as usize].is_listed = true;
            state.awake.push(egress);
        }
    }

    /// Wakes all ports of a switch that should have been before now.
    #[cold]
    pub(crate) fn wake_ports(&mut self, switch: u32) {
        let mut index = 0;
        while let Some(&egress) = self.switches[switch as usize].awake.get(index) {
            self.wake_before_now(egress);
            index += 1;
        }
    }

    /// Wakes a port as often as it should have been before now: its queue is what it should be then.
    #[inline]
    pub(crate) fn wake_before_now(&mut self, egress: u32) {
        let channel = &self.channels[egress as usize];
        if channel.is_due_before(self.now) {
            self.wake_until(egress, self.now);
        }
    }

    /// Wakes a port as often as it should be before `time`. Returns when the last time was.
    pub(crate) fn wake_until(&mut self, egress: u32, time: Time) -> Time {
        let (now, before) = (self.now, self.notebook.cause);
        self.notebook.cause = cause::woken(egress);
        let mut last = Time::ZERO;
        loop {
            let channel = &mut self.channels[egress as usize];
            if !channel.is_due_before(time) {
                break;
            }
            channel.wake_set = false;
            last = channel.busy_until;
            self.now = last;
            self.events += 1;
            self.send_first(egress);
        }
        (self.now, self.notebook.cause) = (now, before);
        last
    }

    /// Wakes a port once, which is free by then.
    fn wake_at(&mut self, egress: u32, time: Time) {
        let now = std::mem::replace(&mut self.now, time);
        let before = std::mem::replace(&mut self.notebook.cause, cause::woken(egress));
        self.channels[egress as usize].wake_set = false;
        self.events += 1;
        self.send_first(egress);
        (self.now, self.notebook.cause) = (now, before);
    }

    /// The port of a channel is to be woken when it is free again.
    #[allow(clippy::inline_always, reason = "mostly it is planned already")]
    #[inline(always)]
    pub(crate) fn set_wake(&mut self, egress: u32) {
        if self.channels[egress as usize].needs_wake() {
            self.plan_wake(egress);
        }
    }

    #[inline(never)]
    pub(crate) fn plan_wake(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        let (at, sender, from) = (channel.busy_until.max(self.now), channel.sender, channel.from);
        if self.windows.is_some()
            && let Vertex::Switch(switch) = from
        {
            let state = &mut self.switches[switch as usize];
            if state.is_in_line {
                state.in_line.push(Reverse((at, egress)));
            } else {
                channel.is_listed = true;
                state.awake.push(egress);
            }
            return;
        }
        let order = wake_order(at, sender, egress);
        if let Some(windows) = &mut self.windows
            && let Some(place) = windows.place(from)
        {
            windows.wake(&order, place, egress);
        } else {
            self.calendar.push(&order, Packed::new(Event::Wake { channel: egress }));
        }
    }

    /// Has all ports woken by the calendar from now on.
    pub(crate) fn wake_by_calendar(&mut self) {
        for switch in &mut self.switches {
            switch.is_in_line = false;
            let in_line = switch.in_line.drain().map(|Reverse((_, egress))| egress);
            for egress in switch.awake.drain(..).chain(in_line) {
                let channel = &mut self.channels[egress as usize];
                channel.is_listed = false;
                if channel.wake_set {
                    let order = wake_order(channel.busy_until.max(self.now), channel.sender, egress);
                    self.calendar.push(&order, Packed::new(Event::Wake { channel: egress }));
                }
            }
        }
    }
}

/// Where the wake-up of a port stands among all events: with others of its switch at the same moment, by its number. A port has
/// no more than one.
fn wake_order(time: Time, component: Component, egress: u32) -> Order {
    Order { time, priority: rank::WAKE, component, sequence: egress.into() }
}
