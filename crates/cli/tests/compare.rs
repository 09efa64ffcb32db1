//! `railnet compare` from outside.
#![allow(clippy::float_cmp, reason = "the same run has the same numbers, to the bit")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness;
use crate::harness::{railnet_with, text, written};

#[track_caller]
fn told(arguments: &[&str]) -> String {
    let output = railnet_with(arguments, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&told(&[arguments, &["--json"]].concat())).unwrap()
}

/// A number of a contestant, in one part of a set.
#[track_caller]
fn number(value: &Value, part: usize, name: &str, key: &str) -> f64 {
    let found = &value["parts"][part]["outcome"][name][key];
    found.as_f64().unwrap_or_else(|| panic!("{name} {key}: {found}"))
}

const JOB: &str = "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric.link]\nrate = \"400Gbps\"\n[model]\nname = \"tiny\"\n";

#[test]
fn two_jobs_differ_by_a_key_and_what_it_does() {
    let (one, other) = (
        written("compare-a.toml", JOB),
        written("compare-b.toml", &format!("fidelity = \"analytic\"\n{JOB}[parallel]\nzero = 3\n")),
    );
    let analytic = written("compare-c.toml", &format!("fidelity = \"analytic\"\n{JOB}"));
    let screen = told(&["compare", &analytic, &other]);
    let (notices, lines): (Vec<&str>, Vec<&str>) =
        screen.lines().partition(|line| line.starts_with("  Careful: "));
    assert!(
        matches!(notices[..], [one] if one.contains("NVLSTree") && one.ends_with("(1 of 2 runs)")),
        "{screen}"
    );
    assert!(lines[0].split_whitespace().eq(["What", "differs", "compare-c", "compare-b"]), "{screen}");
    assert!(lines[1].split_whitespace().eq(["parallel.zero", "0", "(default)", "3"]), "{screen}");
    assert!(screen.contains("\n  step  ") && screen.contains("tokens/s"), "{screen}");
    // The same numbers as the runs by themselves.
    let value = json(&["compare", &one, &other]);
    for (file, name) in [(&one, "compare-a"), (&other, "compare-b")] {
        let run: Value =
            serde_json::from_slice(&railnet_with(&["sim", file, "--json", "-"], &[]).stdout).unwrap();
        let job = &run["jobs"][0];
        assert_eq!(number(&value, 0, name, "step_us"), job["step_us"].as_f64().unwrap());
        assert_eq!(number(&value, 0, name, "mfu"), job["mfu"].as_f64().unwrap());
        assert_eq!(value["parts"][0]["outcome"][name]["digest"], run["digest"]);
    }
    assert_eq!(value["differs"]["fidelity"]["compare-b"], "\"analytic\"");
    assert_eq!(value["lesson"], Value::Null);
}

#[test]
fn traffic_is_compared_and_the_same_says_so() {
    let file = "scenarios/incast.toml";
    let twin = written(
        "incast-twin.toml",
        &fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap(),
    );
    let screen = told(&["compare", file, &twin]);
    assert!(screen.contains("What differs: nothing, the scenarios say the same"), "{screen}");
    assert!(screen.contains("The same: completed after (JCT)"), "{screen}");
    let value = json(&["compare", file, "scenarios/incast-credits.toml"]);
    assert!(number(&value, 0, "incast", "marks") > 0.0);
    assert_eq!(number(&value, 0, "incast-credits", "marks"), 0.0);
    assert_eq!(value["differs"]["fabric.switch.flow_control"]["incast-credits"], "\"credits\"");
    let verbose = told(&["compare", file, "scenarios/incast-credits.toml", "--verbose"]);
    assert!(verbose.contains("which is") && verbose.contains("host16"), "{verbose}");
}

#[test]
fn collectives_are_compared_call_by_call() {
    let text = "[fabric]\ntopology = { kind = \"rail-optimised\", nodes = 2, rails = 8, nodes_per_group = 2, spines = 2 }\nlink = \
                { rate = \"400Gbps\", delay = \"500ns\" }\n[cluster]\nserver = \"dgx-h100\"\n[[collective]]\nkind = \"all_reduce\"\n\
                size = \"1MiB\"\nalgorithm = \"ring\"\nplacement = \"out\"\n";
    let one = written("coll-ring.toml", text);
    let other = written("coll-tree.toml", &text.replace("\"ring\"", "\"tree\""));
    let screen = told(&["compare", &one, &other]);
    assert!(
        screen.contains("collective.0.algorithm  \"ring\"")
            && screen.contains("AllReduce of 1.05 MB, 16 ranks"),
        "{screen}"
    );
    let value = json(&["compare", &one, &other]);
    assert!(
        number(&value, 0, "coll-ring", "collective0_us") > number(&value, 0, "coll-tree", "collective0_us")
    );
}

