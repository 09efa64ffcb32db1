//! The near future of switches and hosts, in windows of time.
//!
//! What happens at one place cannot reach another before a link's delay is over. So for a span no longer than that, each
//! switch can be taken through all that happens to it before the next one is looked at, and so can each island: hosts that
//! something besides links connects, such as the NICs of one server, or a host by itself. Its ports stay in the cache
//! meanwhile, which a thousand by turns would not. Order within a place is the order of the calendar, so every one does
//! exactly what it would have done.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Order, Span, Time};
use railnet_topology::Vertex;

use crate::arrivals::{Arrival, Arrivals, OFFSETS};
use crate::calendar::{AtHand, Entry, Key, make_room};
use crate::event::{Event, Packed, rank};
use crate::packet::PacketIndex;
use crate::pending::Pending;

/// Windows that are kept apart, or as many as that where there are lulls; what lies further ahead waits in a heap. Powers of
/// two.
const RING: u64 = 16;
const RING_WITH_LULLS: u64 = 256;
/// Windows that one half of all places goes through before the other one does.
const TURN_WINDOWS: u64 = 2;

/// Events of switches, and of islands where they have windows too, by window and place.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Places: the switches, then the islands.
    places: usize,
    switches: u32,
    islands: Islands,
    /// How long a window is, in picoseconds.
    width: u64,
    /// Windows that are kept apart, less one.
    mask: u64,
    /// The windows at hand, counted from the start of time: nothing happens before the first of them. There are several in a
    /// lull, each for one place after the other.
    first: u64,
    last: u64,
    /// The first of those that a place goes through in one turn.
    current: u64,
    /// When that begins, in picoseconds.
    began: u64,
    /// The last of them, and how many there may be.
    turn_last: u64,
    turn_max: u64,
    /// The first window in which a place may reach others.
    reach: u64,
    /// The place whose turn it is, and what is left of its part of the window at hand.
    open: u32,
    arrivals: Arrivals,
    at_hand: AtHand<Packed>,
    /// Packets that come in the windows from the present one on, place by place.
    coming: Vec<Vec<Arrival>>,
    /// What else happens in them, and how much of that there is at each place: mostly nothing.
    ring: Vec<Vec<Entry<Packed>>>,
    in_ring: Vec<u32>,
    /// The window in which ports of each switch are to be woken.
    ports_due: Vec<u64>,
    /// Channels of each island that are to be woken, the next one last. They are few, and mostly wake in the order in which
    /// they are put in: that takes less than a place among all else.
    wakes: Vec<Vec<(Key, u32)>>,
    /// How much happens in each of the windows from the present one on, at all places together; packets that come to one place
    /// count once.
    counts: Vec<usize>,
    spare: Vec<Vec<Entry<Packed>>>,
    /// Room for packets that come, of switches and of islands: where many come and where few do.
    spare_coming: [Vec<Vec<Arrival>>; 2],
    far: BinaryHeap<Reverse<(Entry<Packed>, u32)>>,
    far_coming: BinaryHeap<Reverse<FarArrival>>,
    /// How many arrivals ever lay that far ahead.
    far_count: u64,
    /// The windows of wake-ups that lie further ahead.
    far_wakes: BinaryHeap<Reverse<u64>>,
    /// Islands with events in the current epochs, while the application is called in between.
    pending: Pending,
    /// How often a place was asked whether anything may happen to it.
    #[cfg(test)]
    pub(crate) opened: u64,
}

/// Where the packets of one channel come to, in the windows that they mostly come in.
pub(crate) struct Outlet<'a> {
    windows: &'a mut Windows,
    /// Where what comes in the first of the windows at hand is, and in those after it.
    lists: [usize; OUTLET_WINDOWS],
}

const OUTLET_WINDOWS: usize = 4;
const _: () = assert!(TURN_WINDOWS + OUTLET_WINDOWS as u64 <= RING);

