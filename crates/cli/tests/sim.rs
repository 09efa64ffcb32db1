//! `railnet sim` from outside: what it prints, what it writes, and how it exits.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness;
use crate::harness::{json, railnet, text, written};

const SMALL: &str = "seed = 3\n[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\n\
                     [nic]\ncontrol = \"dcqcn\"\n[[traffic]]\nkind = \"permutation\"\nbytes = \"100KB\"\n";

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    path
}

/// The rows of a CSV file without quoted cells, and its header.
fn table(path: &Path) -> (Vec<String>, Vec<Vec<String>>) {
    let contents = fs::read_to_string(path).unwrap();
    let mut lines = contents.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let rows: Vec<_> = lines.collect();
    assert!(rows.iter().all(|row| row.len() == header.len()), "{contents}");
    (header, rows)
}

#[test]
fn the_summary_fits_a_screen_and_says_what_happened() {
    let file = written("summary.toml", SMALL);
    let output = railnet(&["sim", &file]);
    let summary = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(summary.lines().count() <= 24, "{summary}");
    for part in [
        "packet fidelity · seed 3\n",
        "Ran         16 flows, 1.6 MB       16 hosts and 20 switches, 48 links of 100 Gbps and 1 us",
        "With        control dcqcn          go-back-n, MTU 4096 B; switches: ecmp routing, flow control pfc",
        "Completed   ",
        "a flow, median; min ",
        "Throughput  ",
        "Dropped     0 packets              0 packets sent again, 0 timeouts",
        "Marked      ",
        "Paused      0 times                no link was held back",
        "Busiest     ",
        "Queues      ",
        "M packet-hops/s",
        "--seed 3 gives it again",
    ] {
        assert!(summary.contains(part), "{part} is missing in\n{summary}");
    }
}

