//! HPCC (Li et al., SIGCOMM 2019): every switch writes into the packet how loaded its link is, the receiver sends that
//! back, and the sender sets window and rate so that the busiest link of the path is 95 % full and no queue stands.
//!
//! The load of a link is what it sent between two records plus what waited, in parts of what it can carry in a round
//! trip. Over a target load the rate is divided by the excess, below it a small step is added; either way it is computed
//! from a reference that moves once in a round trip, so that several acknowledgements of one round trip do not react to
//! the same queue several times.
//!
//! One acknowledgement for each packet, as in the paper: each brings a newer record. Loads are fixed point and rates
//! whole bits per second, so that every machine computes the same. READ responses are not acknowledged, so nothing
//! slows them down.

use railnet_core::{Bytes, Psn, Rate, Span, Time};
use railnet_wire::{Hop, Telemetry};

use super::{Acknowledged, CongestionControl};

/// Fixed-point one for loads.
const ONE: u64 = 1 << 24;
/// More than this at once cannot be: packets of the largest size that began just before a record.
const SLACK_BITS: u64 = 2 * 4_400 * 8;

/// What can be set. [`HpccParameters::paper`] and [`HpccParameters::ns3`] are published sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HpccParameters {
    /// The load that is aimed at, as (numerator, denominator).
    pub target: (u32, u32),
    /// Round trips of small steps before the rate may rise to the target at once.
    pub stages_most: u8,
    /// The small step.
    pub additive: Rate,
    /// The round trip of the longest path when nothing waits. It is the same for all flows, so that they are fair.
    pub round_trip: Span,
    /// Never slower than this.
    pub minimum: Rate,
}

impl HpccParameters {
    /// The paper's set for a port of this rate and a network with this round trip: 95 %, five stages, and steps with
    /// which a hundred flows on a link add what the target leaves free.
    pub fn paper(line: Rate, round_trip: Span) -> Self {
        Self {
            target: (95, 100),
            stages_most: 5,
            additive: Rate::from_bps(line.as_bps() / 2_000),
            round_trip,
            minimum: Rate::from_bps(line.as_bps() / 1_000),
        }
    }

    /// The set of the authors' ns-3 runs: as the paper's, but every acknowledgement may use the whole headroom.
    pub fn ns3(line: Rate, round_trip: Span) -> Self {
        Self { stages_most: 0, ..Self::paper(line, round_trip) }
    }

    fn target_fixed(&self) -> u64 {
        let (numerator, denominator) = self.target;
        (u64::from(numerator) * ONE / u64::from(denominator.max(1))).max(1)
    }

    fn round_trip_ns(&self) -> u64 {
        (self.round_trip.as_ps() / 1_000).max(1)
    }
}

/// The sender's state.
#[derive(Clone, Debug)]
pub struct Hpcc {
    line: u64,
    /// The rate now, in bits per second.
    rate: u64,
    /// The rate that steps are computed from.
    reference: u64,
    /// What may be under way at `rate`.
    window: u64,
    /// The load of the busiest link, smoothed over a round trip.
    load: u64,
    /// The newest record. Few queue pairs of many send at a time.
    record: Option<Box<Telemetry>>,
    /// When it came.
    recorded: Time,
    /// Answers up to here were caused by what the reference was before it moved.
    moves_after: Psn,
    stage: u8,
}

impl Hpcc {
    /// The load of the busiest link in parts of 2^24, for tests and reports.
    pub fn load(&self) -> u64 {
        self.load
    }

    /// The rate that follows from the load, and the stage it leads to.
    fn step(&self, parameters: &HpccParameters) -> (u64, u8) {
        let target = parameters.target_fixed();
        let additive = parameters.additive.as_bps();
        let (rate, stage) = if self.load >= target || self.stage >= parameters.stages_most {
            let scaled = u128::from(self.reference) * u128::from(target) / u128::from(self.load.max(1));
            (scaled.min(u128::from(self.line)) as u64 + additive, 0)
        } else {
            (self.reference + additive, self.stage + 1)
        };
        (rate.clamp(parameters.minimum.as_bps().min(self.line), self.line), stage)
    }

