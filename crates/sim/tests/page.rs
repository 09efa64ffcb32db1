//! `docs/scenarios.md` against the code: every key and every name that a scenario may have is on the page.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use railnet_sim::Scenario;

const PAGE: &str = include_str!("../../../docs/scenarios.md");
const SHAPE: &str = "topology = { kind = \"single-switch\", hosts = 2 }\n";

/// The lines of each section, by its heading. Kinds are told apart by what they are kinds of.
pub(crate) fn sections() -> BTreeMap<String, String> {
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    let (mut heading, mut chapter) = (String::new(), String::new());
    for line in PAGE.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().replace('`', "");
            if line.starts_with("## ") {
                chapter.clone_from(&heading);
            } else if heading.starts_with("kind ") {
                heading = format!("{chapter} {heading}");
            }
        } else {
            let section = sections.entry(heading.clone()).or_default();
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

/// What the reader says may stand where `nonsense` stands.
fn expected(text: &str) -> Vec<String> {
    let message = Scenario::parse(text).unwrap_err().message;
    assert!(message.contains("`nonsense`"), "{message}");
    let (_, list) = message.split_once("expected").unwrap_or_else(|| panic!("{message}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn documented(sections: &BTreeMap<String, String>, heading: &str, text: &str) {
    let section = sections.get(heading).unwrap_or_else(|| panic!("no section {heading:?}"));
    let mut keys = expected(text);
    // The key that tells tables apart is in the heading.
    keys.retain(|key| key != "kind" || heading == "[[collective]]");
    assert!(!keys.is_empty(), "{heading}");
    let rows: Vec<&str> =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for key in &keys {
        assert!(rows.contains(&key.as_str()), "{heading}: no row for {key}");
    }
    for row in rows {
        assert!(keys.iter().any(|key| key == row), "{heading}: {row} is not a key");
    }
}

#[test]
fn every_key_has_a_row_and_every_row_is_a_key() {
    let sections = sections();
    let fabric = |rest: &str| format!("[fabric]\n{SHAPE}{rest}");
    documented(&sections, "The file", &format!("nonsense = 1\n{}", fabric("")));
    documented(&sections, "[fabric]", &fabric("nonsense = 1\n"));
    documented(&sections, "fabric.link", &fabric("link = { nonsense = 1 }\n"));
    documented(&sections, "fabric.switch", &fabric("switch = { nonsense = 1 }\n"));
    documented(&sections, "fabric.switch.ecn", &fabric("switch = { ecn = { nonsense = 1 } }\n"));
    documented(&sections, "fabric.infiniband", &fabric("infiniband = { nonsense = 1 }\n"));
    documented(&sections, "fabric.scheduling", &fabric("scheduling = { nonsense = 1 }\n"));
    documented(&sections, "[nic]", &fabric("[nic]\nnonsense = 1\n"));
    documented(&sections, "[cluster]", &fabric("[cluster]\nnonsense = 1\n"));
    documented(&sections, "cluster.tcp", &fabric("[cluster]\ntcp = { nonsense = 1 }\n"));
    documented(&sections, "[[collective]]", &fabric("[[collective]]\nnonsense = 1\n"));
    documented(&sections, "[[transfer]]", &fabric("[[transfer]]\nnonsense = 1\n"));
    documented(&sections, "cluster.groups", &fabric("[[cluster.groups]]\nnonsense = 1\n"));
    for table in ["model", "trace", "training", "parallel", "launch", "storage", "parameters"] {
        documented(&sections, &format!("[{table}]"), &fabric(&format!("[{table}]\nnonsense = 1\n")));
    }
    documented(&sections, "model.experts", &fabric("[model]\nexperts = { nonsense = 1 }\n"));
    documented(&sections, "[[job]]", &fabric("[[job]]\nnonsense = 1\n"));
    for table in ["connection", "differs"] {
        let text = fabric(&format!("[[collective]]\n[[collective.{table}]]\nnonsense = 1\n"));
        documented(&sections, &format!("collective.{table}"), &text);
    }
    for control in ["dcqcn", "timely", "swift", "hpcc", "dctcp"] {
        documented(
            &sections,
            &format!("nic.{control}"),
            &fabric(&format!("[nic.{control}]\nnonsense = 1\n")),
        );
    }
    for kind in expected("[fabric]\ntopology = { kind = \"nonsense\" }\n") {
        let text = format!("[fabric]\ntopology = {{ kind = \"{kind}\", nonsense = 1 }}\n");
        documented(&sections, &format!("fabric.topology kind {kind}"), &text);
    }
    for list in ["traffic", "faults"] {
        for kind in expected(&fabric(&format!("[[{list}]]\nkind = \"nonsense\"\n"))) {
            let text = fabric(&format!("[[{list}]]\nkind = \"{kind}\"\nnonsense = 1\n"));
            documented(&sections, &format!("[[{list}]] kind {kind}"), &text);
        }
    }
}

#[test]
fn every_name_of_a_choice_is_on_the_page() {
    let sections = sections();
    for name in expected(&format!("preset = \"nonsense\"\n[fabric]\n{SHAPE}")) {
        assert!(sections["Presets"].contains(&format!("| `\"{name}\"` | `\"")), "{name} has no row");
    }
    for (heading, rest) in [
        ("[fabric]", "routing = \"nonsense\"\n"),
        ("[fabric]", "framing = \"nonsense\"\n"),
        ("fabric.switch", "switch = { flow_control = \"nonsense\" }\n"),
        ("[nic]", "[nic]\ncontrol = \"nonsense\"\n"),
        ("[training]", "[training]\nprecision = \"nonsense\"\n"),
        ("[training]", "[training]\nrecompute = \"nonsense\"\n"),
        ("[training]", "[training]\nattention = \"nonsense\"\n"),
        ("[training]", "[training]\noptimiser = \"nonsense\"\n"),
        ("[parallel]", "[parallel]\nschedule = \"nonsense\"\n"),
        ("[nic]", "[nic]\nrecovery = \"nonsense\"\n"),
    ] {
        for name in expected(&format!("[fabric]\n{SHAPE}{rest}")) {
            assert!(sections[heading].contains(&format!("`\"{name}\"`")), "{heading}: {name} is missing");
        }
    }
}

#[test]
fn the_defaults_on_the_page_are_the_defaults() {
    let sections = sections();
    let mut text = String::new();
    for (section, header) in [
        ("The file", ""),
        ("fabric.link", "[fabric.link]\n"),
        ("fabric.switch", "[fabric.switch]\n"),
        ("[nic]", "[nic]\n"),
    ] {
        text.push_str(header);
        for row in sections[section].lines().filter(|line| line.starts_with("| `")) {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let (key, default) = (cells.next().unwrap(), cells.next().unwrap());
            // Some defaults are words: they follow from other keys.
            if default.starts_with('`') && default.ends_with('`') && !default.contains(' ') {
                writeln!(text, "{} = {}", key.trim_matches('`'), default.trim_matches('`')).unwrap();
            }
        }
        if section == "The file" {
            writeln!(text, "[fabric]\n{SHAPE}routing = \"ecmp\"\nframing = \"ethernet\"").unwrap();
        }
    }
    text.push_str("[[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\nstart = \"0s\"\n");
    let spelled = Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let short = format!("[fabric]\n{SHAPE}[[traffic]]\nkind = \"permutation\"\nbytes = \"1MB\"\n");
    let short = Scenario::parse(&short).unwrap();
    let digest =
        |scenario: &Scenario| railnet_sim::run(scenario, railnet_core::Digest::new()).unwrap().1.finish();
    assert_eq!(digest(&spelled), digest(&short));
    assert_eq!(format!("{:?}", spelled.switch_config()), format!("{:?}", short.switch_config()));
}

#[test]
fn the_parameters_on_the_page_are_those_of_each_control() {
    let sections = sections();
    let control = |name: &str, rest: &str| {
        let text = format!("[fabric]\n{SHAPE}[nic]\ncontrol = {name}\n{rest}");
        Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")).control()
    };
    for table in ["dcqcn", "timely", "swift"] {
        let section = &sections[&format!("nic.{table}")];
        let rows: Vec<Vec<&str>> = (section.lines().filter(|line| line.starts_with("| ")))
            .map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
            .collect();
        let names = rows[0][2..rows[0].len() - 2].to_vec();
        for (column, name) in names.iter().enumerate() {
            let written = |base: usize| -> String {
                let keys = rows[2..].iter().map(|row| format!("{} = {}\n", row[1], row[2 + base]));
                format!("[nic.{table}]\n{}", keys.collect::<String>())
            };
            let published = control(name, "");
            assert_eq!(control(name, &written(column)), published, "{name}");
            // All of them: with those of another set, it is the other set.
            for (other, set) in names.iter().enumerate() {
                assert_eq!(control(name, &written(other)), control(set, ""), "{name} with those of {set}");
            }
        }
    }
}

#[test]
fn presets_choose_what_their_rows_say_and_written_keys_win() {
    let sections = sections();
    let rows = sections["Presets"].lines().filter(|line| line.starts_with("| `\""));
    let mut seen = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, preset, framing, flow_control, ecn, routing, control, recovery, timeout, _] = cells[..]
        else {
            panic!("{row}");
        };
        let short = format!("preset = {preset}\n[fabric]\n{SHAPE}");
        let choices = format!(
            "[fabric]\n{SHAPE}framing = {framing}\nrouting = {routing}\nswitch = {{ flow_control = {flow_control}, ecn = {ecn} }}\n\
             [nic]\ncontrol = {control}\nrecovery = {recovery}\ntimeout = {timeout}\n"
        );
        let chosen = |text: &str| {
            let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let (control, recovery) = (scenario.control(), scenario.recovery());
            let (switch, framing) = (scenario.switch_config(), scenario.framing());
            format!("{framing:?} {switch:?} {control:?} {recovery:?} {}", scenario.timeout())
        };
        assert_eq!(chosen(&short), chosen(&choices), "{row}");
        // Whatever the preset, what is written holds.
        for other in ["infiniband", "spectrum-x", "roce-dcqcn", "roce-lossy"] {
            assert_eq!(chosen(&format!("preset = \"{other}\"\n{choices}")), chosen(&choices), "{other}");
        }
        seen.push(chosen(&short));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4, "each is different from the others");
}
