//! Communication that overlaps in time: calls in which the same ranks take part share the interconnect.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Span, Time};
use smallvec::SmallVec;

use super::{Asked, Begun, Carrier, Network, NoPrice, Price};

/// Carries calls by their prices; those that need the interconnect share it with others of their ranks.
#[derive(Debug)]
pub(super) struct Paced<'a, N> {
    network: &'a mut N,
    /// When each that is under way ends, in what order they began, and its slot.
    ends: BinaryHeap<Reverse<(Time, u64, u32)>>,
    under_way: Vec<Option<Call>>,
    started: u64,
    /// Calls under way that need the interconnect, in the order in which they began.
    on_network: Vec<u32>,
    /// The parts of the interconnect that the calls of each worker need, together.
    needs: Vec<f64>,
}

/// A call under way.
#[derive(Debug)]
struct Call {
    pace: Pace,
    workers: SmallVec<[u32; 2]>,
}

impl<'a, N: Network> Paced<'a, N> {
    /// A carrier of the calls of so many workers.
    pub(super) fn new(network: &'a mut N, workers: usize) -> Self {
        Self {
            network,
            ends: BinaryHeap::new(),
            under_way: Vec::new(),
            started: 0,
            on_network: Vec::new(),
            needs: vec![0.0; workers],
        }
    }

    /// When the next call ends.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.ends.peek().map(|Reverse((time, ..))| *time)
    }

    /// Calls that end now are added to `ended`, in order.
    pub(super) fn advance(&mut self, now: Time, ended: &mut Vec<u32>) {
        while self.ends.peek().is_some_and(|Reverse((time, ..))| *time == now) {
            let Some(Reverse((_, _, slot))) = self.ends.pop() else { break };
            // What was slowed down since, or is over, has another end.
            if self.under_way[slot as usize].as_ref().is_some_and(|call| call.pace.end == now) {
                self.end(now, slot);
                ended.push(slot);
            }
        }
    }

    /// The needs of calls have changed.
    fn share(&mut self, now: Time) {
        for slot in &self.on_network {
            let Some(call) = &mut self.under_way[*slot as usize] else { continue };
            let needs = call.workers.iter().map(|worker| self.needs[*worker as usize]);
            let needs = needs.fold(0.0, f64::max);
            if call.pace.share(now, needs) {
                self.ends.push(Reverse((call.pace.end, self.started, *slot)));
                self.started += 1;
            }
        }
    }

    fn end(&mut self, now: Time, slot: u32) {
        let Some(Call { pace, workers }) = self.under_way[slot as usize].take() else { return };
        let need = pace.need();
        if need > 0.0 {
            self.on_network.retain(|other| *other != slot);
            for worker in workers {
                let needs = &mut self.needs[worker as usize];
                *needs = if self.on_network.is_empty() { 0.0 } else { *needs - need };
            }
            self.share(now);
        }
    }
}

impl<N: Network> Carrier for Paced<'_, N> {
    type Plan = ();

    fn price(&mut self, asked: &Asked<'_>) -> Result<(Price, ()), NoPrice> {
        self.network.price(asked).map(|price| (price, ()))
    }

    fn begin(&mut self, now: Time, slot: u32, begun: &Begun<'_, ()>) {
        let pace = Pace::new(now, begun.price.time, begun.price.network_permille);
        let (end, need) = (pace.end, pace.need());
        let workers: SmallVec<[u32; 2]> = begun.tickets.iter().map(|ticket| ticket.worker).collect();
        for worker in &workers {
            self.needs[*worker as usize] += need;
        }
        if slot as usize >= self.under_way.len() {
            self.under_way.resize_with(slot as usize + 1, || None);
        }
        self.under_way[slot as usize] = Some(Call { pace, workers });
        self.ends.push(Reverse((end, self.started, slot)));
        self.started += 1;
        if need > 0.0 {
            self.on_network.push(slot);
            self.share(now);
        }
    }
}

/// A call under way, as far as others are concerned.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Pace {
    /// When it ends, if nothing changes.
    pub(super) end: Time,
    /// The part of the interconnect that it needs to run at full speed.
    need: f64,
    /// How fast it runs, of full speed.
    speed: f64,
}

impl Pace {
    /// A call that would take so long alone, with the interconnect busy for a part of that.
    pub(super) fn new(now: Time, alone: Span, network_permille: u32) -> Self {
        Self { end: now + alone, need: f64::from(network_permille) / 1_000.0, speed: 1.0 }
    }

    /// The part of the interconnect that it needs.
    pub(super) const fn need(&self) -> f64 {
        self.need
    }

    /// The needs of all that share its ranks have changed. Whether its end has.
    pub(super) fn share(&mut self, now: Time, needs: f64) -> bool {
        let speed = if needs > 1.0 { 1.0 / needs } else { 1.0 };
        if (speed - self.speed).abs() < 1e-12 || self.need == 0.0 {
            return false;
        }
        let left = (self.end - now).as_ps() as f64 * self.speed / speed;
        self.end = now + Span::from_ps(left.round() as u64);
        self.speed = speed;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_need_all_of_it_take_turns() {
        let mut first = Pace::new(Time::ZERO, Span::from_us(10), 1_000);
        // Another one joins after 4 µs, for 6 µs of time: three of the six that are left are done.
        let at = |us: u64| Time::ZERO + Span::from_us(us);
        assert!(first.share(at(4), 2.0));
        assert_eq!(first.end, at(16));
        assert!(first.share(at(10), 1.0));
        assert_eq!(first.end, at(13));
    }

    #[test]
    fn those_that_leave_room_for_each_other_are_not_slowed_down() {
        let mut one = Pace::new(Time::ZERO, Span::from_us(10), 400);
        assert!(!one.share(Time::ZERO, 0.9));
        let mut local = Pace::new(Time::ZERO, Span::from_us(10), 0);
        assert!(!local.share(Time::ZERO, 3.0));
    }
}