    fn set_rate(&mut self, parameters: &HpccParameters, rate: u64) {
        self.rate = rate;
        self.window = Rate::from_bps(rate).bytes_in(parameters.round_trip).as_u64();
    }
}

/// The load of the busiest link of a path between two records, and the nanoseconds between them.
fn path_load(before: &Telemetry, now: &Telemetry, round_trip_ns: u64) -> Option<(u64, u64)> {
    let hops = before.hops().iter().zip(now.hops());
    let loads = hops.filter_map(|(before, now)| link_load(*before, *now, round_trip_ns));
    loads.max_by_key(|(load, _)| *load)
}

/// The load of one link between two records, and the nanoseconds between them; `None` where they tell nothing: the same
/// record twice, or one of another link, because the path has changed.
fn link_load(before: Hop, now: Hop, round_trip_ns: u64) -> Option<(u64, u64)> {
    let elapsed = now.since(before).as_ps() / 1_000;
    let rate = now.rate().as_bps();
    if elapsed == 0 || rate != before.rate().as_bps() {
        return None;
    }
    let capacity = (rate * elapsed / 1_000_000_000).max(1);
    let sent = now.sent_since(before).as_u64() * 8;
    if sent > capacity + SLACK_BITS {
        return None;
    }
    // The shorter of two queues: one that is on its way down, or that a single burst made, does not stand.
    let queued = now.queued().min(before.queued()).as_u64() * 8;
    let carried = (u128::from(rate) * u128::from(round_trip_ns) / 1_000_000_000).max(1) as u64;
    Some((sent * ONE / capacity + queued * ONE / carried, elapsed))
}

impl CongestionControl for Hpcc {
    type Parameters = HpccParameters;

    fn new(parameters: &HpccParameters, line: Rate, _mtu: Bytes) -> Self {
        let mut state = Self {
            line: line.as_bps(),
            rate: 0,
            reference: line.as_bps(),
            window: 0,
            load: ONE,
            record: None,
            recorded: Time::ZERO,
            moves_after: Psn::new(0),
            stage: 0,
        };
        state.set_rate(parameters, line.as_bps());
        state
    }

    fn on_sent(&mut self, _parameters: &HpccParameters, _now: Time, _bytes: Bytes) {}

    fn on_ack(&mut self, parameters: &HpccParameters, now: Time, acknowledged: &Acknowledged<'_>) {
        let Some(telemetry) = acknowledged.telemetry else { return };
        // The clocks of hops wrap: after a long silence two records cannot be compared.
        let is_recent = now.since(self.recorded) < Hop::TIME_WRAP / 2;
        self.recorded = now;
        let Some(mut record) = self.record.take() else {
            self.record = Some(Box::new(*telemetry));
            self.moves_after = acknowledged.sent;
            return;
        };
        let before = std::mem::replace(&mut *record, *telemetry);
        self.record = Some(record);
        if !is_recent {
            self.moves_after = acknowledged.sent;
            return;
        }
        let whole = parameters.round_trip_ns();
        let Some((load, elapsed)) = path_load(&before, telemetry, whole) else { return };
        let part = elapsed.min(whole);
        self.load = (self.load * (whole - part) + load * part) / whole;
        let (rate, stage) = self.step(parameters);
        self.set_rate(parameters, rate);
        if acknowledged.unacked.is_after(self.moves_after) {
            self.reference = rate;
            self.stage = stage;
            self.moves_after = acknowledged.sent;
        }
    }

    fn on_notification(&mut self, _parameters: &HpccParameters, _now: Time) {}

    // A loss needs no answer of its own: the queue that caused it was told.
    fn on_timeout(&mut self, _parameters: &HpccParameters, _now: Time) {}

    fn handle_timer(&mut self, _parameters: &HpccParameters, _now: Time) {}

    fn next_timer(&self) -> Time {
        Time::NEVER
    }

    #[inline]
    fn rate(&self) -> Option<Rate> {
        (self.rate < self.line).then_some(Rate::from_bps(self.rate))
    }

    #[inline]
    fn window(&self) -> Option<Bytes> {
        // One packet may always go: the rate limiter keeps windows that are smaller.
        Some(Bytes(self.window.max(1)))
    }

