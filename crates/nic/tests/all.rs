//! All tests of the crate from outside, in one program: the engine is compiled for it once.

mod acknowledgements;
mod basics;
mod cm;
mod congestion;
mod errors;
mod lifecycle;
mod regressions;
mod reorder;
mod replay;
mod restart;
mod selective_repeat;
mod storm;
