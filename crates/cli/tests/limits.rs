//! Ranks in a process that may have little of something.

use std::process::Command;

/// A segment takes 17 GB of address space, of which little is ever touched.
#[test]
fn ranks_without_address_space_for_shared_memory_use_tcp_and_say_so() {
    let perf = format!(
        "ulimit -v 6000000 && exec {} perf all_reduce -n 2 -b 1K -e 64K --iterations 5",
        env!("CARGO_BIN_EXE_railnet")
    );
    let done = Command::new("bash").args(["-c", &perf]).env("RAILNET_DEBUG", "warn").output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}{errors}");
    assert!(errors.contains("no shared memory") && errors.contains("ulimit -v"), "{errors}");
    assert!(out.contains("65536"), "{out}");
    // Where shared memory was asked for, there is no other way: every rank says whose fault it is.
    let done = Command::new("bash").args(["-c", &format!("{perf} --conduit shm")]).output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{errors}");
    assert!(errors.contains("Cannot allocate memory"), "{errors}");
}
