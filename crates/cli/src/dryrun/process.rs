//! The processes of a dry run: one for each rank that differs from the others.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::roles::ROLES_MAX;
use crate::interrupt::Interrupt;

/// Time between two looks at processes.
const LOOK: Duration = Duration::from_millis(20);
/// Lines of a log that are shown when a process fails.
const LINES_SHOWN: usize = 12;

/// How ranks are run.
pub(super) struct Processes<'a> {
    pub(super) program: &'a [OsString],
    pub(super) folder: &'a Path,
    pub(super) ranks: u32,
    pub(super) gpus_of_node: u32,
    /// What the modules in the process are told.
    pub(super) told: Value,
    pub(super) timeout: Duration,
    /// How many at the same time.
    pub(super) jobs: usize,
    pub(super) interrupt: &'a Interrupt,
}

/// A process under way.
struct Running {
    rank: u32,
    child: Child,
    began: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        // What it has started ends with it.
        if let Ok(None) = self.child.try_wait() {
            if let Some(group) = Pid::from_raw(self.child.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

impl Processes<'_> {
    /// Where a rank's recording goes.
    pub(super) fn recording(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("role-{rank}.json"))
    }

    /// Removes what ranks of an earlier run left for each other.
    pub(super) fn clear(&self) -> anyhow::Result<()> {
        for path in self.left()? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("wants-") || name.starts_with("message-") {
                std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn left(&self) -> anyhow::Result<Vec<PathBuf>> {
        let entries = self.folder.read_dir().with_context(|| self.folder.display().to_string())?;
        Ok(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
    }

    /// Ranks from which others want something.
    fn wanted(&self) -> anyhow::Result<BTreeSet<u32>> {
        let names = self.left()?;
        let names = names.iter().filter_map(|path| path.file_name()?.to_str()?.strip_prefix("wants-"));
        Ok(names.filter_map(|rank| rank.parse().ok()).filter(|rank| *rank < self.ranks).collect())
    }

    fn log(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("role-{rank}.log"))
    }

    /// Runs these ranks to their ends, and those from which they want objects; the first failure ends all. Says which ran.
    pub(super) fn run(&self, ranks: &[u32]) -> anyhow::Result<BTreeSet<u32>> {
        let mut waiting: VecDeque<u32> = ranks.iter().copied().collect();
        let mut started = BTreeSet::new();
        let mut running: Vec<Running> = Vec::new();
        loop {
            while running.len() < self.jobs.max(1)
                && let Some(rank) = waiting.pop_front()
            {
                if started.insert(rank) {
                    running.push(self.start(rank)?);
                }
            }
            if running.is_empty() {
                return Ok(started);
            }
            // Processes that wait for others need them at once, however many run.
            for rank in self.wanted()? {
                if started.insert(rank) {
                    running.push(self.start(rank)?);
                }
            }
            if started.len() > ROLES_MAX.max(ranks.len()) {
                bail!(
                    "more than {ROLES_MAX} ranks want objects of each other: name those that differ with --roles"
                );
            }
            let mut place = 0;
            while place < running.len() {
                let one = &mut running[place];
                let status = one.child.try_wait().context("cannot wait for the script")?;
                match status {
                    Some(status) => {
                        self.ended(one.rank, status)?;
                        running.swap_remove(place);
                    }
                    None if one.began.elapsed() > self.timeout => {
                        bail!(
                            "rank {} has not run its steps within {} s (--timeout); its log is {}",
                            one.rank,
                            self.timeout.as_secs(),
                            self.log(one.rank).display()
                        );
                    }
                    None => place += 1,
                }
            }
            if self.interrupt.is_set() {
                bail!("stopped before the script had run its steps");
            }
            std::thread::sleep(LOOK);
        }
    }

    fn start(&self, rank: u32) -> anyhow::Result<Running> {
        let _ = std::fs::remove_file(self.recording(rank));
        let log = self.log(rank);
        let failed = || format!("cannot write {}", log.display());
        let output = File::create(&log).with_context(failed)?;
        let errors = output.try_clone().with_context(failed)?;
        let mut told = self.told.clone();
        told["path"] = self.recording(rank).to_string_lossy().into_owned().into();
        let (first, others) = self.program.split_first().context("no program was named")?;
        let node = rank / self.gpus_of_node.max(1);
        let local_size = self.ranks.min(self.gpus_of_node);
        let mut command = Command::new(first);
        command
            .args(others)
            .env("PYTHONPATH", self.python_path())
            .env("RAILNET_DRYRUN", told.to_string())
            .env_remove("RAILNET_DRYRUN_PROCESS")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0);
        // What torchrun sets.
        let numbers = [
            ("RANK", rank),
            ("WORLD_SIZE", self.ranks),
            ("LOCAL_RANK", rank % self.gpus_of_node.max(1)),
            ("LOCAL_WORLD_SIZE", local_size),
            ("GROUP_RANK", node),
            ("GROUP_WORLD_SIZE", self.ranks.div_ceil(self.gpus_of_node.max(1))),
            ("ROLE_RANK", rank),
            ("ROLE_WORLD_SIZE", self.ranks),
            ("MASTER_PORT", 29_500),
        ];
        for (name, number) in numbers {
            command.env(name, number.to_string());
        }
        command.env("MASTER_ADDR", "localhost").env("PYTHONUNBUFFERED", "1");
        for (name, _) in std::env::vars_os() {
            // Another launcher's word for who this is.
            if ["SLURM_", "OMPI_COMM_", "PMI_"].iter().any(|start| starts_with(&name, start)) {
                command.env_remove(name);
            }
        }
        let child =
            command.spawn().map_err(|error| anyhow!("cannot start {}: {error}", first.to_string_lossy()))?;
        Ok(Running { rank, child, began: Instant::now() })
    }

    fn python_path(&self) -> OsString {
        let mut path = self.folder.join("python").into_os_string();
        if let Some(before) = std::env::var_os("PYTHONPATH").filter(|before| !before.is_empty()) {
            path.push(":");
            path.push(before);
        }
        path
    }

    /// A process that is over has left its recording, or an error.
    fn ended(&self, rank: u32, status: ExitStatus) -> anyhow::Result<()> {
        if self.recording(rank).is_file() {
            return Ok(());
        }
        let log = self.log(rank);
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let prefix = format!("[rank{rank}]:");
        let lines: Vec<&str> = text.lines().map(|line| line.strip_prefix(&prefix).unwrap_or(line)).collect();
        let lines: Vec<&str> = lines.into_iter().filter(|line| !line.trim().is_empty()).collect();
        let name = log.display();
        // What a dry run cannot do says so itself.
        let known = ["railnet_dryrun.mode.NoData: ", "RuntimeError: railnet: ", "railnet: "];
        let own = lines.iter().rev().find_map(|line| {
            known.iter().find_map(|start| line.trim_start().strip_prefix(start)).map(str::to_owned)
        });
        if let Some(own) = own {
            bail!("{own}\n  = the script's output is in {name}");
        }
        if status.success() && lines.len() < 2 || !text.contains("Traceback") && status.success() {
            bail!(
                "rank {rank} ended without a step on a GPU: nothing was recorded. The script has to import torch, move its model to \"cuda\" \
                 and call backward or an optimiser; its output is in {name}"
            );
        }
        let from = lines.len().saturating_sub(LINES_SHOWN);
        bail!(
            "rank {rank} failed ({status}):\n    {}\n  = its whole output is in {name}",
            lines[from..].join("\n    ")
        );
    }
}

fn starts_with(name: &OsStr, start: &str) -> bool {
    name.as_encoded_bytes().starts_with(start.as_bytes())
}
