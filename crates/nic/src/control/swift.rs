//! Swift (Kumar et al., SIGCOMM 2020): a window that keeps the round trip at a target.
//!
//! The target grows with the hops of the path and, for small windows, with the number of flows that must share a queue:
//! one over the square root of the window ("flow scaling"). Below the target the window grows by a packet each round
//! trip; above it it is cut in proportion to the excess, at most by half and at most once each round trip. A window below
//! one packet means one packet each `round trip / window`.
//!
//! The window is fixed point and the square root an integer one. The paper tells the delay of the fabric from that of
//! the end hosts; a NIC that answers by itself has only the former. The paper measures every packet, a queue pair here a
//! few in each round trip: what was acknowledged since the last measurement counts at the next one.
//!
//! Only a requester has a window: the answers to READs are not held back.

use railnet_core::{Bytes, Rate, Span, Time};

use super::{Acknowledged, CongestionControl};
use crate::packet::OVERHEAD_LEAST;

/// Fixed-point one packet.
const ONE: u64 = 1 << 16;
/// The largest window that the fixed point holds: more packets than can be unacknowledged.
const WINDOW_MAX: u64 = ONE << 24;

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwiftParameters {
    /// The target of a large window on a path without hops. It must exceed the round trip of the idle network, or the
    /// window can only shrink.
    pub base: Span,
    /// What each hop adds to the target.
    pub hop: Span,
    /// The most that flow scaling adds.
    pub scaling_range: Span,
    /// At this window, in packets as (numerator, denominator), and below it flow scaling adds all of its range.
    pub scaling_least: (u32, u32),
    /// At this window, in packets, and above it flow scaling adds nothing.
    pub scaling_most: u32,
    /// Packets by which the window grows in a round trip.
    pub additive: u32,
    /// Beta, the strength of a cut, as (numerator, denominator).
    pub beta: (u32, u32),
    /// The largest cut, and the one for a loss, as (numerator, denominator).
    pub cut_most: (u32, u32),
    /// The smallest window, in packets, as (numerator, denominator).
    pub window_least: (u32, u32),
    /// The first window: what the line carries in this time.
    pub window_first: Span,
    /// The largest window: what the line carries in this time.
    pub window_most: Span,
}

impl SwiftParameters {
    /// The set of the simulator htsim (`swift.cpp`), which calls its values guesses: the paper keeps its own to itself.
    /// The first and the largest window are not given there; these are one and two base targets at line rate.
    pub const fn htsim() -> Self {
        Self {
            base: Span::from_us(20),
            // base / 6.55
            hop: Span::from_ps(20_000_000 * 100 / 655),
            scaling_range: Span::from_us(100),
            scaling_least: (1, 10),
            scaling_most: 100,
            additive: 1,
            beta: (4, 5),
            cut_most: (1, 2),
            window_least: (1, 100),
            window_first: Span::from_us(20),
            window_most: Span::from_us(40),
        }
    }

    /// The round trip to aim at with this window on a path of so many hops.
    fn target(&self, window: u64, hops: u8) -> Span {
        let (least, most) = (inverse_root(packets(self.scaling_least)), inverse_root(self.most_scaled()));
        // range × (1/√w − 1/√most) / (1/√least − 1/√most): alpha/√w + beta of the paper.
        let part = inverse_root(window).clamp(most, least.max(most)) - most;
        let whole = (least.saturating_sub(most)).max(1);
        let scaling = u128::from(self.scaling_range.as_ps()) * u128::from(part) / u128::from(whole);
        self.base + self.hop * u64::from(hops) + Span::from_ps(scaling as u64)
    }

    fn most_scaled(&self) -> u64 {
        u64::from(self.scaling_most.max(1)) * ONE
    }
}

/// A number of packets in fixed point.
fn packets((numerator, denominator): (u32, u32)) -> u64 {
    (u64::from(numerator) * ONE / u64::from(denominator.max(1))).max(1)
}

/// `1 / √window` in fixed point of 2^24.
fn inverse_root(window: u64) -> u64 {
    // The root of window × 2^16 has 2^16 for one.
    (1 << 40) / (window.clamp(1, WINDOW_MAX) << 16).isqrt()
}

/// The sender's state.
#[derive(Clone, Debug)]
pub struct Swift {
    /// The window in packets, fixed point.
    window: u64,
    most: u64,
    /// Bytes that were acknowledged since the last measurement.
    acknowledged: u64,
    round_trip: Span,
    /// When the window was last cut.
    cut: Time,
    /// Payload bytes of a full packet.
    mtu: u32,
    was_cut: bool,
}

impl Swift {
    /// The window in parts of 2^16 of a packet, for tests and reports.
    pub fn window_fixed(&self) -> u64 {
        self.window
    }

    /// At most one cut in a round trip: the next one must see what this one brought.
    fn may_cut(&self, now: Time) -> bool {
        !self.was_cut || now.since(self.cut) >= self.round_trip
    }

