//! `railnet validate`: collectives in the simulator against what others have measured and published.
//!
//! Every comparison is data: a cluster, a call, and a figure with its source. There is one set of constants for all of
//! them (NCCL's own), so a row that is far off stays far off.

mod figures;
mod measure;
mod model;
mod page;
mod rails;
mod sharp;
mod sizes;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use crate::files::Output;
use crate::interrupt::Interrupt;
use crate::words::nearest;
use crate::{Outcome, Usage, report};

const EXAMPLES: &str = "\
Examples:
  railnet validate
  railnet validate --only servers
  railnet validate --json | jq '.parts[].rows[] | select(.difference > 0.1)'
  railnet validate --write docs/collectives.md --force
  railnet validate --full --write docs/collectives-full.md --force";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Just one part: servers, clusters, latency, rails, sharp, sizes or model
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Also what takes many minutes: more servers, longer messages
    #[arg(long)]
    full: bool,
    /// Write the page with all of it to a file, such as docs/collectives.md; with --full just the parts that are longer then
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Replace the page that is there
    #[arg(long, requires = "write")]
    force: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// A part of the comparison: what it is about, and what came of it.
struct Part {
    name: &'static str,
    title: &'static str,
    /// What is compared, and how to read it.
    intro: &'static str,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// What the rows amount to, and where large differences come from.
    remarks: Vec<String>,
}

/// A cell of a table: text for people, and the same for programs.
struct Cell {
    text: String,
    value: Value,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: text.clone().into(), text }
    }

    /// A number with so many decimals.
    fn number(value: f64, decimals: usize) -> Self {
        Self { text: format!("{value:.decimals$}"), value: value.into() }
    }

    /// How much more than expected, as a share.
    fn difference(value: f64) -> Self {
        Self { text: percent(value), value: value.into() }
    }

    fn none() -> Self {
        Self { text: String::new(), value: Value::Null }
    }
}

/// `+3.1 %`, with a true minus sign.
fn percent(share: f64) -> String {
    let text = format!("{:+.1} %", share * 100.0);
    text.replace('-', "−")
}

type Make = fn(bool) -> anyhow::Result<Part>;

/// All parts, in the order of the page, and whether each has more rows with `--full`.
const PARTS: [(&str, Make, bool); 7] = [
    ("servers", figures::servers, true),
    ("clusters", figures::clusters, true),
    ("latency", figures::latency, false),
    ("rails", rails::part, true),
    ("sharp", sharp::part, false),
    ("sizes", sizes::part, true),
    ("model", model::part, false),
];

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let wanted = arguments.only.as_deref();
    if let Some(name) = wanted
        && !PARTS.iter().any(|(part, ..)| *part == name)
    {
        let names: Vec<&str> = PARTS.iter().map(|(name, ..)| *name).collect();
        let meant = nearest(name, &names).map(|meant| format!("; did you mean \"{meant}\"?"));
        let text =
            format!("there is no part \"{name}\": one of {}{}", names.join(", "), meant.unwrap_or_default());
        return Err(Usage(text).into());
    }
    if arguments.write.is_some() && wanted.is_some() {
        let advice = "the page has all parts: leave out --only to write it";
        return Err(Usage(advice.to_owned()).into());
    }
    let page = Output::claim_given(arguments.write.as_deref(), arguments.force)?;
    let interrupt = Interrupt::catch()?;
    let mut parts = Vec::new();
    let is_short = arguments.write.is_some() && arguments.full;
    let asked = PARTS.iter().filter(|(name, ..)| wanted.is_none_or(|wanted| wanted == *name));
    for (name, make, _) in asked.filter(|(.., grows)| *grows || !is_short) {
        report(&format!("{name} …"));
        let part = make(arguments.full).with_context(|| format!("in {name}"))?;
        if !arguments.json {
            page::print(&part, out)?;
            out.flush()?;
        }
        parts.push(part);
        if interrupt.is_set() {
            break;
        }
    }
    let is_partial = interrupt.is_set();
    if arguments.json {
        writeln!(out, "{:#}", page::object(&parts, is_partial))?;
    }
    if is_partial {
        out.flush()?;
        let page = if page.is_some() { "; the page is not written" } else { "" };
        report(&format!("PARTIAL: stopped before its end; these are the rows that were known by then{page}"));
        return Ok(Outcome::CheckFailed);
    }
    if let Some(output) = page {
        output.write(|file| file.write_all(page::markdown(&parts, arguments.full).as_bytes()))?;
    }
    Ok(Outcome::Done)
}
