//! The run loop: which events are run next.
//!
//! One loop runs epoch after epoch: the calendar and the host groups, then the switches. In large networks switches are LPs,
//! and so are host groups where the application bounds its own lookahead ([`Network::partition_by_host`]); else hosts and
//! the application share the calendar. A run in the order of time is the same loop without LPs: one partition, whose
//! calendar has everything, and no lookahead, so that the only epoch is as long as the run. That is the case in small
//! networks, where a sink has to see events of all components in order, and where something concerns the network as a whole
//! (faults, taps, switches that reduce).

use railnet_core::event::Sink;
use railnet_core::{Component, Span, Time};
use railnet_topology::Vertex;

use crate::application::Application;
use crate::engine::epoch::Epochs;
use crate::engine::event::{Event, PackedEvent, rank};
use crate::engine::groups::HostGroups;
use crate::engine::scheduler::Scheduler;
use crate::model::channel::NO_LOCAL_LP;
use crate::model::packet::PacketIndex;
use crate::network::Network;

/// Hosts of a large network. Its packets, ports and queue pairs are more than a cache holds, so epochs and prefetching pay;
/// those of a small one stay in the cache.
pub(crate) const LARGE: u32 = 64;

/// Epochs shorter than this have too few events to pay.
const EPOCH_MIN: Span = Span::from_ps(50_000);

/// Hosts that are prefetched together, before the first of their groups runs.
const TOGETHER: u32 = 8;
/// Hosts for each event of the last epoch, above which nothing is prefetched.
const DENSE: u64 = 16;

impl Scheduler {
    /// Groups that are prefetched together.
    fn groups_prefetched_together(&self, host_count: u32) -> u32 {
        let count = self.epochs.as_ref().map_or(0, |epochs| epochs.groups().count());
        (TOGETHER * count / host_count.max(1)).max(1)
    }
}

impl<S: Sink> Network<S> {
    /// Calls the application at `at`.
    pub fn call_at(&mut self, at: Time, token: u32) {
        let order = self.scheduler.sequences.order(at.max(self.now), rank::CALL, self.environment());
        self.scheduler.calendar.push(&order, PackedEvent::new(Event::Call { token }));
    }

    /// Calls the application at `at`, after all other events of that moment.
    pub fn call_last_at(&mut self, at: Time, token: u32) {
        let order = self.scheduler.sequences.order(at.max(self.now), rank::LAST, self.environment());
        self.scheduler.calendar.push(&order, PackedEvent::new(Event::Call { token }));
    }

    /// Calls the application at `at` about this host, and those of its group, only.
    pub fn call_on(&mut self, host: u32, at: Time, token: u32) {
        let (at, by) = (at.max(self.now), self.environment());
        self.schedule_at(Vertex::Host(host), at, rank::CALL, by, Event::Call { token });
    }

    /// The same, for a caller that schedules for all hosts: after the calls that hosts themselves scheduled for that moment,
    /// no matter which came first.
    pub fn call_on_after(&mut self, host: u32, at: Time, token: u32) {
        let (at, by) = (at.max(self.now), self.topology.outside());
        self.schedule_at(Vertex::Host(host), at, rank::CALL, by, Event::Call { token });
    }

    /// Runs until there are no more events, or until `limit`. Returns whether there are none.
    pub fn run(&mut self, application: &mut impl Application<S>, limit: Time) -> bool {
        self.notify(application);
        self.run_epochs(application, limit, |_| true)
    }

    /// Runs in the order of time, switches included, until there are no more events, until `limit`, or until the application
    /// says after an event that it does not go on: then the present is that event's time, and nothing has run ahead of it.
    /// Returns whether there are no more events.
    pub fn run_while<A: Application<S>>(
        &mut self,
        application: &mut A,
        limit: Time,
        goes_on: impl Fn(&A) -> bool,
    ) -> bool {
        self.use_one_calendar();
        self.notify(application);
        goes_on(application) && self.run_epochs(application, limit, goes_on)
    }

