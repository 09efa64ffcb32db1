//! `railnet check`: reads a scenario, and prints it back with every default filled in.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use railnet_sim::{Fidelity, Filled};
use toml::{Table, Value};

use crate::Outcome;
use crate::sim::problem::File;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The scenario: a TOML file, the name of one that ships (railnet list), or - for standard input
    #[arg(value_name = "FILE|NAME")]
    file: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let file = File::read(&arguments.file)?;
    if file.scenario.fidelity == Fidelity::Packet {
        railnet_sim::check(&file.scenario).map_err(|error| file.problem(error))?;
    }
    let written: Table = file.text.parse().context("it was just read")?;
    let filled = file.scenario.filled(written).map_err(|error| file.problem(error))?;
    print(&filled, out)?;
    Ok(Outcome::Done)
}

/// The whole file; what was not written is marked.
fn print(filled: &Filled, out: &mut dyn Write) -> anyhow::Result<()> {
    table(&filled.table, ("", ""), filled, out)?;
    Ok(())
}

/// A table: its own keys, then the tables in it, then its lists of tables. Its header names lists by themselves, its path
/// with the place in them.
fn table(
    content: &Table,
    (header, path): (&str, &str),
    filled: &Filled,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let inside = |at: &str, key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    let own = content.iter().filter(|(_, value)| !value.is_table() && !is_list(value));
    let lines: Vec<(String, String)> = own
        .map(|(key, value)| {
            let path = inside(path, key);
            let default = if filled.defaults.contains(&path) { "default" } else { "" };
            let note = filled.notes.get(&path).map_or("", String::as_str);
            let remark = if default.is_empty() || note.is_empty() { "" } else { ": " };
            (format!("{key} = {}", shown(value)), format!("{default}{remark}{note}"))
        })
        .collect();
    if !header.is_empty() && !lines.is_empty() && !header.ends_with(']') {
        writeln!(out, "\n[{header}]")?;
    }
    for (line, remark) in lines {
        writeln!(out, "{}", if remark.is_empty() { line } else { format!("{line:<44} # {remark}") })?;
    }
    let header = header.trim_matches(['[', ']']);
    for (key, value) in content {
        match value {
            Value::Table(content) => table(content, (&inside(header, key), &inside(path, key)), filled, out)?,
            Value::Array(list) if is_list(value) => {
                let header = inside(header, key);
                for (place, one) in list.iter().filter_map(Value::as_table).enumerate() {
                    writeln!(out, "\n[[{header}]]")?;
                    let path = format!("{}.{place}", inside(path, key));
                    table(one, (&format!("[[{header}]]"), &path), filled, out)?;
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
