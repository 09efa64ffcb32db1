//! DCQCN (Zhu et al., SIGCOMM 2015): the sender cuts its rate on congestion notifications and wins it back by timer
//! and byte counter, in three phases: fast recovery, additive and hyper increase.
//!
//! The paper cuts at each notification. NICs and the ns-3 of the HPCC paper evaluate on a clock, which starts at the
//! first notification, whether one came since its last tick, and move alpha by a clock of its own. Both are here, told
//! apart by [`DcqcnParameters`]. Rates are bits per second and alpha is fixed point, so that every machine computes the
//! same.

use railnet_core::{Bytes, Rate, Span, Time};

use super::{Acknowledged, CongestionControl};

/// Fixed-point one for alpha and g.
const ONE: u64 = 1 << 32;

/// What can be set. [`DcqcnParameters::paper`], [`DcqcnParameters::connectx`] and [`DcqcnParameters::hpcc`] are
/// published sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcqcnParameters {
    /// g, the weight of a new sample in alpha, as (numerator, denominator).
    pub gain: (u32, u32),
    /// Alpha before the first sample, as (numerator, denominator).
    pub initial_alpha: (u32, u32),
    /// How often alpha moves: without a notification it decays.
    pub alpha_interval: Span,
    /// Alpha also rises at each notification, which restarts its clock (the paper); otherwise only by its clock.
    pub alpha_rises_at_once: bool,
    /// A notification cuts the rate when it comes, if the last cut is `decrease_interval` ago (the paper); otherwise the
    /// next tick of a clock of that period does, which starts at the first notification: one cut for all that came
    /// since the tick before.
    pub cuts_at_once: bool,
    /// The least time between two cuts.
    pub decrease_interval: Span,
    /// The period of the increase timer.
    pub increase_interval: Span,
    /// Bytes between increases by volume; `None` for no byte counter.
    pub increase_bytes: Option<Bytes>,
    /// Increases in fast recovery.
    pub fast_recovery: u32,
    /// Additive increase.
    pub additive: Rate,
    /// Hyper increase.
    pub hyper: Rate,
    /// Never slower than this.
    pub minimum: Rate,
    /// A cut sets the target to the present rate even before any increase came (the paper does).
    pub clamp_target: bool,
    /// Bytes in flight at most, as time at line rate; `None` for no window.
    pub window: Option<Span>,
    /// The window shrinks and grows with the rate: the time is at the present rate.
    pub window_follows_rate: bool,
}

impl DcqcnParameters {
    /// The parameters of the paper for a port of this rate; its additive step was 40 Mb/s at 40 Gb/s.
    pub fn paper(line: Rate) -> Self {
        Self {
            gain: (1, 256),
            initial_alpha: (1, 1),
            alpha_interval: Span::from_us(55),
            alpha_rises_at_once: true,
            cuts_at_once: true,
            decrease_interval: Span::from_us(50),
            increase_interval: Span::from_us(55),
            increase_bytes: Some(Bytes(10_000_000)),
            fast_recovery: 5,
            additive: Rate::from_bps(line.as_bps() / 1_000),
            hyper: Rate::from_bps(line.as_bps() / 100),
            minimum: Rate::mbps(100),
            clamp_target: true,
            window: None,
            window_follows_rate: true,
        }
    }

    /// ConnectX firmware defaults, as public dumps of `mlxconfig` show them. `RATE_REDUCE_MONITOR_PERIOD` is the clock of
    /// cuts: "rate reduction will occur only if a CNP is received during the relevant time interval".
    pub fn connectx() -> Self {
        Self {
            gain: (5, 1024),
            initial_alpha: (1023, 1024),
            alpha_interval: Span::from_us(1),
            alpha_rises_at_once: false,
            cuts_at_once: false,
            decrease_interval: Span::from_us(4),
            increase_interval: Span::from_us(300),
            increase_bytes: Some(Bytes(32_767)),
            fast_recovery: 1,
            additive: Rate::mbps(5),
            hyper: Rate::mbps(50),
            minimum: Rate::mbps(1),
            clamp_target: false,
            window: None,
            window_follows_rate: true,
        }
    }

