//! All tests of the crate from outside, in one program: the engine is compiled for it once.

mod bus;
mod common;
mod credits;
mod deadlock;
mod dragonfly;
mod events;
mod faults;
mod frames;
mod lookahead;
mod ports;
mod reductions;
mod storm;
mod switches;
mod watches;
