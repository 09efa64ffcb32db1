//! The engine's loop: what happens next, and to whom.
//!
//! Switches reach others through links only, so they are taken window by window ([`Windows`](crate::windows::Windows)) where
//! the network is large, unless someone watches who needs all of it in order. Hosts and the application come in the order of
//! time, all of them together, where what one host heard may move another at once; an application whose hosts reach each
//! other through links only, or which knows how long it takes to tell others, says so ([`Network::take_hosts_apart`]), and
//! its hosts are taken as switches are.

use railnet_core::event::Sink;
use railnet_core::{Component, Span, Time};
use railnet_topology::Vertex;

use crate::application::Application;
use crate::channel::NOWHERE;
use crate::event::{Event, Packed, rank};
use crate::network::Network;
use crate::packet::PacketIndex;
use crate::windows::{Islands, Windows};

/// So many hosts make a large network: its packets, ports and queue pairs are more than a cache holds, and some trouble to
/// have them there when they are needed pays. In a small one they are there.
pub(crate) const LARGE: u32 = 64;

/// Windows shorter than this hold too little to be worth it.
const WINDOW_LEAST: Span = Span::from_ps(50_000);

/// Hosts whose packets and queue pairs are looked at together, before the first of their islands has its turn.
const TOGETHER: u32 = 8;
/// Hosts for each event of the last epoch, above which nothing is prefetched.
const DENSE: u64 = 16;

impl<S: Sink> Network<S> {
    /// Calls the application at `at`.
    pub fn call_at(&mut self, at: Time, token: u32) {
        let order = self.sequences.order(at.max(self.now), rank::CALL, self.environment());
        self.calendar.push(&order, Packed::new(Event::Call { token }));
    }

    /// Calls the application at `at`, after all else that happens at that moment.
    pub fn call_last_at(&mut self, at: Time, token: u32) {
        let order = self.sequences.order(at.max(self.now), rank::LAST, self.environment());
        self.calendar.push(&order, Packed::new(Event::Call { token }));
    }

    /// Calls the application at `at` about something that concerns this host, and those of its island, only.
    pub fn call_on(&mut self, host: u32, at: Time, token: u32) {
        let (at, by) = (at.max(self.now), self.environment());
        self.schedule_at(Vertex::Host(host), at, rank::CALL, by, Event::Call { token });
    }

    /// The same, for one who speaks for all hosts: after what hosts themselves asked for at that moment, no matter who asked
    /// first.
    pub fn call_on_after(&mut self, host: u32, at: Time, token: u32) {
        let (at, by) = (at.max(self.now), self.outside());
        self.schedule_at(Vertex::Host(host), at, rank::CALL, by, Event::Call { token });
    }

    /// Runs until nothing will happen any more, or until `limit`. Returns whether it came to the end.
    pub fn run(&mut self, application: &mut impl Application<S>, limit: Time) -> bool {
        self.tell(application);
        let mut latest = self.now;
        loop {
            if let Some(last) = self.run_by_halves(application, limit) {
                latest = latest.max(last);
            }
            let Some(windows) = &self.windows else { break };
            if application.is_stopped() {
                // Some hosts have come as far as that.
                self.now = latest.max(windows.end()).min(limit);
                return false;
            }
            let next = self.calendar.next_time().into_iter().chain(windows.next_time()).min();
            let Some(next) = next.filter(|next| *next <= limit) else {
                self.now = if next.is_some() { limit } else { latest };
                return next.is_none();
            };
            let lull = self.lull_from(next, application.hears_from());
            let end = self.window_end(next, lull);
            let Some(windows) = &mut self.windows else { break };
            windows.go_to(next, end);
            let last = if windows.islands().count() > 0 {
                self.catch_up_by_host(application, end.min(limit))
            } else {
                self.catch_up_in_order(application, end.min(limit))
            };
            latest = latest.max(last).max(self.catch_up_to(end.min(limit)));
            if end >= limit && self.windows.is_some() {
                let is_empty =
                    self.calendar.is_empty() && self.windows.as_ref().is_some_and(Windows::is_empty);
                self.now = if is_empty { latest } else { limit };
                return is_empty;
            }
        }
        self.run_in_order(application, limit, |_| true)
    }