    /// The set of the HPCC paper's ns-3 runs: steps scale with the line rate, no byte counter.
    pub fn hpcc(line: Rate) -> Self {
        let steps = line.as_bps() / 25_000_000_000;
        Self {
            gain: (1, 256),
            initial_alpha: (1, 1),
            alpha_interval: Span::from_us(1),
            alpha_rises_at_once: false,
            cuts_at_once: false,
            decrease_interval: Span::from_us(4),
            increase_interval: Span::from_us(300),
            increase_bytes: None,
            fast_recovery: 1,
            additive: Rate::mbps(5 * steps.max(1)),
            hyper: Rate::mbps(50 * steps.max(1)),
            minimum: Rate::gbps(1),
            clamp_target: false,
            window: None,
            window_follows_rate: true,
        }
    }

    fn gain_fixed(&self) -> u64 {
        fixed(self.gain)
    }
}

fn fixed((numerator, denominator): (u32, u32)) -> u64 {
    (u64::from(numerator) * ONE / u64::from(denominator.max(1))).min(ONE)
}

/// `value × fraction`, the fraction in fixed point.
fn scale(value: u64, fraction: u64) -> u64 {
    ((u128::from(value) * u128::from(fraction)) >> 32) as u64
}

/// The sender's state.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    line: u64,
    current: u64,
    target: u64,
    alpha: u64,
    alpha_due: Time,
    increase_due: Time,
    /// When the next cut is allowed, or the clock of cuts ticks next; a cut that waits is due then.
    decrease_due: Time,
    bytes: u32,
    /// Bytes in flight at most at line rate; 0 is no limit.
    window: u32,
    timer_stage: u16,
    byte_stage: u16,
    /// The rate is below the line rate: the clocks run.
    is_limited: bool,
    cut_waits: bool,
    /// A notification came since alpha last moved.
    notified: bool,
    window_follows_rate: bool,
}

impl Dcqcn {
    /// Alpha, for tests and reports: parts of 2^32.
    pub fn alpha(&self) -> u64 {
        self.alpha
    }

    /// Whether a notification has come yet: the clocks run from the first one on.
    fn has_started(&self) -> bool {
        self.alpha_due.is_set()
    }

    /// Brings alpha up to date. Its clock ticks every microsecond or so, but nobody looks at it between cuts: the ticks
    /// that were missed are made up for here, exactly as if each had been seen.
    fn sync_alpha(&mut self, parameters: &DcqcnParameters, now: Time) {
        if self.alpha_due > now {
            return;
        }
        let interval = parameters.alpha_interval.as_ps().max(1);
        let ticks = now.since(self.alpha_due).as_ps() / interval + 1;
        self.alpha_due += Span::from_ps(interval) * ticks;
        let gain = parameters.gain_fixed();
        let mut left = ticks;
        if std::mem::take(&mut self.notified) && !parameters.alpha_rises_at_once {
            self.alpha = (self.alpha - scale(self.alpha, gain) + gain).min(ONE);
            left -= 1;
        }
        while left > 0 && self.alpha > 0 {
            let lost = scale(self.alpha, gain);
            // Too small to lose more: it stays as it is.
            if lost == 0 {
                break;
            }
            self.alpha -= lost;
            left -= 1;
        }
    }

    fn cut(&mut self, parameters: &DcqcnParameters, now: Time) {
        if parameters.clamp_target || self.timer_stage > 0 || self.byte_stage > 0 || !self.is_limited {
            self.target = self.current;
        }
        self.current -= scale(self.current, self.alpha / 2);
        self.current = self.current.max(parameters.minimum.as_bps().min(self.line));
        self.timer_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.is_limited = true;
        self.cut_waits = false;
        self.increase_due = now + parameters.increase_interval;
        let last = if parameters.cuts_at_once { now } else { self.decrease_due };
        self.decrease_due = last + parameters.decrease_interval;
    }

    /// The next tick of the clock of cuts after `now`.
    fn next_decrease(&self, parameters: &DcqcnParameters, now: Time) -> Time {
        if self.decrease_due > now {
            return self.decrease_due;
        }
        let interval = parameters.decrease_interval.as_ps().max(1);
        let ticks = now.since(self.decrease_due).as_ps() / interval + 1;
        self.decrease_due + Span::from_ps(interval) * ticks
    }

