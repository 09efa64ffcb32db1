//! What `--json`, `--csv` and `--record` write, against the pages that say what it means: no field and no column without a word.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read and write their files themselves"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use railnet_formats::run_file::RunFile;
use serde_json::Value;

use crate::harness;

const SCENARIOS: &str = include_str!("../../../docs/scenarios.md");
const JOBS: &str = include_str!("../../../docs/jobs.md");
const PAGE: &str = include_str!("../../../docs/page.md");

const SWITCH: &str =
    "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 2 }\n";
const TRAFFIC: &str = "[[traffic]]\nkind = \"all-to-all\"\nbytes = \"200KB\"\n";
const SERVERS: &str = "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric.link]\nrate = \"400Gbps\"\n";

/// Scenarios that have something to say in every field, by the page that explains it.
fn runs() -> Vec<(&'static str, &'static str, String)> {
    let storm = "[[faults]]\nkind = \"pause-storm\"\nhost = 1\nat = \"5us\"\n";
    let dead =
        "[nic]\ntimeout = 1\nretry_count = 1\n[[faults]]\nkind = \"link-down\"\nlink = 0\nat = \"5us\"\n";
    let late = format!("limit = \"10us\"\n{SWITCH}{TRAFFIC}");
    let calls = "[[collective]]\nkind = \"all-reduce\"\nsize = \"1MB\"\n[[transfer]]\nfrom = \"0..7\"\n\
                 to = \"8..15\"\nlayers = 2\nlayer = \"256KiB\"\nblock = \"64KiB\"\n";
    let job = "steps = 2\nsample = \"10us\"\n";
    let slow = "[[faults]]\nkind = \"slow-gpu\"\ngpu = 3\nshare = 0.5\n";
    vec![
        ("traffic", SCENARIOS, format!("sample = \"10us\"\n{SWITCH}{TRAFFIC}")),
        ("storm", SCENARIOS, format!("{SWITCH}{TRAFFIC}{storm}")),
        ("dead", SCENARIOS, format!("{SWITCH}{TRAFFIC}{dead}")),
        ("late", SCENARIOS, late),
        ("calls", SCENARIOS, format!("{SERVERS}{calls}")),
        ("job", JOBS, format!("{job}{SERVERS}[model]\nname = \"tiny\"\n{slow}")),
    ]
}

fn railnet(arguments: &[&str]) {
    let output = harness::command::<&str>(&[]).args(arguments).output().unwrap();
    // Those that fail have as much to say.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {said}");
}

/// The words in backquotes in the rows of tables of a page, and those of rows that name a file or table.
fn words(page: &str, about: Option<&str>) -> BTreeSet<String> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let rows = rows.filter(|line| about.is_none_or(|about| line.split('|').nth(1).unwrap().contains(about)));
    let quoted = rows.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.flat_map(|word| word.split('.')).map(|part| part.trim_end_matches("[]").to_owned()).collect()
}

/// Every name of a field in a value. Parallel dimensions and kinds of work are names of the run, not of the format.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                found.insert(name.clone());
                if name != "exposed" && name != "critical_path_us" {
                    fields(value, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

/// Columns whose cells are words; all others are numbers.
const TEXTS: [&str; 9] = ["from", "to", "job", "scope", "what", "algorithm", "protocol", "digest", "error"];

fn parsed(path: &Path, page: &str, keys: &[&str]) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let explained = if name == "sweep.csv" { words_of_sweep() } else { words(page, Some(name)) };
    for column in header.iter().filter(|column| !keys.contains(column)) {
        assert!(explained.contains(*column), "no word about {column} of {name}: {explained:?}");
    }
    let mut rows = 0;
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), header.len(), "{name}: {line}");
        for (column, cell) in header.iter().zip(cells).filter(|(column, _)| !keys.contains(column)) {
            let is_number = cell.is_empty() || cell.parse::<f64>().is_ok_and(f64::is_finite);
            assert!(is_number || TEXTS.contains(column), "{column} of {name}: {cell:?}");
        }
        rows += 1;
    }
    assert!(rows > 0, "{name} is empty");
}

/// What the paragraph about sweeps names.
fn words_of_sweep() -> BTreeSet<String> {
    let (_, after) = SCENARIOS.split_once("A sweep writes `points[]`").unwrap();
    let paragraph = after.split("\n\n").next().unwrap();
    paragraph.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_field_and_every_column_has_its_words() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("columns");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, page, text) in runs() {
        let [toml, json, record, tables] = ["toml", "json", "rail", "csv"]
            .map(|kind| folder.join(format!("{name}.{kind}")).to_str().unwrap().to_owned());
        fs::write(&toml, text).unwrap();
        railnet(&["sim", &toml, "--json", &json, "--csv", &tables, "--record", &record]);
        let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let mut found = BTreeSet::new();
        fields(&value, &mut found);
        // What a job has in common with other runs is explained with those.
        let explained: BTreeSet<String> = words(page, None).union(&words(SCENARIOS, None)).cloned().collect();
        let missing: Vec<&String> = found.difference(&explained).collect();
        assert!(missing.is_empty(), "no word about {missing:?} in the JSON of {name}");
        let mut files = 0;
        for file in fs::read_dir(&tables).unwrap() {
            let path = file.unwrap().path();
            let is_own = matches!(path.file_stem().unwrap().to_str(), Some("said" | "steps"));
            let has_rows = name == "traffic" || name == "job" && is_own;
            if has_rows {
                parsed(&path, page, &[]);
            }
            files += 1;
        }
        assert!(files >= 2, "{name}: {files} tables");
        for table in RunFile::parse(&fs::read(record).unwrap()).unwrap().tables {
            let (_, row) = PAGE
                .split_once(&format!("\n| `{}` | ", table.name))
                .unwrap_or_else(|| panic!("no word about the table {}", table.name));
            let row: BTreeSet<&str> = row
                .lines()
                .next()
                .unwrap()
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .collect();
            for column in &table.columns {
                assert!(
                    row.contains(column.name.as_str()),
                    "no word about {} of {}",
                    column.name,
                    table.name
                );
            }
        }
        seen.entry(page).or_default().append(&mut found);
    }
    // The scenarios above do reach what there is: what pages explain and nobody has seen would be left over.
    let reached = ["collectives", "transfers", "lanes", "error", "series", "held_by", "hosts"];
    assert!(reached.iter().all(|row| seen[SCENARIOS].contains(*row)), "{:?}", seen[SCENARIOS]);
    assert!(["worst", "ports", "faults", "network"].iter().all(|row| seen[JOBS].contains(*row)));
    let (toml, tables) = (folder.join("traffic.toml"), folder.join("sweep"));
    fs::write(&toml, format!("{SWITCH}{TRAFFIC}")).unwrap();
    let [toml, out] = [&toml, &tables].map(|path| path.to_str().unwrap());
    railnet(&["sim", toml, "--sweep", "seed=1,2", "--csv", out]);
    parsed(&tables.join("sweep.csv"), SCENARIOS, &["seed"]);
}
