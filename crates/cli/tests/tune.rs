//! `railnet tune` and `railnet knobs` from outside.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::{railnet_with, text, written};

fn repository(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).to_str().unwrap().to_owned()
}

#[track_caller]
fn told(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = railnet_with(arguments, variables);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn every_cell_is_shown_with_its_cost_or_the_reason_it_is_out() {
    let lines = told(&["tune", "allreduce", "64MiB", "--cluster", "dgx-h100x8"], &[]);
    has(
        &lines,
        &[
            "AllReduce, 64 MiB, 64 ranks on 8 nodes (dgx-h100x8)",
            "time = latency + bytes / bandwidth",
            "LL128",
            "45.2 + 7740 = 7786 µs",
            "SHARP is not enabled (NCCL_COLLNET_ENABLE=0)",
            "more than one node needs SHARP",
            "µs ◀",
            "Chosen   NVLSTree/Simple, 16 channels of 640 threads, chunks of 64 KiB",
            "Sizes    small Tree/LL  from ",
        ],
    );
    assert!(!lines.contains("PAT"), "PAT has nothing to do with AllReduce:\n{lines}");
    assert!(!lines.contains('\u{1b}'), "colour is for terminals");
    assert!(lines.lines().count() <= 12, "one screen:\n{lines}");
}

#[test]
fn every_collective_has_an_answer() {
    let names = [
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "gather",
        "scatter",
    ];
    for collective in names.into_iter().chain(["sendrecv", "barrier"]) {
        for cluster in ["dgx-a100", "dgx-h100x4", "pcie-4gpu"] {
            has(&told(&["tune", collective, "1MiB", "--cluster", cluster], &[]), &["Chosen   "]);
        }
    }
}

#[test]
fn variables_count_by_name_and_the_later_source_wins() {
    let file = written("tune.env", "# none but rings\nNCCL_ALGO=ring\nNCCL_PROTO=simple\n");
    let file = file.as_str();
    let ask = ["tune", "allreduce", "1KiB", "--cluster", "dgx-h100x2", "--env-file", file];
    has(&told(&ask, &[]), &["Chosen   Ring/Simple", "NCCL_ALGO=ring leaves it out"]);
    has(&told(&ask, &[("NCCL_ALGO", "tree")]), &["Chosen   Tree/Simple"]);
    let both = [&ask[..], &["--algo", "ring", "--proto", "LL"]].concat();
    has(&told(&both, &[("NCCL_ALGO", "tree")]), &["Chosen   Ring/LL,"]);
    let few = told(
        &["tune", "allreduce", "1GiB", "--cluster", "dgx-h100", "--algo", "ring"],
        &[("NCCL_MAX_CTAS", "4")],
    );
    has(&few, &["4 channels of"]);
    let sharp =
        told(&["tune", "allreduce", "1GiB", "--cluster", "dgx-h100x4"], &[("NCCL_COLLNET_ENABLE", "1")]);
    assert!(!sharp.contains("SHARP"), "{sharp}");
}

#[test]
fn a_name_without_effect_is_told_once_and_a_wrong_value_is_refused() {
    let ask = ["tune", "allreduce", "1KiB", "--cluster", "dgx-h100"];
    let output = railnet_with(&ask, &[("NCCL_ALOG", "ring"), ("NCCL_IB_TC", "106")]);
    assert!(output.status.success());
    let notes = text(&output.stderr);
    has(&notes, &["did you mean NCCL_ALGO?", "NCCL_IB_TC (the environment) has no effect in railnet tune"]);
    assert_eq!(notes.matches("NCCL_ALOG").count(), 1);
    let wrong = railnet_with(&ask, &[("NCCL_ALGO", "rign")]);
    assert_eq!(wrong.status.code(), Some(2));
    has(&text(&wrong.stderr), &["NCCL_ALGO=rign (the environment)", "did you mean \"Ring\"?"]);
    let file = written("broken.env", "NCCL_ALGO\n");
    let broken = railnet_with(&[&ask[..], &["--env-file", file.as_str()]].concat(), &[]);
    assert_eq!(broken.status.code(), Some(2));
    has(&text(&broken.stderr), &["broken.env: line 1", "not of the form NAME=VALUE"]);
    let none = railnet_with(&[&ask[..], &["--algo", "pat"]].concat(), &[]);
    assert_eq!(none.status.code(), Some(1));
    has(&text(&none.stderr), &["no algorithm and protocol can run AllReduce"]);
}

#[test]
fn wrong_usage_says_what_would_be_right() {
    let cases: [(&[&str], &str); 9] = [
        (&["allredce", "1MiB", "--cluster", "dgx-h100"], "did you mean \"allreduce\"?"),
        (&["allreduce", "64", "--cluster", "dgx-h100"], "\"64\" has no unit"),
        (&["allreduce", "-5MiB", "--cluster", "dgx-h100"], "invalid value '-5MiB' for '[SIZE]'"),
        (&["allreduce", "1MiB", "--cluster", "dgx-h10"], "did you mean \"dgx-h100\"?"),
        (&["allreduce", "1MiB", "--cluster", "none.xml"], "there is no file none.xml"),
        (&["allreduce", "1MiB"], "which cluster?"),
        (&["allreduce", "--cluster", "dgx-h100"], "SIZE"),
        (&["allreduce", "1MiB", "--cluster", "dgx-h100", "--nodes", "2"], "as in dgx-h100x8"),
        (&["allreduce", "1MiB", "--cluster", "dgx-h100", "--op", "xor"], "sum, prod, min, max, avg"),
    ];
    for (arguments, advice) in cases {
        let output = railnet_with(&[&["tune"], arguments].concat(), &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        has(&text(&output.stderr), &[advice]);
        assert!(output.stdout.is_empty());
    }
    let failed = railnet_with(&["tune", "allreduce", "1MiB", "--cluster", "cpu"], &[]);
    assert_eq!(failed.status.code(), Some(1));
    has(&text(&failed.stderr), &["has no GPUs"]);
}

#[test]
fn json_has_the_same_and_the_exact_crossovers() {
    let ask = ["tune", "allreduce", "64MiB", "--cluster", "dgx-h100x8", "--json"];
    let value: Value = serde_json::from_str(&told(&ask, &[])).unwrap();
    assert_eq!(
        (&value["ranks"], &value["nodes"], &value["bytes"]),
        (&64.into(), &8.into(), &67_108_864.into())
    );
    let cells = value["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 21);
    assert_eq!(cells[8]["out"], "SHARP is not enabled (NCCL_COLLNET_ENABLE=0)");
    let least = cells.iter().filter_map(|cell| cell["time_us"].as_f64()).fold(f64::INFINITY, f64::min);
    assert_eq!(value["chosen"]["time_us"].as_f64(), Some(least));
    let crossovers = value["crossovers"].as_array().unwrap();
    assert_eq!(crossovers[0]["from_bytes"], 1);
    // The choice at a crossover is another than one byte before.
    let from = crossovers[1]["from_bytes"].as_u64().unwrap();
    let chosen = |bytes: u64| {
        let size = format!("{bytes}B");
        let ask = ["tune", "allreduce", &size, "--cluster", "dgx-h100x8", "--json"];
        let value: Value = serde_json::from_str(&told(&ask, &[])).unwrap();
        (value["chosen"]["algorithm"].clone(), value["chosen"]["protocol"].clone())
    };
    assert_eq!(chosen(from), (crossovers[1]["algorithm"].clone(), crossovers[1]["protocol"].clone()));
    assert_eq!(chosen(from - 1), (crossovers[0]["algorithm"].clone(), crossovers[0]["protocol"].clone()));
}

#[test]
fn a_sweep_has_the_winner_at_each_power_of_two() {
    let lines = told(&["tune", "allreduce", "--sweep", "--cluster", "dgx-h100"], &[]);
    assert_eq!(lines.lines().count(), 2 + 32, "{lines}");
    has(&lines, &["      8 B  Ring/LL", " 16 GiB  NVLS/Simple", "next best"]);
    let value: Value =
        serde_json::from_str(&told(&["tune", "alltoall", "--sweep", "--json", "--cluster", "dgx-h100"], &[]))
            .unwrap();
    assert_eq!(value["sweep"].as_array().unwrap().len(), 32);
}

#[test]
fn a_cluster_is_also_a_topology_file_or_a_scenario() {
    let xml = repository("testdata/nccl/hgx-h100.xml");
    let file = ["tune", "allreduce", "64MiB", "--cluster", &xml, "--nodes", "8"];
    has(&told(&file, &[]), &["64 ranks on 8 nodes (hgx-h100x8)", "Chosen   "]);
    let variable = told(&["tune", "allreduce", "64MiB"], &[("NCCL_TOPO_FILE", &xml)]);
    has(&variable, &["8 ranks on 1 node (hgx-h100)", "Chosen   "]);
    let scenario = written(
        "tune.toml",
        "[fabric]\ntopology = { kind = \"single-switch\", hosts = 16 }\n\
         [cluster]\nserver = \"dgx-h100\"\n[env]\nNCCL_ALGO = \"ring\"\n",
    );
    let scenario = ["tune", "allreduce", "64MiB", "--cluster", scenario.as_str()];
    has(&told(&scenario, &[]), &["16 ranks on 2 nodes (dgx-h100x2)", "Chosen   Ring/"]);
    let plain = repository("scenarios/incast.toml");
    let failed = railnet_with(&["tune", "allreduce", "1MiB", "--cluster", &plain], &[]);
    assert_eq!(failed.status.code(), Some(2));
    has(&text(&failed.stderr), &["there are no servers", "incast.toml"]);
    let broken = written("broken.xml", "<system version=\"1\">\n<cpu\n");
    let failed = railnet_with(&["tune", "allreduce", "1MiB", "--cluster", broken.as_str()], &[]);
    assert_eq!(failed.status.code(), Some(2));
    has(&text(&failed.stderr), &["broken.xml, line "]);
}

#[test]
fn nccl_debug_tells_on_standard_error() {
    let ask = ["tune", "allreduce", "1GiB", "--cluster", "dgx-h100x2", "--json"];
    let all = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING,ENV")];
    let output = railnet_with(&ask, &all);
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
    has(
        &text(&output.stderr),
        &[
            "Railnet version ",
            "node00:0:0 [0] NCCL INFO NCCL_DEBUG set by environment to INFO.",
            "NCCL INFO Trees [0] ",
            "NCCL INFO Pattern 4, ",
            "NCCL INFO   Algorithm   |",
            "Init COMPLETE",
            "AllReduce: 1073741824 Bytes -> Algo ",
        ],
    );
    assert!(railnet_with(&ask, &[]).stderr.is_empty());
}

#[test]
fn the_page_of_variables_is_what_the_table_says() {
    let page = told(&["knobs", "--markdown"], &[]);
    let kept = fs::read_to_string(repository("docs/knobs.md")).unwrap();
    assert!(page == kept, "docs/knobs.md is out of date: railnet knobs --markdown > docs/knobs.md");
    has(&told(&["knobs"], &[]), &["NCCL_ALGO", "NCCL_IB_QPS_PER_CONNECTION", "nowhere yet"]);
}

#[test]
fn the_page_on_tuning_shows_what_the_command_prints() {
    let page = fs::read_to_string(repository("docs/tuning.md")).unwrap();
    let (_, sample) = page.split_once("```text\n$ railnet ").unwrap();
    let (command, rest) = sample.split_once('\n').unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    assert_eq!(told(&command.split(' ').collect::<Vec<_>>(), &[]), shown);
}
