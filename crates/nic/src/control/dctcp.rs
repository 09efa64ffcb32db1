//! DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257): switches mark every packet that meets more than a threshold, the
//! receiver tells how many came marked, and the sender cuts its window in proportion to that fraction.
//!
//! Alpha is a moving average of the fraction over windows. The first mark of a window takes alpha/2 off, further marks of
//! it nothing; in windows without a cut it grows by one packet in a round trip. TCP begins with slow start; NICs begin
//! with a round trip of line rate ([`DctcpParameters::hardware`], as in the HPCC simulations).
//!
//! One acknowledgement for each packet, without TCP's delayed ones. Alpha is fixed point and the window whole bytes, so
//! that every machine computes the same. READ responses are not acknowledged, so nothing slows them down.

use railnet_core::{Bytes, Psn, Rate, Span, Time};

use super::{Acknowledged, CongestionControl};

/// Fixed-point one for alpha.
const ONE: u64 = 1 << 24;
/// The first window of TCP in packets (RFC 6928).
const FIRST_PACKETS: u64 = 10;

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DctcpParameters {
    /// g, the weight of a window's fraction in alpha, as (numerator, denominator).
    pub gain: (u32, u32),
    /// Alpha before the first window, as (numerator, denominator).
    pub initial_alpha: (u32, u32),
    /// The first window.
    pub window_first: Bytes,
    /// No window is larger.
    pub window_most: Bytes,
    /// The window doubles each round trip until the first mark, and again from one packet after a timeout. Without it a
    /// timeout halves, as a loss does.
    pub slow_start: bool,
}

impl DctcpParameters {
    /// As the NICs of the HPCC simulations do it: a round trip of line rate at once.
    pub fn hardware(line: Rate, round_trip: Span) -> Self {
        let carried = line.bytes_in(round_trip);
        Self {
            gain: (1, 16),
            initial_alpha: (1, 1),
            window_first: carried,
            window_most: carried * 16,
            slow_start: false,
        }
    }

    /// As RFC 8257 has it for TCP: ten packets of `mtu` bytes, and slow start.
    pub fn tcp(line: Rate, round_trip: Span, mtu: Bytes) -> Self {
        Self { window_first: mtu * FIRST_PACKETS, slow_start: true, ..Self::hardware(line, round_trip) }
    }
}

fn fixed((numerator, denominator): (u32, u32)) -> u64 {
    (u64::from(numerator) * ONE / u64::from(denominator.max(1))).min(ONE)
}

/// The sender's state.
#[derive(Clone, Debug)]
pub struct Dctcp {
    /// Bytes that may be under way.
    window: u64,
    /// Below this the window doubles each round trip.
    threshold: u64,
    alpha: u64,
    /// Bytes that were answered since the window last grew: a window's worth of them brings one packet.
    unused: u64,
    /// Packets of this window that were answered, and how many of them came marked.
    packets: u32,
    marked: u32,
    /// The window ends with the answer to what was sent before this; none has begun before the first answer.
    window_ends: Option<Psn>,
    /// Marks tell of what was before a cut until this is answered.
    cut_ends: Psn,
    /// Payload bytes of a full packet.
    mtu: u32,
    is_cut: bool,
}

impl Dctcp {
    /// Alpha in parts of 2^24, for tests and reports.
    pub fn alpha(&self) -> u64 {
        self.alpha
    }

    fn set_window(&mut self, parameters: &DctcpParameters, window: u64) {
        let most = parameters.window_most.as_u64().max(self.mtu.into());
        self.window = window.clamp(self.mtu.into(), most);
    }

    /// The fraction of a whole window is known: alpha moves towards it.
    fn end_window(&mut self, parameters: &DctcpParameters, sent: Psn) {
        let gain = fixed(parameters.gain);
        let fraction = u64::from(self.marked) * ONE / u64::from(self.packets.max(1));
        self.alpha = (self.alpha * (ONE - gain) + fraction.min(ONE) * gain) / ONE;
        (self.packets, self.marked) = (0, 0);
        self.window_ends = Some(sent);
    }

    fn cut(&mut self, parameters: &DctcpParameters, sent: Psn) {
        self.set_window(parameters, self.window - self.window * self.alpha / (2 * ONE));
        self.threshold = self.window;
        self.unused = 0;
        self.cut_ends = sent;
        self.is_cut = true;
    }

