//! Jobs from outside: the built-in one, `railnet sim` with a `[model]`, and `railnet check`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness;
use crate::harness::{railnet, text, written};

const SMALL: &str = "steps = 2\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric.link]\nrate = \"400Gbps\"\n\
                     [model]\nname = \"tiny\"\n";

fn json(file: &str) -> Value {
    let output = railnet(&["sim", file, "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn no_argument_runs_the_built_in_job_and_tells_its_life_on_one_screen() {
    let output = railnet(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let screen = text(&output.stdout);
    assert!(screen.contains("built-in job \"life-of-a-job\" · packet fidelity · seed 1"), "{screen}");
    assert!(screen.contains("2 nodes × 8 H100 SXM5, 16 ranks, node01:29500"), "{screen}");
    assert!(screen.contains("124 M parameters, data × 16, bf16"), "{screen}");
    for row in
        ["Meet", "Connect", "step 1", "Where the time goes", "Slowest rank", "The network", "Digest", "Try"]
    {
        assert!(screen.contains(&format!("\n  {row}")), "no {row}: {screen}");
    }
    assert!(screen.lines().count() <= 40, "{screen}");
}

#[test]
fn the_parts_of_a_step_add_up_to_it_for_programs() {
    let value = json(&written("job-parts.toml", SMALL));
    let job = &value["jobs"][0];
    assert_eq!(job["steps_us"].as_array().unwrap().len(), 2);
    let parts = job["average_us"].as_object().unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let plain: f64 = parts.values().filter(|value| value.is_number()).map(number).sum();
    let exposed: f64 = parts["exposed"].as_object().unwrap().values().map(number).sum();
    let step = number(&job["step_us"]);
    assert!((plain + exposed - step).abs() < 0.01 * step, "{parts:?} and {step}");
    assert!(value["network"]["links"].as_array().unwrap().len() > 16);
    assert_eq!(value["fidelity"], "packet");
}

#[test]
fn a_run_by_formulas_says_where_packets_may_differ_and_why() {
    let rails = "[fabric]\ntopology = { kind = \"rail-optimised\", nodes = 2, rails = 8, nodes_per_group = 2, spines = 1 }\n";
    let leaves =
        "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 8, spines = 2 }\n";
    let four = rails.replace("nodes = 2", "nodes = 4").replace("per_group = 2", "per_group = 4");
    let sharp = format!("switch = {{ aggregation = {{}} }}\n{four}").replace("[fabric]\n", "");
    let sharp = format!("[fabric]\n{sharp}");
    let large = "[model]\nname = \"gpt-400m\"\n[training]\nglobal_batch = 64\n";
    let tiny = "[model]\nname = \"tiny\"\n[training]\nglobal_batch = 32\n";
    let allowed = "[env]\nNCCL_COLLNET_ENABLE = \"1\"\n";
    let cases = [
        ("hop_latency", format!("{rails}link.rate = \"400Gbps\"\n{tiny}")),
        ("hash_collisions", format!("{leaves}link.rate = \"100Gbps\"\nrouting = \"ecmp\"\n{tiny}")),
        ("switch_bandwidth", format!("{sharp}link.rate = \"400Gbps\"\n{large}{allowed}")),
        ("", format!("{rails}link.rate = \"50Gbps\"\n{tiny}")),
    ];
    for (what, rest) in cases {
        let name = format!("job-caveat-{what}.toml");
        let file =
            written(&name, &format!("fidelity = \"analytic\"\n[cluster]\nserver = \"dgx-h100\"\n{rest}"));
        let value = json(&file);
        let caveats = value["jobs"][0]["caveats"].as_array().unwrap();
        let screen = text(&railnet(&["sim", &file]).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        if what.is_empty() {
            assert!(caveats.is_empty() && !screen.contains("traffic: NCCL's"), "{caveats:?}\n{screen}");
            continue;
        }
        let one = caveats.iter().find(|one| one["what"] == what);
        let one = one.unwrap_or_else(|| panic!("no {what} in {caveats:?}\n{screen}"));
        let scope = one["scope"].as_str().unwrap().replace('_', " ");
        let line = format!("Careful: {scope} traffic: {}", one["why"].as_str().unwrap());
        assert!(screen.contains(&line), "no {line:?} in {screen}");
        // Several runs say it once.
        let sweep = text(&railnet(&["sim", &file, "--sweep", "training.global_batch=64,128"]).stdout);
        let compared = text(&railnet(&["compare", &file, &file]).stdout);
        for several in [sweep, compared] {
            let flat = several.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(flat.matches(&format!("Careful: {scope} traffic: ")).count(), 1, "{several}");
        }
    }
}

#[test]
fn jobs_that_are_computed_apart_say_so_wherever_their_times_are() {
    let jobs = "[cluster]\nserver = \"dgx-h100\"\nnodes = 4\n[[job]]\nlaunch = { nodes = 2 }\nmodel = { name = \"tiny\" }\n\
                [[job]]\nmodel = { name = \"tiny\" }\n";
    let file = written("job-apart.toml", &format!("fidelity = \"analytic\"\n{jobs}"));
    for job in json(&file)["jobs"].as_array().unwrap() {
        assert!(job["caveats"].as_array().unwrap().iter().any(|one| one["what"] == "other_jobs"), "{job:#}");
    }
    let told = "Careful: all traffic: each job is computed as if it had the fabric to itself; use `--fidelity packet`";
    let sweep = ["sim", &file, "--sweep", "fabric.link.rate=100Gbps,400Gbps"];
    for arguments in [&["sim", &file][..], &sweep, &["compare", &file, &file]] {
        let flat = text(&railnet(arguments).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(flat.matches(told).count(), 1, "{arguments:?}: {flat}");
        assert!(!flat.contains(" runs)"), "jobs of one run are no runs of their own: {flat}");
    }
    // With packets each is in the way of the other.
    let packets = text(&railnet(&["sim", &written("job-together.toml", jobs)]).stdout);
    assert!(!packets.contains("to itself"), "{packets}");
}

#[test]
fn variables_that_are_not_read_are_named_on_the_screen_and_for_programs() {
    let file = written(
        "job-unread.toml",
        &format!("fidelity = \"analytic\"\n{SMALL}[env]\nSHARP_COLL_LOG_LEVEL = 3\n"),
    );
    for command in ["sim", "plan"] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_railnet"));
        run.args([command, &file]).args(if command == "sim" { &["--json", "-"][..] } else { &["--json"] });
        let output = run.env("NCCL_SOCKET_NTHREADS", "4").env("UCX_TLS", "rc").output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let listed = value["without_effect"].as_array().unwrap_or_else(|| panic!("{value:#}")).clone();
        let told = text(&output.stderr);
        for name in ["SHARP_COLL_LOG_LEVEL", "NCCL_SOCKET_NTHREADS", "UCX_TLS"] {
            assert!(
                listed.iter().any(|one| one["key"] == format!("env.{name}")),
                "{command}: {name} in {listed:?}"
            );
            assert_eq!(told.matches(name).count(), 1, "{command}: {told}");
        }
    }
}

#[test]
fn a_file_that_was_checked_says_all_and_runs_the_same() {
    let files = [
        ("checked-job.toml", SMALL.to_owned()),
        ("checked-formulas.toml", format!("fidelity = \"analytic\"\n{SMALL}[parallel]\nfsdp = true\n")),
        (
            "checked-lists.toml",
            "fidelity = \"analytic\"\n[[cluster.groups]]\nserver = \"dgx-h100\"\nnodes = 2\n[[cluster.groups]]\nserver = \"dgx-a100\"\n\
             nodes = 1\n[[job]]\nlaunch = { nodes = 2 }\nmodel = { name = \"tiny\" }\n[[job]]\n[job.model]\nname = \"tiny\"\n\
             [job.storage]\nrate = \"8GB/s\"\ninterval = 1\n[[faults]]\nkind = \"nvlink-down\"\ngpu = 3\n"
                .to_owned(),
        ),
        (
            "checked-traffic.toml",
            "[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\n[[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n"
                .to_owned(),
        ),
    ];
    for (name, contents) in files {
        let file = written(name, &contents);
        let checked = railnet(&["check", &file]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        let printed = text(&checked.stdout);
        assert!(printed.contains("mtu = 4096                                   # default"), "{printed}");
        let again = written(&format!("again-{name}"), &printed);
        assert_eq!(json(&file)["digest"], json(&again)["digest"], "{printed}");
        // Nothing is left to fill in.
        assert!(!text(&railnet(&["check", &again]).stdout).contains("# default"), "{printed}");
    }
}

#[test]
fn a_job_that_does_not_fit_is_refused_with_what_would() {
    let file = written(
        "big.toml",
        "[cluster]\nserver = \"dgx-h100\"\nnodes = 8\n[model]\nname = \"llama-3-70b\"\n[parallel]\ntp = 8\n",
    );
    let output = railnet(&["sim", &file]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.starts_with("error: llama-3-70b does not fit: "), "{message}");
    assert!(message.contains("\n  parameters 17.6 · gradients 17.6 · optimiser"), "{message}");
    assert!(message.contains("\n  help: `zero = "), "{message}");
}

#[test]
fn a_wrong_name_is_marked_and_the_right_one_proposed() {
    let file = written("wrong-model.toml", &SMALL.replace("tiny", "tinny"));
    let message = text(&railnet(&["sim", &file]).stderr);
    assert!(message.contains("unknown model \"tinny\"") && message.contains(":8:8\n"), "{message}");
    assert!(message.ends_with("= did you mean \"tiny\"?\n"), "{message}");
    let file = written("wrong-key.toml", &format!("{SMALL}[parallel]\ntpp = 2\n"));
    let message = text(&railnet(&["sim", &file]).stderr);
    assert!(message.contains("unknown key \"tpp\"") && message.contains("did you mean \"tp\"?"), "{message}");
}

#[test]
fn tables_series_and_packets_of_a_job_are_written() {
    let file = written("job-tables.toml", SMALL);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("job-tables");
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("job-tables.pcapng");
    let (tables, packets) = (directory.to_str().unwrap(), capture.to_str().unwrap());
    let output = railnet(&[
        "sim",
        &file,
        "--csv",
        tables,
        "--sample",
        "20us",
        "--pcap",
        packets,
        "--tap",
        "node0.nic0",
        "--force",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = |name: &str| fs::read_to_string(directory.join(name)).unwrap().lines().count();
    assert_eq!(lines("steps.csv"), 3, "two steps and a head");
    assert!(lines("said.csv") > 1 && lines("links.csv") > 16, "what was said, and every link");
    assert!(lines("series.csv") > 10, "more than one look at the links");
    // Packets of the collectives, both ways over the link.
    let decoded = railnet(&["decode", packets]);
    assert!(text(&decoded.stdout).lines().count() > 100, "{}", text(&decoded.stderr));
    // Who looks on changes nothing.
    let plain = json(&file);
    let watched = railnet(&["sim", &file, "--json", "-", "--sample", "20us", "--wire", "bytes"]);
    let watched: Value = serde_json::from_slice(&watched.stdout).unwrap();
    assert_eq!(plain["digest"], watched["digest"]);
    assert!(!watched["series"]["links"].as_array().unwrap().is_empty());
}

#[test]
fn a_sweep_over_jobs_compares_their_steps() {
    let file = written("job-sweep.toml", SMALL);
    let output = railnet(&["sim", &file, "--sweep", "fidelity=packet,analytic", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps: Vec<f64> =
        value["points"].as_array().unwrap().iter().map(|point| point["step_us"].as_f64().unwrap()).collect();
    assert_eq!(steps.len(), 2);
    assert!(steps.iter().all(|step| *step > 0.0), "{steps:?}");
    let shown = text(&railnet(&["sim", &file, "--sweep", "seed=1,2"]).stdout);
    assert!(shown.contains("step µs") && shown.contains("tokens/s"), "{shown}");
}

#[test]
fn what_looks_at_packets_is_refused_where_there_are_none() {
    let file = written("job-formulas.toml", &format!("fidelity = \"analytic\"\n{SMALL}"));
    let output = railnet(&["sim", &file, "--pcap", "none.pcapng"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn nothing_from_memory_is_the_same() {
    let file = written("job-memo.toml", &format!("{SMALL}[parallel]\ntp = 4\n"));
    let with = json(&file);
    let without = railnet(&["sim", &file, "--no-memo", "--json", "-"]);
    let without: Value = serde_json::from_slice(&without.stdout).unwrap();
    assert_eq!(with["digest"], without["digest"]);
    assert_eq!(with["collectives"]["calls"], without["collectives"]["calls"]);
    assert!(with["collectives"]["from_memory"].as_u64().unwrap() > 0);
    assert_eq!(without["collectives"]["from_memory"], 0);
}

#[test]
fn threads_change_nothing() {
    let job = "[cluster]\nserver = \"dgx-h100\"\nnodes = 8\n[model]\nname = \"tiny\"\n[parallel]\ntp = 4\n";
    let file = written("job-threads.toml", job);
    let [one, two] = ["1", "2"].map(|threads| -> Value {
        let output = railnet(&["sim", &file, "--threads", threads, "--json", "-"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
    });
    for key in ["digest", "collectives", "jobs"] {
        assert_eq!(one[key], two[key], "{key}");
    }
    assert_eq!(one["network"]["links"], two["network"]["links"]);
    let plain = written(
        "job-threads-plain.toml",
        "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n[[traffic]]\nkind = \"permutation\"\nbytes = \"1KB\"\n",
    );
    let output = railnet(&["sim", &plain, "--threads", "2"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("single run of a job"), "{}", text(&output.stderr));
}

/// Starts a run that would take minutes, presses Ctrl-C once it is under way, and gives what it says then.
fn interrupted(file: &str) -> Value {
    let mut child = harness::command::<&str>(&[])
        .args(["sim", file, "--json", "-"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Before it catches the signal it would just end: it has by the time its processor time shows that it computes.
    let status = format!("/proc/{}/stat", child.id());
    let ticks = || -> u64 {
        let stat = fs::read_to_string(&status).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(11).unwrap().parse().unwrap()
    };
    while ticks() < 40 {
        assert!(child.try_wait().unwrap().is_none(), "it was over before it could be stopped");
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn ctrl_c_gives_what_is_known_of_a_job_by_then() {
    let job = SMALL.replace("\"tiny\"", "\"gpt-400m\"").replace("steps = 2", "steps = 200");
    let value = interrupted(&written("job-stopped.toml", &job));
    assert_eq!(value["partial"], true);
    let job = &value["jobs"][0];
    assert!(job["step_us"].as_f64().unwrap() > 0.0, "{job}");
    assert!(value["network"]["packet_hops"].as_u64().unwrap() > 0);
}

#[test]
fn ctrl_c_gives_what_is_known_of_traffic_by_then() {
    let traffic = "[fabric]\ntopology = { kind = \"fat-tree\", k = 8 }\n[[traffic]]\nkind = \"permutation\"\nbytes = \"40GB\"\n";
    let value = interrupted(&written("traffic-stopped.toml", traffic));
    assert_eq!(value["partial"], true);
    assert!(value["packet_hops"].as_u64().unwrap() > 0 && value["completion_us"].as_f64().unwrap() > 0.0);
}
