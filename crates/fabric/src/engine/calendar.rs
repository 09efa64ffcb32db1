//! The calendar: events in an order that does not depend on how it was filled.
//!
//! Nearly every event is within microseconds of now, so the near future is a calendar wheel of short buckets: scheduling is
//! an append, and a bucket is sorted once, when it becomes active. Later events wait in an overflow heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Component, Order, Time};

/// How far from the end of the active bucket an event may be inserted. Beyond that, moving what follows would cost more than
/// a heap, and very many events for one moment would take quadratic time.
const INSERT_MAX: usize = 64;

/// Width of a bucket: 2^12 ps, about 4 ns. A packet of 4 KiB at 100 Gb/s takes eighty of them.
const WIDTH_BITS: u32 = 12;
/// Buckets of the wheel: together 8.4 µs. More would keep more memory warm than a cache holds.
const BUCKETS: usize = 1 << 11;
const WORDS: usize = BUCKETS / 64;

/// In a key, the priority stands above so many bits, and the component above the bits of the sequence.
const RANK_SHIFT: u32 = 61;
pub(crate) const SEQUENCE_BITS: u32 = 39;
/// Components that have a rank of their own in the order.
pub(crate) const COMPONENTS_MAX: usize = 1 << (RANK_SHIFT - SEQUENCE_BITS);

/// Time, priority, component and sequence packed so that one comparison orders them (see [`Order`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    time: u64,
    rest: u64,
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.packed().cmp(&other.packed())
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.packed() < other.packed()
    }
}

impl Key {
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn new(order: &Order) -> Self {
        let rest = u64::from(order.priority) << RANK_SHIFT
            | u64::from(order.component.0) << SEQUENCE_BITS
            | order.sequence & ((1 << SEQUENCE_BITS) - 1);
        Self { time: order.time.as_ps(), rest }
    }

