//! All timers of all queue pairs, in one place.
//!
//! Every acknowledgement moves a deadline, so moving one must be free: the queue pair stores its true deadlines, and
//! the heap holds for each timer an entry that is never later than the deadline. An entry that comes up early goes
//! back with the true one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::Time;

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
}

/// The deadlines of one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Deadlines {
    due: [Time; Timer::COUNT],
    /// When the heap's valid entry for each timer comes up; `NEVER` when it has none.
    queued: [Time; Timer::COUNT],
}

impl Deadlines {
    pub(crate) const NONE: Self =
        Self { due: [Time::NEVER; Timer::COUNT], queued: [Time::NEVER; Timer::COUNT] };

    /// Looks at the first and the last of them, and says nothing of use.
    #[inline]
    pub(crate) fn look(&self) -> u32 {
        (self.due[0].as_ps() ^ self.queued[Timer::COUNT - 1].as_ps()) as u32
    }

    #[inline]
    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.due[timer as usize].is_set()
    }

    #[inline]
    pub(crate) fn clear(&mut self, timer: Timer) {
        self.due[timer as usize] = Time::NEVER;
    }

    pub(crate) fn clear_all(&mut self) {
        self.due = [Time::NEVER; Timer::COUNT];
    }
}

/// The heap over all queue pairs, by slot.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    heap: BinaryHeap<Reverse<(Time, u32, Timer)>>,
}

impl TimerQueue {
    /// Sets the deadline of a timer.
    #[inline]
    pub(crate) fn set(&mut self, deadlines: &mut Deadlines, slot: u32, timer: Timer, at: Time) {
        let index = timer as usize;
        deadlines.due[index] = at;
        if at < deadlines.queued[index] {
            deadlines.queued[index] = at;
            self.heap.push(Reverse((at, slot, timer)));
        }
    }

    /// When the next entry comes up. It may prove early.
    pub(crate) fn next(&self) -> Option<(Time, Timer)> {
        self.heap.peek().map(|Reverse((at, _, timer))| (*at, *timer))
    }

    /// The next entry that came up by `now`: which queue pair to ask whether it is really due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, u32, Timer)> {
        let Reverse((at, _, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Whether a popped entry means that the timer fires now; if not, it is queued again as needed.
    pub(crate) fn fires(&mut self, deadlines: &mut Deadlines, now: Time, entry: (Time, u32, Timer)) -> bool {
        let (at, slot, timer) = entry;
        let index = timer as usize;
        if deadlines.queued[index] != at {
            return false;
        }
        deadlines.queued[index] = Time::NEVER;
        let due = deadlines.due[index];
        if due <= now {
            deadlines.due[index] = Time::NEVER;
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
    fn a_cleared_timer_never_fires() {
        let (mut queue, mut deadlines) = (TimerQueue::default(), Deadlines::NONE);
        queue.set(&mut deadlines, 0, Timer::Pace, Time::from_ps(5));
        deadlines.clear(Timer::Pace);
        let entry = queue.pop(Time::from_ps(9)).unwrap();
        assert!(!queue.fires(&mut deadlines, Time::from_ps(9), entry));
        assert!(queue.pop(Time::from_ps(100)).is_none());
    }
}
