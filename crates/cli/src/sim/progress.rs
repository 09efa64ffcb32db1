//! A line that says how far a run is, on a terminal only.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use railnet_core::event::Sink;
use railnet_core::{Span, Time};
use railnet_sim::Run;

use crate::interrupt::Interrupt;
use crate::words;

/// Virtual time between two looks at the clock.
const STEP: Span = Span::from_us(10);
/// Of so many hosts; of more it is shorter, since as much takes longer then.
const STEP_HOSTS: u64 = 4_096;
const STEP_LEAST: Span = Span::from_ns(500);
/// The least time between two lines.
const INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Progress {
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal() }
    }

    /// Runs it to its end, and lets `each` look at it on the way and once more there. Whether it came to its end: with
    /// Ctrl-C it does not.
    pub(super) fn watch<S: Sink>(
        &self,
        run: &mut Run<S>,
        interrupt: &Interrupt,
        mut each: impl FnMut(&mut Run<S>) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let began = Instant::now();
        let mut shown = began;
        let mut goes_on = true;
        let step = STEP
            .min(Span::from_ps(STEP.as_ps() * STEP_HOSTS / u64::from(run.hosts().max(1))))
            .max(STEP_LEAST);
        while goes_on && !run.advance(step) {
            each(run)?;
            goes_on = !interrupt.is_set();
            if self.is_due(shown) {
                shown = Instant::now();
                let all = run.flows() + run.calls();
                let line = format!(
                    "{} µs simulated · {} of {} finished · {:.1} M events/s",
                    words::micros(run.now() - Time::ZERO),
                    words::grouped((all - run.unfinished()) as u64),
                    of(run),
                    run.events() as f64 / began.elapsed().as_secs_f64().max(1e-9) / 1e6
                );
                self.show(&line);
            }
        }
        self.clear();
        each(run)?;
        Ok(goes_on)
    }

    /// Whether it is time for another line.
    pub(super) fn is_due(&self, shown: Instant) -> bool {
        self.is_terminal && shown.elapsed() >= INTERVAL
    }

    pub(super) fn show(&self, line: &str) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", crate::terminal::cut(line));
        }
    }

    pub(super) fn clear(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// What a run is of: `16 flows`, `3 calls`, `16 flows and 3 calls`.
fn of<S: Sink>(run: &Run<S>) -> String {
    let flows = || words::count(run.flows() as u64, "flow", "flows");
    let calls = || words::count(run.calls() as u64, "call", "calls");
    match (run.flows(), run.calls()) {
        (_, 0) => flows(),
        (0, _) => calls(),
        _ => format!("{} and {}", flows(), calls()),
    }
}
