//! The events of logical processes (LPs), by epoch.
//!
//! An LP is a switch, or a host group: hosts that something besides links connects, such as the NICs of a server, or one
//! host. LPs reach each other through links only, so the shortest link's delay is the lookahead: within an epoch no longer
//! than that, each LP runs all its events before the next LP does. Its state stays in the cache meanwhile. Within an LP
//! events are run in the order of the calendar, so every LP does exactly what it would do in the order of time.
//!
//! Epochs near the present have a slot in a wheel, for each LP; later events wait in overflow heaps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::prefetch::prefetch;
use railnet_core::{Order, Span, Time};
use railnet_topology::Vertex;

use crate::engine::arrivals::{Arrival, Arrivals, OFFSETS};
use crate::engine::calendar::{ActiveEvents, Entry, Key, make_room};
use crate::engine::event::{Event, PackedEvent, rank};
use crate::engine::groups::HostGroups;
use crate::engine::ready::ReadyGroups;
use crate::model::packet::PacketIndex;

/// Epochs of the wheel, without and with extended lookahead. Powers of two.
const WHEEL_EPOCHS: u64 = 16;
const WHEEL_EPOCHS_EXTENDED: u64 = 256;
/// Epochs of a stride: an LP of one colour runs so many in a row before LPs of the other colour do.
const STRIDE_EPOCHS: u64 = 2;

/// Events of LPs, by epoch and LP.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// How many LPs there are: the switches, then the host groups.
    lps: usize,
    switches: u32,
    groups: HostGroups,
    /// Length of an epoch, in picoseconds.
    width: u64,
    /// Epochs of the wheel, less one.
    mask: u64,
    /// The active epochs, counted from the start of time: no event is earlier. There are several where the lookahead is
    /// extended; an LP runs all of them before the next LP does.
    first: u64,
    last: u64,
    /// The first epoch of the current stride.
    stride_first: u64,
    /// When it begins, in picoseconds.
    began: u64,
    /// The last epoch of the current stride, and how many epochs a stride may have.
    stride_last: u64,
    stride_max: u64,
    /// The first epoch in which the active LP may reach others.
    reach: u64,
    /// The LP that runs now, and its events of this stride that are left.
    active_lp: u32,
    arrivals: Arrivals,
    active: ActiveEvents<PackedEvent>,
    /// Packets that arrive in the epochs of the wheel, by LP and epoch.
    arrival_wheel: Vec<Vec<Arrival>>,
    /// Other events in them, which are few, and how many each LP has.
    wheel: Vec<Vec<Entry<PackedEvent>>>,
    wheel_counts: Vec<u32>,
    /// By switch: the epoch in which a port on its ready list transmits next.
    transmit_epoch: Vec<u64>,
    /// By host group: transmit-ready events of its NICs' ports, the next one last. They are few and mostly scheduled in
    /// their order, so a list costs less than the wheel.
    transmit_ready: Vec<Vec<(Key, u32)>>,
    /// By epoch of the wheel: the events of all LPs. All arrivals of one LP count once.
    counts: Vec<usize>,
    spare: Vec<Vec<Entry<PackedEvent>>>,
    /// Buffers of lists that are over, to be used again: of switches, whose lists are long, and of host groups.
    spare_arrivals: [Vec<Vec<Arrival>>; 2],
    overflow: BinaryHeap<Reverse<(Entry<PackedEvent>, u32)>>,
    overflow_arrivals: BinaryHeap<Reverse<OverflowArrival>>,
    /// Arrivals that have ever gone to the overflow heap.
    overflow_count: u64,
    /// The epochs of transmit-ready events beyond the wheel.
    overflow_ready: BinaryHeap<Reverse<u64>>,
    /// Host groups with events in the active epochs, while the application is called in the middle of them.
    ready: ReadyGroups,
    /// How often an LP was activated.
    #[cfg(test)]
    pub(crate) opened: u64,
}