#[test]
fn json_has_the_run_and_nothing_else_is_printed() {
    let file = written("json.toml", SMALL);
    let value = json(&["sim", &file, "--json", "-"]);
    for name in [
        "digest",
        "seed",
        "completion_us",
        "packet_hops",
        "wall_s",
        "drops",
        "marks",
        "pauses",
        "resent",
        "timeouts",
    ] {
        assert!(!value[name].is_null(), "{name} is missing");
    }
    assert_eq!(value["seed"], 3);
    let (flows, links) = (value["flows"].as_array().unwrap(), value["links"].as_array().unwrap());
    assert_eq!((flows.len(), links.len()), (16, 96));
    let last = flows.iter().map(|flow| flow["finish_us"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!((value["completion_us"].as_f64().unwrap() - last).abs() < 1e-6);
    for flow in flows {
        assert!(flow["source"] != flow["target"] && flow["bytes"] == 100_000);
        assert!(flow["start_us"].as_f64() < flow["finish_us"].as_f64());
    }
    for link in links {
        let used = link["utilisation"].as_f64().unwrap();
        assert!((0.0..=1.01).contains(&used), "{link}");
        assert!(link["from"].is_string() && link["to"].is_string() && link["bytes"].is_u64());
        assert!(link["max_queue_bytes"].is_u64() && link["paused_us"].is_number());
    }
    // The digest is the one of the summary, and a file holds the same as standard output.
    let path = directory("out.json");
    let output = railnet(&["sim", &file, "--json", path.to_str().unwrap()]);
    let written: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written["digest"], value["digest"]);
    assert_eq!(written["flows"], value["flows"]);
    let digits =
        text(&output.stdout).lines().last().unwrap().split_whitespace().skip(1).take(4).collect::<String>();
    assert!(value["digest"].as_str().unwrap().starts_with(&digits), "{digits}");
    fs::remove_file(path).unwrap();
}

#[test]
fn csv_tables_have_units_in_their_headers_and_the_numbers_of_the_json() {
    let file = written("csv.toml", SMALL);
    let directory = directory("csv/deep");
    let output = railnet(&["sim", &file, "--csv", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value = json(&["sim", &file, "--json", "-"]);
    let (header, flows) = table(&directory.join("flows.csv"));
    assert_eq!(header, ["source", "target", "priority", "bytes", "start_us", "finish_us"]);
    assert_eq!(flows.len(), 16);
    for (row, flow) in flows.iter().zip(value["flows"].as_array().unwrap()) {
        assert_eq!(row[0], flow["source"].to_string());
        assert!((row[5].parse::<f64>().unwrap() - flow["finish_us"].as_f64().unwrap()).abs() < 1e-6);
    }
    let (header, links) = table(&directory.join("links.csv"));
    assert_eq!(header.len(), 12);
    assert!(header.contains(&"max_queue_bytes".to_owned()) && header.contains(&"paused_us".to_owned()));
    let bytes = header.iter().position(|name| name == "bytes").unwrap();
    for (row, link) in links.iter().zip(value["links"].as_array().unwrap()) {
        assert_eq!(
            (&row[0], &row[bytes]),
            (&link["from"].as_str().unwrap().to_owned(), &link["bytes"].to_string())
        );
    }
}

#[test]
fn a_sweep_is_the_single_runs_in_order() {
    let file = written("sweep.toml", SMALL);
    let sweep =
        json(&["sim", &file, "--sweep", "nic.control=none,dcqcn", "--sweep", "seed=1,2,3", "--json", "-"]);
    let points = sweep["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    let mut expected = Vec::new();
    for control in ["none", "dcqcn"] {
        let one = written(&format!("single-{control}.toml"), &SMALL.replace("dcqcn", control));
        for seed in ["1", "2", "3"] {
            let single = json(&["sim", &one, "--seed", seed, "--json", "-"]);
            expected.push((control, seed, single["digest"].clone(), single["completion_us"].clone()));
        }
    }
    for (point, (control, seed, digest, completion)) in points.iter().zip(expected) {
        assert_eq!(point["point"]["nic.control"], control);
        assert_eq!(point["point"]["seed"], seed);
        assert_eq!((&point["digest"], &point["completion_us"]), (&digest, &completion));
    }

    let directory = directory("sweep");
    let arguments = ["sim", &file, "--sweep", "seed=1,2", "--csv", directory.to_str().unwrap()];
    let printed = text(&railnet(&arguments).stdout);
    assert!(printed.contains("2 points on ") && printed.contains("\n  seed  completion µs"), "{printed}");
    let (header, rows) = table(&directory.join("sweep.csv"));
    assert_eq!(header[..2], ["seed", "completion_us"]);
    assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(rows[0][header.len() - 2], points[3]["digest"].as_str().unwrap());
}

#[test]
fn presets_can_be_swept_over() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/presets.toml");
    let sweep = "preset=infiniband,spectrum-x,roce-dcqcn,roce-lossy";
    let value = json(&["sim", file.to_str().unwrap(), "--sweep", sweep, "--json", "-"]);
    let us = |point: usize| value["points"][point]["completion_us"].as_f64().unwrap();
    assert!(us(1) < us(0) / 2.0 && us(1) < us(2) / 2.0, "paths by hash collide, shortest queues do not");
    let printed = text(&railnet(&["sim", file.to_str().unwrap()]).stdout);
    assert!(printed.contains("presets.toml · preset spectrum-x · packet"), "{printed}");
    assert!(printed.contains("With        control swift          reorder,"), "{printed}");
}

#[test]
fn sweeps_that_cannot_be_run_say_why() {
    let file = written("bad-sweep.toml", SMALL);
    let cases = [
        ("nic.contrl=none", "unknown key \"contrl\"", "did you mean \"control\"?"),
        ("nic.control=dcqnc", "unknown value \"dcqnc\"", "did you mean \"dcqcn\"?"),
        ("colour=red", "unknown key \"colour\"", "one of: seed, preset, catalogue, fidelity"),
        ("preset=infinband", "unknown value \"infinband\"", "did you mean \"infiniband\"?"),
        ("fabric.link.rate=0Gbps", "fabric.link.rate=0Gbps: a link rate of 0", ""),
        ("fabric.link.rate=fast", "cannot read \"fast\" as a rate", ""),
        ("traffic.bytes=1MB", "traffic is a list of 1", "traffic.0"),
        ("traffic.3.bytes=1MB", "traffic is a list of 1", ""),
        ("seed.x=1", "seed is a single value", ""),
        ("seed", "write a key and its values", "nic.control=none,dcqcn"),
        ("seed=", "a value is missing", ""),
    ];
    for (sweep, what, advice) in cases {
        let output = railnet(&["sim", &file, "--sweep", sweep]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{sweep}: {message}");
        assert!(message.starts_with("error: --sweep ") && message.contains(what), "{sweep}: {message}");
        assert!(message.contains(advice), "{sweep}: {message}");
    }
    // A point that fails does not take the others with it.
    let output = railnet(&["sim", &file, "--sweep", "limit=1us,1s"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed.contains("1us    failed: 16 of 16 flows did not finish within 1 us"), "{printed}");
    assert_eq!(printed.lines().count(), 5, "{printed}");
}

#[test]
fn a_bad_scenario_is_shown_with_its_line_and_what_would_be_right() {
    let cases = [
        ("control = \"dcqcn\"", "control = \"dcqnc\"", ":5:12\n", "did you mean \"dcqcn\"?"),
        ("control = \"dcqcn\"", "contrl = \"dcqcn\"", ":5:1\n", "did you mean \"control\"?"),
        ("kind = \"permutation\"", "kind = \"permutaton\"", ":7:9\n", "did you mean \"permutation\"?"),
        ("bytes = \"100KB\"", "byte = \"100KB\"", ":8:1\n", "did you mean \"bytes\"?"),
        ("bytes = \"100KB\"", "bytes = \"100kib\"", ":8:10\n", "did you mean \"KiB\"?"),
        ("bytes = \"100KB\"", "bytes = 100", ":8:9\n", "a text with its unit"),
        ("bytes = \"100KB\"", "", ":6:1\n", "the key \"bytes\" is missing"),
        ("k = 4", "k = 5", ":3:12\n", "use 4 or 6"),
        ("k = 4", "k = 4, kk = 1", ":3:40\n", "one of: k, tiers"),
        ("[nic]", "link = { rate = \"0Gbps\" }\n[nic]", ":4:17\n", "such as \"100Gbps\""),
        ("seed = 3", "seed = 3\nseed = 4", ":2:1\n", "duplicate key"),
        ("kind = \"permutation\"", "kind = \"flow\"\nfrom = 0\nto = 16", ":9:6\n", "hosts 0 to 15"),
        (
            "[nic]",
            "[[faults]]\nkind = \"link-down\"\nlink = [\"core0\", \"ag1.0\"]\n[nic]",
            ":6:18\n",
            "did you mean \"agg1.0\"?",
        ),
    ];
    for (index, (old, new, place, advice)) in cases.into_iter().enumerate() {
        let file = written(&format!("bad-{index}.toml"), &SMALL.replace(old, new));
        let output = railnet(&["sim", &file]);
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{new}: {message}");
        assert!(message.starts_with("error: "), "{message}");
        assert!(message.contains(place), "{new}: {place:?} is not in\n{message}");
        assert!(message.contains(advice), "{new}: {advice:?} is not in\n{message}");
    }
    let missing = railnet(&["sim", "/no/such/file.toml"]);
    assert!(text(&missing.stderr).contains("there is no file /no/such/file.toml"));
    assert!(text(&railnet(&["sim", env!("CARGO_TARGET_TMPDIR")]).stderr).contains("is a directory"));
    assert_eq!(railnet(&["sim"]).status.code(), Some(2));
    assert_eq!(railnet(&["sim", "x.toml", "--nonsense"]).status.code(), Some(2));
}

#[test]
fn files_that_a_scenario_names_are_beside_it_and_their_lines_are_shown() {
    let list = SMALL.replace("{ kind = \"fat-tree\", k = 4 }", "{ kind = \"list\", file = \"beside.csv\" }");
    let file = written("beside.toml", &list);
    written("beside.csv", "a,s\nb,s,100Gbps\n");
    let value = json(&["sim", &file, "--json", "-"]);
    assert_eq!((value["hosts"].as_u64(), value["switches"].as_u64()), (Some(2), Some(1)));
    let sweep = json(&["sim", &file, "--sweep", "seed=1,2", "--json", "-"]);
    assert_eq!(sweep["points"].as_array().unwrap().len(), 2);
    written("beside.csv", "a,s\nb,s,fast\n");
    let message = text(&railnet(&["sim", &file]).stderr);
    assert!(message.contains("cannot read \"fast\" as a rate"), "{message}");
    assert!(message.contains("beside.csv:2:5\n") && message.contains("\n 2 | b,s,fast\n"), "{message}");
    let message = text(&railnet(&["topo", &file]).stderr);
    assert!(message.contains("beside.csv:2:5\n"), "{message}");
    let lost = written("lost.toml", &list.replace("beside.csv", "nowhere.csv"));
    let message = text(&railnet(&["sim", &lost]).stderr);
    assert!(message.contains("cannot read nowhere.csv: ") && message.contains("lost.toml:3:"), "{message}");
}

#[test]
fn the_flows_that_a_run_writes_can_be_run_again() {
    let file = written("first.toml", SMALL);
    let directory = directory("again");
    assert!(railnet(&["sim", &file, "--csv", directory.to_str().unwrap()]).status.success());
    let list = SMALL.replace("permutation\"\nbytes = \"100KB\"", "list\"\nfile = \"flows.csv\"");
    let again = directory.join("again.toml");
    fs::write(&again, list).unwrap();
    let (first, second) =
        (json(&["sim", &file, "--json", "-"]), json(&["sim", again.to_str().unwrap(), "--json", "-"]));
    assert_eq!(first["digest"], second["digest"]);
}

#[test]
fn series_over_time_are_written_where_they_are_asked_for() {
    let file = written("series.toml", SMALL);
    let directory = directory("series");
    let csv = directory.to_str().unwrap();
    assert!(railnet(&["sim", &file, "--csv", csv]).status.success());
    assert!(!directory.join("series.csv").exists());
    assert!(railnet(&["sim", &file, "--csv", csv, "--sample", "5us", "--force"]).status.success());
    let (header, rows) = table(&directory.join("series.csv"));
    assert_eq!(header, ["time_us", "from", "to", "queue_bytes", "throughput_bps", "paused"]);
    assert!(rows.iter().all(|row| row[4].parse::<f64>().unwrap() <= 100e9));
    assert!(rows.iter().all(|row| (0.0..=1.0).contains(&row[5].parse::<f64>().unwrap())));
    let (header, connections) = table(&directory.join("connections.csv"));
    assert_eq!(header, ["time_us", "source", "target", "dscp", "throughput_bps"]);
    // The same in JSON, and the same run as without.
    let plain = json(&["sim", &file, "--json", "-"]);
    let value = json(&["sim", &file, "--json", "-", "--sample", "5us"]);
    assert_eq!(plain["digest"], value["digest"]);
    assert!(plain["series"].is_null());
    assert_eq!(value["series"]["sample_us"], 5.0);
    let count = |list: &str| -> usize {
        let columns = value["series"][list].as_array().unwrap().iter();
        columns.map(|one| one["time_us"].as_array().unwrap().len()).sum()
    };
    assert_eq!((count("links"), count("connections")), (rows.len(), connections.len()));
    let first = &value["series"]["links"][0];
    for field in ["queue_bytes", "throughput_bps", "paused"] {
        assert_eq!(first[field].as_array().unwrap().len(), first["time_us"].as_array().unwrap().len());
    }
    for (arguments, hint) in [
        (vec!["sim", &file, "--sample", "5us"], "needs --csv DIR or --json FILE"),
        (vec!["sim", &file, "--sample", "1ns", "--json", "-"], "at least 100 ns"),
        (vec!["sim", &file, "--sample", "5us", "--csv", csv, "--sweep", "seed=1,2"], "single runs"),
    ] {
        let output = railnet(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(hint), "{}", text(&output.stderr));
    }
    assert_eq!(railnet(&["sim", &file, "--sample", "5"]).status.code(), Some(2));
}

#[test]
fn a_run_that_does_not_end_in_time_fails_and_names_a_flow() {
    let file = written("short.toml", &format!("limit = \"10us\"\n{SMALL}"));
    let output = railnet(&["sim", &file]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("of 16 flows did not finish within 10 us; the first is flow 0"), "{message}");
    let output = railnet(&["sim", &file, "--json", "-"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &value["error"];
    assert_eq!((output.status.code(), &error["kind"]), (Some(1), &"unfinished".into()));
    assert_eq!(error["waiting"].as_array().unwrap().len(), 16);
    let first = &error["waiting"][0];
    assert!(first["queue_pair"].is_u64() && first["psn"].is_u64() && first["source"].is_u64(), "{first}");
    assert!(message.contains("`limit`"), "{message}");
}

/// Scenarios that take many minutes: they are only checked here.
const LONG: [&str; 1] = ["llama-70b-256"];

/// Scenarios that show how a run stands still, called after it.
const FAILING: [&str; 2] = ["pause-storm", "deadlock"];

/// What each scenario claims to show, it shows.
#[test]
fn every_scenario_of_the_repository_has_a_comment_and_comes_to_its_end() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "toml"));
    files.sort();
    let mut runs = std::collections::BTreeMap::new();
    for file in &files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(fs::read_to_string(file).unwrap().starts_with("# "), "{name} says nothing on top");
        if LONG.contains(&name.as_str()) {
            assert!(railnet(&["check", file.to_str().unwrap()]).status.success(), "{name}");
            continue;
        }
        let output = railnet(&["sim", file.to_str().unwrap(), "--json", "-"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        if FAILING.contains(&name.as_str()) {
            assert_eq!((output.status.code(), &value["error"]["kind"]), (Some(1), &name.as_str().into()));
            assert!(text(&output.stderr).starts_with("error: "), "{name}");
        } else {
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
            let took = value["completion_us"].as_f64().or(value["jobs"][0]["total_us"].as_f64());
            assert!(took.unwrap() > 0.0, "{name}");
        }
        runs.insert(name, value);
    }
    let number = |name: &str, field: &str| runs[name][field].as_f64().unwrap();
    for name in ["job-slow-gpu", "job-slow-nic"] {
        let fault = &runs[name]["jobs"][0]["faults"][0];
        let step = |key: &str| fault[key].as_f64().unwrap();
        assert!(step("step_with_us") > 1.01 * step("step_without_us"), "{name}: {fault}");
    }
    for name in [
        "job-nvlink-lane",
        "job-pcie",
        "job-wrong-numa",
        "job-hot-expert",
        "job-lost-gpu",
        "job-crash",
        "job-flapping-link",
        "job-lost-packet",
    ] {
        let fault = &runs[name]["jobs"][0]["faults"][0];
        assert!(fault["total_with_us"].as_f64() > fault["total_without_us"].as_f64(), "{name}: {fault}");
        assert!(fault["gpu_hours"].as_f64() > Some(0.0), "{name}: {fault}");
    }
    let resent = |name: &str| runs[name]["network"]["resent"].as_u64().unwrap();
    assert!(resent("job-lost-packet") > resent("job-lost-packet-selective"));
    assert_eq!(runs["job-lost-packet"]["jobs"][0]["ranks"], 1_000);
    assert_eq!(runs["chakra"]["jobs"][0]["slowest"]["rank"], 5);
    assert_eq!(runs["unlike"]["jobs"][0]["kinds"].as_array().unwrap().len(), 2);
    assert_eq!(runs["incast"]["drops"], 0);
    assert!(number("incast", "pauses") > 0.0);
    assert!(number("incast-lossy", "drops") > 0.0 && number("incast-lossy", "resent") > 0.0);
    assert!(number("incast-lossy", "completion_us") > number("incast", "completion_us"));
    let credits = &runs["incast-credits"];
    assert_eq!((&credits["drops"], &credits["pauses"]), (&0.into(), &0.into()));
    assert!(number("incast-credits", "max_queue_bytes") < number("incast", "max_queue_bytes") / 4.0);
    assert!(number("spray-go-back-n", "resent") > 0.0);
    assert_eq!(runs["spray-go-back-n"]["drops"], 0);
    assert!(number("spray", "completion_us") < number("spray-go-back-n", "completion_us") / 2.0);
    for name in ["link-down", "flap", "bit-errors", "loss", "corruption"] {
        assert!(number(name, "losses") > 0.0 && number(name, "resent") > 0.0, "{name}");
    }
    assert!(number("slow-link", "completion_us") > 3_000.0, "on fast links alone it takes a third");
    assert_eq!((number("lose-packet", "losses"), number("lose-packet", "timeouts")), (1.0, 0.0));
    assert!(number("slow-nic", "completion_us") > 12_000.0, "without the slow NIC it takes 9.9 ms");
    let dropping: Vec<&str> = (runs["wrong-class"]["links"].as_array().unwrap().iter())
        .filter(|link| link["drops"].as_u64() > Some(0))
        .map(|link| link["to"].as_str().unwrap())
        .collect();
    assert!(!dropping.is_empty() && dropping.iter().all(|to| *to == "leaf1"), "{dropping:?}");
    assert!(number("control-parameters", "completion_us") < number("incast", "completion_us") * 0.9);
    let priorities = runs["priorities"]["flows"].as_array().unwrap();
    assert_eq!((&priorities[0]["priority"], &priorities[56]["priority"]), (&3.into(), &1.into()));
    assert_eq!(runs["deadlock"]["error"]["links"].as_array().unwrap().len(), 5);
    assert!(number("oversubscribed", "completion_us") > 150.0, "without oversubscription it takes 115 us");
    assert!(number("fast-uplinks", "completion_us") < 200.0, "with slow uplinks it takes 996 us");
    assert_eq!(runs["list-file"]["links"][0]["from"], "gpu0");
    assert_eq!(runs["flows"]["flows"].as_array().unwrap().len(), 6);
    assert_eq!(runs["expert-groups"]["flows"].as_array().unwrap().len(), 2 * 56 + 14 * 8);
    assert!(!runs["series"]["series"]["links"].as_array().unwrap().is_empty());
    let storm = &runs["pause-storm"]["error"];
    assert_eq!(storm["hosts"][0], "host15");
    let elsewhere = |flow: &&Value| flow["target"] != 15 && flow["source"] != 15;
    assert!(storm["waiting"].as_array().unwrap().iter().filter(elsewhere).count() > 100);
    let rails = runs["rails"]["flows"].as_array().unwrap();
    let finish = |flow: usize| rails[flow]["finish_us"].as_f64().unwrap();
    assert!((0..4).all(|flow| finish(flow) < finish(4) && finish(flow) < finish(5)));
}

#[test]
fn the_benchmark_lists_its_rows_when_none_is_meant() {
    let output = railnet(&["bench", "sim", "--only", "nothing of the kind"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("permutation") && message.contains("ring") && message.contains("all-to-all"));
    for wrong in [
        ["calendar", "--repeat", "0"],
        ["calendar", "--events", "0"],
        ["nic", "--seconds", "-1"],
        ["nic", "--only", "x x"],
    ] {
        let output = railnet(&[&["bench"][..], &wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
    }
}

#[test]
fn the_benchmark_measures_a_run_in_a_process_of_its_own() {
    let rows = json(&["bench", "sim", "--only", "permutation", "--repeat", "1", "--json"]);
    let row = &rows.as_array().unwrap()[0];
    assert!(row["hops_per_s"].as_f64().unwrap() > 0.0 && row["packet_hops"].as_u64().unwrap() > 1_000_000);
    if cfg!(target_os = "linux") {
        let peak = row["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak > 1_000_000 && peak < row["peak_memory_bytes_goal"].as_u64().unwrap(), "{peak}");
    }
    // It is the scenario of that name.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/permutation.toml");
    assert_eq!(row["digest"], json(&["sim", file.to_str().unwrap(), "--json", "-"])["digest"]);
}

#[test]
fn a_collective_that_falls_back_says_why_and_one_without_in_place_has_no_figures_for_it() {
    let file = written(
        "fallback.toml",
        "[fabric]\ntopology = { kind = \"single-switch\", hosts = 16 }\nswitch = { aggregation = { contexts = 4 } }\n\
         [cluster]\nserver = \"dgx-h100\"\n\
         [[collective]]\nkind = \"all_reduce\"\nsize = \"64KiB\"\nalgorithm = \"collnetdirect\"\n\
         [[collective]]\nkind = \"alltoall\"\nsize = \"64KiB\"\nskew = 2\n",
    );
    let output = railnet(&["sim", &file]);
    let printed = text(&output.stdout);
    let why = "CollNetDirect could not run, Tree ran instead: switch0 has no reduction context left: all 4 are in use";
    assert_eq!(printed.matches(why).count(), 1, "{printed}");
    assert!(printed.contains("# AlltoAllV over 16 ranks, simulated"), "{printed}");
    assert!(printed.contains("  N/A     N/A     N/A     N/A  P2P/"), "{printed}");
    let value = json(&["sim", &file, "--json", "-"]);
    let calls = value["collectives"].as_array().unwrap();
    assert_eq!(calls.len(), 3);
    assert!(calls[0]["fell_back"].as_str().unwrap().starts_with(why) && calls[2]["fell_back"].is_null());
}

#[test]
fn rates_count_from_the_first_flow_and_a_sweep_says_what_it_was_run_with() {
    let late = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\nlink = { rate = \"100Gbps\", delay = \"1us\" }\n\
                [nic]\ncontrol = \"none\"\n[[traffic]]\nkind = \"incast\"\nfrom = \"0\"\nto = 1\nbytes = \"10MB\"\nstart = \"2s\"\n";
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("late.toml");
    std::fs::write(&file, late).unwrap();
    let file = file.to_str().unwrap();
    let value = json(&["sim", file, "--json", "-"]);
    let busiest = value["links"].as_array().unwrap().iter().map(|link| link["utilisation"].as_f64().unwrap());
    assert!(busiest.fold(0.0, f64::max) > 0.9, "{value}");
    let screen = text(&railnet(&["sim", file]).stdout);
    let throughput = screen.lines().find(|line| line.contains("Throughput")).unwrap();
    assert!(throughput.contains("Gbps  ") && !throughput.contains("Mbps"), "{throughput}");
    let compared = text(&railnet(&["compare", file, "incast"]).stdout);
    let together = compared.lines().find(|line| line.contains("all flows together")).unwrap();
    assert!(!together.contains(" MB/s") && !together.contains("0.0"), "{together}");
    let job = Path::new(env!("CARGO_TARGET_TMPDIR")).join("swept.toml");
    std::fs::write(
        &job,
        "steps = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 1\n[model]\nname = \"tiny\"\n",
    )
    .unwrap();
    let job = job.to_str().unwrap();
    let head = |sweep: &str| {
        text(&railnet(&["sim", job, "--sweep", sweep]).stdout).lines().next().unwrap().to_owned()
    };
    assert!(head("fidelity=analytic").contains("· analytic fidelity ·"), "{}", head("fidelity=analytic"));
    assert!(head("fidelity=packet,analytic").contains("· packet and analytic fidelity ·"));
}

/// Keys that name files, and variables that the command itself reads: the tests of the format leave them to this one.
#[test]
fn what_only_the_command_reads_has_an_effect() {
    let data = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path);
    let came = |name: &str, contents: &str, variables: &[(&str, &str)]| {
        let file = written(name, contents);
        let output = harness::command::<&str>(&[])
            .args(["sim", &file, "--json", "-"])
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let inert = value["without_effect"].to_string();
        // What goes over NVLink only is in no digest.
        (format!("{} {}", value["digest"], value["collectives"]), said, inert)
    };
    // [trace]: what sixteen ranks did, and the same with the forward pass of rank 5, 300 µs, as long as that of the others.
    let traces = directory("traces-of-two-kinds");
    fs::create_dir_all(&traces).unwrap();
    for rank in 0..16 {
        let mut nodes = fs::read(data(&format!("chakra/two-servers.{rank}.et"))).unwrap();
        fs::write(traces.join(format!("slow.{rank}.et")), &nodes).unwrap();
        if rank == 5 {
            // Field 7, duration_micros, as a varint.
            let at = nodes.windows(3).position(|bytes| bytes == b"\x38\xac\x02").unwrap();
            nodes[at + 1..at + 3].copy_from_slice(b"\xc8\x01");
        }
        fs::write(traces.join(format!("alike.{rank}.et")), &nodes).unwrap();
    }
    let trace = |name: &str| {
        let files = traces.join(format!("{name}.{{rank}}.et"));
        let text = format!(
            "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[trace]\nfiles = {:?}\n",
            files.to_str().unwrap()
        );
        came("trace-effect.toml", &text, &[]).0
    };
    assert_ne!(trace("slow"), trace("alike"));
    // catalogue: one name, two servers.
    let own = fs::read_to_string(data("catalogue/own.toml")).unwrap();
    let catalogue = |rate: &str| {
        let changed = own.replace("best = 396.1", rate);
        assert!(rate == "best = 396.1" || changed != own);
        written("catalogue-effect-own.toml", &changed);
        let text = "fidelity = \"analytic\"\ncatalogue = [\"catalogue-effect-own.toml\"]\n[cluster]\nserver = \"mine\"\nnodes = 2\n\
                    [model]\nname = \"tiny\"\n";
        came("catalogue-effect.toml", text, &[]).0
    };
    assert_ne!(catalogue("best = 396.1"), catalogue("best = 100.0"));
    // A collective's file, and NCCL's lines about collectives.
    let cluster =
        "[cluster]\nserver = \"dgx-h100\"\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 8 }\n";
    let collective = |program: &str, variables: &[(&str, &str)]| {
        let text = format!("{cluster}[[collective]]\nkind = \"all-reduce\"\nsize = \"64KiB\"\n{program}");
        came("collective-effect.toml", &text, variables)
    };
    let program = |name: &str| format!("ranks = 4\nfile = {:?}\n", data(name).to_str().unwrap());
    assert_ne!(
        collective(&program("msccl/allreduce-ring.xml"), &[]).0,
        collective(&program("msccl/allreduce-allpairs.xml"), &[]).0
    );
    let lines = |variables: &[(&str, &str)]| collective("", variables).1.matches("NCCL INFO").count();
    let all = lines(&[("NCCL_DEBUG", "INFO")]);
    let some = lines(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ENV")]);
    assert!(all > some && some > 0 && lines(&[]) == 0, "{all} {some}");
    // A server as NCCL wrote it down, in place of the scenario's.
    let xml = data("nccl/hgx-h100.xml");
    let old = format!("{cluster}[[collective]]\nkind = \"all-reduce\"\nsize = \"64KiB\"\n")
        .replace("dgx-h100", "dgx-a100");
    let plain = came("topology-effect.toml", &old, &[]).0;
    let other = came("topology-effect.toml", &old, &[("NCCL_TOPO_FILE", xml.to_str().unwrap())]).0;
    assert_ne!(plain, other);
    // Jobs print no lines of NCCL, and say so.
    let job =
        "fidelity = \"analytic\"\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[model]\nname = \"tiny\"\n";
    let inert = came("debug-effect.toml", job, &[("NCCL_DEBUG", "INFO")]).2;
    assert!(inert.contains("env.NCCL_DEBUG"), "{inert}");
}

#[test]
fn flow_fidelity_has_times_and_links_and_no_figure_of_packets() {
    let screen = text(&railnet(&["sim", "permutation", "--fidelity", "flow"]).stdout);
    assert!(screen.contains("· flow fidelity · seed"), "{screen}");
    assert!(screen.contains("max-min fair rates"), "{screen}");
    assert!(screen.contains("queues, losses, pauses and congestion control are left out"), "{screen}");
    for word in ["Dropped", "Marked", "Paused", "Queues", "events"] {
        assert!(!screen.contains(word), "{word}: {screen}");
    }
    let value = json(&["sim", "permutation", "--fidelity", "flow", "--json", "-"]);
    assert_eq!(value["fidelity"], "flow");
    assert!(value["completion_us"].as_f64().unwrap() > 0.0);
    assert!(value["links"][0]["utilisation"].is_number() && value["flows"][0]["finish_us"].is_number());
    for key in ["drops", "packet_hops", "max_queue_bytes"] {
        assert!(value.get(key).is_none() && value["links"][0].get(key).is_none(), "{key}");
    }
    let sweep = text(&railnet(&["sim", "permutation", "--sweep", "fidelity=packet,flow"]).stdout);
    assert!(sweep.contains('–'), "what was not simulated is not 0: {sweep}");
}

#[test]
fn flow_fidelity_refuses_what_looks_at_packets() {
    for option in [["--pcap", "flow-level.pcapng"], ["--record", "flow-level.run"], ["--wire", "bytes"]] {
        let output = railnet(&["sim", "permutation", "--fidelity", "flow", option[0], option[1]]);
        assert_eq!(output.status.code(), Some(2), "{option:?}");
        assert!(text(&output.stderr).contains("there are no packets to look at"), "{option:?}");
    }
    let output = railnet(&["sim", "allreduce-2-nodes", "--fidelity", "flow"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not for [[collective]]"), "{}", text(&output.stderr));
}

#[test]
fn jobs_at_flow_fidelity_say_what_is_busy_and_what_stands_for_what() {
    let output = railnet(&["sim", "mixtral", "--fidelity", "flow"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let screen = text(&output.stdout);
    for word in ["flow fidelity", "Busiest link", "Symmetry", "coflows in all"] {
        assert!(screen.contains(word), "{word}: {screen}");
    }
    let value = json(&["sim", "mixtral", "--fidelity", "flow", "--json", "-"]);
    let seen = &value["jobs"][0]["flow_level"];
    assert!(seen["coflows"].as_u64().unwrap() >= seen["run"].as_u64().unwrap(), "{seen}");
    assert!((0.0..=1.0).contains(&seen["busy"].as_f64().unwrap()), "{seen}");
}