    fn grow(&mut self, parameters: &DctcpParameters, acknowledged: u64) {
        if parameters.slow_start && self.window < self.threshold {
            self.set_window(parameters, self.window + acknowledged);
            return;
        }
        self.unused += acknowledged;
        if self.unused >= self.window {
            self.unused -= self.window;
            self.set_window(parameters, self.window + u64::from(self.mtu));
        }
    }
}

impl CongestionControl for Dctcp {
    type Parameters = DctcpParameters;

    fn new(parameters: &DctcpParameters, _line: Rate, mtu: Bytes) -> Self {
        let mut state = Self {
            window: 0,
            threshold: u64::MAX,
            alpha: fixed(parameters.initial_alpha),
            unused: 0,
            packets: 0,
            marked: 0,
            window_ends: None,
            cut_ends: Psn::new(0),
            mtu: mtu.as_u64() as u32,
            is_cut: false,
        };
        state.set_window(parameters, parameters.window_first.as_u64());
        state
    }

    fn on_sent(&mut self, _parameters: &DctcpParameters, _now: Time, _bytes: Bytes) {}

    fn on_ack(&mut self, parameters: &DctcpParameters, _now: Time, acknowledged: &Acknowledged<'_>) {
        let Acknowledged { unacked, sent, bytes, .. } = *acknowledged;
        let congestion = acknowledged.congestion.unwrap_or_default();
        self.packets += u32::from(congestion.packets);
        self.marked += u32::from(congestion.marked);
        match self.window_ends {
            None => self.window_ends = Some(sent),
            Some(end) if unacked.is_after(end) => self.end_window(parameters, sent),
            Some(_) => {}
        }
        if self.is_cut && unacked.is_after(self.cut_ends) {
            self.is_cut = false;
        }
        if self.is_cut {
            return;
        }
        if congestion.marked > 0 {
            self.cut(parameters, sent);
        } else {
            self.grow(parameters, bytes.as_u64());
        }
    }

    fn on_notification(&mut self, _parameters: &DctcpParameters, _now: Time) {}

    fn on_timeout(&mut self, parameters: &DctcpParameters, _now: Time) {
        self.threshold = (self.window / 2).max(self.mtu.into());
        let window = if parameters.slow_start { self.mtu.into() } else { self.threshold };
        self.set_window(parameters, window);
        self.is_cut = false;
    }

    // RFC 8257, 3.5: a loss is answered as other TCPs do.
    fn on_loss(&mut self, parameters: &DctcpParameters, _now: Time) {
        self.set_window(parameters, self.window / 2);
        self.threshold = self.window;
    }

    fn handle_timer(&mut self, _parameters: &DctcpParameters, _now: Time) {}

    fn next_timer(&self) -> Time {
        Time::NEVER
    }

    #[inline]
    fn rate(&self) -> Option<Rate> {
        None
    }

