//! The near future of switches, in windows of time.
//!
//! What one switch does cannot reach another before a link's delay is over. So for a span no longer than that, each switch
//! can be taken through all that happens to it before the next one is looked at. Its ports stay in the cache meanwhile,
//! which a thousand switches by turns would not. Order within a switch is the order of the calendar, so every switch does
//! exactly what it would have done.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Order, Span, Time};

use crate::calendar::{AtHand, Entry, Key, make_room};

/// Windows that are kept apart; what lies further ahead waits in a heap.
const RING: u64 = 16;

/// Events of switches, by window and switch.
#[derive(Debug)]
pub(crate) struct Windows<E> {
    switches: usize,
    /// How long a window is, in picoseconds.
    width: u64,
    /// The window at hand, counted from the start of time: nothing happens before it.
    current: u64,
    /// The switch whose turn it is, and what is left of its part of the window at hand.
    open: u32,
    at_hand: AtHand<E>,
    /// What happens in the windows from the present one on, switch by switch.
    ring: Vec<Vec<Entry<E>>>,
    counts: [usize; RING as usize],
    spare: Vec<Vec<Entry<E>>>,
    far: BinaryHeap<Reverse<(Entry<E>, u32)>>,
}

/// No switch has its turn.
const NOBODY: u32 = u32::MAX;

impl<E: Copy> Windows<E> {
    /// For so many switches that need `delay` at least to reach each other, or a host.
    pub(crate) fn new(switches: usize, delay: Span) -> Self {
        Self {
            switches,
            width: delay.as_ps().max(1),
            current: 0,
            open: NOBODY,
            at_hand: AtHand::new(),
            ring: (0..switches * RING as usize).map(|_| Vec::new()).collect(),
            counts: [0; RING as usize],
            spare: Vec::new(),
            far: BinaryHeap::new(),
        }
    }

    #[inline]
    fn window(&self, time: Time) -> u64 {
        time.as_ps() / self.width
    }

    /// The last moment of the window at hand.
    pub(crate) fn end(&self) -> Time {
        Time::from_ps((self.current + 1).saturating_mul(self.width) - 1)
    }

    /// Puts an event of a switch in.
    #[inline]
    pub(crate) fn push(&mut self, order: &Order, switch: u32, event: E) {
        let entry = Entry { key: Key::new(order), event };
        let window = self.window(order.time);
        if switch == self.open && window <= self.current {
            self.at_hand.put(entry);
        } else if window - self.current < RING {
            self.put_in_ring(window, switch, entry);
        } else {
            self.far.push(Reverse((entry, switch)));
        }
    }

    #[inline]
    fn put_in_ring(&mut self, window: u64, switch: u32, entry: Entry<E>) {
        let slot = (window % RING) as usize;
        let list = &mut self.ring[slot * self.switches + switch as usize];
        if list.len() == list.capacity() {
            make_room(list, &mut self.spare);
        }
        list.push(entry);
        self.counts[slot] += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.far.is_empty() && self.counts.iter().all(|count| *count == 0)
    }

    /// When something may happen next: the beginning of a window.
    pub(crate) fn next_time(&self) -> Option<Time> {
        let near =
            (self.current..self.current + RING).find(|window| self.counts[(window % RING) as usize] > 0);
        let far = self.far.peek().map(|Reverse((entry, _))| self.window(entry.key.time()));
        let window = near.into_iter().chain(far).min()?;
        Some(Time::from_ps(window * self.width))
    }

    /// Goes on to the window of a moment. All windows before it must be over.
    pub(crate) fn go_to(&mut self, time: Time) {
        self.current = self.window(time).max(self.current);
        while let Some(Reverse((entry, _))) = self.far.peek()
            && self.window(entry.key.time()) - self.current < RING
        {
            let Some(Reverse((entry, switch))) = self.far.pop() else { break };
            self.put_in_ring(self.window(entry.key.time()), switch, entry);
        }
    }

    /// It is this switch's turn, if anything happens to it in the window at hand.
    #[inline]
    pub(crate) fn open(&mut self, switch: u32) -> bool {
        let slot = (self.current % RING) as usize;
        let list = &mut self.ring[slot * self.switches + switch as usize];
        if list.is_empty() {
            return false;
        }
        self.counts[slot] -= list.len();
        let room = self.at_hand.fill(std::mem::take(list));
        self.spare.push(room);
        self.open = switch;
        true
    }

    /// All that happens to the switch whose turn it is, as far as is known.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = &E> {
        self.at_hand.events()
    }

    /// What happens next to the switch whose turn it is, by `limit`.
    #[inline]
    pub(crate) fn pop_by(&mut self, limit: Time) -> Option<(Time, E)> {
        self.at_hand.pop_by(limit)
    }

    /// Its turn is over. What it did not come to stays for another one.
    pub(crate) fn close(&mut self) {
        let switch = std::mem::replace(&mut self.open, NOBODY);
        while let Some(entry) = self.at_hand.pop() {
            self.put_in_ring(self.current, switch, entry);
        }
    }

    /// Takes all events out, in no order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Key, E)> {
        self.counts = [0; RING as usize];
        let near = self.ring.iter_mut().flat_map(|list| list.drain(..));
        let far = self.far.drain().map(|Reverse((entry, _))| entry);
        near.chain(far).map(|entry| (entry.key, entry.event))
    }
}