/// What articles say of the three: four copies, two, none; a busy CPU and two idle ones; tens of microseconds against one.
#[test]
fn transports_are_in_the_order_that_everybody_expects() {
    let value = json(&["compare", "transports"]);
    let of = |part: usize, key: &str| {
        ["tcp", "rdma-bounced", "gpudirect"].map(|name| number(&value, part, name, key))
    };
    assert_eq!(of(2, "copies"), [4.0, 2.0, 0.0]);
    let cpu = of(2, "cpu_us");
    assert!(cpu[0] > 0.0 && cpu[1] == 0.0 && cpu[2] == 0.0, "{cpu:?}");
    let memory = of(2, "host_memory_bytes");
    assert!(memory[0] == memory[1] && memory[1] > 0.0 && memory[2] == 0.0, "{memory:?}");
    for (part, key) in [(0, "completion_us"), (1, "completion_us"), (2, "step_us")] {
        assert!(of(part, key).is_sorted_by(|a, b| a > b), "{part} {key}: {:?}", of(part, key));
    }
    assert!(of(0, "completion_us")[0] > 5.0 * of(0, "completion_us")[2]);
    let lesson = value["lesson"].as_str().unwrap();
    assert!(lesson.starts_with("TCP copies each byte 4 times"), "{lesson}");
}

#[test]
fn networks_and_routing_differ_where_flows_meet() {
    let value = json(&["compare", "infiniband-roce"]);
    let of = |part: usize, key: &str| {
        ["infiniband", "infiniband-adaptive", "roce-dcqcn"].map(|name| number(&value, part, name, key))
    };
    assert!(of(0, "completion_us")[1] < of(0, "completion_us")[0]);
    assert_eq!(of(1, "drops"), [0.0; 3]);
    assert!(of(1, "marks")[2] > 0.0 && of(1, "marks")[0] == 0.0);
    let value = json(&["compare", "routing"]);
    let of = |key: &str| ["ecmp", "adaptive", "spray"].map(|name| number(&value, 0, name, key));
    assert!(of("completion_us")[2] < 0.7 * of("completion_us")[0]);
    assert!(of("flow_us_p99")[2] < of("flow_us_p99")[0]);
    // One row of difference: nothing else was changed.
    assert_eq!(value["differs"].as_object().unwrap().len(), 1);
}

#[test]
fn rails_do_not_need_the_spine() {
    let value = json(&["compare", "rails"]);
    let of = |key: &str| {
        ["racks", "rails", "racks, ¼ spine", "rails, ¼ spine"].map(|name| number(&value, 0, name, key))
    };
    let (step, hops) = (of("step_us"), of("packet_hops"));
    assert_eq!(step[1], step[3]);
    assert!(step[2] > 1.1 * step[0], "{step:?}");
    assert_eq!(hops[0], 2.0 * hops[1]);
}

/// Compares a run of a moment with one of minutes, presses Ctrl-C in the middle, and gives what it says then.
fn interrupted(arguments: &[&str]) -> String {
    let fabric = "[fabric]\ntopology = { kind = \"fat-tree\", k = 8 }\n[[traffic]]\nkind = \"permutation\"\n";
    let tiny =
        "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n[[traffic]]\nkind = \"permutation\"\n";
    let short = written("compare-short.toml", &format!("{tiny}bytes = \"1KB\"\n"));
    let long = written("compare-long.toml", &format!("{fabric}bytes = \"40GB\"\n"));
    let mut child = harness::command::<&str>(&[])
        .args([&["compare", &short, &long], arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It catches signals before it computes, and the short run needs far less processor time than this.
    let status = format!("/proc/{}/stat", child.id());
    let ticks = || -> u64 {
        let stat = fs::read_to_string(&status).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(11).unwrap().parse().unwrap()
    };
    while ticks() < 40 {
        assert!(child.try_wait().unwrap().is_none(), "it was over before it could be stopped");
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    text(&output.stdout)
}

#[test]
fn ctrl_c_gives_the_runs_that_had_come_to_their_end() {
    let value: Value = serde_json::from_str(&interrupted(&["--json"])).unwrap();
    assert_eq!(value["partial"], true);
    let outcome = &value["parts"][0]["outcome"];
    assert!(outcome["compare-short"]["completion_us"].as_f64().unwrap() > 0.0, "{outcome}");
    assert!(outcome["compare-long"].is_null(), "{outcome}");
    let screen = interrupted(&[]);
    assert!(screen.contains("PARTIAL: stopped before the end of compare-long"), "{screen}");
    assert!(screen.contains("completed after (JCT)"), "{screen}");
}

#[test]
fn wrong_usage_says_what_would_be_right() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&[], 2, "<FILE|SET>..."),
        (&["transport"], 2, "did you mean \"transports\"?"),
        (
            &["nowhere.toml", "scenarios/incast.toml"],
            2,
            "\"nowhere.toml\" is no file, no set and no scenario that ships: sets are transports, rails",
        ),
        (&["scenarios/incast.toml"], 2, "is one scenario: name another to compare it with"),
        (&["scenarios/incast.toml", "scenarios"], 2, "scenarios is a directory"),
        (&["scenarios/incast.toml", "scenarios/deadlock.toml"], 1, "deadlock"),
    ];
    for (arguments, code, expected) in cases {
        let output = railnet_with(&[&["compare"], arguments].concat(), &[]);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
    assert!(told(&["compare", "--help"]).contains("railnet compare infiniband-roce"));
}
