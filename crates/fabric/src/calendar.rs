//! The calendar: what happens when, in an order that does not depend on how it was filled.
//!
//! Nearly everything happens within microseconds of now, so the near future is a ring of short buckets: putting an
//! event there is an append, and a bucket is sorted once, when its time has come. The far future is a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Component, Order, Time};

/// How far from the end of the bucket at hand an event may be put in place. Beyond that, moving what follows would cost
/// more than a heap, and very many events for one moment would take quadratic time.
const NEAR: usize = 64;

/// Width of a bucket: 2^14 ps, about 16 ns. A packet of 4 KiB at 100 Gb/s takes twenty of them.
const WIDTH_BITS: u32 = 14;
/// Buckets of the ring: together 8.4 µs. More would keep more memory warm than a cache holds.
const BUCKETS: usize = 1 << 9;
const WORDS: usize = BUCKETS / 64;

/// Time, priority, component and sequence packed so that one comparison orders them (see [`Order`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key(u128);

impl Key {
    fn new(order: &Order) -> Self {
        let rest = u64::from(order.priority) << 56
            | u64::from(order.component.0 & 0x00ff_ffff) << 32
            | order.sequence & 0xffff_ffff;
        Self(u128::from(order.time.as_ps()) << 64 | u128::from(rest))
    }

    fn time(self) -> Time {
        Time::from_ps((self.0 >> 64) as u64)
    }

    fn bucket(self) -> u64 {
        (self.0 >> (64 + WIDTH_BITS)) as u64
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    key: Key,
    event: E,
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

/// Events in the order of [`Order`].
#[derive(Debug)]
pub struct Calendar<E> {
    /// The bucket whose time has come, latest first: the next event is at the end.
    active: Vec<Entry<E>>,
    /// What came for that bucket too late to be put among the others cheaply.
    late: BinaryHeap<Reverse<Entry<E>>>,
    /// Its number, counted from the start of time.
    current: u64,
    ring: Vec<Vec<Entry<E>>>,
    /// Room of buckets that are over, the last one on top: what was just read is warm, and is filled again first.
    spare: Vec<Vec<Entry<E>>>,
    /// One bit for each bucket of the ring that is not empty.
    occupied: [u64; WORDS],
    far: BinaryHeap<Reverse<Entry<E>>>,
    length: usize,
}

impl<E: Copy> Calendar<E> {
    /// An empty calendar.
    pub fn new() -> Self {
        Self {
            active: Vec::new(),
            late: BinaryHeap::new(),
            current: 0,
            ring: (0..BUCKETS).map(|_| Vec::new()).collect(),
            spare: Vec::new(),
            occupied: [0; WORDS],
            far: BinaryHeap::new(),
            length: 0,
        }
    }

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing will happen.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Puts an event in. One that lies in the past of what was taken out comes out next.
    #[inline]
    pub fn push(&mut self, order: &Order, event: E) {
        let entry = Entry { key: Key::new(order), event };
        self.length += 1;
        let bucket = entry.key.bucket();
        if bucket <= self.current {
            // The bucket at hand: mostly near its end, which is what comes next.
            let tail = self.active.len().saturating_sub(NEAR);
            let at = tail + self.active[tail..].partition_point(|other| other.key > entry.key);
            if at == tail && tail > 0 {
                self.late.push(Reverse(entry));
            } else {
                self.active.insert(at, entry);
            }
        } else if bucket - self.current < BUCKETS as u64 {
            self.put_in_ring(bucket, entry);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    #[inline]
    fn put_in_ring(&mut self, bucket: u64, entry: Entry<E>) {
        let slot = bucket as usize % BUCKETS;
        let list = &mut self.ring[slot];
        if list.capacity() == 0
            && let Some(spare) = self.spare.pop()
        {
            *list = spare;
        }
        list.push(entry);
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// Takes the next event out.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, E)> {
        if self.is_bucket_empty() && !self.advance() {
            return None;
        }
        let entry = match (self.active.last(), self.late.peek()) {
            (_, None) => self.active.pop()?,
            (Some(first), Some(Reverse(late))) if first.key < late.key => self.active.pop()?,
            _ => self.late.pop()?.0,
        };
        self.length -= 1;
        Some((entry.key.time(), entry.event))
    }

    /// Takes the next event out if its time is `limit` or before. Otherwise: whether there is none at all.
    #[inline]
    pub fn pop_by(&mut self, limit: Time) -> Result<(Time, E), bool> {
        if self.late.is_empty()
            && let Some(entry) = self.active.last()
            && entry.key.time() <= limit
        {
            let next = (entry.key.time(), entry.event);
            self.active.pop();
            self.length -= 1;
            return Ok(next);
        }
        match self.next_time() {
            Some(next) if next <= limit => self.pop().ok_or(true),
            next => Err(next.is_none()),
        }
    }

    /// When the next event is.
    pub fn next_time(&mut self) -> Option<Time> {
        if self.is_bucket_empty() && !self.advance() {
            return None;
        }
        let late = self.late.peek().map(|Reverse(entry)| entry.key);
        let first = self.active.last().map(|entry| entry.key);
        first.into_iter().chain(late).min().map(Key::time)
    }

    #[inline]
    fn is_bucket_empty(&self) -> bool {
        self.active.is_empty() && self.late.is_empty()
    }

    /// Goes on to the next bucket that holds something.
    fn advance(&mut self) -> bool {
        if self.length == 0 {
            return false;
        }
        let in_ring = self.next_occupied();
        let in_far = self.far.peek().map(|Reverse(entry)| entry.key.bucket());
        let next = match (in_ring, in_far) {
            (Some(ring), Some(far)) => ring.min(far),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return false,
        };
        self.current = next;
        while let Some(Reverse(entry)) = self.far.peek()
            && entry.key.bucket() - next < BUCKETS as u64
        {
            let Some(Reverse(entry)) = self.far.pop() else { break };
            self.put_in_ring(entry.key.bucket(), entry);
        }
        let slot = next as usize % BUCKETS;
        let next = std::mem::take(&mut self.ring[slot]);
        self.spare.push(std::mem::replace(&mut self.active, next));
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.active.sort_unstable_by_key(|entry| Reverse(entry.key));
        true
    }

    /// The number of the next bucket of the ring that holds something.
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

    /// The place in the order of the next event that `component` causes.
    #[inline]
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
        // Put in backwards while the bucket is at hand: each belongs before all the others.
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
        /// Against a binary heap, with events put in while others are taken out.
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
