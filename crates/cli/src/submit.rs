//! `railnet submit`: a batch script for Slurm, written and handed over.

mod job;
mod script;

use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::Outcome;
use crate::files::Output;
use job::Job;

const EXAMPLES: &str = "\
Examples:
  railnet submit train.toml              writes train.sbatch and hands it to sbatch
  railnet submit train.toml --dry-run    only prints it

The job, train.toml:
  [launch]
  program        = [\"./train\", \"--epochs\", \"3\"]
  nodes          = 4
  ranks_per_node = 8
  time           = \"2h\"

Also: name, partition, account, gpus_per_node, cpus_per_rank, output, options (more for sbatch), setup (lines of shell
before the ranks start), env (a table). Where there is no sbatch, the script is written and what to do with it is said.";

/// How long `sbatch` may take.
const SBATCH_MAX: Duration = Duration::from_mins(1);
/// How often it is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The job, a TOML file with a `launch` table
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// Print the script; write and submit nothing
    #[arg(long, visible_alias = "print")]
    dry_run: bool,
    /// Write the script here [default: the job's name with .sbatch]
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    script: Option<PathBuf>,
    /// Write over a file that railnet did not write
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let job = Job::read(&arguments.job)?;
    let text = script::write(&job);
    if arguments.dry_run {
        out.write_all(text.as_bytes())?;
        return Ok(Outcome::Done);
    }
    let path = arguments.script.clone().unwrap_or_else(|| arguments.job.with_extension("sbatch"));
    let name = path.display();
    let force = arguments.force || is_ours(&path);
    Output::claim(&path, force)?.write(|file| file.write_all(text.as_bytes()))?;
    let sbatch = Command::new("sbatch").arg(&path).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    match sbatch {
        Ok(mut sbatch) => {
            let answer = finish(&mut sbatch)?;
            writeln!(out, "{} ({name})", answer.trim_end())?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            writeln!(out, "Wrote {name}; there is no sbatch here. Where Slurm is: sbatch {name}")?;
        }
        Err(error) => return Err(error).context("cannot run sbatch"),
    }
    Ok(Outcome::Done)
}

/// Whether a script came from here, and may be replaced.
fn is_ours(path: &Path) -> bool {
    path.is_file()
        && std::fs::read_to_string(path)
            .is_ok_and(|text| text.lines().any(|line| line.starts_with(script::MARK)))
}

/// Waits for `sbatch`, not for ever, and returns what it says. What it complains about it has printed itself.
fn finish(sbatch: &mut Child) -> anyhow::Result<String> {
    let deadline = Instant::now() + SBATCH_MAX;
    let status = loop {
        if let Some(status) = sbatch.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            sbatch.kill()?;
            sbatch.wait()?;
            bail!("sbatch did not answer within a minute: is slurmctld running?");
        }
        std::thread::sleep(LOOK_INTERVAL);
    };
    ensure!(status.success(), "sbatch refused the job ({status})");
    let mut answer = String::new();
    if let Some(stdout) = &mut sbatch.stdout {
        stdout.read_to_string(&mut answer)?;
    }
    Ok(answer)
}
