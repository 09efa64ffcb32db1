//! Looks on while jobs run: a line of progress on a terminal, taps, Ctrl-C.

use std::time::Instant;

use railnet_core::{Digest, Time};
use railnet_sim::{JobProgress, JobWatch, Run, Scenario};
use railnet_topology::FabricGraph;

use super::about;
use super::screen::time;
use crate::interrupt::Interrupt;
use crate::sim::capture::{Capture, Options, Written};
use crate::sim::progress::Progress;
use crate::wire::Wire;

/// The least part of a run from which what is left can be told.
const KNOWN: f64 = 0.02;

pub(super) struct Onlooker<'a> {
    options: Option<&'a Options>,
    wire: Wire,
    graph: FabricGraph,
    capture: Option<Capture>,
    /// Why there is no capture.
    broken: Option<anyhow::Error>,
    progress: Progress,
    interrupt: Interrupt,
    began: Instant,
    shown: Instant,
}

impl<'a> Onlooker<'a> {
    pub(super) fn new(options: Option<&'a Options>, wire: Wire, scenario: &Scenario) -> anyhow::Result<Self> {
        let (began, interrupt) = (Instant::now(), Interrupt::catch()?);
        let graph = railnet_sim::graph(scenario)?;
        let (progress, capture, broken) = (Progress::new(), None, None);
        Ok(Self { options, wire, graph, capture, broken, progress, interrupt, began, shown: began })
    }

    /// The run is over, one way or the other.
    pub(super) fn finish(&mut self) -> anyhow::Result<Option<Written>> {
        self.progress.clear();
        match self.broken.take() {
            Some(error) => Err(error),
            None => self.capture.take().map(Capture::finish).transpose(),
        }
    }

    fn line(&self, progress: &JobProgress) -> String {
        let (steps, all) = progress.steps;
        let part = progress.calls.0 as f64 / progress.calls.1.max(1) as f64;
        let passed = self.began.elapsed().as_secs_f64();
        let left = match part {
            part if part >= KNOWN && !progress.is_second => {
                format!(" · about {} left", about(passed / part * (1.0 - part)))
            }
            _ => String::new(),
        };
        format!(
            "{}step {} of {all} · {:.0} % of all calls · {} simulated · {:.1} M events/s{left}",
            if progress.is_second { "without faults: " } else { "" },
            (steps + 1).min(all),
            part * 100.0,
            time(progress.now - Time::ZERO),
            progress.events as f64 / passed.max(1e-9) / 1e6
        )
    }
}

impl JobWatch for Onlooker<'_> {
    fn begin(&mut self, run: &mut Run<Digest>) {
        run.set_wire(self.wire.form());
        let Some(options) = self.options else { return };
        match Capture::open(options, self.graph.clone(), run) {
            Ok(capture) => self.capture = capture,
            Err(error) => self.broken = Some(error),
        }
    }

    fn look(&mut self, run: &mut Run<Digest>, progress: &JobProgress) -> bool {
        if let Some(capture) = self.capture.as_mut().filter(|_| !progress.is_second)
            && let Err(error) = capture.take(run)
        {
            self.broken.get_or_insert(error);
        }
        if self.progress.is_due(self.shown) {
            self.shown = Instant::now();
            self.progress.show(&self.line(progress));
        }
        self.broken.is_none() && !self.interrupt.is_set()
    }
}
