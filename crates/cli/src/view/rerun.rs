//! The run again with one key changed, while somebody looks at it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use railnet_formats::run_file::Budget;
use serde_json::{Value, json};

use super::answers::Served;
use super::http::Response;
use crate::sim::record::{change, changed, run_again};

/// Keys that the page may change.
const KEYS: [&str; 5] = ["nic.control", "fabric.routing", "cluster.transport", "cluster.gpudirect", "faults"];
/// Runs that are kept.
const RUNS_MAX: usize = 16;

pub(super) type Runs = Arc<Mutex<Vec<Option<Arc<Served>>>>>;

/// The one that is being made, and how far it is.
#[derive(Default)]
struct Work {
    /// Which run it will be.
    run: usize,
    share: AtomicU64,
    error: Mutex<Option<String>>,
    is_over: std::sync::atomic::AtomicBool,
}

/// Makes runs again, one at a time.
pub(super) struct Reruns {
    runs: Runs,
    works: Mutex<Vec<Arc<Work>>>,
}

impl Reruns {
    pub(super) fn new(runs: Runs) -> Self {
        Self { runs, works: Mutex::new(Vec::new()) }
    }

    /// Starts one.
    pub(super) fn start(&self, body: &[u8]) -> Response {
        let Ok(asked) = serde_json::from_slice::<Value>(body) else {
            return Response::error(400, "write {\"key\":\"nic.control\",\"value\":\"swift\"}");
        };
        let (key, value) =
            (asked["key"].as_str().unwrap_or_default(), asked["value"].as_str().unwrap_or_default());
        if !KEYS.contains(&key) {
            return Response::error(400, &format!("only these can be changed here: {}", KEYS.join(", ")));
        }
        let (Ok(mut works), Ok(mut runs)) = (self.works.lock(), self.runs.lock()) else {
            return Response::error(500, "an earlier run failed badly: start the server again");
        };
        if works.last().is_some_and(|work| !work.is_over.load(Ordering::Acquire)) {
            return Response::error(409, "another one is under way");
        }
        if runs.len() >= RUNS_MAX {
            return Response::error(
                409,
                &format!("{RUNS_MAX} runs are enough for one sitting: start the server again"),
            );
        }
        let Some(first) = runs[0].clone() else { return Response::error(404, "there is no run") };
        let text = |name: &str| first.run.meta[name].as_str().unwrap_or_default();
        let file = match changed(text("name"), text("scenario"), key, value) {
            Ok(file) => file,
            Err(error) => return Response::error(400, &format!("{error:#}")),
        };
        let work = Arc::new(Work { run: runs.len(), ..Work::default() });
        runs.push(None);
        works.push(Arc::clone(&work));
        let (all, number) = (Arc::clone(&self.runs), work.run);
        let change = change(&first.run, key, value);
        let failed = Arc::clone(&work);
        let rerun = move || {
            let share = |share: f64| {
                work.share.store((share * 1e6) as u64, Ordering::Relaxed);
                true
            };
            match run_again(&file, Budget::default(), &share) {
                Ok(run) => {
                    if let (Ok(mut all), Some(mut run)) = (all.lock(), run) {
                        run.meta["change"] = change;
                        all[number] = Some(Arc::new(Served::new(run)));
                    }
                }
                Err(error) => {
                    if let Ok(mut place) = work.error.lock() {
                        *place = Some(format!("{error:#}"));
                    }
                }
            }
            work.is_over.store(true, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("railnet-rerun".to_owned()).spawn(rerun) {
            if let Ok(mut place) = failed.error.lock() {
                *place = Some(format!("cannot start a thread: {error}"));
            }
            failed.is_over.store(true, Ordering::Release);
        }
        Response::json(&json!({ "run": number }))
    }

    /// How far it is.
    pub(super) fn state(&self, run: usize) -> Response {
        let work =
            self.works.lock().ok().and_then(|works| works.iter().find(|work| work.run == run).cloned());
        let Some(work) = work else { return Response::error(404, &format!("run {run} was not asked for")) };
        if !work.is_over.load(Ordering::Acquire) {
            let share = work.share.load(Ordering::Relaxed) as f64 / 1e6;
            return Response::json(&json!({ "state": "running", "share": share }));
        }
        let error = work.error.lock().ok().and_then(|error| error.clone());
        Response::json(&match error {
            Some(error) => json!({ "state": "failed", "error": error }),
            None => json!({ "state": "done" }),
        })
    }
}
