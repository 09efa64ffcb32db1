//! A guard process that kills the ranks' process groups when the launcher dies.
//!
//! A rank has a parent-death signal, but its children have none. The guard is a shell that reads the process groups from a
//! pipe, and kills them at the end of the pipe, which comes when the launcher ends in whatever way.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The last line that was read has the groups that are left.
const SCRIPT: &str = "trap '' HUP INT TERM QUIT; groups=; while read -r line; do groups=$line; done; \
    [ -z \"$groups\" ] || kill -s KILL -- $groups";

pub(super) struct Guard {
    process: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Starts it, if there is a shell.
    pub(super) fn start() -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "railnet-guard"]);
        // In a group of its own, so that Ctrl-C on the terminal does not reach it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().ok()?;
        let pipe = process.stdin.take()?;
        Some(Self { process, pipe })
    }

    /// Tells it the process groups.
    pub(super) fn watch(&mut self, groups: impl Iterator<Item = u32>) -> io::Result<()> {
        let mut line = String::new();
        for group in groups {
            let _ = write!(line, "-{group} ");
        }
        line.push('\n');
        self.pipe.write_all(line.as_bytes())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The supervisor has ended the ranks itself; the guard must not see the end of the pipe first.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
