//! Files in and out, other than captures.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod chakra;
pub mod msccl;
pub mod nccl_graph;
pub mod nccl_tests;
pub mod nccl_topology;
pub mod perfetto;
pub mod recording;
pub mod run_file;
