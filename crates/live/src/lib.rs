//! The real world: sockets, memory, clocks and processes for the machines of the layers below.

pub mod memory;
pub mod roce;
