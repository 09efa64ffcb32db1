//! Every key of the scenario format, every variable of docs/knobs.md, every fidelity: two values give two answers, or the run says
//! that the key has no effect. `cases.txt` has a line for each key: where it is documented, the scenario that feels it, and two values.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use railnet_coll::variables::{DECLARATIONS, Place};
use railnet_core::Digest;
use railnet_sim::{Fidelity, FlowLevelRun, Run, Scenario, run_jobs};
use toml::{Table, Value};

use crate::page::sections;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/effects/cases.txt");

/// What keys are tried on. Small, so that all of them run in a moment.
const BASES: &[(&str, &str)] = &[
    (
        "incast",
        "seed = 1\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 9 }\nlink = { rate = \"100Gbps\", delay = \"1us\" }\n\
         [nic]\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..7\"\nto = 8\nbytes = \"1MB\"\n",
    ),
    (
        "leaf-spine",
        "seed = 1\n[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 4, spines = 2 }\n[nic]\n\
         [[traffic]]\nkind = \"permutation\"\nbytes = \"256KB\"\n",
    ),
    (
        "flow",
        "seed = 1\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n[nic]\n\
         [[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 1\nbytes = \"256KB\"\n\
         [[traffic]]\nkind = \"flow\"\nfrom = 2\nto = 1\nbytes = \"256KB\"\n",
    ),
    (
        "servers",
        "seed = 1\n[fabric]\ntopology = { kind = \"rail-optimised\", nodes = 2, rails = 8, nodes_per_group = 2, spines = 1 }\n[nic]\n\
         [cluster]\nserver = \"dgx-h100\"\n[[traffic]]\nkind = \"flow\"\nfrom = 0\nto = 8\nbytes = \"1MB\"\n",
    ),
    (
        "collective",
        "seed = 1\n[fabric]\ntopology = { kind = \"rail-optimised\", nodes = 2, rails = 8, nodes_per_group = 2, spines = 1 }\n[nic]\n\
         [cluster]\nserver = \"dgx-h100\"\n[[collective]]\nkind = \"all_reduce\"\nsize = \"1MiB\"\nplacement = \"out\"\n",
    ),
    (
        "transfer",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric]\nlink = { rate = \"400Gbps\" }\n\
         [[transfer]]\nfrom = \"0..1\"\nto = \"8..9\"\nlayers = 2\nlayer = \"256KiB\"\nblock = \"64KiB\"\n",
    ),
    (
        "job",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[nic]\n[model]\nname = \"tiny\"\n[parallel]\n[training]\nmicro_batch = 1\n",
    ),
    (
        "experts",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[model]\nname = \"small\"\nlayers = 4\nhidden = 256\nheads = 4\nffn = 512\n\
         vocabulary = 1000\nsequence = 256\nexperts = { count = 16, top_k = 2 }\n[parallel]\nep = 16\n[training]\nmicro_batch = 1\n",
    ),
    (
        "racks",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\n[fabric]\n\
         topology = { kind = \"leaf-spine\", leaves = 4, hosts_per_leaf = 4, spines = 2 }\n[model]\nname = \"tiny\"\n[parallel]\n",
    ),
    (
        "storage",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 3\n[model]\nname = \"tiny\"\n[parallel]\n\
         [storage]\nrate = \"40Gbps\"\nservers = 1\ninterval = 1\n",
    ),
    (
        "parameters",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 3\n[model]\nname = \"tiny\"\n[parallel]\n[parameters]\nservers = 1\n",
    ),
    (
        "crash",
        "seed = 1\n[cluster]\nserver = \"dgx-h100\"\nnodes = 3\n[model]\nname = \"tiny\"\n[parallel]\n[training]\nsteps = 2\n\
         [launch]\nnodes = 2\nspares = 1\n[storage]\nrate = \"4GB/s\"\ninterval = 1\n[[faults]]\nkind = \"crash\"\nnode = 1\nat = \"700us\"\n",
    ),
];

/// One line of the table.
struct Case {
    /// The heading of docs/scenarios.md, or `knobs`.
    heading: String,
    /// The key there.
    key: String,
    base: Table,
    is_job: bool,
    path: String,
    values: [Value; 2],
}

fn value(text: &str) -> Value {
    let table: Table = format!("value = {text}").parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    table["value"].clone()
}

/// Sets a key such as `faults.0.at`.
fn set(table: &mut Table, path: &str, value: Value) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let Some(rest) = rest else {
        table.insert(first.to_owned(), value);
        return;
    };
    let next = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Array(list) = next {
        let (index, rest) = rest.split_once('.').map_or((rest, None), |(index, rest)| (index, Some(rest)));
        let index: usize = index.parse().unwrap();
        if list.len() == index {
            list.push(Value::Table(Table::new()));
        }
        match rest {
            Some(rest) => set(list[index].as_table_mut().unwrap(), rest, value),
            None => list[index] = value,
        }
        return;
    }
    if let Some((index, rest)) = rest.split_once('.')
        && index == "0"
        && next.as_table().is_some_and(Table::is_empty)
    {
        let mut one = Table::new();
        set(&mut one, rest, value);
        *next = Value::Array(vec![Value::Table(one)]);
        return;
    }
    set(next.as_table_mut().unwrap_or_else(|| panic!("{path}")), rest, value);
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(CASES).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let parts: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [heading, key, base, path, a, b] = parts[..] else { panic!("six columns: {line}") };
            let mut settings = base.split("; ");
            let name = settings.next().unwrap();
            let text = BASES.iter().find(|(one, _)| *one == name);
            let mut base: Table =
                text.unwrap_or_else(|| panic!("no base {name:?}: {line}")).1.parse().unwrap();
            for setting in settings {
                let (path, text) = setting.split_once('=').unwrap_or_else(|| panic!("{line}"));
                set(&mut base, path.trim(), value(text.trim()));
            }
            let is_job = base.contains_key("model");
            let values = [value(a), value(b)];
            let (heading, key, path) = (heading.to_owned(), key.to_owned(), path.to_owned());
            Case { heading, key, base, is_job, path, values }
        })
        .collect()
}

