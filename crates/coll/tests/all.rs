//! All tests of the crate from outside, in one program: the engine is compiled for it once.

mod algorithms;
mod executor;
mod machine;
mod mutation;
mod network;
mod proof;
mod window;
