//! `railnet dryrun` from outside. A shell script stands for the training script: what PyTorch leaves is in testdata/dryrun, and
//! python/tests/dryrun holds the modules in the process against PyTorch itself.
#![allow(clippy::float_cmp, reason = "the same run has the same numbers, to the bit")]

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{railnet_with, root, text};

fn testdata() -> PathBuf {
    root().join("testdata/dryrun")
}

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dryrun-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// Leaves a recording where the command told it to.
const LEAVES_ROLE: &str =
    r#"path=$(printf %s "$RAILNET_DRYRUN" | sed 's/.*"path":"\([^"]*\)".*/\1/'); cp "$0" "$path""#;

#[test]
fn a_recording_runs_as_a_job_with_its_lines() {
    let job = testdata().join("job.toml").display().to_string();
    let output = railnet_with(&["sim", &job], &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let screen = text(&output.stdout);
    for part in
        ["a recorded script: ", "  By line  ", "gpt.py:", "data parallel AllReduce", "  Memory  ", "(HFU)"]
    {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    let output = railnet_with(&["sim", &job, "--json", "-"], &[]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (job, recorded) = (&value["jobs"][0], &value["jobs"][0]["recorded"]);
    let lines = recorded["lines"].as_array().unwrap();
    let sum = |key: &str| lines.iter().map(|one| one[key].as_f64().unwrap()).sum::<f64>();
    // Lines share out all that is computed, and all calls.
    let average = &job["average_us"];
    let computes: f64 =
        ["forward", "backward", "optimiser"].iter().map(|part| average[part].as_f64().unwrap()).sum();
    assert!((sum("computes_us") - computes).abs() < 1.0, "{} {computes}", sum("computes_us"));
    let calls: f64 = job["said"].as_array().unwrap().iter().map(|one| one["count"].as_f64().unwrap()).sum();
    assert_eq!(sum("calls"), calls);
    // 124 M parameters in f32: those of GPT-2, whose head is tied to its words, with a padded vocabulary.
    assert_eq!(recorded["memory_bytes"]["parameters"].as_u64().unwrap() / 1_000_000, 497);
}

#[test]
fn a_slower_network_and_a_slower_cpu_make_the_step_longer() {
    let step = |settings: &[&str]| {
        let folder = scratch(&format!("slower-{}", settings.len()));
        let role = testdata().join("role.json").display().to_string();
        let folder = folder.display().to_string();
        let mut words = vec!["dryrun", "--cluster", "dgx-h100x8", "--out", &folder, "--json", "-"];
        words.extend(settings);
        words.extend(["--", "sh", "-c", LEAVES_ROLE, &role]);
        let output = railnet_with(&words, &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        value["jobs"][0]["step_us"].as_f64().unwrap()
    };
    let plain = step(&[]);
    let slow = step(&["--set", "fabric.link.rate=10Gbps"]);
    let starved = step(&["--set", "fabric.link.rate=400Gbps", "--launch", "200us"]);
    assert!(slow > 1.5 * plain && starved > 1.5 * plain, "{plain} {slow} {starved}");
}

#[test]
fn what_cannot_run_is_told_with_what_to_do() {
    let failed = |words: &[&str], status: i32| {
        let output = railnet_with(words, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        said
    };
    let folder = scratch("wrong").display().to_string();
    let start = ["dryrun", "--cluster", "dgx-h100x2", "--out", &folder];
    let with = |more: &[&'static str]| {
        let mut words = start.to_vec();
        words.extend(more);
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = |more: &[&'static str], status| {
        let words = with(more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        failed(&words, status)
    };
    let said = run(&["--", "torchrun", "--nproc-per-node=8", "train.py"], 2);
    assert!(said.contains("torchrun would start ranks"), "{said}");
    let said = run(&["--ranks", "17", "--", "python", "train.py"], 2);
    assert!(said.contains("--ranks 17: the cluster has 16 GPUs"), "{said}");
    let said = run(&["--roles", "0,16", "--", "true"], 2);
    assert!(said.contains("there is no rank 16 among 16"), "{said}");
    let said = run(&["--", "no-such-program"], 1);
    assert!(said.contains("cannot start no-such-program"), "{said}");
    let said = run(&["--", "true"], 1);
    assert!(said.contains("rank 0 ended without a step on a GPU"), "{said}");
    let said = run(&["--", "sh", "-c", "echo Traceback; echo KeyError: 3; exit 1"], 1);
    assert!(said.contains("rank 0 failed") && said.contains("KeyError: 3"), "{said}");
    let said = run(&["--timeout", "200ms", "--", "sleep", "60"], 1);
    assert!(said.contains("rank 0 has not run its steps within"), "{said}");
}