    #[inline]
    fn ack_interval(&self) -> Option<u16> {
        Some(1)
    }

    #[inline]
    fn wants_round_trips(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::gbps(100);
    const ROUND_TRIP: Span = Span::from_us(10);
    /// What a link carries in a round trip.
    const CARRIED: u64 = 125_000;

    fn parameters() -> HpccParameters {
        HpccParameters::ns3(LINE, ROUND_TRIP)
    }

    fn new(parameters: &HpccParameters) -> Hpcc {
        Hpcc::new(parameters, LINE, Bytes(4096))
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    /// A link that told at `us` to have sent so many bytes, with a queue.
    fn hop(us: u64, sent: u64, queued: u64) -> Hop {
        Hop::new(LINE, at(us), Bytes(sent), Bytes(queued))
    }

    /// An answer with records; sequence numbers count packets of the flow.
    fn answer(state: &mut Hpcc, parameters: &HpccParameters, us: u64, hops: &[Hop], unacked: u32, sent: u32) {
        let telemetry = hops.iter().copied().collect();
        let acknowledged = Acknowledged {
            bytes: Bytes(4096),
            telemetry: Some(&telemetry),
            unacked: Psn::new(unacked),
            sent: Psn::new(sent),
            ..Acknowledged::NOTHING
        };
        state.on_ack(parameters, at(us), &acknowledged);
    }

    fn close(found: u64, expected: f64) {
        assert!((found as f64 / expected - 1.0).abs() < 0.01, "{found} is not close to {expected}");
    }

    #[test]
    fn it_starts_at_line_rate_with_a_round_trip_under_way() {
        let state = new(&parameters());
        assert_eq!((state.rate(), state.window()), (None, Some(Bytes(CARRIED))));
        assert_eq!(state.next_timer(), Time::NEVER);
    }

    #[test]
    fn the_first_record_alone_says_nothing() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(5, 1 << 20, 5 << 20)], 1, 30);
        assert_eq!((state.rate(), state.load()), (None, ONE));
    }

    #[test]
    fn a_full_link_with_a_queue_is_left_in_proportion_to_the_excess() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(10, 0, CARRIED)], 1, 30);
        // A round trip later: all that the link carries, and a round trip's worth still waits. The load is 2.
        answer(&mut state, &parameters, 20, &[hop(20, CARRIED, CARRIED)], 2, 60);
        close(state.load(), 2.0 * ONE as f64);
        close(state.rate().unwrap().as_bps(), 100e9 * 0.95 / 2.0 + 50e6);
        close(state.window().unwrap().as_u64(), CARRIED as f64 * 0.95 / 2.0);
    }

    #[test]
    fn a_queue_on_its_way_down_counts_for_what_is_left() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(10, 0, 10 * CARRIED)], 1, 30);
        answer(&mut state, &parameters, 20, &[hop(20, CARRIED, 0)], 2, 60);
        close(state.load(), ONE as f64);
    }

    #[test]
    fn the_busiest_of_several_links_decides() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        let (quiet, busy) = (|us, sent| hop(us, sent, 0), |us, sent| hop(us, sent, CARRIED));
        answer(&mut state, &parameters, 10, &[quiet(10, 0), busy(10, 0), quiet(10, 0)], 1, 30);
        let later = [quiet(20, CARRIED / 4), busy(20, CARRIED / 2), quiet(20, CARRIED / 4)];
        answer(&mut state, &parameters, 20, &later, 2, 60);
        close(state.load(), 1.5 * ONE as f64);
    }

    #[test]
    fn a_sample_weighs_as_much_as_the_part_of_a_round_trip_it_is_about() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(10, 0, 0)], 1, 30);
        // A quarter of a round trip at half load: 1 × 3/4 + 0.5 × 1/4.
        let quarter = Hop::new(LINE, at(10) + ROUND_TRIP / 4, Bytes(CARRIED / 8), Bytes::ZERO);
        answer(&mut state, &parameters, 13, &[quarter], 2, 60);
        close(state.load(), 0.875 * ONE as f64);
        // After a pause the newest sample is all there is.
        let last = Hop::new(LINE, at(1010) + ROUND_TRIP / 4, Bytes(CARRIED / 8 + CARRIED * 10), Bytes::ZERO);
        answer(&mut state, &parameters, 1013, &[last], 3, 90);
        close(state.load(), 0.1 * ONE as f64);
    }

    #[test]
    fn the_reference_moves_once_in_a_round_trip() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(10, 0, CARRIED)], 1, 30);
        answer(&mut state, &parameters, 20, &[hop(20, CARRIED, CARRIED)], 2, 60);
        let once = state.rate().unwrap().as_bps();
        // Up to packet 30 all was sent before the first answer: they react to the same load, not one after the other.
        answer(&mut state, &parameters, 30, &[hop(30, 2 * CARRIED, CARRIED)], 30, 61);
        assert_eq!(state.rate().unwrap().as_bps(), once);
        answer(&mut state, &parameters, 40, &[hop(40, 3 * CARRIED, CARRIED)], 31, 62);
        assert_eq!(state.rate().unwrap().as_bps(), once, "this one is the new reference");
        answer(&mut state, &parameters, 50, &[hop(50, 4 * CARRIED, CARRIED)], 63, 90);
        close(state.rate().unwrap().as_bps(), once as f64 * 0.95 / 2.0 + 50e6);
    }

    #[test]
    fn below_the_target_it_takes_small_steps_for_five_round_trips_and_then_a_large_one() {
        let parameters = HpccParameters::paper(LINE, ROUND_TRIP);
        let mut state = Hpcc { reference: 10_000_000_000, ..new(&parameters) };
        let mut told = 0;
        let mut rates = Vec::new();
        for round in 0..8u64 {
            answer(
                &mut state,
                &parameters,
                10 * (round + 1),
                &[hop(10 * (round + 1), told, 0)],
                told as u32,
                1,
            );
            state.moves_after = Psn::new(0);
            told += CARRIED / 2;
            rates.push(state.rate);
        }
        let steps: Vec<u64> = rates[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(steps[..4], [50_000_000; 4]);
        // Half of the link is in use: the rate may be 0.95 / 0.5 times what it is.
        close(rates[6], 10.25e9 * 1.9);
    }

    #[test]
    fn what_a_link_cannot_have_sent_is_another_link() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(10, 0, 0)], 1, 30);
        answer(&mut state, &parameters, 20, &[hop(20, 4 * CARRIED, 0)], 2, 60);
        assert_eq!(state.load(), ONE);
        let slower = Hop::new(Rate::gbps(25), at(30), Bytes(4 * CARRIED), Bytes(CARRIED));
        answer(&mut state, &parameters, 30, &[slower], 3, 90);
        assert_eq!((state.load(), state.rate()), (ONE, None));
    }

    #[test]
    fn after_a_silence_longer_than_the_clock_of_hops_it_begins_anew() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        answer(&mut state, &parameters, 10, &[hop(10, 0, CARRIED)], 1, 30);
        answer(&mut state, &parameters, 5_010, &[hop(5_010, CARRIED, CARRIED)], 2, 60);
        assert_eq!(state.load(), ONE, "the clock has gone round: nobody knows how long that was");
        answer(&mut state, &parameters, 5_020, &[hop(5_020, 2 * CARRIED, CARRIED)], 3, 90);
        close(state.load(), 2.0 * ONE as f64);
    }

    #[test]
    fn the_rate_keeps_its_limits() {
        let (parameters, mut state) = (parameters(), new(&parameters()));
        for round in 1..60u64 {
            let queued = 60 * CARRIED;
            let record = hop(10 * round, round * CARRIED, queued);
            answer(
                &mut state,
                &parameters,
                10 * round,
                &[record],
                100 * round as u32,
                100 * round as u32 + 1,
            );
        }
        assert_eq!(state.rate(), Some(Rate::mbps(100)));
        for round in 60..400u64 {
            let record = hop(10 * round, 60 * CARRIED + round, 0);
            answer(
                &mut state,
                &parameters,
                10 * round,
                &[record],
                100 * round as u32,
                100 * round as u32 + 1,
            );
        }
        assert_eq!((state.rate(), state.window()), (None, Some(Bytes(CARRIED))));
    }
}
