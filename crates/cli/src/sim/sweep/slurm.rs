//! A sweep on a cluster: a job array of Slurm with a task for each point, and the same table from what they left.
//!
//! What a point came to is a file in the folder of the sweep, with the question that it answers. A sweep that is begun again, after
//! a crash or with more points, does only those that have no answer yet.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{Done, Point, STOPPED, Verdict};
use crate::files::Output;
use crate::interrupt::Interrupt;
use crate::sim::progress::Progress;
use crate::sim::{Arguments, problem::File};
use crate::{Usage, input, report};

/// How often the queue is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long Slurm may take to answer.
const ANSWER_MAX: Duration = Duration::from_mins(1);
/// How long a file may take to appear on this machine after its task has left the queue: network file systems cache folders.
const FILES_MAX: Duration = Duration::from_secs(10);
/// Times that a point is tried whose task ends without an answer.
const TRIES: u32 = 3;
/// Points that a job array may have on a cluster that says nothing else (`MaxArraySize`).
const TASKS_MAX: usize = 1_000;

/// What is left of a point.
#[derive(Serialize, Deserialize)]
struct Left {
    /// Of the question: another scenario, or another version of Railnet, is another question.
    question: String,
    done: Option<Done>,
    error: Option<String>,
}

/// A number for all that the answer of a point follows from.
fn question(arguments: &Arguments, point: &Point) -> String {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    format!("{:?}", point.scenario).hash(&mut hasher);
    format!("{:016x} {} memo={}", hasher.finish(), arguments.wire.name(), !arguments.no_memo)
}

fn path_of(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("point-{index}.json"))
}

/// The answer that is there for a point, if it is one to this question.
fn read(folder: &Path, index: usize, question: &str) -> Option<Verdict> {
    let text = std::fs::read_to_string(path_of(folder, index)).ok()?;
    let left: Left = serde_json::from_str(&text).ok()?;
    if left.question != question {
        return None;
    }
    Some(left.done.ok_or_else(|| left.error.unwrap_or_default()))
}

/// Leaves the answer of one point, in a task of the array.
pub(super) fn leave(
    arguments: &Arguments,
    point: &Point,
    index: usize,
    verdict: &Verdict,
    folder: &Path,
) -> anyhow::Result<()> {
    let left = Left {
        question: question(arguments, point),
        done: verdict.as_ref().ok().cloned(),
        error: verdict.as_ref().err().cloned(),
    };
    let text = serde_json::to_string(&left)?;
    Output::claim(&path_of(folder, index), true)?.write(|file| file.write_all(text.as_bytes()))
}

