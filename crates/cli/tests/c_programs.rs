//! Programs in C under `railnet run`.

use std::process::Output;

#[allow(dead_code, reason = "these tests start their programs by the command")]
#[path = "../../capi/tests/all/installed.rs"]
mod installed;

use installed::{Installed, printed};

fn run(installed: &Installed, arguments: &[&str], source: &str) -> Output {
    let program = installed.compile(source);
    let mut command = installed.command(env!("CARGO_BIN_EXE_railnet").as_ref());
    command.arg("run").args(arguments).arg("--").arg(program).output().unwrap()
}

#[test]
fn the_examples_of_the_c_library_run_as_ranks() {
    let installed = Installed::new("under-run");
    let text = printed(&[run(&installed, &["-n", "2"], "examples/allreduce.c")]);
    assert!(text.contains("rank 1 of 2: 65536 elements are right"), "{text}");
    // Two host groups: shared memory inside, TCP between them.
    let text = printed(&[run(&installed, &["-n", "4", "--nodes", "2"], "examples/ping.c")]);
    assert!(text.contains("4 ranks passed it on 4000 times"), "{text}");
}