    /// As one number, which is compared without a branch.
    #[inline]
    fn packed(self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.rest)
    }

    pub(crate) fn time(self) -> Time {
        Time::from_ps(self.time)
    }

    /// Whether it is before all events of that rank at `time`.
    #[inline]
    pub(crate) fn is_before(self, time: Time, rank: u8) -> bool {
        (self.time, self.rest) < (time.as_ps(), u64::from(rank) << RANK_SHIFT)
    }

    /// Its rank among events of the same time.
    fn rank(self) -> u8 {
        (self.rest >> RANK_SHIFT) as u8
    }

    fn bucket(self) -> u64 {
        self.time >> WIDTH_BITS
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<E> {
    pub(crate) key: Key,
    pub(crate) event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// Events of the active bucket.
#[derive(Debug)]
pub(crate) struct ActiveEvents<E> {
    /// Sorted, the latest first: the next event is at the end.
    sorted: Vec<Entry<E>>,
    /// Events that were scheduled too late to be inserted cheaply.
    late: BinaryHeap<Reverse<Entry<E>>>,
}

impl<E: Copy> ActiveEvents<E> {
    pub(crate) fn new() -> Self {
        Self { sorted: Vec::new(), late: BinaryHeap::new() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty() && self.late.is_empty()
    }

    /// Makes these events the active ones, where there are none, in return for the buffer of the last ones.
    pub(crate) fn fill(&mut self, list: Vec<Entry<E>>) -> Vec<Entry<E>> {
        let pool = std::mem::replace(&mut self.sorted, list);
        self.sorted.sort_unstable_by_key(|entry| Reverse(entry.key));
        pool
    }

    /// All of them, in no order.
    pub(crate) fn events(&self) -> impl Iterator<Item = &E> {
        let late = self.late.iter().map(|Reverse(entry)| entry);
        self.sorted.iter().chain(late).map(|entry| &entry.event)
    }

    /// Inserts an event: mostly near the end, which is what comes next.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn put(&mut self, entry: Entry<E>) {
        let tail = self.sorted.len().saturating_sub(INSERT_MAX);
        let at = tail + self.sorted[tail..].partition_point(|other| other.key > entry.key);
        if at == tail && tail > 0 {
            self.put_late(entry);
        } else {
            self.sorted.insert(at, entry);
        }
    }

    #[cold]
    fn put_late(&mut self, entry: Entry<E>) {
        self.late.push(Reverse(entry));
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Key> {
        let late = self.late.peek().map(|Reverse(entry)| entry.key);
        let first = self.sorted.last().map(|entry| entry.key);
        first.into_iter().chain(late).min()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry<E>> {
        match (self.sorted.last(), self.late.peek()) {
            (_, None) => self.sorted.pop(),
            (Some(first), Some(Reverse(late))) if first.key < late.key => self.sorted.pop(),
            _ => self.late.pop().map(|Reverse(entry)| entry),
        }
    }

    /// Takes the next one out, if its time is `limit` or before.
    #[inline]
    pub(crate) fn pop_by(&mut self, limit: Time) -> Option<(Time, E)> {
        if !self.late.is_empty() {
            return self.pop_among_late(limit);
        }
        let entry = self.sorted.last().filter(|entry| entry.key.time() <= limit)?;
        let next = (entry.key.time(), entry.event);
        self.sorted.pop();
        Some(next)
    }

    #[cold]
    fn pop_among_late(&mut self, limit: Time) -> Option<(Time, E)> {
        match self.next() {
            Some(key) if key.time() <= limit => self.pop().map(|entry| (key.time(), entry.event)),
            _ => None,
        }
    }
}

/// Events in the order of [`Order`].
#[derive(Debug)]
pub struct Calendar<E> {
    /// The active bucket.
    active: ActiveEvents<E>,
    /// Its number, counted from the start of time.
    current: u64,
    wheel: Vec<Vec<Entry<E>>>,
    /// Buffers of buckets that are over, as a stack: the last one is still in the cache, and is filled first.
    spare: Vec<Vec<Entry<E>>>,
    /// One bit for each bucket of the wheel that is not empty.
    occupied: [u64; WORDS],
    overflow: BinaryHeap<Reverse<Entry<E>>>,
    length: usize,
}

impl<E: Copy> Calendar<E> {
    /// An empty calendar.
    pub fn new() -> Self {
        Self {
            active: ActiveEvents::new(),
            current: 0,
            wheel: (0..BUCKETS).map(|_| Vec::new()).collect(),
            spare: Vec::new(),
            occupied: [0; WORDS],
            overflow: BinaryHeap::new(),
            length: 0,
        }
    }

    /// The events of the active bucket, in no order.
    pub(crate) fn active_events(&self) -> impl Iterator<Item = &E> {
        self.active.events()
    }

    /// All events, in no order.
    pub(crate) fn events(&self) -> impl Iterator<Item = &E> {
        let later = self.wheel.iter().flatten().chain(self.overflow.iter().map(|Reverse(entry)| entry));
        self.active.events().chain(later.map(|entry| &entry.event))
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Schedules an event. One in the past of what was taken out comes out next.
    #[allow(clippy::inline_always, reason = "an order that goes through memory costs as much as the rest")]
    #[inline(always)]
    pub fn push(&mut self, order: &Order, event: E) {
        self.put(Key::new(order), event);
    }

    #[allow(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    pub(crate) fn put(&mut self, key: Key, event: E) {
        let bucket = key.bucket();
        self.length += 1;
        if bucket.wrapping_sub(self.current).wrapping_sub(1) < BUCKETS as u64 - 1 {
            self.put_in_wheel(bucket, key, event);
        } else {
            self.put_outside(bucket, key, event);
        }
    }

    #[allow(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn put_in_wheel(&mut self, bucket: u64, key: Key, event: E) {
        let slot = bucket as usize % BUCKETS;
        let list = &mut self.wheel[slot];
        if list.len() == list.capacity() {
            make_room(list, &mut self.spare);
        }
        list.push(Entry { key, event });
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// Schedules an event in the active bucket, or beyond the wheel.
    #[inline(never)]
    fn put_outside(&mut self, bucket: u64, key: Key, event: E) {
        let entry = Entry { key, event };
        if bucket > self.current {
            self.overflow.push(Reverse(entry));
            return;
        }
        self.active.put(entry);
    }

    /// Takes the next event out.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, E)> {
        if self.active.is_empty() && !self.advance() {
            return None;
        }
        let entry = self.active.pop()?;
        self.length -= 1;
        Some((entry.key.time(), entry.event))
    }

    /// Takes the next event out if its time is `limit` or before. Otherwise: whether there is none at all.
    pub fn pop_by(&mut self, limit: Time) -> Result<(Time, E), bool> {
        loop {
            if let Some(next) = self.pop_active(limit) {
                return Ok(next);
            }
            if let Some(late) = self.pop_late_or_advance(limit)? {
                return Ok(late);
            }
        }
    }

    /// As [`Calendar::pop_by`], as long as the next event is in the active bucket and none was late. A loop that has both
    /// cases apart keeps the event in registers, which saves a tenth of its time. [`Calendar::pop_late_or_advance`] is the
    /// other case.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub(crate) fn pop_active(&mut self, limit: Time) -> Option<(Time, E)> {
        if !self.active.late.is_empty() {
            return None;
        }
        let entry = self.active.sorted.last().filter(|entry| entry.key.time() <= limit)?;
        let next = (entry.key.time(), entry.event);
        self.active.sorted.pop();
        self.length -= 1;
        Some(next)
    }

    /// Advances to the next bucket, or takes a late event out. Otherwise as [`Calendar::pop_by`].
    #[inline(never)]
    pub(crate) fn pop_late_or_advance(&mut self, limit: Time) -> Result<Option<(Time, E)>, bool> {
        if self.active.is_empty() {
            self.advance_by(limit)?;
            return Ok(None);
        }
        let late = self.active.pop_by(limit).ok_or(false)?;
        self.length -= 1;
        Ok(Some(late))
    }

    /// When the next event is.
    pub fn next_time(&self) -> Option<Time> {
        self.next().map(Key::time)
    }

    /// When the next event is, and its rank among those of that moment.
    pub(crate) fn next_rank(&self) -> Option<(Time, u8)> {
        self.next().map(|key| (key.time(), key.rank()))
    }

    fn next(&self) -> Option<Key> {
        if let Some(key) = self.active.next() {
            return Some(key);
        }
        let wheel = self.next_occupied().map(|bucket| &self.wheel[bucket as usize % BUCKETS]);
        let near = wheel.into_iter().flatten().map(|entry| entry.key).min();
        let overflow = self.overflow.peek().map(|Reverse(entry)| entry.key);
        near.into_iter().chain(overflow).min()
    }

    /// Advances to the next bucket if it begins by `limit`, and no further: events scheduled until then would be late.
    fn advance_by(&mut self, limit: Time) -> Result<(), bool> {
        let next = self.next_bucket().ok_or(true)?;
        let last = limit.as_ps() >> WIDTH_BITS;
        if next > last {
            self.current = self.current.max(last);
            return Err(false);
        }
        self.advance_to(next);
        Ok(())
    }

    /// Advances to the next bucket that is not empty.
    fn advance(&mut self) -> bool {
        let next = self.next_bucket();
        if let Some(next) = next {
            self.advance_to(next);
        }
        next.is_some()
    }

    fn next_bucket(&self) -> Option<u64> {
        let wheel_counts = self.next_occupied();
        let in_far = self.overflow.peek().map(|Reverse(entry)| entry.key.bucket());
        wheel_counts.into_iter().chain(in_far).min()
    }

    fn advance_to(&mut self, next: u64) {
        self.current = next;
        while let Some(Reverse(entry)) = self.overflow.peek()
            && entry.key.bucket() - next < BUCKETS as u64
        {
            let Some(Reverse(entry)) = self.overflow.pop() else { break };
            self.put_in_wheel(entry.key.bucket(), entry.key, entry.event);
        }
        let slot = next as usize % BUCKETS;
        let pool = self.active.fill(std::mem::take(&mut self.wheel[slot]));
        self.spare.push(pool);
        self.occupied[slot / 64] &= !(1 << (slot % 64));
    }

    /// The number of the next bucket of the wheel that is not empty.
    fn next_occupied(&self) -> Option<u64> {
        let start = (self.current as usize + 1) % BUCKETS;
        for step in 0..=WORDS {
            let word = (start / 64 + step) % WORDS;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == WORDS {
                bits &= !(u64::MAX << (start % 64));
            }
            if bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (slot + BUCKETS - start) % BUCKETS;
                return Some(self.current + 1 + ahead as u64);
            }
        }
        None
    }
}

/// Makes room for one more entry: the buffer of a bucket that is over, where the list has none.
#[cold]
pub(crate) fn make_room<T>(list: &mut Vec<T>, spare: &mut Vec<Vec<T>>) {
    match spare.pop() {
        Some(pool) if list.capacity() == 0 && pool.capacity() > 0 => *list = pool,
        pool => {
            spare.extend(pool);
            list.reserve(1);
        }
    }
}

impl<E: Copy> Default for Calendar<E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Gives each component its own sequence, so that order never comes from a shared counter.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    next: Vec<u32>,
}

