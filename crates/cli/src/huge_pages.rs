//! Memory in huge pages, for large simulations.
//!
//! A thousand hosts that all talk to each other are a gigabyte that is walked through in no order, and with pages of 4 KiB the
//! processor looks up where each of them is: a quarter of the time. The C library asks the kernel for huge pages where a
//! variable says so, but it reads that only when a program starts. So the program starts once more.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Fewer hosts need too little memory for it to matter.
const HOSTS_MANY: usize = 256;

/// The variable that the C library reads, and what it is to find there.
const VARIABLE: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// Starts this program once more, with huge pages, if a simulation of so many hosts gains by them. Call it before anything is
/// read that cannot be read again, or written. Where it cannot be done, all goes on as it would.
pub(crate) fn start_again_with(hosts: usize) {
    if hosts < HOSTS_MANY || std::env::var_os(VARIABLE.0).is_some() || !are_for_the_asking() {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Some(name), Ok(program)) = (arguments.next(), std::env::current_exe()) else { return };
    // It comes back only if it failed.
    let _ = Command::new(program).arg0(name).args(arguments).env(VARIABLE.0, VARIABLE.1).exec();
}

/// Whether the kernel gives huge pages only where a process asks for them (`madvise`).
fn are_for_the_asking() -> bool {
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    cfg!(target_env = "gnu") && mode.is_ok_and(|mode| mode.contains("[madvise]"))
}
