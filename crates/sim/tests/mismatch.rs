//! Ranks that do not call the same: the run fails, and says who means what.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_sim::{Scenario, run};

/// What a run of ranks at the ports of a switch says in the end.
fn verdict(hosts: u32, before: &str, calls: &str) -> String {
    let text = format!(
        "{before}\n[[collective]]\nplacement = \"out\"\n{calls}\n\
         [fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n"
    );
    let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    run(&scenario, NoSink).unwrap_err().to_string()
}

const SUM: &str = "kind = \"all-reduce\"\nsize = \"1MiB\"\n[[collective.differs]]\nrank = 2\n";

#[test]
fn ranks_that_disagree_are_named_with_what_they_called() {
    let cases = [
        ("size = \"512KiB\"", "count", "AllReduce #0 f32 × 131,072 sum"),
        ("type = \"half\"", "count, type", "AllReduce #0 f16 × 524,288 sum"),
        ("op = \"max\"", "operation", "AllReduce #0 f32 × 262,144 max"),
        ("call = \"broadcast\"", "collective", "Broadcast #0 f32 × 262,144 root 0"),
    ];
    for (differs, what, other) in cases {
        let expected = format!(
            "ranks disagree about collective #0 ({what}).\n  ranks 0, 1, 3: AllReduce #0 f32 × 262,144 sum\n  \
             rank 2: {other}"
        );
        assert_eq!(verdict(4, "", &format!("{SUM}{differs}")), expected);
    }
}

#[test]
fn a_root_that_one_rank_sees_elsewhere_is_named() {
    let call = "kind = \"broadcast\"\nsize = \"1MiB\"\n[[collective.differs]]\nrank = 3\nroot = 1";
    assert_eq!(
        verdict(4, "", call),
        "ranks disagree about collective #0 (root).\n  ranks 0, 1, 2: Broadcast #0 f32 × 262,144 root 0\n  \
         rank 3: Broadcast #0 f32 × 262,144 root 1"
    );
}

#[test]
fn gpus_of_one_server_notice_too() {
    let call = "kind = \"all-reduce\"\nsize = \"64MiB\"\n[[collective.differs]]\nrank = 5\nsize = \"32MiB\"\n\
                [cluster]\nserver = \"dgx-h100\"";
    assert_eq!(
        verdict(16, "", call),
        "ranks disagree about collective #0 (count).\n  \
         ranks 0, 1, 2, 3, 4, 6, 7 … 15 (15 of them): AllReduce #0 f32 × 16,777,216 sum\n  \
         rank 5: AllReduce #0 f32 × 8,388,608 sum"
    );
}

#[test]
fn a_rank_that_never_calls_is_named_by_those_that_wait() {
    let absent = format!("{SUM}absent = true");
    assert_eq!(
        verdict(4, "", &absent),
        "rank 2 has not entered AllReduce #0 for 30 s; ranks 0, 1, 3 wait.\n  \
         rank 2, last seen: alive, but made no call yet"
    );
    // A run that ends sooner says so sooner.
    let early = verdict(4, "limit = \"1s\"", &absent);
    assert!(early.starts_with("rank 2 has not entered AllReduce #0 for 999."), "{early}");
}

#[test]
fn a_rank_that_stops_calling_is_named_with_what_it_did_last() {
    let two = "kind = \"all-gather\"\nsize = \"1MiB\"\n[[collective]]\nplacement = \"out\"\nkind = \"all-reduce\"\n\
               size = \"1MiB\"\n[[collective.differs]]\nrank = 0\nabsent = true\n[[collective.differs]]\nrank = 3\n\
               absent = true";
    assert_eq!(
        verdict(4, "", two),
        "ranks 0, 3 have not entered AllReduce #1 for 30 s; ranks 1, 2 wait.\n  \
         rank 0, last seen: finished AllGather #0 30 s ago, then no call\n  \
         rank 3, last seen: finished AllGather #0 30 s ago, then no call"
    );
}

/// Nobody waits for it, and still something was to be called that was not.
#[test]
fn a_rank_that_nobody_needs_is_missed_all_the_same() {
    let call = "kind = \"sendrecv\"\nsize = \"1MiB\"\n[[collective.differs]]\nrank = 3\nabsent = true";
    assert_eq!(verdict(4, "", call), "SendRecv did not end (0 of 1 were done): rank 3 made no call");
}

#[test]
fn a_rank_that_differs_in_nothing_is_a_mistake_of_the_scenario() {
    for differs in ["", "absent = true\nop = \"max\""] {
        let text = format!(
            "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = 4 }}\n[[collective]]\n{SUM}{differs}\n"
        );
        let error = Scenario::parse(&text).unwrap_err();
        assert_eq!(
            error.message,
            "say in what its call differs (call, size, type, op, root), or that it is absent"
        );
    }
}

#[test]
fn names_that_a_connection_cannot_have_are_refused() {
    let story = |connection: &str| {
        format!(
            "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = 4 }}\n[[collective]]\nkind = \"all-reduce\"\n\
             algorithm = \"Ring\"\nprotocol = \"Simple\"\norder = \"ascending\"\nsize = \"1MiB\"\n\
             [[collective.connection]]\nfrom = 0\nto = 1\n{connection}\n"
        )
    };
    let parse = |connection: &str| Scenario::parse(&story(connection));
    assert_eq!(parse("queue_pairs = [1, 17]").unwrap_err().message, "1 is not among 0x11 to 0xffffff");
    // One number cannot be given twice on the same NIC.
    let twice = "queue_pairs = [42, 43]\n[[collective.connection]]\nfrom = 1\nto = 2\nqueue_pairs = [43, 17]";
    let error = run(&parse(twice).unwrap(), NoSink).unwrap_err().to_string();
    assert_eq!(
        error,
        "rank 1: the connection with rank 2 on channel 0 broke: it cannot have the names of \
         [[collective.connection]]: cannot connect: queue pair number 0x2b is taken or outside this NIC's range"
    );
}
