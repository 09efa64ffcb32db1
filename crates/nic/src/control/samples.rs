//! Packets whose round trip is being measured.

use railnet_core::{Psn, Span, Time};

/// How many packets of a queue pair are measured at once. One would do to follow the delay, but flows that share a queue
/// have the same round trip: their single samples fall into step, and one flow can meet the peak of the queue each time
/// while the others never do.
const SAMPLES: usize = 4;

/// More than any round trip.
const NOT_MEASURED: Span = Span::from_ps(u64::MAX);

/// Some of the packets in flight and when they left, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    sent: [Time; SAMPLES],
    psn: [Psn; SAMPLES],
    /// The shortest round trip so far.
    shortest: Span,
    first: u8,
    count: u8,
}

impl Samples {
    pub(crate) const NONE: Self = Self {
        sent: [Time::ZERO; SAMPLES],
        psn: [Psn::new(0); SAMPLES],
        shortest: NOT_MEASURED,
        first: 0,
        count: 0,
    };

    fn place(&self, index: u8) -> usize {
        usize::from(self.first + index) % SAMPLES
    }

    /// A packet leaves that will be answered at once, with `in_flight` packets before it: it is measured when its turn
    /// has come, so that the samples spread over all that is in flight.
    pub(crate) fn note(&mut self, psn: Psn, now: Time, in_flight: u32) {
        if usize::from(self.count) == SAMPLES {
            return;
        }
        if self.count > 0 {
            let newest = self.psn[self.place(self.count - 1)];
            let since = psn.value().wrapping_sub(newest.value()) & Psn::MASK;
            if since * (SAMPLES as u32) < in_flight {
                return;
            }
        }
        let place = self.place(self.count);
        (self.psn[place], self.sent[place]) = (psn, now);
        self.count += 1;
    }

    /// Everything before `unacked` was answered now: the round trip of the newest measured packet among it.
    pub(crate) fn take(&mut self, unacked: Psn, now: Time) -> Option<Span> {
        let mut newest = None;
        while self.count > 0 && self.psn[self.place(0)].is_before(unacked) {
            newest = Some(now.since(self.sent[self.place(0)]));
            self.first = self.place(1) as u8;
            self.count -= 1;
        }
        self.shortest = newest.map_or(self.shortest, |newest| self.shortest.min(newest));
        newest
    }

    /// Those of the measured packets that `has_arrived` names were answered now, ahead of others: the round trip of the
    /// newest of them.
    pub(crate) fn take_arrived(&mut self, has_arrived: impl Fn(Psn) -> bool, now: Time) -> Option<Span> {
        let mut newest = None;
        self.retain(|psn, sent| {
            let arrived = has_arrived(psn);
            if arrived {
                newest = Some(now.since(sent));
            }
            !arrived
        });
        self.shortest = newest.map_or(self.shortest, |newest| self.shortest.min(newest));
        newest
    }

    /// The shortest round trip so far, if any was measured.
    pub(crate) fn shortest(&self) -> Option<Span> {
        (self.shortest != NOT_MEASURED).then_some(self.shortest)
    }

    /// This packet is sent again: an answer might be to either transmission (Karn's rule).
    pub(crate) fn forget(&mut self, again: Psn) {
        self.retain(|psn, _| psn != again);
    }

    fn retain(&mut self, mut keep: impl FnMut(Psn, Time) -> bool) {
        // Each goes from the front to the back, or away.
        for _ in 0..self.count {
            let at = self.place(0);
            let (psn, sent) = (self.psn[at], self.sent[at]);
            self.first = self.place(1) as u8;
            self.count -= 1;
            if keep(psn, sent) {
                let place = self.place(self.count);
                (self.psn[place], self.sent[place]) = (psn, sent);
                self.count += 1;
            }
        }
    }

    /// Nothing in flight can be measured any more: an answer might be to another transmission (Karn's rule).
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    #[test]
    fn a_measured_packet_tells_its_round_trip_once() {
        let mut samples = Samples::NONE;
        samples.note(Psn::new(7), at(10), 0);
        assert_eq!(samples.take(Psn::new(7), at(20)), None, "only what came before 7 was answered");
        assert_eq!(samples.take(Psn::new(8), at(30)), Some(Span::from_us(20)));
        assert_eq!(samples.take(Psn::new(8), at(40)), None);
    }

    #[test]
    fn samples_spread_over_the_window_and_across_the_wrap() {
        let mut samples = Samples::NONE;
        let first = Psn::new(Psn::MASK - 20);
        let mut measured = Vec::new();
        // A window of 40 packets, answered one by one.
        for step in 0..400 {
            let psn = first.plus(step);
            let unacked = first.plus(step.saturating_sub(39));
            if samples.take(unacked, at(step.into())).is_some() {
                measured.push(step - 40);
            }
            samples.note(psn, at(step.into()), step.min(39));
        }
        let steady = &measured[8..];
        assert!(steady.len() > 20);
        for pair in steady.windows(2) {
            assert!((9..=13).contains(&(pair[1] - pair[0])), "{measured:?}");
        }
    }

    #[test]
    fn an_answer_to_several_tells_of_the_newest() {
        let mut samples = Samples::NONE;
        for step in 0..6 {
            samples.note(Psn::new(step), at(step.into()), 0);
        }
        assert_eq!(
            samples.take(Psn::new(100), at(50)),
            Some(Span::from_us(47)),
            "the fourth was the last with room"
        );
        samples.note(Psn::new(6), at(60), 0);
        samples.clear();
        assert_eq!(samples.take(Psn::new(100), at(70)), None);
    }

    #[test]
    fn one_that_arrives_ahead_of_others_is_measured_then_and_one_sent_again_never() {
        // However the ring is turned.
        for turn in 0..SAMPLES as u32 {
            let mut samples = Samples::NONE;
            for psn in 0..turn {
                samples.note(Psn::new(psn), at(0), 0);
            }
            samples.take(Psn::new(turn), at(0));
            for psn in [10, 11, 12, 13] {
                samples.note(Psn::new(psn), at(psn.into()), 0);
            }
            let early = |psn: Psn| psn.value() == 11 || psn.value() == 12;
            assert_eq!(samples.take_arrived(early, at(20)), Some(Span::from_us(8)));
            assert_eq!(samples.take_arrived(early, at(30)), None);
            samples.forget(Psn::new(10));
            assert_eq!(samples.take(Psn::new(13), at(40)), None, "10 was sent again, 11 and 12 are done");
            assert_eq!(samples.take(Psn::new(14), at(50)), Some(Span::from_us(37)));
            assert_eq!(samples.shortest(), Some(Span::from_us(if turn == 0 { 8 } else { 0 })));
        }
    }
}
