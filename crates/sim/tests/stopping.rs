//! A run of jobs that is asked to stop: on a large cluster microseconds of it take minutes, so it does not go on to the next look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use railnet_core::Digest;
use railnet_core::event::NoSink;
use railnet_sim::{JobProgress, JobSettings, JobWatch, JobsOutcome, Run, Scenario, run_jobs_with};

/// Has the run stop when all is set up, by the flag only.
#[derive(Default)]
struct Stopping {
    stop: Arc<AtomicBool>,
    looks: u32,
    asks: bool,
}

impl JobWatch<NoSink> for Stopping {
    fn runs(&mut self) {
        self.stop.store(self.asks, Ordering::Relaxed);
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.stop))
    }

    fn look(&mut self, _run: &mut Run<(Digest, NoSink)>, _progress: &JobProgress) -> bool {
        self.looks += 1;
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
    let mut watch = Stopping { asks, ..Stopping::default() };
    let settings = JobSettings { memo: true, threads, watch: Some(&mut watch) };
    let (outcome, _) = run_jobs_with(&scenario, NoSink, settings).expect("jobs run");
    (outcome, watch.looks)
}

#[test]
fn a_run_stops_before_the_next_look_where_its_flag_is_set() {
    // In the order of time, by epochs, and on two threads.
    for (nodes, threads) in [(2, 1), (8, 1), (8, 2)] {
        let (whole, looks) = run(nodes, threads, false);
        assert!(!whole.is_partial && looks > 2, "{nodes} nodes: {looks} looks");
        let (stopped, looks) = run(nodes, threads, true);
        assert!(stopped.is_partial && looks <= 1, "{nodes} nodes, {threads} threads: {looks} looks");
        assert!(stopped.jobs[0].steps.is_empty());
        let now = |outcome: &JobsOutcome| outcome.network.as_ref().expect("packets").completion;
        assert!(now(&stopped) < now(&whole));
    }
}