    /// Runs in the order of time, switches included, until nothing will happen any more, until `limit`, or until the application
    /// says after an event that it does not go on: then the present is that event's time, and what the application does next is
    /// in nobody's past. Returns whether it came to the end.
    pub fn run_while<A: Application<S>>(
        &mut self,
        application: &mut A,
        limit: Time,
        goes_on: impl Fn(&A) -> bool,
    ) -> bool {
        self.keep_order();
        self.tell(application);
        if goes_on(application) { self.run_in_order(application, limit, goes_on) } else { false }
    }

    /// Whether all that is left are timers of NICs which have nothing to wait for. They are many where there were many
    /// connections, each set for when an answer would be late.
    pub fn is_idle(&self) -> bool {
        let near = self.windows.iter().flat_map(Windows::events);
        let is_timer = |event: &Packed| matches!(event.event(), Event::Timer { .. });
        self.packets.in_use() == 0
            && self.hosts.iter().all(|host| host.nic.is_idle())
            && self.calendar.events().chain(near).all(is_timer)
            && self.windows.as_ref().is_none_or(|windows| !windows.has_wakes())
    }

    /// Lets happen in the order of time what happens to hosts and the application until `limit`. Returns when the last of it
    /// did.
    fn catch_up_in_order(&mut self, application: &mut impl Application<S>, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        while let Ok((at, event)) = self.calendar.pop_by(limit) {
            self.look_ahead_at_hosts();
            self.happen(application, at, event);
            latest = at;
        }
        latest
    }

    /// Takes all hosts through the window at hand until `limit`, with what the application wants to do in between. Returns
    /// when the last thing happened.
    pub(crate) fn catch_up_by_host(&mut self, application: &mut impl Application<S>, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        while let Some((at, rank)) = self.calendar.next_rank().filter(|(at, _)| *at <= limit) {
            // A call comes before or after all that happens to hosts at its moment.
            let before = if rank == rank::CALL { at.as_ps().checked_sub(1) } else { Some(at.as_ps()) };
            if let Some(before) = before {
                self.take_hosts_to(application, Time::from_ps(before));
            }
            if let Ok((at, event)) = self.calendar.pop_by(limit) {
                self.happen(application, at, event);
                latest = at;
            }
            if self.windows.is_none() || application.is_stopped() {
                return latest;
            }
        }
        latest.max(self.take_hosts_to(application, limit))
    }

    /// Runs all islands through the current epochs until `limit`. Returns the time of the last event.
    pub(crate) fn take_hosts_to(&mut self, application: &mut impl Application<S>, limit: Time) -> Time {
        let Some(windows) = &mut self.windows else { return Time::ZERO };
        if limit < windows.end() && !windows.tracks_pending() {
            windows.track_pending();
        }
        if windows.tracks_pending() {
            return self.take_pending_hosts_to(application, limit);
        }
        let count = windows.islands().count();
        let together = self.islands_together();
        // Where few hosts have anything to do, prefetching for all of them takes longer than what they do.
        let events = self.events - std::mem::replace(&mut self.events_before, self.events);
        let is_dense = events.saturating_mul(DENSE) >= u64::from(self.host_count);
        let mut latest = Time::ZERO;
        for first in (0..count).step_by(together as usize) {
            if application.is_stopped() {
                break;
            }
            let some = first..count.min(first + together);
            if is_dense {
                self.look_ahead_at_some(some.clone());
            }
            for island in some {
                latest = latest.max(self.take_island_to(application, island, limit));
            }
        }
        latest
    }

    /// The same for the islands that have events by then: what a call of the application costs does not grow with the number
    /// of the others.
    fn take_pending_hosts_to(&mut self, application: &mut impl Application<S>, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        let mut islands = std::mem::take(&mut self.pending);
        if let Some(windows) = &mut self.windows {
            windows.take_pending_by(limit, &mut islands);
        }
        for some in islands.chunks(self.islands_together() as usize) {
            if application.is_stopped() {
                break;
            }
            self.look_ahead_at_some(some.iter().copied());
            for island in some {
                latest = latest.max(self.take_island_to(application, *island, limit));
                if let Some(windows) = &mut self.windows {
                    windows.note_pending(*island);
                }
            }
        }
        self.pending = islands;
        latest
    }