impl Outlet<'_> {
    /// As [`Windows::arrive`].
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn arrive(&mut self, place: u32, at: Time, standing: u32, channel: u32, packet: PacketIndex) {
        let width = self.windows.width;
        let ahead = at.as_ps().wrapping_sub(self.windows.began);
        let further = self.windows.further(ahead);
        let offset = ahead.wrapping_sub(further * width);
        let list = &mut self.windows.coming[self.lists[further as usize]];
        if offset < width && !list.is_empty() && list.len() < list.capacity() {
            list.push(Arrival::new(offset, standing, channel, packet));
        } else {
            self.arrive_first(place, at, standing, channel, packet);
        }
    }

    #[inline(never)]
    fn arrive_first(&mut self, place: u32, at: Time, standing: u32, channel: u32, packet: PacketIndex) {
        self.windows.arrive(place, at, standing, channel, packet);
    }
}

/// A packet that comes in a window further ahead, in the order of time; those of one channel at one moment in the order in
/// which they were sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct FarArrival {
    at: Time,
    standing: u32,
    number: u64,
    place: u32,
    channel: u32,
    packet: PacketIndex,
}

/// Which hosts are taken through a window together; none where hosts have no windows.
#[derive(Debug, Default)]
pub(crate) struct Islands {
    of_host: Vec<u32>,
    hosts: Vec<Vec<u32>>,
}

impl Islands {
    /// By the number of each host's island; numbers count up from 0.
    pub(crate) fn new(of_host: Vec<u32>) -> Self {
        let count = of_host.iter().max().map_or(0, |last| *last as usize + 1);
        let mut hosts = vec![Vec::new(); count];
        for (host, island) in of_host.iter().enumerate() {
            hosts[*island as usize].push(host as u32);
        }
        Self { of_host, hosts }
    }

    pub(crate) fn count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The host of an island that has one.
    #[inline]
    pub(crate) fn only_host(&self, island: u32) -> Option<u32> {
        match self.hosts[island as usize][..] {
            [host] => Some(host),
            _ => None,
        }
    }

    /// The hosts of an island.
    pub(crate) fn hosts(&self, island: u32) -> &[u32] {
        &self.hosts[island as usize]
    }
}

/// No window.
const NEVER: u64 = u64::MAX;

/// No place has its turn.
const NOBODY: u32 = u32::MAX;

impl Windows {
    /// For so many switches that need `delay` at least to reach each other, or a host.
    pub(crate) fn new(switches: u32, delay: Span) -> Self {
        let width = delay.as_ps().clamp(1, OFFSETS);
        Self {
            places: switches as usize,
            switches,
            islands: Islands::default(),
            width,
            mask: RING - 1,
            first: 0,
            last: 0,
            current: 0,
            began: 0,
            turn_last: 0,
            turn_max: 1,
            reach: 1,
            open: NOBODY,
            arrivals: Arrivals::new(TURN_WINDOWS * width),
            at_hand: AtHand::new(),
            coming: (0..u64::from(switches) * RING).map(|_| Vec::new()).collect(),
            ring: (0..u64::from(switches) * RING).map(|_| Vec::new()).collect(),
            in_ring: vec![0; switches as usize],
            ports_due: vec![NEVER; switches as usize],
            wakes: Vec::new(),
            counts: vec![0; RING as usize],
            spare: Vec::new(),
            spare_coming: [Vec::new(), Vec::new()],
            far: BinaryHeap::new(),
            far_coming: BinaryHeap::new(),
            far_count: 0,
            far_wakes: BinaryHeap::new(),
            pending: Pending::default(),
            #[cfg(test)]
            opened: 0,
        }
    }

    /// Hosts have windows too, from the beginning, and no window is longer than `longest`.
    pub(crate) fn add_islands(&mut self, islands: Islands, longest: Span) {
        self.width = self.width.min(longest.as_ps());
        self.arrivals = Arrivals::new(TURN_WINDOWS * self.width);
        self.places += islands.hosts.len();
        self.islands = islands;
        self.make_lists();
        self.wakes.resize_with(self.islands.hosts.len(), Vec::new);
    }

    /// There are lulls, in which places go through many windows at a time; before anything has happened.
    pub(crate) fn expect_lulls(&mut self) {
        self.mask = RING_WITH_LULLS - 1;
        self.counts.resize(RING_WITH_LULLS as usize, 0);
        self.make_lists();
    }

    /// A list for each place in each of the windows that are kept apart.
    fn make_lists(&mut self) {
        let lists = self.places * self.counts.len();
        self.coming.resize_with(lists, Vec::new);
        self.ring.resize_with(lists, Vec::new);
        self.in_ring.resize(self.places, 0);
    }

