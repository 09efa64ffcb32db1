//! `railnet status` and `railnet doctor --process` on ranks that run.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::command;

const LIMIT: Duration = Duration::from_mins(2);

/// Ranks that measure until they are killed.
struct Job(Child);

impl Job {
    fn start(conduit: &str) -> Self {
        let arguments = [
            "perf",
            "all_reduce",
            "-n",
            "2",
            "--conduit",
            conduit,
            "-b",
            "1K",
            "-e",
            // Each size is measured for a while only: these take a minute.
            "64M",
            "--iterations",
            "100000000",
            "-c",
            "0",
        ];
        Self(command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Its status, once it has one of which that is so.
    fn status(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let done = command(&["status", &self.0.id().to_string(), "--json"]).output().unwrap();
            let found = serde_json::from_slice(&done.stdout).unwrap_or(Value::Null);
            if is_so(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "{found:#}{}", String::from_utf8_lossy(&done.stderr));
            std::thread::yield_now();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.0),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_running_job_tells_what_its_ranks_do() {
    for conduit in ["shm", "tcp", "roce"] {
        let job = Job::start(conduit);
        let are_in_calls = |found: &Value| {
            let ranks = found["jobs"][0]["ranks"].as_array();
            ranks.is_some_and(|ranks| {
                ranks.len() == 2
                    && ranks.iter().all(|rank| rank["calls_done"].as_u64().is_some_and(|done| done > 100))
            })
        };
        let found = job.status(are_in_calls);
        assert_eq!(found["jobs"].as_array().unwrap().len(), 1);
        assert_eq!(found["jobs"][0]["world_size"], 2);
        for (number, rank) in found["jobs"][0]["ranks"].as_array().unwrap().iter().enumerate() {
            assert_eq!(rank["rank"], number);
            assert_ne!(rank["state"], "does not answer");
            assert_eq!(rank["queue_pairs"].as_array().unwrap().is_empty(), conduit != "roce");
        }
        let pid = found["jobs"][0]["ranks"][1]["pid"].to_string();
        let doctor = command(&["doctor", "--process", &pid]).output().unwrap();
        let text = String::from_utf8(doctor.stdout).unwrap();
        assert!(doctor.status.success() && text.starts_with("Rank 1 of 2"), "{text}");
        assert_eq!(text.contains("packets sent") && text.contains(" RTS "), conduit == "roce", "{text}");
    }
}

#[test]
fn a_stopped_rank_does_not_answer_and_the_other_waits_for_it() {
    let job = Job::start("shm");
    let both = |found: &Value| found["jobs"][0]["ranks"].as_array().is_some_and(|ranks| ranks.len() == 2);
    let found = job.status(both);
    let pid = found["jobs"][0]["ranks"][1]["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // A process that is stopped cannot say anything: the kernel takes the connection, and the other rank says that it waits.
    let found = job.status(|found| found["jobs"][0]["waits"] == serde_json::json!([[0, 1]]));
    assert_eq!(found["jobs"][0]["awaited_only"], serde_json::json!([1]));
    assert_eq!(found["jobs"][0]["ranks"][0]["state"], "in a call");
    assert_eq!(found["jobs"][0]["do_not_answer"], serde_json::json!([1]));
    let text = command(&["status", &job.0.id().to_string()]).output().unwrap();
    assert_eq!(text.status.code(), Some(1));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("rank 1 does not answer: process"), "{text}");
    assert!(text.contains("others wait for rank 1, which waits for no other"), "{text}");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
}

#[test]
fn a_job_that_is_not_there_is_wrong_input() {
    let done = command(&["status", "no-such-job"]).output().unwrap();
    assert!(!done.status.success());
    assert!(String::from_utf8(done.stderr).unwrap().contains("no rank"), "an error says so");
}