    /// The run loop.
    fn run_epochs<A: Application<S>>(
        &mut self,
        application: &mut A,
        limit: Time,
        goes_on: impl Fn(&A) -> bool,
    ) -> bool {
        let mut latest = self.now;
        loop {
            if let Some(last) = self.run_two_coloured(application, limit) {
                latest = latest.max(last);
            }
            if application.is_stopped() {
                if let Some(epochs) = &self.scheduler.epochs {
                    // Some LPs have come as far as that.
                    self.now = latest.max(epochs.end()).min(limit);
                }
                return false;
            }
            let next = self.scheduler.next_time();
            let Some(next) = next.filter(|next| *next <= limit) else {
                self.now = if next.is_some() { limit } else { latest };
                return next.is_none();
            };
            let end = self.begin_next_epochs(next, application.earliest_interaction(), limit);
            let groups = self.scheduler.epochs.as_ref().map_or(0, |epochs| epochs.groups().count());
            let last = match groups {
                0 => self.run_calendar(application, end, &goes_on),
                _ => Some(self.run_groups_and_calls(application, end)),
            };
            let Some(last) = last else { return false };
            latest = latest.max(last).max(self.run_switches_until(end));
            if end >= limit {
                let is_empty = self.scheduler.is_empty();
                self.now = if is_empty { latest } else { limit };
                return is_empty;
            }
        }
    }

    /// Begins the next epochs, with the next event at `next`. Returns their end: without LPs there is no lookahead, and the
    /// calendar runs until `limit`.
    fn begin_next_epochs(&mut self, next: Time, interaction: Time, limit: Time) -> Time {
        let horizon = self.extended_lookahead(next, interaction);
        let end = self.epoch_end(next, horizon);
        let Some(epochs) = &mut self.scheduler.epochs else { return limit };
        epochs.begin_epochs(next, end);
        end.min(limit)
    }

    /// Whether the only events left are timers of NICs that wait for nothing: many connections leave many of them, each set
    /// for when an answer would be late.
    pub fn is_idle(&self) -> bool {
        let near = self.scheduler.epochs.iter().flat_map(Epochs::events);
        let is_timer = |event: &PackedEvent| matches!(event.event(), Event::Timer { .. });
        self.fabric.packets.in_use() == 0
            && self.endpoints.hosts.iter().all(|host| host.nic.is_idle())
            && self.scheduler.calendar.events().chain(near).all(is_timer)
            && self.scheduler.epochs.as_ref().is_none_or(|epochs| !epochs.has_transmit_ready())
    }

    /// Runs the calendar until `limit`. Returns the time of the last event, or `None` if the application does not go on.
    fn run_calendar<A: Application<S>>(
        &mut self,
        application: &mut A,
        limit: Time,
        goes_on: impl Fn(&A) -> bool,
    ) -> Option<Time> {
        let mut latest = Time::ZERO;
        loop {
            while let Some((at, event)) = self.scheduler.calendar.pop_active(limit) {
                self.dispatch(application, at, event);
                latest = at;
                if !goes_on(application) {
                    return None;
                }
            }
            match self.scheduler.calendar.pop_late_or_advance(limit) {
                Ok(None) => self.prefetch_bucket(),
                Ok(Some((at, event))) => {
                    self.dispatch(application, at, event);
                    latest = at;
                    if !goes_on(application) {
                        return None;
                    }
                }
                Err(_) => return Some(latest),
            }
            if self.scheduler.epochs.is_none() && application.is_stopped() {
                return None;
            }
        }
    }

    /// Runs all host groups through the active epochs until `limit`, and the calls of the application in between. Returns
    /// the time of the last event.
    pub(crate) fn run_groups_and_calls(
        &mut self,
        application: &mut impl Application<S>,
        limit: Time,
    ) -> Time {
        let mut latest = Time::ZERO;
        while let Some((at, rank)) = self.scheduler.calendar.next_rank().filter(|(at, _)| *at <= limit) {
            // A call is before or after all events of hosts at its moment.
            let before = if rank == rank::CALL { at.as_ps().checked_sub(1) } else { Some(at.as_ps()) };
            if let Some(before) = before {
                self.run_groups_until(application, Time::from_ps(before));
            }
            if let Ok((at, event)) = self.scheduler.calendar.pop_by(limit) {
                self.dispatch(application, at, event);
                latest = at;
            }
            if self.scheduler.epochs.is_none() || application.is_stopped() {
                return latest;
            }
        }
        latest.max(self.run_groups_until(application, limit))
    }

