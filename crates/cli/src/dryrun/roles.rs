//! Which ranks differ in what they do, and what each of them recorded.
//!
//! Ranks that exchange messages (the stages of a pipeline) differ; all others do what one of these does. So rank 0 runs first, then
//! those with which it exchanges messages, and so on.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::process::Processes;
use crate::Usage;

/// Roles that are run without being asked for.
pub(super) const ROLES_MAX: usize = 128;

/// Which ranks run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Roles {
    /// Those that are found to differ.
    Auto,
    /// Every one.
    All,
    /// These.
    List(Vec<u32>),
}

impl FromStr for Roles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            _ => {
                let ranks: Result<BTreeSet<u32>, _> = text.split(',').map(|one| one.trim().parse()).collect();
                let ranks = ranks.map_err(|_| "write auto, all, or ranks such as 0,8,16".to_owned())?;
                Ok(Self::List(ranks.into_iter().collect()))
            }
        }
    }
}

/// What a rank recorded.
pub(super) struct Record {
    pub(super) rank: u32,
    pub(super) torch: String,
    /// Operations of each step.
    pub(super) steps: Vec<u64>,
    pub(super) value: Value,
}

/// Runs the ranks that differ.
pub(super) fn record(roles: &Roles, ranks: u32, processes: &Processes<'_>) -> anyhow::Result<Vec<Record>> {
    let mut found: BTreeMap<u32, Record> = BTreeMap::new();
    let mut wanted: BTreeSet<u32> = match roles {
        Roles::Auto => BTreeSet::from([0]),
        Roles::All => (0..ranks).collect(),
        Roles::List(list) => list.iter().copied().collect(),
    };
    if let Some(beyond) = wanted.iter().find(|rank| **rank >= ranks) {
        return Err(Usage(format!("--roles: there is no rank {beyond} among {ranks}")).into());
    }
    processes.clear()?;
    while !wanted.is_empty() {
        let list: Vec<u32> = wanted.iter().copied().collect();
        let list = processes.run(&list)?;
        let mut next = BTreeSet::new();
        for rank in list {
            let record = read(processes, rank)?;
            if *roles == Roles::Auto {
                next.extend(peers(&record.value));
            }
            found.insert(rank, record);
        }
        next.retain(|rank| !found.contains_key(rank) && *rank < ranks);
        if found.len() + next.len() > ROLES_MAX {
            bail!(
                "more than {ROLES_MAX} ranks exchange messages with each other, and each may do something else: name those that differ \
                 with --roles, or --roles all"
            );
        }
        wanted = next;
    }
    Ok(found.into_values().collect())
}

fn read(processes: &Processes<'_>, rank: u32) -> anyhow::Result<Record> {
    let path = processes.recording(rank);
    let name = path.display();
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{name} is no recording"))?;
    let steps = value["steps"].as_array().map(|steps| steps.iter().filter_map(Value::as_u64).collect());
    Ok(Record {
        rank,
        torch: value["torch"].as_str().unwrap_or_default().to_owned(),
        steps: steps.unwrap_or_default(),
        value,
    })
}

/// The ranks with which a rank exchanges messages.
fn peers(record: &Value) -> BTreeSet<u32> {
    let operations = record["operations"].as_array().map_or(&[][..], Vec::as_slice);
    let messages = operations.iter().filter(|one| matches!(one[0].as_str(), Some("s" | "r")));
    messages.filter_map(|one| one[5].as_u64().and_then(|peer| u32::try_from(peer).ok())).collect()
}

/// What all of them assumed, each said once.
pub(super) fn notes(records: &[Record]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for note in records.iter().flat_map(|record| record.value["notes"].as_array().into_iter().flatten()) {
        if let Some(note) = note.as_str()
            && !found.iter().any(|known| known == note)
        {
            found.push(note.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_are_read() {
        assert_eq!("auto".parse(), Ok(Roles::Auto));
        assert_eq!("16, 0,8".parse(), Ok(Roles::List(vec![0, 8, 16])));
        assert!("first".parse::<Roles>().is_err());
    }

    #[test]
    fn peers_are_those_of_messages() {
        let record = json!({ "operations": [
            ["k", 0, 0, 0, 0], ["s", 0, 0, 0, 1, 8, 4096], ["r", 0, 0, 2, 2, 24, 4096], ["c", 0, 0, 2, 3, "AllReduce", 0, 8, "f32"],
        ]});
        assert_eq!(peers(&record), BTreeSet::from([8, 24]));
    }
}
