//! What several tests of this crate share.
#![allow(unused_imports, unreachable_pub, reason = "each test takes what it needs")]

pub use railnet_fabric::testing::{Log, World, WorldOptions};