/// What a scenario comes to, or why it cannot run.
fn answer(table: Table) -> Result<String, String> {
    let scenario = Scenario::from_table(table, |path: &str| -> Result<String, String> {
        std::fs::read_to_string(format!("{}/../../scenarios/{path}", env!("CARGO_MANIFEST_DIR")))
            .map_err(|error| error.to_string())
    })
    .map_err(|error| format!("{}: {}", error.key, error.message))?;
    if scenario.has_jobs() {
        let outcome = run_jobs(&scenario).map_err(|error| error.to_string())?;
        let mut text = format!("{}", outcome.digest);
        for job in &outcome.jobs {
            let _ = write!(
                text,
                " {} {:?} {:?} {:?}",
                job.placed.resolved.job.model.name, job.steps, job.faults, job.life
            );
        }
        return Ok(text);
    }
    if scenario.fidelity == Fidelity::Flow {
        return Ok(match FlowLevelRun::new(&scenario).map_err(|error| error.message)?.finish() {
            Ok((outcome, digest)) => format!("{digest} {}", outcome.completion),
            Err(error) => error.to_string(),
        });
    }
    let run = Run::new(&scenario, Digest::new()).map_err(|error| error.message)?;
    // A failure is an answer too: some keys are about nothing else.
    Ok(match run.finish() {
        Ok((outcome, digest)) => {
            let wrong: u64 = outcome.collectives.iter().map(|one| one.wrong).sum();
            let samples = outcome.series.map(|series| format!("{series:?}").len());
            format!("{} {} {wrong} {samples:?}", digest.finish(), outcome.completion)
        }
        Err(error) => error.to_string(),
    })
}

