//! Servers that are not alike, catalogues of one's own, and defaults of lists.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_sim::{JobsOutcome, Scenario, ScenarioError, run_jobs};

use crate::training::run;

const MIXED: &str = "
[[cluster.groups]]
server = \"dgx-h100\"
nodes = 1
[[cluster.groups]]
server = \"dgx-a100\"
nodes = 1
[fabric.link]
rate = \"400Gbps\"
delay = \"500ns\"
[model]
name = \"gpt-400m\"
layers = 4
";

#[test]
fn fast_gpus_wait_for_slow_ones_and_the_report_says_so() {
    for fidelity in ["packet", "analytic"] {
        let mixed = run(&format!("fidelity = \"{fidelity}\"\n{MIXED}"));
        let first = &mixed.jobs[0].first;
        let [h100, a100] = &first.kinds[..] else { panic!("{fidelity}: {:?}", first.kinds) };
        assert_eq!((h100.gpu.as_str(), h100.ranks), ("H100 SXM5", 8), "{fidelity}");
        assert_eq!((a100.gpu.as_str(), a100.ranks), ("A100 SXM4", 8), "{fidelity}");
        assert!(a100.compute > h100.compute, "{fidelity}: {a100:?}");
        assert!(h100.waiting > a100.waiting, "{fidelity}: {h100:?} and {a100:?}");
        assert!(first.outcome.straggler.unwrap().rank.0 >= 8, "{fidelity}: the A100s are the slow ones");
        // As slow as a job on A100s alone, which has the same NICs to the network; faster only in what it need not wait for.
        let slow = MIXED.replace("dgx-h100", "dgx-a100");
        let alone = run(&format!("fidelity = \"{fidelity}\"\n{slow}")).jobs[0].first.outcome.step;
        let fast = run(&format!("fidelity = \"{fidelity}\"\n{}", MIXED.replace("dgx-a100", "dgx-h100")));
        let ratio = first.outcome.step.as_secs_f64() / alone.as_secs_f64();
        assert!((0.8..1.1).contains(&ratio), "{fidelity}: {ratio}");
        assert!(first.outcome.step > fast.jobs[0].first.outcome.step, "{fidelity}");
        assert!(fast.jobs[0].first.kinds.is_empty(), "all are alike");
    }
}

#[test]
fn thousands_of_unlike_servers_are_a_few_kinds() {
    let text = "fidelity = \"analytic\"\n[[cluster.groups]]\nserver = \"dgx-h100\"\nnodes = 512\n\
                [[cluster.groups]]\nserver = \"hgx-h200\"\nnodes = 512\n\
                [model]\nname = \"llama-3-8b\"\n[training]\nglobal_batch = 8192\n[parallel]\nzero = 1\n";
    let found = run(text);
    let ranks: Vec<u32> = found.jobs[0].first.kinds.iter().map(|kind| kind.ranks).collect();
    assert_eq!(ranks, [4_096, 4_096]);
    assert!(found.jobs[0].first.outcome.workers.len() < 100, "one rank of a kind stands for all");
}

#[test]
fn groups_that_do_not_fit_together_are_refused() {
    let wrong = |text: &str| -> ScenarioError { Scenario::parse(text).unwrap_err() };
    let error = wrong(&MIXED.replace("dgx-a100", "dgx-a10"));
    assert_eq!((error.key.as_str(), error.meant.as_deref()), ("cluster.groups.1.server", Some("dgx-a100")));
    let error = wrong(&format!("[cluster]\nserver = \"dgx-h100\"\n{MIXED}"));
    assert!(error.message.contains("not both"), "{error}");
}

/// Half as fast as an H100 in all that counts.
const OWN: &str = include_str!("../../../testdata/catalogue/own.toml");

fn with_own(text: &str, own: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse_with(text, |path: &str| match path {
        "own.toml" => Ok(own.to_owned()),
        other => Err(format!("no {other}")),
    })
}

#[test]
fn a_catalogue_of_ones_own_has_servers_and_models() {
    let text = "catalogue = [\"own.toml\"]\nfidelity = \"analytic\"\n[cluster]\nserver = \"mine\"\nnodes = 1\n[model]\nname = \"own\"\n";
    let own = run_jobs(&with_own(text, OWN).unwrap()).unwrap();
    let like = text
        .replace("\"own.toml\"", "")
        .replace("mine", "dgx-h100")
        .replace("\"own\"", "\"gpt-400m\"\nlayers = 4");
    let known = run(&like);
    let computed = |outcome: &JobsOutcome| outcome.jobs[0].first.outcome.average.compute().as_secs_f64();
    let ratio = computed(&own) / computed(&known);
    assert!((1.8..2.2).contains(&ratio), "half as fast takes twice as long: {ratio}");
    let error = with_own(&text.replace("\"mine\"", "\"minne\""), OWN).unwrap_err();
    assert!(error.message.contains("cpu, gb200-nvl72, mine"), "{error}");
    assert_eq!(error.meant.as_deref(), Some("mine"));
    let error = with_own(&text.replace("\"own\"\n", "\"owm\"\n"), OWN).unwrap_err();
    assert_eq!(error.meant.as_deref(), Some("own"), "{error}");
}

#[test]
fn what_is_wrong_with_a_catalogue_is_shown_in_its_file() {
    let text =
        "catalogue = [\"own.toml\"]\n[cluster]\nserver = \"mine\"\nnodes = 1\n[model]\nname = \"own\"\n";
    let twice = OWN.replace("\"mine\"", "\"dgx-h100\"");
    let error = with_own(text, &twice).unwrap_err();
    assert_eq!(error.file.as_ref().unwrap().path, "own.toml");
    assert_eq!(&twice[error.span.unwrap()], "\"dgx-h100\"");
    let error = with_own(&text.replace("own.toml", "no.toml"), OWN).unwrap_err();
    assert!(error.message.starts_with("cannot read no.toml"), "{error}");
}

#[test]
fn lists_of_tables_have_their_defaults_filled_in() {
    let text = "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[[job]]\nlaunch = { nodes = 1 }\nmodel = { name = \"tiny\" }\n\
                [[job]]\nmodel = { name = \"tiny\" }\n[[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n\
                [[faults]]\nkind = \"flap\"\nlink = 1\nperiod = \"4us\"\ncount = 3\n";
    let filled = Scenario::parse(text).unwrap().filled(text.parse().unwrap()).unwrap();
    for key in [
        "job.0.model.hidden",
        "job.1.training.micro_batch",
        "job.1.launch.nodes",
        "job.0.parallel.dp",
        "traffic.0.start",
        "faults.0.down",
        "faults.0.detection",
    ] {
        assert!(filled.defaults.contains(key), "{key}");
    }
    assert!(!filled.defaults.contains("job.0.launch.nodes"));
    let again = Scenario::from_table(filled.table.clone(), |_: &str| Err(String::new())).unwrap();
    assert!(again.filled(filled.table).unwrap().defaults.is_empty(), "nothing is left to fill in");
    assert!(filled.notes["cluster.server"].starts_with("8 x H100 SXM5 with 80 GB"), "{:?}", filled.notes);
}
