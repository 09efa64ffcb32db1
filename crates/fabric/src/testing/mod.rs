//! Networks for tests: hosts that each have memory, a completion queue and connections; and a storm of them.

mod audit;
pub mod storm;
mod world;

pub use world::{Log, World, WorldOptions};