/// The arrival lists of one channel's receiver, for the epochs in which its packets mostly arrive.
pub(crate) struct Outlet<'a> {
    epochs: &'a mut Epochs,
    /// The lists of the first epochs of the stride.
    lists: [usize; OUTLET_EPOCHS],
}

const OUTLET_EPOCHS: usize = 4;
const _: () = assert!(STRIDE_EPOCHS + OUTLET_EPOCHS as u64 <= WHEEL_EPOCHS);

impl Outlet<'_> {
    /// As [`Epochs::arrive`].
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn arrive(&mut self, lp: u32, at: Time, tie_break: u32, channel: u32, packet: PacketIndex) {
        let width = self.epochs.width;
        let ahead = at.as_ps().wrapping_sub(self.epochs.began);
        let further = self.epochs.further(ahead);
        let offset = ahead.wrapping_sub(further * width);
        let list = &mut self.epochs.arrival_wheel[self.lists[further as usize]];
        if offset < width && !list.is_empty() && list.len() < list.capacity() {
            list.push(Arrival::new(offset, tie_break, channel, packet));
        } else {
            self.arrive_first(lp, at, tie_break, channel, packet);
        }
    }

    #[inline(never)]
    fn arrive_first(&mut self, lp: u32, at: Time, tie_break: u32, channel: u32, packet: PacketIndex) {
        self.epochs.arrive(lp, at, tie_break, channel, packet);
    }
}

/// A packet that arrives beyond the wheel, in the order of time; packets of one channel that arrive at one moment, in the
/// order in which they were sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct OverflowArrival {
    at: Time,
    tie_break: u32,
    number: u64,
    lp: u32,
    channel: u32,
    packet: PacketIndex,
}

/// No epoch.
const NEVER: u64 = u64::MAX;

/// No LP is active.
const NO_LP: u32 = u32::MAX;

impl Epochs {
    /// For so many switches that need `delay` at least to reach each other, or a host.
    pub(crate) fn new(switches: u32, delay: Span) -> Self {
        let width = delay.as_ps().clamp(1, OFFSETS);
        Self {
            lps: switches as usize,
            switches,
            groups: HostGroups::default(),
            width,
            mask: WHEEL_EPOCHS - 1,
            first: 0,
            last: 0,
            stride_first: 0,
            began: 0,
            stride_last: 0,
            stride_max: 1,
            reach: 1,
            active_lp: NO_LP,
            arrivals: Arrivals::new(STRIDE_EPOCHS * width),
            active: ActiveEvents::new(),
            arrival_wheel: (0..u64::from(switches) * WHEEL_EPOCHS).map(|_| Vec::new()).collect(),
            wheel: (0..u64::from(switches) * WHEEL_EPOCHS).map(|_| Vec::new()).collect(),
            wheel_counts: vec![0; switches as usize],
            transmit_epoch: vec![NEVER; switches as usize],
            transmit_ready: Vec::new(),
            counts: vec![0; WHEEL_EPOCHS as usize],
            spare: Vec::new(),
            spare_arrivals: [Vec::new(), Vec::new()],
            overflow: BinaryHeap::new(),
            overflow_arrivals: BinaryHeap::new(),
            overflow_count: 0,
            overflow_ready: BinaryHeap::new(),
            ready: ReadyGroups::default(),
            #[cfg(test)]
            opened: 0,
        }
    }

    /// Hosts become LPs by group. No epoch is longer than `lookahead_bound`. Call it before the first event.
    pub(crate) fn add_groups(&mut self, groups: HostGroups, longest: Span) {
        self.width = self.width.min(longest.as_ps());
        self.arrivals = Arrivals::new(STRIDE_EPOCHS * self.width);
        self.lps += groups.count() as usize;
        self.groups = groups;
        self.make_lists();
        self.transmit_ready.resize_with(self.groups.count() as usize, Vec::new);
    }

