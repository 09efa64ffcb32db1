//! What differs in the files, with what they leave open filled in.

use std::collections::BTreeMap;

use anyhow::Context as _;
use toml::{Table, Value};

use super::Contestant;
use crate::check::shown;

/// A key, and what each contestant says of it; nothing where it has no such key.
pub(super) struct Difference {
    pub(super) key: String,
    /// The value as TOML writes it, and whether it was written or is a default.
    pub(super) values: Vec<Option<(String, bool)>>,
}

/// The keys that are not the same for all, in the order of their names.
pub(super) fn differences(contestants: &[Contestant]) -> anyhow::Result<Vec<Difference>> {
    let mut all: BTreeMap<String, Vec<Option<(String, bool)>>> = BTreeMap::new();
    for (number, contestant) in contestants.iter().enumerate() {
        for part in &contestant.parts {
            let written: Table = part.file.text.parse().context("it was just read")?;
            let filled = part.file.scenario.filled(written).map_err(|error| part.file.problem(error))?;
            let mut flat = Vec::new();
            flatten("", &Value::Table(filled.table), &mut flat);
            for (key, text) in flat {
                let is_default = filled.defaults.contains(&key);
                let row = all.entry(key).or_insert_with(|| vec![None; contestants.len()]);
                // Of several parts the last one counts: it is the one that the others lead to.
                row[number] = Some((text, is_default));
            }
        }
    }
    let text = |value: &Option<(String, bool)>| value.as_ref().map(|(text, _)| text.clone());
    let differs =
        |values: &[Option<(String, bool)>]| values.iter().any(|value| text(value) != text(&values[0]));
    let found = all.into_iter().filter(|(_, values)| differs(values));
    Ok(found.map(|(key, values)| Difference { key, values }).collect())
}

/// Every single value with its path, such as `traffic.0.bytes`.
fn flatten(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
    let inside = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                flatten(&inside(key), value, out);
            }
        }
        Value::Array(list) if list.first().is_some_and(Value::is_table) => {
            for (number, value) in list.iter().enumerate() {
                flatten(&inside(&number.to_string()), value, out);
            }
        }
        value => out.push((path.to_owned(), shown(value))),
    }
}
