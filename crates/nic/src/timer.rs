//! All timers of all queue pairs, in one place.
//!
//! Every acknowledgement moves a deadline, so moving one must be free: the queue pair stores its true deadlines, and
//! the queue holds for each timer an entry that is never later than the deadline. An entry that comes up early goes
//! back with the true one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use railnet_core::Time;
use railnet_core::prefetch::prefetch;

/// What a NIC waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Timer {
    /// The local acknowledgement timeout of a requester with unacknowledged packets.
    Acknowledgement,
    /// The wait that a receiver-not-ready NAK asked for.
    ReceiverNotReady,
    /// The rate limiter: when the queue pair may send its next packet.
    Pace,
    /// Congestion control's own clock (decay, recovery, increase).
    CongestionControl,
    /// Selective repeat: how long a packet may be overtaken before it is taken for lost.
    Reordering,
}

impl Timer {
    pub(crate) const COUNT: usize = 5;

    /// Where its deadline is among those of a queue pair: those that every packet asks for are first, in one line of the cache.
    #[inline]
    const fn place(self) -> usize {
        match self {
            Self::Acknowledgement => 0,
            Self::Pace => 1,
            Self::CongestionControl => 2,
            Self::ReceiverNotReady => 3,
            Self::Reordering => 4,
        }
    }
}

/// The deadlines of one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Deadlines([Deadline; Timer::COUNT]);

#[derive(Clone, Copy, Debug)]
struct Deadline {
    due: Time,
    /// When the queue's valid entry comes up; `NEVER` when it has none.
    queued: Time,
}

impl Deadlines {
    pub(crate) const NONE: Self = Self([Deadline { due: Time::NEVER, queued: Time::NEVER }; Timer::COUNT]);

    /// Prefetches the deadlines that every packet needs.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.0[0].due);
        prefetch(&self.0[1].queued);
    }

    #[inline]
    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.0[timer.place()].due.is_set()
    }

    #[inline]
    pub(crate) fn clear(&mut self, timer: Timer) {
        self.0[timer.place()].due = Time::NEVER;
    }

    pub(crate) fn clear_all(&mut self) {
        for deadline in &mut self.0 {
            deadline.due = Time::NEVER;
        }
    }
}

/// When which queue pair is to be asked, by slot, and for what.
type Entry = (Time, u32, Timer);

/// What all queue pairs wait for.
///
/// Most timers are set for the same span from now on, each of its kind, so they come up in the order in which they were set:
/// these wait in line. What would have to go before the last one of its line is in the heap.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    /// The first of all, which is in none of the others.
    first: Option<Entry>,
    lines: [VecDeque<Entry>; Timer::COUNT],
    heap: BinaryHeap<Reverse<Entry>>,
}

impl TimerQueue {
    /// Sets the deadline of a timer.
    #[inline]
    pub(crate) fn set(&mut self, deadlines: &mut Deadlines, slot: u32, timer: Timer, at: Time) {
        let deadline = &mut deadlines.0[timer.place()];
        deadline.due = at;
        if at < deadline.queued {
            deadline.queued = at;
            self.put((at, slot, timer));
        }
    }

    fn put(&mut self, entry: Entry) {
        let entry = match &mut self.first {
            Some(first) if *first <= entry => entry,
            Some(first) => std::mem::replace(first, entry),
            None => {
                self.first = Some(entry);
                return;
            }
        };
        let line = &mut self.lines[entry.2 as usize];
        if line.back().is_none_or(|last| *last <= entry) {
            line.push_back(entry);
        } else {
            self.heap.push(Reverse(entry));
        }
    }

    /// Prefetches the next entry.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.first);
    }

    /// When the next entry comes up. It may prove early.
    #[inline]
    pub(crate) fn next(&self) -> Option<(Time, Timer)> {
        self.first.map(|(at, _, timer)| (at, timer))
    }

    /// The next entry that came up by `now`: which queue pair to ask whether it is really due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<Entry> {
        let entry = self.first.filter(|(at, _, _)| *at <= now)?;
        self.first = self.take_next();
        Some(entry)
    }

    fn take_next(&mut self) -> Option<Entry> {
        let lines = self.lines.iter_mut().filter(|line| !line.is_empty());
        let line = lines.min_by_key(|line| line.front().copied());
        let in_heap = self.heap.peek().map(|Reverse(entry)| *entry);
        match (line, in_heap) {
            (Some(line), Some(in_heap)) if line.front().is_some_and(|first| *first > in_heap) => {
                self.heap.pop();
                Some(in_heap)
            }
            (Some(line), _) => line.pop_front(),
            (None, _) => self.heap.pop().map(|Reverse(entry)| entry),
        }
    }

    /// Whether a popped entry means that the timer fires now; if not, it is queued again as needed.
    pub(crate) fn fires(&mut self, deadlines: &mut Deadlines, now: Time, entry: Entry) -> bool {
        let (at, slot, timer) = entry;
        let deadline = &mut deadlines.0[timer.place()];
        if deadline.queued != at {
            return false;
        }
        deadline.queued = Time::NEVER;
        let due = deadline.due;
        if due <= now {
            deadline.due = Time::NEVER;
            return true;
        }
        if due.is_set() {
            self.set(deadlines, slot, timer, due);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_back_and_forth_fires_once_at_its_last_place() {
        let (mut queue, mut deadlines) = (TimerQueue::default(), Deadlines::NONE);
        let at = Time::from_ps;
        queue.set(&mut deadlines, 7, Timer::Acknowledgement, at(10));
        queue.set(&mut deadlines, 7, Timer::Acknowledgement, at(30));
        queue.set(&mut deadlines, 7, Timer::Acknowledgement, at(20));
        let mut fired = Vec::new();
        for now in 0..50 {
            while let Some(entry) = queue.pop(at(now)) {
                if queue.fires(&mut deadlines, at(now), entry) {
                    fired.push(now);
                }
            }
        }
        assert_eq!(fired, [20]);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn entries_come_up_in_order_whatever_the_order_they_are_set_in() {
        let timers = [Timer::Acknowledgement, Timer::ReceiverNotReady, Timer::Pace, Timer::CongestionControl];
        let mut random = railnet_core::Random::stream(1, "timers", 0);
        let (mut queue, mut waiting) = (TimerQueue::default(), Vec::new());
        let mut last = (Time::ZERO, 0, Timer::Acknowledgement);
        for _ in 0..20_000 {
            if random.below(2) == 0 {
                let later = if random.below(4) == 0 { random.below(90) } else { 55 };
                let at = Time::from_ps(last.0.as_ps() + later);
                let entry = (at, random.below(8) as u32, *random.pick(&timers));
                queue.set(&mut Deadlines::NONE.clone(), entry.1, entry.2, at);
                waiting.push(entry);
            } else if let Some(entry) = queue.pop(Time::NEVER) {
                waiting.sort_unstable();
                assert_eq!(entry, waiting.remove(0));
                last = entry;
            } else {
                assert!(waiting.is_empty());
            }
            let first = waiting.iter().min().map(|(at, _, timer)| (*at, *timer));
            assert_eq!(queue.next(), first);
        }
    }

    #[test]
    fn a_cleared_timer_never_fires() {
        let (mut queue, mut deadlines) = (TimerQueue::default(), Deadlines::NONE);
        queue.set(&mut deadlines, 0, Timer::Pace, Time::from_ps(5));
        deadlines.clear(Timer::Pace);
        let entry = queue.pop(Time::from_ps(9)).unwrap();
        assert!(!queue.fires(&mut deadlines, Time::from_ps(9), entry));
        assert!(queue.pop(Time::from_ps(100)).is_none());
    }
}