    /// Widens the wheel for extended lookahead. Call it before the first event.
    pub(crate) fn enable_extended_lookahead(&mut self) {
        self.mask = WHEEL_EPOCHS_EXTENDED - 1;
        self.counts.resize(WHEEL_EPOCHS_EXTENDED as usize, 0);
        self.make_lists();
    }

    /// Makes a list for each LP and epoch of the wheel.
    fn make_lists(&mut self) {
        let lists = self.lps * self.counts.len();
        self.arrival_wheel.resize_with(lists, Vec::new);
        self.wheel.resize_with(lists, Vec::new);
        self.wheel_counts.resize(self.lps, 0);
    }

    /// The slot of an epoch in the wheel.
    #[inline]
    fn slot(&self, epoch: u64) -> usize {
        (epoch & self.mask) as usize
    }

    /// The list of an LP and epoch. Those of one LP lie together.
    #[inline]
    fn list(&self, epoch: u64, lp: u32) -> usize {
        lp as usize * (self.mask as usize + 1) + self.slot(epoch)
    }

    /// Whether an epoch has a slot in the wheel.
    #[inline]
    fn is_in_wheel(&self, epoch: u64) -> bool {
        epoch - self.first <= self.mask
    }

    pub(crate) fn groups(&self) -> &HostGroups {
        &self.groups
    }

    /// The LP of a host group.
    pub(crate) fn lp_of_group(&self, group: u32) -> u32 {
        self.switches + group
    }

    /// The LP of a switch or a host, if it is one.
    #[inline]
    pub(crate) fn lp(&self, vertex: Vertex) -> Option<u32> {
        match vertex {
            Vertex::Switch(switch) => Some(switch),
            Vertex::Host(host) => self.groups.of(host).map(|group| self.switches + group),
        }
    }

    /// How many epochs after the first of the stride a moment is, up to three, `ahead` picoseconds after the stride began.
    /// It is unpredictable, so it is computed without a branch.
    #[inline]
    fn further(&self, ahead: u64) -> u64 {
        let width = self.width;
        u64::from(ahead >= width) + u64::from(ahead >= 2 * width) + u64::from(ahead >= 3 * width)
    }

    /// The epoch of a moment: mostly one of the first four of the stride, since a division costs as much as all else. What
    /// an application schedules in the past, because it hears late, belongs to the first.
    #[inline]
    fn epoch(&self, time: Time) -> u64 {
        let ahead = time.as_ps().wrapping_sub(self.began);
        if ahead < 4 * self.width {
            self.stride_first + self.further(ahead)
        } else {
            (time.as_ps() / self.width).max(self.stride_first)
        }
    }

    /// The last moment of the active epochs.
    pub(crate) fn end(&self) -> Time {
        self.end_of_epoch(self.last)
    }

    /// How long the active epochs are, together.
    pub(crate) fn active_span(&self) -> Span {
        Span::from_ps((self.last - self.first + 1) * self.width)
    }

    /// The last moment of the epoch of another moment.
    pub(crate) fn end_of(&self, time: Time) -> Time {
        self.end_of_epoch(self.epoch(time))
    }

    /// The last moment of the current stride.
    pub(crate) fn end_of_stride(&self) -> Time {
        self.end_of_epoch(self.stride_last)
    }

    fn end_of_epoch(&self, epoch: u64) -> Time {
        Time::from_ps((epoch * self.width).saturating_add(self.width - 1))
    }

    /// The last moment of the last epoch that ends before `until`, within the wheel; of the epoch of `at` at least.
    pub(crate) fn end_before(&self, at: Time, until: Time) -> Time {
        let first = self.epoch(at);
        let after = until.as_ps() / self.width;
        self.end_of_epoch(after.saturating_sub(1).clamp(first, first + self.mask))
    }

