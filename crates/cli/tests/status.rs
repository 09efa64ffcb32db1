//! How commands end: 0, 1 for what failed or was stopped, 2 for wrong usage and wrong input; and what signals leave.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read and write their files themselves"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::harness;
use crate::harness::written;

fn command(arguments: &[&str]) -> Command {
    let mut command = harness::command::<&str>(&[]);
    command.args(arguments).current_dir(env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

fn railnet(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_files_end_every_command_with_2_and_their_position() {
    let toml = written("status-broken.toml", b"seed = 1\nseed = \n");
    let binary = written("status-binary.toml", b"seed = 1\n# \xff\n");
    let xml = written("status-broken.xml", b"<system");
    let missing = "status-missing.toml";
    let commands: [&[&str]; 12] = [
        &["sim"],
        &["check"],
        &["topo"],
        &["plan"],
        &["compare", "incast"],
        &["submit"],
        &["tune", "allreduce", "1MiB", "--cluster"],
        &["sim", "incast", "--env-file"],
        &["topo", "dgx-h100", "--catalogue"],
        &["schedule", "--file"],
        &["view"],
        &["decode"],
    ];
    for words in commands {
        for file in [toml.as_str(), binary.as_str(), missing, env!("CARGO_TARGET_TMPDIR")] {
            // Lines such as these are variables.
            if words.contains(&"--env-file") && file == toml {
                continue;
            }
            let output = railnet(&[words, &[file]].concat());
            assert_eq!(output.status.code(), Some(2), "{words:?} {file}: {}", said(&output));
            assert!(!said(&output).contains("os error"), "{}", said(&output));
        }
    }
    for words in [&["topo"][..], &["tune", "allreduce", "1MiB", "--cluster"]] {
        assert_eq!(railnet(&[words, &[&xml]].concat()).status.code(), Some(2), "{words:?}");
    }
    let output = railnet(&["sim", &binary]);
    assert!(
        said(&output).contains("status-binary.toml:2:3: this is no text: byte 0xff"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_damaged_run_file_makes_no_report_and_no_panic() {
    // More packets than a report has.
    let traffic = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n\
                   [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"100MB\"\n";
    let scenario = written("status-view.toml", traffic);
    let recorded = written("status-view.rail", "");
    let output = railnet(&["sim", &scenario, "--record", &recorded, "--force"]);
    assert!(output.status.success(), "{}", said(&output));
    let whole = std::fs::read(&recorded).unwrap();
    let find = |text: &str, from: usize| {
        let found = whole[from..].windows(text.len()).position(|window| window == text.as_bytes());
        found.map(|at| from + at)
    };
    for table in ["hops", "frames"] {
        let begin = find(&format!("\"table\":\"{table}\""), 0).unwrap();
        let end = find("\"table\":", begin + 10).unwrap_or(whole.len());
        let mut damaged = whole.clone();
        for at in (begin + 4096..end - 4096).step_by(10_000) {
            damaged[at..at + 8].fill(0xff);
        }
        let (file, page) = (written("status-damaged.rail", &damaged), written("status-view.html", ""));
        let output = railnet(&["view", &file, "--report", &page, "--force"]);
        let told = said(&output);
        assert_eq!(output.status.code(), Some(2), "{table}: {told}");
        assert!(
            told.contains("status-damaged.rail: the run file is damaged") && !told.contains("panicked"),
            "{told}"
        );
    }
}

#[test]
fn a_run_that_fails_ends_with_1() {
    let output = railnet(&["sim", "deadlock"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
}

#[test]
fn negative_numbers_are_refused_in_the_options_own_words() {
    let cases: [(&[&str], &str); 5] = [
        (
            &["plan", "--model", "tiny", "--gpus", "-5"],
            "--gpus <N>: \"-5\" cannot be, a whole number from 1 to 524288",
        ),
        (&["sim", "incast", "--seed", "-1"], "--seed <SEED>: \"-1\" cannot be, a whole number, 0 or more"),
        (&["sim", "incast", "--threads", "0"], "--threads <N>: \"0\" cannot be, a whole number, 1 or more"),
        (
            &["topo", "dgx-h100", "--nodes", "-2"],
            "--nodes <COUNT>: \"-2\" cannot be, a whole number from 1 to 65536",
        ),
        (&["sim", "incast", "--sample", "-3us"], "-3us"),
    ];
    for (words, message) in cases {
        let output = railnet(words);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(message), "{}", said(&output));
        assert!(!said(&output).contains("unexpected argument"), "{}", said(&output));
    }
}

#[test]
fn a_scenario_comes_from_standard_input_or_by_its_name() {
    let text =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/lose-packet.toml")).unwrap();
    let digest = |output: &Output| {
        let value: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(output)));
        value["digest"].as_str().unwrap().to_owned()
    };
    let mut child = command(&["sim", "-", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let piped = child.wait_with_output().unwrap();
    assert_eq!(digest(&piped), digest(&railnet(&["sim", "lose-packet", "--json", "-"])));
    // Those that name files find them.
    for name in ["flows", "list-file", "chakra"] {
        assert!(railnet(&["check", name]).status.success(), "{name}");
    }
    let listed = railnet(&["list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(listed["scenarios"].as_array().unwrap().iter().any(|one| one["name"] == "job-slow-gpu"));
    let unknown = railnet(&["sim", "job-slow-gpuu"]);
    assert!(said(&unknown).contains("did you mean \"job-slow-gpu\"?"), "{}", said(&unknown));
}

#[test]
fn a_new_scenario_runs_and_is_never_written_over_another() {
    for (name, option) in [("status-new-job.toml", None), ("status-new-traffic.toml", Some("--traffic"))] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        let words: Vec<&str> = ["new", name].into_iter().chain(option).collect();
        assert!(railnet(&words).status.success());
        let ran = railnet(&["sim", name]);
        assert!(ran.status.success(), "{}", said(&ran));
        let again = railnet(&words);
        assert_eq!(again.status.code(), Some(2));
        assert!(said(&again).contains("is there already"), "{}", said(&again));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// A run that would not end is asked to stop, once it has begun.
#[test]
fn sigterm_and_ctrl_c_leave_what_is_known() {
    let long = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 3 }\n\
                [[traffic]]\nkind = \"incast\"\nfrom = \"0..1\"\nto = 2\nbytes = \"1000GB\"\n";
    let file = written("status-long.toml", long.as_bytes());
    for name in ["TERM", "INT"] {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("status-{name}.pcapng"));
        let _ = std::fs::remove_file(&out);
        let words = ["sim", &file, "--json", "-", "--pcap", out.to_str().unwrap(), "--snaplen", "60"];
        let child = command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let part = out.with_file_name(format!(".status-{name}.pcapng.railnet-part"));
        // The first packets are in it: the signals are caught by then.
        while !std::fs::metadata(&part).is_ok_and(|part| part.len() > 10_000) {
            std::thread::yield_now();
        }
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["partial"], true);
        assert!(out.exists() && !part.exists());
        std::fs::remove_file(out).unwrap();
    }
}

#[test]
fn a_validation_that_is_stopped_prints_the_rows_it_has() {
    let mut child =
        command(&["validate", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "servers …");
    signal(&child, "TERM");
    // What it says may not fill the pipe.
    let rest = std::thread::spawn(move || said.lines().map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["partial"], true);
    assert_eq!(value["parts"].as_array().unwrap().len(), 1);
    assert!(rest.join().unwrap().contains("PARTIAL"));
}

#[test]
fn a_sweep_that_is_stopped_has_the_points_that_are_over() {
    let text = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 3 }\n\
                [[traffic]]\nkind = \"incast\"\nfrom = \"0..1\"\nto = 2\nbytes = \"1KB\"\n";
    let file = written("status-sweep.toml", text.as_bytes());
    // The second point does not end by itself.
    let words = [
        "sim",
        &file,
        "--sweep",
        "traffic.0.bytes=1KB,1000GB",
        "--csv",
        "status-sweep",
        "--force",
        "--json",
        "-",
    ];
    let part = Path::new(env!("CARGO_TARGET_TMPDIR")).join("status-sweep/.sweep.csv.railnet-part");
    let child = command(&words).stdout(Stdio::piped()).spawn().unwrap();
    while !part.exists() {
        std::thread::yield_now();
    }
    // Signals are caught soon after the files are claimed: before, they end the command.
    let caught = |child: &Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
        u64::from_str_radix(mask, 16).unwrap_or(0) & (1 << 14) != 0
    };
    while !caught(&child) {
        std::thread::yield_now();
    }
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["points"][1]["error"], "stopped before its end");
    assert!(!part.exists() && part.with_file_name("sweep.csv").exists());
}
