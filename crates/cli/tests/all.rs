//! All tests of the command, in one program: the crates below it are linked once.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read and write their files, start commands and read their environment themselves"
)]
#![allow(clippy::print_stderr, reason = "a test that is left out says so")]

mod architecture;
mod c_programs;
mod columns;
mod compare;
mod decode;
mod dependencies;
mod documents;
mod dryrun;
mod framings;
mod harness;
mod job;
mod limits;
mod outputs;
mod parsers;
mod perf;
mod pingpong;
mod plan;
mod rank_status;
mod rdma;
mod record;
mod replay;
mod run;
mod schedule;
mod sim;
mod status;
mod storm;
mod taps;
mod topo;
mod tune;
mod validate;
mod verbs;
