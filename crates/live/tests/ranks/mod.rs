//! Ranks as processes: each is the test named `rank` of the same file, started by itself.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Ranks that have met.
pub(crate) struct Ranks(Vec<(Child, BufReader<ChildStdout>)>);

impl Ranks {
    /// Starts ranks with these variables, and waits until all say that they are ready.
    pub(crate) fn start(count: usize, variables: &[(&str, &str)]) -> Self {
        let port = railnet_live::launch::free_port().unwrap();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--ignored", "--exact", "rank", "--nocapture"]);
            command.env("RAILNET_RANK", rank.to_string()).env("RAILNET_WORLD_SIZE", count.to_string());
            command.env("RAILNET_RENDEZVOUS", format!("127.0.0.1:{port}"));
            command.env("RAILNET_RENDEZVOUS_LIMIT", "40s").envs(variables.iter().copied());
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap());
            (child, lines)
        };
        let mut ranks = Self((0..count).map(start).collect());
        for rank in 0..count {
            ranks.expect(rank, |line| line == "ready");
        }
        ranks
    }

    pub(crate) fn pid(&self, rank: usize) -> Pid {
        Pid::from_child(&self.0[rank].0)
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        kill_process(self.pid(rank), signal).unwrap();
    }

    /// Waits for a line of a rank.
    pub(crate) fn expect(&mut self, rank: usize, is_it: impl Fn(&str) -> bool) {
        self.expect_line(rank, is_it);
    }

    /// The same, and which line it was.
    pub(crate) fn expect_line(&mut self, rank: usize, is_it: impl Fn(&str) -> bool) -> String {
        let mut seen = String::new();
        while self.0[rank].1.read_line(&mut seen).unwrap() > 0 {
            if let Some(line) = seen.lines().last().filter(|line| is_it(line)) {
                return line.to_owned();
            }
        }
        panic!("rank {rank} said something else:\n{seen}");
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
