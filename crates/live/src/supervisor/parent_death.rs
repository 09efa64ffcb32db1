//! The parent-death signal: a process is killed when the one that started it ends, however that ends.
//!
//! The only unsafe code of starting processes: it runs in the child between fork and exec.
#![expect(unsafe_code, reason = "`pre_exec` is unsafe, and nothing else runs between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the command's process killed when this one ends, or the thread that starts it.
pub fn bind(command: &mut Command) {
    let launcher = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // This process may have ended before the line above: then no signal would ever come.
        if getppid() == Some(launcher) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
    };
    // SAFETY: between fork and exec only what is async-signal-safe may run, because other threads' locks may be held
    // for ever in the copy. The closure makes two system calls and compares two numbers; it takes no lock and allocates
    // nothing (`io::Error::from(ErrorKind)` and an errno are plain values).
    unsafe {
        command.pre_exec(in_child);
    }
}
