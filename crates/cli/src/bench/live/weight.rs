//! An equal share of the processors for every contestant, and how much of them each has had.
//!
//! Linux can share processors out among sessions before it does among processes (`sched_autogroup`). Some launchers leave
//! all ranks in one session, others make one for each: beside other work the ranks of the second kind would get several
//! times what those of the first get, for no merit of theirs. So each contestant has sessions of its own, and a session
//! weighs as much as the share of the ranks that is in it. Ranks are left in the sessions that their launcher makes: to
//! yield a core is to yield it to others of the same session, and that is part of what is measured.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, getsid};

use super::contestant::on_path;

/// A program in a session of its own, and in any case in a group of its own, with its number.
pub(crate) fn command(program: &Path) -> Command {
    match on_path("setsid") {
        Some(setsid) => {
            let mut command = Command::new(setsid);
            command.arg(program);
            command
        }
        None => {
            let mut command = Command::new(program);
            command.process_group(0);
            command
        }
    }
}

/// Makes the sessions of these ranks, together, as nice to others as this, from -20 to 19. What is not allowed stays as it
/// is.
pub(crate) fn share(ranks: &[u32], nice: i32) {
    let sessions: Vec<Option<Pid>> =
        ranks.iter().map(|&rank| getsid(Some(Pid::from_raw(rank as i32)?)).ok()).collect();
    for (&rank, session) in ranks.iter().zip(&sessions) {
        let members = sessions.iter().filter(|other| *other == session).count();
        let wanted = of_part(nice, members, ranks.len());
        if self::nice(rank).is_some_and(|now| now != wanted) {
            let _ = fs::write(format!("/proc/{rank}/autogroup"), wanted.to_string());
        }
    }
}

/// What a session has to be for its part of the ranks. A step is a fifth less or a quarter more (sched(7)).
fn of_part(nice: i32, part: usize, whole: usize) -> i32 {
    let steps = (whole as f64 / part.max(1) as f64).ln() / 1.25_f64.ln();
    (nice + steps.round() as i32).min(19)
}

/// How nice the session of a process is to others, where sessions have weights.
pub(crate) fn nice(process: u32) -> Option<i32> {
    parse(&fs::read_to_string(format!("/proc/{process}/autogroup")).ok()?)
}

fn parse(line: &str) -> Option<i32> {
    line.trim().rsplit_once("nice ")?.1.parse().ok()
}

/// Seconds of a processor that all threads of a process have had.
pub(crate) fn seconds(process: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        // A thread may end while it is looked at.
        if let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) {
            nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    Some(nanoseconds as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_of_a_session_is_read_from_its_line() {
        assert_eq!(parse("/autogroup-498 nice -20\n"), Some(-20));
        assert_eq!(parse("/autogroup-1 nice 0"), Some(0));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn sessions_weigh_as_much_as_the_ranks_in_them() {
        // Weights of nice values in kernel/sched/core.c: -20 is 88761, -17 is 46273, -14 is 23254, 0 is 1024, 3 is 526.
        assert_eq!(of_part(-20, 2, 2), -20);
        assert_eq!(of_part(-20, 1, 2), -17);
        assert_eq!(of_part(-20, 1, 4), -14);
        assert_eq!(of_part(0, 2, 4), 3);
        assert_eq!(of_part(18, 1, 4), 19);
    }
}
