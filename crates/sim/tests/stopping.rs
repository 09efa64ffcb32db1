//! A run of jobs that is asked to stop: on a large cluster microseconds of it take minutes, so it does not go on to the next observation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use railnet_core::Digest;
use railnet_core::event::NoSink;
use railnet_sim::{JobObserver, JobProgress, JobSettings, JobsOutcome, Run, Scenario, run_jobs_with};

/// Has the run stop when all is set up, by the flag only.
#[derive(Default)]
struct Stopping {
    stop: Arc<AtomicBool>,
    observations: u32,
    asks: bool,
}

impl JobObserver<NoSink> for Stopping {
    fn runs(&mut self) {
        self.stop.store(self.asks, Ordering::Relaxed);
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.stop))
    }

    fn observe(&mut self, _run: &mut Run<(Digest, NoSink)>, _progress: &JobProgress) -> bool {
        self.observations += 1;
        true
    }
}

fn run(nodes: u32, threads: u32, asks: bool) -> (JobsOutcome, u32) {
    let scenario = format!(
        "fidelity = \"packet\"\n[cluster]\nserver = \"dgx-h100\"\nnodes = {nodes}\n[model]\nname = \"tiny\"\n\
         [training]\nglobal_batch = {}\n[parallel]\ndp = {0}\n",
        8 * nodes
    );
    let scenario = Scenario::parse(&scenario).expect("a scenario");
    let mut observer = Stopping { asks, ..Stopping::default() };
    let settings = JobSettings { memo: true, threads, observer: Some(&mut observer) };
    let (outcome, _) = run_jobs_with(&scenario, NoSink, settings).expect("jobs run");
    (outcome, observer.observations)
}

#[test]
fn a_run_stops_before_the_next_observation_where_its_flag_is_set() {
    // In the order of time, by epochs, and on two threads.
    for (nodes, threads) in [(2, 1), (8, 1), (8, 2)] {
        let (whole, observations) = run(nodes, threads, false);
        assert!(!whole.is_partial && observations > 2, "{nodes} nodes: {observations} observations");
        let (stopped, observations) = run(nodes, threads, true);
        assert!(
            stopped.is_partial && observations <= 1,
            "{nodes} nodes, {threads} threads: {observations} observations"
        );
        assert!(stopped.jobs[0].steps.is_empty());
        let now = |outcome: &JobsOutcome| outcome.network.as_ref().expect("packets").completion;
        assert!(now(&stopped) < now(&whole));
    }
}