impl Sequences {
    /// For components 0 to `count` − 1.
    pub fn new(count: usize) -> Self {
        Self { next: vec![0; count] }
    }

    /// The order of the next event that `component` causes.
    #[allow(clippy::inline_always, reason = "see Calendar::push")]
    #[inline(always)]
    pub fn order(&mut self, time: Time, priority: u8, component: Component) -> Order {
        let next = &mut self.next[component.0 as usize];
        let sequence = u64::from(*next);
        *next = next.wrapping_add(1);
        Order { time, priority, component, sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(time: u64, component: u32, sequence: u64) -> Order {
        Order { time: Time::from_ps(time), priority: 0, component: Component(component), sequence }
    }

    #[test]
    fn events_far_and_near_come_out_in_order() {
        let mut calendar = Calendar::new();
        let times = [5, 1 << 40, 3, 1 << 20, (1 << 40) + 1, 1 << 29, 7, 1 << 28];
        for (index, &time) in times.iter().enumerate() {
            calendar.push(&order(time, 0, index as u64), time);
        }
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let taken: Vec<u64> = std::iter::from_fn(|| calendar.pop().map(|(_, event)| event)).collect();
        assert_eq!(taken, sorted);
        assert!(calendar.is_empty());
    }

    #[test]
    fn very_many_events_for_one_moment_come_out_in_order() {
        // Backwards into the active bucket: each belongs before all the others.
        let mut calendar = Calendar::new();
        calendar.push(&order(0, 0, 0), 0);
        assert_eq!(calendar.pop(), Some((Time::ZERO, 0)));
        let count = 200_000;
        for index in (0..count).rev() {
            calendar.push(&order(7, index, 0), index);
        }
        for index in (0..count).step_by(3) {
            calendar.push(&order(7, index, 1), index);
        }
        let mut taken = 0;
        let mut last = None;
        while let Some((time, index)) = calendar.pop() {
            assert_eq!(time, Time::from_ps(7));
            assert!(last <= Some(index), "{index} after {last:?}");
            last = Some(index);
            taken += 1;
        }
        assert_eq!(taken, count + count.div_ceil(3));
    }

    proptest! {
        /// Against a binary heap, with events scheduled while others are taken out.
        #[test]
        fn behaves_like_a_heap(script in prop::collection::vec((0u64..1 << 31, 0u32..4, any::<bool>()), 1..400)) {
            let (mut calendar, mut heap) = (Calendar::new(), BinaryHeap::new());
            let mut now = 0;
            for (index, (ahead, component, take)) in script.into_iter().enumerate() {
                let ahead = if ahead % 3 == 0 { ahead % 1000 } else { ahead };
                let order = order(now + ahead, component, index as u64);
                calendar.push(&order, index);
                heap.push(Reverse((order, index)));
                if take {
                    let Reverse((expected, event)) = heap.pop().unwrap();
                    prop_assert_eq!(calendar.pop(), Some((expected.time, event)));
                    now = expected.time.as_ps();
                }
            }
            while let Some(Reverse((expected, event))) = heap.pop() {
                prop_assert_eq!(calendar.next_time(), Some(expected.time));
                prop_assert_eq!(calendar.pop(), Some((expected.time, event)));
            }
            prop_assert_eq!(calendar.pop(), None);
        }
    }
}