    /// Takes `part / whole` off the window, but no more than the largest cut.
    fn shrink(&mut self, parameters: &SwiftParameters, now: Time, part: u128, whole: u128) {
        if !self.may_cut(now) {
            return;
        }
        let window = u128::from(self.window);
        let (numerator, denominator) = parameters.cut_most;
        let limit = window * u128::from(numerator) / u128::from(denominator.max(1));
        let lost = (window * part / whole.max(1)).min(limit) as u64;
        self.window = (self.window - lost).max(packets(parameters.window_least));
        self.cut = now;
        self.was_cut = true;
    }

    fn lose(&mut self, parameters: &SwiftParameters, now: Time) {
        let (numerator, denominator) = parameters.cut_most;
        self.shrink(parameters, now, numerator.into(), denominator.into());
        self.acknowledged = 0;
    }

    fn grow(&mut self, parameters: &SwiftParameters, acknowledged: u64) {
        let packets = u128::from(acknowledged) * u128::from(ONE) / u128::from(self.mtu.max(1));
        let step = packets * u128::from(parameters.additive);
        // A window's worth of packets brings one step; below one packet, each does.
        let step = if self.window >= ONE { step * u128::from(ONE) / u128::from(self.window) } else { step };
        self.window = (u128::from(self.window) + step).min(u128::from(self.most)) as u64;
    }
}

impl CongestionControl for Swift {
    type Parameters = SwiftParameters;

    fn new(parameters: &SwiftParameters, line: Rate, mtu: Bytes) -> Self {
        let carried = |span: Span| {
            let bytes = u128::from(line.bytes_in(span).as_u64());
            let window = bytes * u128::from(ONE) / u128::from(mtu.as_u64().max(1));
            window.clamp(u128::from(ONE), u128::from(WINDOW_MAX)) as u64
        };
        let most = carried(parameters.window_most);
        Self {
            window: carried(parameters.window_first).min(most),
            most,
            acknowledged: 0,
            round_trip: Span::ZERO,
            cut: Time::ZERO,
            mtu: mtu.as_u64() as u32,
            was_cut: false,
        }
    }

    fn on_sent(&mut self, _parameters: &SwiftParameters, _now: Time, _bytes: Bytes) {}

    fn on_ack(&mut self, parameters: &SwiftParameters, now: Time, acknowledged: &Acknowledged<'_>) {
        self.acknowledged += acknowledged.bytes.as_u64();
        let Some(delay) = acknowledged.round_trip else { return };
        self.round_trip = delay;
        let since_last = std::mem::take(&mut self.acknowledged);
        let target = parameters.target(self.window, acknowledged.hops);
        if delay < target {
            self.grow(parameters, since_last);
        } else {
            let (numerator, denominator) = parameters.beta;
            let excess = u128::from((delay - target).as_ps()) * u128::from(numerator);
            self.shrink(parameters, now, excess, u128::from(delay.as_ps()) * u128::from(denominator.max(1)));
        }
    }

    fn on_notification(&mut self, _parameters: &SwiftParameters, _now: Time) {}

    fn on_timeout(&mut self, parameters: &SwiftParameters, now: Time) {
        self.lose(parameters, now);
    }

    fn on_loss(&mut self, parameters: &SwiftParameters, now: Time) {
        self.lose(parameters, now);
    }

    fn handle_timer(&mut self, _parameters: &SwiftParameters, _now: Time) {}

    fn next_timer(&self) -> Time {
        Time::NEVER
    }

    #[inline]
    fn rate(&self) -> Option<Rate> {
        if self.window >= ONE {
            return None;
        }
        // A full packet each `round trip / window`.
        let bits = (u128::from(self.mtu) + u128::from(OVERHEAD_LEAST)) * 8 * u128::from(self.window);
        let span = u128::from(self.round_trip.as_ps().max(1)) * u128::from(ONE);
        Some(Rate::from_bps((bits * 1_000_000_000_000 / span).max(1) as u64))
    }

    #[inline]
    fn window(&self) -> Option<Bytes> {
        Some(Bytes((self.window / ONE).max(1) * u64::from(self.mtu)))
    }