    /// Where a window is among those that are kept apart.
    #[inline]
    fn slot(&self, window: u64) -> usize {
        (window & self.mask) as usize
    }

    /// Where what happens to a place in a window is: that of one place lies together.
    #[inline]
    fn list(&self, window: u64, place: u32) -> usize {
        place as usize * (self.mask as usize + 1) + self.slot(window)
    }

    /// Whether a window is one of those that are kept apart.
    #[inline]
    fn is_near(&self, window: u64) -> bool {
        window - self.first <= self.mask
    }

    pub(crate) fn islands(&self) -> &Islands {
        &self.islands
    }

    /// Where an island is among all places.
    pub(crate) fn place_of_island(&self, island: u32) -> u32 {
        self.switches + island
    }

    /// The place of a switch or a host, if it has windows.
    #[inline]
    pub(crate) fn place(&self, vertex: Vertex) -> Option<u32> {
        match vertex {
            Vertex::Switch(switch) => Some(switch),
            Vertex::Host(host) => {
                self.islands.of_host.get(host as usize).map(|island| self.switches + island)
            }
        }
    }

    /// How many windows after the one at hand, of which it may be the third, so many picoseconds after its beginning are. Which it is
    /// cannot be foreseen, so there is no branch for each.
    #[inline]
    fn further(&self, ahead: u64) -> u64 {
        let width = self.width;
        u64::from(ahead >= width) + u64::from(ahead >= 2 * width) + u64::from(ahead >= 3 * width)
    }

    /// Mostly the window at hand or one of the next three: a division is as long as all the rest. What an application has happen in
    /// the past, because it only now knows of it, belongs to the window at hand.
    #[inline]
    fn window(&self, time: Time) -> u64 {
        let ahead = time.as_ps().wrapping_sub(self.began);
        if ahead < 4 * self.width {
            self.current + self.further(ahead)
        } else {
            (time.as_ps() / self.width).max(self.current)
        }
    }

    /// The last moment of the windows at hand.
    pub(crate) fn end(&self) -> Time {
        self.end_of_window(self.last)
    }

    /// How long the windows at hand are, together.
    pub(crate) fn span_at_hand(&self) -> Span {
        Span::from_ps((self.last - self.first + 1) * self.width)
    }

    /// The last moment of the window of another moment.
    pub(crate) fn end_of(&self, time: Time) -> Time {
        self.end_of_window(self.window(time))
    }

    /// The last moment of the windows that a place goes through in one turn.
    pub(crate) fn end_of_turn(&self) -> Time {
        self.end_of_window(self.turn_last)
    }

    fn end_of_window(&self, window: u64) -> Time {
        Time::from_ps((window * self.width).saturating_add(self.width - 1))
    }

    /// The last moment of the last window that is over before `until`, of those that are kept apart; of the window of `at` at
    /// least.
    pub(crate) fn end_before(&self, at: Time, until: Time) -> Time {
        let first = self.window(at);
        let after = until.as_ps() / self.width;
        self.end_of_window(after.saturating_sub(1).clamp(first, first + self.mask))
    }