    fn increase(&mut self, parameters: &DcqcnParameters) {
        let (timer, bytes) = (u32::from(self.timer_stage), u32::from(self.byte_stage));
        let recovery = parameters.fast_recovery;
        let (highest, lowest) = match parameters.increase_bytes {
            Some(_) => (timer.max(bytes), timer.min(bytes)),
            // Without a byte counter the one additive step is followed by hyper increase.
            None => (timer, timer.saturating_sub(1)),
        };
        if lowest > recovery {
            let steps = u64::from(if parameters.increase_bytes.is_some() { lowest - recovery } else { 1 });
            self.target += parameters.hyper.as_bps() * steps;
        } else if highest > recovery {
            self.target += parameters.additive.as_bps();
        }
        self.target = self.target.min(self.line);
        // Rounded up, so that halving the distance arrives.
        self.current = (self.current + self.target).div_ceil(2);
        if self.current >= self.line {
            // Back at line rate: nothing is left to wait for.
            self.is_limited = false;
            self.increase_due = Time::NEVER;
        }
    }
}

impl CongestionControl for Dcqcn {
    type Parameters = DcqcnParameters;

    fn new(parameters: &DcqcnParameters, line: Rate, _mtu: Bytes) -> Self {
        let window = parameters.window.map_or(0, |span| line.bytes_in(span).as_u64().max(1));
        Self {
            line: line.as_bps(),
            current: line.as_bps(),
            target: line.as_bps(),
            alpha: 0,
            alpha_due: Time::NEVER,
            increase_due: Time::NEVER,
            decrease_due: Time::ZERO,
            bytes: 0,
            window: u32::try_from(window).unwrap_or(u32::MAX),
            timer_stage: 0,
            byte_stage: 0,
            is_limited: false,
            cut_waits: false,
            notified: false,
            window_follows_rate: parameters.window_follows_rate,
        }
    }

    fn on_sent(&mut self, parameters: &DcqcnParameters, _now: Time, bytes: Bytes) {
        let (true, Some(period)) = (self.is_limited, parameters.increase_bytes) else {
            return;
        };
        self.bytes = self.bytes.saturating_add(bytes.0 as u32);
        if u64::from(self.bytes) >= period.0 {
            self.bytes = 0;
            self.byte_stage = self.byte_stage.saturating_add(1);
            self.increase(parameters);
        }
    }

