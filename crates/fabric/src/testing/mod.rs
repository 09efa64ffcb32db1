//! Networks for tests: hosts that each have memory, a completion queue and connections.

mod world;

pub use world::{Log, World, WorldOptions};
