//! A job as it is written: the table `[launch]` of a TOML file. Other tables are for other commands.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use railnet_core::Span;
use serde::Deserialize;

use crate::sim::problem::{Advice, excerpt};
use crate::{Usage, input};

/// What is to be started, and where.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) launch: LaunchTable,
}

#[derive(Deserialize)]
struct Document {
    launch: Option<LaunchTable>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct LaunchTable {
    pub(super) name: Option<String>,
    pub(super) program: Program,
    #[serde(default = "one")]
    pub(super) nodes: u32,
    #[serde(default = "one")]
    pub(super) ranks_per_node: u32,
    pub(super) time: Option<String>,
    pub(super) partition: Option<String>,
    pub(super) account: Option<String>,
    pub(super) gpus_per_node: Option<u32>,
    pub(super) cpus_per_rank: Option<u32>,
    pub(super) output: Option<String>,
    #[serde(default)]
    pub(super) options: Vec<String>,
    #[serde(default)]
    pub(super) setup: Vec<String>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
}

/// A program with its arguments, or a line of shell.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
pub(super) enum Program {
    Line(String),
    Words(Vec<String>),
}

fn one() -> u32 {
    1
}

impl Job {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = input::text(path)?;
        let stem = path.file_stem().map_or_else(|| "railnet".into(), |stem| stem.to_string_lossy());
        Self::parse(&text, &name, &stem)
    }

    /// `path` is for errors, `stem` the name of a job that has none.
    pub(super) fn parse(text: &str, path: &str, stem: &str) -> anyhow::Result<Self> {
        let Document { launch } = toml::from_str(text).map_err(|error| {
            let advice = Advice::of(error.message());
            let mut message = advice.headline;
            match error.span() {
                Some(span) => message.push_str(&excerpt(&span, path, text, advice.label.as_deref())),
                None => _ = write!(message, "\n --> {path}"),
            }
            if let Some(meant) = advice.meant {
                let _ = write!(message, "\n  = did you mean \"{meant}\"?");
            }
            Usage(message)
        })?;
        let Some(launch) = launch else {
            let advice = "it says what to start, such as\n  = [launch]\n  = program = \"python train.py\"";
            return Err(Usage(format!("there is no table [launch]: {advice}\n --> {path}")).into());
        };
        launch.check().map_err(|error| Usage(format!("{error}\n --> {path}")))?;
        let name = launch.name.clone().unwrap_or_else(|| stem.to_owned());
        Ok(Self { name, launch })
    }
}

impl LaunchTable {
    fn check(&self) -> Result<(), String> {
        if self.nodes == 0 || self.ranks_per_node == 0 {
            return Err("nodes and ranks_per_node are 1 at least".to_owned());
        }
        if self.program.is_empty() {
            return Err("program names nothing to start".to_owned());
        }
        if let Some(time) = &self.time {
            seconds(time)?;
        }
        // They stand in comment lines of the script, which a line break would end.
        let headers = [&self.name, &self.partition, &self.account, &self.output];
        let mut headers = headers.into_iter().flatten().chain(&self.options);
        if let Some(odd) = headers.find(|text| text.chars().any(char::is_control)) {
            return Err(format!("{odd:?} has a character that does not belong in a line"));
        }
        let is_name = |name: &str| {
            let first = name.chars().next();
            first.is_some_and(|letter| letter.is_ascii_alphabetic() || letter == '_')
                && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        match self.env.keys().find(|name| !is_name(name)) {
            Some(odd) => Err(format!("{odd:?} is no name of a variable")),
            None => Ok(()),
        }
    }
}

impl Program {
    fn is_empty(&self) -> bool {
        match self {
            Self::Line(line) => line.trim().is_empty(),
            Self::Words(words) => words.first().is_none_or(String::is_empty),
        }
    }
}

/// A time such as `90s`, `30min` or `2h`, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("time = {text:?}: write 90s, 30min, 2h or 1d");
    let units = [("min", 60), ("h", 3600), ("d", 86_400)];
    for (unit, size) in units {
        if let Some(number) = text.strip_suffix(unit).and_then(|number| number.trim().parse::<u64>().ok()) {
            return number.checked_mul(size).filter(|seconds| *seconds > 0).ok_or_else(wrong);
        }
    }
    let span: Span = text.parse().map_err(|_| wrong())?;
    let seconds = span.as_ps().div_ceil(1_000_000_000_000);
    if seconds > 0 { Ok(seconds) } else { Err(wrong()) }
}