/// Has Slurm run the points that have no answer yet, and waits for them.
pub(super) fn run_all(
    arguments: &Arguments,
    file: &File,
    points: &[Point],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Verdict>> {
    if file.path == input::STANDARD || file.path == "standard input" {
        let what =
            "--on slurm: its tasks read the scenario again, and standard input is gone by then: name a file";
        return Err(Usage(what.to_owned()).into());
    }
    let folder = arguments.work.clone().unwrap_or_else(|| PathBuf::from("railnet-sweep"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    let questions: Vec<String> = points.iter().map(|point| question(arguments, point)).collect();
    let missing = || -> Vec<usize> {
        (0..points.len()).filter(|index| read(&folder, *index, &questions[*index]).is_none()).collect()
    };
    let there = points.len() - missing().len();
    if there > 0 {
        report(&format!("note: {there} of {} points are done in {}", points.len(), folder.display()));
    }
    let mut tries = 0;
    loop {
        let todo = missing();
        if todo.is_empty() || interrupt.is_set() {
            break;
        }
        if tries == TRIES {
            report(&format!(
                "error: points {} came to nothing in {TRIES} tries: {} has what their tasks printed",
                numbers(&todo),
                folder.display()
            ));
            break;
        }
        if tries > 0 {
            report(&format!("note: tasks of points {} ended without an answer: once more", numbers(&todo)));
        }
        tries += 1;
        for some in todo.chunks(TASKS_MAX) {
            let script = script(arguments, file, some, &folder)?;
            let path = folder.join("sweep.sbatch");
            Output::claim(&path, true)?.write(|file| file.write_all(script.as_bytes()))?;
            wait(&submit(arguments, &path)?, (&folder, points.len()), some, &missing, interrupt)?;
        }
    }
    let verdict = |(index, question): (usize, &String)| {
        let stopped = if interrupt.is_set() { STOPPED } else { "its task ended without an answer" };
        read(&folder, index, question).unwrap_or_else(|| Err(stopped.to_owned()))
    };
    Ok(questions.iter().enumerate().map(verdict).collect())
}

/// The script of the array: a task asks the same command for one point.
fn script(arguments: &Arguments, file: &File, todo: &[usize], folder: &Path) -> anyhow::Result<String> {
    let own = std::env::current_exe().context("cannot find the railnet command itself")?;
    let here = std::env::current_dir().context("cannot find the current directory")?;
    let mut words = vec![own.display().to_string(), "sim".to_owned(), file.path.clone()];
    words.extend(arguments.sweep.iter().flat_map(|axis| ["--sweep".to_owned(), axis.clone()]));
    words.extend(arguments.seed.iter().map(|seed| format!("--seed={seed}")));
    words.extend(arguments.fidelity.iter().map(|fidelity| format!("--fidelity={}", fidelity.name())));
    words.extend(arguments.env_file.iter().map(|path| format!("--env-file={}", path.display())));
    words.push(format!("--wire={}", arguments.wire.name()));
    words.extend(arguments.no_memo.then(|| "--no-memo".to_owned()));
    words.push(format!("--work={}", folder.display()));
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Ok(format!(
        "#!/bin/bash\n#SBATCH --job-name=railnet-sweep\n#SBATCH --array={}\n#SBATCH --ntasks=1\n#SBATCH --output={}/task-%a.log\n\
         cd {} && exec {} --point=\"$SLURM_ARRAY_TASK_ID\"\n",
        numbers(todo),
        folder.display(),
        quoted(&here.display().to_string()),
        words.join(" "),
    ))
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Numbers as Slurm and people write them: `0-3,7`.
fn numbers(all: &[usize]) -> String {
    let runs = all.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Submits it, and gives the number of the job.
fn submit(arguments: &Arguments, script: &Path) -> anyhow::Result<String> {
    let mut sbatch = Command::new("sbatch");
    sbatch.arg("--parsable").args(&arguments.sbatch).arg(script);
    let answer = ask(&mut sbatch).map_err(|error| match error.downcast_ref::<std::io::Error>() {
        Some(found) if found.kind() == std::io::ErrorKind::NotFound => {
            anyhow!("there is no sbatch here: --on slurm is for machines that submit jobs to Slurm")
        }
        _ => error,
    })?;
    let number = answer.trim().split(';').next().unwrap_or_default().to_owned();
    ensure!(!number.is_empty(), "sbatch gave no job number");
    Ok(number)
}

/// Waits until the tasks of an array have left the queue. Ctrl-C cancels them; what is done by then stays.
fn wait(
    job: &str,
    (folder, all): (&Path, usize),
    todo: &[usize],
    missing: &dyn Fn() -> Vec<usize>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let progress = Progress::new();
    loop {
        let left = missing();
        progress.show(&format!("job {job}: {} of {all} points", all - left.len()));
        if interrupt.is_set() {
            progress.clear();
            ask(Command::new("scancel").arg(job))?;
            report(&format!(
                "note: job {job} is cancelled; the same command goes on where it was ({})",
                folder.display()
            ));
            return Ok(());
        }
        let is_done = !left.iter().any(|index| todo.contains(index));
        if is_done || !is_queued(job)? {
            break;
        }
        std::thread::sleep(INTERVAL);
    }
    let left = Instant::now();
    while left.elapsed() < FILES_MAX && missing().iter().any(|index| todo.contains(index)) {
        // Looking into the folder has a network file system ask for it again.
        let _ = std::fs::read_dir(folder).map(Iterator::count);
        std::thread::sleep(INTERVAL);
    }
    progress.clear();
    Ok(())
}

/// Whether a task of the job waits or runs.
fn is_queued(job: &str) -> anyhow::Result<bool> {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--format=%T", "--jobs", job]);
    match ask(&mut squeue) {
        Ok(states) => Ok(states.lines().any(|state| !state.trim().is_empty())),
        // Slurm has forgotten a job that is over for long.
        Err(error) if error.to_string().contains("Invalid job id") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks Slurm, not for ever.
fn ask(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + ANSWER_MAX;
    // Its answer is a few lines: they fit into the pipe while nobody reads.
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!("{name} did not answer within a minute: is slurmctld running?");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed ({}): {}", output.status, words.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(numbers(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9-10");
        assert_eq!(numbers(&[4]), "4");
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("a'b c"), r"'a'\''b c'");
    }
}
