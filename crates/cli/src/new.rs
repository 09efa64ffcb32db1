//! `railnet new`: writes a scenario to begin with.

use std::io::Write;
use std::path::PathBuf;

use crate::Outcome;
use crate::files::Output;

const EXAMPLES: &str = "\
Examples:
  railnet new job.toml                   a training job, every line explained
  railnet new flows.toml --traffic       flows between hosts instead
  railnet sim job.toml

All keys are in docs/scenarios.md and docs/jobs.md.";

const JOB: &str = include_str!("new/job.toml");
const TRAFFIC: &str = include_str!("new/traffic.toml");

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The file; one that is there is left as it is
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Flows between hosts, in place of a training job
    #[arg(long)]
    traffic: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let text = if arguments.traffic { TRAFFIC } else { JOB };
    let name = arguments.file.display();
    if arguments.file.symlink_metadata().is_ok() {
        return Err(crate::Usage(format!("{name} is there already: give another name")).into());
    }
    Output::claim(&arguments.file, false)?.write(|file| file.write_all(text.as_bytes()))?;
    writeln!(out, "Wrote {name}. Next: railnet sim {name} · railnet check {name} shows every default")?;
    Ok(Outcome::Done)
}
