//! For tests: many machines in memory, with conduits of queues or of NICs, and a plain reference for their results.

mod buffers;
mod lab;
mod network;
mod switch;

pub use buffers::{Buffers, Data};
pub use lab::{Lab, LabError};
pub use network::{NetworkLab, NetworkOptions};
