//! Programs in C that use the library, as processes that find each other by their variables.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use crate::installed::{Installed, home, printed};

#[test]
fn every_call_gives_what_it_should_over_every_conduit() {
    let installed = Installed::new("collectives");
    let program = installed.compile("tests/c/collectives.c");
    for (ranks, conduit) in [(1, ""), (2, "shm"), (3, "shm"), (3, "tcp"), (2, "roce")] {
        let outputs = installed.ranks(&program, ranks, |command| _ = command.env("RAILNET_CONDUIT", conduit));
        let text = printed(&outputs);
        assert_eq!(text.matches("all is right").count(), ranks, "{ranks} by {conduit:?}: {text}");
    }
}

#[test]
fn the_examples_run_alone_and_together() {
    let installed = Installed::new("examples");
    let (allreduce, ping) = (installed.compile("examples/allreduce.c"), installed.compile("examples/ping.c"));
    let alone = [installed.command(&allreduce).output().unwrap(), installed.command(&ping).output().unwrap()];
    assert!(
        printed(&alone).contains("rank 0 of 1: 65536 elements are right\n1 ranks passed it on 1000 times")
    );
    let text = printed(&installed.ranks(&allreduce, 3, |_| ()));
    assert_eq!(text.matches("of 3: 65536 elements are right").count(), 3, "{text}");
    let text = printed(&installed.ranks(&ping, 3, |_| ()));
    assert_eq!(text, "3 ranks passed it on 3000 times\n");
}

#[test]
fn the_program_of_the_guide_runs() {
    let installed = Installed::new("guide");
    let guide = fs::read_to_string(home().join("../../docs/c.md")).unwrap();
    let program = guide.split("```c\n").nth(1).and_then(|after| after.split("```").next()).unwrap();
    let source = installed.prefix.join("average.c");
    fs::write(&source, program).unwrap();
    let program = installed.compile(source.to_str().unwrap());
    let text = printed(&installed.ranks(&program, 3, |_| ()));
    assert_eq!(text, "rank 0: 1\nrank 1: 1\nrank 2: 1\n");
}

#[test]
fn ranks_that_mean_different_calls_are_told_so() {
    let installed = Installed::new("mismatch");
    let program = installed.compile("tests/c/mismatch.c");
    printed(&installed.ranks(&program, 2, |_| ()));
}

#[test]
fn mistakes_are_errors_and_change_nothing() {
    let installed = Installed::new("misuse");
    let program = installed.compile("tests/c/misuse.c");
    let text = printed(&[installed.command(&program).output().unwrap()]);
    assert!(text.contains("checks, 0 failed"), "{text}");
}

#[test]
fn survivors_are_told_who_died_and_go_on_without_it() {
    let installed = Installed::new("lost");
    let program = installed.compile("tests/c/lost.c");
    let mut outputs = installed.ranks(&program, 3, |_| ());
    let killed = outputs.remove(1);
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
    let text = printed(&outputs);
    // They hear of it in the barrier, in the call after it, or before that call begins.
    assert_eq!(text.matches(": rank 1 is lost").count(), 2, "{text}");
    let calls = ["during Barrier #0", "during AllReduce #1", "so AllReduce #1 was not begun"];
    assert_eq!(calls.iter().map(|call| text.matches(call).count()).sum::<usize>(), 2, "{text}");
    assert_eq!(text.matches("  rank 1 is process ").count(), 2, "{text}");
    assert_eq!(text.matches("2 are left").count(), 2, "{text}");
}

#[test]
fn an_abort_ends_the_waits_of_other_threads_and_ranks() {
    let installed = Installed::new("abort");
    let program = installed.compile("tests/c/abort.c");
    let text = printed(&installed.ranks(&program, 2, |_| ()));
    assert!(text.contains("railnetAllReduce: rank 0 aborted the communicator"), "{text}");
}

#[test]
fn a_child_makes_its_own_communicators() {
    let installed = Installed::new("forked");
    let program = installed.compile("tests/c/forked.c");
    assert_eq!(printed(&[installed.command(&program).output().unwrap()]), "both are well\n");
}
