//! Jobs from outside: the built-in one, `railnet sim` with a `[model]`, and `railnet check`.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests read and write their files themselves")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SMALL: &str = "steps = 2\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric.link]\nrate = \"400Gbps\"\n\
                     [model]\nname = \"tiny\"\n";

fn railnet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railnet")).args(arguments).output().unwrap()
}

fn scratch(name: &str, contents: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

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
    assert!(screen.contains("4 nodes × 8 H100 SXM5, 32 ranks, node01:29500"), "{screen}");
    assert!(screen.contains("403 M parameters, data × 32, bf16"), "{screen}");
    for row in
        ["Meet", "Connect", "step 1", "Where the time goes", "Slowest rank", "The network", "Digest", "Try"]
    {
        assert!(screen.contains(&format!("\n  {row}")), "no {row}: {screen}");
    }
    assert!(screen.lines().count() <= 40, "{screen}");
}

#[test]
fn the_parts_of_a_step_add_up_to_it_for_programs() {
    let value = json(&scratch("job-parts.toml", SMALL));
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
        let file = scratch(name, &contents);
        let checked = railnet(&["check", &file]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        let printed = text(&checked.stdout);
        assert!(printed.contains("mtu = 4096                                   # default"), "{printed}");
        let again = scratch(&format!("again-{name}"), &printed);
        assert_eq!(json(&file)["digest"], json(&again)["digest"], "{printed}");
        // Nothing is left to fill in.
        assert!(!text(&railnet(&["check", &again]).stdout).contains("# default"), "{printed}");
    }
}

#[test]
fn a_job_that_does_not_fit_is_refused_with_what_would() {
    let file = scratch(
        "big.toml",
        "[cluster]\nserver = \"dgx-h100\"\nnodes = 8\n[model]\nname = \"llama-3-70b\"\n[parallel]\ntp = 8\n",
    );
    let output = railnet(&["sim", &file]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.starts_with("error: llama-3-70b does not fit: "), "{message}");
    assert!(message.contains("\n  parameters 17.6 · gradients 17.6 · optimiser"), "{message}");
    assert!(message.contains("\n  help: `zero = "), "{message}");
}

#[test]
fn a_wrong_name_is_marked_and_the_right_one_proposed() {
    let file = scratch("wrong-model.toml", &SMALL.replace("tiny", "tinny"));
    let message = text(&railnet(&["sim", &file]).stderr);
    assert!(message.contains("unknown model \"tinny\"") && message.contains(":8:8\n"), "{message}");
    assert!(message.ends_with("= did you mean \"tiny\"?\n"), "{message}");
    let file = scratch("wrong-key.toml", &format!("{SMALL}[parallel]\ntpp = 2\n"));
    let message = text(&railnet(&["sim", &file]).stderr);
    assert!(message.contains("unknown key \"tpp\"") && message.contains("did you mean \"tp\"?"), "{message}");
}

#[test]
fn what_is_for_traffic_only_is_refused_for_a_job() {
    let file = scratch("job-sweep.toml", SMALL);
    let output = railnet(&["sim", &file, "--sweep", "seed=1,2"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
