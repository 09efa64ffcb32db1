//! The library from outside: programs in C, compiled against what is installed.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stderr, reason = "a test that is left out says so")]

mod header;
mod installed;
mod programs;
