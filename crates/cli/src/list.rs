//! `railnet list`: the scenarios that are in the binary.

use std::io::Write;

use crate::{Outcome, shipped, words};

const EXAMPLES: &str = "\
Examples:
  railnet list
  railnet list job                  those with \"job\" in their name or summary
  railnet sim job-slow-gpu          runs one by its name
  railnet list --show job-slow-gpu > mine.toml";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Only those with this word in their name or summary
    #[arg(value_name = "WORD")]
    word: Option<String>,
    /// Print one of them, as a file to begin with
    #[arg(long, value_name = "NAME", conflicts_with_all = ["word", "json"])]
    show: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if let Some(name) = &arguments.show {
        let found = shipped::ALL.iter().find(|one| one.name == name);
        let found = found.ok_or_else(|| crate::sim::problem::no_scenario(name))?;
        out.write_all(found.text.as_bytes())?;
        return Ok(Outcome::Done);
    }
    let word = arguments.word.as_deref().unwrap_or_default().to_lowercase();
    let is_asked =
        |one: &&shipped::Shipped| one.name.contains(&word) || one.summary().to_lowercase().contains(&word);
    let found: Vec<_> = shipped::ALL.iter().filter(is_asked).collect();
    if arguments.json {
        let object =
            |one: &&shipped::Shipped| serde_json::json!({ "name": one.name, "summary": one.summary() });
        let all: Vec<_> = found.iter().map(object).collect();
        writeln!(out, "{:#}", serde_json::json!({ "scenarios": all }))?;
        return Ok(Outcome::Done);
    }
    if found.is_empty() {
        return Err(crate::Usage(format!("no scenario has \"{word}\" in its name or summary")).into());
    }
    let width = found.iter().map(|one| one.name.len()).max().unwrap_or(0);
    for one in &found {
        words::item(one.name, width, &one.summary(), out)?;
    }
    writeln!(out, "\n  Run one      railnet sim {}", found[0].name)?;
    writeln!(out, "  Change it    railnet list --show {} > mine.toml", found[0].name)?;
    Ok(Outcome::Done)
}