    #[inline]
    fn window(&self) -> Option<Bytes> {
        Some(Bytes(self.window))
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
    use railnet_wire::CongestionEcho;

    const LINE: Rate = Rate::gbps(100);
    const ROUND_TRIP: Span = Span::from_us(10);
    const MTU: u64 = 1_000;

    /// A flow that always has a window under way, and is answered packet by packet.
    struct Flow {
        parameters: DctcpParameters,
        state: Dctcp,
        answered: u32,
    }

    impl Flow {
        fn new(parameters: DctcpParameters) -> Self {
            let state = Dctcp::new(&parameters, LINE, Bytes(MTU));
            Self { parameters, state, answered: 0 }
        }

        fn packets(&self) -> u32 {
            (self.state.window / MTU) as u32
        }

        fn answer(&mut self, is_marked: bool) {
            self.answered += 1;
            let unacked = Psn::new(self.answered);
            let acknowledged = Acknowledged {
                bytes: Bytes(MTU),
                unacked,
                sent: unacked.plus(self.packets()),
                congestion: Some(CongestionEcho { marked: is_marked.into(), packets: 1 }),
                ..Acknowledged::NOTHING
            };
            self.state.on_ack(&self.parameters, Time::ZERO, &acknowledged);
        }

        /// The answers to one window, some of them marked.
        fn round(&mut self, is_marked: impl Fn(u32) -> bool) {
            for packet in 0..self.packets() {
                self.answer(is_marked(packet));
            }
        }
    }

    fn hardware() -> Flow {
        Flow::new(DctcpParameters::hardware(LINE, ROUND_TRIP))
    }

    #[test]
    fn hardware_starts_with_a_round_trip_and_tcp_with_ten_packets() {
        assert_eq!(hardware().state.window(), Some(Bytes(125_000)));
        let tcp = Flow::new(DctcpParameters::tcp(LINE, ROUND_TRIP, Bytes(MTU)));
        assert_eq!(tcp.state.window(), Some(Bytes(10_000)));
        assert_eq!((tcp.state.rate(), tcp.state.next_timer()), (None, Time::NEVER));
    }

    #[test]
    fn alpha_becomes_the_fraction_that_is_marked() {
        for every in [1, 2, 5, 20] {
            let mut flow = hardware();
            // A window that stays as it is keeps the fraction clean of what the cut does.
            flow.parameters.window_most = Bytes(100_000);
            for _ in 0..200 {
                flow.state.window = 100_000;
                flow.round(|packet| packet % every == 0);
            }
            let found = flow.state.alpha() as f64 / ONE as f64;
            assert!((found - 1.0 / f64::from(every)).abs() < 0.01, "1 in {every}: {found}");
        }
    }

    #[test]
    fn alpha_moves_by_a_sixteenth_of_the_difference() {
        let mut flow = hardware();
        flow.round(|_| false);
        let first = flow.state.alpha();
        flow.round(|_| false);
        let ratio = flow.state.alpha() as f64 / first as f64;
        assert!((ratio - 15.0 / 16.0).abs() < 0.001, "{ratio}");
    }

    #[test]
    fn many_marks_of_a_window_cut_it_once_by_half_of_alpha() {
        let mut flow = hardware();
        flow.state.alpha = ONE / 4;
        flow.answer(true);
        assert_eq!(flow.state.window, 125_000 - 125_000 / 8);
        let after = flow.state.window;
        // 125 packets were under way: what was sent before the cut says nothing about it.
        for _ in 0..125 {
            flow.answer(true);
            assert_eq!(flow.state.window, after);
        }
        flow.answer(true);
        assert!(flow.state.window < after);
    }

    #[test]
    fn without_marks_it_grows_by_one_packet_a_round_trip() {
        let mut flow = hardware();
        flow.state.set_window(&flow.parameters, 50_000);
        for expected in [51_000, 52_000, 53_000] {
            flow.round(|_| false);
            assert_eq!(flow.state.window, expected);
        }
    }

    #[test]
    fn slow_start_doubles_until_the_first_mark() {
        let mut flow = Flow::new(DctcpParameters::tcp(LINE, ROUND_TRIP, Bytes(MTU)));
        for expected in [20_000, 40_000, 80_000] {
            flow.round(|_| false);
            assert_eq!(flow.state.window, expected);
        }
        flow.state.alpha = ONE;
        flow.answer(true);
        assert_eq!(flow.state.window, 40_000);
        flow.round(|_| false);
        flow.round(|_| false);
        assert!(flow.state.window < 43_000, "{}", flow.state.window);
    }

    #[test]
    fn a_timeout_begins_again_and_a_loss_halves() {
        let mut flow = Flow::new(DctcpParameters::tcp(LINE, ROUND_TRIP, Bytes(MTU)));
        flow.state.set_window(&flow.parameters, 64_000);
        flow.state.on_timeout(&flow.parameters, Time::ZERO);
        assert_eq!(flow.state.window, MTU);
        for expected in [2_000, 4_000, 8_000, 16_000, 32_000] {
            flow.round(|_| false);
            assert_eq!(flow.state.window, expected);
        }
        flow.round(|_| false);
        assert!(flow.state.window <= 33_000, "half of what it was is the end of slow start");
        let mut flow = hardware();
        flow.state.on_loss(&flow.parameters, Time::ZERO);
        assert_eq!(flow.state.window, 62_500);
        flow.state.on_timeout(&flow.parameters, Time::ZERO);
        assert_eq!(flow.state.window, 31_250);
    }

    #[test]
    fn the_window_keeps_its_limits() {
        let mut flow = hardware();
        for _ in 0..400 {
            flow.answer(true);
        }
        assert_eq!(flow.state.window, MTU, "one packet");
        for _ in 0..4_000 {
            flow.round(|_| false);
        }
        assert_eq!(flow.state.window(), Some(flow.parameters.window_most));
    }
}