    fn on_ack(&mut self, _parameters: &DcqcnParameters, _now: Time, _acknowledged: &Acknowledged<'_>) {}

    fn on_notification(&mut self, parameters: &DcqcnParameters, now: Time) {
        if self.has_started() {
            self.sync_alpha(parameters, now);
            self.notified = true;
        } else {
            // The first one sets alpha, and is no sample besides.
            self.alpha = fixed(parameters.initial_alpha);
            self.alpha_due = now + parameters.alpha_interval;
            self.decrease_due = now;
        }
        if parameters.cuts_at_once && now >= self.decrease_due {
            self.cut(parameters, now);
        } else {
            self.decrease_due = self.next_decrease(parameters, now);
            self.cut_waits = true;
        }
        if parameters.alpha_rises_at_once {
            let gain = parameters.gain_fixed();
            self.alpha = (self.alpha - scale(self.alpha, gain) + gain).min(ONE);
            self.alpha_due = now + parameters.alpha_interval;
        }
    }

    fn on_timeout(&mut self, _parameters: &DcqcnParameters, _now: Time) {}

    fn handle_timer(&mut self, parameters: &DcqcnParameters, now: Time) {
        if self.cut_waits && self.decrease_due <= now {
            // Alpha goes first, as in hardware and the ns-3 model: the cut uses the new value.
            self.sync_alpha(parameters, now);
            self.cut(parameters, now);
        }
        while self.is_limited && self.increase_due <= now {
            self.increase_due += parameters.increase_interval;
            self.timer_stage = self.timer_stage.saturating_add(1);
            self.increase(parameters);
        }
    }

    fn next_timer(&self) -> Time {
        let increase = if self.is_limited { self.increase_due } else { Time::NEVER };
        if self.cut_waits { increase.min(self.decrease_due) } else { increase }
    }

    #[inline]
    fn rate(&self) -> Option<Rate> {
        self.is_limited.then_some(Rate::from_bps(self.current))
    }

    #[inline]
    fn window(&self) -> Option<Bytes> {
        if self.window == 0 {
            return None;
        }
        let full = u64::from(self.window);
        let follows = self.window_follows_rate && self.is_limited;
        let part = u128::from(full) * u128::from(self.current) / u128::from(self.line.max(1));
        // One packet may always go: the rate limiter keeps windows that are smaller.
        Some(Bytes(if follows { (part as u64).max(1) } else { full }))
    }

    #[inline]
    fn ack_interval(&self) -> Option<u16> {
        // Acknowledgements open the window.
        (self.window > 0).then_some(1)
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
    const MTU: Bytes = Bytes(4096);

    fn run_until(state: &mut Dcqcn, parameters: &DcqcnParameters, end: Time) {
        while state.next_timer() <= end {
            let at = state.next_timer();
            state.handle_timer(parameters, at);
        }
    }

    fn rate(state: &Dcqcn) -> u64 {
        state.rate().unwrap_or(LINE).as_bps()
    }

    #[test]
    fn the_first_notification_halves_the_rate() {
        // Alpha is 1 at first, so RC(1 - alpha/2) is half.
        let parameters = DcqcnParameters::paper(LINE);
        let mut state = Dcqcn::new(&parameters, LINE, MTU);
        assert_eq!(state.rate(), None);
        state.on_notification(&parameters, Time::from_ps(1_000_000));
        assert_eq!(rate(&state), 50_000_000_000);
    }

    #[test]
    fn fast_recovery_halves_the_distance_five_times_then_adds() {
        let parameters = DcqcnParameters::paper(LINE);
        let mut state = Dcqcn::new(&parameters, LINE, MTU);
        let start = Time::ZERO + Span::from_us(100);
        // Two cuts, so that the target is below the line rate and the steps after fast recovery show.
        state.on_notification(&parameters, start);
        let second = start + Span::from_us(50);
        state.on_notification(&parameters, second);
        let (target, low) = (50_000_000_000u64, rate(&state));
        let mut expected = low;
        for step in 1..=5u64 {
            run_until(&mut state, &parameters, second + Span::from_us(55) * step);
            expected = (expected + target).div_ceil(2);
            assert_eq!(rate(&state), expected, "step {step}");
        }
        run_until(&mut state, &parameters, second + Span::from_us(55) * 6);
        assert_eq!(rate(&state), (expected + target + parameters.additive.as_bps()).div_ceil(2));
    }

    #[test]
    fn hyper_increase_needs_both_timer_and_bytes() {
        let parameters =
            DcqcnParameters { increase_bytes: Some(Bytes(1_000)), ..DcqcnParameters::paper(LINE) };
        let mut state = Dcqcn::new(&parameters, LINE, MTU);
        let start = Time::ZERO + Span::from_us(100);
        for cut in 0..8 {
            state.on_notification(&parameters, start + Span::from_us(50) * cut);
        }
        let last = start + Span::from_us(50) * 7;
        for _ in 0..6 {
            state.on_sent(&parameters, last, Bytes(1_000));
        }
        let before = state.target;
        run_until(&mut state, &parameters, last + Span::from_us(55) * 5);
        assert_eq!(
            state.target,
            before + parameters.additive.as_bps() * 5,
            "additive while one of them is low"
        );
        let before = state.target;
        run_until(&mut state, &parameters, last + Span::from_us(55) * 6);
        assert_eq!(state.target, before + parameters.hyper.as_bps());
    }

    #[test]
    fn alpha_decays_without_notifications_and_the_rate_comes_back() {
        let parameters = DcqcnParameters::paper(LINE);
        let mut state = Dcqcn::new(&parameters, LINE, MTU);
        state.on_notification(&parameters, Time::ZERO + Span::from_us(1));
        let high = state.alpha();
        // A second notification after 100 intervals of silence finds alpha at (1 - g)^100, then adds g.
        let later = Time::ZERO + Span::from_us(1 + 55 * 100);
        run_until(&mut state, &parameters, later);
        state.on_notification(&parameters, later);
        let expected = (high as f64) * (255.0f64 / 256.0).powi(101) + ONE as f64 / 256.0;
        assert!(
            (state.alpha() as f64 - expected).abs() < ONE as f64 * 1e-6,
            "{} not {expected}",
            state.alpha()
        );
        run_until(&mut state, &parameters, Time::ZERO + Span::from_secs(2));
        assert_eq!(state.rate(), None, "back at line rate");
        assert_eq!(state.next_timer(), Time::NEVER, "and nothing left to wait for");
    }

    #[test]
    fn the_clock_of_cuts_starts_at_the_first_notification_and_cuts_once_a_tick() {
        // ns-3 of the HPCC paper, rdma-hw.cc: cnp_received_mlx, CheckRateDecreaseMlx.
        let parameters = DcqcnParameters::hpcc(LINE);
        let mut state = Dcqcn::new(&parameters, LINE, MTU);
        let at = |us: u64| Time::ZERO + Span::from_us(us);
        for us in [10, 11, 13] {
            state.on_notification(&parameters, at(us));
            run_until(&mut state, &parameters, at(us));
        }
        assert_eq!(state.rate(), None, "nothing is cut before the first tick");
        run_until(&mut state, &parameters, at(40));
        // Four ticks of alpha: without a sample, with one, without, with one. One cut for three notifications.
        let (lost, mut alpha) = (255.0 / 256.0, 1.0);
        for sample in [0.0, 1.0, 0.0, 1.0] {
            alpha = lost * alpha + sample / 256.0;
        }
        let expected = 1e11 * (1.0 - alpha / 2.0);
        assert!((rate(&state) as f64 / expected - 1.0).abs() < 1e-6, "{} not {expected}", rate(&state));
        let once = rate(&state);
        // Ticks are at 14 and every 4 us from there: this one is seen at 42.
        state.on_notification(&parameters, at(41));
        run_until(&mut state, &parameters, at(41));
        assert_eq!(rate(&state), once);
        assert_eq!(state.next_timer(), at(42));
        run_until(&mut state, &parameters, at(42));
        assert!(rate(&state) < once);
    }

    #[test]
    fn a_window_is_time_at_line_rate_and_follows_the_rate_where_it_shall() {
        let fixed = DcqcnParameters {
            window: Some(Span::from_us(12)),
            window_follows_rate: false,
            ..DcqcnParameters::hpcc(LINE)
        };
        for (parameters, after) in
            [(fixed.clone(), 150_000), (DcqcnParameters { window_follows_rate: true, ..fixed }, 75_000)]
        {
            let mut state = Dcqcn::new(&parameters, LINE, MTU);
            assert_eq!((state.window(), state.ack_interval()), (Some(Bytes(150_000)), Some(1)));
            state.on_notification(&parameters, Time::ZERO + Span::from_us(1));
            run_until(&mut state, &parameters, Time::ZERO + Span::from_us(10));
            let window = state.window().expect("it has one").0;
            assert!(window.abs_diff(after) < after / 50, "{window} not {after}");
        }
        let none = Dcqcn::new(&DcqcnParameters::hpcc(LINE), LINE, MTU);
        assert_eq!((none.window(), none.ack_interval()), (None, None));
    }

    #[test]
    fn cuts_keep_their_distance_and_the_minimum() {
        let parameters = DcqcnParameters::connectx();
        let mut state = Dcqcn::new(&parameters, LINE, MTU);
        let mut now = Time::ZERO + Span::from_us(10);
        state.on_notification(&parameters, now);
        run_until(&mut state, &parameters, now + Span::from_us(4));
        let once = rate(&state);
        state.on_notification(&parameters, now + Span::from_us(5));
        assert_eq!(rate(&state), once, "a second cut within 4 us waits");
        run_until(&mut state, &parameters, now + Span::from_us(8));
        assert!(rate(&state) < once);
        for _ in 0..200_000 {
            now += Span::from_us(4);
            run_until(&mut state, &parameters, now);
            state.on_notification(&parameters, now);
        }
        assert!(rate(&state) >= parameters.minimum.as_bps());
    }
}
