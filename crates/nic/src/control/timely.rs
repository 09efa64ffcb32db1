//! TIMELY (Mittal et al., SIGCOMM 2015): the sender moves its rate by how fast the round trip grows.
//!
//! Below one threshold the rate always rises, above another it always falls; between them the gradient of the round trip
//! decides. The gradient tells that a queue grows, not how long it is: flows settle at any split of the link, which
//! "ECN or Delay" (Zhu et al., CoNEXT 2016) shows. The paper looks at each completion of a segment, the HPCC paper's ns-3
//! runs once in a round trip; [`TimelyParameters`] tells them apart. Rates are bits per second and delays picoseconds.
//!
//! Only a requester measures round trips: the answers to READs go out at whatever rate its own requests have brought
//! about.

use railnet_core::{Bytes, Rate, Span, Time};

use super::{Acknowledged, CongestionControl};

/// What can be set. [`TimelyParameters::paper`] and [`TimelyParameters::hpcc`] are published sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelyParameters {
    /// Below this round trip the rate rises, whatever the gradient (T_low).
    pub low: Span,
    /// Above this round trip the rate falls, whatever the gradient (T_high).
    pub high: Span,
    /// The round trip that changes are measured against; the same for all flows.
    pub round_trip_least: Span,
    /// The weight of a new change in their average, as (numerator, denominator).
    pub weight: (u32, u32),
    /// Beta, the strength of a cut, as (numerator, denominator).
    pub beta: (u32, u32),
    /// Delta, the additive increase.
    pub additive: Rate,
    /// The increase after `hyper_after` increases in a row.
    pub hyper: Rate,
    /// Increases in a row before the hyper increase.
    pub hyper_after: u8,
    /// Increases below `low` count and become hyper too; otherwise only those for the gradient's sake.
    pub hyper_below_low: bool,
    /// A round trip counts when its packet left after the last change of the rate; otherwise every one does.
    pub once_each_round_trip: bool,
    /// Never slower than this.
    pub minimum: Rate,
    /// Bytes between two packets that ask for an acknowledgement: what the paper calls a segment.
    pub burst: Bytes,
}

impl TimelyParameters {
    /// The parameters of the paper, for a port of this rate: it had steps of 10 Mb/s at 10 Gb/s, and five of them for
    /// a hyper increase. The weight is not in the paper: "ECN or Delay" gives it.
    pub fn paper(line: Rate) -> Self {
        let additive = Rate::from_bps(line.as_bps() / 1_000);
        Self {
            low: Span::from_us(50),
            high: Span::from_us(500),
            round_trip_least: Span::from_us(20),
            weight: (7, 8),
            beta: (4, 5),
            additive,
            hyper: Rate::from_bps(additive.as_bps() * 5),
            hyper_after: 5,
            hyper_below_low: false,
            once_each_round_trip: false,
            minimum: Rate::mbps(100),
            burst: Bytes::kib(16),
        }
    }

    /// The set of the HPCC paper's ns-3 runs: every packet is acknowledged, one change in a round trip, every increase
    /// counts towards the hyper increase, and the floor is higher.
    pub fn hpcc(line: Rate) -> Self {
        Self {
            hyper_below_low: true,
            once_each_round_trip: true,
            minimum: Rate::gbps(1),
            burst: Bytes(1),
            ..Self::paper(line)
        }
    }
}

/// The sender's state.
#[derive(Clone, Debug)]
pub struct Timely {
    line: u64,
    current: u64,
    /// The last round trip; 0 before the first.
    previous: Span,
    /// The average change of the round trip, in picoseconds.
    difference: i64,
    /// When the last round trip counted.
    counted: Time,
    interval: u16,
    /// Increases in a row.
    increases: u8,
}

impl Timely {
    fn increase(&mut self, parameters: &TimelyParameters, counts: bool) {
        let is_hyper = counts && self.increases >= parameters.hyper_after;
        let step = if is_hyper { parameters.hyper } else { parameters.additive };
        self.current = (self.current + step.as_bps()).min(self.line);
        self.increases = self.increases.saturating_add(u8::from(counts));
    }

