//! Files in and out, other than captures.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod nccl_tests;