    /// A packet arrives at an LP by a channel with this tie-break rank. It was sent after all others that arrive by that
    /// channel at that moment or before.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn arrive(&mut self, lp: u32, at: Time, tie_break: u32, channel: u32, packet: PacketIndex) {
        let epoch = self.epoch(at);
        debug_assert!(self.active_lp == NO_LP || epoch >= self.reach, "a packet comes sooner than it can");
        debug_assert!(
            !self.ready.is_tracked() || lp < self.switches || epoch > self.last,
            "packets arrive at host groups in later epochs only"
        );
        if self.is_in_wheel(epoch) {
            let offset = at.as_ps() - epoch * self.width;
            self.put_arrival(epoch, lp, Arrival::new(offset, tie_break, channel, packet));
        } else {
            self.arrive_in_overflow(OverflowArrival { at, tie_break, number: 0, lp, channel, packet });
        }
    }

    /// For a port that sends several packets to an LP.
    #[inline]
    pub(crate) fn outlet(&mut self, lp: u32) -> Outlet<'_> {
        let list = |ahead: u64| self.list(self.stride_first + ahead, lp);
        Outlet { lists: [list(0), list(1), list(2), list(3)], epochs: self }
    }

    #[cold]
    fn arrive_in_overflow(&mut self, arrival: OverflowArrival) {
        self.overflow_count += 1;
        self.overflow_arrivals.push(Reverse(OverflowArrival { number: self.overflow_count, ..arrival }));
    }

    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    fn put_arrival(&mut self, epoch: u64, lp: u32, arrival: Arrival) {
        let slot = self.slot(epoch);
        let list = self.list(epoch, lp);
        let list = &mut self.arrival_wheel[list];
        if list.is_empty() {
            self.counts[slot] += 1;
        }
        if list.len() == list.capacity() {
            make_room(list, &mut self.spare_arrivals[usize::from(lp >= self.switches)]);
        }
        list.push(arrival);
    }

    /// Schedules any other event of an LP.
    pub(crate) fn push(&mut self, order: &Order, lp: u32, event: PackedEvent) {
        self.put(lp, Entry { key: Key::new(order), event });
    }

    pub(crate) fn put(&mut self, lp: u32, entry: Entry<PackedEvent>) {
        debug_assert!(entry.event.arrival().is_none(), "packets have lists of their own");
        let epoch = self.epoch(entry.key.time());
        debug_assert!(
            lp == self.active_lp || self.active_lp == NO_LP || epoch >= self.reach,
            "one LP reached another within the lookahead"
        );
        if lp == self.active_lp && epoch <= self.stride_last {
            self.active.put(entry);
        } else if self.is_in_wheel(epoch) {
            if self.ready.is_tracked() && lp >= self.switches && epoch <= self.last {
                self.ready.push(entry.key.time(), lp - self.switches);
            }
            self.put_in_wheel(epoch, lp, entry);
        } else {
            self.put_in_overflow(lp, entry);
        }
    }

    /// Schedules a transmit-ready event of a host group's port.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn schedule_transmit(&mut self, order: &Order, lp: u32, channel: u32) {
        let key = Key::new(order);
        let transmit_ready = &mut self.transmit_ready[(lp - self.switches) as usize];
        if transmit_ready.is_empty() {
            transmit_ready.push((key, channel));
        } else {
            let at =
                transmit_ready.iter().position(|(other, _)| *other < key).unwrap_or(transmit_ready.len());
            transmit_ready.insert(at, (key, channel));
        }
        let epoch = self.epoch(order.time);
        if self.ready.is_tracked() && lp != self.active_lp && epoch <= self.last {
            self.ready.push(order.time, lp - self.switches);
        }
        if self.is_in_wheel(epoch) {
            let slot = self.slot(epoch);
            self.counts[slot] += 1;
        } else {
            self.overflow_ready.push(Reverse(epoch));
        }
    }

    /// Schedules the active switch for the next transmission of a port on its ready list.
    pub(crate) fn schedule_switch(&mut self, switch: u32, next: Time) {
        // Beyond the wheel, the switch is activated once or more for nothing.
        let epoch = self.epoch(next).min(self.first + self.mask);
        let slot = self.slot(epoch);
        self.counts[slot] += 1;
        self.transmit_epoch[switch as usize] = epoch;
    }

    #[cold]
    fn put_in_overflow(&mut self, lp: u32, entry: Entry<PackedEvent>) {
        self.overflow.push(Reverse((entry, lp)));
    }

    fn put_in_wheel(&mut self, epoch: u64, lp: u32, entry: Entry<PackedEvent>) {
        let slot = self.slot(epoch);
        let list = self.list(epoch, lp);
        let list = &mut self.wheel[list];
        if list.len() == list.capacity() {
            make_room(list, &mut self.spare);
        }
        list.push(entry);
        self.wheel_counts[lp as usize] += 1;
        self.counts[slot] += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_far_empty =
            self.overflow.is_empty() && self.overflow_arrivals.is_empty() && self.overflow_ready.is_empty();
        is_far_empty && self.counts.iter().all(|count| *count == 0)
    }

    /// When the next event may be: the beginning of its epoch.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.next_epoch().map(|epoch| Time::from_ps(epoch * self.width))
    }

    /// The next epoch with events.
    pub(crate) fn next_epoch(&self) -> Option<u64> {
        let in_wheel = (self.first..=self.first + self.mask).find(|epoch| self.counts[self.slot(*epoch)] > 0);
        let overflow = self.overflow.peek().map(|Reverse((entry, _))| self.epoch(entry.key.time()));
        let far_arrival = self.overflow_arrivals.peek().map(|Reverse(arrival)| self.epoch(arrival.at));
        let far_wake = self.overflow_ready.peek().map(|Reverse(epoch)| *epoch);
        in_wheel.into_iter().chain(overflow).chain(far_arrival).chain(far_wake).min()
    }

    /// The epoch of a moment, counted from the start of time.
    pub(crate) fn epoch_of(&self, time: Time) -> u64 {
        time.as_ps() / self.width
    }

    /// Whether two epochs fit into `span`.
    pub(crate) fn fits_twice_into(&self, span: Span) -> bool {
        2 * self.width <= span.as_ps()
    }

    /// Begins the epochs from the one of `time` to the one of `until`. All before them must be over.
    pub(crate) fn begin_epochs(&mut self, time: Time, until: Time) {
        self.first = self.epoch(time);
        self.last = until.as_ps() / self.width;
        self.reach = self.last + 1;
        self.stride_max = 1;
        self.begin();
    }

    /// Begins these epochs for the LPs of one colour. Those of the other colour must have run all before the last of them.
    pub(crate) fn begin_epochs_of_colour(&mut self, first: u64, last: u64) {
        (self.first, self.last, self.reach) = (first, last, first + 1);
        self.stride_max = if STRIDE_EPOCHS * self.width <= OFFSETS { STRIDE_EPOCHS } else { 1 };
        self.begin();
    }

    /// Moves events from the overflow heaps to the wheel.
    fn begin(&mut self) {
        debug_assert!(self.last >= self.first && self.is_in_wheel(self.last), "epochs of the wheel");
        self.ready.reset();
        self.begin_stride(self.first);
        while let Some(Reverse((entry, _))) = self.overflow.peek()
            && self.is_in_wheel(self.epoch(entry.key.time()))
        {
            let Some(Reverse((entry, lp))) = self.overflow.pop() else { break };
            self.put_in_wheel(self.epoch(entry.key.time()), lp, entry);
        }
        while let Some(Reverse(arrival)) = self.overflow_arrivals.peek()
            && self.is_in_wheel(self.epoch(arrival.at))
        {
            let Some(Reverse(arrival)) = self.overflow_arrivals.pop() else { break };
            let OverflowArrival { at, tie_break, lp, channel, packet, .. } = arrival;
            self.arrive(lp, at, tie_break, channel, packet);
        }
        while let Some(Reverse(epoch)) = self.overflow_ready.peek()
            && self.is_in_wheel(*epoch)
        {
            let slot = self.slot(*epoch);
            self.counts[slot] += 1;
            self.overflow_ready.pop();
        }
    }

    fn begin_stride(&mut self, epoch: u64) {
        self.stride_first = epoch;
        self.began = epoch * self.width;
        self.stride_last = self.last.min(epoch + self.stride_max - 1);
    }

    /// Goes on to the next stride of the active epochs, if one is left by `limit`. If not, the first is next again.
    #[inline]
    pub(crate) fn next_stride(&mut self, limit: Time) -> bool {
        let is_over = self.stride_last == self.last || self.end_of_stride() >= limit;
        if self.stride_first > self.first || !is_over {
            self.begin_stride(if is_over { self.first } else { self.stride_last + 1 });
        }
        !is_over
    }

    /// Whether the active LP runs its first stride.
    #[inline]
    pub(crate) fn is_first_stride(&self) -> bool {
        self.stride_first == self.first
    }

    /// Whether the ready heap holds the host groups with events in the active epochs.
    #[inline]
    pub(crate) fn tracks_ready(&self) -> bool {
        self.ready.is_tracked()
    }

    /// Fills the ready heap, which is kept up to date until the epochs are over.
    pub(crate) fn track_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        let groups = 0..self.groups.count();
        ready.track(groups.filter_map(|group| Some((self.next_event_of_group(group)?, group))));
        self.ready = ready;
    }

    /// Puts a host group that has just run back into the ready heap.
    pub(crate) fn requeue_group(&mut self, group: u32) {
        if let Some(next) = self.next_event_of_group(group) {
            self.ready.push(next, group);
        }
    }

    /// Takes the host groups that have events by `limit`, in their order.
    pub(crate) fn take_ready_by(&mut self, limit: Time, groups: &mut Vec<u32>) {
        self.ready.take_by(limit, groups);
    }

    /// The first event of a host group in the active epochs, while it does not run.
    fn next_event_of_group(&self, group: u32) -> Option<Time> {
        let lp = self.lp_of_group(group);
        let end = self.end();
        let schedule_transmit =
            self.transmit_ready[group as usize].last().map(|(key, _)| key.time()).filter(|at| *at <= end);
        // With several active epochs there are no packets under way.
        let packets =
            if self.first == self.last { &self.arrival_wheel[self.list(self.first, lp)][..] } else { &[] };
        let began = self.first * self.width;
        let packet = packets.iter().map(|arrival| Time::from_ps(began + arrival.offset())).min();
        let has_other_events = self.wheel_counts[lp as usize] > 0;
        let mut epochs = (self.first..=self.last).filter(|_| has_other_events);
        let other = epochs.find_map(|epoch| {
            let list = &self.wheel[self.list(epoch, lp)];
            list.iter().map(|entry| entry.key.time()).min()
        });
        schedule_transmit.into_iter().chain(packet).chain(other).min()
    }

    /// Activates an LP, if it has events in this stride.
    #[inline]
    pub(crate) fn activate(&mut self, lp: u32) -> bool {
        #[cfg(test)]
        {
            self.opened += 1;
        }
        let due = self.transmit_epoch.get(lp as usize).copied();
        let mut is_open = match due {
            Some(due) => due <= self.stride_last,
            None => !self.transmit_ready[(lp - self.switches) as usize].is_empty(),
        };
        for epoch in self.stride_first..=self.stride_last {
            is_open |= self.activate_epoch(lp, epoch);
        }
        if is_open {
            self.active_lp = lp;
            if lp >= self.switches {
                self.arrivals.sort();
            }
            if let Some(due) = due.filter(|due| *due != NEVER) {
                self.transmit_epoch[lp as usize] = NEVER;
                self.counts[(due & self.mask) as usize] -= 1;
            }
        }
        is_open
    }

    /// Moves the events of an LP and epoch to the active ones. Returns whether there are any.
    #[allow(clippy::inline_always, reason = "it is called from one place")]
    #[inline(always)]
    fn activate_epoch(&mut self, lp: u32, epoch: u64) -> bool {
        let slot = self.slot(epoch);
        let list = self.list(epoch, lp);
        let arrival_wheel = &mut self.arrival_wheel[list];
        let mut is_open = !arrival_wheel.is_empty();
        if is_open {
            self.counts[slot] -= 1;
            self.arrivals.add(epoch * self.width - self.began, arrival_wheel);
            arrival_wheel.clear();
            self.spare_arrivals[usize::from(lp >= self.switches)].push(std::mem::take(arrival_wheel));
        }
        if self.wheel_counts[lp as usize] > 0 {
            let others = &mut self.wheel[list];
            if others.is_empty() {
                return is_open;
            }
            is_open = true;
            self.wheel_counts[lp as usize] -= others.len() as u32;
            self.counts[slot] -= others.len();
            if self.active.is_empty() {
                let pool = self.active.fill(std::mem::take(others));
                self.spare.push(pool);
            } else {
                for entry in others.drain(..) {
                    self.active.put(entry);
                }
            }
        }
        is_open
    }

    /// The arrivals of the active LP that are left.
    pub(crate) fn active_arrivals(&self) -> &[Arrival] {
        self.arrivals.left()
    }

    /// The arrivals of an LP in the first two active epochs, before it is activated; in no order.
    pub(crate) fn arrivals_of(&self, lp: u32) -> impl Iterator<Item = &Arrival> {
        let list = move |epoch: u64| &self.arrival_wheel[self.list(epoch, lp)];
        let second = (self.last > self.first).then(|| self.first + 1);
        std::iter::once(self.first).chain(second).flat_map(list)
    }

    /// Prefetches the next transmit-ready event of a host group.
    #[inline]
    pub(crate) fn prefetch_transmit_ready(&self, group: u32) {
        if let Some(next) = self.transmit_ready[group as usize].last() {
            prefetch(next);
        }
    }

    /// The next arrival of the active LP: when, by which channel, which packet.
    #[inline]
    pub(crate) fn next_arrival(&self) -> Option<(Time, u32, PacketIndex)> {
        self.arrivals.next(self.began)
    }

    /// Sorts the arrivals of the active switch by time.
    pub(crate) fn sort_arrivals(&mut self) {
        self.arrivals.sort();
    }

    /// Drops the arrivals of the active switch, which has taken them all in.
    pub(crate) fn clear_arrivals(&mut self) {
        self.arrivals.clear();
    }

    /// When the current stride begins.
    #[inline]
    pub(crate) fn began(&self) -> Time {
        Time::from_ps(self.began)
    }

    /// Takes the next arrival out.
    #[inline]
    pub(crate) fn pass_arrival(&mut self) {
        self.arrivals.pass();
    }

    /// Whether the active LP has events other than arrivals.
    #[inline]
    pub(crate) fn has_other_events(&self) -> bool {
        !self.active.is_empty()
    }

    /// When the next port of the active host group transmits.
    #[inline]
    pub(crate) fn next_transmit_ready(&self) -> Time {
        // Only a part of the key is read: it was just written in parts, and reading the whole would stall store forwarding.
        self.ready_of_active().last().map_or(Time::NEVER, |(key, _)| key.time())
    }

    /// Takes that transmit-ready event out: its channel.
    #[inline]
    pub(crate) fn pop_transmit_ready(&mut self) -> Option<u32> {
        let (key, channel) = self.transmit_ready[(self.active_lp - self.switches) as usize].pop()?;
        let slot = self.slot(self.epoch(key.time()));
        self.counts[slot] -= 1;
        Some(channel)
    }

    #[inline]
    fn ready_of_active(&self) -> &[(Key, u32)] {
        &self.transmit_ready[(self.active_lp - self.switches) as usize]
    }

    /// The next other event of the active host group, if it is by `limit`, before the next arrival and before the next
    /// transmit-ready event.
    pub(crate) fn pop_event_of_group_by(
        &mut self,
        limit: Time,
        arrival: Time,
    ) -> Option<(Time, PackedEvent)> {
        let schedule_transmit = self.ready_of_active().last().map(|(key, _)| *key);
        self.pop_other_event_by(limit, arrival, schedule_transmit)
    }

    /// The next event of the active LP besides arrivals and transmit-ready events, if it is by `limit` and before both.
    #[inline(never)]
    pub(crate) fn pop_other_event_by(
        &mut self,
        limit: Time,
        arrival: Time,
        schedule_transmit: Option<Key>,
    ) -> Option<(Time, PackedEvent)> {
        let next = self.active.next()?;
        let comes = next.is_before(arrival, rank::ARRIVE)
            && schedule_transmit.is_none_or(|schedule_transmit| next < schedule_transmit);
        if comes { self.active.pop_by(limit) } else { None }
    }

    /// Ends the stride of the active LP. Events that it did not run stay for another one.
    pub(crate) fn deactivate(&mut self) {
        let lp = std::mem::replace(&mut self.active_lp, NO_LP);
        while let Some(arrival) = self.arrivals.pop() {
            let ahead = arrival.offset() / self.width;
            self.put_arrival(self.stride_first + ahead, lp, arrival.sooner(ahead * self.width));
        }
        self.arrivals.clear();
        while let Some(entry) = self.active.pop() {
            self.put_in_wheel(self.epoch(entry.key.time()), lp, entry);
        }
    }

    /// All events besides arrivals, transmit-ready events and ready lists, in no order.
    pub(crate) fn events(&self) -> impl Iterator<Item = &PackedEvent> {
        let overflow = self.overflow.iter().map(|Reverse((entry, _))| entry);
        self.wheel.iter().flatten().chain(overflow).map(|entry| &entry.event).chain(self.active.events())
    }

    /// Whether a host group has a transmit-ready event.
    pub(crate) fn has_transmit_ready(&self) -> bool {
        self.transmit_ready.iter().any(|transmit_ready| !transmit_ready.is_empty())
    }

    /// Takes all arrivals out, those of each channel in their order: when, by which channel, which packet.
    pub(crate) fn drain_arrivals(&mut self) -> Vec<(Time, u32, PacketIndex)> {
        let mut all = Vec::new();
        for epoch in self.first..=self.first + self.mask {
            for lp in 0..self.lps {
                let list = self.list(epoch, lp as u32);
                let list = &mut self.arrival_wheel[list];
                let at = |arrival: &Arrival| Time::from_ps(epoch * self.width + arrival.offset());
                all.extend(list.drain(..).map(|arrival| (at(&arrival), arrival.channel, arrival.packet)));
            }
        }
        while let Some(Reverse(OverflowArrival { at, channel, packet, .. })) = self.overflow_arrivals.pop() {
            all.push((at, channel, packet));
        }
        all
    }

    /// Takes all other events out, in no order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Key, PackedEvent)> {
        self.counts.fill(0);
        self.wheel_counts.fill(0);
        self.overflow_ready.clear();
        self.transmit_epoch.fill(NEVER);
        let schedule_transmit = |(key, channel)| (key, PackedEvent::new(Event::TransmitReady { channel }));
        let transmit_ready =
            self.transmit_ready.iter_mut().flat_map(|list| list.drain(..)).map(schedule_transmit);
        let in_wheel = self.wheel.iter_mut().flat_map(|list| list.drain(..));
        let overflow = self.overflow.drain().map(|Reverse((entry, _))| entry);
        in_wheel.chain(overflow).map(|entry| (entry.key, entry.event)).chain(transmit_ready)
    }
}
