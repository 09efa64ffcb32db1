//! Observes jobs while they run: a line of progress on a terminal, taps, Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use railnet_core::event::{NoSink, Sink};
use railnet_core::{Digest, Time};
use railnet_formats::run_file::Recorder;
use railnet_sim::{JobObserver, JobProgress, Run, Scenario};
use railnet_topology::FabricGraph;

use super::about;

use crate::files::Output;
use crate::interrupt::Interrupt;
use crate::sim::capture::{Capture, Options, Written};
use crate::sim::progress::Progress;
use crate::sim::record;
use crate::sim::setup::SetUp;
use crate::wire::Wire;
use crate::words::{count, time};

/// The least part of a run from which what is left can be told.
const KNOWN: f64 = 0.02;

pub(super) struct JobMonitor<'a> {
    options: Option<&'a Options>,
    pcap: Option<Output>,
    wire: Wire,
    graph: FabricGraph,
    capture: Option<Capture>,
    /// Why there is no capture.
    broken: Option<anyhow::Error>,
    progress: Progress,
    interrupt: Interrupt,
    /// As long as the run goes on.
    set_up: Option<SetUp>,
    /// What is set up.
    of: String,
    /// Whether a run is set up or over, of which all is known.
    is_baseline: bool,
    began: Instant,
    shown: Instant,
}

impl<'a> JobMonitor<'a> {
    pub(super) fn new(
        options: Option<&'a Options>,
        pcap: Option<Output>,
        wire: Wire,
        scenario: &Scenario,
    ) -> anyhow::Result<Self> {
        let (began, interrupt) = (Instant::now(), Interrupt::catch()?);
        let graph = railnet_sim::graph(scenario)?;
        let (progress, capture, broken) = (Progress::new(), None, None);
        let gpus = scenario.servers().map_or(0, |cluster| cluster.gpus());
        let of = count(u64::from(gpus), "GPU", "GPUs");
        Ok(Self {
            options,
            pcap,
            wire,
            graph,
            capture,
            broken,
            progress,
            interrupt,
            set_up: None,
            of,
            is_baseline: false,
            began,
            shown: began,
        })
    }

    /// The run is over, one way or the other.
    pub(super) fn finish(&mut self) -> anyhow::Result<Option<Written>> {
        self.set_up = None;
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
            part if part >= KNOWN && !progress.is_baseline => {
                format!(" · about {} left", about(passed / part * (1.0 - part)))
            }
            _ => String::new(),
        };
        format!(
            "{}step {} of {all} · {:.0} % of all calls · {} simulated · {:.1} M events/s{left}",
            if progress.is_baseline { "without faults: " } else { "" },
            (steps + 1).min(all),
            part * 100.0,
            time(progress.now - Time::ZERO),
            progress.events as f64 / passed.max(1e-9) / 1e6
        )
    }

    fn open<S: Sink>(&mut self, run: &mut Run<S>) {
        run.set_wire(self.wire.form());
        let Some(options) = self.options else { return };
        match Capture::open(options, self.graph.clone(), self.pcap.take(), run) {
            Ok(capture) => self.capture = capture,
            Err(error) => self.broken = Some(error),
        }
    }

    fn take<S: Sink>(&mut self, run: &mut Run<S>) {
        if let Some(capture) = &mut self.capture
            && let Err(error) = capture.take(run)
        {
            self.broken.get_or_insert(error);
        }
    }

    /// A run is being set up.
    fn stage(&mut self, name: &'static str) {
        match &self.set_up {
            Some(set_up) => set_up.stage(name),
            None => {
                let (of, interrupt) = (self.of.clone(), self.interrupt.clone());
                self.set_up = Some(SetUp::begin(of, name, interrupt, !self.is_baseline));
            }
        }
    }

    /// It is set up.
    fn goes(&mut self) {
        self.is_baseline = true;
        if let Some(set_up) = &self.set_up {
            set_up.runs();
        }
    }

    /// Says how far it is. Whether it shall go on.
    fn tell(&mut self, progress: &JobProgress) -> bool {
        if let Some(set_up) = &self.set_up
            && self.progress.is_due(self.shown)
        {
            self.shown = Instant::now();
            set_up.tell(self.line(progress));
        }
        self.broken.is_none() && !self.interrupt.is_set()
    }
}

impl JobObserver<NoSink> for JobMonitor<'_> {
    fn set_up(&mut self, stage: &'static str) {
        self.stage(stage);
    }

    fn begin(&mut self, run: &mut Run<(Digest, NoSink)>) {
        self.open(run);
    }

    fn runs(&mut self) {
        self.goes();
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        Some(self.interrupt.flag())
    }

    fn observe(&mut self, run: &mut Run<(Digest, NoSink)>, progress: &JobProgress) -> bool {
        self.take(run);
        self.tell(progress)
    }

    fn observe_baseline(&mut self, progress: &JobProgress) -> bool {
        self.tell(progress)
    }
}

/// Of a run that is recorded the recorder gets the frames, unless they go to a capture.
impl JobObserver<Recorder> for JobMonitor<'_> {
    fn set_up(&mut self, stage: &'static str) {
        self.stage(stage);
    }

    fn begin(&mut self, run: &mut Run<(Digest, Recorder)>) {
        self.open(run);
        if self.capture.is_none() {
            record::tap(&self.graph, run);
        }
    }

    fn runs(&mut self) {
        self.goes();
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        Some(self.interrupt.flag())
    }

    fn observe(&mut self, run: &mut Run<(Digest, Recorder)>, progress: &JobProgress) -> bool {
        match self.capture {
            Some(_) => self.take(run),
            None => record::take_frames(&self.graph, run),
        }
        self.tell(progress)
    }

    fn observe_baseline(&mut self, progress: &JobProgress) -> bool {
        self.tell(progress)
    }
}