    /// Cuts by `beta × part / whole` of the rate.
    fn decrease(&mut self, parameters: &TimelyParameters, part: u64, whole: u64) {
        let (numerator, denominator) = parameters.beta;
        let lost = u128::from(self.current) * u128::from(numerator) * u128::from(part)
            / (u128::from(denominator.max(1)) * u128::from(whole.max(1)));
        let left = u128::from(self.current).saturating_sub(lost) as u64;
        self.current = left.max(parameters.minimum.as_bps().min(self.line));
        self.increases = 0;
    }

    fn average_change(&mut self, parameters: &TimelyParameters, change: i64) {
        let (numerator, denominator) = parameters.weight;
        let (new, whole) = (i128::from(numerator.min(denominator)), i128::from(denominator.max(1)));
        let sum = i128::from(self.difference) * (whole - new) + i128::from(change) * new;
        self.difference = (sum / whole) as i64;
    }
}

impl CongestionControl for Timely {
    type Parameters = TimelyParameters;

    fn new(parameters: &TimelyParameters, line: Rate, mtu: Bytes) -> Self {
        let interval = parameters.burst.as_u64() / mtu.as_u64().max(1);
        Self {
            line: line.as_bps(),
            current: line.as_bps(),
            previous: Span::ZERO,
            difference: 0,
            counted: Time::ZERO,
            interval: interval.clamp(1, u64::from(u16::MAX)) as u16,
            increases: 0,
        }
    }

    fn on_sent(&mut self, _parameters: &TimelyParameters, _now: Time, _bytes: Bytes) {}

    fn on_ack(&mut self, parameters: &TimelyParameters, now: Time, acknowledged: &Acknowledged<'_>) {
        let Some(round_trip) = acknowledged.round_trip else { return };
        if parameters.once_each_round_trip && now.since(self.counted) < round_trip {
            return;
        }
        self.counted = now;
        let previous = std::mem::replace(&mut self.previous, round_trip);
        if previous == Span::ZERO {
            // One round trip has no gradient.
            return;
        }
        self.average_change(parameters, round_trip.as_ps() as i64 - previous.as_ps() as i64);
        if round_trip < parameters.low {
            self.increase(parameters, parameters.hyper_below_low);
        } else if round_trip > parameters.high {
            self.decrease(parameters, (round_trip - parameters.high).as_ps(), round_trip.as_ps());
        } else if self.difference <= 0 {
            self.increase(parameters, true);
        } else {
            let least = parameters.round_trip_least.as_ps();
            self.decrease(parameters, self.difference.unsigned_abs(), least);
        }
    }

    fn on_notification(&mut self, _parameters: &TimelyParameters, _now: Time) {}

    fn on_timeout(&mut self, _parameters: &TimelyParameters, _now: Time) {}

    fn handle_timer(&mut self, _parameters: &TimelyParameters, _now: Time) {}

    fn next_timer(&self) -> Time {
        Time::NEVER
    }

    #[inline]
    fn rate(&self) -> Option<Rate> {
        (self.current < self.line).then_some(Rate::from_bps(self.current))
    }

    #[inline]
    fn window(&self) -> Option<Bytes> {
        None
    }