/// What two values of a key come to.
enum Felt {
    /// Two answers.
    Differs,
    /// One, and the run says that the key has no effect.
    Noticed,
    /// One, and the run says nothing; or it cannot run.
    Silent(String),
    /// Two, though the run says that the key has no effect.
    Denied(String),
}

fn felt(case: &Case, fidelity: &str) -> Felt {
    let with = |value: &Value| {
        let mut table = case.base.clone();
        if fidelity != "packet" || case.is_job {
            set(&mut table, "fidelity", Value::String(fidelity.to_owned()));
        }
        set(&mut table, &case.path, value.clone());
        table
    };
    let answers = case.values.each_ref().map(|value| answer(with(value)));
    let is_inert = case.values.iter().any(|value| {
        Scenario::from_table(with(value), no_file).is_ok_and(|scenario| {
            let below = format!("{}.", case.path);
            scenario.without_effect().iter().any(|one| one.key == case.path || one.key.starts_with(&below))
        })
    });
    // What flow fidelity does not run at all it refuses, and says so.
    let is_refused = |answer: &Result<String, String>| {
        answer.as_ref().is_err_and(|why| why.starts_with("fidelity: flow fidelity "))
    };
    if answers.iter().any(is_refused) && answers.iter().all(Result::is_err) {
        return Felt::Noticed;
    }
    // Two refusals differ in their words, and say nothing of an effect.
    let differs = answers.iter().any(Result::is_ok) && answers[0] != answers[1];
    match (differs, is_inert) {
        (true, false) => Felt::Differs,
        (false, true) => Felt::Noticed,
        // A value that is wrong at every fidelity is refused at this one, too.
        (true, true) if fidelity == "flow" && answers.iter().any(Result::is_err) => Felt::Noticed,
        (true, true) => Felt::Denied(format!("said to have no effect, and has one: {answers:?}")),
        (false, false) => Felt::Silent(match &answers[0] {
            Ok(_) => "no effect, and the run does not say so".to_owned(),
            Err(why) => why.clone(),
        }),
    }
}

fn no_file(_path: &str) -> Result<String, String> {
    Err("no files here".to_owned())
}

#[test]
fn every_key_has_an_effect_or_is_said_to_have_none() {
    // By key and fidelity: whether two values gave two answers somewhere, and what there was of silence.
    let mut found: BTreeMap<(String, String, &str), (bool, Vec<String>)> = BTreeMap::new();
    let mut denied = Vec::new();
    for case in cases() {
        let fidelities: &[&str] =
            if case.is_job { &["packet", "flow", "analytic"] } else { &["packet", "flow"] };
        for fidelity in fidelities {
            let (differs, silent) =
                found.entry((case.heading.clone(), case.key.clone(), fidelity)).or_default();
            match felt(&case, fidelity) {
                Felt::Differs => *differs = true,
                Felt::Noticed => {}
                Felt::Silent(why) => silent.push(format!("{}: {why}", case.path)),
                Felt::Denied(why) => denied.push(format!("{} at {fidelity} fidelity: {why}", case.path)),
            }
        }
    }
    let silent = found.into_iter().filter(|(_, (differs, silent))| !differs && !silent.is_empty());
    let silent = silent.map(|((heading, key, fidelity), (_, why))| {
        format!("{heading} `{key}` at {fidelity} fidelity: {}", why.join("; "))
    });
    let failures: Vec<String> = denied.into_iter().chain(silent).collect();
    assert!(failures.is_empty(), "{} keys:\n{}", failures.len(), failures.join("\n"));
}

/// Keys of sections, whose own keys have lines.
const CONTAINERS: &[&str] = &[
    "fabric",
    "nic",
    "cluster",
    "traffic",
    "collective",
    "transfer",
    "model",
    "training",
    "parallel",
    "trace",
    "launch",
    "storage",
    "parameters",
    "job",
    "env",
    "faults",
    "topology",
    "link",
    "switch",
    "infiniband",
    "dcqcn",
    "timely",
    "swift",
    "hpcc",
    "dctcp",
    "tcp",
    "connection",
    "differs",
    "experts",
];