    /// Runs all host groups through the active epochs until `limit`. Returns the time of the last event.
    pub(crate) fn run_groups_until(&mut self, application: &mut impl Application<S>, limit: Time) -> Time {
        let Some(epochs) = &mut self.scheduler.epochs else { return Time::ZERO };
        if limit < epochs.end() && !epochs.tracks_ready() {
            epochs.track_ready();
        }
        if epochs.tracks_ready() {
            return self.run_ready_groups_until(application, limit);
        }
        let count = epochs.groups().count();
        let together = self.scheduler.groups_prefetched_together(self.topology.host_count);
        // Where few hosts have events, prefetching for all of them costs more than running those.
        let events = self.scheduler.events
            - std::mem::replace(&mut self.scheduler.events_before, self.scheduler.events);
        let is_dense = events.saturating_mul(DENSE) >= u64::from(self.topology.host_count);
        let mut latest = Time::ZERO;
        for first in (0..count).step_by(together as usize) {
            if application.is_stopped() {
                break;
            }
            let some = first..count.min(first + together);
            if is_dense {
                self.prefetch_groups(some.clone());
            }
            for group in some {
                latest = latest.max(self.run_group_until(application, group, limit));
            }
        }
        latest
    }

    /// The same for the groups that have events by then: the cost of a call does not grow with the number of the others.
    fn run_ready_groups_until(&mut self, application: &mut impl Application<S>, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        let mut groups = std::mem::take(&mut self.scheduler.ready_scratch);
        if let Some(epochs) = &mut self.scheduler.epochs {
            epochs.take_ready_by(limit, &mut groups);
        }
        for some in
            groups.chunks(self.scheduler.groups_prefetched_together(self.topology.host_count) as usize)
        {
            if application.is_stopped() {
                break;
            }
            self.prefetch_groups(some.iter().copied());
            for group in some {
                latest = latest.max(self.run_group_until(application, *group, limit));
                if let Some(epochs) = &mut self.scheduler.epochs {
                    epochs.requeue_group(*group);
                }
            }
        }
        self.scheduler.ready_scratch = groups;
        latest
    }

    /// Runs a host group through the active epochs, stride by stride.
    fn run_group_until(&mut self, application: &mut impl Application<S>, group: u32, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        while let Some(epochs) = &mut self.scheduler.epochs {
            let by = limit.min(epochs.end_of_stride());
            let host = epochs.groups().only_host(group);
            if epochs.activate(epochs.lp_of_group(group)) {
                latest = latest.max(self.run_active_group_until(application, host, by));
            }
            let Some(epochs) = &mut self.scheduler.epochs else { break };
            epochs.deactivate();
            if !epochs.next_stride(limit) {
                break;
            }
        }
        latest
    }

    /// Runs the active host group until `limit`, within its stride; `host` is its only host, if it has only one. Returns the
    /// time of the last event.
    #[allow(clippy::inline_always, reason = "it is called from one place, for every event of a host")]
    #[inline(always)]
    fn run_active_group_until(
        &mut self,
        application: &mut impl Application<S>,
        host: Option<u32>,
        limit: Time,
    ) -> Time {
        let mut latest = Time::ZERO;
        while let Some(epochs) = &mut self.scheduler.epochs {
            let arrival = epochs.next_arrival();
            let arrives = arrival.map_or(Time::NEVER, |(at, ..)| at);
            let ready_at = epochs.next_transmit_ready();
            if epochs.has_other_events()
                && let Some((at, event)) = epochs.pop_event_of_group_by(limit, arrives)
            {
                self.dispatch(application, at, event);
                latest = latest.max(at);
                continue;
            }
            // A packet that arrives when a port transmits is before it.
            if ready_at < arrives && ready_at <= limit {
                let Some(channel) = epochs.pop_transmit_ready() else { break };
                (self.now, self.scheduler.events) = (ready_at, self.scheduler.events + 1);
                self.transmit_ready(channel);
            } else if let Some((at, channel, packet)) = arrival
                && at <= limit
            {
                epochs.pass_arrival();
                (self.now, self.scheduler.events) = (at, self.scheduler.events + 1);
                match host {
                    Some(host) => self.arrive_at_host(host, channel, packet),
                    None => self.arrive(channel, packet),
                }
            } else {
                break;
            }
            latest = latest.max(self.now);
            self.notify(application);
        }
        latest
    }