    #[inline]
    fn ack_interval(&self) -> Option<u16> {
        Some(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::gbps(100);

    fn fresh(parameters: &TimelyParameters) -> Timely {
        Timely::new(parameters, LINE, Bytes(4096))
    }

    /// Measures a packet that leaves just after the last one was measured.
    fn measure(state: &mut Timely, parameters: &TimelyParameters, round_trip: Span) -> u64 {
        let acknowledged =
            Acknowledged { bytes: Bytes(16_384), round_trip: Some(round_trip), ..Acknowledged::NOTHING };
        state.on_ack(parameters, state.counted + round_trip, &acknowledged);
        state.rate().unwrap_or(LINE).as_bps()
    }

    /// A flow at half the line rate that has just seen this round trip for long.
    fn at_half(parameters: &TimelyParameters, round_trip: Span) -> Timely {
        Timely { current: LINE.as_bps() / 2, previous: round_trip, ..fresh(parameters) }
    }

    #[test]
    fn it_starts_at_line_rate_and_one_round_trip_tells_nothing() {
        let parameters = TimelyParameters::paper(LINE);
        let mut state = fresh(&parameters);
        assert_eq!(state.rate(), None);
        assert_eq!(measure(&mut state, &parameters, Span::from_ms(1)), LINE.as_bps());
        assert_eq!(state.ack_interval(), Some(4), "16 KiB of packets of 4096");
    }

    #[test]
    fn below_the_low_threshold_the_rate_rises_by_delta() {
        let parameters = TimelyParameters::paper(LINE);
        let mut state = at_half(&parameters, Span::from_us(10));
        // Rising steeply, but still below 50 µs.
        for step in 1..=8 {
            let rate = measure(&mut state, &parameters, Span::from_us(10 + 4 * step));
            assert_eq!(rate, 50_000_000_000 + step * 100_000_000);
        }
    }

    #[test]
    fn above_the_high_threshold_it_falls_by_beta_of_the_excess() {
        let parameters = TimelyParameters::paper(LINE);
        // Falling, but still above 500 µs: 1 - 0.8 (1 - 500/800) = 0.7.
        let mut state = at_half(&parameters, Span::from_us(900));
        assert_eq!(measure(&mut state, &parameters, Span::from_us(800)), 35_000_000_000);
    }

    #[test]
    fn between_them_a_growing_round_trip_cuts_in_proportion_to_its_gradient() {
        let parameters = TimelyParameters::paper(LINE);
        let mut state = at_half(&parameters, Span::from_us(100));
        // The average of the change is 7/8 of 8 µs; against 20 µs that is 0.35, times 0.8 is 0.28.
        assert_eq!(measure(&mut state, &parameters, Span::from_us(108)), 36_000_000_000);
        // No change: what is left of the average, 0.875 µs, still cuts: 0.8 × 0.875 / 20 = 0.035.
        assert_eq!(measure(&mut state, &parameters, Span::from_us(108)), 34_740_000_000);
        // A gradient beyond 1 / beta leaves the floor, not less.
        let rate = measure(&mut state, &parameters, Span::from_us(400));
        assert_eq!(rate, parameters.minimum.as_bps());
    }

    #[test]
    fn five_increases_in_a_row_make_the_next_ones_hyper() {
        let parameters = TimelyParameters::paper(LINE);
        let mut state = at_half(&parameters, Span::from_us(200));
        let mut expected = 50_000_000_000;
        for step in 1..=7 {
            expected += if step <= 5 { 100_000_000 } else { 500_000_000 };
            let rate = measure(&mut state, &parameters, Span::from_us(200 - step));
            assert_eq!(rate, expected, "step {step}");
        }
        // A cut ends the row.
        let low = measure(&mut state, &parameters, Span::from_us(210));
        state.difference = 0;
        assert_eq!(measure(&mut state, &parameters, Span::from_us(209)), low + 100_000_000);
    }

    #[test]
    fn the_hpcc_set_is_hyper_below_the_low_threshold_too() {
        let parameters = TimelyParameters::hpcc(LINE);
        let mut state = at_half(&parameters, Span::from_us(10));
        for _ in 0..5 {
            measure(&mut state, &parameters, Span::from_us(10));
        }
        let five = state.current;
        assert_eq!(five, 50_500_000_000);
        assert_eq!(measure(&mut state, &parameters, Span::from_us(10)), five + 500_000_000);
    }

    #[test]
    fn the_hpcc_set_moves_once_in_a_round_trip() {
        for (parameters, steps) in [(TimelyParameters::paper(LINE), 4), (TimelyParameters::hpcc(LINE), 2)] {
            let mut state = at_half(&parameters, Span::from_us(10));
            for us in [10, 13, 17, 20] {
                let round_trip = Some(Span::from_us(10));
                let acknowledged = Acknowledged { bytes: Bytes(16_384), round_trip, ..Acknowledged::NOTHING };
                state.on_ack(&parameters, Time::ZERO + Span::from_us(us), &acknowledged);
            }
            assert_eq!(state.current, 50_000_000_000 + steps * 100_000_000);
        }
    }

    #[test]
    fn the_rate_comes_back_to_the_line_and_no_further() {
        let parameters = TimelyParameters::hpcc(LINE);
        let mut state = at_half(&parameters, Span::from_us(10));
        for _ in 0..120 {
            measure(&mut state, &parameters, Span::from_us(10));
        }
        assert_eq!(state.rate(), None);
        assert_eq!(state.current, LINE.as_bps());
    }
}
