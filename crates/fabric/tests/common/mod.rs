//! What several tests of this crate share.
#![allow(unreachable_pub, reason = "tests are no library")]

pub use railnet_fabric::testing::{Log, World, WorldOptions};