    #[allow(clippy::inline_always, reason = "each of the two loops has its own, next to what it takes out")]
    #[inline(always)]
    fn dispatch(&mut self, application: &mut impl Application<S>, at: Time, event: PackedEvent) {
        self.now = at;
        self.scheduler.events += 1;
        match event.event() {
            Event::Arrive { channel, packet } => self.arrive(channel, packet),
            Event::TransmitReady { channel } => self.transmit_ready(channel),
            Event::Timer { host } => self.timer(host),
            Event::Call { token } => application.called(self, token),
            Event::PauseExpiry { channel } => self.expire_pause(channel),
            Event::PauseRefresh { channel, priority } => self.refresh_pause(channel, priority),
            Event::Credit { channel, priority, bytes } => self.take_credit(channel, priority, bytes),
            Event::Slice { slice } => self.slice_passed(application, slice),
            Event::Fault { index } => self.apply_fault(index),
            Event::Reroute => self.reroute(),
        }
        self.notify(application);
    }

    /// The same for the events of a switch other than arrivals: they need no application.
    #[inline(never)]
    fn dispatch_to_switch(&mut self, event: PackedEvent) {
        match event.event() {
            Event::PauseExpiry { channel } => self.expire_pause(channel),
            Event::PauseRefresh { channel, priority } => self.refresh_pause(channel, priority),
            Event::Credit { channel, priority, bytes } => self.take_credit(channel, priority, bytes),
            Event::Arrive { .. }
            | Event::TransmitReady { .. }
            | Event::Timer { .. }
            | Event::Call { .. }
            | Event::Slice { .. }
            | Event::Fault { .. }
            | Event::Reroute => unreachable!("a switch has ports only, and its ready list is its own"),
        }
    }

    /// Runs all switches through the active epochs until `limit`. Returns the time of the last event.
    pub(crate) fn run_switches_until(&mut self, limit: Time) -> Time {
        let count = self.fabric.switches.len() as u32;
        (0..count).fold(Time::ZERO, |latest, switch| latest.max(self.run_switch_until(switch, limit)))
    }

    /// The same for some of them.
    pub(crate) fn run_some_switches_until(&mut self, switches: &[u32], limit: Time) -> Time {
        switches.iter().fold(Time::ZERO, |latest, switch| latest.max(self.run_switch_until(*switch, limit)))
    }

    #[inline]
    fn run_switch_until(&mut self, switch: u32, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        while let Some(epochs) = &mut self.scheduler.epochs {
            let by = limit.min(epochs.end_of_stride());
            if epochs.activate(switch) {
                self.prefetch_switch(switch);
                self.observers.event_buffer.open();
                self.run_active_switch_until(switch, by);
                latest = latest.max(self.end_stride(switch, by));
            }
            let Some(epochs) = &mut self.scheduler.epochs else { break };
            epochs.deactivate();
            if !epochs.next_stride(limit) {
                break;
            }
        }
        latest
    }

    /// Runs the active switch until `limit`, within its stride.
    #[allow(clippy::inline_always, reason = "it is called from one place, for nearly every event")]
    #[inline(always)]
    fn run_active_switch_until(&mut self, switch: u32, limit: Time) {
        if self.bin_arrivals(switch, limit) {
            return;
        }
        if let Some(epochs) = &mut self.scheduler.epochs {
            epochs.sort_arrivals();
        }
        while let Some(epochs) = &mut self.scheduler.epochs {
            let next = epochs.next_arrival();
            if epochs.has_other_events()
                && let Some((at, event)) =
                    epochs.pop_other_event_by(limit, next.map_or(Time::NEVER, |(at, ..)| at), None)
            {
                self.advance_to(switch, at);
                self.dispatch_to_switch(event);
                continue;
            }
            let Some((at, channel, packet)) = next.filter(|(at, ..)| *at <= limit) else { break };
            epochs.pass_arrival();
            self.advance_to(switch, at);
            self.arrive_at_switch(switch, channel, packet);
        }
    }

    /// An event of a switch is run.
    #[inline]
    fn advance_to(&mut self, switch: u32, at: Time) {
        self.drain_ready_heap(switch, at);
        self.now = at;
        self.scheduler.events += 1;
    }

    /// Brings all switches to the present, for samples in the middle of a run.
    pub fn synchronise_switches(&mut self) {
        let now = self.now;
        self.run_switches_until(now);
        self.now = now;
    }

    /// Makes switches LPs, where the shortest link's delay allows. Call it before the first event.
    pub(crate) fn use_epochs(&mut self) {
        let needs_order = S::ENABLED && S::IN_ORDER || self.aggregation.is_some();
        let delay = self.topology.graph.links.iter().map(|link| link.delay).min();
        let delay = delay.filter(|delay| !needs_order && *delay >= EPOCH_MIN);
        self.scheduler.epochs = delay.map(|delay| Epochs::new(self.fabric.switches.len() as u32, delay));
        self.assign_lps();
    }