/// What is told on standard error, and a file that the command reads: its own tests have them
/// (`what_only_the_command_reads_has_an_effect`).
const TOLD: [&str; 3] = ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_TOPO_FILE"];

#[test]
fn every_documented_key_has_a_case() {
    let known: BTreeSet<(String, String)> =
        cases().into_iter().map(|case| (case.heading, case.key)).collect();
    let mut missing = Vec::new();
    for (heading, text) in sections() {
        // Traces are read by the command: its tests have them, as they have the variables of `TOLD`.
        if matches!(heading.as_str(), "Presets" | "Limits" | "[trace]" | "What comes out") {
            continue;
        }
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        for key in rows {
            let is_section = CONTAINERS.contains(&key) && !heading.contains("kind ");
            // Files that the command reads, as traces are.
            let is_file =
                matches!((heading.as_str(), key), ("The file", "catalogue") | ("[[collective]]", "file"));
            if !is_section && !is_file && !known.contains(&(heading.clone(), key.to_owned())) {
                missing.push(format!("{heading} | {key}"));
            }
        }
    }
    let of_runs = DECLARATIONS.iter().filter(|one| one.places.contains(&Place::Sim));
    for declaration in of_runs.filter(|one| !TOLD.contains(&one.name)) {
        if !known.contains(&("knobs".to_owned(), declaration.name.to_owned())) {
            missing.push(format!("knobs | {}", declaration.name));
        }
    }
    assert!(missing.is_empty(), "no line in cases.txt for:\n{}", missing.join("\n"));
}

#[test]
fn a_run_without_infiniband_is_a_run_over_tcp() {
    for (base, fidelity) in [("collective", None), ("job", Some("packet")), ("job", Some("analytic"))] {
        let text = BASES.iter().find(|(name, _)| *name == base).unwrap().1;
        let with = |path: &str, value: Value| {
            let mut table: Table = text.parse().unwrap();
            if let Some(fidelity) = fidelity {
                set(&mut table, "fidelity", Value::String(fidelity.to_owned()));
            }
            set(&mut table, path, value);
            answer(table).unwrap()
        };
        let disabled = with("env.NCCL_IB_DISABLE", Value::Integer(1));
        assert_eq!(
            disabled,
            with("cluster.transport", Value::String("tcp".to_owned())),
            "{base} {fidelity:?}"
        );
        assert_ne!(
            disabled,
            with("cluster.transport", Value::String("rdma".to_owned())),
            "{base} {fidelity:?}"
        );
    }
}

#[test]
fn switches_that_reduce_do_nothing_for_jobs_as_packets_and_the_run_says_so() {
    let inert = |fidelity: &str, switch: &str| -> Vec<String> {
        let text = format!(
            "fidelity = \"{fidelity}\"\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[model]\nname = \"tiny\"\n\
             [training]\nglobal_batch = 16\n[parallel]\ndp = 16\n[env]\nNCCL_COLLNET_ENABLE = 1\n[fabric]\nswitch = {switch}\n"
        );
        let keys = Scenario::parse(&text).unwrap().without_effect().into_iter().map(|one| one.key);
        keys.filter(|key| key.contains("COLLNET") || key.contains("aggregation")).collect()
    };
    let contexts = "{ aggregation = { contexts = 8 } }";
    let both = ["env.NCCL_COLLNET_ENABLE", "fabric.switch.aggregation.contexts"];
    assert_eq!(inert("packet", contexts), both);
    assert_eq!(inert("packet", "{}"), both[..1]);
    assert_eq!(inert("analytic", "{}"), both[..1]);
    assert_eq!(inert("analytic", "{ aggregation = {} }"), Vec::<String>::new());
}