    /// Islands that are prefetched together.
    fn islands_together(&self) -> u32 {
        let count = self.windows.as_ref().map_or(0, |windows| windows.islands().count());
        (TOGETHER * count / self.host_count.max(1)).max(1)
    }

    /// Takes the hosts of an island through the windows at hand.
    fn take_island_to(&mut self, application: &mut impl Application<S>, island: u32, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        while let Some(windows) = &mut self.windows {
            let by = limit.min(windows.end_of_turn());
            let host = windows.islands().only_host(island);
            if windows.open(windows.place_of_island(island)) {
                latest = latest.max(self.take_open_island_to(application, host, by));
            }
            let Some(windows) = &mut self.windows else { break };
            windows.close();
            if !windows.turn(limit) {
                break;
            }
        }
        latest
    }

    /// Lets all happen to an island in its turn that happens by `limit`, which is in its window; `host` is its only one, if it has no
    /// more. Returns when the last of it did.
    #[allow(
        clippy::inline_always,
        reason = "it is called from one place, for all that ever happens to hosts"
    )]
    #[inline(always)]
    fn take_open_island_to(
        &mut self,
        application: &mut impl Application<S>,
        host: Option<u32>,
        limit: Time,
    ) -> Time {
        let mut latest = Time::ZERO;
        while let Some(windows) = &mut self.windows {
            let arrival = windows.next_arrival();
            let arrives = arrival.map_or(Time::NEVER, |(at, ..)| at);
            let wakes = windows.next_wake();
            if windows.has_others()
                && let Some((at, event)) = windows.pop_other_of_island_by(limit, arrives)
            {
                self.happen(application, at, event);
                latest = latest.max(at);
                continue;
            }
            // A packet that comes when a port is woken comes before it.
            if wakes < arrives && wakes <= limit {
                let Some(channel) = windows.pop_wake() else { break };
                (self.now, self.events) = (wakes, self.events + 1);
                self.wake(channel);
            } else if let Some((at, channel, packet)) = arrival
                && at <= limit
            {
                windows.pass_arrival();
                (self.now, self.events) = (at, self.events + 1);
                match host {
                    Some(host) => self.arrive_at_host(host, channel, packet),
                    None => self.arrive(channel, packet),
                }
            } else {
                break;
            }
            latest = latest.max(self.now);
            self.tell(application);
        }
        latest
    }

    fn run_in_order<A: Application<S>>(
        &mut self,
        application: &mut A,
        limit: Time,
        goes_on: impl Fn(&A) -> bool,
    ) -> bool {
        loop {
            if application.is_stopped() {
                return false;
            }
            while let Some((at, event)) = self.calendar.pop_at_hand(limit) {
                self.happen(application, at, event);
                if !goes_on(application) {
                    return false;
                }
            }
            match self.calendar.turn(limit) {
                Ok(None) => {}
                Ok(Some((at, event))) => {
                    self.happen(application, at, event);
                    if !goes_on(application) {
                        return false;
                    }
                }
                Err(is_empty) => {
                    if !is_empty {
                        self.now = limit;
                    }
                    return is_empty;
                }
            }
        }
    }

    #[allow(clippy::inline_always, reason = "each of the two loops has its own, next to what it takes out")]
    #[inline(always)]
    fn happen(&mut self, application: &mut impl Application<S>, at: Time, event: Packed) {
        self.now = at;
        self.events += 1;
        match event.event() {
            Event::Arrive { channel, packet } => self.arrive(channel, packet),
            Event::Wake { channel } => self.wake(channel),
            Event::Timer { host } => self.timer(host),
            Event::Call { token } => application.called(self, token),
            Event::PauseEnd { channel } => self.pause_end(channel),
            Event::PauseAgain { channel, priority } => self.pause_again(channel, priority),
            Event::Credit { channel, priority, bytes } => self.take_credit(channel, priority, bytes),
            Event::Slice { slice } => self.slice_passed(application, slice),
            Event::Fault { index } => self.strike(index),
            Event::Reroute => self.reroute(),
        }
        self.tell(application);
    }

    /// The same for what can happen to a switch besides packets that come: without an application.
    #[inline(never)]
    fn happen_to_port(&mut self, event: Packed) {
        match event.event() {
            Event::PauseEnd { channel } => self.pause_end(channel),
            Event::PauseAgain { channel, priority } => self.pause_again(channel, priority),
            Event::Credit { channel, priority, bytes } => self.take_credit(channel, priority, bytes),
            Event::Arrive { .. }
            | Event::Wake { .. }
            | Event::Timer { .. }
            | Event::Call { .. }
            | Event::Slice { .. }
            | Event::Fault { .. }
            | Event::Reroute => unreachable!("a switch has ports only, and wakes them itself"),
        }
    }

    /// Takes all switches through the window at hand until `limit`. Returns when the last thing happened.
    pub(crate) fn catch_up_to(&mut self, limit: Time) -> Time {
        let count = self.switches.len() as u32;
        (0..count).fold(Time::ZERO, |latest, switch| latest.max(self.catch_up_one(switch, limit)))
    }

    /// The same for some of them.
    pub(crate) fn catch_up_some(&mut self, switches: &[u32], limit: Time) -> Time {
        switches.iter().fold(Time::ZERO, |latest, switch| latest.max(self.catch_up_one(*switch, limit)))
    }

    #[inline]
    fn catch_up_one(&mut self, switch: u32, limit: Time) -> Time {
        let mut latest = Time::ZERO;
        while let Some(windows) = &mut self.windows {
            let by = limit.min(windows.end_of_turn());
            if windows.open(switch) {
                self.look_ahead_at(switch);
                self.open_ports();
                self.take_switch_to(switch, by);
                latest = latest.max(self.close_ports(switch, by));
            }
            let Some(windows) = &mut self.windows else { break };
            windows.close();
            if !windows.turn(limit) {
                break;
            }
        }
        latest
    }

    /// Lets all happen to a switch that happens by `limit`, which is in its turn.
    #[allow(clippy::inline_always, reason = "it is called from one place, for nearly all that ever happens")]
    #[inline(always)]
    fn take_switch_to(&mut self, switch: u32, limit: Time) {
        if self.set_down_all(switch, limit) {
            return;
        }
        if let Some(windows) = &mut self.windows {
            windows.sort_arrivals();
        }
        while let Some(windows) = &mut self.windows {
            let next = windows.next_arrival();
            if windows.has_others()
                && let Some((at, event)) =
                    windows.pop_other_by(limit, next.map_or(Time::NEVER, |(at, ..)| at), None)
            {
                self.turn_to(switch, at);
                self.happen_to_port(event);
                continue;
            }
            let Some((at, channel, packet)) = next.filter(|(at, ..)| *at <= limit) else { break };
            windows.pass_arrival();
            self.turn_to(switch, at);
            self.arrive_at_switch(switch, channel, packet);
        }
    }

    /// Something happens to a switch now.
    #[inline]
    fn turn_to(&mut self, switch: u32, at: Time) {
        self.wake_in_order(switch, at);
        self.now = at;
        self.events += 1;
    }

    /// Lets switches do what they do until now, for who wants to look at them in the middle of a run.
    pub fn catch_up(&mut self) {
        let now = self.now;
        self.catch_up_to(now);
        self.now = now;
    }

    /// Switches are taken through windows of time one by one from now on, before anything has happened, where they can be.
    pub(crate) fn go_by_switch(&mut self) {
        let needs_order = S::ENABLED && S::IN_ORDER || self.aggregation.is_some();
        let delay = self.graph.links.iter().map(|link| link.delay).min();
        let delay = delay.filter(|delay| !needs_order && *delay >= WINDOW_LEAST);
        self.windows = delay.map(|delay| Windows::new(self.switches.len() as u32, delay));
        self.find_places();
    }

    /// Where each channel comes out, among the places that have windows and are up to this network.
    pub(crate) fn find_places(&mut self) {
        let Self { channels, windows, share, .. } = self;
        for channel in channels {
            let place = windows.as_ref().and_then(|windows| windows.place(channel.to));
            let is_here = |place: &u32| share.as_ref().is_none_or(|share| share.elsewhere(*place).is_none());
            channel.place = place.filter(is_here).unwrap_or(NOWHERE);
        }
    }

    /// Hosts are taken through windows of time island by island, too, where switches are: `islands` says which one each host
    /// belongs to, counted from 0. Say so before anything happens.
    ///
    /// What the application does when it hears of an island must not reach another one before `reaction` is over, unless
    /// it asks to be called about no host ([`Network::call_at`]), and then does nothing there before that. It makes no
    /// difference to what happens, but the application hears of what several islands did in the time of a window in another
    /// order; and where it asks in an island's turn to be called at a moment of that window, others have gone further by then.
    pub fn take_hosts_apart(&mut self, islands: Vec<u32>, reaction: Span) {
        assert_eq!(islands.len(), self.host_count as usize, "each host is part of an island");
        self.lulls.reaction = reaction;
        if let Some(windows) = &mut self.windows
            && reaction >= WINDOW_LEAST
        {
            windows.add_islands(Islands::new(islands), reaction);
            self.find_places();
            self.find_halves(reaction);
        }
    }

    /// Everything happens in the order of time from now on, switches included: for what strikes the network as a whole.
    /// It makes no difference to what happens.
    pub(crate) fn keep_order(&mut self) {
        if let Some(mut windows) = self.windows.take() {
            for (key, event) in windows.drain() {
                self.calendar.put(key, event);
            }
            // What is still under way on a channel is what was sent last.
            let mut after = vec![0; self.channels.len()];
            for (at, channel, packet) in windows.drain_arrivals().into_iter().rev() {
                let order = self.channels[channel as usize].arrival_order(at, after[channel as usize]);
                after[channel as usize] += 1;
                self.calendar.push(&order, Packed::new(Event::Arrive { channel, packet }));
            }
            self.find_places();
            self.wake_by_calendar();
        }
    }

    /// Lets something happen to a host or switch, or one of its ports.
    pub(crate) fn schedule_at(&mut self, place: Vertex, time: Time, rank: u8, by: Component, event: Event) {
        let order = self.sequences.order(time, rank, by);
        if let Some(windows) = &mut self.windows
            && let Some(place) = windows.place(place)
        {
            match self.share.as_ref().and_then(|share| share.elsewhere(place)) {
                None => windows.push(&order, place, Packed::new(event)),
                Some(part) => self.send_to_part(part, &order, place, event),
            }
        } else {
            self.calendar.push(&order, Packed::new(event));
        }
    }

    /// Lets the packet that was put on a channel last come out of it.
    #[inline(never)]
    pub(crate) fn schedule_arrival(&mut self, egress: u32, at: Time, packet: PacketIndex) {
        let channel = &self.channels[egress as usize];
        let order = channel.arrival_order(at, 0);
        let event = Event::Arrive { channel: egress, packet };
        let Some(windows) = &mut self.windows else {
            self.calendar.push(&order, Packed::new(event));
            return;
        };
        let place = windows.place(channel.to);
        let elsewhere = |place| self.share.as_ref().and_then(|share| share.elsewhere(place));
        match (place, place.and_then(elsewhere)) {
            (Some(place), None) => windows.arrive(place, at, channel.standing, egress, packet),
            (Some(place), Some(part)) => self.send_to_part(part, &order, place, event),
            (None, _) => self.calendar.push(&order, Packed::new(event)),
        }
    }

    pub(crate) fn plan_fault(&mut self, at: Time, index: u32) {
        let order = self.sequences.order(at.max(self.now), rank::CALL, self.environment());
        self.calendar.push(&order, Packed::new(Event::Fault { index }));
    }

    pub(crate) fn plan_reroute(&mut self, at: Time) {
        let order = self.sequences.order(at, rank::CALL, self.environment());
        self.calendar.push(&order, Packed::new(Event::Reroute));
    }
}