    /// Finds the LP of each channel's receiver, if this network runs it.
    pub(crate) fn assign_lps(&mut self) {
        let Scheduler { epochs, partition, .. } = &self.scheduler;
        for channel in &mut self.fabric.channels {
            let lp = epochs.as_ref().and_then(|epochs| epochs.lp(channel.to));
            let is_here =
                |lp: &u32| partition.as_ref().is_none_or(|partition| partition.remote_owner(*lp).is_none());
            channel.receiver_lp = lp.filter(is_here).unwrap_or(NO_LOCAL_LP);
        }
    }

    /// Makes host groups LPs, where switches are: `groups` has the group of each host, counted from 0. Call it before the
    /// first event.
    ///
    /// The lookahead bound is the application's: when it hears of a host of one group, it must not act on another group
    /// within `lookahead_bound`, unless it asks to be called about no host ([`Network::call_at`]) and acts then. A run is
    /// the same as without, but the application hears of different groups' events of one epoch out of time order; and where
    /// it asks, while a group runs, for a call at a moment of that epoch, other groups have run past it.
    pub fn partition_by_host(&mut self, groups: Vec<u32>, lookahead_bound: Span) {
        assert_eq!(groups.len(), self.topology.host_count as usize, "each host belongs to a host group");
        self.scheduler.lookahead.bound = lookahead_bound;
        if let Some(epochs) = &mut self.scheduler.epochs
            && lookahead_bound >= EPOCH_MIN
        {
            epochs.add_groups(HostGroups::new(groups), lookahead_bound);
            self.assign_lps();
            self.scheduler.find_two_colouring(&self.topology.graph, lookahead_bound);
        }
    }

    /// Moves all events to the calendar: from now on they are run in the order of time, switches included. A run is the same
    /// either way.
    pub(crate) fn use_one_calendar(&mut self) {
        if let Some(mut epochs) = self.scheduler.epochs.take() {
            for (key, event) in epochs.drain() {
                self.scheduler.calendar.put(key, event);
            }
            // What is still under way on a channel was transmitted last.
            let mut after = vec![0; self.fabric.channels.len()];
            for (at, channel, packet) in epochs.drain_arrivals().into_iter().rev() {
                let order = self.fabric.channels[channel as usize].arrival_order(at, after[channel as usize]);
                after[channel as usize] += 1;
                self.scheduler.calendar.push(&order, PackedEvent::new(Event::Arrive { channel, packet }));
            }
            self.assign_lps();
            self.move_ready_to_calendar();
        }
    }

    /// Schedules an event of a host or switch, or of one of its ports.
    pub(crate) fn schedule_at(&mut self, vertex: Vertex, time: Time, rank: u8, by: Component, event: Event) {
        let order = self.scheduler.sequences.order(time, rank, by);
        if let Some((owner, lp)) = self.scheduler.schedule(vertex, &order, event) {
            self.send_to_partition(owner, &order, lp, event);
        }
    }

    /// Schedules the arrival of the packet that was put on a channel last.
    #[inline(never)]
    pub(crate) fn schedule_arrival(&mut self, egress: u32, at: Time, packet: PacketIndex) {
        let channel = &self.fabric.channels[egress as usize];
        let order = channel.arrival_order(at, 0);
        let event = Event::Arrive { channel: egress, packet };
        let scheduler = &mut self.scheduler;
        let lp = scheduler.epochs.as_ref().and_then(|epochs| epochs.lp(channel.to));
        match (lp, lp.and_then(|lp| scheduler.remote_owner(lp)), &mut scheduler.epochs) {
            (Some(lp), None, Some(epochs)) => epochs.arrive(lp, at, channel.tie_break, egress, packet),
            (Some(lp), Some(owner), _) => self.send_to_partition(owner, &order, lp, event),
            _ => scheduler.calendar.push(&order, PackedEvent::new(event)),
        }
    }

    pub(crate) fn schedule_fault(&mut self, at: Time, index: u32) {
        let order = self.scheduler.sequences.order(at.max(self.now), rank::CALL, self.environment());
        self.scheduler.calendar.push(&order, PackedEvent::new(Event::Fault { index }));
    }

    pub(crate) fn schedule_reroute(&mut self, at: Time) {
        let order = self.scheduler.sequences.order(at, rank::CALL, self.environment());
        self.scheduler.calendar.push(&order, PackedEvent::new(Event::Reroute));
    }
}