    #[inline]
    fn ack_interval(&self) -> Option<u16> {
        // Acknowledgements clock the window: a tail that nobody asked about would stop it when it shrinks.
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::gbps(100);
    const MTU: u64 = 4096;
    const PARAMETERS: SwiftParameters = SwiftParameters::htsim();

    fn at(window: u64) -> Swift {
        Swift { window, ..Swift::new(&PARAMETERS, LINE, Bytes(MTU)) }
    }

    fn measure(state: &mut Swift, now: Time, packets: u64, round_trip: Span) {
        let acknowledged = Acknowledged {
            bytes: Bytes(packets * MTU),
            round_trip: Some(round_trip),
            hops: 1,
            ..Acknowledged::NOTHING
        };
        state.on_ack(&PARAMETERS, now, &acknowledged);
    }

    fn us(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    fn close(found: u64, expected: f64, tolerance: f64) {
        assert!((found as f64 / expected - 1.0).abs() < tolerance, "{found} is not close to {expected}");
    }

    #[test]
    fn it_starts_with_a_base_target_of_line_rate() {
        let state = Swift::new(&PARAMETERS, LINE, Bytes(MTU));
        // 20 µs at 12.5 GB/s are 250,000 bytes: 61 whole packets.
        assert_eq!(state.window(), Some(Bytes(61 * MTU)));
        assert_eq!(state.rate(), None);
    }

    #[test]
    fn below_its_target_a_window_grows_by_one_packet_each_round_trip() {
        for packets in [4, 10, 50] {
            let mut state = at(packets * ONE);
            measure(&mut state, us(10), packets, Span::from_us(10));
            close(state.window_fixed(), ((packets + 1) * ONE) as f64, 1e-4);
        }
        // What came without a measurement counts with the next one.
        let mut state = at(10 * ONE);
        let unmeasured = Acknowledged { bytes: Bytes(6 * MTU), hops: 1, ..Acknowledged::NOTHING };
        state.on_ack(&PARAMETERS, us(5), &unmeasured);
        assert_eq!(state.window_fixed(), 10 * ONE);
        measure(&mut state, us(10), 4, Span::from_us(10));
        close(state.window_fixed(), (11 * ONE) as f64, 1e-4);
    }

    #[test]
    fn above_its_target_it_is_cut_in_proportion_to_the_excess() {
        let mut state = at(100 * ONE);
        // At 100 packets the target is 20 µs and one hop of 3.053 µs; 0.8 of the excess over the delay is lost.
        let (delay, target) = (30.0, 20.0 + 20.0 / 6.55);
        measure(&mut state, us(100), 100, Span::from_us(30));
        close(state.window_fixed(), 100.0 * 65536.0 * (1.0 - 0.8 * (delay - target) / delay), 1e-4);
    }

    #[test]
    fn a_cut_is_at_most_half_and_once_in_a_round_trip() {
        let mut state = at(100 * ONE);
        measure(&mut state, us(1000), 1, Span::from_us(1000));
        assert_eq!(state.window_fixed(), 50 * ONE, "0.8 of almost all would be more than half");
        measure(&mut state, us(1050), 1, Span::from_us(100));
        assert_eq!(state.window_fixed(), 50 * ONE, "50 µs after the cut, with a round trip of 100 µs");
        measure(&mut state, us(1100), 1, Span::from_us(100));
        assert!(state.window_fixed() < 50 * ONE);
    }

    #[test]
    fn a_loss_halves_and_many_losses_of_one_round_trip_halve_once() {
        let mut state = at(64 * ONE);
        state.round_trip = Span::from_us(20);
        state.on_loss(&PARAMETERS, us(100));
        assert_eq!(state.window_fixed(), 32 * ONE);
        state.on_loss(&PARAMETERS, us(110));
        assert_eq!(state.window_fixed(), 32 * ONE);
        state.on_timeout(&PARAMETERS, us(120));
        assert_eq!(state.window_fixed(), 16 * ONE);
    }

    #[test]
    fn the_target_grows_with_hops_and_as_the_window_shrinks() {
        let target = |window: f64, hops| PARAMETERS.target((window * ONE as f64) as u64, hops).as_ps();
        let range = 100e6;
        let alpha = range / (1.0 / 0.1f64.sqrt() - 0.1);
        for window in [0.1f64, 0.5, 1.0, 2.0, 10.0, 64.0, 100.0] {
            let expected = 20e6 + alpha / window.sqrt() - alpha * 0.1;
            close(target(window, 0), expected, 1e-3);
        }
        assert_eq!(target(0.01, 0), 120_000_000, "no more than the range");
        assert_eq!(target(5000.0, 0), 20_000_000, "and never negative");
        close(target(100.0, 5) - target(100.0, 0), 5.0 * 20e6 / 6.55, 1e-5);
    }

    #[test]
    fn below_one_packet_it_sends_one_each_round_trip_over_window() {
        let mut state = at(ONE / 4);
        state.round_trip = Span::from_us(50);
        assert_eq!(state.window(), Some(Bytes(MTU)), "one packet may be under way");
        let spacing = state.rate().unwrap().serialize(Bytes(MTU + OVERHEAD_LEAST));
        close(spacing.as_ps(), 200e6, 1e-3);
        // Each packet brings a whole step there.
        measure(&mut state, us(500), 1, Span::from_us(50));
        assert_eq!(state.window_fixed(), ONE + ONE / 4);
        assert_eq!(state.rate(), None);
    }

    #[test]
    fn the_window_keeps_its_limits() {
        let mut state = at(ONE);
        for round in 1..100 {
            measure(&mut state, us(round * 1000), 1, Span::from_us(900));
        }
        assert_eq!(state.window_fixed(), packets(PARAMETERS.window_least));
        for round in 100..10_000 {
            measure(&mut state, us(round * 1000), 100, Span::from_us(5));
        }
        assert_eq!(state.window(), Some(Bytes(122 * MTU)), "two base targets at line rate");
    }
}