    /// A packet comes to a place by a channel that stands there among all. It is sent after all others that come by it at that
    /// moment or before.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn arrive(&mut self, place: u32, at: Time, standing: u32, channel: u32, packet: PacketIndex) {
        let window = self.window(at);
        debug_assert!(self.open == NOBODY || window >= self.reach, "a packet comes sooner than it can");
        debug_assert!(
            !self.pending.is_tracked() || place < self.switches || window > self.last,
            "packets come to islands in later epochs only"
        );
        if self.is_near(window) {
            let offset = at.as_ps() - window * self.width;
            self.put_with_coming(window, place, Arrival::new(offset, standing, channel, packet));
        } else {
            self.arrive_far_away(FarArrival { at, standing, number: 0, place, channel, packet });
        }
    }

    /// For a port that sends several packets to a place.
    #[inline]
    pub(crate) fn outlet(&mut self, place: u32) -> Outlet<'_> {
        let list = |ahead: u64| self.list(self.current + ahead, place);
        Outlet { lists: [list(0), list(1), list(2), list(3)], windows: self }
    }

    #[cold]
    fn arrive_far_away(&mut self, arrival: FarArrival) {
        self.far_count += 1;
        self.far_coming.push(Reverse(FarArrival { number: self.far_count, ..arrival }));
    }

    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    fn put_with_coming(&mut self, window: u64, place: u32, arrival: Arrival) {
        let slot = self.slot(window);
        let list = self.list(window, place);
        let list = &mut self.coming[list];
        if list.is_empty() {
            self.counts[slot] += 1;
        }
        if list.len() == list.capacity() {
            make_room(list, &mut self.spare_coming[usize::from(place >= self.switches)]);
        }
        list.push(arrival);
    }

    /// Something else happens at a place.
    pub(crate) fn push(&mut self, order: &Order, place: u32, event: Packed) {
        self.put(place, Entry { key: Key::new(order), event });
    }

    pub(crate) fn put(&mut self, place: u32, entry: Entry<Packed>) {
        debug_assert!(entry.event.arrival().is_none(), "packets have lists of their own");
        let window = self.window(entry.key.time());
        debug_assert!(
            place == self.open || self.open == NOBODY || window >= self.reach,
            "one place reached another sooner than it can"
        );
        if place == self.open && window <= self.turn_last {
            self.at_hand.put(entry);
        } else if self.is_near(window) {
            if self.pending.is_tracked() && place >= self.switches && window <= self.last {
                self.pending.push(entry.key.time(), place - self.switches);
            }
            self.put_in_ring(window, place, entry);
        } else {
            self.put_far_away(place, entry);
        }
    }

    /// A channel of an island is to be woken.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn wake(&mut self, order: &Order, place: u32, channel: u32) {
        let key = Key::new(order);
        let wakes = &mut self.wakes[(place - self.switches) as usize];
        if wakes.is_empty() {
            wakes.push((key, channel));
        } else {
            let at = wakes.iter().position(|(other, _)| *other < key).unwrap_or(wakes.len());
            wakes.insert(at, (key, channel));
        }
        let window = self.window(order.time);
        if self.pending.is_tracked() && place != self.open && window <= self.last {
            self.pending.push(order.time, place - self.switches);
        }
        if self.is_near(window) {
            let slot = self.slot(window);
            self.counts[slot] += 1;
        } else {
            self.far_wakes.push(Reverse(window));
        }
    }

    /// Ports of the switch whose turn it is are to be woken again, the first of them at `next`.
    pub(crate) fn wake_ports(&mut self, switch: u32, next: Time) {
        // Further ahead than windows are kept apart, a switch is looked at once or more for nothing.
        let window = self.window(next).min(self.first + self.mask);
        let slot = self.slot(window);
        self.counts[slot] += 1;
        self.ports_due[switch as usize] = window;
    }

    #[cold]
    fn put_far_away(&mut self, place: u32, entry: Entry<Packed>) {
        self.far.push(Reverse((entry, place)));
    }

    fn put_in_ring(&mut self, window: u64, place: u32, entry: Entry<Packed>) {
        let slot = self.slot(window);
        let list = self.list(window, place);
        let list = &mut self.ring[list];
        if list.len() == list.capacity() {
            make_room(list, &mut self.spare);
        }
        list.push(entry);
        self.in_ring[place as usize] += 1;
        self.counts[slot] += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_far_empty = self.far.is_empty() && self.far_coming.is_empty() && self.far_wakes.is_empty();
        is_far_empty && self.counts.iter().all(|count| *count == 0)
    }

    /// When something may happen next: the beginning of a window.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.next_window().map(|window| Time::from_ps(window * self.width))
    }

    /// The next window in which something may happen.
    pub(crate) fn next_window(&self) -> Option<u64> {
        let near = (self.first..=self.first + self.mask).find(|window| self.counts[self.slot(*window)] > 0);
        let far = self.far.peek().map(|Reverse((entry, _))| self.window(entry.key.time()));
        let far_arrival = self.far_coming.peek().map(|Reverse(arrival)| self.window(arrival.at));
        let far_wake = self.far_wakes.peek().map(|Reverse(window)| *window);
        near.into_iter().chain(far).chain(far_arrival).chain(far_wake).min()
    }

    /// The window of a moment, counted from the start of time.
    pub(crate) fn window_of(&self, time: Time) -> u64 {
        time.as_ps() / self.width
    }

    /// Whether two windows are over before so much time is.
    pub(crate) fn are_passed_twice_within(&self, span: Span) -> bool {
        2 * self.width <= span.as_ps()
    }

    /// Goes on to the window of a moment, and to those behind it until another one. All windows before it must be over.
    pub(crate) fn go_to(&mut self, time: Time, until: Time) {
        self.first = self.window(time);
        self.last = until.as_ps() / self.width;
        self.reach = self.last + 1;
        self.turn_max = 1;
        self.begin();
    }

    /// Goes on to these windows for one half of the places. The other half must be through all before the last of them.
    pub(crate) fn go_through_with_half(&mut self, first: u64, last: u64) {
        (self.first, self.last, self.reach) = (first, last, first + 1);
        self.turn_max = if TURN_WINDOWS * self.width <= OFFSETS { TURN_WINDOWS } else { 1 };
        self.begin();
    }

    /// Has all that happens in the windows from the first on where it belongs.
    fn begin(&mut self) {
        debug_assert!(self.last >= self.first && self.is_near(self.last), "windows that are kept apart");
        self.pending.reset();
        self.turn_to(self.first);
        while let Some(Reverse((entry, _))) = self.far.peek()
            && self.is_near(self.window(entry.key.time()))
        {
            let Some(Reverse((entry, place))) = self.far.pop() else { break };
            self.put_in_ring(self.window(entry.key.time()), place, entry);
        }
        while let Some(Reverse(arrival)) = self.far_coming.peek()
            && self.is_near(self.window(arrival.at))
        {
            let Some(Reverse(arrival)) = self.far_coming.pop() else { break };
            let FarArrival { at, standing, place, channel, packet, .. } = arrival;
            self.arrive(place, at, standing, channel, packet);
        }
        while let Some(Reverse(window)) = self.far_wakes.peek()
            && self.is_near(*window)
        {
            let slot = self.slot(*window);
            self.counts[slot] += 1;
            self.far_wakes.pop();
        }
    }

    fn turn_to(&mut self, window: u64) {
        self.current = window;
        self.began = window * self.width;
        self.turn_last = self.last.min(window + self.turn_max - 1);
    }

    /// Whether another of the current epochs is left for a place to run by `limit`, and goes on to it. If not, the
    /// first is next again.
    #[inline]
    pub(crate) fn turn(&mut self, limit: Time) -> bool {
        let is_over = self.turn_last == self.last || self.end_of_turn() >= limit;
        if self.current > self.first || !is_over {
            self.turn_to(if is_over { self.first } else { self.turn_last + 1 });
        }
        !is_over
    }

    /// Whether the place whose turn it is goes through the first of the windows at hand.
    #[inline]
    pub(crate) fn is_first_of_turn(&self) -> bool {
        self.current == self.first
    }

    /// Whether the ready heap holds the islands with events in the current epochs.
    #[inline]
    pub(crate) fn tracks_pending(&self) -> bool {
        self.pending.is_tracked()
    }

    /// Fills the ready heap, which is kept up to date until the epochs are over.
    pub(crate) fn track_pending(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        let islands = 0..self.islands.count();
        pending.track(islands.filter_map(|island| Some((self.next_of_island(island)?, island))));
        self.pending = pending;
    }

    /// Puts an island that has just run back into the ready heap.
    pub(crate) fn note_pending(&mut self, island: u32) {
        if let Some(next) = self.next_of_island(island) {
            self.pending.push(next, island);
        }
    }

    /// The islands that have events by `limit`, in their order.
    pub(crate) fn take_pending_by(&mut self, limit: Time, islands: &mut Vec<u32>) {
        self.pending.take_by(limit, islands);
    }

    /// The first event of an island in the current epochs, while the island does not run.
    fn next_of_island(&self, island: u32) -> Option<Time> {
        let place = self.place_of_island(island);
        let end = self.end();
        let wake = self.wakes[island as usize].last().map(|(key, _)| key.time()).filter(|at| *at <= end);
        // In a lull there are no packets.
        let packets =
            if self.first == self.last { &self.coming[self.list(self.first, place)][..] } else { &[] };
        let began = self.first * self.width;
        let packet = packets.iter().map(|arrival| Time::from_ps(began + arrival.offset())).min();
        let has_others = self.in_ring[place as usize] > 0;
        let mut windows = (self.first..=self.last).filter(|_| has_others);
        let other = windows.find_map(|window| {
            let list = &self.ring[self.list(window, place)];
            list.iter().map(|entry| entry.key.time()).min()
        });
        wake.into_iter().chain(packet).chain(other).min()
    }

    /// It is this place's turn, if anything may happen to it in the window at hand.
    #[inline]
    pub(crate) fn open(&mut self, place: u32) -> bool {
        #[cfg(test)]
        {
            self.opened += 1;
        }
        let due = self.ports_due.get(place as usize).copied();
        let mut is_open = match due {
            Some(due) => due <= self.turn_last,
            None => !self.wakes[(place - self.switches) as usize].is_empty(),
        };
        for window in self.current..=self.turn_last {
            is_open |= self.open_window(place, window);
        }
        if is_open {
            self.open = place;
            if place >= self.switches {
                self.arrivals.sort();
            }
            if let Some(due) = due.filter(|due| *due != NEVER) {
                self.ports_due[place as usize] = NEVER;
                self.counts[(due & self.mask) as usize] -= 1;
            }
        }
        is_open
    }

    /// Has at hand what happens to a place in a window. Returns whether anything does.
    #[allow(clippy::inline_always, reason = "it is called from one place")]
    #[inline(always)]
    fn open_window(&mut self, place: u32, window: u64) -> bool {
        let slot = self.slot(window);
        let list = self.list(window, place);
        let coming = &mut self.coming[list];
        let mut is_open = !coming.is_empty();
        if is_open {
            self.counts[slot] -= 1;
            self.arrivals.add(window * self.width - self.began, coming);
            coming.clear();
            self.spare_coming[usize::from(place >= self.switches)].push(std::mem::take(coming));
        }
        if self.in_ring[place as usize] > 0 {
            let others = &mut self.ring[list];
            if others.is_empty() {
                return is_open;
            }
            is_open = true;
            self.in_ring[place as usize] -= others.len() as u32;
            self.counts[slot] -= others.len();
            if self.at_hand.is_empty() {
                let room = self.at_hand.fill(std::mem::take(others));
                self.spare.push(room);
            } else {
                for entry in others.drain(..) {
                    self.at_hand.put(entry);
                }
            }
        }
        is_open
    }

    /// The packets that come to the place whose turn it is.
    pub(crate) fn ahead(&self) -> &[Arrival] {
        self.arrivals.left()
    }

    /// The packets that come to a place in the windows at hand, or the first two of them, before its turn has come; in no
    /// particular order.
    pub(crate) fn coming(&self, place: u32) -> impl Iterator<Item = &Arrival> {
        let list = move |window: u64| &self.coming[self.list(window, place)];
        let second = (self.last > self.first).then(|| self.first + 1);
        std::iter::once(self.first).chain(second).flat_map(list)
    }

    /// Looks at which channel of an island is woken next, and says nothing of use.
    #[inline]
    pub(crate) fn look_at_wakes(&self, island: u32) -> u32 {
        self.wakes[island as usize].last().map_or(0, |(key, _)| key.time().as_ps() as u32)
    }

    /// The next packet that comes to the place whose turn it is: when, by which channel, which.
    #[inline]
    pub(crate) fn next_arrival(&self) -> Option<(Time, u32, PacketIndex)> {
        self.arrivals.next(self.began)
    }

    /// Puts the packets that come to the switch whose turn it is in the order of time.
    pub(crate) fn sort_arrivals(&mut self) {
        self.arrivals.sort();
    }

    /// Nothing more comes to it in its turn.
    pub(crate) fn clear_arrivals(&mut self) {
        self.arrivals.clear();
    }

    /// When the windows that a place goes through in its turn begin.
    #[inline]
    pub(crate) fn began(&self) -> Time {
        Time::from_ps(self.began)
    }

    /// It has come.
    #[inline]
    pub(crate) fn pass_arrival(&mut self) {
        self.arrivals.pass();
    }

    /// Whether anything but packets may come to that place.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        !self.at_hand.is_empty()
    }

    /// When the next channel of the island whose turn it is will be woken.
    #[inline]
    pub(crate) fn next_wake(&self) -> Time {
        // Only a part of it is read: it was just written in parts, and a processor waits for the whole.
        self.wakes_of_open().last().map_or(Time::NEVER, |(key, _)| key.time())
    }

    /// That channel: it is woken.
    #[inline]
    pub(crate) fn pop_wake(&mut self) -> Option<u32> {
        let (key, channel) = self.wakes[(self.open - self.switches) as usize].pop()?;
        let slot = self.slot(self.window(key.time()));
        self.counts[slot] -= 1;
        Some(channel)
    }

    #[inline]
    fn wakes_of_open(&self) -> &[(Key, u32)] {
        &self.wakes[(self.open - self.switches) as usize]
    }

    /// What else happens next to that island, if that is by `limit`, before the next arrival and before the next wake-up.
    pub(crate) fn pop_other_of_island_by(&mut self, limit: Time, arrival: Time) -> Option<(Time, Packed)> {
        let wake = self.wakes_of_open().last().map(|(key, _)| *key);
        self.pop_other_by(limit, arrival, wake)
    }

    /// What happens next to the place whose turn it is besides those, if that is by `limit`, before the next arrival and before a
    /// wake-up.
    #[inline(never)]
    pub(crate) fn pop_other_by(
        &mut self,
        limit: Time,
        arrival: Time,
        wake: Option<Key>,
    ) -> Option<(Time, Packed)> {
        let next = self.at_hand.next()?;
        let comes = next.is_before(arrival, rank::ARRIVE) && wake.is_none_or(|wake| next < wake);
        if comes { self.at_hand.pop_by(limit) } else { None }
    }

    /// Its turn is over. What it did not come to stays for another one.
    pub(crate) fn close(&mut self) {
        let place = std::mem::replace(&mut self.open, NOBODY);
        while let Some(arrival) = self.arrivals.pop() {
            let ahead = arrival.offset() / self.width;
            self.put_with_coming(self.current + ahead, place, arrival.sooner(ahead * self.width));
        }
        self.arrivals.clear();
        while let Some(entry) = self.at_hand.pop() {
            self.put_in_ring(self.window(entry.key.time()), place, entry);
        }
    }

    /// All that will happen besides arrivals, wake-ups and what ports of switches do, in no particular order.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Packed> {
        let far = self.far.iter().map(|Reverse((entry, _))| entry);
        self.ring.iter().flatten().chain(far).map(|entry| &entry.event).chain(self.at_hand.events())
    }

    /// Whether a channel of an island will be woken.
    pub(crate) fn has_wakes(&self) -> bool {
        self.wakes.iter().any(|wakes| !wakes.is_empty())
    }

    /// Takes all arrivals out, those of each channel in their order: when, by which channel, what.
    pub(crate) fn drain_arrivals(&mut self) -> Vec<(Time, u32, PacketIndex)> {
        let mut all = Vec::new();
        for window in self.first..=self.first + self.mask {
            for place in 0..self.places {
                let list = self.list(window, place as u32);
                let list = &mut self.coming[list];
                let at = |arrival: &Arrival| Time::from_ps(window * self.width + arrival.offset());
                all.extend(list.drain(..).map(|arrival| (at(&arrival), arrival.channel, arrival.packet)));
            }
        }
        while let Some(Reverse(FarArrival { at, channel, packet, .. })) = self.far_coming.pop() {
            all.push((at, channel, packet));
        }
        all
    }

    /// Takes all else out, in no order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Key, Packed)> {
        self.counts.fill(0);
        self.in_ring.fill(0);
        self.far_wakes.clear();
        self.ports_due.fill(NEVER);
        let wake = |(key, channel)| (key, Packed::new(Event::Wake { channel }));
        let wakes = self.wakes.iter_mut().flat_map(|list| list.drain(..)).map(wake);
        let near = self.ring.iter_mut().flat_map(|list| list.drain(..));
        let far = self.far.drain().map(|Reverse((entry, _))| entry);
        near.chain(far).map(|entry| (entry.key, entry.event)).chain(wakes)
    }
}
