//! All tests of the crate from outside, in one program: the engine is compiled for it once.

mod closed_forms;
mod collectives;
mod control;
mod faults;
mod job_faults;
mod job_memo;
mod job_servers;
mod jobs;
mod lists;
mod mismatch;
mod order;
mod page;
mod peers;
mod priorities;
mod recovery;
mod scenarios;
mod series;
mod servers;
mod sharp;
mod standstill;
mod traffic;
mod training;
mod transfer;
mod unlike;
mod wire;
mod worked_example;
