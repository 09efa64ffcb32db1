//! `railnet check`: reads a scenario, and prints it back with every default filled in.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use railnet_core::event::NoSink;
use railnet_sim::{Fidelity, Filled, Run};
use toml::{Table, Value};

use crate::Outcome;
use crate::sim::problem::File;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The scenario, a TOML file
    file: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let file = File::read(&arguments.file)?;
    if file.scenario.fidelity == Fidelity::Packet {
        // Hosts, links and ranks that are named have to be there.
        Run::new(&file.scenario, NoSink).map_err(|error| file.problem(error))?;
    }
    let written: Table = file.text.parse().context("it was just read")?;
    let filled = file.scenario.filled(written).map_err(|error| file.problem(error))?;
    print(&filled, out)?;
    Ok(Outcome::Done)
}

/// The whole file; what was not written is marked.
fn print(filled: &Filled, out: &mut dyn Write) -> anyhow::Result<()> {
    table(&filled.table, "", filled, out)?;
    Ok(())
}

/// A table: its own keys, then the tables in it, then its lists of tables.
fn table(content: &Table, path: &str, filled: &Filled, out: &mut dyn Write) -> std::io::Result<()> {
    let inside = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let own = content.iter().filter(|(_, value)| !value.is_table() && !is_list(value));
    let lines: Vec<(String, bool)> = own
        .map(|(key, value)| (format!("{key} = {}", shown(value)), filled.defaults.contains(&inside(key))))
        .collect();
    if !path.is_empty() && !lines.is_empty() {
        writeln!(out, "\n[{path}]")?;
    }
    for (line, is_default) in lines {
        writeln!(out, "{}", if is_default { format!("{line:<44} # default") } else { line })?;
    }
    for (key, value) in content {
        match value {
            Value::Table(content) => table(content, &inside(key), filled, out)?,
            Value::Array(list) if is_list(value) => {
                for one in list.iter().filter_map(Value::as_table) {
                    writeln!(out, "\n[[{}]]", inside(key))?;
                    for (key, value) in one {
                        writeln!(out, "{key} = {}", shown(value))?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A value as TOML writes it.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        // With its point, so that it stays a float.
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(is_true) => is_true.to_string(),
        Value::Datetime(moment) => moment.to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(key, value)| format!("{key} = {}", shown(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.extend(format!("\\u{:04x}", letter as u32).chars()),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether it is a list of tables, and not one of values.
fn is_list(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.first().is_some_and(Value::is_table))
}
