//! `railnet plan` from outside.

use std::fs;
use std::path::Path;

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
fn json(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let output = railnet_with(&[arguments, &["--json"]].concat(), variables);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
fn near(value: &Value, expected: f64, part: f64) {
    assert!((number(value) / expected - 1.0).abs() < part, "{value} is not {expected}");
}

const TEXTBOOK: [&str; 7] = ["plan", "--params", "70B", "--gpus", "64", "--compute", "200ms"];

/// 2 × 63/64 × 140 GB through each GPU, 1.4 TB/s to hide them in 200 ms, and what eight NICs of 400 Gb/s carry.
#[test]
fn the_textbook_example_comes_from_options_alone() {
    let screen = told(&TEXTBOOK);
    for part in [
        "8 nodes × 8 H100 SXM5 (dgx-h100)",
        "a model like llama-3-70b, 70.0 B parameters in bf16, data × 64",
        "does not fit: 1.3 TB a GPU needed, 80 GB there",
        "140 GB      275.6 GB",
        "1.38 TB/s",
        "Traffic per step",
        "Bandwidth needed per GPU (in 200 ms)",
        "Available",
        "\n  Placement  data parallel",
        "370.8 GB/s   384 GB/s     48 GB/s",
        "8 × 400 Gbps carry 31 % of what would hide it",
        "\n  GPUDirect  saves 490 GB of copies",
        "\n  Rails      all 245 GB",
        "\n  Layouts of 64 GPUs",
        "why it is not the first",
        "Those that do not fit need",
    ] {
        assert!(screen.contains(part), "{part:?} is missing in\n{screen}");
    }
    assert!(screen.lines().count() <= 32, "one screen:\n{screen}");
    assert!(told(&[&TEXTBOOK[..], &["--verbose"]].concat()).lines().count() > screen.lines().count());
    let value = json(&TEXTBOOK, &[]);
    let data = &value["dimensions"][0];
    assert_eq!(
        (data["dimension"].as_str(), data["mostly"].as_str()),
        (Some("data_parallel"), Some("AllReduce"))
    );
    near(&data["bytes"], 140e9, 1e-4);
    near(&data["gpu_sends_bytes"], 275.625e9, 1e-4);
    near(&data["needed_bytes_per_s"]["gpu"], 1.378e12, 1e-3);
    near(&data["needed_bytes_per_s"]["node"], number(&data["node_sends_bytes"]) / 0.2, 1e-6);
    near(&data["needed_bytes_per_s"]["nic"], number(&data["node_sends_bytes"]) / 1.6, 1e-6);
    near(&value["compute_us"], 200_000.0, 1e-6);
    // What is waited for and what is computed make up the step, but for what both share.
    let parts = number(&value["exposed_us"]) + number(&value["compute_us"]);
    assert!(parts <= number(&value["step_us"]) && parts > 0.98 * number(&value["step_us"]), "{value}");
    assert_eq!(value["fits"], Value::Bool(false));
}

#[test]
fn servers_with_unlike_numbers_of_gpus_and_nics_are_planned_by_the_narrowest() {
    let file = "scenarios/unlike-servers.toml";
    let plan = json(&["plan", file], &[]);
    assert_eq!((&plan["nodes"], &plan["gpus"], &plan["nics"]), (&6.into(), &32.into(), &1.into()), "{plan}");
    // Headers take 82 of 4,178 bytes.
    near(&plan["available_bytes_per_s"]["nic"], 12.5e9 * 4096.0 / 4178.0, 0.001);
    assert_eq!(plan["gpu_memory_bytes"], 48_000_000_000_u64);
    for layout in plan["layouts"].as_array().unwrap() {
        assert!(4 % layout["tp"].as_u64().unwrap() == 0, "inside every server: {layout}");
    }
    let output = railnet_with(&["plan", file], &[]);
    let screen = String::from_utf8(output.stdout).unwrap();
    assert!(screen.contains("2 nodes × 8 H100 SXM5 + 4 nodes × 4 L40S (dgx-h100x2+pcie-4gpux4)"), "{screen}");
    assert!(screen.contains("the servers whose NICs carry least together"), "{screen}");
}

#[test]
fn a_plan_and_a_run_by_formulas_take_the_same_step() {
    let file = "scenarios/llama-70b.toml";
    let plan = json(&["plan", file], &[]);
    let output = railnet_with(&["sim", file, "--json", "-"], &[]);
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let job = &run["jobs"][0];
    assert_eq!(plan["step_us"], job["step_us"]);
    assert_eq!(plan["memory_bytes"], job["memory_bytes"]);
    let exposed = &job["average_us"]["exposed"];
    for dimension in plan["dimensions"].as_array().unwrap() {
        let name = dimension["dimension"].as_str().unwrap();
        let waited = exposed.get(name).map_or(0.0, number);
        assert!((number(&dimension["exposed_us"]) - waited).abs() < 1e-6, "{name}");
    }
    // The layout of the file is among those that were tried, and takes the same.
    let layouts = plan["layouts"].as_array().unwrap();
    let own = layouts.iter().find(|one| one["tp"] == 8 && one["pp"] == 1 && one["zero"] == 1).unwrap();
    assert_eq!(own["step_us"], plan["step_us"]);
    assert!(number(&layouts[0]["step_us"]) <= number(&own["step_us"]));
    let steps: Vec<f64> = layouts.iter().map(|one| number(&one["step_us"])).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    for layout in layouts {
        let ranks = ["tp", "cp", "pp", "dp"].map(|key| number(&layout[key])).iter().product::<f64>();
        assert!(ranks as u32 == 256 && number(&layout["memory_bytes"]) <= 80e9, "{layout}");
    }
    for misfit in plan["layouts_that_do_not_fit"].as_array().unwrap() {
        assert!(number(&misfit["memory_bytes"]) > 80e9, "{misfit}");
    }
}

#[test]
fn variables_of_nccl_count_as_in_tune_and_sim() {
    let ask = ["plan", "--model", "gpt-400m", "--gpus", "32"];
    let step = |variables: &[(&str, &str)]| number(&json(&ask, variables)["step_us"]);
    let plain = step(&[]);
    let slow = step(&[("NCCL_PROTO", "LL")]);
    assert!(slow > 1.2 * plain, "{slow} and {plain}");
    let file = written("plan.env", "NCCL_PROTO=LL\n");
    let from_file = json(&[&ask[..], &["--env-file", &file]].concat(), &[]);
    near(&from_file["step_us"], slow, 1e-12);
    let scenario = written(
        "plan-env.toml",
        "fidelity = \"analytic\"\n[cluster]\nserver = \"dgx-h100\"\nnodes = 4\n[model]\nname = \"gpt-400m\"\n[env]\nNCCL_PROTO = \"LL\"\n",
    );
    // A file has rails between its servers, on which steps of a ring overlap; options have nothing in the way, and NCCL's estimate.
    near(&json(&["plan", &scenario], &[])["step_us"], slow, 0.05);
    assert!(
        (number(&json(&["plan", &scenario], &[("NCCL_PROTO", "Simple,LL,LL128")])["step_us"]) - plain).abs()
            < 0.3 * plain
    );
    let output = railnet_with(&ask, &[("NCCL_IB_TC", "106")]);
    assert!(text(&output.stderr).contains("has no effect in railnet plan"), "{}", text(&output.stderr));
}

#[test]
fn what_a_placement_costs_is_told_with_the_order_that_would_be_better() {
    let file = written(
        "turned.toml",
        "fidelity = \"analytic\"\n[cluster]\nserver = \"dgx-h100\"\nnodes = 8\n[model]\nname = \"llama-3-70b\"\n[training]\n\
         global_batch = 32\n[parallel]\ntp = 8\nsp = true\nzero = 1\norder = [\"dp\", \"cp\", \"tp\", \"pp\"]\n",
    );
    let screen = told(&["plan", &file]);
    assert!(screen.contains("tensor parallel (8 ranks) inside a server, where it is not"), "{screen}");
    assert!(screen.contains("with `order = [\"tp\", "), "{screen}");
    let value = json(&["plan", &file], &[]);
    assert!(number(&value["better_order"]["step_us"]) < 0.8 * number(&value["step_us"]));
}

#[test]
fn a_job_of_one_gpu_or_one_server_needs_no_network() {
    let one = told(&["plan", "--model", "tiny", "--gpus", "1"]);
    assert!(one.contains("one GPU needs no network"), "{one}");
    let value = json(&["plan", "--model", "tiny", "--gpus", "8"], &[]);
    assert_eq!(value["gpudirect"], Value::Null);
    assert_eq!(value["dimensions"][0]["basis"], "gpu");
}

#[test]
fn what_does_not_fit_anywhere_is_told_with_what_comes_nearest() {
    let screen = told(&["plan", "--params", "405B", "--gpus", "8"]);
    assert!(screen.contains("Layouts of 8 GPUs: 0 fit"), "{screen}");
    assert!(screen.contains("Nearest is ") && screen.contains("use more GPUs"), "{screen}");
}

#[test]
fn wrong_usage_says_what_would_be_right() {
    let traffic = "scenarios/incast.toml";
    let cases: [(&[&str], &str); 16] = [
        (&[], "which job? A file, or --model llama-3-70b --gpus 64"),
        (&["--params", "70", "--gpus", "64"], "write it as 70B, 7.5B or 400M"),
        (&["--params", "70GB", "--gpus", "64"], "write it as 70B, 7.5B or 400M"),
        (&["--params", "0B", "--gpus", "64"], "a model has 1M to 100T parameters"),
        (&["--params", "70B"], "how many GPUs? --gpus 64"),
        (&["--params", "70B", "--gpus", "0"], "a whole number from 1 to 524288"),
        (
            &["--params", "70B", "--gpus", "60"],
            "dgx-h100 has 8 GPUs, and 60 are no whole servers: 56 or 64 would do",
        ),
        (&["--params", "70B", "--gpus", "64", "--cluster", "dgx-h10"], "did you mean \"dgx-h100\"?"),
        (&["--params", "70B", "--gpus", "64", "--cluster", "dgx-h100x4"], "dgx-h100x4 has 32 GPUs, not 64"),
        (&["--model", "llama-3-70", "--gpus", "64"], "did you mean \"llama-3-70b\"?"),
        (&["--model", "llama-3-70b", "--gpus", "64", "--tp", "3"], "tp 3 × cp 1 × pp 1 × dp 21 are 63 ranks"),
        (&["--model", "llama-3-70b", "--gpus", "64", "--batch", "100"], "does not divide the 100 sequences"),
        (&["--params", "70B", "--gpus", "64", "--compute", "200"], "has no unit"),
        (&["--params", "70B", "--gpus", "64", "--compute", "0ms"], "--compute is a time, such as 200ms"),
        (&[traffic], "has no job: a plan is for scenarios with a [model]"),
        (&["scenarios/llama-70b.toml", "--gpus", "8"], "cannot be used with"),
    ];
    for (arguments, expected) in cases {
        let output = railnet_with(&[&["plan"], arguments].concat(), &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
    let output = railnet_with(&["plan", "nowhere.toml"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there is no file nowhere.toml"), "{}", text(&output.stderr));
}

/// What the document shows was printed by the command. A line of dots stands for lines left out.
#[test]
fn the_document_shows_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let contents = fs::read_to_string(root.join("docs/planning.md")).unwrap();
    let mut samples = 0;
    for block in contents.split("```").skip(1).step_by(2) {
        let mut lines = block.lines().skip(1);
        let Some(command) = lines.next().and_then(|line| line.strip_prefix("$ railnet ")) else { continue };
        samples += 1;
        let arguments: Vec<&str> = command.split_whitespace().collect();
        let printed = told(&arguments);
        let mut rest = printed.lines();
        for line in lines.filter(|line| line.trim() != "…") {
            assert!(
                rest.any(|one| one == line),
                "`{command}` does not print, in this order:\n{line}\nbut\n{printed}"
            );
        }
    }
    assert!(samples >= 2, "only {samples} samples were found");
}

/// A server with one NIC and GPUs of half the speed, and a model: as a user would write them.
const OWN: &str = include_str!("../../../testdata/catalogue/own.toml");

#[test]
fn names_of_a_catalogue_of_ones_own_count_without_a_scenario() {
    let file = written("own-catalogue.toml", OWN);
    let with = |arguments: &[&'static str]| -> Vec<String> {
        let all = arguments.iter().map(|one| (*one).to_owned());
        all.chain(["--catalogue".to_owned(), file.clone()]).collect()
    };
    let asked = [
        (with(&["plan", "--model", "own", "--cluster", "minex2"]), "2 nodes × 8 half"),
        (with(&["topo", "minex2", "--channels"]), "eth0"),
        (with(&["tune", "allreduce", "64MiB", "--cluster", "minex2"]), "16 ranks on 2 nodes (minex2)"),
    ];
    for (arguments, expected) in &asked {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let found = told(&arguments);
        assert!(found.contains(expected), "{found}");
        let without = railnet_with(&arguments[..arguments.len() - 2], &[]);
        assert_eq!(without.status.code(), Some(2), "nobody else knows it");
    }
    let wrong = written("wrong-catalogue.toml", &OWN.replace("gpu = \"half\"", "gpu = \"hlaf\""));
    let refused = railnet_with(&["topo", "mine", "--catalogue", &wrong], &[]);
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        message.contains("wrong-catalogue.toml, line ") && message.contains("did you mean \"half\"?"),
        "{message}"
    );
    let beside = railnet_with(&["topo", "scenarios/leaf-spine.toml", "--catalogue", &file], &[]);
    assert!(text(&beside.stderr).contains("--catalogue is for names"), "{}", text(&beside.stderr));
    let beside = railnet_with(&["plan", "scenarios/llama-70b.toml", "--catalogue", &file], &[]);
    assert_eq!(beside.status.code(), Some(2), "a file names its own");
}

/// Each calculator says what the plan does.
#[test]
fn calculators_have_the_formulas_of_the_plan() {
    let json = |arguments: &[&str]| -> Value {
        let output = railnet_with(arguments, &[]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
    };
    let close = |value: &Value, expected: f64| {
        let number = value.as_f64().unwrap();
        assert!((number - expected).abs() <= expected.abs() * 1e-6, "{number} instead of {expected}");
    };
    let job = ["--model", "llama-3-70b", "--gpus", "64", "--tp", "8", "--pp", "2", "--json"];
    let (plan, dimensions) =
        (json(&[&["plan"], &job[..]].concat()), json(&[&["calc", "parallel"], &job[..]].concat()));
    assert_eq!(plan["dimensions"], dimensions["jobs"][0]["dimensions"]);
    let reduce = json(&["calc", "allreduce", "140GB", "--gpus", "64", "--within", "200ms", "--json"]);
    close(&reduce["gpu_bytes"], 2.0 * 63.0 / 64.0 * 140e9);
    close(&reduce["needed_bytes_per_s"]["gpu"], 2.0 * 63.0 / 64.0 * 140e9 / 0.2);
    close(&reduce["nic_bytes"], reduce["node_bytes"].as_f64().unwrap() / 8.0);
    assert_eq!(
        reduce["available_bytes_per_s"],
        plan["available_bytes_per_s"]
            .as_object()
            .map(|there| {
                serde_json::json!({ "gpu": there["gpu"], "node": there["node"], "nic": there["nic"] })
            })
            .unwrap()
    );
    let copies = json(&["calc", "copies", "64MiB", "--json"]);
    close(&copies["copied_bytes"], 2.0 * f64::from(64 << 20));
    close(&copies["host_memory_bytes"], 4.0 * f64::from(64 << 20));
    assert!(copies["nic_without_us"].as_f64() >= copies["nic_us"].as_f64());
    let rails = json(&["calc", "rails", "64MiB", "--gpus", "64", "--call", "alltoall", "--json"]);
    // Of what a rank has, the parts of the 56 GPUs of other servers leave, from all eight.
    close(&rails["node_bytes"], f64::from(64 << 20) * 56.0 / 64.0 * 8.0);
    close(&rails["rail_bytes"], f64::from(64 << 20) * 56.0 / 64.0);
    for wrong in [
        &["calc", "copies", "0B"][..],
        &["calc", "rails", "1GiB"],
        &["calc", "allreduce", "1GiB", "--gpus", "12"],
    ] {
        assert_eq!(railnet_with(wrong, &[]).status.code(), Some(2), "{wrong:?}");
    }
    let screen =
        text(&railnet_with(&["calc", "allreduce", "140GB", "--gpus", "64", "--within", "200ms"], &[]).stdout);
    assert!(screen.contains("2 × 63 / 64 × 140 GB") && screen.contains("not in time"), "{screen}");
}

#[test]
fn a_plan_comes_from_standard_input() {
    use std::io::Write as _;
    let scenario =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/llama-70b.toml")).unwrap();
    let mut child = harness::command::<&str>(&[])
        .args(["plan", "-", "--json"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&scenario).unwrap();
    let piped: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    let named: Value =
        serde_json::from_slice(&railnet_with(&["plan", "llama-70b", "--json"], &[]).stdout).unwrap();
    assert_eq!(piped, named);
}
